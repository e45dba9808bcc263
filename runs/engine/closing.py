"""Closing an attempt that cannot close itself: its worker died, it overran, or its process was stopped."""

from datetime import timedelta
from typing import Any

from runs import clock, policies, registry
from runs.engine.execution import record_attempt
from runs.lifecycle import (
    AGENT,
    CLOCK,
    Actor,
    append_event,
    ask_person,
    carry_out_cancel,
    end,
    pending_effects,
    requeue,
)
from runs.models import Run
from runs.policies import Limits
from runs.states import AttentionKind, FailureKind, Outcome, Status
from runs.workflow import Retry


def limits_of(run: Run) -> Limits:
    """Limits of the step where the run stands, read now; the defaults where this process does not know the step."""
    overrides = policies.load()
    try:
        step = registry.step(run.workflow, run.version, run.step)
    except registry.UnknownWorkflow:
        wide = policies.of_code(Retry(), 60.0).overridden(overrides.get(("workflow", run.workflow)))
        return wide.overridden(overrides.get(("step", f"{run.workflow}/{run.step}")))
    return policies.for_step(step, overrides)


def spend_failure(
    run: Run, limits: Limits, actor: Actor, *, reason: str, at: timedelta | None = None, **data: object
) -> None:
    """Count one failed or timed-out try of this visit and move the run: back-off, or the dead letter.

    A cancel that was asked for wins over both; a compensation that exhausts its retries needs a person.
    """
    run.failures += 1
    if run.failures >= limits.max_attempts:
        exhaust(run, actor, reason=reason, limits=limits, **data)
    elif run.cancel_requested_at and not run.compensating and not pending_effects(run):
        carry_out_cancel(run, actor)
    else:
        pause = at if at is not None else limits.backoff(run.failures)
        requeue(run, clock.now() + pause, status=Status.RETRYING)
        append_event(run, "retrying", actor, reason, failures=run.failures, limit=limits.max_attempts, **data)


def exhaust(run: Run, actor: Actor, *, reason: str, limits: Limits, **data: Any) -> None:
    if run.cancel_requested_at and not run.compensating:
        carry_out_cancel(run, actor)
    elif run.compensating:
        ask_person(run, AttentionKind.COMPENSATION, f"a compensation failed: {reason}", actor, **data)
    else:
        told = f"gave up after {run.failures} of {limits.max_attempts} attempts: {reason}"
        end(run, Status.FAILED, actor, reason=told, kind=FailureKind.EXHAUSTED, **data)


def close_dead_attempt(run: Run, *, outcome: Outcome, closed_by: str, error: str = "") -> None:
    """Close the open attempt of a running run and move the run on. The caller holds its lock.

    `crashed` counts apart from failures: after the first, the run executes alone in a process, and only deaths while alone
    count towards the limit; the first take-over is at once, later ones back off. `stopped` spends nothing.

    Raises ValueError for an outcome that only the attempt's own worker can know.
    """
    if outcome not in (Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.STOPPED, Outcome.FENCED):
        raise ValueError(f"an attempt is not closed from outside as {outcome}")
    actor = CLOCK if outcome == Outcome.TIMED_OUT else Actor(closed_by) if closed_by else AGENT
    limits = limits_of(run)
    digest = record_attempt(run, outcome, closed_by=closed_by, error_type=outcome.label, error=error)
    if outcome == Outcome.TIMED_OUT:
        spend_failure(run, limits, actor, reason=error or "the attempt took too long", attempt=digest)
        return
    alone = run.crashes > 0
    if outcome == Outcome.CRASHED:
        run.crashes += 1
        run.lone_crashes += alone
        if run.lone_crashes >= limits.crash_limit:
            _give_up_crashing(run, actor, digest)
            return
    if run.cancel_requested_at and not run.compensating and not pending_effects(run):
        carry_out_cancel(run, actor)
        return
    # With an effect in doubt a worker looks first whether it happened, also under a cancel.
    pause = limits.backoff(run.crashes - 1) if outcome == Outcome.CRASHED and run.crashes > 1 else timedelta()
    requeue(run, clock.now() + pause)
    append_event(run, "taken_over", actor, error, outcome=outcome, crashes=run.crashes, attempt=digest)


def _give_up_crashing(run: Run, actor: Actor, digest: str) -> None:
    reason = f"killed its worker {run.lone_crashes} times while running alone in it"
    if run.cancel_requested_at and not run.compensating:
        carry_out_cancel(run, actor)
    elif run.compensating:
        ask_person(run, AttentionKind.COMPENSATION, f"a compensation {reason}", actor, attempt=digest)
    else:
        end(run, Status.FAILED, actor, reason=reason, kind=FailureKind.CRASHED, attempt=digest)
