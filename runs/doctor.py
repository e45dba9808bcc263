"""`manage.py doctor`: every invariant that data can show, and what is wrong with the installation.

A check is one function that reads one snapshot of the database and says what it found. Checks of other apps stand in their
`doctor.py`. Nothing here writes, and nothing here locks: the whole examination is one REPEATABLE READ, READ ONLY
transaction, so that what two tables say belongs together however busy the database is.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from django.apps import apps
from django.conf import settings
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Model
from django.utils.module_loading import autodiscover_modules

from runs import blobs, codec, history, registry, states
from runs.apps import APPEND_ONLY
from runs.services import retention
from runs.workflow import WORKFLOWS

Severity = Literal["error", "warning"]
ERROR: Severity = "error"
WARNING: Severity = "warning"

#: How many examples of one problem are shown.
SAMPLE = 5


@dataclass(frozen=True)
class Finding:
    """What a check found: how often, some examples, and what to do about it."""

    severity: Severity
    count: int
    sample: list[str]
    advice: str


@dataclass(frozen=True)
class Problem:
    """A finding with the name of the check that made it; the keys of `--json`."""

    check: str
    severity: Severity
    count: int
    sample: list[str]
    advice: str


@dataclass(frozen=True)
class Snapshot:
    """The database as it stood at one moment.

    `grace` is for how many seconds something may look wrong before it counts: a lease, then the sweep that takes over. Ages
    are measured with now(), the transaction's start, which is never later than the snapshot.
    """

    cursor: CursorWrapper
    grace: float

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """All rows of a small answer."""
        self.cursor.execute(sql, {"grace": self.grace, **parameters})
        found: list[tuple[Any, ...]] = self.cursor.fetchall()
        return found

    def stream(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a large answer, read through a cursor in the server a thousand at a time."""
        with connection.chunked_cursor() as cursor:
            cursor.execute(sql)
            while rows := cursor.fetchmany(1000):
                yield from rows

    def find(self, severity: Severity, sql: str, advice: str, **parameters: Any) -> Iterator[Finding]:
        """What `sql` finds: a query whose only column names one thing that is wrong."""
        counted = (
            f"WITH bad (item) AS MATERIALIZED ({sql}) SELECT (SELECT count(*) FROM bad),"
            " ARRAY(SELECT item FROM bad LIMIT %(sample)s)"
        )
        ((count, sample),) = self.rows(counted, sample=SAMPLE, **parameters)
        if count:
            yield Finding(severity, count, sample, advice)

    def collect(self, severity: Severity, items: Iterable[str], advice: str) -> Iterator[Finding]:
        """What Python found, one item for each thing that is wrong."""
        count, sample = 0, []
        for item in items:
            count += 1
            if count <= SAMPLE:
                sample.append(item)
        if count:
            yield Finding(severity, count, sample, advice)


type Check = Callable[[Snapshot], Iterable[Finding]]

#: Of the installation; each works on any database, also on an empty one.
INSTALLATION: list[Check] = []
#: Of the schema: what the data is guarded by.
SCHEMA: list[Check] = []
#: Of the data; they need the schema.
DATA: list[Check] = []


#: Findings of these mean that checks of the data would stumble over what is missing.
INCOMPLETE = frozenset({"migrations", "missing_functions", "missing_columns"})


def installation(function: Check) -> Check:
    INSTALLATION.append(function)
    return function


def schema(function: Check) -> Check:
    SCHEMA.append(function)
    return function


def data(function: Check) -> Check:
    DATA.append(function)
    return function


def load() -> None:
    """Import `doctor.py` of every installed app, which declares its checks."""
    autodiscover_modules("doctor")


def default_grace() -> float:
    """Seconds after which a dead worker's runs have certainly been taken over by one that lives: lease, beats, overrun."""
    grace: float = settings.AGENTOPS_LEASE_SECONDS + 2 * settings.AGENTOPS_BEAT_SECONDS + 2
    return grace


def name_of(check: Check) -> str:
    name: str = check.__name__
    return name


def run_checks(checks: Iterable[Check], at: Snapshot) -> list[Problem]:
    return [
        Problem(name_of(check), found.severity, found.count, found.sample, found.advice)
        for check in checks
        for found in check(at)
    ]


def examine(grace: float | None = None, begun: Callable[[str], None] = lambda name: None) -> list[Problem]:
    """Run every check in one snapshot; `begun` is told the name of each before it starts.

    Where the schema is incomplete, the data is not examined. Not to be called inside a transaction: it begins its own.
    """
    load()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        # The first query takes the snapshot. Taken after slow checks of the installation, it would hold rows that are due
        # since after now(), and they would look as if they were not.
        cursor.execute("SELECT 1")
        at = Snapshot(cursor, default_grace() if grace is None else grace)
        problems: list[Problem] = []
        for check in (*INSTALLATION, *SCHEMA):
            begun(name_of(check))
            problems += run_checks([check], at)
        if any(problem.check in INCOMPLETE for problem in problems):
            advice = (
                "The data was not examined, since the schema is incomplete: put that right, then look again."
            )
            return [*problems, Problem("data", ERROR, len(DATA), [], advice)]
        for check in DATA:
            begun(name_of(check))
            problems += run_checks([check], at)
    return problems


def report(problems: list[Problem]) -> dict[str, Any]:
    """The form of `--json`."""
    return {"ok": is_ok(problems), "problems": [asdict(problem) for problem in problems]}


