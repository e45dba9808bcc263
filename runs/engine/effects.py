"""Operations inside a visit: effects, queries, model requests and waits.

Each function is a generator that yields what has to be done outside the database (`Call`) or in it (`Block`), so that `def`
and `async def` steps share one protocol: a driver in `context` carries the requests out, on the thread or off the event loop.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import structlog
from django.db import connection
from pydantic import TypeAdapter, ValidationError

from runs import codec, lifecycle, policies, redaction, waits
from runs.clock import now as business_now
from runs.engine import statements
from runs.engine.classify import Classified, Verdict, classify
from runs.engine.database import cold
from runs.engine.execution import Record, dumps, payload_limit
from runs.engine.lease import clock
from runs.errors import (
    Cancelled,
    Diverged,
    InvalidInput,
    LeaseLost,
    Rejected,
    Suspend,
    ToolFailed,
    WaitExpired,
)
from runs.failpoints import failpoint
from runs.models import Operation, Run, Worker
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.workflow import Found, Tool

if TYPE_CHECKING:
    from runs.engine.context import Visit

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Block:
    """Something short that blocks: a statement or a transaction."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Call:
    """The outside world: no transaction and no pooled connection is held while it works."""

    fn: Callable[..., Any]
    arguments: dict[str, Any]
    is_async: bool
    timeout: float


Requests = Generator[Block | Call, Any, Any]

#: Marks "verify says that it did not happen".
_ABSENT = object()


# --- what an attempt wants when it suspends ---------------------------------------------------------------------------


@dataclass
class OpenWait:
    """Open this wait and suspend until it is settled."""

    kind: str
    name: str
    position: str
    ordinal: int
    request: Any
    digest: str
    limit: timedelta | None
    correlation: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    existing: uuid.UUID | None = None


@dataclass
class BackOff:
    """Try again after `pause`; no worker is held."""

    pause: timedelta
    reason: str


@dataclass
class AskDoubt:
    """Only a person can say whether this effect happened."""

    operation_id: uuid.UUID
    why: str


Want = OpenWait | BackOff | AskDoubt


def compare(record: Record, kind: str, name: str, digest: str) -> None:
    """Raises Diverged when the record at this position is of something else."""
    if (record.kind, record.name) != (kind, name):
        raise Diverged(
            f"operation {record.position} was {record.kind} {record.name} when it was recorded and is {kind} {name} now"
        )
    if record.args_digest != digest:
        raise Diverged(
            f"operation {record.position}, {kind} {name}, now has other arguments than when it was recorded"
        )


def suspend(visit: Visit, want: Want) -> Suspend:
    """Note what the attempt waits for; the executor carries it out in one transaction once the body has unwound."""
    visit.wants.append(want)
    return Suspend()


def encode_arguments(tool: Tool, given: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Validated Python arguments and their encoded form. Raises InvalidInput naming the path."""
    try:
        model = tool.arguments.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInput(f"arguments of {tool.name}: {first_error(error)}") from error
    python = {name: getattr(model, name) for name in tool.arguments.model_fields}
    encoded = codec.encode(python, path=tool.name)
    check_size(encoded, f"arguments of {tool.name}")
    return python, encoded


def arguments_of(tool: Tool, encoded: Any) -> dict[str, Any]:
    """Python arguments from their encoded form, as people approved them."""
    model = tool.arguments.model_validate(codec.decode(encoded))
    return {name: getattr(model, name) for name in tool.arguments.model_fields}


def first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or "value"
    return f"{path}: {first['msg']}"


def check_size(encoded: Any, what: str) -> str:
    """An encoded value as JSON text. Raises InvalidInput when that is longer than can be recorded."""
    text = dumps(encoded)
    if len(text) > payload_limit():
        raise InvalidInput(
            f"{what}: {len(text):,} bytes as JSON, and at most {payload_limit():,} can be recorded"
        )
    return text


def record_answer(value: Any, what: str) -> Any:
    """An answer as it is recorded: sanitised, never refused, a marker where it is too large."""
    try:
        encoded = codec.encode(value, lenient=True)
    except Exception as error:
        # An object with code of its own may do anything; that the call was answered must be recorded all the same.
        log.warning("answer.unreadable", what=what, error=codec.error_text(error, 500))
        return f"⟦{type(value).__name__}, which cannot be recorded⟧"
    size = len(dumps(encoded))
    if size > payload_limit():
        log.warning("answer.too_large", what=what, bytes=size)
        return f"⟦{size:,} bytes, more than can be recorded⟧"
    return encoded


def parse(adapter: TypeAdapter[Any], name: str, value: Any) -> Any:
    """A recorded answer as its declared type. A parsing error never re-sends: the record stays."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ToolFailed(
            name, "InvalidAnswer", f"the answer is not what was declared: {first_error(error)}"
        ) from error


