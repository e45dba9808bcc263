"""Sending an effect under a committed intent, and recording what came of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from runs import codec, lifecycle, policies, redaction
from runs.clock import now as business_now
from runs.engine import statements
from runs.engine.classify import Verdict, classify, pause
from runs.engine.database import cold
from runs.engine.execution import Record, dumps
from runs.engine.requests import AskDoubt, BackOff, Block, Call, Requests, suspend
from runs.engine.values import arguments_of, parse, record_answer
from runs.errors import LeaseLost, ToolFailed
from runs.failpoints import failpoint
from runs.models import Operation
from runs.models.operation import OpStatus
from runs.workflow import Tool

if TYPE_CHECKING:
    from runs.engine.visit import Visit


def arguments_to_send(operation_id: uuid.UUID, tool: Tool, python: dict[str, Any]) -> dict[str, Any]:
    """What is sent again: the arguments as approved, where people edited them."""

    def read(unsure: bool) -> dict[str, Any]:
        operation = Operation.objects.only("approved", "approved_sealed").get(pk=operation_id)
        if operation.approved is None:
            return python
        return arguments_of(tool, redaction.true_value(operation.approved, operation.approved_sealed))

    return cold(read)


def given(tool: Tool, record: Record, python: dict[str, Any], timeout: float) -> dict[str, Any]:
    arguments = dict(python)
    if "idempotency_key" in tool.given:
        arguments["idempotency_key"] = str(record.provider_key)
    if "timeout" in tool.given:
        arguments["timeout"] = timeout
    return arguments


def send(visit: Visit, tool: Tool, record: Record, python: dict[str, Any]) -> Requests:
    """Send under a committed intent and record what came of it."""
    execution = visit.execution
    if not execution.may_send():
        yield Block(lambda: not_sent(visit, record.id))
        raise LeaseLost("too little of the lease was left to start an effect")
    limits = yield Block(lambda: visit.tool_limits(tool))
    failpoint("effect.before_send")
    try:
        answer = yield Call(
            tool.fn, given(tool, record, python, limits.timeout), tool.is_async, limits.timeout
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
        raise suspend(visit, BackOff(pause(verdict, limits, looks or 1), f"{tool.name}: {message}"))
    # Fresh limits: a changed retry limit acts on this try already.
    limits = yield Block(lambda: visit.tool_limits(tool, fresh=True))
    tries = record.tries + 1
    if verdict.verdict is Verdict.RETRY and tries < limits.max_attempts:
        bump = int(tool.cached_errors and not record.earlier_send_open)
        yield Block(lambda: _outcome(visit, record, OpStatus.RETRY, None, kind, message, bump=bump))
        raise suspend(visit, BackOff(pause(verdict, limits, tries), f"{tool.name}: {message}"))
    by = "exhausted" if verdict.verdict is Verdict.RETRY else "not_retryable"
    yield Block(lambda: _outcome(visit, record, OpStatus.FAILED, None, kind, message, by=by))
    visit.final_failures[tool.name] = by
    raise ToolFailed(tool.name, kind, message) from error


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


def not_sent(visit: Visit, operation_id: uuid.UUID) -> None:
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
            row, _ = execution.database.until_sure(
                statements.OUTCOME, execution.spilled(parameters), execution.lease
            )
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
    run = execution.lock_run()
    operation = Operation.objects.select_for_update().get(pk=record.id)
    mine = operation.intent_epoch == execution.epoch and operation.intent_worker_id == execution.worker_id
    status = parameters["status"]
    moment = business_now()
    if operation.status == OpStatus.PENDING and mine:
        display, sealed = redaction.split(encoded)
        open_still = status == OpStatus.RETRY and operation.earlier_send_open
        operation.status = OpStatus.PENDING if open_still else status
        if status == OpStatus.DONE:
            operation.result, operation.result_sealed = display, sealed
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
