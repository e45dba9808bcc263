"""Let a run go on at another step."""

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any

from runs import clock, codec, lifecycle, registry
from runs.errors import Invalid
from runs.lifecycle import Actor
from runs.models import Attempt, Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.services.retry import extend_deadline, no_fork_under_way
from runs.services.state import (
    checked_state,
    forward_only,
    merged,
    nobody_in_doubt,
    places_changed,
    present,
    record,
)
from runs.services.verb import (
    OF_AN_EFFECT,
    Consequence,
    Done,
    Line,
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
from runs.states import Outcome


@verb
def skip(
    actor: Actor,
    run_id: uuid.UUID,
    *,
    to: str,
    reason: str,
    state: Any = None,
    seen_version: int | None = None,
    seen_plan: str | None = None,
    confirmed: Collection[uuid.UUID] = (),
    extend_deadline_to: datetime | None = None,
) -> Done:
    """Leave the step where the run stands, and go on at step `to` of its workflow, as if it had gone there itself.

    Args:
        state: the state as the skipped step would have left it, encoded; None: as it is.
        confirmed: operations that happened since the run was last at `to`, and that may happen again.

    What the visit waits for is closed, what it was to try again is given up, what it did stays done.

    Raises NotAllowed, NotFound, Stale, StateMismatch (a worker has it, it has ended otherwise than failed, it is being
    cancelled, an effect is in doubt, a fork goes on), Invalid (no reason, no such step, not confirmed, an unfit state).
    """
    run = lock(run_id)
    permit(actor, "runs.skip_step", run=run)
    if state is not None:
        permit(actor, "runs.view_payload", run=run)
    guard(run, seen_version)
    plan = preview_skip(run, to)
    agree(plan, seen_plan, confirmed)
    if not reason.strip():
        raise Invalid("say why the step is skipped")
    extend_deadline(run, extend_deadline_to)
    changed: list[str] = []
    if state is not None:
        before = present(run)
        state = merged(before, checked_state(state))
        changed = places_changed(before.true, state)
        state = state if codec.canonical(state) != codec.canonical(before.true) else None
    skipped, visit = run.step, run.step_seq
    attempt = record(run, Outcome.SKIPPED, actor, state, why=reason)
    lifecycle.close_waits(run)
    Operation.objects.filter(run_id=run.pk, step_seq=visit, status=OpStatus.RETRY).update(
        status=OpStatus.CLOSED, finished_at=clock.now()
    )
    run.step, run.step_seq = to, visit + 1
    run.attempt_no = run.failures = run.crashes = run.lone_crashes = 0
    run.visit_started_at = clock.now()
    run.result = run.result_sealed = None
    run.save(update_fields=["result", "result_sealed", "deadline_at", "state", "state_sealed"])
    lifecycle.requeue(run)
    lifecycle.append_event(
        run,
        "skipped",
        actor,
        reason,
        step=skipped,
        visit=visit,
        to=to,
        changed=changed,
        again=names(plan.again),
        attempt=attempt,
    )
    return Done(run, f"Step {skipped} is skipped; the run goes on at step {to}.")


def steps_after(run: Run) -> list[str]:
    """Where the run can go on, in the order in which the workflow declares its steps; none if this process does not know it."""
    try:
        return list(registry.workflow(run.workflow, run.version).steps)
    except registry.UnknownWorkflow:
        return []


def preview_skip(run: Run, to: str) -> Consequence:
    """What `skip` would do now. Raises StateMismatch where it would be refused, Invalid for a step that there is not."""
    require(run, "skip")
    forward_only(run)
    effects = effects_of(run)
    nobody_in_doubt(effects)
    no_fork_under_way(run)
    steps = steps_after(run)
    if to not in steps:
        if not steps:
            raise Invalid(f"this process does not know the steps of {run.workflow} version {run.version}")
        known = ", ".join(steps)
        raise Invalid(f"{run.workflow} version {run.version} has no step {to!r}; its steps are: {known}")
    since = _last_visit(run, to)
    again: tuple[Line, ...] = ()
    sentence = f"Step {run.step} is left as it is, and the run goes on at step {to}."
    if since is not None:
        happened = Operation.objects.filter(
            run_id=run.pk, kind=Kind.EFFECT, status=OpStatus.DONE, step_seq__gte=since, compensates=None
        ).order_by("step_seq", "ordinal")
        again = tuple(
            line_of(
                one, why=f"done in visit {one.step_seq}; what step {to} leads to may do it anew", repeats=True
            )
            for one in happened.only(*OF_AN_EFFECT)
        )
        sentence += (
            f" It has been there before, in visit {since}: a new visit knows nothing of what that one did."
        )
    repeated = {line.operation for line in again}
    return Consequence(
        sentence + _given_up(run),
        kept=tuple(line for line in effects.done if line.operation not in repeated),
        again=again,
        again_title="May run again",
        visit=run.step_seq,
    )


def _last_visit(run: Run, step: str) -> int | None:
    """The last visit of the step; the one where the run stands counts."""
    if run.step == step:
        return run.step_seq
    tries = Attempt.objects.filter(run_id=run.pk, step=step).order_by("-step_seq", "-attempt_no")
    return tries.values_list("step_seq", flat=True).first()


def _given_up(run: Run) -> str:
    """What the step waits for or was to try again, which ends with it."""
    left = Operation.objects.filter(
        run_id=run.pk, step_seq=run.step_seq, status__in=[OpStatus.OPEN, OpStatus.RETRY]
    ).order_by("ordinal")
    told = ""
    for kind, name in left.values_list("kind", "name")[:10]:
        told += (
            f" The open approval of {name} becomes void."
            if kind == Kind.APPROVAL
            else f" {name} is given up."
        )
    return told
