"""Moves of a run that several callers share: verbs, take-over, and the worker's colder transactions.

Every function here expects an open transaction in which `lock_run` has locked the run; that lock orders all of them.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection, transaction
from psycopg.types.json import Jsonb

from runs import clock, codec, waits
from runs.models import Operation, Run
from runs.models.operation import OpStatus
from runs.registry import COMPENSATE
from runs.states import AttentionKind, FailureKind, Hold, Status

#: LISTEN channel on which a worker hears that something became due; the payload is the queue.
DUE_CHANNEL = "agentops_due"


@dataclass(frozen=True)
class Actor:
    """Who does something. `user` is None for workers, the clock and systems."""

    name: str
    user: AbstractBaseUser | None = None
    request: uuid.UUID | None = None
    """The approved request that is being carried out, see `runs.services.guards`."""

    @property
    def id(self) -> int | None:
        return None if self.user is None else self.user.pk

    @classmethod
    def of(cls, user: AbstractBaseUser) -> "Actor":
        return cls(user.get_username(), user)


AGENT = Actor("agent")
CLOCK = Actor("clock")


def worker_actor(worker_id: uuid.UUID | None) -> Actor:
    return Actor(f"worker {str(worker_id)[:13]}" if worker_id else "worker")


def lock_run(of: uuid.UUID, found_by: str = "%s") -> Run:
    """The run under its lock (NO KEY: rows may still be inserted for it): by its id, or by the query that finds its id from `of`.

    As plain SQL, since every verb begins with it and Django's compiler takes as long as the server. Raises Run.DoesNotExist.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("a lock ends with its transaction, and there is none")
    locked = list(Run.objects.raw(f"SELECT * FROM runs_run WHERE id = ({found_by}) FOR NO KEY UPDATE", [of]))  # noqa: S608 (constants)
    if not locked:
        raise Run.DoesNotExist(f"there is no run {of}")
    return locked[0]


def append_event(run: Run, kind: str, actor: Actor, reason: str = "", /, **data: Any) -> None:
    """Extend the run's chain by one line; keeps `run.event_seq` current."""
    append_events(run, actor, reason, (kind, data))


def append_events(run: Run, actor: Actor, reason: str, *events: tuple[str, dict[str, Any]]) -> None:
    """Extend the run's chain by these lines, each a kind and its data, in one round trip."""
    one = "agentops_append_event(%s, %s, %s, %s, %s, %s)"
    parameters: list[Any] = []
    for kind, data in events:
        parameters += [
            run.pk,
            kind,
            actor.id,
            codec.clean_text(actor.name, 200),
            codec.clean_text(reason, 10_000),
        ]
        parameters.append(Jsonb(codec.encode(data, lenient=True)))
    with connection.cursor() as cursor:
        # A row for each: PostgreSQL computes columns of one row in an order of its own choice.
        cursor.execute("VALUES " + ", ".join([f"({one})"] * len(events)), parameters)
        run.event_seq = cursor.fetchall()[-1][0]


