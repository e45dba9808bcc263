"""What people find on the pages of a console that has been in use: approvals, failure groups, bulks, history; over filled runs.

Unlike the rows of `fill` these are for pages alone: `manage.py doctor` would find decisions without events.
"""

from django.contrib.auth.models import User
from django.db import connection
from django.db.backends.utils import CursorWrapper

from agentops.benchmark.fill import insert
from approvals.models import Approval, ApprovalVersion, Vote
from runs.models import AuditEvent, Bulk, BulkItem, FailureGroup, FailureTally
from runs.models.operation import Kind, Operation, OpStatus

#: Failure groups, each with as many runs as the others.
GROUPS = 300
#: Of so many waiting runs, one waits for people.
ONE_IN = 2
#: Decided approvals, changes to limits, runs of a bulk: at most one for each … runs.
DECIDED, CHANGES, BULK = 25, 100, 10

_GROUP = f"md5('failure group ' || {{}} %% {GROUPS})::uuid"


def use() -> None:
    """Add it to all runs of the workflow `generated`. Commits, and refreshes the planner's statistics."""
    person, _ = User.objects.get_or_create(username="generator", defaults={"password": "!"})
    with connection.cursor() as cursor:
        _group_failures(cursor)
        _ask_people(cursor)
        _let_people_decide(cursor, person)
        _remember_what_people_did(cursor, person)
        _add_bulk(cursor)
        cursor.execute(
            "VACUUM (ANALYZE) runs_run, runs_operation, runs_event, runs_failure_group, runs_failure_tally, runs_bulk_item,"
            " runs_audit_event, approvals_approval, approvals_version, approvals_vote"
        )


def _group_failures(cursor: CursorWrapper) -> None:
    cursor.execute(
        f"UPDATE runs_run SET fingerprint = {_GROUP.format('hashtext(id::text)')}"  # noqa: S608 - constants
        " WHERE status IN ('failed', 'attention')",
        [],
    )
    insert(
        cursor,
        FailureGroup,
        {
            "fingerprint": "fingerprint",
            "signature": "md5(fingerprint::text)::uuid",
            "sort": f"CASE status WHEN 'failed' THEN '{FailureGroup.Sort.FAILURE}' ELSE '{FailureGroup.Sort.ATTENTION}' END",
            "workflow": "'generated'",
            "version": "1",
            "step": "'step_3'",
            "error_type": "'HTTPStatusError'",
            "message": "'The provider answered ' || row_number() OVER () || '.'",
            "first_at": "first_at",
            "last_at": "last_at",
            "state": "(ARRAY['open', 'acknowledged', 'handled'])[1 + row_number() OVER () %% 3]",
        },
        "(SELECT DISTINCT ON (fingerprint) fingerprint, status, min(created_at) OVER alike AS first_at,"
        " max(created_at) OVER alike AS last_at FROM runs_run WHERE fingerprint IS NOT NULL"
        " WINDOW alike AS (PARTITION BY fingerprint)) seen",
    )
    insert(
        cursor,
        FailureTally,
        {"fingerprint": "fingerprint", "hour": "hour", "shard": "0", "failures": "7"},
        "runs_failure_group, generate_series(date_trunc('hour', now()) - interval '14 days', now(), '1 hour') hour",
    )


_OF_APPROVAL = {
    "id": "id",
    "run_id": "run_id",
    "operation_id": "id",
    "name": "'refund'",
    "title": "'Refund €184.50 to the customer'",
    "why": "'The parcel was lost.'",
    "subject": "'order 77'",
    "schema": """'{"type": "object", "properties": {"amount": {"type": "number"}}}'::jsonb""",
    "requirement": "jsonb_build_object('groups', ARRAY['operators'], 'users', ARRAY[]::text[], 'votes', 1,"
    " 'excluded', ARRAY[]::text[], 'time_limit_s', null, 'escalation', null, 'on_expiry', 'reject')",
    "payload": "jsonb_build_object('amount', 184.5)",
    "digest": "''",
    "opened_at": "started_at",
}


def _ask_people(cursor: CursorWrapper) -> None:
    cursor.execute(
        "UPDATE runs_operation SET kind = %s, name = 'refund' WHERE status = 'open' AND kind = %s"
        " AND hashtext(id::text) %% %s = 0",
        [Kind.APPROVAL, Kind.SIGNAL, ONE_IN],
    )
    insert(
        cursor,
        Approval,
        {**_OF_APPROVAL, "expires_at": "now() + (1 + hashtext(id::text) & 1023) * interval '1 hour'"},
        f"runs_operation WHERE status = 'open' AND kind = '{Kind.APPROVAL}'",
    )