def failed(record: Record) -> ToolFailed:
    return ToolFailed(record.name, record.error_type, record.error)


def provider_key(run_id: uuid.UUID, step_seq: int, position: str, generation: int) -> uuid.UUID:
    """The key that a provider sees: of the operation's identity and its generation, so that any worker makes the same."""
    return uuid.uuid5(run_id, f"{step_seq}/{position}/{generation}")


# --- effects -----------------------------------------------------------------------------------------------------------


def effect(
    visit: Visit,
    tool: Tool,
    position: str,
    ordinal: int,
    python: dict[str, Any],
    encoded: Any,
    *,
    compensates: uuid.UUID | None = None,
) -> Requests:
    """Carry out a forward effect or a compensation, once; its parsed result."""
    digest = codec.digest(encoded)
    record = visit.records.get(position)
    # Once an effect is recorded its approval is not looked at again, and is not unused for that.
    visit.used.add(f"{position}/approval")
    if record is not None:
        compare(record, Kind.EFFECT, tool.name, digest)
        # The approval in front of it belongs to it, also where nobody looks at it again.
        visit.used.add(_gate_position(position))
    if record is not None and record.status == OpStatus.DONE:
        return parse(tool.returns, tool.name, record.true_result)
    if record is not None and record.status == OpStatus.FAILED:
        raise failed(record)
    if record is not None and record.status == OpStatus.PENDING:
        settled = yield from _settle_pending(visit, tool, record, python, encoded)
        if settled is not _ABSENT:
            return parse(tool.returns, tool.name, settled)
        # Re-stamped: send again under the same key.
        sent_arguments = yield Block(lambda: _arguments_to_send(record.id, tool, python))
        return (yield from _send(visit, tool, record, sent_arguments))
    if visit.execution.cancel_requested and not visit.execution.compensating:
        raise Cancelled
    approval: Record | None = None
    if tool.approval is not None and not visit.execution.compensating:
        approval = yield from _gate(visit, tool, position, ordinal, encoded)
    approved = None
    if approval is not None:
        approved = codec.encode(approval.true_result["arguments"])
        python = arguments_of(tool, approved)
        if codec.digest(approved) == digest:
            approved = None
    generation = record.generation if record else 0
    key = provider_key(visit.execution.run_id, visit.execution.step_seq, position, generation)
    sent = yield Block(
        lambda: _intent(
            visit,
            tool,
            position,
            ordinal,
            digest,
            encoded,
            approved,
            key,
            generation,
            compensates,
            record,
            approval,
        )
    )
    return (yield from _send(visit, tool, sent, python))


def _gate_position(position: str) -> str:
    return f"{position}/approval"


def _gate(visit: Visit, tool: Tool, position: str, ordinal: int, encoded: Any) -> Requests:
    """The approval in front of an effect: None if none is needed, else its settled record."""
    gate_position = _gate_position(position)
    record = visit.records.get(gate_position)
    digest = codec.digest(encoded)
    approvals: Any = waits.kind(Kind.APPROVAL)
    if record is None:
        needed = yield Block(
            lambda: cold(
                lambda unsure: approvals.required(tool.approval, codec.decode(encoded)), visit.execution.lease
            )
        )
        if not needed:
            return None
    else:
        compare(record, Kind.APPROVAL, tool.name, digest)
    if record is None or record.status == OpStatus.OPEN:
        summary = tool.summary(**arguments_of(tool, encoded)) if tool.summary else f"Call {tool.name}"
        options = {
            "title": summary,
            "why": visit.reason,
            "schema": tool.arguments.model_json_schema(),
            "policy": tool.approval,
            "arguments": encoded,
        }
        raise suspend(
            visit,
            OpenWait(
                kind=Kind.APPROVAL,
                name=tool.name,
                position=gate_position,
                ordinal=ordinal,
                request=encoded,
                digest=digest,
                limit=None,
                options=options,
                existing=record.id if record else None,
            ),
        )
    decision = record.true_result or {}
    if decision.get("verdict") != "approved":
        raise Rejected(
            tool.name,
            str(decision.get("verdict", "closed")),
            str(decision.get("by", "")),
            str(decision.get("reason", "")),
        )
    return record


