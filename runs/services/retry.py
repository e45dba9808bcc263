"""Retry a failed run in place."""

import uuid
from collections.abc import Iterable
from datetime import datetime

from runs import clock, content, lifecycle
from runs.errors import Invalid, StateMismatch
from runs.lifecycle import Actor
from runs.models import Attempt, Operation, Run
from runs.models.operation import WAIT_KINDS, Kind, OpStatus
from runs.services.verb import (
    Consequence,
    Done,
    agree,
    effects_of,
    guard,
    line_of,
    lock,
    names,
    permit,
    require,
    verb,
)
from runs.states import Status


@verb
def retry(
    actor: Actor,
    run_id: uuid.UUID,
    *,
    seen_version: int | None = None,
    reason: str = "",
    extend_deadline_to: datetime | None = None,
    seen_plan: str | None = None,
) -> Done:
    """Let a failed run go on at the visit where it failed: recorded operations hold, the failed one is tried again.

    Counters of the visit start at zero. What people rejected stays rejected. A run in back-off is tried now, and keeps its
    counters.

    Raises NotAllowed, NotFound, Stale, StateMismatch (neither failed nor in back-off, a fork of it is under way, or its
    deadline has passed and no later one is given), Invalid (a deadline in the past).
    """
    run = lock(run_id)
    permit(actor, "runs.retry_run", run=run)
    guard(run, seen_version)
    if run.status == Status.RETRYING:
        agree(preview_retry(run), seen_plan)
        lifecycle.set_due(run)
        lifecycle.append_event(run, "retried", actor, reason, step=run.step, visit=run.step_seq, now=True)
        return Done(run, f"Step {run.step} is tried again now.")
    require(run, "retry")
    no_fork_under_way(run)
    extend_deadline(run, extend_deadline_to)
    plan = preview_retry(run)
    agree(plan, seen_plan)
    reopen(to_reopen(run))
    run.failures = run.crashes = run.lone_crashes = 0
    run.result = run.result_sealed = None
    run.save(update_fields=["result", "result_sealed", "deadline_at"])
    lifecycle.requeue(run)
    deadline = run.deadline_at.isoformat() if extend_deadline_to and run.deadline_at else None
    lifecycle.append_event(
        run,
        "retried",
        actor,
        reason,
        step=run.step,
        visit=run.step_seq,
        again=names(plan.again),
        deadline=deadline,
    )
    return Done(run, f"The run goes on at step {run.step}.")


def no_fork_under_way(run: Run) -> None:
    """Raise StateMismatch while a fork of the run goes on: both would act on the same effects. Index run_forks."""
    forks = Run.objects.filter(forked_from=run.pk, finished_at=None).order_by("id")
    fork = forks.values_list("pk", flat=True).first()
    if fork is not None:
        raise StateMismatch(
            f"run {fork}, a fork of it, goes on with its effects: wait for its end, or end it"
        )


def extend_deadline(run: Run, to: datetime | None) -> None:
    """Set a later deadline, if one is given; the caller saves it. Raises StateMismatch where one is missing, Invalid."""
    now = clock.now()
    if to is not None:
        if to <= now:
            raise Invalid(f"the new deadline {to:%Y-%m-%d %H:%M:%S %Z} has passed")
        run.deadline_at = to
    elif run.deadline_at is not None and run.deadline_at <= now:
        raise StateMismatch(
            f"its deadline passed at {run.deadline_at:%Y-%m-%d %H:%M:%S %Z}, so it would fail again at once;"
            " give it a later one to retry"
        )


