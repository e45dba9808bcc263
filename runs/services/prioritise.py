"""Give a run another priority."""

import uuid
from datetime import timedelta

from django.db.models import F

from runs import lifecycle
from runs.errors import Invalid, StateMismatch
from runs.lifecycle import Actor
from runs.models import Run
from runs.services.verb import Consequence, Done, guard, label, lock, permit, verb
from runs.states import Status

#: Each point is a minute's head start.
PRIORITIES = range(10)


@verb
def prioritise(
    actor: Actor, run_id: uuid.UUID, *, priority: int, seen_version: int | None = None, reason: str = ""
) -> Done:
    """Change a run's priority, and so its place in the order in which workers take runs. Used by bulks alone.

    Args:
        priority: 0–9, each point a minute's head start.

    Raises NotAllowed, NotFound, Stale, Invalid (out of range), StateMismatch (finished, executed now, or of this priority).
    """
    run = lock(run_id)
    permit(actor, "runs.bulk", run=run)
    guard(run, seen_version)
    plan = preview_prioritise(run, priority)
    if run.is_terminal:
        raise StateMismatch(f"this run is {label(run)}: no worker takes it any more")
    if run.status == Status.RUNNING:
        raise StateMismatch("a worker has this run now: its order does not matter")
    if run.priority == priority:
        raise StateMismatch(f"its priority is {priority} already")
    before, moved = run.priority, (F("priority") - priority) * timedelta(minutes=1)
    Run.objects.filter(pk=run.pk).update(
        priority=priority, sort_at=F("sort_at") + moved, held_sort=F("held_sort") + moved
    )
    lifecycle.append_event(run, "prioritised", actor, reason, before=before, priority=priority)
    run.refresh_from_db(fields=["priority", "sort_at", "held_sort"])
    return Done(run, plan.sentence)


def preview_prioritise(run: Run, priority: int) -> Consequence:
    """What `prioritise` would do now. Raises Invalid for a priority out of range."""
    if priority not in PRIORITIES:
        raise Invalid(f"priority is {priority}; it must be from 0 to 9")
    where = "sooner" if priority > run.priority else "later"
    return Consequence(f"Workers take the run {where} than they would have: its priority changes.")