def is_ok(problems: list[Problem]) -> bool:
    return not any(problem.severity == ERROR for problem in problems)


# --- schema --------------------------------------------------------------------------------------------------------------

FUNCTIONS = (
    "agentops_now",
    "agentops_event_text",
    "agentops_event_head",
    "agentops_append_event",
    "agentops_audit_text",
    "agentops_chain_audit",
    "agentops_append_only",
    "agentops_delete_runs",
    "agentops_check_transition",
    "agentops_limits_now",
    "agentops_under_limit",
    "agentops_tokens",
    "agentops_claim_limited",
    "agentops_rearm_limited",
    "agentops_enter_call",
)
_SCHEMA_ADVICE = (
    "Run `manage.py migrate`; if that says that nothing is left to do, compare with docs/schema.md."
)


@schema
def missing_functions(at: Snapshot) -> Iterator[Finding]:
    """A function that statements and triggers call does not exist."""
    return at.find(
        ERROR,
        "SELECT name || '()' FROM unnest(%(names)s::text[]) AS wanted (name)"
        " WHERE NOT EXISTS (SELECT FROM pg_proc p WHERE p.proname = wanted.name AND pg_function_is_visible(p.oid))",
        _SCHEMA_ADVICE,
        names=list(FUNCTIONS),
    )


@schema
def missing_columns(at: Snapshot) -> Iterator[Finding]:
    """A table, or a column of it, that the models declare is not in the database."""
    wanted = [
        (m._meta.db_table, field.column)
        for m in _models()
        for field in m._meta.concrete_fields
        if field.column
    ]
    return at.find(
        ERROR,
        "SELECT wanted.place || '.' || wanted.name FROM unnest(%(places)s::text[], %(names)s::text[]) AS wanted (place, name)"
        " WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = to_regclass(wanted.place)"
        "   AND a.attname = wanted.name AND NOT a.attisdropped)",
        _SCHEMA_ADVICE,
        places=[table for table, _ in wanted],
        names=[name for _, name in wanted],
    )


def _models() -> list[type[Model]]:
    return [model for label in ("runs", "approvals") for model in apps.get_app_config(label).get_models()]


@schema
def missing_triggers(at: Snapshot) -> Iterator[Finding]:
    """A guard is missing or switched off: an append-only table could be changed, or a status skipped."""
    wanted = [(table, "append_only") for table in APPEND_ONLY]
    wanted += [("runs_run", "state_chart"), ("runs_audit_event", "chain")]
    return at.find(
        ERROR,
        "SELECT wanted.name || ' on ' || wanted.place FROM unnest(%(places)s::text[], %(names)s::text[]) AS wanted (place, name)"
        " WHERE NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass(wanted.place) AND t.tgname = wanted.name"
        "   AND t.tgenabled IN ('O', 'A'))"
        " UNION ALL SELECT 'every trigger: session_replication_role is ' || current_setting('session_replication_role')"
        " WHERE current_setting('session_replication_role') = 'replica'",
        "Switch the trigger on again (ALTER TABLE … ENABLE TRIGGER …), and find out who switched it off.",
        places=[table for table, _ in wanted],
        names=[name for _, name in wanted],
    )


@schema
def state_chart(at: Snapshot) -> Iterator[Finding]:
    """The trigger allows other moves than the chart in the code (`runs.states.TRANSITIONS`)."""
    found = at.rows(
        "SELECT prosrc FROM pg_proc WHERE proname = 'agentops_check_transition' AND pg_function_is_visible(oid)"
    )
    if not found:
        return iter(())  # missing_functions says so
    in_trigger = frozenset(re.findall(r"\('(\w+)', '(\w+)'\)", found[0][0]))
    different = sorted(in_trigger ^ states.allowed_pairs())
    return at.collect(
        ERROR,
        (
            f"{old} to {new}: only in the {'trigger' if (old, new) in in_trigger else 'code'}"
            for old, new in different
        ),
        "Code and database are of different versions: install the code that belongs to the database, or migrate.",
    )


@schema
def missing_constraints(at: Snapshot) -> Iterator[Finding]:
    """A constraint or index that the models declare is not in the database, not valid, or not ready."""
    constraints = [(m._meta.db_table, c.name) for m in _models() for c in m._meta.constraints]
    indexes = [(m._meta.db_table, i.name) for m in _models() for i in m._meta.indexes]
    wanted = constraints + indexes
    return at.find(
        ERROR,
        "SELECT wanted.name || ' on ' || wanted.place FROM unnest(%(places)s::text[], %(names)s::text[]) AS wanted (place, name)"
        " WHERE to_regclass(wanted.place) IS NOT NULL"
        " AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = to_regclass(wanted.place)"
        "   AND c.conname = wanted.name AND c.convalidated)"
        " AND NOT EXISTS (SELECT FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid"
        "   WHERE i.indrelid = to_regclass(wanted.place) AND k.relname = wanted.name AND i.indisvalid AND i.indisready)",
        _SCHEMA_ADVICE,
        places=[table for table, _ in wanted],
        names=[name for _, name in wanted],
    )


