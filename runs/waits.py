"""What a run can wait for: one interface, one kind per thing.

Opening a wait and suspending is one transaction that re-reads, under the run's lock, what is already settled. The engine
knows kinds by name alone; other apps register theirs (approvals do), and `runs` never imports them. A kind also says how
its waits look on the pages of a run.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from django.db import connection
from psycopg.types.json import Jsonb

from runs import codec, redaction
from runs.clock import Now
from runs.models import Operation, Run, Signal
from runs.models.operation import Kind, OpStatus


@dataclass(frozen=True)
class Description:
    """How an open wait looks to people: `sentence` follows “waiting because …”; `url` leads to where it can be settled."""

    sentence: str
    url: str = ""
    template: str = ""


class WaitKind(Protocol):
    """Everything here runs inside a transaction that holds the run's lock, the operation's row included."""

    name: str

    def open(self, run: Run, operation: Operation, options: Mapping[str, Any]) -> None:
        """Write what belongs to the wait beside its operation; `options` are what the engine was given for it."""
        ...

    def look(self, run: Run, operation: Operation) -> bool:
        """Settle the operation if its answer is already there. True if it is now settled."""
        ...

    def expire(self, run: Run, operation: Operation) -> None:
        """The time limit passed: record that as the answer (or move the limit, as an escalation does).

        Or leave it open and set `operation.parked`: the run needs attention then, for that reason.
        """
        ...

    def close(self, operation: Operation) -> None:
        """The operation was closed by a cancel or an end; close what belongs to it."""
        ...

    def describe(self, operation: Operation) -> Description: ...

    def describe_all(self, operations: Sequence[Operation]) -> Mapping[uuid.UUID, Description]:
        """The same for many, with what takes a query; by id of the operation."""
        ...


class OneByOne:
    """A kind whose waits say all about themselves."""

    def describe(self, operation: Operation) -> Description:
        raise NotImplementedError

    def describe_all(self, operations: Sequence[Operation]) -> Mapping[uuid.UUID, Description]:
        return {one.pk: self.describe(one) for one in operations}


_KINDS: dict[str, WaitKind] = {}


def register(kind: WaitKind) -> None:
    _KINDS[kind.name] = kind


def kind(name: str) -> WaitKind:
    """Raises KeyError for a kind that no installed app registered."""
    return _KINDS[name]


#: Stands in the place of the number of child runs that go on (`going_on`) for people who see a part of the runs.
UNTOLD = -1


def describe_all(operations: Iterable[Operation]) -> Mapping[uuid.UUID, Description]:
    """What these open waits look like, by id: at most one query a kind."""
    by_kind: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_kind[operation.kind].append(operation)
    return {
        key: described
        for name, some in by_kind.items()
        for key, described in kind(name).describe_all(some).items()
    }


def settle(
    operation: Operation,
    result: Any,
    *,
    status: OpStatus = OpStatus.DONE,
    error: str = "",
    error_type: str = "WaitExpired",
    by: str = "",
) -> None:
    """Record the answer of an open wait. The caller holds the locks of run and operation and saw it open."""
    operation.status = status
    operation.result, operation.result_sealed = redaction.split(codec.encode(result, lenient=True))
    operation.error_type, operation.error = (error_type, error) if error else ("", "")
    operation.settled_by = by
    stored = _RESULT.pre_save(operation, False)  # what is large goes to a place of its own
    # The types of cursors do not know Jsonb.
    answer = cast(str | None, None if stored is None else Jsonb(stored))
    with connection.cursor() as cursor:
        cursor.execute(
            _SETTLE,
            [
                str(status),
                answer,
                operation.result_sealed,
                operation.error_type,
                operation.error,
                by,
                operation.pk,
            ],
        )
        (operation.finished_at,) = cursor.fetchone()


_RESULT = Operation._meta.get_field("result")
#: As plain SQL: a person or a sender waits for it, and Django's compiler takes several times as long as the server.
_SETTLE = """
UPDATE runs_operation SET status = %s, result = %s, result_sealed = %s, error_type = %s, error = %s, settled_by = %s,
    finished_at = agentops_now()
WHERE id = %s RETURNING finished_at
"""


def lock_key(name: str, correlation: str) -> None:
    """Let only one transaction at a time match signals and waits of this correlation key; held until it ends.

    Without it a wait that opens and a signal that arrives at one instant could each look before the other has committed,
    and the signal would lie there for ever. Taken after the run's lock, by both.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"signal {name} {correlation}"]
        )


class SignalWait(OneByOne):
    name: str = Kind.SIGNAL

    def open(self, run: Run, operation: Operation, options: Mapping[str, Any]) -> None:
        pass

    def look(self, run: Run, operation: Operation) -> bool:
        """Take the oldest unused signal of this name: addressed to the run, or to the wait's correlation key."""
        if operation.correlation:
            lock_key(operation.name, operation.correlation)
        waiting = Signal.objects.select_for_update().filter(
            name=operation.name, consumed_at__isnull=True, ignored=""
        )
        found = waiting.filter(run_id=run.pk).order_by("id").first()
        if found is None and operation.correlation:
            found = (
                waiting.filter(run_id__isnull=True, correlation=operation.correlation).order_by("id").first()
            )
        if found is None:
            return False
        take(found, run, operation)
        return True

    def expire(self, run: Run, operation: Operation) -> None:
        settle(operation, None, status=OpStatus.FAILED, error=f"no signal {operation.name} came in time")

    def close(self, operation: Operation) -> None:
        pass

    def describe(self, operation: Operation) -> Description:
        key = f" for {operation.correlation}" if operation.correlation else ""
        return Description(f"the signal {operation.name}{key} has not come")


def take(signal: Signal, run: Run, operation: Operation) -> None:
    """Consume `signal` for the open wait `operation`, in the transaction that also moves the run."""
    consume(signal, run, operation)
    signal.save(update_fields=["run_id", "consumed_by", "consumed_at"])


def consume(signal: Signal, run: Run, operation: Operation) -> None:
    """The same for a signal that is yet to be saved."""
    true_payload = codec.decode(redaction.true_value(signal.payload, signal.payload_sealed))
    settle(operation, true_payload, by=f"signal from {signal.source}")
    signal.run_id, signal.consumed_by, signal.consumed_at = run.pk, operation.pk, Now()


class TimerWait(OneByOne):
    name: str = Kind.TIMER

    def open(self, run: Run, operation: Operation, options: Mapping[str, Any]) -> None:
        pass

    def look(self, run: Run, operation: Operation) -> bool:
        return False

    def expire(self, run: Run, operation: Operation) -> None:
        settle(operation, None)

    def close(self, operation: Operation) -> None:
        pass

    def describe(self, operation: Operation) -> Description:
        return Description("its timer runs")


register(SignalWait())
register(TimerWait())
