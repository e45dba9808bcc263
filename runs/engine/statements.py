"""The hot path, as SQL: each is one statement, one round trip, one commit.

Every write of a worker carries the fence `id, epoch, step_seq, status = 'running'` and locks the run's row in the same
statement. No rows means: fenced, cancelled or already applied; `READ_BACK` tells which.

What every step writes is a `Fenced` statement: one text for one run, which waits for its lock, and one for many runs at once,
which passes by those that somebody else has locked (see `batches`).
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, eq=False)
class Fenced:
    """A fenced write whose parameters are rows of JSON: of one run, or of many in one statement.

    The first columns that it returns are `key`, which say whose row of the answer it is.
    """

    sql: str
    """With `{wait}` behind each row lock."""
    key: tuple[str, ...]
    """Parameters that no two members of a batch share: not the run alone, since a process may still execute an attempt of it that
    was closed, beside the one that came after."""
    alone: str = field(init=False)
    """Waits for locks."""
    together: str = field(init=False)
    """Passes locked rows by: such a batch waits for nobody, and cannot be part of a deadlock."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alone", self.sql.replace("{wait}", ""))
        object.__setattr__(self, "together", self.sql.replace("{wait}", "SKIP LOCKED"))

    def key_of(self, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(parameters[name] for name in self.key)

    def row(self, parameters: Mapping[str, Any]) -> str:
        """Parameters as a row for the statement."""
        return _ROW.encode(parameters)

    def parameters(self, rows: Sequence[str]) -> dict[str, str]:
        return {"rows": f"[{','.join(rows)}]"}


def _as_text(value: Any) -> str:
    """What PostgreSQL reads as the column's type."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes | memoryview):
        return f"\\x{bytes(value).hex()}"
    raise TypeError(f"{type(value).__name__} is no parameter of a statement")


#: JSON values are parameters in text: a JSON null is not SQL's NULL.
_ROW = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_as_text)

#: Seconds an attempt may take, by capability, as one jsonb parameter; 60 where it says nothing.
_TIMEOUT = (
    "make_interval(secs => coalesce("
    "(%(timeouts)s::jsonb ->> (r.workflow || '@' || r.version || '/' || r.step))::float8, 60))"
)

CLAIMED = """
    r.id, r.workflow, r.version, r.step, r.step_seq, r.attempt_no, r.epoch, r.queue, r.state, r.state_sealed,
    r.input, r.input_sealed, r.compensating, r.cancel_requested_at IS NOT NULL, r.failures, r.crashes,
    r.visit_started_at, r.attempt_started_at,
    extract(epoch FROM r.wake_at - agentops_now())::float8, r.external, r.deadline_at <= agentops_now(), r.started_by_name,
    r.subject, due.was, r.parent_operation_id, r.child_index, r.forked_from IS NOT NULL
"""


def _claim(crashes: str) -> str:
    return f"""
WITH due AS (
    SELECT id, status AS was, workflow = ANY(%(paused)s) AND cancel_requested_at IS NULL AS paused FROM runs_run
    WHERE queue = %(queue)s AND sort_at <= agentops_now() AND wake_at <= agentops_now() AND {crashes}
      AND (workflow || '@' || version || '/' || step) = ANY(%(capabilities)s::text[])
      AND EXISTS (SELECT FROM runs_worker WHERE id = %(worker)s AND closed_at IS NULL AND beat_until > statement_timestamp())
    ORDER BY sort_at LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
), parked AS (
    UPDATE runs_run r SET wake_at = NULL, sort_at = NULL, held_by = 'paused' FROM due WHERE r.id = due.id AND due.paused
)
UPDATE runs_run r SET
    status = 'running', epoch = r.epoch + 1, attempt_no = r.attempt_no + 1, worker_id = %(worker)s, sort_at = NULL,
    held_by = '', attempt_started_at = agentops_now(),
    wake_at = LEAST(agentops_now() + {_TIMEOUT},
        CASE WHEN r.deadline_at IS NOT NULL THEN greatest(r.deadline_at, agentops_now() + interval '1 second') END)
FROM due WHERE r.id = due.id AND NOT due.paused
RETURNING {CLAIMED}
"""


#: `sort_at` orders; `wake_at` keeps a head start from waking a timer early.
CLAIM = _claim("crashes = 0")
#: Runs that were there when a worker died: one at a time, in a process that does nothing else. Own partial index.
CLAIM_ALONE = _claim("crashes > 0")

#: Not `r.status = 'running'`: a plan that was made while there were few runs would look for those in the index on status,
#: through all that have been running since it was last cleaned, instead of by id.
_RUNNING = "r.status || '' = 'running'"
_FENCE = f"r.id = %(run)s AND r.epoch = %(epoch)s AND r.step_seq = %(seq)s AND {_RUNNING}"


def _rows(columns: str, also: str = "true") -> str:
    """Rows of parameters, each beside its run, locked, if that passes the fence and `also` holds for it.

    A lock inside LATERAL keeps PostgreSQL from turning the join round: planned while there were few runs, it would read
    all of them to find those that are running, and go on so when there are many.
    """
    return (
        "json_to_recordset(%(rows)s::json)"
        f" AS p(run uuid, epoch bigint, seq integer, attempt integer, worker uuid, {columns})"
        " CROSS JOIN LATERAL (SELECT FROM runs_run r"
        f" WHERE r.id = p.run AND r.epoch = p.epoch AND r.step_seq = p.seq AND {_RUNNING}"
        f" AND ({also}) FOR NO KEY UPDATE {{wait}}) AS held"
    )


_INSERT_ATTEMPT = """
INSERT INTO runs_attempt (run_id, step_seq, attempt_no, epoch, step, outcome, worker_id, started_at, ended_at,
    error_type, error, traceback, retry_at, state_after, state_after_sealed, closed_by)
SELECT r.run, r.seq, r.attempt, r.epoch, r.step, 'succeeded', r.worker, r.started, r.now, '', '', '', NULL,
    coalesce(r.after, r.state), CASE WHEN r.after IS NULL THEN r.state_sealed ELSE r.after_sealed END, ''
FROM r RETURNING run_id, epoch, step_seq, attempt_no, ended_at
"""

#: `after` and `after_sealed` are given for large states alone (`runs.history`): the attempt's row then holds another text.
_KEPT = """state = coalesce(p.state, r.state),
        state_sealed = CASE WHEN p.state IS NULL THEN r.state_sealed ELSE p.state_sealed END"""

#: The checkpoint of a Goto: the run goes on under the same epoch. No event.
GOTO = Fenced(
    f"""
WITH t AS MATERIALIZED (SELECT agentops_now() AS now), p AS MATERIALIZED (
    SELECT p.run, p.epoch, p.seq, p.attempt, p.worker, p.next, p.timeout, p.state::jsonb AS state, p.state_sealed, p.step,
        p.started, p.after::jsonb AS after, p.after_sealed
    FROM t, {
        _rows(
            "next text, timeout float8, state text, state_sealed bytea, step text, started timestamptz, after text,"
            " after_sealed bytea",
            "r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > t.now)",
        )
    }
), r AS (
    UPDATE runs_run r SET
        step = p.next, step_seq = r.step_seq + 1, attempt_no = 1, failures = 0, crashes = 0, lone_crashes = 0,
        wake_at = LEAST(t.now + make_interval(secs => p.timeout), r.deadline_at),
        visit_started_at = t.now, attempt_started_at = t.now, {_KEPT}
    FROM p, t WHERE r.id = p.run
    RETURNING p.run, p.epoch, p.seq, p.attempt, p.worker, p.state, p.state_sealed, p.step, p.started, t.now,
        p.after, p.after_sealed
)
{_INSERT_ATTEMPT}
""",
    key=("run", "epoch", "seq", "attempt"),
)

_NO_DOUBT = """r.cancel_requested_at IS NULL
      AND NOT EXISTS (SELECT FROM runs_operation o WHERE o.run_id = r.id AND o.status = 'pending')
"""

#: The checkpoint of a Complete; refused while an effect of the run is in doubt.
COMPLETE = Fenced(
    f"""
WITH t AS MATERIALIZED (SELECT agentops_now() AS now), p AS MATERIALIZED (
    SELECT p.run, p.epoch, p.seq, p.attempt, p.worker, p.result::jsonb AS result, p.result_sealed, p.state::jsonb AS state,
        p.state_sealed, p.step, p.started, p.actor, p.event::jsonb AS event, p.after::jsonb AS after, p.after_sealed
    FROM {
        _rows(
            "result text, result_sealed bytea, state text, state_sealed bytea, step text, started timestamptz, actor text,"
            " event text, after text, after_sealed bytea",
            _NO_DOUBT,
        )
    }
), r AS (
    UPDATE runs_run r SET
        status = 'completed', worker_id = NULL, wake_at = NULL, sort_at = NULL, attempt_started_at = NULL,
        finished_at = t.now, result = p.result, result_sealed = p.result_sealed, {_KEPT},
        event_seq = r.event_seq + 1,
        event_head = agentops_event_head(r.event_head, agentops_event_text(
            r.event_seq + 1, t.now, 'completed', NULL, p.actor, '', p.event))
    FROM p, t WHERE r.id = p.run
    RETURNING p.run, p.epoch, p.seq, p.attempt, p.worker, p.state, p.state_sealed, p.step, p.started, t.now,
        p.actor, p.event, r.event_seq, r.event_head, p.after, p.after_sealed
), e AS (
    INSERT INTO runs_event (run_id, seq, at, kind, actor_id, actor, reason, data, head)
    SELECT r.run, r.event_seq, r.now, 'completed', NULL, r.actor, '', r.event, r.event_head FROM r
)
{_INSERT_ATTEMPT}
""",
    key=("run", "epoch", "seq", "attempt"),
)

#: A worker gives a run back that it does not execute; the attempt that was not begun is not counted.
HAND_BACK = """
UPDATE runs_run r SET status = CASE WHEN compensating THEN 'cancelling' ELSE 'queued' END, worker_id = NULL,
    attempt_no = greatest(attempt_no - 1, 0), attempt_started_at = NULL,
    wake_at = agentops_now(), sort_at = agentops_now() - make_interval(mins => priority)
WHERE r.id = %(run)s AND r.epoch = %(epoch)s AND r.status || '' = 'running' AND r.worker_id = %(worker)s RETURNING 1
"""

READ_BACK = """
SELECT r.epoch = %(epoch)s AND r.step_seq = %(seq)s AND r.status = 'running' AS held,
    r.cancel_requested_at IS NOT NULL AND NOT r.compensating AS cancelled,
    (SELECT a.ended_at FROM runs_attempt a WHERE a.run_id = r.id AND a.step_seq = %(seq)s
        AND a.attempt_no = %(attempt)s AND a.epoch = %(epoch)s AND a.closed_by = '') AS mine
FROM runs_run r WHERE r.id = %(run)s
"""

_COLUMNS = """id, position, ordinal, kind, name, args_digest, status, result, result_sealed, response, response_sealed,
    error_type, error, provider_key, generation, tries, looks, intent_epoch, intent_worker_id, first_sent_at,
    call_ended_at, earlier_send_open, settled_by, finished_at, copied_from"""

VISIT = f"SELECT {_COLUMNS} FROM runs_operation WHERE run_id = %(run)s AND step_seq = %(seq)s AND NOT forgotten ORDER BY ordinal"

#: In a fork: the runs that the operations it took over were those of.
ORIGINS = "SELECT id, run_id FROM runs_operation WHERE id = ANY(%(ids)s)"

#: Before a new intent overwrites the one before: what is known of that send. Written only where an effect is sent again; the
#: first and the newest are kept, so that one which is tried for days stays small.
_EARLIER_SENDS = """CASE WHEN jsonb_array_length(o.earlier_sends) >= 50 THEN o.earlier_sends - 1
        ELSE coalesce(o.earlier_sends, '[]') END || jsonb_build_object('at', o.intent_at, 'attempt', o.attempt_no,
            'epoch', o.intent_epoch, 'worker', o.intent_worker_id, 'key', o.provider_key, 'ended', o.call_ended_at,
            'answered', o.status = 'retry', 'error_type', o.error_type, 'error', left(o.error, 500), 'by', o.settled_by)"""

#: Intent: committed before anything is sent. Takes an operation over that certainly did not happen (`retry`).
INTENT = Fenced(
    f"""
WITH p AS MATERIALIZED (
    SELECT p.* FROM {
        _rows(
            "id uuid, position text, ordinal integer, name text, digest text, request text, request_sealed bytea,"
            " approved text, approved_sealed bytea, key uuid, generation integer, compensates uuid, compensate_with text",
            "r.cancel_requested_at IS NULL OR r.compensating",
        )
    }
)
INSERT INTO runs_operation AS o (id, run_id, step_seq, position, ordinal, attempt_no, kind, name, forgotten, args_digest, status,
    request, request_sealed, approved, approved_sealed, error_type, error, provider_key, provider_ref, generation, tries, looks,
    intent_epoch, intent_worker_id, intent_at, first_sent_at, earlier_send_open, settled_by, correlation, compensates,
    compensate_with, started_at)
SELECT p.id, p.run, p.seq, p.position, p.ordinal, p.attempt, 'effect', p.name, false, p.digest, 'pending',
    p.request::jsonb, p.request_sealed, p.approved::jsonb, p.approved_sealed, '', '', p.key, '', p.generation, 0, 0,
    p.epoch, p.worker, agentops_now(), agentops_now(), false, '', '', p.compensates, p.compensate_with, agentops_now()
FROM p
ON CONFLICT (run_id, step_seq, position) DO UPDATE SET status = 'pending', intent_epoch = excluded.intent_epoch,
    intent_worker_id = excluded.intent_worker_id, intent_at = excluded.intent_at, call_ended_at = NULL,
    attempt_no = excluded.attempt_no, provider_key = excluded.provider_key, error_type = '', error = '',
    approved = excluded.approved, approved_sealed = excluded.approved_sealed,
    earlier_sends = CASE WHEN o.status = 'retry' THEN {_EARLIER_SENDS} ELSE o.earlier_sends END,
    first_sent_at = CASE WHEN o.provider_key = excluded.provider_key THEN o.first_sent_at ELSE excluded.first_sent_at END
WHERE o.status = 'retry'
   OR (o.status = 'pending' AND o.intent_epoch = excluded.intent_epoch AND o.intent_worker_id = excluded.intent_worker_id)
RETURNING o.run_id, o.step_seq, o.attempt_no, o.position, o.id, o.first_sent_at
""",
    key=("run", "seq", "attempt", "position"),
)

#: A new intent over a pending one, under the same key, before it is sent again.
RESTAMP = f"""
WITH r AS (
    SELECT r.id FROM runs_run r WHERE {_FENCE} AND (r.cancel_requested_at IS NULL OR r.compensating) FOR NO KEY UPDATE
)
UPDATE runs_operation o SET intent_epoch = %(epoch)s, intent_worker_id = %(worker)s, intent_at = agentops_now(),
    attempt_no = %(attempt)s, call_ended_at = NULL, error_type = '', error = '',
    earlier_send_open = o.earlier_send_open OR %(open)s,
    -- Once more under this very intent means that the answer to its COMMIT was lost.
    earlier_sends = CASE WHEN o.intent_epoch = %(epoch)s THEN o.earlier_sends ELSE {_EARLIER_SENDS} END
FROM r WHERE o.id = %(id)s AND o.run_id = r.id AND o.status = 'pending'
  AND (o.intent_epoch = %(seen)s OR (o.intent_epoch = %(epoch)s AND o.intent_worker_id = %(worker)s))
  AND (%(window)s::float8 IS NULL OR o.first_sent_at + make_interval(secs => %(window)s) > agentops_now())
RETURNING o.id
"""

#: The outcome of a send while the run is still this worker's: fenced by its own intent. Otherwise see `sending.settle_late`.
#: That this send did nothing and may be made again says nothing of an earlier one: where that can land, it stays in doubt.
OUTCOME = Fenced(
    f"""
WITH p AS MATERIALIZED (
    SELECT p.id, p.status, p.response::jsonb AS response, p.sealed, p.error_type, p.error, p.ref, p.by, p.bump FROM {
        _rows(
            "id uuid, status text, response text, sealed bytea, error_type text, error text, ref text, by text, bump integer"
        )
    } CROSS JOIN LATERAL (
        SELECT FROM runs_operation o WHERE o.id = p.id AND o.run_id = p.run AND o.status || '' = 'pending'
            AND o.intent_epoch = p.epoch AND o.intent_worker_id = p.worker
        FOR NO KEY UPDATE {{wait}}
    ) AS its
)
UPDATE runs_operation o SET status = CASE WHEN p.status = 'retry' AND o.earlier_send_open THEN 'pending' ELSE p.status END,
    result = p.response, result_sealed = p.sealed, error_type = p.error_type, error = p.error,
    provider_ref = p.ref, tries = o.tries + 1, settled_by = p.by, generation = o.generation + p.bump,
    call_ended_at = agentops_now(), finished_at = CASE WHEN p.status IN ('done', 'failed') THEN agentops_now() END
FROM p WHERE o.id = p.id
RETURNING o.id, o.intent_epoch, o.finished_at
""",
    key=("id", "epoch"),
)

#: The sender says: my call is over and I do not know. Not fenced by the run: it is evidence about the call.
CALL_ENDED = """
UPDATE runs_operation SET call_ended_at = agentops_now(), looks = looks + 1, error_type = %(error_type)s, error = %(error)s
WHERE id = %(id)s AND status = 'pending' AND intent_epoch = %(epoch)s AND intent_worker_id = %(worker)s RETURNING looks
"""

#: The sender says: under this intent I did not and shall not send. Where no earlier send can land, it certainly did not happen.
NOT_SENT = """
UPDATE runs_operation SET status = CASE WHEN earlier_send_open THEN 'pending' ELSE 'retry' END, call_ended_at = agentops_now(),
    error_type = 'NotSent', error = 'it was not sent: the attempt was over, or cancel was asked for'
WHERE id = %(id)s AND status = 'pending' AND intent_epoch = %(epoch)s AND intent_worker_id = %(worker)s RETURNING 1
"""

#: Queries and model requests are written once, after.
RECORD = Fenced(
    f"""
WITH p AS MATERIALIZED (
    SELECT p.* FROM {
        _rows(
            "id uuid, position text, ordinal integer, kind text, name text, digest text, status text, request text,"
            " request_sealed bytea, response text, sealed bytea, error_type text, error text, by text, elapsed float8"
        )
    }
)
INSERT INTO runs_operation AS o (id, run_id, step_seq, position, ordinal, attempt_no, kind, name, forgotten, args_digest, status,
    request, request_sealed, result, result_sealed, error_type, error, provider_ref, generation, tries, looks,
    earlier_send_open, settled_by, correlation, compensate_with, started_at, finished_at)
SELECT p.id, p.run, p.seq, p.position, p.ordinal, p.attempt, p.kind, p.name, false, p.digest, p.status,
    p.request::jsonb, p.request_sealed, p.response::jsonb, p.sealed, p.error_type,
    p.error, '', 0, 1, 0, false, p.by, '', '', agentops_now() - make_interval(secs => p.elapsed),
    CASE WHEN p.status IN ('done', 'failed') THEN agentops_now() END
FROM p
ON CONFLICT (run_id, step_seq, position) DO UPDATE SET status = excluded.status, result = excluded.result,
    result_sealed = excluded.result_sealed, error_type = excluded.error_type, error = excluded.error, tries = o.tries + 1,
    attempt_no = excluded.attempt_no, settled_by = excluded.settled_by, finished_at = excluded.finished_at
WHERE o.status = 'retry'
RETURNING o.run_id, o.step_seq, o.attempt_no, o.position, o.finished_at
""",
    key=("run", "seq", "attempt", "position"),
)

MESSAGE = f"""
WITH r AS (SELECT r.id FROM runs_run r WHERE {_FENCE} FOR NO KEY UPDATE)
INSERT INTO runs_message AS m (id, run_id, step_seq, position, attempt_no, role, content, content_sealed, digest, created_at)
SELECT %(id)s, r.id, %(seq)s, %(position)s, %(attempt)s, %(role)s, %(content)s::jsonb, %(sealed)s, %(digest)s, agentops_now()
FROM r ON CONFLICT (run_id, step_seq, position) DO UPDATE SET position = m.position WHERE m.digest = excluded.digest
RETURNING m.created_at
"""

MESSAGES = """
SELECT step_seq, position, role, content, content_sealed, digest FROM runs_message WHERE run_id = %(run)s ORDER BY id
"""

LOG_LINE = f"""
WITH r AS (SELECT r.id FROM runs_run r WHERE {_FENCE} FOR NO KEY UPDATE)
INSERT INTO runs_log_line (id, run_id, step_seq, position, attempt_no, level, text, data, created_at)
SELECT %(id)s, r.id, %(seq)s, %(position)s, %(attempt)s, %(level)s, %(text)s, %(data)s::jsonb, agentops_now()
FROM r ON CONFLICT (run_id, step_seq, position) DO UPDATE SET position = excluded.position RETURNING 1
"""

EXTERNAL = f"""
UPDATE runs_run r SET external = r.external || %(added)s::jsonb WHERE {_FENCE} RETURNING 1
"""

#: One UPDATE renews the lease of every run that the worker holds; what it holds comes back for reconciliation.
BEAT = """
UPDATE runs_worker w SET beat_at = statement_timestamp(), lost_slots = %(lost)s, draining = %(draining)s,
    beat_until = statement_timestamp() + make_interval(secs => %(lease)s)
WHERE w.id = %(worker)s AND w.closed_at IS NULL
RETURNING (SELECT coalesce(jsonb_agg(jsonb_build_array(
        r.id, r.epoch, r.cancel_requested_at IS NOT NULL AND NOT r.compensating)), '[]')
    FROM runs_run r WHERE r.worker_id = %(worker)s), w.asked
"""
