"""What a worker knows about one run that it has claimed, and the fenced writes it makes for it."""

import json
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection

from runs import blobs, codec, history, lifecycle, redaction, sizes
from runs.engine import statements
from runs.engine.database import Database, cold
from runs.engine.lease import Lease, clock
from runs.engine.statements import Fenced
from runs.errors import Cancelled, LeaseLost
from runs.models import Attempt, Run
from runs.states import Outcome, Status

#: Parameters of statements that are display values of a run.
_PAYLOADS = ("request", "approved", "response", "result", "content")
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def dumps(encoded: Any) -> str:
    """Encoded JSON as text for a `::jsonb` parameter."""
    return _JSON.encode(encoded)


@dataclass
class Record:
    """A recorded operation of the visit, as re-execution needs it."""

    id: uuid.UUID
    position: str
    ordinal: int
    kind: str
    name: str
    args_digest: str
    status: str
    result: Any
    result_sealed: bytes | None
    response: Any
    response_sealed: bytes | None
    error_type: str
    error: str
    provider_key: uuid.UUID | None
    generation: int
    tries: int
    looks: int
    intent_epoch: int | None
    intent_worker_id: uuid.UUID | None
    first_sent_at: datetime | None
    call_ended_at: datetime | None
    earlier_send_open: bool
    settled_by: str
    finished_at: datetime | None
    copied_from: uuid.UUID | None = None
    """In a fork: the operation whose answer this is."""
    origin: uuid.UUID | None = None
    """The run that it was an operation of: its arguments name that run where those of now name the fork."""

    @property
    def true_result(self) -> Any:
        return codec.decode(redaction.true_value(self.result, self.result_sealed))


