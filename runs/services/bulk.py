"""What people do with a bulk: make it, start it, go on after the first runs, pause, resume and stop it.

What it does meanwhile, workers do: `runs.services.bulk_work`.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction

from runs import access, clock
from runs.bulk.selection import Filter
from runs.errors import Conflict, Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Bulk
from runs.models.bulk import CANARY_MOST, RATE_MOST
from runs.services.bulk_verbs import VERBS
from runs.services.prioritise import PRIORITIES
from runs.services.verb import permit, verb

PERMISSION = "runs.bulk"
PAUSABLE = (Bulk.Status.COUNTING, Bulk.Status.CANARY, Bulk.Status.RUNNING)


@dataclass(frozen=True)
class BulkDone:
    """What a verb did to a bulk, in a sentence; `changed` is False where it had been done before."""

    bulk: Bulk
    sentence: str
    changed: bool = True


@verb
def create_bulk(
    actor: Actor,
    verb_name: str,
    chosen: Filter,
    *,
    name: str,
    reason: str,
    rate: int = 60,
    canary: int = 5,
    bulk_id: uuid.UUID | None = None,
    priority: int | None = None,
) -> BulkDone:
    """Have workers choose all runs that match, and look at them: a dry run, nothing is done to a run.

    Args:
        rate: runs a minute, at most.
        canary: so many runs are done first; then it waits for a person.
        bulk_id: made by the page, so that a form that is sent twice makes one bulk.
        priority: that the runs are given, 0–9; for that verb alone.

    Raises NotAllowed, Invalid (unknown verb, no name or reason, out of range), Conflict (the id is another bulk's).
    """
    if verb_name not in VERBS:
        raise Invalid(f"there is no bulk verb {verb_name!r}; known: {', '.join(VERBS)}")
    permit_part(actor, verb_name)
    if not name.strip() or not reason.strip():
        raise Invalid("a bulk needs a name and a reason")
    _check_pace(rate, canary)
    if priority not in (PRIORITIES if verb_name == Bulk.Verb.PRIORITISE else (None,)):
        raise Invalid("to change the priority, say which: from 0 to 9; no other verb takes one")
    if not chosen.statuses(verb_name):
        raise Invalid(f"no run that is {chosen.status} can be {VERBS[verb_name].past}")
    given: dict[str, Any] = {"pk": bulk_id} if bulk_id else {}
    if bulk_id and (there := Bulk.objects.filter(pk=bulk_id).first()):
        return _made_before(actor, there)
    try:
        with transaction.atomic():
            made = Bulk.objects.create(
                **given,
                name=name.strip(),
                reason=reason.strip(),
                verb=verb_name,
                priority=priority,
                filter=chosen.given(),
                rate=rate,
                canary=canary,
                started_by_id=actor.id,
                started_by_name=actor.name,
                acts_for_id=actor.id,
                acts_for_name=actor.name,
            )
    except IntegrityError:
        if bulk_id is None:
            raise
        # A double click: the other one was first, and has committed by now.
        return _made_before(actor, Bulk.objects.get(pk=bulk_id))
    made.refresh_from_db()
    new = {"verb": verb_name, "filter": chosen.given(), "name": made.name, "rate": rate, "first": canary}
    new |= {} if priority is None else {"priority": priority}
    record(made, "bulk_made", actor, reason, new=new)
    return BulkDone(made, "The runs are being counted; nothing is done to them yet.")


def _made_before(actor: Actor, there: Bulk) -> BulkDone:
    if there.started_by_id != actor.id:
        raise Conflict("this form has been used by somebody else", there)
    return BulkDone(there, f"“{there.name}” had already been made.", changed=False)


@verb
def start_bulk(
    actor: Actor,
    bulk_id: uuid.UUID,
    *,
    seen_revision: int | None = None,
    rate: int | None = None,
    canary: int | None = None,
    reason: str = "",
) -> BulkDone:
    """Let the first runs go; it acts with this person's permissions from now on.

    Raises NotAllowed, NotFound, Stale, StateMismatch (not counted yet, or started), Invalid (out of range).
    """
    made = _lock(actor, bulk_id)
    if made.status in (Bulk.Status.CANARY, Bulk.Status.REVIEW, Bulk.Status.RUNNING):
        return BulkDone(made, f"“{made.name}” had already been started.", changed=False)
    _guard(made, seen_revision)
    _require(made, (Bulk.Status.READY,), "only one that is counted can be started")
    if not made.left:
        raise StateMismatch("none of its runs is eligible: there is nothing to start")
    _set_pace(made, rate, canary)
    made.began_at = clock.now()
    _go(made, actor, Bulk.Status.CANARY)
    record(made, "bulk_started", actor, reason, new={"rate": made.rate, "first": made.canary})
    first = min(made.canary, made.left)
    return BulkDone(made, f"The first {_runs(first)} go; then it waits for you to look at them.")


@verb
def continue_bulk(
    actor: Actor,
    bulk_id: uuid.UUID,
    *,
    seen_revision: int | None = None,
    rate: int | None = None,
    reason: str = "",
) -> BulkDone:
    """Go on with all the rest, after somebody has looked at the first runs. Raises as `start_bulk`."""
    made = _lock(actor, bulk_id)
    if made.status == Bulk.Status.RUNNING:
        return BulkDone(made, "Somebody had already let it go on.", changed=False)
    _guard(made, seen_revision)
    _require(made, (Bulk.Status.REVIEW,), "only one whose first runs are done can go on")
    _set_pace(made, rate, None)
    _go(made, actor, Bulk.Status.RUNNING)
    record(made, "bulk_continued", actor, reason, new={"rate": made.rate})
    return BulkDone(made, f"It goes on with the other {_runs(made.left)}, {made.rate} a minute.")


@verb
def pause_bulk(actor: Actor, bulk_id: uuid.UUID, *, reason: str = "") -> BulkDone:
    """Touch no further run until somebody resumes it. A brake: it takes no look at how old the page is.

    Raises NotAllowed, NotFound, StateMismatch (nothing goes on).
    """
    made = _lock(actor, bulk_id)
    if made.status == Bulk.Status.PAUSED:
        return BulkDone(made, "It was already paused.", changed=False)
    _require(made, PAUSABLE, "only one that is at work can be paused")
    pause(made, f"Paused by {actor.name}" + (f": {reason}" if reason else ""))
    record(made, "bulk_paused", actor, reason)
    return BulkDone(made, "It is paused: no further run is touched.")


@verb
def resume_bulk(
    actor: Actor,
    bulk_id: uuid.UUID,
    *,
    seen_revision: int | None = None,
    rate: int | None = None,
    reason: str = "",
) -> BulkDone:
    """Lift a pause; it acts with this person's permissions from now on. Raises as `start_bulk`.

    What it matches stays what it was: runs that are not chosen yet are chosen as whoever made it sees them.
    """
    made = _lock(actor, bulk_id)
    if made.status in PAUSABLE:
        return BulkDone(made, "It had already been resumed.", changed=False)
    _guard(made, seen_revision)
    _require(made, (Bulk.Status.PAUSED,), "only one that is paused can be resumed")
    _set_pace(made, rate, None)
    _go(made, actor, Bulk.Status(made.paused_from))
    record(made, "bulk_resumed", actor, reason, new={"rate": made.rate})
    return BulkDone(made, "It goes on.")


@verb
def stop_bulk(actor: Actor, bulk_id: uuid.UUID, *, reason: str = "") -> BulkDone:
    """End it for good; what is done stays done. A brake, like `pause_bulk`. Raises NotAllowed, NotFound, StateMismatch (done)."""
    made = _lock(actor, bulk_id)
    if made.status == Bulk.Status.STOPPED:
        return BulkDone(made, "It was already stopped.", changed=False)
    if made.is_over:
        raise StateMismatch("this bulk is done: there is nothing left to stop")
    made.status, made.paused_from, made.finished_at = Bulk.Status.STOPPED, "", clock.now()
    made.said = f"Stopped by {actor.name}" + (f": {reason}" if reason else "")
    made.revision += 1
    made.save()
    record(made, "bulk_stopped", actor, reason, new={"done": made.done, "left": made.left})
    return BulkDone(
        made, f"It is stopped; {_runs(made.left)} {'is' if made.left == 1 else 'are'} left as they were."
    )


# --- shared with the worker ---------------------------------------------------------------------------------------------


def pause(made: Bulk, said: str) -> None:
    """Stand still and say why; expects the row's lock."""
    made.paused_from, made.status, made.said = made.status, Bulk.Status.PAUSED, said
    made.revision += 1
    made.save()


def record(
    made: Bulk, kind: str, actor: Actor, reason: str = "", *, new: dict[str, Any] | None = None
) -> None:
    """A line of audit."""
    AuditEvent.objects.create(
        kind=kind,
        target=f"bulk {made.pk}",
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason,
        new={"name": made.name} | (new or {}),
    )


def _go(made: Bulk, actor: Actor, status: Bulk.Status) -> None:
    made.status, made.paused_from, made.said = status, "", ""
    made.acts_for_id, made.acts_for_name = actor.id, actor.name
    made.next_at = clock.now()
    made.revision += 1
    made.save()


def permit_part(actor: Actor, verb_name: str) -> None:
    """Raise NotAllowed unless the person may use the verb in bulks, for a part of the runs at least.

    Only runs of that part are chosen, and each is asked about again when its turn has come.
    """
    if actor.user is None:
        raise NotAllowed(f"{actor.name} is no person; only a person may do this")
    for permission in (PERMISSION, VERBS[verb_name].permission):
        if not access.may(actor.user, permission):
            raise NotAllowed(f"{actor.name} does not have the permission “{access.words(permission)}”")


def _lock(actor: Actor, bulk_id: uuid.UUID) -> Bulk:
    """The bulk under its lock, which is the first of all locks, before those of runs."""
    made = Bulk.objects.select_for_update(no_key=True).filter(pk=bulk_id).first()
    if made is None:
        raise NotFound(f"there is no bulk {bulk_id}")
    permit_on(actor, made)
    return made


def permit_on(actor: Actor, made: Bulk) -> None:
    """Raise NotAllowed unless it acts for this person, or the person may use its verb on all runs."""
    permit_part(actor, made.verb)
    if made.acts_for_id != actor.id:
        permit(actor, PERMISSION)
        permit(actor, VERBS[made.verb].permission)


def _guard(made: Bulk, seen_revision: int | None) -> None:
    if seen_revision is not None and seen_revision != made.revision:
        raise Stale(
            f"this has changed since the page was loaded; it is now {made.get_status_display().lower()}"
        )


def _require(made: Bulk, statuses: tuple[Bulk.Status, ...], wanted: str) -> None:
    if made.status not in statuses:
        raise StateMismatch(f"this bulk is {made.get_status_display().lower()}; {wanted}")


def _set_pace(made: Bulk, rate: int | None, canary: int | None) -> None:
    _check_pace(rate or made.rate, canary or made.canary)
    made.rate, made.canary = rate or made.rate, canary or made.canary


def _check_pace(rate: int, canary: int) -> None:
    if not 1 <= rate <= RATE_MOST:
        raise Invalid(f"the rate is 1 to {RATE_MOST:,} runs a minute")
    if not 1 <= canary <= CANARY_MOST:
        raise Invalid(f"1 to {CANARY_MOST} runs go first")


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number:,} runs"


def filter_of(made: Bulk) -> Filter:
    """What its runs were chosen by."""
    return Filter.of(made.filter)