@schema
def role_rights(at: Snapshot) -> Iterator[Finding]:
    """The role that web and workers assume may change what is append-only, or does not exist."""
    (exists,) = at.rows("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'agentops_app')")[0]
    if not exists:
        advice = (
            "Create it as a superuser (CREATE ROLE agentops_app NOLOGIN; GRANT it to the login of web and workers), run"
            " `manage.py migrate` again, and set AGENTOPS_DB_ROLE."
        )
        return at.collect(WARNING, ["role agentops_app does not exist"], advice)
    return at.find(
        ERROR,
        "SELECT 'agentops_app: ' || privilege || ' on ' || place FROM unnest(%(places)s::text[]) AS append_only (place),"
        " unnest(ARRAY['UPDATE', 'DELETE', 'TRUNCATE']) AS denied (privilege) WHERE to_regclass(place) IS NOT NULL"
        " AND (has_table_privilege('agentops_app', place, privilege)"
        "   OR (privilege = 'UPDATE' AND has_any_column_privilege('agentops_app', place, 'UPDATE')))",
        "Run `manage.py migrate`, which takes these rights away; the role must not own the tables either.",
        places=list(APPEND_ONLY),
    )


@schema
def retention_function(at: Snapshot) -> Iterator[Finding]:
    """The function that deletes finished runs would not have the rights to, may be called by anybody, or not by workers."""
    return at.find(
        ERROR,
        "SELECT 'agentops_delete_runs: ' || told FROM pg_proc p, LATERAL (VALUES"
        " ('not SECURITY DEFINER', NOT p.prosecdef),"
        " ('owned by another role than runs_run', p.proowner <> (SELECT relowner FROM pg_class"
        "   WHERE oid = to_regclass('runs_run'))),"
        " ('may be called by everybody', EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner)))"
        "   WHERE grantee = 0 AND privilege_type = 'EXECUTE')),"
        " ('may not be called by agentops_app', NOT has_function_privilege((SELECT oid FROM pg_roles"
        "   WHERE rolname = 'agentops_app'), p.oid, 'EXECUTE'))) AS wrong (told, so)"
        " WHERE p.proname = 'agentops_delete_runs' AND pg_function_is_visible(p.oid) AND wrong.so",
        "Run `manage.py migrate` as the owner of the tables, which sets these rights; else see docs/schema.md.",
    )


# --- leases and workers --------------------------------------------------------------------------------------------------

#: Beats are measured in real time, and after a restart of PostgreSQL every worker gets one lease to beat.
_LEASE_OVER = """
    greatest(least(w.closed_at, w.beat_until), pg_postmaster_start_time()) < now() - make_interval(secs => %(grace)s)
"""


@data
def orphaned_lease(at: Snapshot) -> Iterator[Finding]:
    """A run is running, but the lease of its worker is long over."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ' held by worker ' || w.id FROM runs_run r JOIN runs_worker w ON w.id = r.worker_id"
        " WHERE r.status = 'running' AND " + _LEASE_OVER,
        "A worker of any queue takes these runs over within seconds: start one with `manage.py worker`, or look in its log"
        " for take_over.failed.",
    )


@data
def running_without_worker(at: Snapshot) -> Iterator[Finding]:
    """A run is running under a worker that has no row: no sweep finds it."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ' held by worker ' || coalesce(r.worker_id::text, 'nobody') FROM runs_run r"
        " WHERE r.status = 'running' AND NOT EXISTS (SELECT FROM runs_worker w WHERE w.id = r.worker_id)",
        "Rows of workers are never deleted while runs refer to them. Force these runs on in the console.",
    )


@data
def overdue_attempt(at: Snapshot) -> Iterator[Finding]:
    """An attempt is past its deadline under a live worker, and nobody has closed it."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ' at ' || r.step FROM runs_run r JOIN runs_worker w ON w.id = r.worker_id"
        " WHERE r.status = 'running' AND w.closed_at IS NULL AND w.beat_until >= now()"
        " AND r.wake_at < agentops_now() - make_interval(secs => %(grace)s)",
        "Each worker's sweep closes such attempts as timed out: look in the logs of the workers for take_over.failed.",
    )


@data
def bulk_miscounted(at: Snapshot) -> Iterator[Finding]:
    """The numbers of a bulk are not those of its items; where somebody has deleted items, they may be fewer."""
    counted = {
        **{state: f"state = '{state}'" for state in ("out", "done", "refused", "skipped")},
        **{end: f"ended = '{end}'" for end in ("completed", "failed", "cancelled", "deleted")},
    }
    numbers = ", ".join(
        f"count(*) FILTER (WHERE {condition}) AS {name}" for name, condition in counted.items()
    )
    more = " OR ".join(f"i.{name} > b.{name}" for name in counted)
    other = " OR ".join(f"i.{name} <> b.{name}" for name in counted)
    return at.find(
        ERROR,
        f"SELECT 'bulk ' || b.id || ' ' || b.name FROM runs_bulk b JOIN (SELECT bulk_id, count(*) AS total, {numbers}"
        " FROM runs_bulk_item GROUP BY bulk_id) AS i ON i.bulk_id = b.id"
        f" WHERE i.total > b.total OR {more} OR (i.total = b.total AND ({other}))",
        "Nobody but a worker's turn writes these numbers, in the transaction that writes the item: somebody has written to"
        " the database by hand. The items are right; what the page says of the bulk is not.",
    )


@data
def silent_worker(at: Snapshot) -> Iterator[Finding]:
    """A worker has not beaten for long, and its row is still open."""
    return at.find(
        WARNING,
        "SELECT 'worker ' || w.id || ' on ' || w.host FROM runs_worker w WHERE w.closed_at IS NULL AND "
        + _LEASE_OVER,
        "The sweep of any other worker closes these rows: start one with `manage.py worker`.",
    )


@data
def unserved_queue(at: Snapshot) -> Iterator[Finding]:
    """Runs of a queue are due, and no worker that beats serves it."""
    return at.find(
        ERROR,
        "SELECT 'queue ' || r.queue || ': ' || count(*) || ' due' FROM runs_run r"
        " WHERE r.sort_at < agentops_now() - make_interval(secs => %(grace)s)"
        " AND r.wake_at < agentops_now() - make_interval(secs => %(grace)s)"
        " AND NOT EXISTS (SELECT FROM runs_worker w WHERE w.closed_at IS NULL AND w.beat_until >= now()"
        "   AND NOT w.draining AND r.queue = ANY(w.queues)) GROUP BY r.queue",
        "Start a worker for the queue: `manage.py worker --queue NAME`.",
    )


# --- wake sources --------------------------------------------------------------------------------------------------------


@data
def no_wake_source(at: Snapshot) -> Iterator[Finding]:
    """Nobody will ever look at an unfinished run again: no wake time, no open wait, no hold."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ' (' || r.status || ')' FROM runs_run r"
        " WHERE r.held_by = '' AND (r.wake_at IS NULL OR r.sort_at IS NULL)"
        " AND (r.status IN ('queued', 'retrying', 'cancelling') OR (r.status = 'waiting' AND NOT EXISTS ("
        "   SELECT FROM runs_operation o WHERE o.run_id = r.id AND o.step_seq = r.step_seq AND o.status = 'open')))",
        "Force these runs on in the console, and report how they came to stand still.",
    )


