"""A pending effect that a later execution of the step finds: it is settled before anything is sent again."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from runs import codec, lifecycle, policies, redaction
from runs.clock import now as business_now
from runs.engine import statements
from runs.engine.database import cold
from runs.engine.execution import Record
from runs.engine.requests import AskDoubt, BackOff, Block, Call, Requests, suspend
from runs.engine.sending import arguments_to_send, given, not_sent, reference_of
from runs.engine.values import record_answer
from runs.errors import Cancelled
from runs.failpoints import failpoint
from runs.models import Operation, Worker
from runs.models.operation import OpStatus
from runs.workflow import Found, Tool

if TYPE_CHECKING:
    from runs.engine.visit import Visit

#: Marks "verify says that it did not happen".
ABSENT = object()
#: At least so many looks at an effect in doubt before a person is asked.
LOOKS = 10


@dataclass(frozen=True)
class _Doubt:
    """What is known about the send that left an operation pending, read before anything is asked."""

    sender_ended: bool
    settled: bool
    settles_at: datetime | None


def _look_at_sender(record: Record, tool: Tool) -> _Doubt:
    """Whether the old sender is known to have ended, and whether its request can still land."""

    def read(unsure: bool) -> _Doubt:
        ends = [record.call_ended_at] if record.call_ended_at else []
        reaped = (
            Worker.objects.filter(pk=cast(uuid.UUID, record.intent_worker_id))
            .values_list("reaped_at", flat=True)
            .first()
        )
        if reaped is not None:
            ends.append(reaped)
        if not ends:
            return _Doubt(False, False, None)
        settles_at = min(ends) + tool.settle
        return _Doubt(True, settles_at <= business_now(), settles_at)

    return cold(read)


def settle_pending(
    visit: Visit, tool: Tool, record: Record, python: dict[str, Any], encoded: Any
) -> Requests:
    """Settle what an earlier attempt left open: the result, or `ABSENT` once it may be sent again (re-stamped)."""
    execution = visit.execution
    stop = execution.cancel_requested and not execution.compensating
    in_window = tool.idempotent is not None and (yield Block(lambda: _in_window(visit, tool, record)))
    if in_window and not stop:
        yield Block(lambda: _restamp(visit, record, tool, open_send=True, window=True))
        return ABSENT
    if tool.verify is None:
        why = "its provider offers no way to ask"
        if tool.idempotent is not None:
            why = "cancel was asked for" if in_window else "its provider may have forgotten the key"
        raise suspend(visit, AskDoubt(record.id, why))
    # "May send again" is decided before the query is made: an answer about a moment before the request landed proves nothing.
    doubt: _Doubt = yield Block(lambda: _look_at_sender(record, tool))
    may_send = doubt.sender_ended and doubt.settled
    limits = yield Block(lambda: visit.tool_limits(tool))
    sent = yield Block(lambda: arguments_to_send(record.id, tool, python))
    try:
        found = yield Call(*_verification(tool, record, sent, limits.timeout))
    except Exception as error:
        message = codec.error_text(error, 2000)
        yield from _look_again(visit, tool, record, limits, f"it could not be looked up: {message}", doubt)
    if found is not None:
        value = found.value if isinstance(found, Found) else found
        answer = record_answer(value, tool.name)
        yield Block(lambda: _store_found(visit, record, answer))
        return codec.decode(answer)
    if not may_send:
        yield from _look_again(visit, tool, record, limits, "it is not there (yet)", doubt)
    if stop:
        yield Block(lambda: _did_not_happen(visit, record))
        raise Cancelled
    yield Block(lambda: _restamp(visit, record, tool, open_send=False, window=False))
    return ABSENT


def _verification(
    tool: Tool, record: Record, python: dict[str, Any], timeout: float
) -> tuple[Callable[..., Any], dict[str, Any], bool, float]:
    assert tool.verify is not None
    fn = tool.verify.fn if isinstance(tool.verify, Tool) else tool.verify
    names = inspect.signature(fn).parameters
    everything = given(tool, record, python, timeout) | {
        "idempotency_key": str(record.provider_key),
        "timeout": timeout,
    }
    return fn, {k: v for k, v in everything.items() if k in names}, inspect.iscoroutinefunction(fn), timeout


def _in_window(visit: Visit, tool: Tool, record: Record) -> bool:
    """Whether more than a lease of the provider's key window remains."""
    if tool.idempotent is None or record.first_sent_at is None:
        return False
    first: datetime = record.first_sent_at
    window = tool.idempotent - timedelta(seconds=visit.execution.lease.seconds)
    return cold(lambda unsure: business_now() < first + window)


