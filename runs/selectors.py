"""What pages and commands read: lists, one run with all that belongs to it, and why a run is not moving.

Each function makes a fixed number of queries, however many rows it answers.
"""

import hashlib
import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Case, IntegerField, Model, Q, QuerySet, TextField, Value, When
from django.db.models.expressions import RawSQL
from django.db.models.fields.json import KT
from django.db.models.functions import Lower, Right

from runs import clock, policies, registry, waits
from runs.models import Attempt, Event, LogLine, Message, Operation, Policy, Run, Signal, Worker
from runs.models.operation import Kind, OpStatus
from runs.search import matching
from runs.states import AttentionKind, FailureKind, Hold, Status
from runs.workflow import Retry

#: Rows of one kind that the page of a run shows; more is said to be more.
ROWS = 100
#: Attempts on one page of a run; older ones are on the next.
ATTEMPTS = 25
#: Characters from the end of a traceback that the page of a run shows; the attempt's own page has all of it.
TRACEBACK = 6000
#: A count stops here: "1,000+".
COUNT_LIMIT = 1000
#: So many child runs of a run are counted by status.
CHILDREN_COUNTED = 10_000

#: Payloads may be megabytes; lists do not read them.
PAYLOADS = (
    "input",
    "input_sealed",
    "state",
    "state_sealed",
    "result",
    "result_sealed",
    "external",
    "event_head",
)
OPERATION_PAYLOADS = (
    "request",
    "request_sealed",
    "approved",
    "approved_sealed",
    "response",
    "response_sealed",
    "result",
    "result_sealed",
)


# --- lists -------------------------------------------------------------------------------------------------------------


def runs(*, status: str = "", workflow: str = "", subject: str = "", search: str = "") -> QuerySet[Run]:
    """Runs without their payloads, newest first; "" means any. Page it by key (`id`). A search is made at once."""
    found = Run.objects.defer(*PAYLOADS).order_by("-id")
    if status:
        found = found.filter(status=status)
    if workflow:
        found = found.filter(workflow=workflow)
    if subject:
        # The index is on the text in lower case, which the search uses as well.
        found = found.alias(low=Lower("subject")).filter(subject=subject, low=Lower(Value(subject)))
    if search:
        found = found.filter(pk__in=matching(search))
    return found


def dead_letters(*, workflow: str = "", subject: str = "", search: str = "") -> QuerySet[Run]:
    """Failed runs that no workflow asked to fail: somebody should look at each. Newest first."""
    failed = runs(status=Status.FAILED, workflow=workflow, subject=subject, search=search)
    return failed.exclude(failure_kind=FailureKind.DECLARED)


def attention() -> QuerySet[Run]:
    """Runs that only a person can move on, oldest first."""
    return runs(status=Status.ATTENTION).order_by("id")


def counts(*, workflow: str = "") -> dict[str, int]:
    """Runs by status, each counted up to COUNT_LIMIT + 1. One query."""
    narrowed = "AND workflow = %s " if workflow else ""
    one = f"SELECT %s, count(*) FROM (SELECT 1 FROM runs_run WHERE status = %s {narrowed}LIMIT %s) AS counted"  # noqa: S608 - constants
    parameters: list[str | int] = []
    for status in Status:
        parameters += [status.value, status.value, *([workflow] if workflow else []), COUNT_LIMIT + 1]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join([one] * len(Status)), parameters)
        return dict(cursor.fetchall())


_NEEDS = """
SELECT
    (SELECT count(*) FROM (SELECT FROM runs_run WHERE status = 'attention' LIMIT %(limit)s) AS counted),
    (SELECT count(*) FROM (
        SELECT FROM runs_run WHERE status = 'failed' AND failure_kind <> 'declared' LIMIT %(limit)s) AS counted),
    (SELECT count(*) FROM (
        SELECT FROM runs_operation WHERE status = 'open' AND kind = 'approval' LIMIT %(limit)s) AS counted)
"""


@dataclass(frozen=True)
class Needs:
    """How many things wait for a person, each counted up to COUNT_LIMIT + 1."""

    attention: int
    dead_letters: int
    approvals: int

    @property
    def any(self) -> bool:
        return bool(self.attention or self.dead_letters or self.approvals)


def needs() -> Needs:
    """What needs people. One query."""
    with connection.cursor() as cursor:
        cursor.execute(_NEEDS, {"limit": COUNT_LIMIT + 1})
        return Needs(*cursor.fetchone())


# --- one run -----------------------------------------------------------------------------------------------------------

