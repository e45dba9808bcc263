"""What becomes of a group of failures: acknowledged, fixed in a version, handled, open again; and notes on it."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import connection

from runs.clock import Now
from runs.diagnosis import failures
from runs.errors import Invalid, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, FailureGroup, Run
from runs.services.verb import permit, verb

_S = FailureGroup.State


@dataclass(frozen=True)
class Change:
    """One way to change a group: from which states, to which."""

    kind: str
    """Of the audit event."""
    sources: tuple[str, ...]
    target: str


CHANGES: Mapping[str, Change] = {
    "acknowledge": Change("failure_acknowledged", (_S.OPEN,), _S.ACKNOWLEDGED),
    "fix": Change("failure_fixed", (_S.OPEN, _S.ACKNOWLEDGED, _S.FIXED), _S.FIXED),
    "handle": Change("failure_handled", (_S.OPEN, _S.ACKNOWLEDGED, _S.FIXED), _S.HANDLED),
    "reopen": Change("failure_reopened", (_S.ACKNOWLEDGED, _S.FIXED, _S.HANDLED), _S.OPEN),
}


def acknowledge_failure(
    actor: Actor, fingerprint: uuid.UUID, *, reason: str, seen_revision: int | None = None
) -> FailureGroup:
    """Say that somebody looks after it: who, is the actor.

    Raises NotAllowed, NotFound, Invalid (no reason), Stale, StateMismatch.
    """
    return _change(actor, fingerprint, "acknowledge", reason, seen_revision)


def fix_failure(
    actor: Actor, fingerprint: uuid.UUID, *, version: int, reason: str, seen_revision: int | None = None
) -> FailureGroup:
    """Say that it is fixed from this version of the workflow on; a failure of this or a later one opens the group again.

    Raises as `acknowledge_failure`, and Invalid for a version before the group's own.
    """
    return _change(actor, fingerprint, "fix", reason, seen_revision, version)


def handle_failure(
    actor: Actor, fingerprint: uuid.UUID, *, reason: str, seen_revision: int | None = None
) -> FailureGroup:
    """Say that nothing is left to do about it; any further failure opens it again. Runs stay as they are.

    Raises as `acknowledge_failure`.
    """
    return _change(actor, fingerprint, "handle", reason, seen_revision)


def reopen_failure(
    actor: Actor, fingerprint: uuid.UUID, *, reason: str, seen_revision: int | None = None
) -> FailureGroup:
    """Say that something is left to do about it after all. Raises as `acknowledge_failure`."""
    return _change(actor, fingerprint, "reopen", reason, seen_revision)


@verb
def _change(
    actor: Actor,
    fingerprint: uuid.UUID,
    name: str,
    reason: str,
    seen_revision: int | None,
    version: int | None = None,
) -> FailureGroup:
    change = CHANGES[name]
    group = _lock(actor, fingerprint, reason)
    if seen_revision is not None and seen_revision != group.revision:
        raise Stale(f"this group has changed since the page was loaded; it is now {word(group)}")
    if group.state not in change.sources:
        raise StateMismatch(f"this group is {word(group)}, which does not allow this")
    if version is not None and version < group.version:
        raise Invalid(
            f"version {group.version} has failed: what is fixed is version {group.version} or a later one"
        )
    old = {"state": group.state, "fixed_in": group.fixed_in}
    group.state = change.target
    group.fixed_in = version if change.target == _S.FIXED else group.fixed_in
    group.changed_by, group.revision = actor.name, group.revision + 1
    group.save(update_fields=["state", "fixed_in", "changed_by", "revision"])
    FailureGroup.objects.filter(pk=group.pk).update(changed_at=Now())
    _tell(actor, group, change.kind, reason, old, {"state": group.state, "fixed_in": group.fixed_in})
    return group


@verb
def note_failure(actor: Actor, fingerprint: uuid.UUID, *, reason: str) -> FailureGroup:
    """Write a note to its history. Raises NotAllowed, NotFound, Invalid (empty)."""
    group = _lock(actor, fingerprint, reason)
    _tell(actor, group, "failure_note", reason, None, None)
    return group


def _lock(actor: Actor, fingerprint: uuid.UUID, reason: str) -> FailureGroup:
    try:
        workflow = FailureGroup.objects.values_list("workflow", flat=True).get(pk=fingerprint)
    except FailureGroup.DoesNotExist:
        raise NotFound(f"there is no group of failures {fingerprint}") from None
    permit(actor, "runs.handle_failures", run=Run(workflow=workflow))
    if not reason.strip():
        raise Invalid("say why")
    with connection.cursor() as cursor:
        # Failures of this workflow that are on their way come before this or see what it did (runs.diagnosis.failures).
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [failures.lock_name(workflow)]
        )
    return FailureGroup.objects.select_for_update().get(pk=fingerprint)


def _tell(actor: Actor, group: FailureGroup, kind: str, reason: str, old: object, new: object) -> None:
    AuditEvent.objects.create(
        kind=kind,
        target=group.target,
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason.strip(),
        old=old,
        new=new,
    )


def word(group: FailureGroup) -> str:
    """The group's state in a sentence."""
    if group.state == _S.FIXED:
        return f"fixed in version {group.fixed_in}"
    return _S(group.state).label.lower()
