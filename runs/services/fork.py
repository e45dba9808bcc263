"""Make a new run that begins at a visit of another one."""

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from pydantic import ValidationError

from runs import clock, codec, history, lifecycle, redaction, registry
from runs.engine.execution import record_attempt
from runs.errors import Invalid, StateMismatch
from runs.lifecycle import Actor
from runs.models import Attempt, Message, Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.registry import COMPENSATE
from runs.services.payloads import problems, recordable
from runs.services.retry import no_fork_under_way
from runs.services.state import checked_state, merged, nobody_in_doubt
from runs.services.verb import (
    OF_AN_EFFECT,
    Consequence,
    Done,
    Line,
    agree,
    effects_of,
    guard,
    line_of,
    lock,
    permit,
    require,
    verb,
)
from runs.states import BY_PEOPLE, Outcome, Status
from runs.workflow import Workflow

NOT_GIVEN: Any = object()
#: So many effects a person can choose about one by one.
MOST_CHOICES = 100

#: The fork reads what the run's rows point to, for as long as it is there itself.
_BLOBS = """
INSERT INTO runs_blob_use (run_id, sha256) SELECT %(fork)s, sha256 FROM runs_blob_use WHERE run_id = %(source)s
ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True)
class Visit:
    """A visit at which a run can be forked."""

    number: int
    step: str
    ended_at: datetime | None
    """None while the run stands there."""
    outcome: str
    """Of its last attempt; empty where there was none."""


@dataclass(frozen=True)
class ForkPlan(Consequence):
    """What a fork would begin with. `optional` are those of `kept` that may also run again, if a person says so."""

    optional: tuple[Line, ...] = ()


@verb
def fork(
    actor: Actor,
    run_id: uuid.UUID,
    *,
    visit: int,
    reason: str,
    again: Collection[uuid.UUID] = (),
    input: Any = NOT_GIVEN,
    state: Any = None,
    version: int | None = None,
    seen_version: int | None = None,
    seen_plan: str | None = None,
) -> Done:
    """Start a new run at `visit` of this one, with the state that it had there; `Done.run` is the new run.

    What happened in that visit and later is reused: the fork finds the recorded answers, and the keys under which they were
    given, at the same visit and position, and repeats nothing. Its code must come to the same calls, as in any re-execution;
    where it does not, the fork stops and asks a person.

    Args:
        again: operations that are not reused but happen again, under new keys; each that has happened must be named.
        input: another input, by the workflow's type. state: another state, encoded. version: of the workflow.

    The fork of a child run has no parent. Signals that nobody used are not copied.

    Raises NotAllowed, NotFound, Stale, StateMismatch (unfinished and not in attention, in doubt, being undone, another fork
    goes on), Invalid (no reason, no such visit or step, an unfit input or state, something not confirmed).
    """
    source = lock(run_id)
    permit(actor, "runs.fork_run", run=source)
    if state is not None or input is not NOT_GIVEN:
        permit(actor, "runs.view_payload", run=source)
    guard(source, seen_version)
    plan = preview_fork(source, visit)
    agree(plan, seen_plan, again)
    if not reason.strip():
        raise Invalid("say why the run is forked")
    unknown = set(again) - {line.operation for line in (*plan.optional, *plan.again, *plan.unknown)}
    if unknown:
        raise Invalid("what is to run again must be one of the operations of that visit or a later one")
    made = _run(actor, source, visit, input, version)
    # Another input may be about another subject.
    permit(actor, "runs.fork_run", run=made)
    _begin(actor, made, source, state)
    reused = _copy(made, source, visit, set(again))
    told = {
        "visit": visit,
        "step": made.step,
        "reused": reused,
        "again": [
            line.name for line in (*plan.optional, *plan.again, *plan.unknown) if line.operation in again
        ],
    }
    lifecycle.append_event(
        made,
        "started",
        actor,
        reason,
        workflow=made.workflow,
        version=made.version,
        input=made.input_digest,
        forked_from=str(source.pk),
        **told,
    )
    lifecycle.append_event(source, "forked", actor, reason, run=str(made.pk), **told)
    lifecycle.notify_due(made.queue)
    return Done(
        made, f"Run {str(made.pk)[:13]} begins at step {made.step}, as visit {visit} of this run did."
    )


# --- the plan ----------------------------------------------------------------------------------------------------------


def preview_fork(source: Run, visit: int) -> ForkPlan:
    """What `fork` would do now. Raises StateMismatch where it would be refused, Invalid for a visit that there is not."""
    require(source, "fork")
    if source.status == Status.ATTENTION:
        nobody_in_doubt(effects_of(source))
        if source.compensating:
            raise StateMismatch("its effects are being undone: that comes to an end first")
    no_fork_under_way(source)
    step = step_of(source, visit)
    earlier: list[Operation] = []
    later: list[Operation] = []
    undone: set[uuid.UUID] = set()
    chosen = Operation.objects.filter(run_id=source.pk, kind__in=[Kind.EFFECT, Kind.CHILD], forgotten=False)
    for one in chosen.only(*OF_AN_EFFECT, "copied_from").order_by("step_seq", "ordinal"):
        if one.compensates is not None:
            if one.status == OpStatus.DONE:
                undone.add(one.compensates)
            continue
        (later if one.step_seq >= visit else earlier).append(one)
    if len(later) > MOST_CHOICES:
        raise StateMismatch(
            f"more than {MOST_CHOICES} effects happened since visit {visit}: choose a later one"
        )
    kept = [
        line_of(one, why="before that visit: the state holds what came of it")
        for one in earlier
        if one.status == OpStatus.DONE
    ]
    optional, again, unknown = [], [], []
    for one in later:
        if one.pk in undone:
            again.append(
                line_of(one, why="it was undone by the cancel, so that it cannot be reused", repeats=True)
            )
        elif one.status == OpStatus.DONE:
            optional.append(line_of(one, why="reused, unless you say that it is to run again"))
        elif one.status == OpStatus.PENDING:
            why = "the run was killed while it was in doubt; the fork would send it under a new key"
            unknown.append(line_of(one, why=why, repeats=True))
        elif one.kind == Kind.CHILD and one.status != OpStatus.OPEN:
            again.append(
                line_of(one, why="its child runs are started anew, with all that they do", repeats=True)
            )
        elif one.status == OpStatus.FAILED:
            again.append(
                line_of(
                    one,
                    why="it failed for certain; tried anew, unless something after it in its visit is reused",
                )
            )
    return ForkPlan(
        f"A new run begins at step {step}, with the state of visit {visit}. This one stays as it is.",
        kept=(*kept, *optional),
        again=tuple(again),
        unknown=tuple(unknown),
        optional=tuple(optional),
    )


def step_of(run: Run, visit: int) -> str:
    """The step of a visit. Raises Invalid where the run never was there, or undid effects in it."""
    if visit == run.step_seq:
        step: str | None = run.step
    else:
        tries = Attempt.objects.filter(run_id=run.pk, step_seq=visit).order_by("-attempt_no")
        step = tries.values_list("step", flat=True).first()
    if step is None or step == COMPENSATE:
        raise Invalid(f"this run has no visit {visit} of a step of its workflow")
    return step


def visits(run: Run, *, before: int | None = None, most: int = 50) -> list[Visit]:
    """The visits at which a run can be forked, newest first, those before one. The primary key's index, read backwards."""
    tries = Attempt.objects.filter(run_id=run.pk).exclude(step=COMPENSATE)
    if before is not None:
        tries = tries.filter(step_seq__lt=before)
    last = tries.order_by("-step_seq", "-attempt_no").distinct("step_seq").defer("traceback", "state_after")
    found = [
        Visit(
            one.step_seq,
            one.step,
            None if one.step_seq == run.step_seq and not run.is_terminal else one.ended_at,
            one.outcome,
        )
        for one in last[:most]
    ]
    stands_in_new = run.step != COMPENSATE and (not found or found[0].number < run.step_seq)
    if before is None and stands_in_new:
        found.insert(0, Visit(run.step_seq, run.step, None, ""))
    return found[:most]