def _intent(
    visit: Visit,
    tool: Tool,
    position: str,
    ordinal: int,
    digest: str,
    encoded: Any,
    approved: Any,
    key: uuid.UUID,
    generation: int,
    compensates: uuid.UUID | None,
    record: Record | None,
    approval: Record | None,
) -> Record:
    """Commit that this effect is about to be sent. Raises Cancelled, LeaseLost, or Suspend if the approval changed."""
    failpoint("intent.before")
    execution = visit.execution
    display, sealed = redaction.split(encoded)
    approved_display, approved_sealed = (None, None) if approved is None else redaction.split(approved)
    operation_id = record.id if record else new_id()
    parameters = execution.fence() | {
        "id": operation_id,
        "position": position,
        "ordinal": ordinal,
        "name": tool.name,
        "digest": digest,
        "request": dumps(display),
        "request_sealed": sealed,
        "approved": None if approved is None else dumps(approved_display),
        "approved_sealed": approved_sealed,
        "key": key,
        "generation": generation,
        "compensates": compensates,
        "compensate_with": tool.compensate.name if tool.compensate and not execution.compensating else "",
    }
    if approval is None:
        row = execution.write(statements.INTENT, parameters)
    else:
        # The approval is read again under the run's lock: an edit voids what this attempt was told.
        def transact(run: Run) -> tuple[Any, ...] | None:
            confirmed = Operation.objects.get(pk=approval.id)
            approvals: Any = waits.kind(Kind.APPROVAL)
            if run.cancel_requested_at is not None:
                return None
            if not approvals.confirm(confirmed, approval.true_result["version"]):
                raise suspend(visit, BackOff(timedelta(), "the approval changed"))
            with connection.cursor() as cursor:
                cursor.execute(statements.INTENT, parameters)
                made: tuple[Any, ...] | None = cursor.fetchone()
                return made

        row = execution.under_lock(transact, None)
    if row is None:
        _not_sent(visit, operation_id)
        execution.refused()
    assert row is not None
    failpoint("intent.committed")
    made = Record(
        id=row[0],
        position=position,
        ordinal=ordinal,
        kind=Kind.EFFECT,
        name=tool.name,
        args_digest=digest,
        status=OpStatus.PENDING,
        result=None,
        result_sealed=None,
        response=None,
        response_sealed=None,
        error_type="",
        error="",
        provider_key=key,
        generation=generation,
        tries=record.tries if record else 0,
        looks=record.looks if record else 0,
        intent_epoch=execution.epoch,
        intent_worker_id=execution.worker_id,
        first_sent_at=row[1],
        call_ended_at=None,
        earlier_send_open=record.earlier_send_open if record else False,
        settled_by="",
        finished_at=None,
    )
    visit.records[position] = made
    return made


def _arguments_to_send(operation_id: uuid.UUID, tool: Tool, python: dict[str, Any]) -> dict[str, Any]:
    """What is sent again: the arguments as approved, where people edited them."""

    def read(unsure: bool) -> dict[str, Any]:
        operation = Operation.objects.only("approved", "approved_sealed").get(pk=operation_id)
        if operation.approved is None:
            return python
        return arguments_of(tool, redaction.true_value(operation.approved, operation.approved_sealed))

    return cold(read)


def _given(tool: Tool, record: Record, python: dict[str, Any], timeout: float) -> dict[str, Any]:
    arguments = dict(python)
    if "idempotency_key" in tool.given:
        arguments["idempotency_key"] = str(record.provider_key)
    if "timeout" in tool.given:
        arguments["timeout"] = timeout
    return arguments


