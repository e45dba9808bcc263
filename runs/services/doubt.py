"""Answer whether an effect happened; state that a worker is gone for good."""

import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from pydantic import ValidationError

from runs import clock, codec, lifecycle, redaction, registry
from runs.errors import Invalid, NotFound, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Evidence, Operation, Run, Worker
from runs.models.evidence import LARGEST
from runs.models.operation import OpStatus
from runs.services import guards
from runs.services.payloads import problems, recordable
from runs.services.verb import (
    Consequence,
    Done,
    effects_of,
    guard,
    line_of,
    lock,
    permit,
    require,
    verb,
)
from runs.states import AttentionKind, Status
from runs.workflow import Tool

#: Settle time of an effect whose tool this process does not know.
DEFAULT_SETTLE = timedelta(seconds=60)

NOT_GIVEN: Any = object()


@dataclass(frozen=True)
class File:
    """A file that a person adds to an answer, read in full: LARGEST bytes at most."""

    name: str
    body: bytes


@guards.guarded("answer_doubt")
@verb
def answer_doubt(
    actor: Actor,
    operation_id: uuid.UUID,
    *,
    seen_version: int | None = None,
    happened: bool,
    result: Any = NOT_GIVEN,
    reference: str = "",
    reason: str = "",
    file: File | None = None,
) -> Done:
    """Say whether an effect in doubt happened; the run goes on once nothing else is in doubt.

    Args:
        result: for “it happened”: what the tool would have returned, by its return type.
        reference: instead of a result, where the tool declares `from_reference`.
        file: what the person saw; kept beside the answer, and never shown within a page.

    “It did not” needs proof that nothing can still land: see `Proof`. Of a run that was killed the answer is recorded, and
    nothing follows from it.

    Raises NotAllowed, NotFound, Stale, StateMismatch (not in doubt, or no proof yet: until when), Invalid (a result that does
    not fit, a file that is empty or too large).
    """
    run, operation = _locked(operation_id)
    permit(actor, "runs.resolve_doubt", run=run)
    guard(run, seen_version)
    answerable(run)
    if operation.status != OpStatus.PENDING:
        by = f" by {operation.settled_by}" if operation.settled_by else ""
        raise StateMismatch(f"{operation.name} is not in doubt any more: recorded as {operation.status}{by}")
    if happened:
        _record_happened(operation, actor, result, reference)
    else:
        _record_not_happened(operation, actor)
    kept = None if file is None else _kept(operation, actor, file)
    answer = "it happened" if happened else "it did not happen"
    lifecycle.append_event(
        run,
        "doubt_answered",
        actor,
        reason,
        operation=str(operation.pk),
        tool=operation.name,
        happened=happened,
        reference=operation.provider_ref,
        result=codec.digest(operation.result) if happened else None,
        evidence=kept,
    )
    if run.is_terminal:
        return Done(run, f"Recorded: {answer}.")
    if not lifecycle.rearm_after_outcome(run, actor) and run.attention_kind == AttentionKind.IN_DOUBT:
        lifecycle.ask_doubt(run, lifecycle.pending_effects(run)[0], actor)
    return Done(run, f"Recorded: {answer}.")


def answerable(run: Run) -> None:
    """Raise StateMismatch unless somebody is asked, or a kill left the question behind."""
    if run.status != Status.CANCELLED:
        require(run, "resolve_doubt")


def _kept(operation: Operation, actor: Actor, file: File) -> dict[str, Any]:
    """Keep a file as evidence; what the event says of it. Raises Invalid."""
    if not 0 < len(file.body) <= LARGEST:
        raise Invalid(f"the file must hold something, and at most {LARGEST // 1024:,} KB")
    # A path that a browser sent along, or one made to deceive, would be somebody's download.
    name = codec.clean_text(file.name.replace("\\", "/").rpartition("/")[2], 200) or "file"
    digest = hashlib.sha256(file.body).hexdigest()
    row = Evidence.objects.create(
        run_id=operation.run_id,
        operation=operation,
        name=name,
        sha256=digest,
        body=file.body,
        actor_id=actor.id,
        actor=actor.name,
    )
    return {"id": str(row.pk), "name": name, "sha256": digest, "bytes": len(file.body)}


def _locked(operation_id: uuid.UUID) -> tuple[Run, Operation]:
    found = Operation.objects.filter(pk=operation_id).values_list("run_id", flat=True).first()
    if found is None:
        raise NotFound(f"there is no operation {operation_id}")
    run = lock(found)
    return run, Operation.objects.select_for_update().get(pk=operation_id)


def tool_of(operation: Operation) -> Tool | None:
    """The tool of an effect; None for `ctx.once` and for a tool that this process does not know (any more)."""
    try:
        return registry.tool(operation.name)
    except registry.UnknownWorkflow:
        return None


def gets_no_key(operation: Operation) -> bool:
    """Whether the tool certainly never told its provider the operation's key, so that nobody can look for it there."""
    tool = tool_of(operation)
    return tool is not None and "idempotency_key" not in tool.given


