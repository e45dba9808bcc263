"""What pages and commands read: lists, one run with all that belongs to it. Why a run is not moving: `runs.pages.reasons`.

Each function makes a fixed number of queries, however many rows it answers.
"""

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Case, Model, Q, QuerySet, TextField, Value, When
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KT
from django.db.models.functions import Lower, Right

from runs import access, clock, content, policies
from runs.models import Attempt, Event, Grant, LogLine, Message, Operation, Run, Signal
from runs.models.operation import Kind, OpStatus
from runs.pages import reasons
from runs.search import matching
from runs.states import FailureKind, Status

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


def runs(
    user: access.Person | None = None,
    *,
    status: str = "",
    workflow: str = "",
    subject: str = "",
    search: str = "",
) -> QuerySet[Run]:
    """Runs without their payloads, newest first; "" means any. Page it by key (`id`). A search is made at once.

    With a user: those that this person may see.
    """
    found = Run.objects.defer(*PAYLOADS).order_by("-id")
    if user is not None:
        found = access.visible(user, found)
    if status:
        found = found.filter(status=status)
    if workflow:
        found = found.filter(workflow=workflow)
    if subject:
        # The index is on the text in lower case, which the search uses as well.
        found = found.alias(low=Lower("subject")).filter(subject=subject, low=Lower(Value(subject)))
    if search:
        found = found.filter(pk__in=matching(search, user))
    return found


def dead_letters(
    user: access.Person | None = None, *, workflow: str = "", subject: str = "", search: str = ""
) -> QuerySet[Run]:
    """Failed runs that no workflow asked to fail: somebody should look at each. Newest first."""
    failed = runs(user, status=Status.FAILED, workflow=workflow, subject=subject, search=search)
    return failed.exclude(failure_kind=FailureKind.DECLARED)


def attention() -> QuerySet[Run]:
    """Runs that only a person can move on, oldest first."""
    return runs(status=Status.ATTENTION).order_by("id")


def counts(*, workflow: str = "") -> dict[str, int]:
    """Runs by status, each counted up to COUNT_LIMIT + 1. One query."""
    return overview(workflow=workflow)[0]


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
    return overview()[1]


def counted(*rows: QuerySet[Model]) -> list[int]:
    """How many each of these are, up to COUNT_LIMIT + 1. One query."""
    parts: list[str] = []
    parameters: list[Any] = []
    for one in rows:
        try:
            sql, given = one.order_by().values("pk")[: COUNT_LIMIT + 1].query.sql_with_params()
        except EmptyResultSet:
            sql, given = "SELECT WHERE false", ()
        parts.append(f"(SELECT count(*) FROM ({sql}) AS counted)")  # noqa: S608 (made by Django)
        parameters += given
    if not parts:
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(parts), parameters)
        return list(cursor.fetchone())


#: So many runs of a part are counted one by one.
FEW = 20_000


def _overview_of_part(user: access.Person, workflow: str) -> tuple[dict[str, int], Needs]:
    """`overview` of what this person may see."""
    theirs = access.visible(user, Run.objects.all())
    asked = Operation.objects.filter(kind=Kind.APPROVAL, status=OpStatus.OPEN)
    asked = access.visible(user, asked, "approvals.view_approval", through="run__")
    names = [status.value for status in Status]
    # No index has the statuses of the runs with a subject: each count by itself would read all of these.
    by_subject = any(grant.scope == Grant.Scope.SUBJECT for grant in access.scopes(user, "runs.view_run"))
    if by_subject and (few := _few(theirs, workflow)) is not None:
        chosen, every = few
        needs = Needs(every[Status.ATTENTION], every["dead"], *counted(asked))
        return {name: min(chosen[name], COUNT_LIMIT + 1) for name in names}, needs
    narrowed = theirs.filter(workflow=workflow) if workflow else theirs
    attention, dead, approvals, *by_status = counted(
        theirs.filter(status=Status.ATTENTION),
        theirs.filter(status=Status.FAILED).exclude(failure_kind=FailureKind.DECLARED),
        asked,
        *(narrowed.filter(status=status) for status in Status),
    )
    return dict(zip(names, by_status, strict=True)), Needs(attention, dead, approvals)


_BY_STATUS = """
SELECT status, count(*) FILTER (WHERE %s IN ('', workflow)), count(*), count(*) FILTER (WHERE failure_kind <> 'declared') FROM
"""


def _few(runs: QuerySet[Run], workflow: str) -> tuple[Counter[str], Counter[str]] | None:
    """By status how many of the runs are of the workflow ("": of any), and how many there are, "dead" letters too; one query.

    None where they are more than FEW.
    """
    columns = ("status", "failure_kind", "workflow")
    sql, given = runs.order_by().values_list(*columns)[: FEW + 1].query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"{_BY_STATUS} ({sql}) AS seen GROUP BY status", [workflow, *given])
        found = cursor.fetchall()
    every = Counter({status: number for status, _, number, _ in found})
    if every.total() > FEW:
        return None
    every["dead"] = sum(dead for status, _, _, dead in found if status == Status.FAILED)
    every = Counter({name: min(number, COUNT_LIMIT + 1) for name, number in every.items()})
    return Counter({status: number for status, number, _, _ in found}), every


