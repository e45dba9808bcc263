"""Edit the state of a run that no worker has."""

import uuid
from typing import Any

from runs import codec
from runs.errors import Invalid
from runs.lifecycle import Actor, append_event
from runs.models import Operation, Run
from runs.models.operation import WAIT_KINDS
from runs.services.state import (
    checked_state,
    forward_only,
    merged,
    nobody_in_doubt,
    places_changed,
    present,
    record,
)
from runs.services.verb import Consequence, Done, agree, effects_of, guard, lock, permit, require, verb
from runs.states import Outcome


@verb
def edit_state(
    actor: Actor,
    run_id: uuid.UUID,
    *,
    state: Any,
    reason: str,
    seen_version: int | None = None,
    seen_plan: str | None = None,
) -> Done:
    """Put another state in the place of the run's own. The step begins with it when it is next executed.

    Args:
        state: an object, encoded as `runs.codec` does. What redaction hid from the person and is left alone stays.

    It becomes the next attempt of the visit, executed by nobody, so that every checkpoint before and after it still restores.

    Raises NotAllowed, NotFound, Stale, StateMismatch (a worker has it, it has ended otherwise than failed, it is being
    cancelled, an effect is in doubt), Invalid (no reason, no object, too large, or the same state).
    """
    run = lock(run_id)
    permit(actor, "runs.edit_state", run=run)
    permit(actor, "runs.view_payload", run=run)
    guard(run, seen_version)
    plan = preview_edit_state(run)
    agree(plan, seen_plan)
    if not reason.strip():
        raise Invalid("say why the state is edited")
    before = present(run)
    after = merged(before, checked_state(state))
    if codec.canonical(after) == codec.canonical(before.true):
        raise Invalid("this is the state that the run has already")
    last = run.attempt_no
    attempt = record(run, Outcome.EDITED, actor, after)
    run.save(update_fields=["attempt_no", "state", "state_sealed"])
    # The claim looks for waits by the last attempt that waited for them, which is this one from now on.
    waited_for = Operation.objects.filter(
        run_id=run.pk, step_seq=run.step_seq, attempt_no=last, kind__in=WAIT_KINDS
    )
    waited_for.update(attempt_no=run.attempt_no)
    append_event(
        run,
        "state_edited",
        actor,
        reason,
        step=run.step,
        visit=run.step_seq,
        before=codec.digest(before.true),
        after=codec.digest(after),
        changed=places_changed(before.true, after),
        attempt=attempt,
    )
    return Done(run, plan.sentence)


def preview_edit_state(run: Run) -> Consequence:
    """What `edit_state` would do now. Raises StateMismatch where it would be refused."""
    require(run, "edit_state")
    forward_only(run)
    effects = effects_of(run)
    nobody_in_doubt(effects)
    recorded = Operation.objects.filter(run_id=run.pk, step_seq=run.step_seq, forgotten=False).exists()
    warning = (
        " What this visit has recorded holds: if the state leads the step to other calls, the run stops and asks a person."
        if recorded
        else ""
    )
    return Consequence(
        f"Step {run.step} begins with the edited state when it is next executed.{warning}",
        kept=effects.done,
        visit=run.step_seq,
    )
