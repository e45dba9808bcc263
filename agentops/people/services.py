"""The verbs on who may do what: grant, take back, put into and out of groups, switch off and on, make people and groups.

One row is locked before anything is read: that of the permission to manage people. So these verbs happen one after another, and
two administrators who take it from each other at one moment do not both succeed. Only then the run locks of claims follow.

Giving needs having: whoever may manage people without being an administrator gives what they hold themselves, no more. Taking
away does not. Why: docs/admins.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.contrib.auth.models import Group, Permission, User
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.core.exceptions import ValidationError
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from agentops.console import hostile
from agentops.people import holding
from agentops.people.holding import Holding
from approvals.models import Approval, Item, Policy, Request
from approvals.policies import effective
from runs import access, codec, lifecycle, registry
from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Grant, Run
from runs.services.verb import permit, verb

MANAGE = "runs.manage_people"
#: Of a group's name in Django's table.
NAME_LENGTH = 150
REASON_LENGTH = 500

Scope = Grant.Scope


class _Links(PasswordResetTokenGenerator):
    """Signs the links with which somebody chooses their password; each holds until a password is set, and three days at most."""

    key_salt = "agentops.people.links"


links = _Links()


@dataclass(frozen=True)
class Whom:
    """A person or a group."""

    kind: Literal["person", "group"]
    id: int

    def find(self) -> User | Group:
        """Raises NotFound."""
        found = (User if self.kind == "person" else Group).objects.filter(pk=self.id).first()
        if found is None:
            raise NotFound(f"there is no {self.kind} {self.id}")
        return found


@dataclass(frozen=True)
class Link:
    """With which somebody chooses their own password. It is kept nowhere, so it can be shown once only."""

    user: User
    uid: str
    token: str
    sentence: str


# --- what is, for pages and their guard ----------------------------------------------------------------------------------


def facts(one: User | Group, held: Holding | None = None) -> dict[str, Any]:
    """What the verbs change about a person or a group, as the audit keeps it; asked for where it is not in what was read."""
    grants: Iterable[Grant] = held.own if held else one.grants.all()
    found: dict[str, Any] = {"grants": sorted(str(grant) for grant in grants)}
    if isinstance(one, User):
        groups = [way.group for way in held.groups] if held else one.groups.values_list("name", flat=True)
        found |= {"groups": sorted(groups), "active": one.is_active}
    return found


def version(one: User | Group, held: Holding | None = None) -> str:
    """Of these facts: a page that was loaded before they changed is stale."""
    return codec.digest(facts(one, held))


def name_of(one: User | Group) -> str:
    return one.get_username() if isinstance(one, User) else one.name


def target_of(one: User | Group) -> str:
    """What the audit calls it."""
    return f"{'person' if isinstance(one, User) else 'group'} {name_of(one)}"


# --- the verbs -----------------------------------------------------------------------------------------------------------


@verb
def grant(
    actor: Actor,
    to: Whom,
    capability: str,
    scope: str,
    name: str = "",
    *,
    reason: str,
    seen: str | None = None,
) -> str:
    """Give a capability for everything, a workflow, or subjects that begin with `name`.

    Raises NotAllowed (also for more than one holds), NotFound, Invalid, Stale, StateMismatch (they have it already).
    """
    by = _begin(actor, reason)
    one = to.find()
    _guard(one, seen)
    name = check_grant(capability, scope, name)
    if Grant.objects.filter(
        **{"user" if isinstance(one, User) else "group": one}, capability=capability, scope=scope, name=name
    ).exists():
        raise StateMismatch(f"{name_of(one)} has been granted this already")
    _check_may_give(by, capability, scope, name)
    old = facts(one)
    made = Grant.objects.create(
        user=one if isinstance(one, User) else None,
        group=one if isinstance(one, Group) else None,
        capability=capability,
        scope=scope,
        name=name,
        granted_by=by.name,
    )
    _write(by, "capability_granted", one, reason, old)
    return f"{name_of(one)} has been granted “{made.get_capability_display()}” for {made.reach}."


@verb
def take_back(actor: Actor, grant_id: Any, *, reason: str, seen: str | None = None) -> str:
    """Take a grant back from whoever has it. Raises NotAllowed, NotFound, Invalid, Stale, StateMismatch (nobody would manage)."""
    by = _begin(actor, reason)
    found = Grant.objects.select_related("user", "group").filter(pk=grant_id).first()
    if found is None:
        raise NotFound("this grant has been taken back already")
    one = found.user or found.group
    assert one is not None, "constraint grant_user_or_group"
    _guard(one, seen)
    old = facts(one)
    found.delete()
    _check_still_managed(by)
    _write(by, "capability_taken_back", one, reason, old)
    return f"“{found.get_capability_display()}” for {found.reach} has been taken back from {name_of(one)}."


@verb
def join(actor: Actor, user_id: int, group_id: int, *, reason: str, seen: str | None = None) -> str:
    """Put a person into a group.

    Raises NotAllowed (also for a group that one is not in oneself), NotFound, Invalid, Stale, StateMismatch (they are in it).
    """
    by = _begin(actor, reason)
    person, group = _person(user_id), _group(group_id)
    _guard(person, seen)
    if person.groups.filter(pk=group.pk).exists():
        raise StateMismatch(f"{person.get_username()} is in {group.name} already")
    _check_may_give_group(by, group)
    old = facts(person)
    person.groups.add(group)
    _write(by, "group_joined", person, reason, old)
    return f"{person.get_username()} is now in {group.name}."


@verb
def leave(actor: Actor, user_id: int, group_id: int, *, reason: str, seen: str | None = None) -> str:
    """Take a person out of a group.

    Raises NotAllowed, NotFound, Invalid, Stale, StateMismatch (not in it, or nobody would manage people).
    """
    by = _begin(actor, reason)
    person, group = _person(user_id), _group(group_id)
    _guard(person, seen)
    if not person.groups.filter(pk=group.pk).exists():
        raise StateMismatch(f"{person.get_username()} is not in {group.name}")
    old = facts(person)
    person.groups.remove(group)
    _check_still_managed(by)
    _write(by, "group_left", person, reason, old)
    return f"{person.get_username()} is no longer in {group.name}."


@verb
def switch_off(actor: Actor, user_id: int, *, reason: str, seen: str | None = None) -> str:
    """Let somebody sign in no more: their sessions end, their password and links are void, what they had claimed is released.

    Raises NotAllowed, NotFound, Invalid, Stale, StateMismatch (oneself, or switched off already).
    """
    by = _begin(actor, reason)
    person = _person(user_id)
    if person.pk == by.id:
        raise StateMismatch("you would lock yourself out: somebody else who may manage people has to do this")
    if not person.is_active:
        raise StateMismatch(f"{person.get_username()} is switched off already")
    _guard(person, seen)
    old = facts(person)
    released = shut_out(by, person, reason)
    _check_still_managed(by)
    _write(by, "person_switched_off", person, reason, old, released=released)
    more = {0: "", 1: " 1 claim was released."}.get(released, f" {released} claims were released.")
    return f"{person.get_username()} is switched off and signed out everywhere.{more}"


@verb
def switch_on(actor: Actor, user_id: int, *, reason: str, seen: str | None = None) -> Link:
    """Let somebody sign in again, with a new link.

    Raises NotAllowed (they would hold more than oneself), NotFound, Invalid, Stale, StateMismatch (they are not switched off).
    """
    by = _begin(actor, reason)
    person = _person(user_id)
    if person.is_active:
        raise StateMismatch(f"{person.get_username()} is not switched off")
    _guard(person, seen)
    _check_may_stand_for(by, person)
    old = facts(person)
    person.is_active = True
    person.set_unusable_password()
    person.save(update_fields=["is_active", "password"])
    _write(by, "person_switched_on", person, reason, old)
    return _link(person, f"{person.get_username()} may sign in again, with a new link.")


@verb
def renew_link(actor: Actor, user_id: int, *, reason: str, seen: str | None = None) -> Link:
    """Make the password void and a link with which its owner chooses another; their sessions end.

    Raises NotAllowed (they hold more than oneself), NotFound, Invalid, Stale, StateMismatch (oneself, or switched off).
    """
    by = _begin(actor, reason)
    person = _person(user_id)
    if person.pk == by.id:
        raise StateMismatch("this would sign you out: change your own password in the menu under your name")
    if not person.is_active:
        raise StateMismatch(f"{person.get_username()} is switched off")
    _guard(person, seen)
    _check_may_stand_for(by, person)
    old = facts(person)
    person.set_unusable_password()
    person.save(update_fields=["password"])
    _write(by, "sign_in_link_made", person, reason, old)
    return _link(person, f"{person.get_username()} needs the new link to sign in.")


@verb
def add_person(
    actor: Actor,
    username: str,
    *,
    first_name: str = "",
    last_name: str = "",
    group_ids: Sequence[int] = (),
    reason: str,
) -> Link:
    """Make a person who chooses their password by a link.

    Raises NotAllowed (also for a group that one is not in oneself), NotFound, Invalid (no name, or one that is taken).
    """
    by = _begin(actor, reason)
    person = User(username=username.strip(), first_name=first_name.strip(), last_name=last_name.strip())
    person.set_unusable_password()
    try:
        person.full_clean()
    except ValidationError as error:
        raise Invalid(" ".join(error.messages).rstrip(".")) from None
    # Names are told apart in history and in policies: two that differ by case alone would be taken for one another.
    if User.objects.filter(username__iexact=person.username).exists():
        raise Invalid(f"there is somebody called {person.username} already")
    groups = [_group(group_id) for group_id in group_ids]
    for group in groups:
        _check_may_give_group(by, group)
    person.save()
    person.groups.set(groups)
    _write(by, "person_added", person, reason, None)
    return _link(person, f"{person.get_username()} was added and may sign in with a link.")


@verb
def add_group(actor: Actor, name: str, *, reason: str) -> Group:
    """Make a group that holds nothing yet. Raises NotAllowed, Invalid (no name, or one that is taken)."""
    by = _begin(actor, reason)
    group = Group(name=name.strip())
    if not group.name or len(group.name) > NAME_LENGTH or hostile.plain(group.name) != group.name:
        raise Invalid(f"a group has a name of up to {NAME_LENGTH} ordinary characters")
    if Group.objects.filter(name__iexact=group.name).exists():
        raise Invalid(f"there is a group {group.name} already")
    group.save()
    _write(by, "group_added", group, reason, None)
    return group


def password_chosen(person: User, how: str = "by a sign-in link") -> None:
    """Note that somebody has a new password: whoever did not do so themselves finds it in their own history."""
    AuditEvent.objects.create(
        kind="password_changed",
        target=target_of(person),
        actor_user_id=person.pk,
        actor=person.get_username(),
        reason=how,
    )


# --- what all of them share ----------------------------------------------------------------------------------------------


def _begin(actor: Actor, reason: str) -> Actor:
    """Take the lock; the actor as they are under it. Raises NotAllowed, Invalid (no reason)."""
    permit(actor, MANAGE)
    app, _, codename = MANAGE.partition(".")
    row = Permission.objects.select_for_update(no_key=True, of=("self",))
    row.get(content_type__app_label=app, codename=codename)
    # Whoever waited for the lock may have lost the permission by what the one before did; what was read earlier is kept with
    # the user object, so that it is asked with a new one.
    assert isinstance(actor.user, User), "a person: permit"
    by = Actor.of(User.objects.get(pk=actor.user.pk))
    permit(by, MANAGE)
    if not reason.strip():
        raise Invalid("say why")
    return by


def _guard(one: User | Group, seen: str | None) -> None:
    if seen is not None and seen != version(one):
        raise Stale(f"what {name_of(one)} may do has changed since the page was loaded")


def _check_still_managed(by: Actor) -> None:
    """Raise StateMismatch where the actor, and so perhaps everybody, could manage people no more."""
    assert by.user is not None
    left = User.objects.filter(holding.people_with([MANAGE]))
    if left.filter(pk=by.user.pk).exists():
        return
    if left.exists():
        raise StateMismatch("you would lock yourself out: somebody else who may manage people has to do this")
    raise StateMismatch("nobody would be left who may manage people: let somebody else do so first")


def _write(
    by: Actor, kind: str, one: User | Group, reason: str, old: dict[str, Any] | None, **more: Any
) -> None:
    AuditEvent.objects.create(
        kind=kind,
        target=target_of(one),
        actor_user_id=by.id,
        actor=by.name,
        reason=codec.clean_text(reason.strip(), REASON_LENGTH),
        old=old,
        new=facts(one) | more,
    )


def shut_out(by: Actor, person: User, reason: str) -> int:
    """Switch somebody off, whoever does it: here, or on the command line. Returns how many claims were released."""
    person.is_active = False
    # A session holds a digest of the password, and so does a link: without one, none of them is accepted again, also after a
    # return, which gives another.
    person.set_unusable_password()
    person.save(update_fields=["is_active", "password"])
    return release_claims(by, person, reason)


def release_claims(by: Actor, person: User, reason: str) -> int:
    """Give back what somebody has claimed; how many. Runs are locked by id, so a parent before its children, who are younger."""
    claimed = Item.objects.filter(claimed_by=person).order_by("run_id", "id").values_list("run_id", "pk")
    released = 0
    for run_id, item_id in list(claimed):
        try:
            run = lifecycle.lock_run(run_id)
        except Run.DoesNotExist:
            continue  # deleted since, and the claim with it
        item = Item.objects.get(pk=item_id)
        if item.claimed_by_id != person.pk:
            continue  # assigned to somebody else before its run was locked
        item.claimed_by, item.claimed_by_name, item.claimed_at = None, "", None
        item.version += 1
        item.save(update_fields=["claimed_by", "claimed_by_name", "claimed_at", "version"])
        lifecycle.append_event(
            run,
            "item_released",
            by,
            reason,
            item_kind=str(item.kind),
            item=str(item.item_id),
            of=person.get_username(),
        )
        released += 1
    return released


def _person(user_id: int) -> User:
    found = Whom("person", user_id).find()
    assert isinstance(found, User)
    return found


def _group(group_id: int) -> Group:
    found = Whom("group", group_id).find()
    assert isinstance(found, Group)
    return found


def _link(person: User, sentence: str) -> Link:
    return Link(person, urlsafe_base64_encode(force_bytes(person.pk)), links.make_token(person), sentence)


def check_grant(capability: str, scope: str, name: str) -> str:
    """The name of the part, tidied. Raises Invalid for what cannot be granted."""
    if capability not in access.CAPABILITIES:
        raise Invalid(f"there is no capability {capability!r}")
    if scope not in Scope.values:
        raise Invalid(f"a capability is for everything, a workflow or a subject, not for {scope!r}")
    if scope == Scope.EVERYTHING:
        return ""
    # The spaces of a subject count: “order 1” and “order 10” begin alike.
    name = name if scope == Scope.SUBJECT else name.strip()
    if not name.strip() or codec.clean_text(name, 200) != name:
        raise Invalid("say which workflow" if scope == Scope.WORKFLOW else "say what the subject begins with")
    if scope == Scope.WORKFLOW and not _is_workflow(name):
        raise Invalid(f"there is no workflow {name}")
    return name


def _is_workflow(name: str) -> bool:
    """Whether the code has it, or had it: there are runs of it still. Index run_by_workflow."""
    return any(one.name == name for one in registry.workflows()) or Run.objects.filter(workflow=name).exists()


# --- giving needs having -------------------------------------------------------------------------------------------------


def is_administrator(user: User) -> bool:
    """Whether they hold the whole of “Administer” for everything: they may give what they do not hold."""
    whole = set(access.CAPABILITIES[Grant.Capability.ADMINISTER].permissions) - holding.COMMAND_LINE
    return all(access.everywhere(user, permission) for permission in whole)


def may_give(user: User, capability: str, scope: str, name: str) -> bool:
    """Whether they hold themselves what a grant would contain, there."""
    if is_administrator(user):
        return True
    wanted = holding.contents(capability) - holding.COMMAND_LINE
    if scope != Scope.EVERYTHING:
        wanted -= access.WHOLE
    return all(_holds(user, permission, scope, name) for permission in wanted)


def _holds(user: User, permission: str, scope: str, name: str) -> bool:
    if access.everywhere(user, permission):
        return True
    return any(
        part.scope == scope and (part.name == name if scope == Scope.WORKFLOW else name.startswith(part.name))
        for part in access.scopes(user, permission)
    )


def may_give_group(user: User, group: Group) -> bool:
    """A group is more than its permissions: policies let its members decide. So one has to be in it."""
    return is_administrator(user) or user.groups.filter(pk=group.pk).exists()


def may_stand_for(user: User, person: User) -> bool:
    """Whether somebody may make a link for a person, with which one could sign in as them."""
    if person.is_superuser and not user.is_superuser:
        return False
    if is_administrator(user):
        return True
    if person.user_permissions.exists() and not user.is_superuser:
        return False
    groups = set(person.groups.values_list("pk", flat=True))
    if groups - set(user.groups.values_list("pk", flat=True)):
        return False
    own = Grant.objects.filter(user=person)
    return all(may_give(user, one.capability, one.scope, one.name) for one in own) and not _is_named(person)


def _is_named(person: User) -> bool:
    """Whether a policy lets the person themselves decide, or something that waits was asked for when one did."""
    asked = {"state": Approval.State.OPEN, "requirement__users__contains": [{"id": person.pk}]}
    return (
        any(
            one.id == person.pk
            for row in Policy.objects.filter(active=True)
            for rule in effective.rules_of(row)
            for one in rule.users
        )
        or Approval.objects.filter(**asked).exists()
        or Request.objects.filter(**asked).exists()
    )


def _check_may_give(by: Actor, capability: str, scope: str, name: str) -> None:
    assert isinstance(by.user, User)
    if not may_give(by.user, capability, scope, name):
        raise NotAllowed("you can grant only what you hold yourself, unless you administer everything")


def _check_may_give_group(by: Actor, group: Group) -> None:
    assert isinstance(by.user, User)
    if not may_give_group(by.user, group):
        raise NotAllowed(
            f"you can put people only into groups that you are in, unless you administer everything: not {group.name}"
        )


def _check_may_stand_for(by: Actor, person: User) -> None:
    assert isinstance(by.user, User)
    if not may_stand_for(by.user, person):
        raise NotAllowed(
            f"{person.get_username()} holds more than you do, and with the link you could sign in as them"
        )
