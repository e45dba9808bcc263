"""Who may decide, as a frozen requirement says it: of approvals, and of requests for a guarded verb."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, Group, PermissionsMixin
from django.contrib.postgres.expressions import ArraySubquery
from django.db import connection
from django.db.models import BooleanField, F, Func, Q, TextField
from django.db.models.functions import Cast

from approvals.policies import effective
from runs import clock
from runs.errors import NotAllowed, NotFresh
from runs.lifecycle import Actor

#: As plain SQL: a run goes on after a decision, and Django's compiler takes longer than the server.
_GROUPS = "SELECT g.name FROM auth_group g JOIN auth_user_groups m ON m.group_id = g.id WHERE m.user_id = %s"


def groups_of(user: AbstractBaseUser) -> set[str]:
    """Names of the groups that a user is in; no query where a page has prefetched them."""
    assert isinstance(user, PermissionsMixin)
    if "groups" in getattr(user, "_prefetched_objects_cache", {}):
        return {group.name for group in user.groups.all()}
    with connection.cursor() as cursor:
        cursor.execute(_GROUPS, [user.pk])
        return {name for (name,) in cursor.fetchall()}


def check(actor: Actor, requirement: Mapping[str, Any], groups: Collection[str] | None = None) -> None:
    """Raise NotAllowed unless the requirement lets this person decide. `groups`: the person's, where they have been read."""
    if actor.user is None:
        raise NotAllowed("only a person may decide")
    for person in requirement["excluded"]:
        if actor.id == person["id"] or actor.name == person["name"]:
            did = "asked for this" if person.get("as") == "requester" else "started this run"
            raise NotAllowed(f"you {did}, so somebody else has to decide")
    if any(person["id"] == actor.id for person in requirement.get("users", ())):
        return
    if not set(requirement["groups"]).intersection(groups_of(actor.user) if groups is None else groups):
        people = "members of " if requirement["groups"] else ""
        raise NotAllowed(f"only {people}{effective.who(requirement)} may decide this")


def check_fresh(requirement: Mapping[str, Any], signed_in_at: datetime | None) -> None:
    """Raise NotFresh if the requirement wants a younger sign-in; None: nobody knows when this person signed in."""
    minutes = requirement.get("fresh_minutes")
    if minutes is None:
        return
    if signed_in_at is None or clock.now() - signed_in_at > timedelta(minutes=minutes):
        raise NotFresh(minutes)


def asks(user: AbstractBaseUser) -> Q:
    """Condition on rows with a `requirement`: it lets this person decide.

    The groups are read by the same query: each page of the console makes it.
    """
    named = Q(requirement__groups__isnull=False) & _any_of(user, F("requirement__groups"))
    return (
        (named | Q(requirement__users__contains=[{"id": user.pk}]))
        & ~Q(requirement__excluded__contains=[{"id": user.pk}])
        & ~Q(requirement__excluded__contains=[{"name": user.get_username()}])
    )


def asks_further(user: AbstractBaseUser) -> Q:
    """The same for the groups to which a requirement escalates."""
    return Q(_any_of(user, F("requirement__escalation__groups"))) & ~Q(
        requirement__excluded__contains=[{"id": user.pk}]
    )


def _any_of(user: AbstractBaseUser, groups: F) -> Q:
    mine = ArraySubquery(Group.objects.filter(user=user.pk).values_list(Cast("name", TextField())))
    return Q(Func(groups, mine, function="jsonb_exists_any", output_field=BooleanField()))