#: Parts of a run's record that its page shows one at a time, with what each is read from and its order.
RECORD: dict[str, tuple[type[Model], str]] = {
    "messages": (Message, "id"),
    "logs": (LogLine, "id"),
    "signals": (Signal, "id"),
    "events": (Event, "seq"),
}


def _counted(table: str, more: str = "") -> str:
    """SQL that counts rows of the run, up to COUNT_LIMIT + 1."""
    return f"(SELECT count(*) FROM (SELECT FROM {table} WHERE run_id = %(run)s{more} LIMIT {COUNT_LIMIT + 1}) AS counted)"  # noqa: S608 - constants


# Whatever changes in an earlier visit is written to the run's row as well, by an event: only the present one is looked at
# row by row. A run may have tens of thousands of rows, and its page asks every three seconds.
_VERSION = """
SELECT
    (SELECT concat_ws('/', xmin, wake_at <= agentops_now(),
        (SELECT concat_ws('/', closed_at, reaped_at, beat_until > statement_timestamp())
         FROM runs_worker WHERE id = runs_run.worker_id),
        EXISTS (SELECT FROM runs_worker WHERE runs_run.queue = ANY (queues)
            AND closed_at IS NULL AND NOT draining AND beat_until > statement_timestamp()))
     FROM runs_run WHERE id = %(run)s),
    (SELECT sum(xmin::text::bigint) FROM runs_policy),
    (SELECT sum(xmin::text::bigint) FROM runs_operation WHERE run_id = %(run)s AND step_seq >= {visit}),
    (SELECT concat_ws('/', sum(xmin::text::bigint),
        (SELECT count(*) FROM runs_message WHERE run_id = %(run)s AND step_seq >= {visit}),
        (SELECT count(*) FROM runs_log_line WHERE run_id = %(run)s AND step_seq >= {visit}))
     FROM runs_signal WHERE run_id = %(run)s),
    (SELECT coalesce(jsonb_object_agg(status, jsonb_build_array(number, versions)), '{{}}') FROM (
        SELECT status, count(*) AS number, sum(version) AS versions FROM (
            SELECT c.status, c.xmin::text::bigint AS version FROM runs_operation o
            JOIN runs_run c ON c.parent_operation_id = o.id
            WHERE o.run_id = %(run)s AND o.kind = 'child' LIMIT %(children)s) AS counted GROUP BY status) AS by_status),
    {operation}, {attempt}, {failed}, {message}, {log_line}, {signal}, {event},
    (SELECT count(*) FROM runs_operation WHERE run_id = %(run)s AND status = 'pending'),
    (SELECT coalesce(sum(children), 0) FROM runs_operation WHERE run_id = %(run)s AND kind = 'child')
""".format(  # noqa: S608 - constants
    visit="(SELECT step_seq FROM runs_run WHERE id = %(run)s)",
    failed=_counted("runs_attempt", " AND outcome IN ('failed', 'timed_out', 'crashed')"),
    **{
        name: _counted(f"runs_{name}")
        for name in ("operation", "attempt", "message", "log_line", "signal", "event")
    },
)


@dataclass(frozen=True)
class Version:
    """What the page of a run was made from: `tag` changes whenever something on it would."""

    tag: str
    children_by_status: Mapping[str, int]
    """Child runs that it has started, of the first CHILDREN_COUNTED."""
    operations: int
    attempts: int
    failed: int
    messages: int
    logs: int
    signals: int
    events: int
    pending: int
    children: int
    """All of them."""


def version(run_id: uuid.UUID) -> Version:
    """The version of a run's data, one query. Rows are told apart by the transaction that wrote them (`xmin`).

    Raises Run.DoesNotExist.
    """
    with connection.cursor() as cursor:
        cursor.execute(_VERSION, {"run": run_id, "children": CHILDREN_COUNTED})
        row = cursor.fetchone()
    if row[0] is None:
        raise Run.DoesNotExist
    tag = hashlib.sha256(repr(row).encode()).hexdigest()[:20]
    by_status = {status: number for status, (number, _) in json.loads(row[4]).items()}
    return Version(tag, by_status, *row[5:])


@dataclass(frozen=True)
class Place:
    """Where in a run's attempts a page begins: before this visit and try."""

    visit: int
    number: int

    def __str__(self) -> str:
        return f"{self.visit}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Place | None":
        """None for what is no place."""
        visit, _, number = text.partition(".")
        small = visit.isascii() and number.isascii() and len(text) < 20
        return cls(int(visit), int(number)) if small and visit.isdigit() and number.isdigit() else None