@dataclass
class Execution:
    """One claimed run, from the claim until the run is given away again."""

    database: Database
    lease: Lease
    worker_id: uuid.UUID
    run_id: uuid.UUID
    workflow: str
    version: int
    step: str
    step_seq: int
    attempt_no: int
    epoch: int
    queue: str
    stored_state: tuple[Any, bytes | None]
    """As the run's row holds it: display and sealed; see `open`."""
    stored_input: tuple[Any, bytes | None]
    compensating: bool
    cancel_requested: bool
    failures: int
    crashes: int
    visit_started_at: datetime
    attempt_started_at: datetime
    deadline: float
    """When the attempt is over, on the lease's clock."""
    external: dict[str, Any]
    past_run_deadline: bool = False
    started_by: str = ""
    subject: str = ""
    was: str = "queued"
    """The run's status before the claim."""
    parent_wait: uuid.UUID | None = None
    """Of a child run: the operation that waits for it."""
    child_index: int | None = None
    forked: bool = False
    """It may find records at its first try of a visit: what it reuses."""
    recorded: dict[str, Record] | None = None
    """Operations of the visit, where they have been read before the visit begins."""
    lost: bool = False
    """Fenced: nothing that this execution still does may count."""
    input: Any = None
    state: Any = None
    """Encoded; None where it is a large one, see `large`."""
    large: history.Large | None = None
    small: history.Small | None = None
    """What the last attempt of this claim has recorded, if it was a small state."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def actor(self) -> lifecycle.Actor:
        return lifecycle.worker_actor(self.worker_id)

    @property
    def time_left(self) -> float:
        """Seconds until the attempt's deadline."""
        return self.deadline - clock()

    def open(self) -> None:
        """Read input and state. Raises ValueError where they cannot be read, such as BlobDamaged and HistoryDamaged."""
        display, sealed = self.stored_input
        self.input = redaction.true_value(self.whole([display])[0], sealed)
        self.state, self.large = history.opened(self.run_id, *self.stored_state, self.database.all)

    def whole(self, displays: Sequence[Any]) -> list[Any]:
        """Display values, with what is stored apart read in one query on the worker's own pool."""
        return blobs.whole(displays, lambda keys: self.database.all(blobs.READ, {"keys": list(keys)}))

    def fresh_state(self) -> Any:
        """The state as a step may change it."""
        return codec.decode(self.state) if self.large is None else self.large.fresh()

    def keep(self, packed: Sequence[blobs.Packed]) -> None:
        """Write blobs, before the row that points to them. Raises LeaseLost."""
        if connection.in_atomic_block:
            # Whatever this transaction has stored, another session would wait for it, and this thread for that session.
            blobs.write(self.run_id, packed)
            return
        self.database.until_sure(blobs.WRITE, blobs.parameters(self.run_id, packed), self.lease)

    def spilled(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Parameters of a statement, with large payloads kept apart. Raises LeaseLost."""
        at_most = blobs.limit()
        large = [
            name
            for name in _PAYLOADS
            if (text := parameters.get(name)) is not None and sizes.bytes_of(text, at_most) > at_most
        ]
        if not large:
            return parameters
        packed = {name: blobs.pack(codec.canonical(json.loads(parameters[name]))) for name in large}
        self.keep(list(packed.values()))
        return parameters | {name: dumps(one.marker) for name, one in packed.items()}

    def may_send(self) -> bool:
        """Whether lease and deadline leave enough time to decide to start an effect."""
        return not self.lost and self.lease.allows_send and self.time_left > 0

    def fence(self) -> dict[str, Any]:
        return {
            "run": self.run_id,
            "epoch": self.epoch,
            "seq": self.step_seq,
            "attempt": self.attempt_no,
            "worker": self.worker_id,
        }

    def write(self, statement: str | Fenced, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        """A fenced statement, repeated until its answer arrives; its row, or None if the fence refused it."""
        if self.lost:
            raise LeaseLost("this attempt was closed")
        row, _ = self.database.until_sure(statement, self.fence() | self.spilled(parameters), self.lease)
        return row

    def refused(self) -> None:
        """The fence refused a write that leaves the attempt open. Raises Cancelled or LeaseLost accordingly."""
        row, _ = self.database.until_sure(statements.READ_BACK, self.fence(), self.lease)
        if row is not None and row[0] and row[1]:
            self.cancel_requested = True
            raise Cancelled
        self.lost = True
        raise LeaseLost("another worker, a time-out or a person has taken this run over")

    def refused_unless_held(self) -> None:
        """The fence refused a write. Raises LeaseLost unless the run is still held (then something else refused it)."""
        row, _ = self.database.until_sure(statements.READ_BACK, self.fence(), self.lease)
        if row is None or not row[0]:
            self.lost = True
            raise LeaseLost("another worker, a time-out or a person has taken this run over")

    def checkpoint(self, statement: Fenced, parameters: dict[str, Any]) -> datetime | None:
        """A statement that ends the attempt. When it committed, or None if it must be decided otherwise (cancel, doubt)."""
        row, unsure = self.database.until_sure(statement, self.fence() | self.spilled(parameters), self.lease)
        if row is not None:
            ended: datetime = row[0]
            return ended
        back, _ = self.database.until_sure(statements.READ_BACK, self.fence(), self.lease)
        if back is not None and unsure and back[2] is not None:
            mine: datetime = back[2]
            return mine
        if back is not None and back[0]:
            return None
        self.lost = True
        raise LeaseLost("another worker, a time-out or a person has taken this run over")

    def under_lock[T](self, work: Callable[[Run], T], applied: T) -> T:
        """Run `work` in a transaction that holds the run's lock and has passed the fence.

        Returns `applied` when an earlier try whose answer was lost turns out to have succeeded. Raises LeaseLost.
        """

        def transact(unsure: bool) -> T:
            run = self.lock_run()
            if run.epoch != self.epoch or run.step_seq != self.step_seq or run.status != Status.RUNNING:
                if unsure and self.ended_by_me():
                    return applied
                self.lost = True
                raise LeaseLost("another worker, a time-out or a person has taken this run over")
            return work(run)

        if self.lost:
            raise LeaseLost("this attempt was closed")
        return cold(transact, self.lease)

    def lock_run(self) -> Run:
        """The run under its lock. Raises LeaseLost where retention has deleted it, long after it was taken from this worker."""
        try:
            return lifecycle.lock_run(self.run_id)
        except Run.DoesNotExist:
            self.lost = True
            raise LeaseLost("this run has been deleted") from None

    def write_within(self, statement: Fenced, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        """The same as part of the transaction that is open on Django's connection; its row, or None if refused."""
        with connection.cursor() as cursor:
            row = statement.row(self.fence() | self.spilled(parameters))
            cursor.execute(statement.alone, statement.parameters([row]))
            answer: tuple[Any, ...] | None = cursor.fetchone()
        return None if answer is None else answer[len(statement.key) :]

    def ended_by_me(self) -> bool:
        return Attempt.objects.filter(
            run_id=self.run_id,
            step_seq=self.step_seq,
            attempt_no=self.attempt_no,
            epoch=self.epoch,
            closed_by="",
        ).exists()

    def hand_back(self) -> None:
        """Give the run back unexecuted."""
        self.database.until_sure(statements.HAND_BACK, self.fence(), self.lease)


def record_attempt(
    run: Run,
    outcome: Outcome,
    *,
    closed_by: str = "",
    error_type: str = "",
    error: str = "",
    traceback: str = "",
    retry_at: datetime | None = None,
    state_after: tuple[Any, bytes | None] = (None, None),
) -> str:
    """Write the row of the attempt that ends now; returns its digest. The caller holds the run's lock."""
    from runs.clock import now

    moment = now()
    Attempt.objects.create(
        run_id=run.pk,
        step_seq=run.step_seq,
        attempt_no=run.attempt_no,
        epoch=run.epoch,
        step=run.step,
        outcome=outcome,
        worker_id=run.worker_id,
        started_at=run.attempt_started_at or moment,
        ended_at=moment,
        error_type=codec.clean_text(error_type, 200),
        error=codec.clean_text(error, 10_000),
        traceback=codec.clean_text(traceback),
        retry_at=retry_at,
        state_after=state_after[0],
        state_after_sealed=state_after[1],
        closed_by=closed_by,
    )
    return attempt_digest(run.pk, run.step_seq, run.attempt_no, run.epoch, run.step, str(outcome), error_type)


def attempt_digest(
    run_id: uuid.UUID, step_seq: int, attempt_no: int, epoch: int, step: str, outcome: str, error_type: str
) -> str:
    """What an event says of the attempt that it refers to; doctor makes it again from the attempt's row."""
    return codec.digest(
        [str(run_id), step_seq, attempt_no, epoch, step, outcome, codec.clean_text(error_type, 200)]
    )