@data
def unwatched_time_limit(at: Snapshot) -> Iterator[Finding]:
    """A run waits with a time limit, and wakes too late to see it pass, or not at all."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ': ' || o.kind || ' ' || o.name FROM runs_run r JOIN runs_operation o"
        " ON o.run_id = r.id AND o.step_seq = r.step_seq AND o.status = 'open'"
        " WHERE r.status = 'waiting' AND r.held_by = '' AND o.expires_at < coalesce(r.wake_at, 'infinity')"
        # One that is due is looked at: a person, or something else that it waits for, woke it after the limit.
        " AND coalesce(r.wake_at, 'infinity') > agentops_now()",
        "Force these runs on in the console: looking at the run sets its wake time anew.",
    )


@data
def lost_wakeup(at: Snapshot) -> Iterator[Finding]:
    """What a run waits for has been settled since it began to wait, and the run is not due."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ': ' || o.kind || ' ' || o.name || ' was settled' FROM runs_run r JOIN runs_operation o"
        " ON o.run_id = r.id AND o.step_seq = r.step_seq AND o.kind IN ('approval', 'signal', 'timer', 'child')"
        "   AND o.status <> 'open'"
        " WHERE r.status = 'waiting' AND r.held_by = ''"
        " AND coalesce(r.wake_at, 'infinity') > agentops_now() + make_interval(secs => %(grace)s)"
        " AND o.finished_at > coalesce((SELECT max(a.ended_at) FROM runs_attempt a"
        "   WHERE a.run_id = r.id AND a.step_seq = r.step_seq), '-infinity')",
        "Force these runs on in the console, and report what settled the wait.",
    )


@data
def kept_signal(at: Snapshot) -> Iterator[Finding]:
    """A run waits for a signal that lies in the inbox, unused."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ': signal ' || s.id || ' (' || s.name || ')' FROM runs_run r"
        " JOIN runs_operation o ON o.run_id = r.id AND o.step_seq = r.step_seq AND o.kind = 'signal' AND o.status = 'open'"
        " JOIN runs_signal s ON s.name = o.name AND s.consumed_at IS NULL AND s.ignored = ''"
        "   AND (s.run_id = r.id OR (s.run_id IS NULL AND s.correlation = o.correlation AND o.correlation <> ''))"
        " WHERE r.status = 'waiting' AND r.held_by = ''"
        " AND coalesce(r.wake_at, 'infinity') > agentops_now() + make_interval(secs => %(grace)s)",
        "Force these runs on in the console: opening the wait again takes the signal.",
    )


@data
def parent_not_told(at: Snapshot) -> Iterator[Finding]:
    """Enough of the child runs that a run waits for have ended since long, and it is not due."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ': ' || o.children || ' child runs of ' || o.name FROM runs_operation o"
        " JOIN runs_run r ON r.id = o.run_id JOIN LATERAL (SELECT count(*) FILTER (WHERE c.status = 'completed') AS done,"
        "   count(*) FILTER (WHERE c.status IN ('failed', 'cancelled')) AS lost, max(c.finished_at) AS last"
        "   FROM runs_run c WHERE c.parent_operation_id = o.id) c ON true"
        " WHERE o.status = 'open' AND o.kind = 'child' AND r.status = 'waiting' AND r.held_by = ''"
        " AND coalesce(r.wake_at, 'infinity') > agentops_now() + make_interval(secs => %(grace)s)"
        " AND c.last <= agentops_now() - make_interval(secs => %(grace)s)"
        " AND CASE WHEN o.children_wanted IS NULL THEN c.done + c.lost = o.children"
        "   ELSE c.done >= o.children_wanted OR c.lost > o.children - o.children_wanted END",
        "A sweep of each worker finds these within seconds: start one with `manage.py worker`, or look in its log for"
        " family.not_moved.",
    )


