"""Start a run; start many."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import batched
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import BigIntegerField, BinaryField, Func, JSONField, TextField, Value
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from runs import access, clock, codec, lifecycle, policies, redaction, registry
from runs.clock import Now
from runs.errors import Conflict, Invalid, NotAllowed
from runs.lifecycle import Actor
from runs.models import Policy, Run, StartKey
from runs.services.payloads import parse_json, problems, recordable
from runs.services.verb import permit, permit_somewhere, verb
from runs.workflow import Workflow

BATCH = 500


@dataclass(frozen=True)
class Started:
    """`created` is False where the start key had been used for the same input before.

    `deleted`: that run ended so long ago that retention has deleted it; of `run` there are its id, workflow and key.
    """

    run: Run
    created: bool
    deleted: bool = False


@dataclass(frozen=True)
class Options:
    """What a run is given besides its input. None: the workflow's own."""

    subject: str | None = None
    tenant: str = ""
    priority: int = 0
    queue: str | None = None
    deadline_at: datetime | None = None


@verb
def start(
    actor: Actor,
    workflow: str,
    input: Any,
    *,
    start_key: str | None = None,
    subject: str | None = None,
    tenant: str = "",
    priority: int | None = None,
    queue: str | None = None,
    deadline_at: datetime | None = None,
    version: int | None = None,
    reason: str = "",
) -> Started:
    """Start a run, due at once; with a start key that was used before, return that run.

    Args:
        input: what the workflow's input model accepts.
        start_key: makes starting idempotent within the workflow, for ever: also when that run has been deleted since.
        priority: 0–9, each point a minute's head start; None: the workflow's, as it is limited now.

    Raises:
        Invalid: unknown workflow, or an input that does not fit (the message names the path).
        Conflict: the start key was used for another input; `existing` is that run.
    """
    permit_somewhere(actor, "runs.start_run", system=True)
    definition = definition_of(workflow, version)
    options = Options(subject, tenant, _priority(definition, priority), queue, deadline_at)
    run = build(actor, definition, input, start_key, options, clock.now())
    permit(actor, "runs.start_run", run=run, system=True)
    existing = _insert(run)
    if existing is not None:
        _same_input(actor, existing, run)
        return existing
    lifecycle.append_event(run, "started", actor, reason, **_started_data(run))
    lifecycle.notify_due(run.queue)
    return Started(run, created=True)


def _insert(run: Run) -> Started | None:
    """Insert the run, or return the one that has its start key; of ten at one instant, one inserts."""
    if run.start_key is None:
        run.save(force_insert=True)
        return None
    if existing := _used(run.workflow, [run.start_key]).get(run.start_key):
        return existing
    try:
        with transaction.atomic():
            run.save(force_insert=True)
    except IntegrityError:
        if existing := _used(run.workflow, [run.start_key]).get(run.start_key):
            return existing
        raise
    return None


def _used(workflow: str, keys: list[str]) -> dict[str, Started]:
    """By start key, the runs that these keys have started, those included that retention has deleted.

    Runs are looked at first: a run is deleted in the transaction that keeps its key, so what is not found then is either new
    or found by the second look. The other way round a key could slip through between the two.
    """
    used = {}
    for run in Run.objects.filter(workflow=workflow, start_key__in=keys):
        used[str(run.start_key)] = Started(run, created=False)
    for key in StartKey.objects.filter(workflow=workflow, start_key__in=[k for k in keys if k not in used]):
        gone = Run(pk=key.run_id, workflow=workflow, start_key=key.start_key, input_digest=key.input_digest)
        used[key.start_key] = Started(gone, created=False, deleted=True)
    return used


def _same_input(actor: Actor, existing: Started, wanted: Run) -> None:
    """Raise Conflict where the key was used for another input; by which run, for whoever may see that one."""
    if existing.run.input_digest == wanted.input_digest:
        return
    used = f"the start key {wanted.start_key!r} of {wanted.workflow} was used for another input"
    if actor.user is not None and not access.may(actor.user, "runs.view_run", existing.run):
        raise Conflict(used)
    since = ", which has been deleted since" if existing.deleted else ""
    raise Conflict(f"{used}, by run {existing.run.pk}{since}", None if existing.deleted else existing.run)


def _started_data(run: Run) -> dict[str, Any]:
    return {"workflow": run.workflow, "version": run.version, "input": run.input_digest}


def definition_of(name: str, version: int | None = None) -> Workflow:
    """The workflow that a new run would execute. Raises Invalid."""
    try:
        definition = registry.workflow(name, version)
    except registry.UnknownWorkflow as error:
        raise Invalid(str(error)) from None
    if definition.start is None:
        raise Invalid(f"workflow {name!r} has no start step")
    return definition


def build(
    actor: Actor, definition: Workflow, input: Any, start_key: str | None, options: Options, now: datetime
) -> Run:
    """A run that is not yet saved, its input validated. Raises Invalid."""
    if options.priority not in range(10):
        raise Invalid(f"priority is {options.priority}; it must be from 0 to 9")
    if start_key is not None and not (0 < len(start_key) <= 500 and codec.clean_text(start_key) == start_key):
        raise Invalid("a start key is text of 1 to 500 characters")
    if options.deadline_at is not None and options.deadline_at.tzinfo is None:
        raise Invalid(
            f"the deadline {options.deadline_at.isoformat()} has no time zone: 02:30 can be twice in a night, or never"
        )
    if options.deadline_at is not None and options.deadline_at <= now:
        raise Invalid(f"the deadline {options.deadline_at:%Y-%m-%d %H:%M:%S %Z} has passed")
    try:
        value = definition.validate_input(input)
    except ValidationError as error:
        raise Invalid(problems(error, "the input")) from None
    encoded = recordable(value, "the input", "input")
    display, sealed = redaction.split(encoded)
    subject = options.subject
    if subject is None:
        subject = definition.subject(value) if definition.subject else ""
    deadline = options.deadline_at or (now + definition.deadline if definition.deadline else None)
    assert definition.start is not None
    return Run(
        workflow=definition.name,
        version=definition.version,
        queue=options.queue or definition.queue,
        priority=options.priority,
        subject=codec.clean_text(subject, 200),
        tenant=codec.clean_text(options.tenant, 200),
        start_key=start_key,
        started_by_id=actor.id,
        started_by_name=actor.name,
        created_at=now,
        visit_started_at=now,
        deadline_at=deadline,
        input=display,
        input_sealed=sealed,
        input_digest=codec.digest(encoded),
        step=definition.start.name,
        wake_at=now,
        sort_at=now - timedelta(minutes=options.priority),
    )