def _send(visit: Visit, tool: Tool, record: Record, python: dict[str, Any]) -> Requests:
    """Send under a committed intent and record what came of it."""
    execution = visit.execution
    if not execution.may_send():
        yield Block(lambda: _not_sent(visit, record.id))
        raise LeaseLost("too little of the lease was left to start an effect")
    limits = yield Block(lambda: visit.tool_limits(tool))
    failpoint("effect.before_send")
    try:
        answer = yield Call(
            tool.fn, _given(tool, record, python, limits.timeout), tool.is_async, limits.timeout
        )
    except asyncio.CancelledError:
        # The attempt timed out: this call has certainly ended, whatever its request still does.
        yield Block(lambda: _call_ended(visit, record, "TimedOut", "the attempt's time was over"))
        raise
    except Exception as error:
        failpoint("effect.answered")
        return (yield from _send_failed(visit, tool, record, error, limits))
    failpoint("effect.answered")
    encoded = record_answer(answer, tool.name)
    yield Block(lambda: _outcome(visit, record, OpStatus.DONE, encoded, ref=reference_of(encoded)))
    failpoint("outcome.committed")
    return parse(tool.returns, tool.name, codec.decode(encoded))


def _send_failed(
    visit: Visit, tool: Tool, record: Record, error: Exception, limits: policies.Limits
) -> Requests:
    verdict = classify(error, effect=True)
    kind, message = type(error).__name__, codec.error_text(error)
    if verdict.verdict is Verdict.UNKNOWN:
        looks = yield Block(lambda: _call_ended(visit, record, kind, message))
        if looks is not None and looks >= limits.max_attempts:
            raise suspend(
                visit, AskDoubt(record.id, f"no clear answer in {looks} calls; the last: {message}")
            )
        raise suspend(visit, BackOff(_pause(verdict, limits, looks or 1), f"{tool.name}: {message}"))
    # Fresh limits: a changed retry limit acts on this try already.
    limits = yield Block(lambda: visit.tool_limits(tool, fresh=True))
    tries = record.tries + 1
    if verdict.verdict is Verdict.RETRY and tries < limits.max_attempts:
        bump = int(tool.cached_errors and not record.earlier_send_open)
        yield Block(lambda: _outcome(visit, record, OpStatus.RETRY, None, kind, message, bump=bump))
        raise suspend(visit, BackOff(_pause(verdict, limits, tries), f"{tool.name}: {message}"))
    by = "exhausted" if verdict.verdict is Verdict.RETRY else "not_retryable"
    yield Block(lambda: _outcome(visit, record, OpStatus.FAILED, None, kind, message, by=by))
    visit.final_failures[tool.name] = by
    raise ToolFailed(tool.name, kind, message) from error


def _pause(verdict: Classified, limits: policies.Limits, tries: int) -> timedelta:
    pause = limits.backoff(tries)
    if verdict.retry_after is not None:
        pause = max(pause, timedelta(seconds=verdict.retry_after))
    return pause


def reference_of(encoded: Any) -> str:
    """The provider's own id for what it did, where the answer has one in the usual place."""
    if isinstance(encoded, dict):
        for name in ("id", "reference", "ref"):
            if isinstance(encoded.get(name), str | int):
                return str(encoded[name])[:200]
    return ""


def _call_ended(visit: Visit, record: Record, error_type: str, error: str) -> int | None:
    """Record that the call ended without an answer, or was never made. Looks so far, None if settled meanwhile."""
    row, _ = visit.execution.database.until_sure(
        statements.CALL_ENDED,
        visit.execution.fence() | {"id": record.id, "error_type": error_type, "error": error},
        visit.execution.lease,
    )
    return None if row is None else row[0]


def _not_sent(visit: Visit, operation_id: uuid.UUID) -> None:
    """The intent of this attempt, if there is one, is not followed by a send: nobody need ask what became of it.

    There is one although the caller was refused where the answer to an earlier try of its COMMIT was lost.
    """
    execution = visit.execution
    with suppress(LeaseLost):
        execution.database.until_sure(
            statements.NOT_SENT, execution.fence() | {"id": operation_id}, execution.lease
        )


def _outcome(
    visit: Visit,
    record: Record,
    status: OpStatus,
    encoded: Any,
    error_type: str = "",
    error: str = "",
    *,
    ref: str = "",
    by: str = "",
    bump: int = 0,
) -> None:
    """Record an outcome. It is evidence: fenced by its own intent, accepted whatever the run's epoch or status by now."""
    failpoint("outcome.before")
    execution = visit.execution
    display, sealed = redaction.split(encoded)
    parameters = execution.fence() | {
        "id": record.id,
        "status": str(status),
        "response": None if status != OpStatus.DONE else dumps(display),
        "sealed": sealed,
        "error_type": error_type,
        "error": error,
        "ref": ref,
        "by": by,
        "bump": bump,
    }
    row = None
    if not execution.lost:
        # A lease that ends meanwhile takes nothing from the evidence: it is then settled as a late one.
        with suppress(LeaseLost):
            row, _ = execution.database.until_sure(statements.OUTCOME, parameters, execution.lease)
    finished_at: datetime | None = (
        cold(lambda unsure: settle_late(visit, record, parameters, encoded), tries=50)
        if row is None
        else row[0]
    )
    record.status, record.result, record.result_sealed = status, display, sealed
    record.error_type, record.error, record.tries = error_type, error, record.tries + 1
    record.finished_at = finished_at
    if finished_at is not None:
        visit.last_recorded = finished_at