def to_reopen(run: Run) -> list[Operation]:
    """Failed operations of the visit that a retry tries again.

    Not those whose failure the code went on from: something began after them, and another answer now would lead it
    away from its record. Unless the visit ended with the failure of an operation: then the last one is the reason.
    Not what people rejected or let expire: their answer is recorded.
    """
    failed = Operation.objects.filter(
        run_id=run.pk, step_seq=run.step_seq, status=OpStatus.FAILED, forgotten=False
    )
    failed = failed.exclude(error_type="Rejected").exclude(kind=Kind.APPROVAL)
    others = Operation.objects.filter(run_id=run.pk, step_seq=run.step_seq, forgotten=False)
    last_began = others.order_by("-started_at").values_list("started_at", flat=True).first()
    known = list(failed.order_by("finished_at"))
    wanted = [one for one in known if one.finished_at and last_began and one.finished_at >= last_began]
    return known[-1:] if known and not wanted and _ended_by_operation(run) else wanted


def _ended_by_operation(run: Run) -> bool:
    last = Attempt.objects.filter(run_id=run.pk, step_seq=run.step_seq).order_by("-attempt_no").first()
    return last is not None and last.error_type in ("ToolFailed", "WaitExpired", "ChildFailed")


def reopen(operations: Iterable[Operation]) -> None:
    """Let a definite failure be tried again.

    An effect under the next generation of its provider key, as the provider may keep the old answer. While an earlier send could
    still land, that and the new one would both count: it is in doubt again, and is settled as every doubt is, since by now the
    provider may have forgotten its key.
    """
    for operation in operations:
        operation.finished_at = operation.result = operation.result_sealed = None
        operation.error_type = operation.error = operation.settled_by = ""
        operation.tries = operation.looks = 0
        if operation.kind in WAIT_KINDS:
            _wait_again(operation)
        else:
            operation.status = OpStatus.PENDING if operation.earlier_send_open else OpStatus.RETRY
            operation.generation += not operation.earlier_send_open
        operation.save()


def _wait_again(operation: Operation) -> None:
    """Open an expired wait for as long as it was open the first time; what came meanwhile is found when the run looks."""
    operation.status = OpStatus.OPEN
    if operation.expires_at is not None:
        operation.expires_at = clock.now() + (operation.expires_at - operation.started_at)


def preview_retry(run: Run) -> Consequence:
    """What `retry` would do now. Raises StateMismatch where a fork rules it out."""
    if run.status == Status.RETRYING:
        return _preview_now(run)
    no_fork_under_way(run)
    again = tuple(line_of(one, why=_why_again(one)) for one in content.like(run, to_reopen(run)))
    decided = Operation.objects.filter(
        run_id=run.pk, step_seq=run.step_seq, kind=Kind.APPROVAL, status=OpStatus.DONE
    )
    rejected = decided.filter(result__verdict__in=["rejected", "expired"]).exists()
    sentence = f"The run goes on at step {run.step}; what is done is not repeated."
    if again:
        sentence += (
            f" {again[0].name} is tried again."
            if len(again) == 1
            else f" {len(again)} operations are tried again."
        )
    if rejected:
        sentence += " What people rejected stays rejected."
    if run.deadline_at is not None and run.deadline_at <= clock.now():
        sentence += " Its deadline has passed: it needs a later one."
    effects = effects_of(run)
    return Consequence(sentence, kept=effects.done, again=again, unknown=effects.unknown)


def _preview_now(run: Run) -> Consequence:
    waiting = Operation.objects.filter(run_id=run.pk, step_seq=run.step_seq, status=OpStatus.RETRY)
    effects = effects_of(run)
    return Consequence(
        f"Step {run.step} is tried again now instead of after its back-off; what is done is not repeated.",
        kept=effects.done,
        again=tuple(
            line_of(one, why=_why_again(one)) for one in content.like(run, waiting.order_by("ordinal"))
        ),
        unknown=effects.unknown,
    )


def _why_again(operation: Operation) -> str:
    """Why an operation that failed for certain is tried again."""
    if operation.kind in WAIT_KINDS:
        return "nothing came in time; it is waited for anew"
    told = f"it failed for certain{': ' + operation.error[:200] if operation.error else ''}"
    if operation.kind != Kind.EFFECT:
        return told
    if operation.earlier_send_open:
        return f"{told}; an earlier send may have landed, so that is settled first"
    return f"{told}; tried under a new key"
