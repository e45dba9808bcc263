"""Leases live on the worker's row: take-over of what a dead worker held, and hand-back after a stop.

Called by every worker's sweep, by the sentinel, and by the verbs.
"""

import os
import socket
import uuid
from collections.abc import Iterable, Sequence

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q

from runs.engine import code, machine
from runs.engine.closing import close_dead_attempt
from runs.engine.database import cold
from runs.models import Run, Worker
from runs.states import Outcome, Status

log = structlog.get_logger(__name__)

#: Beats use statement_timestamp(), which no test moves. After a restart of PostgreSQL every worker gets one lease to beat.
_EXPIRED = """
SELECT id FROM runs_worker WHERE closed_at IS NULL AND beat_until < statement_timestamp()
  AND pg_postmaster_start_time() + make_interval(secs => %s) < statement_timestamp()
"""


def register(worker_id: uuid.UUID, *, queues: Sequence[str], capabilities: Sequence[str], slots: int) -> None:
    """Write the row of a new worker process, its lease begun; re-arms runs that waited for somebody capable."""
    executes = code.version()  # looks through what is installed: no transaction is held open for that
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_worker (id, host, pid, process, queues, capabilities, slots, code_version, started_at, beat_at,"
            " beat_until, draining, lost_slots, gone_by) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, statement_timestamp(),"
            " statement_timestamp(), statement_timestamp() + make_interval(secs => %s), false, 0, '')",
            [
                worker_id,
                socket.gethostname(),
                os.getpid(),
                machine.identity(os.getpid()),
                list(queues),
                list(capabilities),
                slots,
                executes,
                settings.AGENTOPS_LEASE_SECONDS,
            ],
        )
        rearm_capable(list(capabilities), list(queues))


def close(worker_id: uuid.UUID) -> None:
    """This worker holds nothing any more and ends its own lease."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_worker SET closed_at = coalesce(closed_at, statement_timestamp()) WHERE id = %s",
            [worker_id],
        )


def close_if_over(worker_id: uuid.UUID) -> bool:
    """Close the row of a worker whose lease is over, so that no beat renews it.

    False if there is none: a beat has just renewed it, or there is no such row.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_worker SET closed_at = coalesce(closed_at, statement_timestamp()) WHERE id = %s"
            " AND (closed_at IS NOT NULL OR beat_until < statement_timestamp())",
            [worker_id],
        )
        return bool(cursor.rowcount)


def rearm_capable(capabilities: list[str], queues: list[str], batch: int = 500) -> int:
    """Make runs due again that were parked for want of a capable worker. Returns how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH parked AS (SELECT id FROM runs_run WHERE held_by = 'no_capable_worker' AND queue = ANY(%s)"
            " AND (workflow || '@' || version || '/' || step) = ANY(%s) LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)"
            " UPDATE runs_run r SET held_by = '', wake_at = agentops_now(),"
            " sort_at = agentops_now() - make_interval(mins => r.priority) FROM parked WHERE r.id = parked.id",
            [queues, capabilities, batch],
        )
        return int(cursor.rowcount)


def park_incapable(queues: Sequence[str], oldest: int = 500) -> int:
    """Park due runs of these queues whose step no live worker knows; each keeps its attempts. Returns how many.

    Only the oldest due runs of each queue are looked at: what nobody can claim gathers there. They are gathered first, as an
    array: joined instead, ten thousand due runs took 15 s where the statistics were of a time when there were none.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH capable AS (SELECT DISTINCT unnest(queues) AS queue, c.name FROM runs_worker, unnest(capabilities) AS c(name)"
            " WHERE closed_at IS NULL AND beat_until > statement_timestamp()),"
            " due AS (SELECT r.id FROM runs_run r WHERE r.id = ANY(ARRAY(SELECT oldest.id FROM unnest(%s::text[]) AS q(name)"
            "  CROSS JOIN LATERAL (SELECT id FROM runs_run WHERE queue = q.name"
            "  AND sort_at < agentops_now() - interval '2 seconds'"
            "  AND wake_at < agentops_now() - interval '2 seconds' ORDER BY sort_at LIMIT %s) AS oldest))"
            "  AND r.wake_at IS NOT NULL AND r.status <> 'running' AND NOT EXISTS (SELECT FROM capable k"
            "  WHERE k.queue = r.queue AND k.name = r.workflow || '@' || r.version || '/' || r.step)"
            "  FOR NO KEY UPDATE OF r SKIP LOCKED)"
            " UPDATE runs_run r SET held_by = 'no_capable_worker', wake_at = NULL, sort_at = NULL FROM due WHERE r.id = due.id",
            [list(queues), oldest],
        )
        return int(cursor.rowcount)