def _priority(definition: Workflow, given: int | None) -> int:
    """What a run is given, or what its workflow gives to those that are given none: its override before its code."""
    if given is not None:
        return given
    override = Policy.objects.filter(scope=Policy.Scope.WORKFLOW, name=definition.name)
    row = override.annotate(read_at=Now()).first()
    overrides = {} if row is None else {("workflow", definition.name): policies.acting(row, row.read_at)}
    return policies.for_workflow(definition, overrides).priority


# --- many ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    """A line that started no run; `line` counts from 1."""

    line: int
    reason: str


@dataclass
class Batch:
    """What became of some lines: runs started now, runs that the same start keys had started before, refused lines."""

    lines: int
    started: list[uuid.UUID]
    existing: list[uuid.UUID]
    refused: list[Refused]


def start_many(
    actor: Actor,
    workflow: str,
    lines: Iterable[str],
    *,
    start_key: Callable[[int], str] | None = None,
    tenant: str = "",
    priority: int | None = None,
    queue: str | None = None,
    version: int | None = None,
    reason: str = "",
    batch_size: int = BATCH,
) -> Iterator[Batch]:
    """Start one run for each line of JSON, a transaction for each batch; empty lines are passed over.

    A line that is refused stops nothing: it comes back with its number and the reason. `start_key` makes a key from a line's
    number, so that the same file can be started again after an interruption.

    Raises NotAllowed and Invalid (unknown workflow) before the first batch.
    """
    permit_somewhere(actor, "runs.start_run", system=True)
    definition = definition_of(workflow, version)
    options = Options(None, tenant, _priority(definition, priority), queue, None)
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    return (
        _start_batch(actor, definition, batch, start_key, options, reason)
        for batch in batched(numbered, batch_size)
    )


@verb
def _start_batch(
    actor: Actor,
    definition: Workflow,
    lines: tuple[tuple[int, str], ...],
    start_key: Callable[[int], str] | None,
    options: Options,
    reason: str,
) -> Batch:
    now, batch, wanted = clock.now(), Batch(len(lines), [], [], []), {}
    for number, line in lines:
        try:
            key = start_key(number) if start_key else None
            run = build(actor, definition, parse_json(line, "the line"), key, options, now)
            permit(actor, "runs.start_run", run=run, system=True)
            run.event_seq, run.event_head = 1, _first_head(run, actor, reason)
            wanted[number] = run
        except (Invalid, NotAllowed) as error:
            batch.refused.append(Refused(number, str(error)))
    used = _used(definition.name, _keys(wanted.values()))
    # What is known is not tried: retention may delete that run just now, and its key would be free in this table.
    Run.objects.bulk_create(
        [run for run in wanted.values() if run.start_key not in used], ignore_conflicts=True
    )
    inserted = set(
        Run.objects.filter(pk__in=[run.pk for run in wanted.values()]).values_list("pk", flat=True)
    )
    used |= _used(
        definition.name,
        _keys(run for run in wanted.values() if run.pk not in inserted and run.start_key not in used),
    )
    for number, run in wanted.items():
        if run.pk in inserted:
            batch.started.append(run.pk)
            continue
        existing = used[str(run.start_key)]
        try:
            _same_input(actor, existing, run)
            batch.existing.append(existing.run.pk)
        except Conflict as error:
            batch.refused.append(Refused(number, str(error)))
    _append_started([run for run in wanted.values() if run.pk in inserted], actor, reason)
    return batch


def _keys(runs: Iterable[Run]) -> list[str]:
    return [run.start_key for run in runs if run.start_key is not None]


def _first_head(run: Run, actor: Actor, reason: str) -> Func:
    """The head of a chain that begins as the run is inserted: updating hundreds of new rows at once would double them."""
    text = Func(
        Value(1),
        Value(run.created_at),
        Value("started"),
        Value(actor.id, output_field=BigIntegerField()),
        Value(actor.name),
        Value(reason),
        Value(_started_data(run), output_field=JSONField()),
        function="agentops_event_text",
        output_field=TextField(),
    )
    return Func(Value(b""), text, function="agentops_event_head", output_field=BinaryField())


def _append_started(runs: list[Run], actor: Actor, reason: str) -> None:
    """The first event of each run, whose head is in the run already, in one statement."""
    if not runs:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_event (run_id, seq, at, kind, actor_id, actor, reason, data, head)"
            " SELECT id, event_seq, created_at, 'started', %s, %s, %s, new.data, event_head"
            " FROM unnest(%s::uuid[], %s::jsonb[]) AS new (id, data) JOIN runs_run USING (id)",
            [
                actor.id,
                actor.name,
                reason,
                [run.pk for run in runs],
                [Jsonb(_started_data(run)) for run in runs],
            ],
        )
    lifecycle.notify_due(runs[0].queue)
