"""Parents and their child runs: who is told when a child ends, and what becomes of children that nobody waits for any more.

A child that ends does not touch its parent: ten thousand siblings would queue for one row. After its commit somebody asks
whether enough siblings have ended, without a lock, and only then takes the parent's. `docs/why.md` says why no wake-up is lost.
Locks are taken from the parent downwards; nothing here holds a child's while it asks for a parent's.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, connection, transaction

from runs import lifecycle
from runs.kin import children
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.models.operation import OpStatus, Rest
from runs.states import AttentionKind, Status

log = structlog.get_logger(__name__)

#: Children that one transaction cancels.
BATCH = 500
#: Waits that one sweep looks at.
PAGE = 1000
#: Before every id.
START = uuid.UUID(int=0)

#: Ask the next children of a wait to stop. One that never began is cancelled here; a running one ends at its next operation or
#: checkpoint; what waits or is queued becomes due, so that a worker carries the cancel out. What somebody else has locked is
#: left for the next time.
CANCEL = """
WITH chosen AS (
    SELECT id, status, status = 'queued' AND epoch = 0 AS fresh FROM runs_run
    WHERE parent_operation_id = %(wait)s AND finished_at IS NULL AND cancel_requested_at IS NULL
    ORDER BY id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), t AS MATERIALIZED (SELECT agentops_now() AS now), r AS (
    UPDATE runs_run r SET
        cancel_requested_at = t.now, cancel_requested_by = %(by)s,
        status = CASE WHEN chosen.fresh THEN 'cancelled' ELSE r.status END,
        finished_at = CASE WHEN chosen.fresh THEN t.now END,
        reason = CASE WHEN chosen.fresh THEN %(reason)s ELSE r.reason END,
        wake_at = CASE WHEN chosen.fresh THEN NULL WHEN r.status IN ('queued', 'waiting', 'retrying') THEN t.now
            ELSE r.wake_at END,
        sort_at = CASE WHEN chosen.fresh THEN NULL WHEN r.status IN ('queued', 'waiting', 'retrying')
            THEN t.now - make_interval(mins => r.priority) ELSE r.sort_at END,
        held_by = CASE WHEN r.status IN ('queued', 'waiting', 'retrying') THEN '' ELSE r.held_by END,
        event_seq = r.event_seq + 1,
        event_head = agentops_event_head(r.event_head, agentops_event_text(r.event_seq + 1, t.now,
            CASE WHEN chosen.fresh THEN 'cancelled' ELSE 'cancel_requested' END, NULL, %(by)s, %(reason)s, '{}'::jsonb))
    FROM chosen, t WHERE r.id = chosen.id
    RETURNING r.id, r.queue, r.status, r.attention_kind, chosen.fresh, r.event_seq, r.event_head, t.now
), e AS (
    INSERT INTO runs_event (run_id, seq, at, kind, actor_id, actor, reason, data, head)
    SELECT r.id, r.event_seq, r.now, CASE WHEN r.fresh THEN 'cancelled' ELSE 'cancel_requested' END, NULL, %(by)s, %(reason)s,
        '{}'::jsonb, r.event_head FROM r
)
SELECT id, queue, status, attention_kind FROM r
"""

#: Nothing is left to be cancelled of this wait.
DONE = """
UPDATE runs_operation o SET rest = '' WHERE o.id = %(wait)s AND o.rest = 'cancel' AND NOT EXISTS (
    SELECT FROM runs_run c WHERE c.parent_operation_id = o.id AND c.finished_at IS NULL AND c.cancel_requested_at IS NULL)
"""

#: Waits with children to cancel, in the order of their ids, a page at a time; each row comes with the last id of a full page.
RESTS = """
WITH page AS MATERIALIZED (
    SELECT o.id, o.run_id, o.rest FROM runs_operation o WHERE o.rest <> '' AND o.id > %(after)s ORDER BY o.id LIMIT %(limit)s
)
SELECT last.id, o.id
FROM (SELECT CASE WHEN count(*) = %(limit)s THEN (array_agg(id ORDER BY id DESC))[1] END AS id FROM page) AS last
LEFT JOIN page o ON o.rest = 'cancel' OR EXISTS (SELECT FROM runs_run r WHERE r.id = o.run_id AND r.finished_at IS NOT NULL)
"""


# --- a child has ended -----------------------------------------------------------------------------------------------


def tell_parent(wait_id: uuid.UUID, place: int) -> None:
    """A child of this wait has ended, and that is committed: if enough have, make the parent due. Not inside a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(children.ENOUGH, {"wait": wait_id, "last": place})
        row = cursor.fetchone()
    if row is not None:
        wake_parent(row[0], wait_id)


