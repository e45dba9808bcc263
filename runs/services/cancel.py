"""Cancel a run."""

import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, Value

from runs import lifecycle
from runs.clock import now
from runs.engine import leases
from runs.errors import StateMismatch
from runs.lifecycle import Actor
from runs.models import Operation, Run, Worker
from runs.models.operation import Kind, OpStatus
from runs.services.verb import (
    Consequence,
    Done,
    agree,
    effects_of,
    guard,
    label,
    line_of,
    lock,
    permit,
    verb,
)
from runs.states import Status

#: So many child runs are counted for the sentence.
CHILDREN_LIMIT = 1000


@verb
def cancel(
    actor: Actor,
    run_id: uuid.UUID,
    *,
    seen_version: int | None = None,
    reason: str = "",
    seen_plan: str | None = None,
) -> Done:
    """Ask for the run's end: no forward effect starts after it. Legal in every status that is not terminal.

    A running run ends at its next operation or checkpoint; effects in doubt are settled first; effects that declare a
    compensation are undone in reverse. A second cancel changes nothing.

    Raises NotAllowed, NotFound, Stale, StateMismatch (the run is finished).
    """
    run = lock(run_id)
    permit(actor, "runs.cancel_run", run=run)
    if run.cancel_requested_at is not None:
        return Done(run, f"{run.cancel_requested_by} had already asked for the cancel", changed=False)
    guard(run, seen_version)
    if run.is_terminal:
        raise StateMismatch(f"this run is {label(run)}: there is nothing left to cancel")
    plan = preview_cancel(run)
    agree(plan, seen_plan)
    run.cancel_requested_at, run.cancel_requested_by = now(), actor.name
    run.save(update_fields=["cancel_requested_at", "cancel_requested_by"])
    lifecycle.append_event(run, "cancel_requested", actor, reason)
    if run.status == Status.RUNNING:
        return Done(run, plan.sentence)  # its worker sees the flag
    if not plan.unknown:
        lifecycle.carry_out_cancel(run, actor)
    elif run.status != Status.ATTENTION:
        lifecycle.set_due(run)  # a worker verifies what is pending, then carries the cancel out
    return Done(run, plan.sentence)


def preview_cancel(run: Run) -> Consequence:
    """What `cancel` would do now."""
    undone = tuple(line_of(one, why=f"undone by {one.compensate_with}") for one in lifecycle.compensable(run))
    those = {line.operation for line in undone}
    effects = effects_of(run)
    return Consequence(
        _end(run, undo=bool(undone), doubt=bool(effects.unknown)) + told_of_children(run),
        kept=tuple(line for line in effects.done if line.operation not in those),
        again=undone,
        unknown=effects.unknown,
        again_title="Will be undone",
    )


def _end(run: Run, *, undo: bool, doubt: bool) -> str:
    undoing = " The effects that can be undone are undone in reverse order." if undo else ""
    if run.status == Status.RUNNING:
        return "The run ends at its next operation or checkpoint; no effect starts after this." + undoing
    if doubt:
        if run.status == Status.ATTENTION:
            return "The run is cancelled once somebody has answered whether the effect in doubt happened."
        return "The effect whose outcome is unknown is settled first, then the run is cancelled."
    return ("The run stops now." if undo else "The run is cancelled at once.") + undoing + told_of_waits(run)


def told_of_waits(run: Run) -> str:
    """What becomes of what the run waits for."""
    waiting = Operation.objects.filter(run_id=run.pk, status=OpStatus.OPEN)
    numbers = dict(waiting.order_by().values_list("kind").annotate(number=Count("id")))
    asked = numbers.get(Kind.APPROVAL, 0)
    if asked:
        return (
            " The open approval becomes void." if asked == 1 else f" The {asked} open approvals become void."
        )
    return " What it waits for is no longer waited for." if numbers.keys() - {Kind.CHILD} else ""


def told_of_children(run: Run) -> str:
    """What becomes of the child runs that go on until now; each number is counted up to CHILDREN_LIMIT."""
    waits = Operation.objects.filter(run_id=run.pk, kind=Kind.CHILD)
    orphans = Q(status=OpStatus.OPEN, request__orphans="cancel") | ~Q(rest="")
    going_on = [
        Run.objects.filter(
            parent_operation_id__in=chosen.values("pk"), finished_at=None, cancel_requested_at=None
        )
        .order_by()
        .annotate(cancelled=Value(cancelled))
        .values_list("cancelled", flat=True)[: CHILDREN_LIMIT + 1]
        for chosen, cancelled in ((waits.filter(orphans), True), (waits.exclude(orphans), False))
    ]
    numbers = Counter(going_on[0].union(going_on[1], all=True))
    told = ""
    for cancelled, one, many in (
        (True, "is cancelled too", "are cancelled too"),
        (False, "goes on", "go on"),
    ):
        number = numbers[cancelled]
        if number == 1:
            told += f" A child run that has not ended {one}."
        elif number:
            counted = f"More than {CHILDREN_LIMIT:,}" if number > CHILDREN_LIMIT else f"{number:,}"
            told += f" {counted} child runs that have not ended {many}."
    return told


@dataclass(frozen=True)
class Progress:
    """How far a cancel has come: asked for, heard by the worker that has the run, or that worker is lost."""

    requested_at: datetime
    requested_by: str
    acknowledged_at: datetime | None
    """When the worker was told, with its beat; None while it was not, or where no worker has the run."""
    lost: bool
    """The worker is silent or has ended: another one carries the cancel out."""
    ended: bool
    sentence: str


def cancel_progress(run: Run) -> Progress | None:
    """How far the cancel of this run has come; None where none was asked for."""
    if run.cancel_requested_at is None:
        return None
    heard: datetime | None = None
    lost = False
    if run.status == Status.RUNNING and run.worker_id is not None:
        worker = Worker.objects.filter(pk=run.worker_id).first()
        lost = worker is None or worker.closed_at is not None or bool(leases.expired([run.worker_id]))
        # Each beat brings back which of the worker's runs are to be cancelled.
        if worker is not None and worker.beat_at >= run.cancel_requested_at:
            heard = worker.beat_at
    if run.is_terminal:
        sentence = f"The run is {label(run)}."
    elif lost:
        sentence = (
            "Its worker is lost: another one takes the run over, settles what was under way, and cancels it."
        )
    elif run.compensating:
        sentence = "Its effects are being undone, newest first."
    elif run.status == Status.ATTENTION:
        sentence = "It is cancelled once somebody has answered whether the effect in doubt happened."
    elif heard is not None:
        sentence = "Its worker knows: the run ends at its next operation or checkpoint."
    else:
        sentence = "Its worker hears of it with its next beat, within seconds."
    return Progress(run.cancel_requested_at, run.cancel_requested_by, heard, lost, run.is_terminal, sentence)