def state_at(run: Run, visit: int) -> history.Restored:
    """The state with which a visit was executed last: what the visit before left, or what people edited within it.

    Raises StateMismatch where it cannot be read.
    """
    last = (
        Attempt.objects.filter(run_id=run.pk, step_seq=visit).order_by("-attempt_no").only("outcome").first()
    )
    number = 0 if last is None else last.attempt_no if last.outcome in BY_PEOPLE else last.attempt_no - 1
    if last is not None and last.outcome == Outcome.SKIPPED:
        number = last.attempt_no - 1  # what the step began with, not what a person said that it left
    try:
        back = history.restored(run.pk, visit, number, open_seal=True)
    except ValueError as error:
        raise StateMismatch(f"its state at visit {visit} cannot be read: {error}") from None
    return back or history.Restored({}, {}, 0, 0)


# --- the new run -------------------------------------------------------------------------------------------------------


def definition_of(source: Run, version: int | None) -> Workflow | None:
    """The workflow that the fork executes; None where this process does not know it, and need not."""
    try:
        return registry.workflow(source.workflow, version or source.version)
    except registry.UnknownWorkflow as error:
        if version is not None:
            raise Invalid(str(error)) from None
        return None


def _run(actor: Actor, source: Run, visit: int, input: Any, version: int | None) -> Run:
    """The fork, not yet saved. Raises Invalid."""
    definition = definition_of(source, version)
    step = step_of(source, visit)
    if version is not None and definition is not None and step not in definition.steps:
        raise Invalid(f"{source.workflow} version {version} has no step {step!r}")
    now = clock.now()
    made = Run(
        workflow=source.workflow,
        version=version or source.version,
        queue=source.queue,
        priority=source.priority,
        subject=source.subject,
        tenant=source.tenant,
        started_by_id=actor.id,
        started_by_name=actor.name,
        created_at=now,
        visit_started_at=now,
        # As much time as the run had.
        deadline_at=now + (source.deadline_at - source.created_at) if source.deadline_at else None,
        forked_from=source.pk,
        forked_visit=visit,
        input=source.input,
        input_sealed=source.input_sealed,
        input_digest=source.input_digest,
        external=source.external,
        step=step,
        step_seq=visit,
        wake_at=now,
        sort_at=now - timedelta(minutes=source.priority),
    )
    if input is not NOT_GIVEN:
        _other_input(made, definition, input)
    return made


