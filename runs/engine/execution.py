"""What a worker knows about one run that it has claimed, and the fenced writes it makes for it."""

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from runs import codec, lifecycle, redaction
from runs.engine import statements
from runs.engine.database import Database, cold
from runs.engine.lease import Lease, clock
from runs.errors import Cancelled, LeaseLost
from runs.models import Attempt, Run
from runs.states import Outcome, Status

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
    state: Any
    input: Any
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
    recorded: dict[str, Record] | None = None
    """Operations of the visit, where they have been read before the visit begins."""
    lost: bool = False
    """Fenced: nothing that this execution still does may count."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def actor(self) -> lifecycle.Actor:
        return lifecycle.worker_actor(self.worker_id)

    @property
    def time_left(self) -> float:
        """Seconds until the attempt's deadline."""
        return self.deadline - clock()

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

    def write(self, statement: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        """A fenced statement, repeated until its answer arrives; its row, or None if the fence refused it."""
        if self.lost:
            raise LeaseLost("this attempt was closed")
        row, _ = self.database.until_sure(statement, self.fence() | parameters, self.lease)
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

    def checkpoint(self, statement: str, parameters: dict[str, Any]) -> datetime | None:
        """A statement that ends the attempt. When it committed, or None if it must be decided otherwise (cancel, doubt)."""
        row, unsure = self.database.until_sure(statement, self.fence() | parameters, self.lease)
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
            run = lifecycle.lock_run(self.run_id)
            if run.epoch != self.epoch or run.step_seq != self.step_seq or run.status != Status.RUNNING:
                if unsure and self.ended_by_me():
                    return applied
                self.lost = True
                raise LeaseLost("another worker, a time-out or a person has taken this run over")
            return work(run)

        if self.lost:
            raise LeaseLost("this attempt was closed")
        return cold(transact, self.lease)

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
    state: Any = None,
) -> str:
    """Write the row of the attempt that ends now; returns its digest. The caller holds the run's lock."""
    from runs.clock import now

    display, sealed = (None, None) if state is None else redaction.split(state)
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
        state_after=display,
        state_after_sealed=sealed,
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


def payload_limit() -> int:
    """Bytes of canonical JSON that one recorded value may have."""
    limit: int = settings.AGENTOPS_PAYLOAD_LIMIT
    return limit