def _record_happened(operation: Operation, actor: Actor, result: Any, reference: str) -> None:
    encoded = recordable(_result(tool_of(operation), result, reference), "the result", "answer")
    operation.result, operation.result_sealed = redaction.split(encoded)
    operation.provider_ref = codec.clean_text(reference, 500) or operation.provider_ref
    operation.status, operation.finished_at = OpStatus.DONE, clock.now()
    operation.found_out()
    operation.settled_by = actor.name
    operation.save()


def _result(tool: Tool | None, result: Any, reference: str) -> Any:
    """What the tool would have returned. Raises Invalid."""
    if result is NOT_GIVEN:
        if not reference:
            raise Invalid("“it happened” needs the result, or a reference")
        if tool is None or tool.from_reference is None:
            raise Invalid("a reference alone is not enough for this tool: give its result")
        try:
            result = tool.from_reference(reference)
        except (ValueError, LookupError) as error:
            raise Invalid(f"the reference is not acceptable: {error}") from None
    if tool is None:
        return result
    try:
        return tool.returns.validate_python(result)
    except ValidationError as error:
        raise Invalid(problems(error, "the result")) from None


def _record_not_happened(operation: Operation, actor: Actor) -> None:
    proof = proof_of(operation)
    if not proof.accepted:
        raise StateMismatch(f"“it did not happen” is not accepted yet: {proof.sentence}")
    operation.status = OpStatus.RETRY
    operation.generation += not operation.earlier_send_open
    operation.found_out()
    operation.settled_by = actor.name
    operation.save()


@dataclass(frozen=True)
class Proof:
    """Whether “it did not happen” can be true for good: the sender has ended and the settle time has passed since."""

    accepted: bool
    sentence: str
    accepted_from: datetime | None = None
    """None while nobody knows that the sender has ended."""


def proof_of(operation: Operation) -> Proof:
    """What is known about the last send of an effect in doubt."""
    assert operation.intent_worker_id is not None, "the table's constraint: pending has an intent"
    reaped = Worker.objects.filter(pk=operation.intent_worker_id).values_list("reaped_at", flat=True).first()
    ended = min((at for at in (operation.call_ended_at, reaped) if at is not None), default=None)
    if ended is None:
        return Proof(
            False,
            "the worker that sent it was not seen to end and may still act; wait for it, or declare it gone if you know so",
        )
    tool = tool_of(operation)
    start = ended + (tool.settle if tool else DEFAULT_SETTLE)
    if start > clock.now():
        return Proof(False, f"its request may still land until {start:%Y-%m-%d %H:%M:%S %Z}", start)
    return Proof(True, "the sender has ended and its request can no longer land", start)


def preview_answer_doubt(operation: Operation) -> Consequence:
    """What the two answers would do now; the sentence says whether “it did not” would be accepted."""
    run = operation.run
    effects = effects_of(run)
    return Consequence(
        f"“It happened” records the result and the run goes on. “It did not”: {proof_of(operation).sentence}.",
        kept=effects.done,
        again=(line_of(operation, why="if you say that it did not happen"),),
        again_title="Runs again if it did not happen",
        unknown_title="Unknown until you answer",
        unknown=effects.unknown,
    )


# --- workers ---------------------------------------------------------------------------------------------------------


@verb
def declare_gone(actor: Actor, worker_id: uuid.UUID, *, reason: str) -> Worker:
    """State that a worker that nobody reaps (a lost host) is gone for good; its runs are taken over.

    From then on “it did not happen” can be proved for what it sent: whoever says this answers for it. Said twice, it changes
    nothing.

    Raises NotAllowed, NotFound, StateMismatch (it still beats), Invalid (no reason).
    """
    permit(actor, "runs.declare_gone")
    if not reason.strip():
        raise Invalid("say how you know that it is gone")
    worker = Worker.objects.select_for_update().filter(pk=worker_id).first()
    if worker is None:
        raise NotFound(f"there is no worker {worker_id}")
    if worker.reaped_at is not None:
        return worker
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_worker SET closed_at = coalesce(closed_at, statement_timestamp()), gone_by = %s,"
            " reaped_at = statement_timestamp()"
            " WHERE id = %s AND (closed_at IS NOT NULL OR beat_until < statement_timestamp())",
            [actor.name, worker_id],
        )
        if not cursor.rowcount:
            raise StateMismatch(f"worker {worker} still beats: stop it first, then it ends by itself")
    AuditEvent.objects.create(
        kind="worker_declared_gone",
        target=f"worker {worker_id}",
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason,
        old={"closed_at": worker.closed_at.isoformat() if worker.closed_at else None},
        new={"gone_by": actor.name},
    )
    for queue in set(Run.objects.filter(worker_id=worker_id).values_list("queue", flat=True)):
        lifecycle.notify_due(queue)
    worker.refresh_from_db()
    return worker


def preview_declare_gone(worker: Worker) -> Consequence:
    """What `declare_gone` would do now."""
    runs = Run.objects.filter(worker_id=worker.pk).count()
    doubtful = Operation.objects.filter(status=OpStatus.PENDING, intent_worker_id=worker.pk)
    return Consequence(
        f"Other workers take its {runs} runs over. If it does act again, an effect may be repeated.",
        unknown=tuple(
            line_of(one, why="it may still be sent, or land") for one in doubtful.order_by("started_at")[:20]
        ),
    )
