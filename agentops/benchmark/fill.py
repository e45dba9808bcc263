"""Large data sets, made inside PostgreSQL: runs in every status with attempts, operations and event chains.

The rows satisfy every constraint and invariant that `manage.py doctor` checks. A million runs take about 90 s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection, models, transaction
from django.db.backends.utils import CursorWrapper

from runs.models.audit import Event
from runs.models.operation import Kind, Operation, OpStatus
from runs.models.run import Attempt, Run
from runs.states import AttentionKind, FailureKind, Outcome, Status

# Shares of a console that has been in use for a while; no run is `running`, since no worker would renew its lease.
MIX: Mapping[Status, float] = {
    Status.COMPLETED: 0.80,
    Status.FAILED: 0.05,
    Status.CANCELLED: 0.03,
    Status.WAITING: 0.06,
    Status.RETRYING: 0.02,
    Status.QUEUED: 0.03,
    Status.ATTENTION: 0.01,
}
# Tries of a failed run's last visit.
TRIES = 5

# Ids are UUIDv7s of the time when the run was started, so that their order in the index is that of real ones.
_SKELETON = """
CREATE TEMPORARY TABLE generated AS
WITH numbered AS (
    SELECT n,
        now() - %(days)s * interval '1 day' * (1 - n::float / %(runs)s) AS created_at,
        (%(statuses)s::text[])[
            1 + width_bucket((hashint4(n) & 2147483647) / 2147483648.0::float8, %(limits)s::float8[])
        ] AS status
    FROM generate_series(1, %(runs)s) n
), timed AS (
    SELECT *,
        CASE WHEN status IN ('completed', 'failed', 'cancelled')
            THEN created_at + interval '1 minute' END AS finished_at,
        CASE status WHEN 'queued' THEN 1 ELSE %(steps)s END AS step_seq,
        CASE status WHEN 'queued' THEN 0 WHEN 'failed' THEN %(tries)s ELSE 1 END AS attempt_no,
        encode(set_bit(set_bit(overlay(
            uuid_send(gen_random_uuid())
            PLACING substring(int8send((extract(epoch FROM created_at) * 1000)::int8) FROM 3) FROM 1 FOR 6
        ), 52, 1), 53, 1), 'hex')::uuid AS id
    FROM numbered
)
SELECT timed.*, started.head AS started_head,
    CASE status WHEN 'queued' THEN started.head ELSE agentops_event_head(started.head, agentops_event_text(
        2, created_at + interval '1 minute', status, NULL, 'generator', '', '{}')) END AS head