def rearm_executable(batch: int = 500) -> int:
    """Make runs due again that are parked for want of a worker while one is there. Returns how many.

    Registering re-arms them, but only one batch, and a sweep that did not yet see the new worker may park one after that.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH parked AS (SELECT id FROM runs_run r WHERE held_by = 'no_capable_worker' AND EXISTS ("
            "  SELECT FROM runs_worker w WHERE w.closed_at IS NULL AND w.beat_until > statement_timestamp()"
            "  AND r.queue = ANY(w.queues) AND (r.workflow || '@' || r.version || '/' || r.step) = ANY(w.capabilities))"
            "  LIMIT %s FOR NO KEY UPDATE OF r SKIP LOCKED)"
            " UPDATE runs_run r SET held_by = '', wake_at = agentops_now(),"
            " sort_at = agentops_now() - make_interval(mins => r.priority) FROM parked WHERE r.id = parked.id",
            [batch],
        )
        return int(cursor.rowcount)


def park_paused(queue: str, workflows: Sequence[str], oldest: int = 500) -> int:
    """Park due runs of paused workflows, the oldest of this queue. Returns how many.

    A claim parks those that it meets, as many as it has free slots: behind thousands of them others would wait.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH due AS (SELECT r.id FROM runs_run r WHERE r.id = ANY(ARRAY(SELECT id FROM runs_run WHERE queue = %s"
            "  AND sort_at <= agentops_now() AND wake_at <= agentops_now() ORDER BY sort_at LIMIT %s))"
            "  AND r.wake_at <= agentops_now() AND r.status <> 'running' AND r.cancel_requested_at IS NULL"
            "  AND r.workflow = ANY(%s) FOR NO KEY UPDATE OF r SKIP LOCKED)"
            " UPDATE runs_run r SET held_by = 'paused', wake_at = NULL, sort_at = NULL FROM due WHERE r.id = due.id",
            [queue, oldest, list(workflows)],
        )
        return int(cursor.rowcount)


def rearm_unpaused(batch: int = 500) -> int:
    """Make runs due again that are parked for a pause that is over. Returns how many.

    Resuming re-arms them, but a worker that had not heard of it yet may have parked one after that.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH parked AS (SELECT id FROM runs_run r WHERE held_by = 'paused' AND NOT EXISTS (SELECT FROM runs_policy p"
            " WHERE (p.paused OR (p.temporary #>> '{paused,until}')::timestamptz > agentops_now())"
            " AND (p.scope = 'everything' OR (p.scope = 'queue' AND p.name = r.queue)"
            " OR (p.scope = 'workflow' AND p.name = r.workflow))) LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)"
            " UPDATE runs_run r SET held_by = '', wake_at = agentops_now(),"
            " sort_at = agentops_now() - make_interval(mins => r.priority) FROM parked WHERE r.id = parked.id",
            [batch],
        )
        return int(cursor.rowcount)


def expired(worker_ids: Iterable[uuid.UUID]) -> set[uuid.UUID]:
    """Those of `worker_ids` whose lease is over or was ended by others. The sentinel kills and reaps them.

    A row closed before its lease ran out was closed by its own worker, which has drained and may still finish ordinary tasks.
    """
    wanted = list(worker_ids)
    if not wanted:
        return set()
    with connection.cursor() as cursor:
        # The lock makes a server that takes no writes refuse this: nobody can beat there, and nobody may be judged by it.
        cursor.execute(
            _EXPIRED + " AND id = ANY(%s) FOR KEY SHARE SKIP LOCKED",
            [settings.AGENTOPS_LEASE_SECONDS, wanted],
        )
        over = {row[0] for row in cursor.fetchall()}
    ended_by_others = Q(closed_at__gte=F("beat_until")) | (Q(closed_at__isnull=False) & ~Q(gone_by=""))
    return over | set(Worker.objects.filter(ended_by_others, pk__in=wanted).values_list("pk", flat=True))


def reap(worker_id: uuid.UUID, *, graceful: bool = False) -> int:
    """`waitpid` has returned for this worker: it is certainly dead. Ends its lease and moves its runs on.

    With `graceful` its process was stopped by us: cut attempts are `stopped` and spend nothing. Returns how many runs moved.
    """

    def close(unsure: bool) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE runs_worker SET closed_at = coalesce(closed_at, statement_timestamp()),"
                " reaped_at = coalesce(reaped_at, statement_timestamp()) WHERE id = %s",
                [worker_id],
            )

    cold(close)
    outcome = Outcome.STOPPED if graceful else Outcome.CRASHED
    error = "its worker was stopped" if graceful else "its worker process died"
    return _take_over_runs_of(worker_id, outcome, error)


def _take_over_runs_of(worker_id: uuid.UUID, outcome: Outcome, error: str) -> int:
    held = list(Run.objects.filter(worker_id=worker_id).values_list("pk", flat=True))
    return sum(_take_over(run_id, worker_id, outcome, error) for run_id in held)


def _take_over(run_id: uuid.UUID, worker_id: uuid.UUID | None, outcome: Outcome, error: str) -> bool:
    """Close one dead attempt, in a transaction of its own: a broken run must not stop the others."""

    def close(unsure: bool) -> bool:
        run = (
            Run.objects.select_for_update(no_key=True, of=("self",), skip_locked=True)
            .filter(pk=run_id, status=Status.RUNNING, worker_id=worker_id)
            .first()
        )
        if run is None:  # somebody was faster, or holds its lock: the next sweep looks again
            return False
        close_dead_attempt(run, outcome=outcome, closed_by="take-over", error=error)
        return True

    return cold(close)


def close_expired() -> list[uuid.UUID]:
    """Close the rows of workers whose lease is over: from now on no beat renews them. Returns their ids."""

    def close(unsure: bool) -> list[uuid.UUID]:
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE runs_worker SET closed_at = statement_timestamp() WHERE id IN ({_EXPIRED} FOR UPDATE SKIP LOCKED)"
                " AND closed_at IS NULL AND beat_until < statement_timestamp() RETURNING id",
                [settings.AGENTOPS_LEASE_SECONDS],
            )
            return [row[0] for row in cursor.fetchall()]

    return cold(close)


def note_ended() -> int:
    """Mark closed workers as reaped whose process on this machine is certainly gone. Returns how many.

    Their sentinel does this as soon as waitpid returns; after it has died itself, nobody else would, and an effect that they
    had under way would wait for a person.
    """
    unseen = Worker.objects.filter(closed_at__isnull=False, reaped_at__isnull=True)
    ended = [pk for pk, process in unseen.values_list("pk", "process") if machine.has_ended(process)]
    if not ended:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_worker SET reaped_at = statement_timestamp() WHERE id = ANY(%s) AND reaped_at IS NULL",
            [ended],
        )
        return int(cursor.rowcount)


def sweep(batch: int = 100) -> int:
    """Take over what dead workers hold and what overran its attempt's deadline. Returns how many runs moved.

    Both are found through the index on `worker_id`: only running runs are in it. The worker itself closes an attempt that
    overruns; two seconds later anybody may.
    """
    for worker_id in close_expired():
        log.warning("worker.lease_over", worker=str(worker_id))
    note_ended()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT r.id, r.worker_id, w.closed_at IS NOT NULL FROM runs_run r JOIN runs_worker w ON w.id = r.worker_id"
            " WHERE r.worker_id IS NOT NULL AND (w.closed_at IS NOT NULL OR r.wake_at < agentops_now() - interval '2 seconds')"
            " LIMIT %s",
            [batch],
        )
        rows = cursor.fetchall()
    moved = 0
    for run_id, worker_id, dead in rows:
        try:
            if dead:
                moved += _take_over(run_id, worker_id, Outcome.CRASHED, "its worker's lease ran out")
            else:
                moved += close_overrun(run_id, worker_id)
        except Exception:
            # One run that cannot be moved must not keep the others from being taken over.
            log.exception("take_over.failed", run=str(run_id))
    return moved


def close_overrun(run_id: uuid.UUID, worker_id: uuid.UUID, epoch: int | None = None) -> bool:
    """Fence an attempt whose deadline has passed: it is closed as timed out. False if it is not (any more) overdue."""

    def close(unsure: bool) -> bool:
        from runs import clock

        candidates = Run.objects.select_for_update(no_key=True, of=("self",), skip_locked=True)
        run = candidates.filter(
            pk=run_id, status=Status.RUNNING, worker_id=worker_id, wake_at__lte=clock.now()
        ).first()
        if run is None or (epoch is not None and run.epoch != epoch):
            return False
        took = (
            (run.wake_at - run.attempt_started_at).total_seconds()
            if run.wake_at and run.attempt_started_at
            else 0
        )
        close_dead_attempt(
            run,
            outcome=Outcome.TIMED_OUT,
            closed_by="time-out",
            error=f"step {run.step} took longer than {took:.3g} s; it may still be running in its worker",
        )
        return True

    return cold(close)


def hand_back_stray(run_id: uuid.UUID, worker_id: uuid.UUID, epoch: int) -> bool:
    """Give back a run that its living worker does not execute. Its attempt is closed as stopped and spends nothing.

    It gets a row, since it may have recorded operations before its worker lost it: the next attempt must look for them.
    """
    return _close_held(
        run_id, worker_id, epoch, Outcome.STOPPED, "reconcile", "its worker did not execute it"
    )


def close_broken(run_id: uuid.UUID, worker_id: uuid.UUID, epoch: int, error: str) -> bool:
    """The engine itself failed over this run: count that like a death, so that it ends in the dead letter, not in a loop."""
    return _close_held(run_id, worker_id, epoch, Outcome.CRASHED, "engine", error)


def _close_held(
    run_id: uuid.UUID, worker_id: uuid.UUID, epoch: int, outcome: Outcome, closed_by: str, error: str
) -> bool:
    """Close the attempt of `epoch` if this worker still holds it. False if it does not."""

    def close(unsure: bool) -> bool:
        held = Run.objects.select_for_update(no_key=True, of=("self",)).filter(
            pk=run_id, status=Status.RUNNING, worker_id=worker_id, epoch=epoch
        )
        run = held.first()
        if run is None:
            return False
        close_dead_attempt(run, outcome=outcome, closed_by=closed_by, error=error)
        return True

    return cold(close)


def lone_due(queues: Sequence[str]) -> int:
    """How many due runs wait for a process of their own (at most 100 are counted)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT 1 FROM runs_run WHERE queue = ANY(%s) AND crashes > 0"
            " AND sort_at <= agentops_now() AND wake_at <= agentops_now() LIMIT 100) AS due",
            [list(queues)],
        )
        count: int = cursor.fetchone()[0]
        return count
