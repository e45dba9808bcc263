"""Cancel a run."""

import uuid

from django.db.models import Q

from runs import lifecycle
from runs.clock import now
from runs.errors import StateMismatch
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.services.verb import (
    Consequence,
    Done,
    done_effects,
    guard,
    label,
    lock,
    permit,
    unknown_effects,
    verb,
)
from runs.states import Status

#: So many child runs are counted for the sentence.
CHILDREN_LIMIT = 1000


@verb
def cancel(actor: Actor, run_id: uuid.UUID, *, seen_version: int | None = None, reason: str = "") -> Done:
    """Ask for the run's end: no forward effect starts after it. Legal in every status that is not terminal.

    A running run ends at its next operation or checkpoint; effects in doubt are settled first; effects that declare a
    compensation are undone in reverse. A second cancel changes nothing.

    Raises NotAllowed, NotFound, Stale, StateMismatch (the run is finished).
    """
    permit(actor, "runs.cancel_run")
    run = lock(run_id)
    if run.cancel_requested_at is not None:
        return Done(run, f"{run.cancel_requested_by} had already asked for the cancel", changed=False)
    guard(run, seen_version)
    if run.is_terminal:
        raise StateMismatch(f"this run is {label(run)}: there is nothing left to cancel")
    run.cancel_requested_at, run.cancel_requested_by = now(), actor.name
    run.save(update_fields=["cancel_requested_at", "cancel_requested_by"])
    lifecycle.append_event(run, "cancel_requested", actor, reason)
    sentence = _sentence(run)
    if run.status == Status.RUNNING:
        return Done(run, sentence)  # its worker sees the flag
    if not lifecycle.pending_effects(run):
        lifecycle.carry_out_cancel(run, actor)
    elif run.status != Status.ATTENTION:
        lifecycle.set_due(run)  # a worker verifies what is pending, then carries the cancel out
    return Done(run, sentence)


def preview_cancel(run: Run) -> Consequence:
    """What `cancel` would do now."""
    undone = tuple(operation.name for operation in lifecycle.compensable(run))
    kept = list(done_effects(run))
    for name in undone:
        kept.remove(name)
    return Consequence(_sentence(run), kept=tuple(kept), again=undone, unknown=unknown_effects(run))


def _sentence(run: Run) -> str:
    return _end(run) + _children(run)


def _end(run: Run) -> str:
    undo = (
        " The effects that can be undone are undone in reverse order." if lifecycle.compensable(run) else ""
    )
    if run.status == Status.RUNNING:
        return "The run ends at its next operation or checkpoint; no effect starts after this." + undo
    if lifecycle.pending_effects(run):
        if run.status == Status.ATTENTION:
            return "The run is cancelled once somebody has answered whether the effect in doubt happened."
        return "The effect whose outcome is unknown is settled first, then the run is cancelled."
    return ("The run stops now." if undo else "The run is cancelled at once.") + undo + _closed(run)


def _closed(run: Run) -> str:
    """What becomes of what the run waits for."""
    waiting = Operation.objects.filter(run_id=run.pk, status=OpStatus.OPEN)
    asked = waiting.filter(kind=Kind.APPROVAL).count()
    if asked:
        return (
            " The open approval becomes void." if asked == 1 else f" The {asked} open approvals become void."
        )
    return " What it waits for is no longer waited for." if waiting.exclude(kind=Kind.CHILD).exists() else ""


def _children(run: Run) -> str:
    """What becomes of the child runs that go on until now; each number is counted up to CHILDREN_LIMIT."""
    waits = Operation.objects.filter(run_id=run.pk, kind=Kind.CHILD)
    orphans = Q(status=OpStatus.OPEN, request__orphans="cancel") | ~Q(rest="")
    told = ""
    for chosen, one, many in (
        (waits.filter(orphans), "is cancelled too", "are cancelled too"),
        (waits.exclude(orphans), "goes on", "go on"),
    ):
        going_on = Run.objects.filter(
            parent_operation_id__in=chosen.values("pk"), finished_at=None, cancel_requested_at=None
        )
        number = going_on.order_by()[: CHILDREN_LIMIT + 1].count()
        if number == 1:
            told += f" A child run that has not ended {one}."
        elif number:
            counted = f"More than {CHILDREN_LIMIT:,}" if number > CHILDREN_LIMIT else f"{number:,}"
            told += f" {counted} child runs that have not ended {many}."
    return told
