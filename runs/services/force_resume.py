"""Force a run on."""

import uuid
from dataclasses import dataclass

from runs import clock, lifecycle
from runs.engine import leases
from runs.engine.closing import close_dead_attempt
from runs.errors import StateMismatch
from runs.lifecycle import Actor
from runs.models import Operation, Run, Worker
from runs.models.operation import OpStatus
from runs.services import guards
from runs.services.retry import no_fork_under_way, reopen, to_reopen
from runs.services.verb import (
    Consequence,
    Done,
    Line,
    agree,
    effects_of,
    guard,
    label,
    line_of,
    lock,
    permit,
    verb,
)
from runs.states import AttentionKind, Hold, Outcome, Status

ALIVE = "its worker is alive and the attempt is within its time: let it work, or cancel the run"


@guards.guarded("force_resume")
@verb
def force_resume(
    actor: Actor,
    run_id: uuid.UUID,
    *,
    seen_version: int | None = None,
    reason: str = "",
    seen_plan: str | None = None,
) -> Done:
    """Let a worker look at the run now, whatever it waits for.

    Open waits stay open, so that a waiting run looks and waits again. A running run is taken from its worker only if that is
    dead or its attempt overdue; the next claim fences the old attempt.

    Raises NotAllowed, NotFound, Stale, StateMismatch (finished, in doubt, or its worker is alive and in time).
    """
    run = lock(run_id)
    permit(actor, "runs.force_resume_run", run=run)
    guard(run, seen_version)
    plan = preview_force_resume(run)
    agree(plan, seen_plan)
    if run.status == Status.RUNNING:
        _take_from_worker(run, actor)
    elif run.status == Status.ATTENTION:
        _leave_attention(run)
    else:
        lifecycle.set_due(run)
    lifecycle.append_event(run, "force_resumed", actor, reason, step=run.step, visit=run.step_seq)
    return Done(run, plan.sentence)


def preview_force_resume(run: Run) -> Consequence:
    """What `force_resume` would do now. Raises StateMismatch where it would be refused."""
    sentence = _sentence(run)
    again: tuple[Line, ...] = ()
    if run.status == Status.ATTENTION:
        no_fork_under_way(run)
    if run.attention_kind == AttentionKind.COMPENSATION:
        again = tuple(line_of(one, why="undoing it failed; that is tried again") for one in to_reopen(run))
    effects = effects_of(run)
    return Consequence(sentence, kept=effects.done, again=again, unknown=effects.unknown)


def _leave_attention(run: Run) -> None:
    if run.attention_kind == AttentionKind.COMPENSATION:
        reopen(to_reopen(run))
    run.failures = run.crashes = run.lone_crashes = 0
    lifecycle.requeue(run)


def _take_from_worker(run: Run, actor: Actor) -> None:
    owner = owner_of(run)
    assert run.worker_id is not None
    # A beat may count at any moment until the row is closed; its worker is told then that it has its lease, and must keep it.
    if owner.dead and not leases.close_if_over(run.worker_id):
        owner = owner_of(run)
    if not (owner.dead or owner.overdue):
        raise StateMismatch(ALIVE)
    outcome = Outcome.CRASHED if owner.dead else Outcome.TIMED_OUT
    close_dead_attempt(run, outcome=outcome, closed_by=actor.name, error=f"forced on by {actor.name}")
    if run.status in (Status.QUEUED, Status.RETRYING, Status.CANCELLING):
        lifecycle.set_due(run)


@dataclass(frozen=True)
class Owner:
    """What is known about the worker that holds a running run."""

    dead: bool
    """Its lease is over or its row closed."""
    reaped: bool
    """It certainly does nothing any more."""
    overdue: bool
    """The attempt's deadline has passed."""


def owner_of(run: Run) -> Owner:
    assert run.worker_id is not None
    worker = Worker.objects.filter(pk=run.worker_id).first()
    return Owner(
        dead=worker is None or bool(leases.expired([run.worker_id])),
        reaped=worker is not None and worker.reaped_at is not None,
        overdue=run.wake_at is not None and run.wake_at <= clock.now(),
    )


def _sentence(run: Run) -> str:
    """What happens; raises StateMismatch where force-resume does not apply."""
    if run.is_terminal:
        raise StateMismatch(f"this run is {label(run)}: there is nothing to force on")
    if run.status == Status.RUNNING:
        return _running_sentence(run)
    if run.status == Status.ATTENTION:
        pending = lifecycle.pending_effects(run)
        if pending:
            raise StateMismatch(
                f"nobody knows whether {pending[0].name} happened: answer that first, then the run goes on"
            )
        if run.attention_kind == AttentionKind.DIVERGED:
            return f"Step {run.step} is executed again; if its code still does not follow its record, the run comes back here."
        return f"The run goes on at step {run.step}; the operation that failed is tried again."
    if run.held_by == Hold.PAUSED:
        return f"A worker looks at the run now; while {run.workflow} is paused it is parked again."
    waits = Operation.objects.filter(run_id=run.pk, status=OpStatus.OPEN).values_list("name", flat=True)
    if waits:
        return f"A worker looks at the run now. What it waits for stays open ({', '.join(waits)}), so it may wait again."
    return "A worker looks at the run now, without waiting for its time."


def _running_sentence(run: Run) -> str:
    owner = owner_of(run)
    if owner.reaped:
        return "The worker has ended; another one takes the run."
    if owner.dead:
        return (
            "The worker is silent, but nobody has seen it end: it may still act. Another one takes the run, and settles what was"
            " under way before anything is sent again."
        )
    if owner.overdue:
        return "The attempt is overdue and counts as timed out. Its worker is alive and may still finish its call."
    raise StateMismatch(ALIVE)
