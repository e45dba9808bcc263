"""Give a run another priority."""

import uuid
from datetime import timedelta

from django.db import connection
from django.db.models import F

from runs import lifecycle
from runs.errors import Invalid, StateMismatch
from runs.lifecycle import Actor
from runs.models import Run
from runs.services.verb import Consequence, Done, guard, label, lock, permit, verb
from runs.states import Status

#: Each point is a minute's head start.
PRIORITIES = range(10)
#: So many runs before one are counted.
PLACES = 1000


@verb
def prioritise(
    actor: Actor, run_id: uuid.UUID, *, priority: int, seen_version: int | None = None, reason: str = ""
) -> Done:
    """Change a run's priority, and so its place in the order in which workers take runs.

    Args:
        priority: 0–9, each point a minute's head start.

    Raises NotAllowed, NotFound, Stale, Invalid (out of range), StateMismatch (finished, executed now, or of this priority).
    """
    run = lock(run_id)
    permit(actor, "runs.bulk", run=run)
    guard(run, seen_version)
    preview_prioritise(run, priority)  # raises what refuses it
    before, moved = run.priority, (F("priority") - priority) * timedelta(minutes=1)
    Run.objects.filter(pk=run.pk).update(
        priority=priority, sort_at=F("sort_at") + moved, held_sort=F("held_sort") + moved
    )
    lifecycle.append_event(run, "prioritised", actor, reason, before=before, priority=priority)
    run.refresh_from_db(fields=["priority", "sort_at", "held_sort"])
    return Done(run, f"Its priority is {priority} now.")


def preview_prioritise(run: Run, priority: int) -> Consequence:
    """What `prioritise` would do now. Raises Invalid for a priority out of range, StateMismatch where it would be refused."""
    if priority not in PRIORITIES:
        raise Invalid(f"priority is {priority}; it must be from 0 to 9")
    if run.is_terminal:
        raise StateMismatch(f"this run is {label(run)}: no worker takes it any more")
    if run.status == Status.RUNNING:
        raise StateMismatch("a worker has this run now: its order does not matter")
    if run.priority == priority:
        raise StateMismatch(f"its priority is {priority} already")
    where = "sooner" if priority > run.priority else "later"
    return Consequence(f"Workers take the run {where} than they would have: its priority changes.")


#: Runs of its queue that workers take before it, as it is and as it would be; counted up to a limit. Index run_due.
_BEFORE = """
SELECT
    (SELECT count(*) FROM (SELECT FROM runs_run d WHERE d.queue = r.queue AND d.sort_at < r.sort_at LIMIT %(limit)s) AS counted),
    (SELECT count(*) FROM (SELECT FROM runs_run d WHERE d.queue = r.queue AND d.id <> r.id
        AND d.sort_at < r.sort_at + make_interval(mins => r.priority - %(priority)s) LIMIT %(limit)s) AS counted)
FROM runs_run r WHERE r.id = %(run)s AND r.sort_at <= agentops_now()
"""


def places(run: Run, priority: int) -> tuple[int, int] | None:
    """How many runs of its queue come before it now, and how many would; each up to PLACES + 1. None where it is not due."""
    with connection.cursor() as cursor:
        cursor.execute(_BEFORE, {"run": run.pk, "priority": priority, "limit": PLACES + 1})
        row: tuple[int, int] | None = cursor.fetchone()
    return row