FROM timed, LATERAL (
    SELECT agentops_event_head('', agentops_event_text(1, created_at, 'started', NULL, 'generator', '', '{}')) AS head
) started
"""


@dataclass(frozen=True, slots=True)
class Filled:
    """How many rows were made."""

    runs: int
    attempts: int
    operations: int
    events: int


def fill(
    runs: int,
    *,
    workflow: str = "generated",
    steps: int = 3,
    days: int = 30,
    mix: Mapping[Status, float] = MIX,
    timers: bool = False,
    tries: int = 1,
) -> Filled:
    """Add `runs` runs of `workflow` with `steps` visits each, started evenly over the last `days` days.

    `mix` gives the share of each status; with `timers`, every other waiting run waits for a moment and not for a signal.
    A visit that is over has `tries` attempts, a query and an effect; each run one event, and another where it stands now.
    Commits, and refreshes the planner's statistics.
    """
    assert runs >= 1
    assert steps >= 1
    shares = list(mix.values())
    limits = [sum(shares[: number + 1]) / sum(shares) for number in range(len(shares) - 1)]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            _SKELETON,
            {
                "runs": runs,
                "days": days,
                "steps": steps,
                "tries": TRIES,
                "statuses": [str(status.value) for status in mix],
                "limits": limits,
            },
        )
        filled = Filled(
            runs=_insert_runs(cursor, workflow, timers),
            attempts=_insert_attempts(cursor, tries),
            operations=_insert_operations(cursor, timers),
            events=_insert_events(cursor),
        )
        cursor.execute("DROP TABLE generated")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE runs_run, runs_attempt, runs_operation, runs_event")
    return filled


#: Of the generated rows: those whose wait is for a moment.
_TIMER = "(status = 'waiting' AND n %% 2 = 0)"


def _insert_runs(cursor: CursorWrapper, workflow: str, timers: bool) -> int:
    later = f"status IN ('queued', 'retrying'){f' OR {_TIMER}' if timers else ''}"
    due = f"CASE WHEN {later} THEN now() + interval '1 day' END"
    return insert(
        cursor,
        Run,
        {
            "id": "id",
            "workflow": "%(workflow)s",
            "version": "1",
            "subject": "'order ' || n",
            "started_by_name": "'generator'",
            "created_at": "created_at",
            "visit_started_at": "created_at",
            "input": "jsonb_build_object('order_id', n)",
            "input_digest": "encode(sha256(convert_to(format('{\"order_id\":%%s}', n), 'UTF8')), 'hex')",
            "step": "'step_' || step_seq",
            "step_seq": "step_seq",
            "attempt_no": "attempt_no",
            "status": "status",
            "epoch": "step_seq",
            "wake_at": due,
            "sort_at": due,
            "failures": "CASE status WHEN 'failed' THEN attempt_no WHEN 'retrying' THEN 1 ELSE 0 END",
            "state": "jsonb_build_object('seen', step_seq)",
            "event_seq": "CASE status WHEN 'queued' THEN 1 ELSE 2 END",
            "event_head": "head",
            "failure_kind": f"CASE status WHEN 'failed' THEN '{FailureKind.EXHAUSTED.value}' ELSE '' END",
            "attention_kind": f"CASE status WHEN 'attention' THEN '{AttentionKind.IN_DOUBT.value}' ELSE '' END",
            "reason": "CASE status WHEN 'failed' THEN 'The provider answered 503.' ELSE '' END",
            "result": "CASE status WHEN 'completed' THEN jsonb_build_object('receipt', n) END",
            "finished_at": "finished_at",
        },
        "generated ORDER BY n",
        {"workflow": workflow},
    )


def _insert_attempts(cursor: CursorWrapper, tries: int) -> int:
    last = f"""CASE status
        WHEN 'failed' THEN '{Outcome.FAILED.value}' WHEN 'retrying' THEN '{Outcome.FAILED.value}'
        WHEN 'cancelled' THEN '{Outcome.CANCELLED.value}' WHEN 'waiting' THEN '{Outcome.SUSPENDED.value}'
        WHEN 'attention' THEN '{Outcome.SUSPENDED.value}' ELSE '{Outcome.SUCCEEDED.value}' END"""
    broken = f"(visit = step_seq AND status IN ('failed', 'retrying') OR visit < step_seq AND try < {tries})"
    return insert(
        cursor,
        Attempt,
        {
            "run_id": "id",
            "step_seq": "visit",
            "attempt_no": "try",
            "epoch": "visit",
            "step": "'step_' || visit",
            "outcome": f"CASE WHEN visit < step_seq AND try < {tries} THEN '{Outcome.FAILED.value}'"
            f" WHEN visit < step_seq THEN '{Outcome.SUCCEEDED.value}' ELSE {last} END",
            "started_at": "created_at",
            "ended_at": "created_at + interval '1 second'",
            "error_type": f"CASE WHEN {broken} THEN 'HTTPStatusError' ELSE '' END",
            "error": f"CASE WHEN {broken} THEN 'The provider answered 503.' ELSE '' END",
        },
        f"""generated, generate_series(1, step_seq) visit,
            generate_series(1, CASE WHEN visit = step_seq THEN attempt_no ELSE {tries} END) try""",
    )


def _insert_operations(cursor: CursorWrapper, timers: bool) -> int:
    wait = f"'{Kind.SIGNAL.value}'"
    if timers:
        wait = f"CASE WHEN {_TIMER} THEN '{Kind.TIMER.value}' ELSE '{Kind.SIGNAL.value}' END"
    common = {
        "id": "gen_random_uuid()",
        "run_id": "id",
        "attempt_no": "1",
        "args_digest": "encode(sha256('{}'), 'hex')",
        "request": "jsonb_build_object('order_id', n)",
        "started_at": "created_at",
    }
    finished = insert(
        cursor,
        Operation,
        {
            **common,
            "step_seq": "visit",
            "position": "place::text",
            "ordinal": "place",
            "kind": f"CASE place WHEN 1 THEN '{Kind.QUERY.value}' ELSE '{Kind.EFFECT.value}' END",
            "name": "CASE place WHEN 1 THEN 'get_order' ELSE 'refund' END",
            "status": f"'{OpStatus.DONE.value}'",
            "response": "jsonb_build_object('id', n)",
            "result": "jsonb_build_object('id', n)",
            "provider_key": "CASE place WHEN 2 THEN gen_random_uuid() END",
            "finished_at": "created_at + interval '1 second'",
        },
        "generated, generate_series(1, step_seq) visit, generate_series(1, 2) place WHERE status <> 'queued'",
    )
    standing = insert(
        cursor,
        Operation,
        {
            **common,
            "step_seq": "step_seq",
            "position": "'3'",
            "ordinal": "3",
            "kind": f"CASE status WHEN 'waiting' THEN {wait} ELSE '{Kind.EFFECT.value}' END",
            "name": "CASE status WHEN 'waiting' THEN 'payment.settled' ELSE 'send_mail' END",
            "status": f"CASE status WHEN 'waiting' THEN '{OpStatus.OPEN.value}' ELSE '{OpStatus.PENDING.value}' END",
            "provider_key": "CASE status WHEN 'attention' THEN gen_random_uuid() END",
            "intent_epoch": "CASE status WHEN 'attention' THEN step_seq END",
            "intent_worker_id": "CASE status WHEN 'attention' THEN gen_random_uuid() END",
            "intent_at": "CASE status WHEN 'attention' THEN created_at END",
        },
        "generated WHERE status IN ('waiting', 'attention')",
    )
    return finished + standing


def _insert_events(cursor: CursorWrapper) -> int:
    return insert(
        cursor,
        Event,
        {
            "run_id": "id",
            "seq": "seq",
            "at": "CASE seq WHEN 1 THEN created_at ELSE created_at + interval '1 minute' END",
            "kind": "CASE seq WHEN 1 THEN 'started' ELSE status END",
            "actor": "'generator'",
            "head": "CASE seq WHEN 1 THEN started_head ELSE head END",
        },
        "generated, generate_series(1, CASE status WHEN 'queued' THEN 1 ELSE 2 END) seq",
    )


def insert(
    cursor: CursorWrapper,
    model: type[models.Model],
    expressions: Mapping[str, str],
    source: str,
    parameters: Mapping[str, Any] | None = None,
) -> int:
    """Insert a row for each row of `source`, and return their number.

    Columns without an expression get the model's default.
    """
    known = dict(expressions)
    columns: list[str] = []
    values: list[str] = []
    filled = dict(parameters or {})
    for field in model._meta.concrete_fields:
        if field.column is None:
            continue
        if field.column in known:
            value = known.pop(field.column)
        elif field.has_db_default() or field.null:
            continue
        else:
            assert field.has_default(), (
                f"{model.__name__}.{field.name} has no default: give an expression for it"
            )
            value = f"%(default_{field.column})s"
            filled[f"default_{field.column}"] = field.get_db_prep_save(field.get_default(), connection)
        columns.append(f'"{field.column}"')
        values.append(value)
    assert not known, f"{model.__name__} has no columns {sorted(known)}"
    table = connection.ops.quote_name(model._meta.db_table)
    cursor.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {source}",  # noqa: S608 - constants
        filled,
    )
    return int(cursor.rowcount)