def settle_late(visit: Visit, record: Record, parameters: Mapping[str, Any], encoded: Any) -> datetime | None:
    """The outcome of a send whose run has moved on meanwhile: accepted while its intent stands, else kept as an event."""
    execution = visit.execution
    run = lifecycle.lock_run(execution.run_id)
    operation = Operation.objects.select_for_update().get(pk=record.id)
    mine = operation.intent_epoch == execution.epoch and operation.intent_worker_id == execution.worker_id
    status = parameters["status"]
    moment = business_now()
    if operation.status == OpStatus.PENDING and mine:
        display, sealed = redaction.split(encoded)
        operation.status = status
        if status == OpStatus.DONE:
            operation.response = operation.result = display
            operation.response_sealed = operation.result_sealed = sealed
        operation.error_type, operation.error = parameters["error_type"], parameters["error"]
        operation.provider_ref, operation.settled_by = parameters["ref"], parameters["by"]
        operation.tries += 1
        operation.generation += parameters["bump"]
        operation.call_ended_at = moment
        operation.finished_at = moment if status in (OpStatus.DONE, OpStatus.FAILED) else None
        operation.save()
        lifecycle.rearm_after_outcome(run, execution.actor)
        return operation.finished_at
    if mine and operation.status == status and operation.settled_by == parameters["by"]:
        return operation.finished_at  # the lost answer was of a commit that had succeeded
    lifecycle.append_event(
        run,
        "late_outcome",
        execution.actor,
        f"an outcome of {operation.name} came after it had been settled otherwise",
        operation=str(operation.pk),
        status=status,
        answer=codec.digest(encoded),
        reference=parameters["ref"],
        error=parameters["error"][:500],
        epoch=execution.epoch,
    )
    return operation.finished_at


# --- a pending effect found on re-execution ------------------------------------------------------------------------------


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


def _settle_pending(
    visit: Visit, tool: Tool, record: Record, python: dict[str, Any], encoded: Any
) -> Requests:
    """Settle what an earlier attempt left open: the result, or `_ABSENT` once it may be sent again (re-stamped)."""
    execution = visit.execution
    stop = execution.cancel_requested and not execution.compensating
    in_window = tool.idempotent is not None and (yield Block(lambda: _in_window(visit, tool, record)))
    if in_window and not stop:
        yield Block(lambda: _restamp(visit, record, tool, open_send=True, window=True))
        return _ABSENT
    if tool.verify is None:
        why = "its provider offers no way to ask"
        if tool.idempotent is not None:
            why = "cancel was asked for" if in_window else "its provider may have forgotten the key"
        raise suspend(visit, AskDoubt(record.id, why))
    # "May send again" is decided before the query is made: an answer about a moment before the request landed proves nothing.
    doubt: _Doubt = yield Block(lambda: _look_at_sender(record, tool))
    may_send = doubt.sender_ended and doubt.settled
    limits = yield Block(lambda: visit.tool_limits(tool))
    sent = yield Block(lambda: _arguments_to_send(record.id, tool, python))
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
    return _ABSENT