def overview(user: access.Person | None = None, *, workflow: str = "") -> tuple[dict[str, int], Needs]:
    """`counts` and what needs people (of all workflows), in one query. With a user: of what this person may see."""
    if user is not None and access.condition(user) is not None:
        return _overview_of_part(user, workflow)
    narrowed = "AND workflow = %(workflow)s " if workflow else ""
    counted = ", ".join(
        f"(SELECT count(*) FROM (SELECT 1 FROM runs_run WHERE status = '{status.value}' {narrowed}LIMIT %(limit)s) AS counted)"  # noqa: S608 - constants
        for status in Status
    )
    with connection.cursor() as cursor:
        cursor.execute(f"{_NEEDS}, {counted}", {"limit": COUNT_LIMIT + 1, "workflow": workflow})
        attention, dead, approvals, *by_status = cursor.fetchone()
    return dict(zip([status.value for status in Status], by_status, strict=True)), Needs(
        attention, dead, approvals
    )


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
        (SELECT concat_ws('/', closed_at, reaped_at, beat_at, beat_until > statement_timestamp())
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
    why: reasons.Why
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
    overrides: policies.Overrides
    """Limits that act, as they were read for it."""


def detail(
    run_id: uuid.UUID,
    user: access.Person | None = None,
    *,
    part: str = "",
    before: Place | None = None,
    beside: Mapping[str, Combinable] | None = None,
) -> RunDetail:
    """One run for its page, the newest attempts or those before a place. At most eight queries.

    `beside` is read with the run, as attributes of it. With a user: without what this person may not see. Raises
    Run.DoesNotExist.
    """
    run = Run.objects.annotate(read_at=clock.Now(), **(beside or {})).defer(*PAYLOADS).get(pk=run_id)
    if user is not None:
        run = content.shown(user, run)
    tries = Attempt.objects.filter(run_id=run_id).order_by("-step_seq", "-attempt_no")
    if before is not None:
        tries = tries.filter(
            Q(step_seq__lt=before.visit) | Q(step_seq=before.visit, attempt_no__lt=before.number)
        )
    narrow = tries.defer("traceback", "state_after").annotate(trace_end=Right("traceback", TRACEBACK))
    attempts = content.like(run, narrow[: ATTEMPTS + 1])
    more, attempts = len(attempts) > ATTEMPTS, attempts[:ATTEMPTS]
    last = attempts[-1] if attempts else None
    operations = content.like(run, _operations(run, attempts, user, newest=before is None))
    all_there = before is None and len(operations) <= ROWS
    facts = reasons.Facts.gather(
        [run],
        user,
        now=run.read_at,
        attempts=attempts[:1] if before is None else None,
        operations=operations if all_there else None,
    )
    return RunDetail(
        run=run,
        now=run.read_at,
        why=facts.why(run),
        attempts=attempts,
        earlier=Place(last.step_seq, last.attempt_no) if more and last else None,
        operations=operations[:ROWS],
        operations_cut=len(operations) > ROWS,
        limit=reasons.limit_of_step(run, facts.overrides),
        record=content.like(run, _record(run_id, part)),
        overrides=facts.overrides,
    )


def _operations(
    run: Run, attempts: Sequence[Attempt], user: access.Person | None, *, newest: bool
) -> Sequence[Operation]:
    """Operations of the visits of these attempts, with those still going on if they are the newest; up to ROWS + 1."""
    chosen = Operation.objects.filter(run_id=run.pk)
    if attempts:
        chosen = chosen.filter(step_seq__gte=attempts[-1].step_seq)
        if not newest:
            chosen = chosen.filter(step_seq__lte=attempts[0].step_seq)
    elif not newest:
        return []
    latest = in_brief(chosen, user).order_by("-step_seq", "-ordinal")[: ROWS + 1]
    return sorted(latest, key=lambda one: (one.step_seq, one.ordinal, one.started_at))


def in_brief(operations: QuerySet[Operation], user: access.Person | None = None) -> QuerySet[Operation]:
    """`operations` without their payloads, but with `verdict`, what people decided where it is an approval, and `going_on`."""
    decided = Case(
        When(kind=Kind.APPROVAL, then=KT("result__verdict")), default=Value(""), output_field=TextField()
    )
    return reasons.with_children(operations.defer(*OPERATION_PAYLOADS).annotate(verdict=decided), user)


def _record(run_id: uuid.UUID, part: str) -> list[Any]:
    """The newest rows of one part of the record, at most ROWS; nothing for a name that is no part."""
    if part not in RECORD:
        return []
    model, key = RECORD[part]
    return list(model._default_manager.filter(run_id=run_id).order_by(f"-{key}")[:ROWS])