def notify_due(queue: str) -> None:
    """Wake listening workers once this transaction commits. A hint: their poll finds the run anyway."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [DUE_CHANNEL, queue])


def head_start(run: Run) -> timedelta:
    return timedelta(minutes=run.priority)


def set_due(run: Run, at: datetime | None = None) -> None:
    """Let a worker look at the run at `at` (now by default). Not for a running run: only its worker writes its wake time."""
    if run.status == Status.RUNNING:
        raise ValueError("only its worker writes the wake time of a running run")
    with connection.cursor() as cursor:
        cursor.execute(_SET_DUE, {"run": run.pk, "at": at, "channel": DUE_CHANNEL})
        run.wake_at, run.sort_at, _ = cursor.fetchone()
    run.held_by = ""


#: One round trip; workers hear of it once the transaction commits.
_SET_DUE = """
WITH due AS (
    UPDATE runs_run SET held_by = '', wake_at = coalesce(%(at)s::timestamptz, agentops_now()),
        sort_at = coalesce(%(at)s::timestamptz, agentops_now()) - make_interval(mins => priority)
    WHERE id = %(run)s RETURNING wake_at, sort_at, queue
)
SELECT wake_at, sort_at, CASE WHEN wake_at <= agentops_now() THEN pg_notify(%(channel)s, queue) END FROM due
"""


def pending_effects(run: Run) -> list[Operation]:
    """Effects of the run whose outcome nobody has recorded."""
    return list(Operation.objects.filter(run_id=run.pk, status=OpStatus.PENDING).order_by("started_at"))


def _leave(run: Run) -> None:
    """Common to every move that takes the run away from a worker."""
    run.worker_id = None
    run.attempt_started_at = None
    run.held_by = ""


_MOVED = [
    "status",
    "worker_id",
    "wake_at",
    "sort_at",
    "attempt_started_at",
    "held_by",
    "attention_kind",
    "failure_kind",
    "reason",
    "finished_at",
    "compensating",
    "step",
    "step_seq",
    "attempt_no",
    "failures",
    "crashes",
    "lone_crashes",
    "resume_step",
    "visit_started_at",
]


def requeue(run: Run, at: datetime | None = None, *, status: Status | None = None) -> None:
    """Make the run due again: `queued` (or `retrying` if told), `cancelling` while it compensates."""
    now = clock.now()
    run.status = Status.CANCELLING if run.compensating else (status or Status.QUEUED)
    _leave(run)
    run.attention_kind, run.reason = "", ""
    run.failure_kind, run.finished_at = "", None
    run.wake_at = at or now
    if run.deadline_at is not None and not run.compensating:
        run.wake_at = max(now, min(run.wake_at, run.deadline_at))  # the claim finds the deadline
    run.sort_at = run.wake_at - head_start(run)
    run.save(update_fields=_MOVED)
    if run.wake_at <= now:
        notify_due(run.queue)


def park(run: Run, hold: Hold, key: str) -> None:
    """Take a running run away from its worker until there is room under the limit `key`; it keeps its place in the order."""
    run.status = Status.CANCELLING if run.compensating else Status.QUEUED
    _leave(run)
    run.wake_at = run.sort_at = None
    run.held_by, run.held_key, run.held_sort = hold, key, run.visit_started_at - head_start(run)
    run.save(update_fields=[*_MOVED, "held_key", "held_sort"])


def ask_person(run: Run, kind: AttentionKind, reason: str, actor: Actor, **data: Any) -> None:
    """Park the run until a person acts."""
    run.status = Status.ATTENTION
    _leave(run)
    run.wake_at = run.sort_at = None
    run.attention_kind, run.reason = kind, reason
    _fingerprint(run, actor)
    run.save(update_fields=[*_MOVED, "fingerprint"])
    append_event(run, "attention", actor, reason, kind=kind, step=run.step, visit=run.step_seq, **data)


def end(
    run: Run,
    status: Status,
    actor: Actor,
    *,
    reason: str = "",
    kind: FailureKind | None = None,
    killed: bool = False,
    **data: Any,
) -> None:
    """Bring the run to a terminal status, unless an effect is in doubt: then a person is asked first.

    A person who kills the run was told what is in doubt, and leaves it so.
    """
    doubtful = [] if killed else pending_effects(run)
    if doubtful:
        ask_doubt(run, doubtful[0], actor)
        return
    run.status = status
    _leave(run)
    run.wake_at = run.sort_at = None
    run.attention_kind = ""
    run.failure_kind = kind or ""
    run.reason = reason
    run.finished_at = clock.now()
    if status == Status.FAILED:
        _fingerprint(run, actor)
        run.save(update_fields=[*_MOVED, "fingerprint"])
    else:
        run.save(update_fields=_MOVED)
    close_waits(run)
    extra = {"kind": kind} if kind else {}
    append_event(run, str(status), actor, reason, step=run.step, visit=run.step_seq, **extra, **data)
    _tell_parent(run)


def _fingerprint(run: Run, actor: Actor) -> None:
    """Enter the run, as it is about to be saved, into the group of failures like this one."""
    from runs.diagnosis import failures  # which moves groups with what stands here

    failures.entered(run, actor)


def _tell_parent(run: Run) -> None:
    """Once this is committed: may the run that started it go on? A sweep asks as well, so that a lost call loses nothing."""
    from runs.kin import families  # which moves parents with what stands here

    wait_id, place = run.parent_operation_id, run.child_index
    if wait_id is not None and place is not None:
        transaction.on_commit(lambda: families.tell_parent(wait_id, place), robust=True)


def ask_doubt(run: Run, operation: Operation, actor: Actor, why: str = "") -> None:
    """Ask a person whether an effect happened."""
    reason = f"nobody knows whether {operation.name} happened" + (f": {why}" if why else "")
    ask_person(run, AttentionKind.IN_DOUBT, reason, actor, operation=str(operation.pk), tool=operation.name)


def close_waits(run: Run) -> None:
    """Close what is still open; nobody will wait for it any more."""
    open_waits = list(Operation.objects.select_for_update().filter(run_id=run.pk, status=OpStatus.OPEN))
    for operation in open_waits:
        operation.status, operation.finished_at = OpStatus.CLOSED, clock.now()
        operation.save(update_fields=["status", "finished_at"])
        waits.kind(operation.kind).close(operation)


def compensable(run: Run) -> list[Operation]:
    """Done effects that declare a compensation and have none yet, newest first."""
    undone = Operation.objects.filter(run_id=run.pk, compensates__isnull=False, status=OpStatus.DONE)
    return list(
        Operation.objects.filter(run_id=run.pk, status=OpStatus.DONE, kind="effect")
        .exclude(compensate_with="")
        .exclude(pk__in=undone.values("compensates"))
        .order_by("-finished_at", "-ordinal")
    )


def carry_out_cancel(run: Run, actor: Actor) -> None:
    """Move a run for which cancel was asked: in doubt ⇒ attention, effects to undo ⇒ cancelling, else cancelled."""
    doubtful = pending_effects(run)
    if doubtful:
        ask_doubt(run, doubtful[0], actor)
        return
    if not run.compensating and compensable(run):
        close_waits(run)
        run.compensating = True
        run.resume_step, run.step = run.step, COMPENSATE
        run.step_seq += 1
        run.attempt_no = run.failures = run.crashes = run.lone_crashes = 0
        run.visit_started_at = clock.now()
        requeue(run)
        append_event(run, "compensating", actor, run.cancel_requested_by, effects=len(compensable(run)))
        return
    end(run, Status.CANCELLED, actor, reason=f"cancelled by {run.cancel_requested_by}")


def rearm_after_outcome(run: Run, actor: Actor) -> bool:
    """An outcome arrived: if the run stands in attention over it and nothing else is in doubt, let it go on."""
    if run.status != Status.ATTENTION or run.attention_kind != AttentionKind.IN_DOUBT or pending_effects(run):
        return False
    requeue(run)
    append_event(run, "resumed", actor, "the outcome arrived")
    return True