@dataclass(frozen=True)
class RunDetail:
    """A run and a page of what belongs to it."""

    run: Run
    now: datetime
    why: "Why"
    attempts: Sequence[Attempt]
    """Newest first, one page of them; `traceback` holds its last TRACEBACK characters, `state_after` is not read."""
    earlier: Place | None
    """Where the page of earlier attempts begins; None where there are none."""
    operations: Sequence[Operation]
    """Of the visits that `attempts` shows, oldest first, as `in_brief` gives them."""
    operations_cut: bool
    """There are more than shown."""
    limit: int
    """Tries that the present step may spend."""
    record: list[Any]
    """Rows of the chosen part of the record, newest first."""


def detail(run_id: uuid.UUID, *, part: str = "", before: Place | None = None) -> RunDetail:
    """One run for its page, the newest attempts or those before a place. At most eight queries.

    Raises Run.DoesNotExist.
    """
    run = Run.objects.annotate(read_at=clock.Now()).defer(*PAYLOADS).get(pk=run_id)
    tries = Attempt.objects.filter(run_id=run_id).order_by("-step_seq", "-attempt_no")
    if before is not None:
        tries = tries.filter(
            Q(step_seq__lt=before.visit) | Q(step_seq=before.visit, attempt_no__lt=before.number)
        )
    narrow = tries.defer("traceback", "state_after").annotate(trace_end=Right("traceback", TRACEBACK))
    attempts = list(narrow[: ATTEMPTS + 1])
    more, attempts = len(attempts) > ATTEMPTS, attempts[:ATTEMPTS]
    last = attempts[-1] if attempts else None
    operations = _operations(run, attempts, newest=before is None)
    all_there = before is None and len(operations) <= ROWS
    facts = _Facts.gather(
        [run],
        now=run.read_at,
        attempts=attempts[:1] if before is None else None,
        operations=operations if all_there else None,
    )
    return RunDetail(
        run=run,
        now=run.read_at,
        why=_why(run, facts),
        attempts=attempts,
        earlier=Place(last.step_seq, last.attempt_no) if more and last else None,
        operations=operations[:ROWS],
        operations_cut=len(operations) > ROWS,
        limit=_limit_of_step(run, facts.overrides),
        record=_record(run_id, part),
    )


def _operations(run: Run, attempts: Sequence[Attempt], *, newest: bool) -> Sequence[Operation]:
    """Operations of the visits of these attempts, with those still going on if they are the newest; up to ROWS + 1."""
    chosen = Operation.objects.filter(run_id=run.pk)
    if attempts:
        chosen = chosen.filter(step_seq__gte=attempts[-1].step_seq)
        if not newest:
            chosen = chosen.filter(step_seq__lte=attempts[0].step_seq)
    elif not newest:
        return []
    latest = in_brief(chosen).order_by("-step_seq", "-ordinal")[: ROWS + 1]
    return sorted(latest, key=lambda one: (one.step_seq, one.ordinal, one.started_at))


def in_brief(operations: QuerySet[Operation]) -> QuerySet[Operation]:
    """`operations` without their payloads, but with `verdict`, what people decided where it is an approval, and `going_on`."""
    decided = Case(
        When(kind=Kind.APPROVAL, then=KT("result__verdict")), default=Value(""), output_field=TextField()
    )
    return with_children(operations.defer(*OPERATION_PAYLOADS).annotate(verdict=decided))


def with_children(operations: QuerySet[Operation]) -> QuerySet[Operation]:
    """`operations` with `going_on`: of an open wait for child runs, how many have not ended, up to COUNT_LIMIT + 1; else None."""
    counted = RawSQL(
        "CASE WHEN runs_operation.status = 'open' AND runs_operation.kind = 'child' THEN (SELECT count(*) FROM ("
        "SELECT FROM runs_run c WHERE c.parent_operation_id = runs_operation.id AND c.finished_at IS NULL LIMIT %s) AS some_of"
        ") END",
        [COUNT_LIMIT + 1],
        output_field=IntegerField(),
    )
    return operations.annotate(going_on=counted)


def _record(run_id: uuid.UUID, part: str) -> list[Any]:
    """The newest rows of one part of the record, at most ROWS; nothing for a name that is no part."""
    if part not in RECORD:
        return []
    model, key = RECORD[part]
    return list(model._default_manager.filter(run_id=run_id).order_by(f"-{key}")[:ROWS])


# --- why is it not moving? -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Why:
    """Why an unfinished run is not moving, and when a worker next looks at it by itself (None: when somebody acts)."""

    sentence: str
    next_at: datetime | None = None
    url: str = ""
    """Where it can be settled, if a page for that is known."""

    def __str__(self) -> str:
        if self.next_at is None:
            return self.sentence
        return f"{self.sentence}; next look at {self.next_at:%Y-%m-%d %H:%M:%S} UTC"