def _let_people_decide(cursor: CursorWrapper, person: User) -> None:
    insert(
        cursor,
        Operation,
        {
            "id": "gen_random_uuid()",
            "run_id": "id",
            "step_seq": "1",
            "position": "'4'",
            "ordinal": "4",
            "attempt_no": "1",
            "kind": f"'{Kind.APPROVAL}'",
            "name": "'refund'",
            "status": f"'{OpStatus.DONE}'",
            "args_digest": "''",
            "request": "'{}'",
            "response": "'{}'",
            "started_at": "created_at",
            "finished_at": "created_at + interval '1 second'",
        },
        f"(SELECT * FROM runs_run WHERE status = 'completed' LIMIT (SELECT count(*) / {DECIDED} FROM runs_run)) ended",  # noqa: S608
    )
    insert(
        cursor,
        Approval,
        {
            **_OF_APPROVAL,
            "state": f"'{Approval.State.APPROVED}'",
            "decided_at": "finished_at",
            "decided_by": "'generator'",
            "consumed_at": "finished_at",
        },
        f"runs_operation WHERE status = '{OpStatus.DONE}' AND kind = '{Kind.APPROVAL}'",
    )
    insert(
        cursor,
        ApprovalVersion,
        {
            "id": "gen_random_uuid()",
            "approval_id": "id",
            "version": "1",
            "payload": "payload",
            "digest": "digest",
            "by": "'agent'",
        },
        "approvals_approval",
    )
    insert(
        cursor,
        Vote,
        {
            "id": "gen_random_uuid()",
            "approval_id": "id",
            "version": "1",
            "digest": "digest",
            "verdict": f"'{Vote.Verdict.APPROVE}'",
            "voter_id": "%(person)s",
            "voter_name": "'generator'",
        },
        f"approvals_approval WHERE state = '{Approval.State.APPROVED}'",
        {"person": person.pk},
    )


def _remember_what_people_did(cursor: CursorWrapper, person: User) -> None:
    cursor.execute(
        "INSERT INTO runs_event (run_id, seq, at, kind, actor_id, actor, reason, data, head)"
        " SELECT id, 3, created_at + interval '1 hour', "
        " (ARRAY['retried', 'note', 'force_resumed'])[1 + abs(hashtext(id::text)) %% 3],"
        " %s, 'generator', 'the provider is back', '{}', '' FROM runs_run WHERE status IN ('failed', 'cancelled', 'attention')",
        [person.pk],
    )
    insert(
        cursor,
        AuditEvent,
        {
            "id": "gen_random_uuid()",
            "at": "created_at",
            "kind": "'limit_set'",
            "target": "'workflow generated'",
            "actor": "'generator'",
            "actor_id": "%(person)s",
            "old": "jsonb_build_object('retries', 5)",
            "new": "jsonb_build_object('retries', 8)",
        },
        f"(SELECT created_at FROM runs_run ORDER BY id LIMIT (SELECT count(*) / {CHANGES} FROM runs_run)) at",  # noqa: S608
        {"person": person.pk},
    )


def _add_bulk(cursor: CursorWrapper) -> None:
    bulk = Bulk.objects.create(
        name="Retry after the outage",
        reason="The provider is back",
        verb=Bulk.Verb.RETRY,
        filter={"status": "failed"},
        status=Bulk.Status.REVIEW,
        started_by_name="generator",
        acts_for_name="generator",
        chosen=True,
    )
    made = insert(
        cursor,
        BulkItem,
        {
            "bulk_id": "%(bulk)s",
            "place": "row_number() OVER (ORDER BY id)",
            "run_id": "id",
            "seen_version": "1",
            "state": f"'{BulkItem.State.OUT}'",
            "look": "'It has not failed'",
        },
        f"(SELECT id FROM runs_run ORDER BY id LIMIT (SELECT count(*) / {BULK} FROM runs_run)) chosen",  # noqa: S608
        {"bulk": bulk.pk},
    )
    Bulk.objects.filter(pk=bulk.pk).update(total=made, looked=made, out=made)
