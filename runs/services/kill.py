"""Kill a run."""

import uuid

from runs import lifecycle
from runs.engine.execution import record_attempt
from runs.errors import Invalid, StateMismatch
from runs.lifecycle import Actor
from runs.models import Run
from runs.services.cancel import told_of_children, told_of_waits
from runs.services.verb import (
    Consequence,
    Done,
    agree,
    effects_of,
    guard,
    label,
    lock,
    names,
    permit,
    verb,
)
from runs.states import Outcome, Status


@verb
def kill(
    actor: Actor,
    run_id: uuid.UUID,
    *,
    reason: str,
    seen_version: int | None = None,
    seen_plan: str | None = None,
) -> Done:
    """End the run at once: nothing is undone, nothing is settled first.

    The epoch is raised, so that a worker which has the run can neither move it nor begin another operation; what it is sending
    at this moment may still land, and its outcome is recorded if it arrives. Effects in doubt stay recorded as they are. Child
    runs are cancelled or left as their workflow says.

    Raises NotAllowed, NotFound, Stale, StateMismatch (finished), Invalid (no reason).
    """
    run = lock(run_id)
    permit(actor, "runs.kill_run", run=run)
    guard(run, seen_version)
    plan = preview_kill(run)
    agree(plan, seen_plan)
    if not reason.strip():
        raise Invalid("say why the run is killed")
    attempt = None
    if run.status == Status.RUNNING:
        attempt = record_attempt(
            run, Outcome.FENCED, closed_by=actor.name, error=f"the run was killed by {actor.name}"
        )
    run.epoch += 1
    run.save(update_fields=["epoch"])
    lifecycle.append_event(
        run,
        "killed",
        actor,
        reason,
        step=run.step,
        visit=run.step_seq,
        epoch=run.epoch,
        done=names(plan.kept),
        in_doubt=[{"operation": str(line.operation), "name": line.name} for line in plan.unknown],
        **({"attempt": attempt} if attempt else {}),
    )
    lifecycle.end(run, Status.CANCELLED, actor, reason=f"killed by {actor.name}: {reason}", killed=True)
    return Done(run, "The run is killed.")


def preview_kill(run: Run) -> Consequence:
    """What `kill` would do now. Raises StateMismatch where it would be refused."""
    if run.is_terminal:
        raise StateMismatch(f"this run is {label(run)}: there is nothing left to kill")
    sentence = "The run ends at once. Nothing is undone, nothing is settled first, and it cannot be retried; it can be forked."
    if run.status == Status.RUNNING:
        sentence += (
            " Its worker can begin nothing more for it; what it is sending at this moment may still land."
        )
    elif run.compensating:
        sentence += " What has not been undone yet stays as it is."
    effects = effects_of(run)
    return Consequence(
        sentence + told_of_waits(run) + told_of_children(run),
        kept=effects.done,
        unknown=effects.unknown,
        unknown_title="Stays unknown",
    )