def _restamp(visit: Visit, record: Record, tool: Tool, *, open_send: bool, window: bool) -> None:
    """A new intent over the pending one, under the same key, before it is sent again."""
    execution = visit.execution
    remaining = None
    if window and tool.idempotent is not None:
        remaining = tool.idempotent.total_seconds() - execution.lease.seconds
    failpoint("restamp.before")
    row = execution.write(
        statements.RESTAMP,
        {"id": record.id, "seen": record.intent_epoch, "open": open_send, "window": remaining},
    )
    if row is None:
        not_sent(visit, record.id)
        raise suspend(visit, BackOff(timedelta(), "the operation changed while it was looked at"))
    record.intent_epoch, record.intent_worker_id = execution.epoch, execution.worker_id
    record.call_ended_at = None
    failpoint("intent.committed")


def _store_found(visit: Visit, record: Record, encoded: Any) -> None:
    """verify= found it: accepted while the intent that was looked at still stands."""
    execution = visit.execution

    def store(unsure: bool) -> None:
        run = lifecycle.lock_run(execution.run_id)
        operation = Operation.objects.select_for_update().get(pk=record.id)
        if operation.status != OpStatus.PENDING or operation.intent_epoch != record.intent_epoch:
            return
        display, sealed = redaction.split(encoded)
        operation.status, operation.settled_by = OpStatus.DONE, "verify"
        operation.result, operation.result_sealed = display, sealed
        operation.provider_ref = reference_of(encoded)
        operation.found_out()
        operation.finished_at = business_now()
        operation.save()
        visit.last_recorded = operation.finished_at
        lifecycle.rearm_after_outcome(run, execution.actor)

    cold(store, execution.lease)
    record.status = OpStatus.DONE


def _did_not_happen(visit: Visit, record: Record) -> None:
    """Proven absent while cancelling: recorded as not happened, so that the cancel can go on."""
    execution = visit.execution

    def store(unsure: bool) -> None:
        lifecycle.lock_run(execution.run_id)
        Operation.objects.filter(
            pk=record.id, status=OpStatus.PENDING, intent_epoch=record.intent_epoch
        ).update(status=OpStatus.RETRY, settled_by="verify")

    cold(store, execution.lease)
    record.status = OpStatus.RETRY


def _look_again(
    visit: Visit, tool: Tool, record: Record, limits: policies.Limits, why: str, doubt: _Doubt
) -> Requests:
    """Back off and look again later; a person is asked when that has gone on for too long. Always raises Suspend."""

    def count(unsure: bool) -> tuple[int, timedelta]:
        lifecycle.lock_run(visit.execution.run_id)
        operation = Operation.objects.select_for_update().get(pk=record.id)
        operation.looks += 1
        operation.save(update_fields=["looks"])
        until_settled = doubt.settles_at - business_now() if doubt.settles_at else timedelta()
        return operation.looks, max(timedelta(), until_settled)

    looks, until_settled = yield Block(lambda: cold(count, visit.execution.lease))
    if looks >= max(limits.max_attempts, LOOKS):
        ended = "the old worker has ended" if doubt.sender_ended else "the old worker may still act"
        raise suspend(visit, AskDoubt(record.id, f"{why} after {looks} looks; {ended}"))
    # Before the settle time has passed another look may find it, but only one after it can allow a second send.
    pause = min(limits.backoff(looks), until_settled) if until_settled else limits.backoff(looks)
    raise suspend(visit, BackOff(max(pause, timedelta(seconds=0.2)), f"{tool.name} is in doubt: {why}"))


#: At least so many looks at an effect in doubt before a person is asked.
LOOKS = 10