def why_not_moving(run: Run) -> str:
    """One sentence with the next wake time; empty for a finished run."""
    return str(why(run))


def why(run: Run) -> Why:
    return reasons([run])[run.pk]


def reasons(some: Sequence[Run]) -> dict[uuid.UUID, Why]:
    """The reason of each run: at most six queries, however many runs."""
    facts = _Facts.gather(some)
    return {run.pk: _why(run, facts) for run in some}


@dataclass(frozen=True)
class _Facts:
    """What the sentences need, read at once."""

    now: datetime
    overrides: policies.Overrides
    waits: dict[uuid.UUID, list[Operation]]
    retries: dict[uuid.UUID, Operation]
    errors: dict[uuid.UUID, Attempt]
    workers: dict[uuid.UUID, Worker]
    served: frozenset[str]

    @classmethod
    def gather(
        cls,
        some: Sequence[Run],
        *,
        now: datetime | None = None,
        attempts: Sequence[Attempt] | None = None,
        operations: Iterable[Operation] | None = None,
    ) -> "_Facts":
        """`now`, `attempts` (the last one of each run) and `operations` save a query each, where they are known already."""
        by_status: dict[str, list[Run]] = defaultdict(list)
        for run in some:
            by_status[run.status].append(run)
        retrying = [run.pk for run in by_status[Status.RETRYING]]
        waiting = [run.pk for run in by_status[Status.WAITING]]
        holders = [run.worker_id for run in by_status[Status.RUNNING] if run.worker_id]
        opened: dict[uuid.UUID, list[Operation]] = defaultdict(list)
        retries: dict[uuid.UUID, Operation] = {}
        if waiting or retrying:
            if operations is None:
                chosen = Operation.objects.filter(
                    run_id__in=[*waiting, *retrying], status__in=[OpStatus.OPEN, OpStatus.RETRY]
                )
                operations = with_children(chosen.defer("request", "response", "result")).order_by(
                    "started_at"
                )
            for operation in operations:
                if operation.status == OpStatus.OPEN:
                    opened[operation.run_id].append(operation)
                elif operation.status == OpStatus.RETRY:
                    retries[operation.run_id] = operation
        now = now or clock.now()
        # A run that a worker has is not due, whatever its wake time says.
        due = any(
            run.wake_at is not None and run.wake_at <= now for run in some if run.status != Status.RUNNING
        )
        return cls(
            now=now,
            overrides=policies.load(),
            waits=opened,
            retries=retries,
            errors=_last_attempts(retrying) if attempts is None else {one.run_id: one for one in attempts},
            workers=Worker.objects.in_bulk(holders) if holders else {},
            served=_served_queues() if due else frozenset(),
        )


def _last_attempts(run_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Attempt]:
    wanted = list(run_ids)
    if not wanted:
        return {}
    last = (
        Attempt.objects.filter(run_id__in=wanted)
        .order_by("run_id", "-step_seq", "-attempt_no")
        .distinct("run_id")
    )
    return {attempt.run_id: attempt for attempt in last.defer("traceback", "state_after")}