def wake_parent(parent_id: uuid.UUID, wait_id: uuid.UUID) -> bool:
    """Make a waiting parent due. True if that was still to be done.

    Its lock comes first: a parent that is just suspending is waited for, and its status is read after that. One that runs
    looks itself before it waits (again).
    """
    with transaction.atomic():
        run = lifecycle.lock_run(parent_id)
        still = Operation.objects.filter(pk=wait_id, status=OpStatus.OPEN).exists()
        if not still or run.status != Status.WAITING or run.held_by or _is_due(run):
            return False
        lifecycle.set_due(run)
        return True


def _is_due(run: Run) -> bool:
    from runs import clock

    return run.wake_at is not None and run.wake_at <= clock.now()


# --- children that nobody waits for --------------------------------------------------------------------------------------


def cancel_rest(wait_id: uuid.UUID, limit: int = BATCH) -> int:
    """Cancel the next children of a wait that are still going and were not yet asked to stop. Returns how many."""
    with transaction.atomic():
        parent_id = Operation.objects.values_list("run_id", flat=True).get(pk=wait_id)
        by = f"run {str(parent_id)[:13]}"
        found = _ask_to_stop(wait_id, by, limit)
        for run_id, _, status, kind in found:
            # Nobody claims a run that waits for a person. In doubt, it stays there until the doubt is settled.
            if status == Status.ATTENTION and kind == AttentionKind.DIVERGED:
                lifecycle.carry_out_cancel(lifecycle.lock_run(run_id), Actor(by))
        for queue in sorted({queue for _, queue, status, _ in found if status != Status.CANCELLED}):
            lifecycle.notify_due(queue)
        if len(found) < limit:
            with connection.cursor() as cursor:
                cursor.execute(DONE, {"wait": wait_id})
        return len(found)


def _ask_to_stop(wait_id: uuid.UUID, by: str, limit: int) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            CANCEL,
            {
                "wait": wait_id,
                "limit": limit,
                "by": by,
                "reason": "the run that started it no longer waits for it",
            },
        )
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


# --- the sweep -------------------------------------------------------------------------------------------------------


class Sweep:
    """What a worker looks at about once a second: whom nobody told, as its worker was killed just then; whom to cancel.

    Each turn looks at one page of the waits that are open, and at one of those with children to cancel.
    """

    def __init__(self) -> None:
        self._woken_after = self._cancelled_after = START

    def turn(self) -> int:
        """One turn. Returns how many parents became due and how many children were asked to stop, together."""
        return self._wake() + self._cancel()

    def _wake(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(children.ENOUGH_OF_PAGE, {"after": self._woken_after, "limit": PAGE})
            rows = cursor.fetchall()
        self._woken_after = rows[0][0] or START
        return sum(_alone(wake_parent, parent_id, wait_id) for _, wait_id, parent_id in rows if wait_id)

    def _cancel(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(RESTS, {"after": self._cancelled_after, "limit": PAGE})
            rows = cursor.fetchall()
        self._cancelled_after = rows[0][0] or START
        waits = [wait_id for _, wait_id in rows if wait_id]
        Operation.objects.filter(pk__in=waits, rest=Rest.AT_END).update(rest=Rest.CANCEL)
        return sum(_alone(cancel_rest, wait_id) for wait_id in waits)


def _alone(work: Callable[..., int], *of: uuid.UUID) -> int:
    """One family that cannot be moved must not keep the others from it."""
    try:
        return work(*of)
    except (OperationalError, InterfaceError):
        raise  # of the database, not of the family
    except Exception:
        log.exception("family.not_moved", of=[str(one) for one in of])
        return 0