def _verification(
    tool: Tool, record: Record, python: dict[str, Any], timeout: float
) -> tuple[Callable[..., Any], dict[str, Any], bool, float]:
    import inspect

    assert tool.verify is not None
    fn = tool.verify.fn if isinstance(tool.verify, Tool) else tool.verify
    names = inspect.signature(fn).parameters
    everything = _given(tool, record, python, timeout) | {
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
    row = execution.write(
        statements.RESTAMP,
        {"id": record.id, "seen": record.intent_epoch, "open": open_send, "window": remaining},
    )
    if row is None:
        _not_sent(visit, record.id)
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
        operation.response = operation.result = display
        operation.response_sealed = operation.result_sealed = sealed
        operation.provider_ref = reference_of(encoded)
        operation.error_type = operation.error = ""
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


# --- queries, model requests, waits ----------------------------------------------------------------------------------------


def query(
    visit: Visit,
    tool: Tool,
    position: str,
    ordinal: int,
    python: dict[str, Any],
    encoded: Any,
    kind: Kind = Kind.QUERY,
) -> Requests:
    """Ask once and record the answer after; on re-execution the recorded answer."""
    digest = codec.digest(encoded)
    record = visit.records.get(position)
    if record is not None:
        compare(record, kind, tool.name, digest)
        if record.status == OpStatus.DONE:
            return parse(tool.returns, tool.name, record.true_result)
        if record.status == OpStatus.FAILED:
            raise failed(record)
    if visit.execution.cancel_requested and not visit.execution.compensating:
        raise Cancelled
    limits = yield Block(lambda: visit.tool_limits(tool))
    begun = clock()
    arguments = dict(python)
    if "timeout" in tool.given:
        arguments["timeout"] = limits.timeout
    failpoint("query.before")
    try:
        answer = yield Call(tool.fn, arguments, tool.is_async, limits.timeout)
    except Exception as error:
        verdict = classify(error, effect=False)
        error_kind, message = type(error).__name__, codec.error_text(error)
        fresh = yield Block(lambda: visit.tool_limits(tool, fresh=True))
        tries = (record.tries if record else 0) + 1
        retry = verdict.verdict is not Verdict.FINAL and tries < fresh.max_attempts
        by = "" if retry else "not_retryable" if verdict.verdict is Verdict.FINAL else "exhausted"
        status = OpStatus.RETRY if retry else OpStatus.FAILED
        yield Block(
            lambda: _record(
                visit,
                kind,
                tool.name,
                position,
                ordinal,
                digest,
                encoded,
                status,
                None,
                error_kind,
                message,
                by,
                begun,
            )
        )
        if retry:
            raise suspend(visit, BackOff(_pause(verdict, fresh, tries), f"{tool.name}: {message}")) from error
        visit.final_failures[tool.name] = by
        raise ToolFailed(tool.name, error_kind, message) from error
    failpoint("query.answered")
    recorded = record_answer(answer, tool.name)
    yield Block(
        lambda: _record(
            visit,
            kind,
            tool.name,
            position,
            ordinal,
            digest,
            encoded,
            OpStatus.DONE,
            recorded,
            "",
            "",
            "",
            begun,
        )
    )
    return parse(tool.returns, tool.name, codec.decode(recorded))


def _record(
    visit: Visit,
    kind: Kind,
    name: str,
    position: str,
    ordinal: int,
    digest: str,
    encoded: Any,
    status: OpStatus,
    answer: Any,
    error_type: str,
    error: str,
    by: str,
    begun: float,
) -> None:
    display, sealed = redaction.split(encoded)
    answer_display, answer_sealed = redaction.split(answer)
    row = visit.execution.write(
        statements.RECORD,
        {
            "id": new_id(),
            "position": position,
            "ordinal": ordinal,
            "kind": str(kind),
            "name": name,
            "digest": digest,
            "status": str(status),
            "request": dumps(display),
            "request_sealed": sealed,
            "response": None if status != OpStatus.DONE else dumps(answer_display),
            "sealed": answer_sealed,
            "error_type": error_type,
            "error": error,
            "by": by,
            "elapsed": max(0.0, clock() - begun),
        },
    )
    if row is None:
        # Either the fence refused it, or an earlier try whose answer was lost has written it.
        back = visit.execution.database.once(statements.READ_BACK, visit.execution.fence())
        if back is None or not back[0]:
            visit.execution.refused()
        return
    if row[0] is not None:
        visit.last_recorded = row[0]


def wait(visit: Visit, want: OpenWait) -> Requests:
    """The settled record of a wait; suspends while it is not settled."""
    yield from ()
    record = visit.records.get(want.position)
    if record is None or record.status == OpStatus.OPEN:
        if record is not None:
            compare(record, want.kind, want.name, want.digest)
            want.existing = record.id
        elif visit.execution.cancel_requested and not visit.execution.compensating:
            raise Cancelled
        raise suspend(visit, want)
    compare(record, want.kind, want.name, want.digest)
    if record.status == OpStatus.FAILED:
        raise WaitExpired(record.error or f"{want.name} did not come in time")
    return record
