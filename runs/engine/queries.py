"""Queries, model requests and waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runs import codec, redaction
from runs.engine import statements
from runs.engine.classify import Verdict, classify, pause
from runs.engine.execution import Record, dumps
from runs.engine.lease import clock
from runs.engine.questions import refuse_within
from runs.engine.requests import BackOff, Block, Call, OpenWait, Requests, compare, instead, suspend
from runs.engine.values import failed, parse, record_answer
from runs.errors import Cancelled, ToolFailed, WaitExpired
from runs.failpoints import failpoint
from runs.kin import children
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.workflow import Tool

if TYPE_CHECKING:
    from runs.engine.visit import Visit


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
        compare(record, kind, tool.name, digest, instead(visit, encoded))
        if record.status == OpStatus.DONE:
            return parse(tool.returns, tool.name, record.true_result)
        if record.status == OpStatus.FAILED:
            raise failed(record)
    if visit.execution.cancel_requested and not visit.execution.compensating:
        raise Cancelled
    limits = yield Block(lambda: visit.tool_limits(tool))
    place = (yield from visit.take_place(tool)) if kind == Kind.QUERY else None
    begun = clock()
    arguments = dict(python)
    if "timeout" in tool.given:
        arguments["timeout"] = limits.timeout
    failpoint("query.before")
    try:
        try:
            answer = yield Call(tool.fn, arguments, tool.is_async, limits.timeout)
        finally:
            visit.leave_place(place)
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
            raise suspend(visit, BackOff(pause(verdict, fresh, tries), f"{tool.name}: {message}")) from error
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
    refuse_within()
    record = visit.records.get(want.position)
    same = want.instead or instead(visit, want.request)
    if record is None or record.status == OpStatus.OPEN or _waited_in_vain(record):
        if record is not None:
            compare(record, want.kind, want.name, want.digest, same)
            want.existing = record.id
        elif visit.execution.cancel_requested and not visit.execution.compensating:
            raise Cancelled
        raise suspend(visit, want)
    compare(record, want.kind, want.name, want.digest, same)
    if record.status == OpStatus.FAILED and record.error_type != children.FAILED:
        raise WaitExpired(record.error or f"{want.name} did not come in time")
    return record


def _waited_in_vain(record: Record) -> bool:
    """Closed as its run ended, which somebody has retried: it is opened again. People's decisions are asked for anew by them."""
    return record.status == OpStatus.CLOSED and record.kind != Kind.APPROVAL