@data
def orphan(at: Snapshot) -> Iterator[Finding]:
    """A child run is under way, and the run that started it is gone, or never waited for it."""
    return at.find(
        ERROR,
        "SELECT 'run ' || c.id || ' of ' || coalesce(c.parent_id::text, 'nobody') FROM runs_run c"
        " WHERE c.parent_operation_id IS NOT NULL AND c.finished_at IS NULL"
        " AND NOT EXISTS (SELECT FROM runs_operation o WHERE o.id = c.parent_operation_id AND o.run_id = c.parent_id)"
        # One that failed may be retried long after retention has deleted its parent.
        " AND (EXISTS (SELECT FROM runs_run p WHERE p.id = c.parent_id)"
        "   OR NOT EXISTS (SELECT FROM runs_event e WHERE e.run_id = c.id AND e.kind IN ('retried', 'skipped')))",
        "Runs with child runs under way are not deleted: compare with a backup, or cancel these.",
    )


@data
def missing_children(at: Snapshot) -> Iterator[Finding]:
    """A run waits for child runs that are not there."""
    return at.find(
        ERROR,
        "SELECT 'run ' || o.run_id || ': ' || (SELECT count(*) FROM runs_run c WHERE c.parent_operation_id = o.id) || ' of '"
        "   || o.children || ' child runs of ' || o.name FROM runs_operation o WHERE o.status = 'open' AND o.kind = 'child'"
        " AND o.children <> (SELECT count(*) FROM runs_run c WHERE c.parent_operation_id = o.id)",
        "Child runs are not deleted before the run that started them: compare with a backup.",
    )


@data
def unneeded_child(at: Snapshot) -> Iterator[Finding]:
    """Child runs were to be cancelled, since nobody waits for them any more, and nobody has asked them to stop."""
    return at.find(
        ERROR,
        "SELECT 'run ' || c.id || ' of ' || c.parent_id FROM runs_operation o JOIN runs_run c ON c.parent_operation_id = o.id"
        " JOIN runs_run r ON r.id = o.run_id"
        " WHERE (o.rest = 'cancel' OR (o.rest = 'at_end' AND r.finished_at < agentops_now() - make_interval(secs => %(grace)s)))"
        " AND coalesce(o.finished_at, r.finished_at) < agentops_now() - make_interval(secs => %(grace)s)"
        " AND c.finished_at IS NULL AND c.cancel_requested_at IS NULL",
        "A sweep of each worker cancels these: start one with `manage.py worker`, or look in its log for family.not_moved.",
    )


@data
def hold_without_reason(at: Snapshot) -> Iterator[Finding]:
    """A due run is parked, and what parked it is over: nothing will lift the hold."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ' held: ' || r.held_by FROM runs_run r WHERE r.held_by = 'paused'"
        " AND NOT EXISTS (SELECT FROM runs_policy p WHERE (p.scope = 'everything' OR (p.scope = 'queue' AND p.name = r.queue)"
        "     OR (p.scope = 'workflow' AND p.name = r.workflow))"
        "   AND (p.paused OR (p.temporary #>> '{paused,until}')::timestamptz > agentops_now() - make_interval(secs => %(grace)s)"
        "     OR p.changed_at > agentops_now() - make_interval(secs => %(grace)s)))"
        " UNION ALL SELECT 'run ' || r.id || ' held: ' || r.held_by FROM runs_run r WHERE r.held_by = 'no_capable_worker'"
        " AND EXISTS (SELECT FROM runs_worker w WHERE w.closed_at IS NULL AND w.beat_until >= now() AND NOT w.draining"
        "   AND w.started_at < now() - make_interval(secs => %(grace)s) AND r.queue = ANY(w.queues)"
        "   AND r.workflow || '@' || r.version || '/' || r.step = ANY(w.capabilities))"
        " UNION ALL SELECT 'run ' || r.id || ' held: ' || r.held_by || ' of ' || r.held_key FROM runs_run r"
        " WHERE r.held_by IN ('concurrency', 'rate') AND (NOT EXISTS (SELECT FROM runs_limit x WHERE x.key = r.held_key)"
        "   OR EXISTS (SELECT FROM agentops_limits_now(ARRAY[r.held_key], %(declared)s::jsonb) l"
        "     WHERE l.concurrency IS NULL AND l.rate IS NULL))"
        " AND NOT EXISTS (SELECT FROM runs_policy p WHERE p.scope || ' ' || p.name = r.held_key"
        "   AND p.changed_at > agentops_now() - make_interval(secs => %(grace)s))",
        "Force these runs on in the console; a pause or a limit that is set and lifted again re-arms them all.",
        declared=json.dumps(registry.declared_limits()),
    )


@data
def attention_without_doubt(at: Snapshot) -> Iterator[Finding]:
    """A person is asked whether an effect happened, and no effect is in doubt."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id FROM runs_run r WHERE r.status = 'attention' AND r.attention_kind = 'in_doubt'"
        " AND NOT EXISTS (SELECT FROM runs_operation o WHERE o.run_id = r.id AND o.status = 'pending')",
        "Force these runs on in the console: there is nothing to answer.",
    )


# --- ends ----------------------------------------------------------------------------------------------------------------