def _other_input(made: Run, definition: Workflow | None, input: Any) -> None:
    if definition is None:
        raise Invalid(f"this process does not know {made.workflow}, so that no other input can be checked")
    try:
        value = definition.validate_input(input)
    except ValidationError as error:
        raise Invalid(problems(error, "the input")) from None
    encoded = recordable(value, "the input", "input")
    made.input, made.input_sealed = redaction.split(encoded)
    made.input_digest = codec.digest(encoded)
    if definition.subject:
        made.subject = codec.clean_text(definition.subject(value), 200)


def _begin(actor: Actor, made: Run, source: Run, state: Any) -> None:
    """Save the fork, with the state it begins with as the first row of its history."""
    before = state_at(source, made.step_seq)
    true = before.true if state is None else merged(before, checked_state(state))
    made.attempt_no = 1
    kept = history.written(made.pk, true, made.step_seq, 1)
    made.state, made.state_sealed = kept.state, kept.state_sealed
    made.save(force_insert=True)
    with connection.cursor() as cursor:
        cursor.execute(_BLOBS, {"fork": made.pk, "source": source.pk})
    record_attempt(
        made,
        Outcome.FORKED,
        closed_by=actor.name,
        error=f"forked by {actor.name} from run {source.pk}",
        state_after=(kept.after, kept.after_sealed),
    )
    said = Message.objects.filter(run_id=source.pk, step_seq__lt=made.step_seq).order_by("id")
    Message.objects.bulk_create(
        [_moved(one, Message, run_id=made.pk) for one in said.iterator(chunk_size=500)], batch_size=500
    )


def _moved(row: Any, model: Any, **changes: Any) -> Any:
    """The row again, under a new id, which comes after those made before."""
    values = {field.attname: getattr(row, field.attname) for field in model._meta.concrete_fields}
    return model(**(values | {"id": new_id()} | changes))


def _copy(made: Run, source: Run, visit: int, again: Collection[uuid.UUID]) -> list[str]:
    """Copy what is reused, with everything that its visit did before it; the names of what is reused.

    An effect was based on what stands before it in its visit: asked anew, that might lead to another call.
    """
    rows = Operation.objects.filter(run_id=source.pk, step_seq__gte=visit, forgotten=False, compensates=None)
    rows = rows.filter(status__in=[OpStatus.DONE, OpStatus.FAILED])
    undone = Operation.objects.filter(run_id=source.pk, status=OpStatus.DONE).exclude(compensates=None)
    without = set(again) | {one for one in undone.values_list("compensates", flat=True) if one is not None}
    by_visit: dict[int, list[Operation]] = {}
    for one in rows.order_by("step_seq", "ordinal"):
        by_visit.setdefault(one.step_seq, []).append(one)
    copies: list[Operation] = []
    reused: list[str] = []
    for some in by_visit.values():
        chosen = [one for one in some if _reused(one, without)]
        if not chosen:
            continue
        reused += [one.name for one in chosen]
        last = max(one.ordinal for one in chosen)
        gates = {f"{one.position}/approval" for one in some if one.pk in without}
        copies += [
            _copied(one, made)
            for one in some
            if one.ordinal <= last and one.pk not in without and one.position not in gates
        ]
    Operation.objects.bulk_create(copies, batch_size=200)
    return reused


def _reused(one: Operation, without: Collection[uuid.UUID]) -> bool:
    return one.kind in (Kind.EFFECT, Kind.CHILD) and one.status == OpStatus.DONE and one.pk not in without


def _copied(one: Operation, made: Run) -> Operation:
    """An operation as the fork finds it. Undoing it is the business of the run that did it; its sends are told of there."""
    copied: Operation = _moved(
        one,
        Operation,
        run_id=made.pk,
        attempt_no=1,
        copied_from=one.copied_from or one.pk,
        compensate_with="",
        rest="",
        earlier_sends=None,
    )
    return copied
