"""Granting a capability to a person or a group."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User

from agentops.people import services
from agentops.people.services import Whom
from runs import access
from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Grant, Run
from tests import factories

pytestmark = pytest.mark.django_db


def grant(
    to: User | Group,
    capability: str,
    scope: str = "everything",
    name: str = "",
    *,
    by: Any = None,
    **more: Any,
) -> str:
    whom = Whom("person" if isinstance(to, User) else "group", to.pk)
    return services.grant(
        by or factories.admin(), whom, capability, scope, name, reason=more.pop("reason", "new here"), **more
    )


def desk(*permissions: str) -> Actor:
    """Somebody who may manage people without being an administrator, and holds these as well."""
    person = factories.user()
    codenames = ["manage_people", *(one.partition(".")[2] for one in permissions)]
    person.user_permissions.set(
        Permission.objects.filter(codename__in=codenames, content_type__app_label__in=["runs", "approvals"])
    )
    return Actor.of(User.objects.get(pk=person.pk))


def again(person: User) -> User:
    return User.objects.get(pk=person.pk)


def test_a_person_may_do_it_in_that_workflow_at_once_and_the_audit_tells():
    person = factories.user("olivia")
    said = grant(person, "operate", "workflow", "parcel", by=factories.admin("ada"))
    assert said == "olivia has been granted “Operate” for workflow parcel."
    assert access.may(again(person), "runs.cancel_run", Run(workflow="parcel"))
    assert not access.may(again(person), "runs.cancel_run", Run(workflow="refund"))
    event = AuditEvent.objects.get(target="person olivia")
    assert (event.kind, event.actor, event.reason) == ("capability_granted", "ada", "new here")
    assert event.old is not None and event.new is not None
    assert event.old["grants"] == []
    assert event.new["grants"] == ["Operate: workflow parcel"]


def test_a_grant_to_a_group_is_its_members():
    group = Group.objects.create(name="parcels")
    person = factories.user()
    person.groups.add(group)
    grant(group, "view", "subject", "order ")
    assert access.may(again(person), "runs.view_run", Run(subject="order 7"))
    assert AuditEvent.objects.get().target == "group parcels"


@pytest.mark.parametrize(
    ("capability", "scope", "name", "why"),
    [
        ("rule", "everything", "", "no capability"),
        ("view", "planet", "earth", "not for"),
        ("view", "workflow", "", "which workflow"),
        ("view", "workflow", "nonesuch", "no workflow nonesuch"),
        ("view", "subject", "  ", "begins with"),
        ("view", "subject", "order\x00", "begins with"),
    ],
)
def test_what_cannot_be_granted_is_refused(capability: str, scope: str, name: str, why: str):
    with pytest.raises(Invalid, match=why):
        grant(factories.user(), capability, scope, name)
    assert not Grant.objects.exists()


def test_a_workflow_that_the_code_has_no_longer_can_be_granted_while_it_has_runs():
    factories.run(workflow="bygone")
    grant(factories.user(), "view", "workflow", "bygone")
    assert Grant.objects.get().name == "bygone"


def test_the_same_twice_is_refused():
    person = factories.user()
    grant(person, "view")
    with pytest.raises(StateMismatch, match="already"):
        grant(person, "view")


def test_a_page_that_is_older_than_the_last_change_is_stale():
    person = factories.user()
    seen = services.version(person)
    grant(person, "view", seen=seen)
    with pytest.raises(Stale):
        grant(person, "payloads", seen=seen)
    grant(person, "payloads", seen=services.version(person))


@pytest.mark.parametrize("group", ["operators", "support", ""])
def test_whoever_may_not_manage_people_grants_nothing(group: str):
    by = factories.actor("", *([group] if group else []))
    with pytest.raises(NotAllowed):
        grant(factories.user(), "view", by=by)
    assert not Grant.objects.exists()


def test_nobody_is_there_or_nothing_is_said():
    with pytest.raises(NotFound):
        services.grant(factories.admin(), Whom("person", 10**6), "view", "everything", reason="x")
    with pytest.raises(Invalid, match="say why"):
        grant(factories.user(), "view", reason="  ")


# --- giving needs having -------------------------------------------------------------------------------------------------


def test_an_administrator_gives_what_they_do_not_hold():
    admin = factories.admin()
    assert isinstance(admin.user, User)
    admin.user.groups.clear()
    Grant.objects.create(user=admin.user, capability="administer", granted_by="Ada")
    grant(factories.user(), "approve", by=Actor.of(again(admin.user)))


def test_whoever_manages_people_only_gives_what_they_hold():
    view = access.CAPABILITIES["view"].permissions
    by = desk(*view)
    grant(factories.user(), "view", by=by)
    for capability in ("payloads", "approve", "operate", "administer"):
        with pytest.raises(NotAllowed, match="what you hold yourself"):
            grant(factories.user(), capability, by=by)


def test_what_they_hold_for_a_part_they_give_for_that_part():
    by = desk()
    assert isinstance(by.user, User)
    Grant.objects.create(
        user=by.user, capability="operate", scope="workflow", name="parcel", granted_by="Ada"
    )
    Grant.objects.create(user=by.user, capability="view", scope="subject", name="order ", granted_by="Ada")
    grant(factories.user(), "operate", "workflow", "parcel", by=by)
    grant(factories.user(), "view", "subject", "order 10", by=by)
    for capability, scope, name in (
        ("operate", "everything", ""),
        ("view", "subject", "orde"),
        ("operate", "subject", "order 10"),
    ):
        with pytest.raises(NotAllowed):
            grant(factories.user(), capability, scope, name, by=by)


def test_nobody_makes_themselves_an_administrator():
    by = desk()
    assert isinstance(by.user, User)
    with pytest.raises(NotAllowed):
        grant(by.user, "administer", by=by)