@data
def unquiet_end(at: Snapshot) -> Iterator[Finding]:
    """A finished run still has a wake time, a worker, an effect in doubt or an open wait."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ' (' || r.status || '): ' || o.kind || ' ' || o.name || ' is ' || o.status"
        " FROM runs_run r JOIN runs_operation o ON o.run_id = r.id AND o.status IN ('pending', 'open')"
        " WHERE r.status IN ('completed', 'failed', 'cancelled')"
        # A kill leaves what is in doubt as it is, and says so.
        " AND NOT (o.status = 'pending' AND EXISTS (SELECT FROM runs_event e WHERE e.run_id = r.id AND e.kind = 'killed'))"
        " UNION ALL SELECT 'run ' || r.id || ' (' || r.status || ') is not still' FROM runs_run r"
        " WHERE r.status IN ('completed', 'failed', 'cancelled') AND (r.wake_at IS NOT NULL OR r.sort_at IS NOT NULL"
        "   OR r.worker_id IS NOT NULL OR r.finished_at IS NULL)",
        "A run never ends with an effect in doubt: find out from the provider what happened, and report how this came about.",
    )


@data
def open_operation_of_ended_visit(at: Snapshot) -> Iterator[Finding]:
    """The cursor has moved on from a visit in which an effect is in doubt or a wait is open."""
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ' visit ' || o.step_seq || ': ' || o.kind || ' ' || o.name || ' is ' || o.status"
        " FROM runs_operation o JOIN runs_run r ON r.id = o.run_id"
        " WHERE o.status IN ('pending', 'open') AND o.step_seq <> r.step_seq"
        " AND r.status NOT IN ('completed', 'failed', 'cancelled')",
        "The step ended while one of its operations had not: await everything that it starts.",
    )


@data
def attempt_after_end(at: Snapshot) -> Iterator[Finding]:
    """An attempt ended after its run did."""
    # Times are those at which transactions began: a cancel that waited for the run's lock ends the run “before” the attempt
    # that it waited for. Nobody waits that long for a lock.
    return at.find(
        ERROR,
        "SELECT 'run ' || r.id || ' visit ' || a.step_seq || ' try ' || a.attempt_no FROM runs_run r"
        " JOIN runs_attempt a ON a.run_id = r.id AND a.ended_at > r.finished_at + interval '10 seconds'"
        # The state of a failed run may be edited, before it is retried.
        " AND a.outcome <> 'edited'"
        " WHERE r.status IN ('completed', 'failed', 'cancelled')",
        "A worker went on with a run that was over: its effects may have happened; report it.",
    )


@data
def attempt_gap(at: Snapshot) -> Iterator[Finding]:
    """The tries of a visit are not numbered 1, 2, 3 … up to where the run stands."""
    return at.find(
        ERROR,
        "WITH visits AS MATERIALIZED (SELECT run_id, step_seq, count(*) AS tries, min(attempt_no) AS first,"
        "   max(attempt_no) AS last FROM runs_attempt GROUP BY run_id, step_seq)"
        " SELECT 'run ' || run_id || ' visit ' || step_seq || ': ' || tries || ' tries, the last is number ' || last"
        " FROM visits WHERE first <> 1 OR last <> tries"
        " UNION ALL SELECT 'run ' || r.id || ' visit ' || r.step_seq || ': stands at try ' || r.attempt_no || ', '"
        "   || coalesce(v.last, 0) || ' recorded' FROM runs_run r LEFT JOIN visits v ON v.run_id = r.id"
        "   AND v.step_seq = r.step_seq"
        " WHERE coalesce(v.last, 0) <> r.attempt_no - (CASE r.status WHEN 'running' THEN 1 ELSE 0 END)"
        " UNION ALL SELECT 'run ' || r.id || ' visit ' || v.step_seq || ': lies ahead of the cursor' FROM runs_run r"
        " JOIN visits v ON v.run_id = r.id AND v.step_seq > r.step_seq",
        "A try was lost or written twice: compare with the logs of the workers.",
    )


@data
def row_without_run(at: Snapshot) -> Iterator[Finding]:
    """A row belongs to a run that does not exist. No foreign key holds these tables to their run."""
    return at.find(
        ERROR,
        "WITH of AS (SELECT 'attempt' AS kind, run_id FROM runs_attempt UNION ALL SELECT 'operation', run_id FROM runs_operation"
        " UNION ALL SELECT 'event', run_id FROM runs_event UNION ALL SELECT 'message', run_id FROM runs_message"
        " UNION ALL SELECT 'log line', run_id FROM runs_log_line"
        " UNION ALL SELECT 'signal', run_id FROM runs_signal WHERE run_id IS NOT NULL)"
        " SELECT DISTINCT of.kind || ' of run ' || of.run_id FROM of"
        " WHERE NOT EXISTS (SELECT FROM runs_run r WHERE r.id = of.run_id)",
        "A run was deleted without its rows, or restored in part: compare with a backup.",
    )


# --- effects and signals -------------------------------------------------------------------------------------------------


@data
def effect_done_twice(at: Snapshot) -> Iterator[Finding]:
    """One effect is recorded as done by two operations, or undone by two."""
    return at.find(
        ERROR,
        "SELECT 'key ' || o.provider_key || ': ' || string_agg(o.id::text, ', ') FROM runs_operation o"
        " WHERE o.kind = 'effect' AND o.status = 'done' AND o.provider_key IS NOT NULL"
        # A fork names the key of the effect that it does not repeat.
        " AND o.copied_from IS NULL"
        " GROUP BY o.provider_key HAVING count(*) > 1"
        " UNION ALL SELECT 'effect ' || o.compensates || ' undone by ' || string_agg(o.id::text, ', ') FROM runs_operation o"
        " WHERE o.status = 'done' AND o.compensates IS NOT NULL GROUP BY o.compensates HAVING count(*) > 1",
        "Ask the provider how often it happened, and put right there what happened twice.",
    )


@data
def signal_used_twice(at: Snapshot) -> Iterator[Finding]:
    """Two signals settled one wait, one signal was accepted twice, or a used one has no wait that it settled."""
    return at.find(
        ERROR,
        "SELECT 'operation ' || s.consumed_by || ': ' || count(*) || ' signals' FROM runs_signal s"
        " WHERE s.consumed_by IS NOT NULL GROUP BY s.consumed_by HAVING count(*) > 1"
        " UNION ALL SELECT 'signal ' || s.source || ' ' || s.external_id || ': accepted ' || count(*) || ' times'"
        " FROM runs_signal s GROUP BY s.source, s.external_id HAVING count(*) > 1"
        " UNION ALL SELECT 'signal ' || s.id || ' is used, but settled nothing' FROM runs_signal s"
        " LEFT JOIN runs_operation o ON o.id = s.consumed_by AND o.status <> 'open'"
        " WHERE (s.consumed_at IS NOT NULL OR s.consumed_by IS NOT NULL) AND (o.id IS NULL OR s.consumed_at IS NULL)",
        "Compare with what the source says that it sent.",
    )


# --- history -------------------------------------------------------------------------------------------------------------


@data
def broken_chain(at: Snapshot) -> Iterator[Finding]:
    """An event was changed, removed or put in: its digest does not follow from the one before it."""
    return at.find(
        ERROR,
        "SELECT 'run ' || run_id || ' event ' || seq FROM (SELECT run_id, seq, head,"
        "   lag(seq, 1, 0) OVER run AS before, lag(head, 1, ''::bytea) OVER run AS previous,"
        "   agentops_event_text(seq, at, kind, actor_id, actor, reason, data) AS canonical"
        "   FROM runs_event WINDOW run AS (PARTITION BY run_id ORDER BY seq)) chain"
        " WHERE seq <> before + 1 OR head <> agentops_event_head(previous, canonical)",
        "Somebody changed the history behind the application: compare with a backup.",
    )


@data
def chain_head(at: Snapshot) -> Iterator[Finding]:
    """A run does not stand at the end of its chain: events were cut off, or added without it."""
    return at.find(
        ERROR,
        "WITH last AS (SELECT DISTINCT ON (run_id) run_id, seq, head FROM runs_event ORDER BY run_id, seq DESC)"
        " SELECT 'run ' || r.id || ': stands at event ' || r.event_seq || ', the last one is '"
        "   || coalesce(l.seq::text, 'missing') FROM runs_run r LEFT JOIN last l ON l.run_id = r.id"
        " WHERE coalesce(l.seq, 0) <> r.event_seq OR coalesce(l.head, ''::bytea) <> r.event_head",
        "Somebody changed the history behind the application: compare with a backup.",
    )


@data
def audit_chain(at: Snapshot) -> Iterator[Finding]:
    """What administrators did was changed, removed, put in, or kept out of the chain over all of it."""
    return at.find(
        ERROR,
        "SELECT CASE WHEN link.event_id IS NULL THEN 'audit event ' || event.id || ': in no link'"
        "   ELSE 'audit link ' || link.seq || ' of audit event ' || link.event_id END"
        " FROM (SELECT seq, event_id, head, lag(seq, 1, 0::bigint) OVER chain AS before,"
        "   lag(head, 1, ''::bytea) OVER chain AS previous FROM runs_audit_link WINDOW chain AS (ORDER BY seq)) link"
        " FULL JOIN runs_audit_event event ON event.id = link.event_id"
        " WHERE link.event_id IS NULL OR event.id IS NULL OR link.seq <> link.before + 1"
        "   OR link.head <> agentops_event_head(link.previous, agentops_audit_text(link.seq, event))"
        " UNION ALL SELECT 'the head stands at ' || coalesce(head.seq::text, 'nothing') || ', the last link is '"
        "   || coalesce(last.seq::text, 'missing') FROM (SELECT 1) AS one"
        " LEFT JOIN runs_audit_head head ON true"
        " LEFT JOIN (SELECT seq, head FROM runs_audit_link ORDER BY seq DESC LIMIT 1) last ON true"
        " WHERE coalesce(head.seq, 0) <> coalesce(last.seq, 0)"
        "   OR coalesce(head.head, ''::bytea) <> coalesce(last.head, ''::bytea)",
        "Somebody changed the history behind the application: compare with a backup.",
    )


#: `runs.engine.execution.attempt_digest` in SQL; a test holds the two together. What error_type holds is clean already.
ATTEMPT_DIGEST = """
    encode(sha256(convert_to('[' || to_json(a.run_id::text) || ',' || a.step_seq || ',' || a.attempt_no || ',' || a.epoch
        || ',' || to_json(a.step) || ',' || to_json(a.outcome) || ',' || to_json(a.error_type) || ']', 'UTF8')), 'hex')