def _served_queues() -> frozenset[str]:
    """Queues that a live worker looks at."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT unnest(queues) FROM runs_worker"
            " WHERE closed_at IS NULL AND NOT draining AND beat_until > statement_timestamp()"
        )
        return frozenset(row[0] for row in cursor.fetchall())


def _why(run: Run, facts: _Facts) -> Why:
    if run.is_terminal:
        return Why("")
    if run.status == Status.RUNNING:
        return _why_running(run, facts)
    if run.status == Status.ATTENTION:
        return Why(_attention(run))
    if run.held_by:
        return Why(_held(run, facts))
    match run.status:
        case Status.WAITING:
            found = _why_waiting(run, facts)
        case Status.RETRYING:
            found = Why(_retrying(run, facts), run.wake_at)
        case Status.CANCELLING:
            found = Why(f"cancelled by {run.cancel_requested_by}; its effects are being undone", run.wake_at)
        case _:
            found = Why(f"step {run.step} begins later", run.wake_at)
    if run.wake_at is not None and run.wake_at <= facts.now:
        return _due(run, facts, found)
    return found


def _due(run: Run, facts: _Facts, found: Why) -> Why:
    """Due, and yet no worker has it."""
    if run.queue not in facts.served:
        return Why(f"due, but no live worker looks at queue {run.queue}: start one", run.wake_at)
    if run.status == Status.WAITING:
        return Why("its answer has arrived or its time is up; waiting for a free worker", run.wake_at)
    return Why("due; waiting for a free worker", run.wake_at)


def _held(run: Run, facts: _Facts) -> str:
    if run.held_by == Hold.PAUSED:
        policy = facts.overrides.get(("workflow", run.workflow))
        told = f" by {policy.changed_by}" if policy and policy.paused and policy.changed_by else ""
        told += f" ({policy.pause_reason})" if policy and policy.paused and policy.pause_reason else ""
        return f"workflow {run.workflow} is paused{told}; it goes on when somebody resumes it"
    return f"no live worker can execute step {run.step} of {run.workflow} version {run.version}; it goes on when one starts"


#: Workers close an attempt at its limit, and others do two seconds later; what stands longer is stuck.
OVERDUE = timedelta(seconds=10)


def _why_running(run: Run, facts: _Facts) -> Why:
    worker = facts.workers.get(run.worker_id) if run.worker_id else None
    name = str(run.worker_id)[:13]
    if worker is None or worker.closed_at is not None:
        return Why(f"its worker {name} has ended; another one takes the run over")
    cancel = (
        f", then ends: cancelled by {run.cancel_requested_by}"
        if run.cancel_requested_at and not run.compensating
        else ""
    )
    doing = (
        "undoes its effects" if run.compensating else f"executes step {run.step}, attempt {run.attempt_no}"
    )
    late = ", overdue: nobody has ended it at its limit" if _is_overdue(run, facts.now) else ""
    return Why(f"worker {name} {doing}{cancel}{late}", run.wake_at)


def _is_overdue(run: Run, now: datetime) -> bool:
    return run.wake_at is not None and run.wake_at < now - OVERDUE


def _attention(run: Run) -> str:
    cancel = f"; it was cancelled by {run.cancel_requested_by}" if run.cancel_requested_at else ""
    match run.attention_kind:
        case AttentionKind.IN_DOUBT:
            return f"{run.reason}; somebody has to say whether it did{cancel}"
        case AttentionKind.DIVERGED:
            return f"{run.reason}; somebody has to put its code right and force it on, or cancel it{cancel}"
    return f"{run.reason}; somebody has to look, then force it on{cancel}"


def _why_waiting(run: Run, facts: _Facts) -> Why:
    described = [waits.kind(operation.kind).describe(operation) for operation in facts.waits.get(run.pk, [])]
    if not described:
        return Why("its answer has arrived; waiting for a free worker", run.wake_at)
    url = next((one.url for one in described if one.url), "")
    return Why("waiting for " + " and for ".join(one.sentence for one in described), run.wake_at, url)


def _retrying(run: Run, facts: _Facts) -> str:
    operation, attempt = facts.retries.get(run.pk), facts.errors.get(run.pk)
    if operation is not None and operation.tries:
        limit = _limit_of_tool(operation.name, facts.overrides)
        return f"{operation.name} failed {operation.tries} of {limit} times ({_short(operation.error)}) and is tried again"
    error = f" ({_short(attempt.error)})" if attempt is not None and attempt.error else ""
    if run.failures:
        return f"step {run.step} failed {run.failures} of {_limit_of_step(run, facts.overrides)} times{error} and is tried again"
    return f"step {run.step} is tried again{error}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:159] + "…"


def _limit_of_tool(name: str, overrides: policies.Overrides) -> int:
    try:
        return policies.for_tool(registry.tool(name), overrides).max_attempts
    except registry.UnknownWorkflow:
        return Retry().max_attempts


def _limit_of_step(run: Run, overrides: policies.Overrides) -> int:
    try:
        return policies.for_step(registry.step(run.workflow, run.version, run.step), overrides).max_attempts
    except registry.UnknownWorkflow:
        return Retry().max_attempts


# --- limits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LimitRow:
    """What limits a workflow, step or tool has: by its code, and as they are now."""

    scope: str
    name: str
    of_code: policies.Limits
    effective: policies.Limits
    policy: Policy | None

    @property
    def seen_revision(self) -> int:
        """Guard of a change against a stale page."""
        return self.policy.revision if self.policy else 0


def limits() -> list[LimitRow]:
    """Every step of every workflow (its newest version), then every tool. One query."""
    overrides = policies.load()
    rows = []
    for workflow in registry.workflows():
        for step in workflow.steps.values():
            name = f"{workflow.name}/{step.name}"
            code, now = policies.for_step(step, {}), policies.for_step(step, overrides)
            rows.append(LimitRow(Policy.Scope.STEP, name, code, now, overrides.get(("step", name))))
    for tool in registry.tools():
        code, now = policies.for_tool(tool, {}), policies.for_tool(tool, overrides)
        rows.append(LimitRow(Policy.Scope.TOOL, tool.name, code, now, overrides.get(("tool", tool.name))))
    return rows
