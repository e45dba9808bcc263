"""Effects: the approval in front, the intent, and then the sending, once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runs import codec, redaction, waits
from runs.engine import statements
from runs.engine.database import cold
from runs.engine.doubt import ABSENT, settle_pending
from runs.engine.execution import Record, dumps
from runs.engine.questions import refuse_within, respond
from runs.engine.requests import BackOff, Block, OpenWait, Requests, compare, instead, suspend
from runs.engine.sending import arguments_to_send, not_sent, send
from runs.engine.values import arguments_of, failed, parse
from runs.errors import Cancelled, Rejected
from runs.failpoints import failpoint
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.workflow import Tool

if TYPE_CHECKING:
    from runs.engine.visit import Visit


def provider_key(run_id: uuid.UUID, step_seq: int, position: str, generation: int) -> uuid.UUID:
    """The key that a provider sees: of the operation's identity and its generation, so that any worker makes the same."""
    return uuid.uuid5(run_id, f"{step_seq}/{position}/{generation}")


def effect(
    visit: Visit,
    tool: Tool,
    position: str,
    ordinal: int,
    python: dict[str, Any],
    encoded: Any,
    *,
    compensates: uuid.UUID | None = None,
    on_question: Callable[..., Any] | None = None,
) -> Requests:
    """Carry out a forward effect or a compensation, once; its parsed result."""
    refuse_within()
    digest = codec.digest(encoded)
    record = visit.records.get(position)
    # Once an effect is recorded its approval is not looked at again, and is not unused for that.
    visit.used.add(f"{position}/approval")
    if record is not None:
        compare(record, Kind.EFFECT, tool.name, digest, instead(visit, encoded))
        # The approval in front of it belongs to it, also where nobody looks at it again.
        visit.used.add(_gate_position(position))
    if record is not None and record.status == OpStatus.DONE:
        return parse(tool.returns, tool.name, record.true_result)
    if record is not None and record.status == OpStatus.FAILED:
        raise failed(record)
    if record is not None and record.status == OpStatus.PENDING:
        place = yield from visit.take_place(tool)
        try:
            settled = yield from settle_pending(visit, tool, record, python, encoded)
            if settled is not ABSENT:
                return parse(tool.returns, tool.name, settled)
            # Re-stamped: send again under the same key.
            sent_arguments = yield Block(lambda: arguments_to_send(record.id, tool, python))
            return (yield from send(visit, tool, record, sent_arguments))
        finally:
            visit.leave_place(place)
    if visit.execution.cancel_requested and not visit.execution.compensating:
        raise Cancelled
    approval: Record | None = None
    if not visit.execution.compensating and _is_guarded(visit, tool, position):
        approval = yield from _gate(visit, tool, position, ordinal, encoded, on_question)
    approved = None
    if approval is not None:
        approved = codec.encode(approval.true_result["arguments"])
        python = arguments_of(tool, approved)
        if codec.digest(approved) == digest:
            approved = None
    generation = record.generation if record else 0
    key = provider_key(visit.execution.run_id, visit.execution.step_seq, position, generation)
    # Before the intent, never after: a run that has begun an effect does not stand still over it.
    place = yield from visit.take_place(tool)
    try:
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
        return (yield from send(visit, tool, sent, python))
    finally:
        visit.leave_place(place)


def _gate_position(position: str) -> str:
    return f"{position}/approval"


def _is_guarded(visit: Visit, tool: Tool, position: str) -> bool:
    """Whether people may have to approve it: by its code, by what is recorded, or by a policy made of data."""
    if tool.approval is not None or _gate_position(position) in visit.records:
        return True
    approvals: Any = waits.kind(Kind.APPROVAL)
    return bool(approvals.guards(tool.name, visit.execution.workflow))


def _gate(
    visit: Visit,
    tool: Tool,
    position: str,
    ordinal: int,
    encoded: Any,
    on_question: Callable[..., Any] | None,
) -> Requests:
    """The approval in front of an effect: None if none is needed, else its settled record."""
    gate_position = _gate_position(position)
    record = visit.records.get(gate_position)
    digest = codec.digest(encoded)
    approvals: Any = waits.kind(Kind.APPROVAL)
    if record is None:
        needed = yield Block(
            lambda: cold(
                lambda unsure: approvals.required(
                    tool.approval or "",
                    codec.decode(encoded),
                    tool=tool.name,
                    workflow=visit.execution.workflow,
                ),
                visit.execution.lease,
            )
        )
        if not needed:
            return None
    else:
        compare(record, Kind.APPROVAL, tool.name, digest, instead(visit, encoded))
    if record is not None and record.status == OpStatus.OPEN:
        yield from respond(visit, record.id, gate_position, on_question)
    if record is None or record.status == OpStatus.OPEN:
        summary = tool.summary(**arguments_of(tool, encoded)) if tool.summary else f"Call {tool.name}"
        options = {
            "title": summary,
            "why": visit.reason,
            "schema": tool.arguments.model_json_schema(),
            "policy": tool.approval or "",
            "tool": tool.name,
            "arguments": encoded,
            "answers": on_question is not None,
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
            tuple(decision.get("questions", ())),
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
            return execution.write_within(statements.INTENT, parameters)

        row = execution.under_lock(transact, None)
    if row is None:
        not_sent(visit, operation_id)
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