"""


@data
def attempt_digest(at: Snapshot) -> Iterator[Finding]:
    """An event refers to an attempt that is not there as the event saw it."""
    return at.find(
        ERROR,
        "SELECT 'run ' || e.run_id || ' event ' || e.seq || ' (' || e.kind || ')' FROM runs_event e"
        " WHERE jsonb_typeof(e.data -> 'attempt') = 'string' AND NOT EXISTS (SELECT FROM runs_attempt a"
        "   WHERE a.run_id = e.run_id AND e.data ->> 'attempt' = " + ATTEMPT_DIGEST + ")",
        "Somebody changed an attempt behind the application: compare with a backup.",
    )


# --- retention ----------------------------------------------------------------------------------------------------------


@data
def retention_behind(at: Snapshot) -> Iterator[Finding]:
    """Finished runs are still there two days after retention should have deleted them."""
    rules = [rule for rule in retention.rules() if rule.days]
    return at.find(
        WARNING,
        "SELECT 'workflow ' || rule.name || ': runs that ended more than ' || rule.days || ' days ago'"
        " FROM unnest(%(names)s::text[], %(days)s::int[]) AS rule (name, days)"
        # By the old end of the index: no run that old has a younger id.
        " WHERE EXISTS (SELECT FROM runs_run r WHERE r.workflow = rule.name AND r.finished_at IS NOT NULL"
        "   AND r.finished_at < agentops_now() - make_interval(days => rule.days + 2)"
        # Families go from the top, and as long as none of their children works: these are kept for others.
        "   AND NOT EXISTS (SELECT FROM runs_run parent WHERE parent.id = r.parent_id)"
        "   AND NOT EXISTS (SELECT FROM runs_operation o JOIN runs_run c ON c.parent_operation_id = o.id"
        "     WHERE o.run_id = r.id AND o.kind = 'child' AND c.finished_at IS NULL)"
        "   AND r.id < (lpad(to_hex((extract(epoch FROM agentops_now() - make_interval(days => rule.days + 2)) * 1000)::bigint),"
        "     12, '0') || repeat('0', 20))::uuid)",
        "Workers delete them in turns of two seconds, every five minutes: is none running, or does its log say"
        " retention.kept or retention.failed? `manage.py retention` deletes them now.",
        names=[rule.workflow for rule in rules],
        days=[rule.days for rule in rules],
    )


# --- policies ------------------------------------------------------------------------------------------------------------


@data
def policy_of_nothing(at: Snapshot) -> Iterator[Finding]:
    """A limit is set for a workflow, step or tool that no installed app declares."""
    registry.load()
    workflows = [declared[-1] for versions in WORKFLOWS.values() for declared in versions.values()]
    return at.find(
        WARNING,
        "SELECT p.scope || ' ' || p.name FROM runs_policy p WHERE NOT (p.name = ANY(CASE p.scope"
        " WHEN 'workflow' THEN %(workflows)s::text[] WHEN 'step' THEN %(steps)s::text[]"
        " WHEN 'tool' THEN %(tools)s::text[] ELSE ARRAY[p.name] END))"
        " ORDER BY 1",
        "Its code was renamed or is not installed here: set the limit for the new name, and clear this one.",
        workflows=sorted({workflow.name for workflow in workflows}),
        steps=sorted({f"{workflow.name}/{step}" for workflow in workflows for step in workflow.steps}),
        tools=[tool.name for tool in registry.tools()],
    )


# --- payloads ------------------------------------------------------------------------------------------------------------


@data
def missing_blob(at: Snapshot) -> Iterator[Finding]:
    """A run has rows that point to a payload which is not there, or which is not what was stored."""

    def damaged() -> Iterator[str]:
        for key, body in at.stream(
            "SELECT sha256, body FROM runs_blob b"
            " WHERE EXISTS (SELECT FROM runs_blob_use u WHERE u.sha256 = b.sha256)"
        ):
            try:
                blobs.unpack(key, body)
            except blobs.BlobDamaged as error:
                yield str(error)

    yield from at.find(
        ERROR,
        "SELECT 'run ' || u.run_id || ': blob ' || u.sha256 FROM runs_blob_use u"
        " WHERE NOT EXISTS (SELECT FROM runs_blob b WHERE b.sha256 = u.sha256)",
        "Restore these rows of runs_blob from a backup: what they held cannot be made again.",
    )
    yield from at.collect(
        ERROR, damaged(), "Restore these rows of runs_blob from a backup: somebody changed them."
    )


@data
def unused_blob(at: Snapshot) -> Iterator[Finding]:
    """A payload that is stored apart belongs to no run any more, and has not been swept for a week."""
    return at.find(
        WARNING,
        "SELECT 'blob ' || b.sha256 FROM runs_blob b WHERE b.created_at < agentops_now() - interval '7 days'"
        " AND NOT EXISTS (SELECT FROM runs_blob_use u WHERE u.sha256 = b.sha256)",
        "Nothing is lost; retention sweeps them. If it is at work and they stay, report it.",
    )


@data
def unreadable_state(at: Snapshot) -> Iterator[Finding]:
    """The recorded changes of a large state do not lead to it: its run cannot go on, or its page cannot show it."""

    def unreadable() -> Iterator[str]:
        changed = at.rows(
            "SELECT DISTINCT run_id FROM runs_attempt WHERE state_after ->> %(tag)s = %(patch)s",
            tag=codec.TAG,
            patch=history.PATCH,
        )
        for (run_id,) in changed:
            try:
                for _ in history.walk(run_id):
                    pass
            except (history.HistoryDamaged, blobs.BlobDamaged) as error:
                yield f"run {run_id}: {error}"

    return at.collect(
        ERROR, unreadable(), "Somebody changed the history behind the application: compare with a backup."
    )
