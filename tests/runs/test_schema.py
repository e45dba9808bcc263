"""What the database itself refuses, and docs/schema.md, which names it."""

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, ProgrammingError, connection, transaction
from django.db.models import Model
from django.db.utils import DatabaseError

from approvals.models import (
    Answer,
    Approval,
    ApprovalVersion,
    Comment,
    Item,
    Question,
    ReadMark,
    Request,
    Vote,
)
from runs import clock, lifecycle
from runs.apps import APPEND_ONLY
from runs.models import (
    Attempt,
    AuditEvent,
    AuditHead,
    Bulk,
    BulkItem,
    ChainCheck,
    Clock,
    FailureGroup,
    Grant,
    Limit,
    LogLine,
    Message,
    Operation,
    Policy,
    Run,
    Signal,
    StartKey,
)
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db

PAGE = (Path(__file__).parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")


def rows(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


# --- the page ------------------------------------------------------------------------------------------------------------


def tables() -> list[str]:
    """Tables of runs and approvals in the database."""
    return [
        name
        for (name,) in rows(
            r"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(runs|approvals)_'"
            " AND relnamespace = 'public'::regnamespace ORDER BY relname"
        )
    ]


def section(table: str) -> str:
    found = re.search(rf"^## {table}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/schema.md has no section on {table}"
    return found[1]


def named(table: str, kind: str) -> list[str]:
    """The names in the first column of the section's table of columns, constraints, indexes or triggers."""
    found = re.search(rf"^\| {kind} \|.*\n\| --- \|.*\n((?:\|.*\n)+)", section(table) + "\n", re.MULTILINE)
    if not found:
        return []
    first_cells = [line.split("|")[1] for line in found[1].splitlines()]
    return [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_page_describes_every_table_and_no_other():
    sections = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert sorted(sections) == sorted([*tables(), "Functions"])


def test_the_page_names_every_function_and_no_other():
    there = [name for (name,) in rows(r"SELECT proname FROM pg_proc WHERE proname ~ '^agentops_'")]
    assert sorted(named("Functions", "function")) == sorted(there)


QUERIES = {
    "constraint": "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype IN ('c', 'f', 'p', 'u', 'x')",
    "index": "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = %s::regclass"
    " AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND conrelid = indrelid)",
    "trigger": "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND NOT tgisinternal",
}


@pytest.mark.parametrize("kind", QUERIES)
def test_the_page_names_everything_that_guards_or_speeds_up_a_table_and_nothing_else(kind: str):
    for table in tables():
        there = [name for (name,) in rows(QUERIES[kind], table)]
        assert sorted(named(table, kind)) == sorted(there), f"{kind} of {table}"


def test_every_column_on_the_page_exists():
    for table in tables():
        there = {
            name
            for (name,) in rows(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                table,
            )
        }
        assert set(named(table, "column")) <= there, table


def test_every_row_of_the_page_says_something():
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            assert all(cell.strip() for cell in line.strip("|").split("|")), line


def test_every_model_of_runs_and_approvals_has_its_table_here():
    models = [m for label in ("runs", "approvals") for m in apps.get_app_config(label).get_models()]
    assert sorted(m._meta.db_table for m in models) == tables()


# --- append-only ---------------------------------------------------------------------------------------------------------


def one_row_of_each() -> None:
    run = factories.run()
    now = clock.now()
    Attempt.objects.create(
        run_id=run.pk,
        step_seq=1,
        attempt_no=1,
        epoch=1,
        step="pack",
        outcome="succeeded",
        started_at=now,
        ended_at=now,
    )
    lifecycle.append_event(run, "noted", lifecycle.AGENT)
    AuditEvent.objects.create(kind="limits", target="tool charge", actor="Ada")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS chain IMMEDIATE")  # as at a commit
    StartKey.objects.create(
        workflow="parcel", start_key=str(run.pk), run_id=run.pk, input_digest="", deleted_at=now
    )
    factories.evidence(factories.operation(run))
    approval = factories.approval()
    Vote.objects.create(
        approval=approval, version=1, digest="", verdict="approve", voter=factories.user(), voter_name=""
    )
    factories.approval_policy()
    factories.request_vote()
    question = Question.objects.create(
        approval=approval, run_id=run.pk, number=1, version=1, text="why?", by="ann"
    )
    Answer.objects.create(question=question, run_id=run.pk, outcome="answered")
    Comment.objects.create(kind="approval", item_id=approval.pk, run_id=run.pk, text="look", by="ann")


CHANGES = {
    "approvals_policy_revision": "by = 'other'",
    "approvals_request_vote": "verdict = 'reject'",
    "runs_attempt": "error = 'other'",
    "runs_event": "reason = 'other'",
    "runs_audit_event": "reason = 'other'",
    "runs_audit_link": "head = ''",
    "approvals_vote": "verdict = 'reject'",
    "approvals_version": "payload = '{}'",
    "approvals_question": "text = 'other'",
    "approvals_answer": "text = 'other'",
    "approvals_comment": "text = 'other'",
    "runs_start_key": "start_key = 'other'",
    "runs_evidence": "name = 'other'",
}


def test_every_append_only_table_is_attacked_below():
    assert set(CHANGES) == set(APPEND_ONLY)


@pytest.mark.parametrize("statement", ["UPDATE {table} SET {change}", "DELETE FROM {table}"])
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_not_even_the_owner_changes_history(table: str, statement: str):
    one_row_of_each()
    before = rows(f"SELECT * FROM {table}")
    assert before
    with (
        pytest.raises(DatabaseError, match=f"{table} is append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement.format(table=table, change=CHANGES[table]))
    assert rows(f"SELECT * FROM {table}") == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {table} SET {change}",
        "DELETE FROM {table}",
        "TRUNCATE {table}",
        "ALTER TABLE {table} DISABLE TRIGGER ALL",
    ],
)
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_the_role_of_web_and_workers_has_no_right_to_change_history(table: str, statement: str):
    one_row_of_each()
    refused = pytest.raises(ProgrammingError, match=r"permission denied|must be owner")
    with refused, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE agentops_app")
        cursor.execute(statement.format(table=table, change=CHANGES[table]))


def test_the_role_of_web_and_workers_can_do_its_work():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE agentops_app")
        one_row_of_each()
        Run.objects.update(subject="other")
        Message.objects.all().delete()
        cursor.execute("RESET ROLE")


def test_the_role_of_web_and_workers_owns_nothing_and_creates_nothing():
    assert rows("SELECT relname FROM pg_class WHERE relowner = 'agentops_app'::regrole") == []
    ((superuser, login, creates),) = rows(
        "SELECT rolsuper, rolcanlogin, has_schema_privilege('agentops_app', 'public', 'CREATE') FROM pg_roles"
        " WHERE rolname = 'agentops_app'"
    )
    assert (superuser, login, creates) == (False, False, False)


def test_switching_the_session_to_pass_triggers_by_needs_a_superuser():
    with (
        pytest.raises(ProgrammingError, match="permission denied"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("SET LOCAL ROLE agentops_app")
        cursor.execute("SET LOCAL session_replication_role = replica")


# --- the event chain -----------------------------------------------------------------------------------------------------


def test_events_are_numbered_and_chained_from_an_empty_head():
    run = factories.run()
    lifecycle.append_event(run, "noted", lifecycle.AGENT, "why", n=1)
    run.refresh_from_db()
    heads = rows("SELECT seq, head FROM runs_event WHERE run_id = %s ORDER BY seq", run.pk)
    assert [seq for seq, _ in heads] == [1, 2]
    assert bytes(heads[-1][1]) == bytes(run.event_head)
    assert len({bytes(head) for _, head in heads}) == 2


def test_an_event_of_a_run_that_does_not_exist_is_refused():
    run = Run(pk=new_id())
    with pytest.raises(IntegrityError, match="no run"), transaction.atomic():
        lifecycle.append_event(run, "noted", lifecycle.AGENT)


def test_the_head_depends_on_every_part_of_the_text():
    text = "SELECT agentops_event_text(1, '2026-01-01T00:00:00Z', %s, %s, %s, %s, %s)"
    parts: list[tuple[object, ...]] = [
        ("k", 1, "a", "r", "{}"),
        ("K", 1, "a", "r", "{}"),
        ("k", None, "a", "r", "{}"),
        ("k", 1, "A", "r", "{}"),
        ("k", 1, "a", "R", "{}"),
        ("k", 1, "a", "r", '{"x": 1}'),
        ("k", 1, "a, r", "", "{}"),
    ]
    assert len({rows(text, *part)[0][0] for part in parts}) == len(parts)


def test_the_text_of_an_event_does_not_depend_on_the_time_zone_of_the_session():
    text = "SELECT agentops_event_text(1, '2026-01-01T00:00:00Z', 'k', NULL, 'a', '', '{}')"
    here = rows(text)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Asia/Kolkata'")
    assert rows(text) == here
    assert '"2026-01-01T00:00:00.000000Z"' in here[0][0]


# --- constraints ---------------------------------------------------------------------------------------------------------


def change(model: type[Model], make: Callable[[], Model], /, **fields: object) -> Callable[[], None]:
    """A statement that changes a fresh row in one way."""

    def attack() -> None:
        made = make()
        with transaction.atomic():
            model._default_manager.filter(pk=made.pk).update(**fields)

    return attack


def run_as(status: Status, /, **fields: object) -> Callable[[], None]:
    return change(Run, lambda: factories.run(status), **fields)


def operation_as(kind: Kind, status: OpStatus, /, **fields: object) -> Callable[[], None]:
    return change(Operation, lambda: factories.operation(factories.run(), kind, status), **fields)


def twice(make: Callable[[], object]) -> Callable[[], None]:
    def attack() -> None:
        with transaction.atomic():
            make()
            make()

    return attack


def signal(**fields: Any) -> Signal:
    given = {"name": "paid", "source": "bank", "external_id": str(uuid.uuid4()), "payload": {}, "digest": ""}
    return Signal.objects.create(**(given | fields))


def policy(**fields: Any) -> Callable[[], object]:
    return lambda: Policy.objects.create(**({"scope": "workflow", "name": "parcel"} | fields))


def failure_group(**fields: Any) -> Callable[[], object]:
    return change(
        FailureGroup, lambda: FailureGroup.objects.get(pk=factories.fingerprint(factories.failed())), **fields
    )


def limit(**fields: Any) -> Callable[[], object]:
    return lambda: Limit.objects.create(**({"key": "tool refund", "refilled_at": clock.now()} | fields))


def bulk(**fields: Any) -> Bulk:
    given = {"name": "Outage", "reason": "over", "verb": "retry", "filter": {}}
    named = {"started_by_name": "ada", "acts_for_name": "ada"}
    return Bulk.objects.create(**(given | named | fields))


def bulk_items(*items: dict[str, Any]) -> None:
    of = bulk()
    for fields in items:
        BulkItem.objects.create(**({"bulk": of, "place": 1, "run_id": RUN, "seen_version": 1} | fields))


DONE_ITEM = {"state": "done", "at": "2030-01-01T00:00:00Z"}
RUN, VISIT = new_id(), {"step_seq": 1, "position": "1", "attempt_no": 1}
LATER = {"wake_at": "2030-01-01T00:00:00Z", "sort_at": "2030-01-01T00:00:00Z"}

CHILD: dict[str, Any] = {"parent_id": new_id(), "parent_operation_id": new_id(), "child_index": 0, "depth": 1}

LATER_AT = "2030-01-01T00:00:00Z"

ITEM = uuid.uuid4()


def question(number: int) -> Question:
    approval = _MADE.setdefault("approval", None) or factories.approval()
    _MADE["approval"] = approval
    return Question.objects.create(
        approval=approval, run_id=approval.run_id, number=number, version=1, text="", by="ann"
    )


def item(**fields: Any) -> Item:
    return Item.objects.create(**{"kind": "doubt", "item_id": ITEM, "run_id": ITEM} | fields)


def mark(name: str, kind: str = "doubt") -> ReadMark:
    user = factories.user(name) if name else User.objects.get(username="olga-1")
    return ReadMark.objects.create(user=user, kind=kind, item_id=ITEM, run_id=ITEM, at=clock.now())


def granted(**fields: Any) -> Callable[[], object]:
    """A grant with something wrong."""
    return lambda: Grant.objects.create(
        **{"user": factories.user(), "capability": "view", "granted_by": "Ada"} | fields
    )


def granted_twice(make: Callable[[], dict[str, Any]]) -> Callable[[], object]:
    """The same grant, two times."""

    def attack() -> None:
        fields = make()
        for _ in range(2):
            Grant.objects.create(
                capability="view", scope="workflow", name="parcel", granted_by="Ada", **fields
            )

    return attack


BAD_ROWS: list[tuple[str, Callable[[], object]]] = [
    ("audit_head_one_row", lambda: AuditHead.objects.create(id=2, seq=0, head=b"")),
    ("chain_check_ended_iff_over", lambda: ChainCheck.objects.create(begun_by="ada", state="sound")),
    ("chain_check_ended_iff_over", lambda: ChainCheck.objects.create(begun_by="ada", ended_at=clock.now())),
    ("chain_check_broken_iff_said", lambda: ChainCheck.objects.create(begun_by="ada", said="it is broken")),
    (
        "chain_check_broken_iff_said",
        lambda: ChainCheck.objects.create(begun_by="ada", state="broken", ended_at=clock.now()),
    ),
    (
        "chain_check_one_at_work",
        lambda: ChainCheck.objects.bulk_create([ChainCheck(begun_by="ada"), ChainCheck(begun_by="bea")]),
    ),
    ("grant_user_or_group", granted(user=None)),
    ("grant_user_or_group", lambda: granted(group=Group.objects.create(name="both"))()),
    ("grant_capability_known", granted(capability="rule")),
    ("grant_scope_has_name", granted(scope="workflow")),
    ("grant_scope_has_name", granted(scope="everything", name="parcel")),
    ("grant_scope_has_name", granted(scope="planet", name="earth")),
    ("grant_user_once", granted_twice(lambda: {"user": factories.user()})),
    ("grant_group_once", granted_twice(lambda: {"group": Group.objects.create(name="twice")})),
    ("run_status_known", run_as(Status.WAITING, status="dancing")),
    ("run_priority_range", run_as(Status.QUEUED, priority=10)),
    ("run_worker_iff_running", run_as(Status.QUEUED, worker_id=new_id())),
    ("run_worker_iff_running", run_as(Status.RUNNING, worker_id=None)),
    ("run_worker_iff_running", run_as(Status.RUNNING, wake_at=None)),
    ("run_worker_iff_running", run_as(Status.RUNNING, sort_at="2030-01-01T00:00:00Z")),
    ("run_terminal_is_still", run_as(Status.COMPLETED, **LATER)),
    ("run_terminal_is_still", run_as(Status.COMPLETED, finished_at=None)),
    ("run_terminal_is_still", run_as(Status.QUEUED, finished_at="2030-01-01T00:00:00Z")),
    ("run_failed_iff_kind", run_as(Status.FAILED, failure_kind="")),
    ("run_failed_iff_kind", run_as(Status.COMPLETED, failure_kind="declared")),
    ("run_attention_iff_kind", run_as(Status.ATTENTION, attention_kind="")),
    ("run_attention_iff_kind", run_as(Status.QUEUED, attention_kind="diverged")),
    ("run_has_wake_source", run_as(Status.QUEUED, wake_at=None, sort_at=None)),
    ("run_has_wake_source", run_as(Status.RETRYING, wake_at=None, sort_at=None)),
    ("run_has_wake_source", run_as(Status.CANCELLING, wake_at=None, sort_at=None)),
    ("run_sort_follows_wake", run_as(Status.WAITING, wake_at="2030-01-01T00:00:00Z")),
    ("run_sort_follows_wake", run_as(Status.WAITING, sort_at="2030-01-01T00:00:00Z")),
    ("run_cancelling_compensates", run_as(Status.CANCELLING, compensating=False)),
    ("run_visit_counts_from_one", run_as(Status.QUEUED, step_seq=0)),
    ("run_start_key_once", twice(lambda: factories.run(start_key="7"))),
    ("run_child_once", twice(lambda: factories.run(**CHILD))),
    ("operation_identity", twice(lambda: factories.operation(factories_run(), position="1"))),
    ("operation_kind_known", operation_as(Kind.QUERY, OpStatus.DONE, kind="guess")),
    ("operation_status_known", lambda: unfinished_as_nothing()),
    ("operation_pending_has_intent", operation_as(Kind.EFFECT, OpStatus.PENDING, intent_epoch=None)),
    ("operation_pending_has_intent", operation_as(Kind.EFFECT, OpStatus.PENDING, intent_worker_id=None)),
    ("operation_pending_has_intent", operation_as(Kind.EFFECT, OpStatus.PENDING, provider_key=None)),
    ("operation_pending_has_intent", operation_as(Kind.EFFECT, OpStatus.PENDING, kind="query")),
    ("operation_open_is_wait", operation_as(Kind.SIGNAL, OpStatus.OPEN, kind="effect")),
    ("operation_finished_iff_final", operation_as(Kind.EFFECT, OpStatus.DONE, finished_at=None)),
    (
        "operation_finished_iff_final",
        operation_as(Kind.SIGNAL, OpStatus.OPEN, finished_at="2030-01-01T00:00:00Z"),
    ),
    ("operation_compensated_once", twice(lambda: factories.operation(factories_run(), compensates=RUN))),
    (
        "evidence_is_small",
        lambda: factories.evidence(factories.operation(factories_run()), body=bytes(1024 * 1024 + 1)),
    ),
    (
        "attempt_outcome_known",
        lambda: Attempt.objects.create(
            run_id=RUN,
            step_seq=1,
            attempt_no=1,
            epoch=1,
            step="",
            outcome="fine",
            started_at=clock.now(),
            ended_at=clock.now(),
        ),
    ),
    (
        "message_identity",
        twice(lambda: Message.objects.create(run_id=RUN, role="", content="", digest="", **VISIT)),
    ),
    ("log_line_identity", twice(lambda: LogLine.objects.create(run_id=RUN, text="", **VISIT))),
    ("signal_once", twice(lambda: signal(external_id="7"))),
    ("signal_settles_one_wait", twice(lambda: signal(consumed_by=RUN))),
    ("worker_reaped_is_closed", lambda: factories.worker(reaped_at=clock.now())),
    ("worker_asked_known", lambda: factories.worker(asked="dance")),
    ("policy_scope_once", twice(policy())),
    ("policy_scope_known", policy(scope="planet")),
    ("policy_attempts_range", policy(max_attempts=0)),
    ("policy_attempts_range", policy(max_attempts=1001)),
    ("policy_timeout_positive", policy(timeout_s=0)),
    ("policy_backoff_not_negative", policy(backoff_base_s=-0.1)),
    ("policy_backoff_not_negative", policy(backoff_max_s=-1)),
    ("policy_seconds_within_a_year", policy(timeout_s=1e12)),
    ("policy_seconds_within_a_year", policy(backoff_max_s=float("nan"))),
    ("policy_crash_limit_positive", policy(crash_limit=0)),
    ("policy_retention_range", policy(retention_days=0)),
    ("policy_retention_range", policy(retention_days=36_526)),
    ("policy_retention_is_workflow", policy(scope="tool", retention_days=5)),
    ("policy_pause_scope", policy(scope="tool", paused=True)),
    ("policy_everything_is_one", policy(scope="everything", name="nothing")),
    ("policy_concurrency_range", policy(concurrency=0)),
    ("policy_concurrency_range", policy(concurrency=1_000_001)),
    ("policy_rate_is_whole", policy(rate_count=5)),
    ("policy_rate_is_whole", policy(rate_period_s=60)),
    ("policy_rate_is_whole", policy(rate_count=0, rate_period_s=60)),
    ("policy_rate_is_whole", policy(rate_count=5, rate_period_s=0)),
    ("policy_priority_range", policy(priority=10)),
    ("policy_priority_range", policy(scope="tool", priority=1)),
    ("limit_tokens_not_negative", limit(tokens=-1)),
    ("bulk_status_known", lambda: bulk(status="dancing")),
    ("bulk_verb_known", lambda: bulk(verb="dance")),
    ("bulk_priority_of_its_verb", lambda: bulk(verb="prioritise")),
    ("bulk_priority_of_its_verb", lambda: bulk(verb="prioritise", priority=10)),
    ("bulk_priority_of_its_verb", lambda: bulk(priority=1)),
    ("bulk_says_why", lambda: bulk(reason="")),
    ("bulk_says_why", lambda: bulk(name="")),
    ("bulk_paused_from_somewhere", lambda: bulk(status="paused")),
    ("bulk_paused_from_somewhere", lambda: bulk(paused_from="running")),
    ("bulk_finished_iff_ended", lambda: bulk(status="done")),
    ("bulk_finished_iff_ended", lambda: bulk(finished_at="2030-01-01T00:00:00Z")),
    ("bulk_pace_range", lambda: bulk(rate=0)),
    ("bulk_pace_range", lambda: bulk(canary=51)),
    ("bulk_counts_no_more_than_all", lambda: bulk(total=3, done=2, refused=1, out=1)),
    ("bulk_ends_of_what_is_done", lambda: bulk(total=3, done=2, completed=2, failed=1)),
    ("bulk_item_run_once", lambda: bulk_items({"place": 1}, {"place": 2})),
    ("bulk_item_state_known", lambda: bulk_items({**DONE_ITEM, "state": "lost"})),
    ("bulk_item_at_iff_handled", lambda: bulk_items({"state": "done"})),
    ("bulk_item_at_iff_handled", lambda: bulk_items({"at": "2030-01-01T00:00:00Z"})),
    ("bulk_item_end_known", lambda: bulk_items({**DONE_ITEM, "ended": "well"})),
    ("bulk_item_end_of_done", lambda: bulk_items({"ended": "completed"})),
    ("failure_state_known", failure_group(state="forgotten")),
    ("failure_sort_known", failure_group(sort="mishap")),
    ("failure_fixed_in_version", failure_group(state="fixed")),
    ("failure_fixed_in_version", failure_group(state="fixed", fixed_in=0)),
    ("failure_seen_in_order", failure_group(first_at="2030-01-01T00:00:00Z")),
    ("clock_one_row", lambda: Clock.objects.create(id=2, shift="1 second")),
    (
        "approval_state_known",
        change(Approval, factories.approval, state="maybe", decided_at="2030-01-01T00:00:00Z"),
    ),
    ("approval_decided_iff_closed", change(Approval, factories.approval, state="approved")),
    ("approval_decided_iff_closed", change(Approval, factories.approval, decided_at="2030-01-01T00:00:00Z")),
    ("approval_asked_not_negative", change(Approval, factories.approval, asked=-1)),
    ("approval_version_once", twice(lambda: version(1))),
    ("vote_once_per_version", twice(lambda: vote("approve"))),
    ("vote_verdict_known", lambda: vote("perhaps")),
    ("approval_policy_once", twice(factories.approval_policy)),
    ("approval_policy_scope_known", lambda: factories.approval_policy(scope="planet")),
    ("approval_policy_active_has_rules", lambda: factories.approval_policy(rules=[])),
    (
        "approval_policy_silence_in_words",
        lambda: factories.approval_policy(rules=[{"on_expiry": "approve", "sentence": ""}]),
    ),
    ("approval_policy_silence_in_words", lambda: factories.approval_policy(rules=[{"on_expiry": "approve"}])),
    (
        "approval_policy_verb_needs_yes",
        lambda: factories.approval_policy("verb", "force_resume", rules=[{"on_expiry": "park"}]),
    ),
    ("approval_policy_revision_once", lambda: revision_again()),
    ("request_state_known", change(Request, factories.request, state="maybe", closed_at=LATER_AT)),
    ("request_closed_iff_over", change(Request, factories.request, state="rejected")),
    ("request_closed_iff_over", change(Request, factories.request, closed_at=LATER_AT)),
    ("request_done_has_votes", change(Request, factories.request, state="done", closed_at=LATER_AT)),
    ("request_done_has_votes", change(Request, factories.request, state="refused", closed_at=LATER_AT)),
    ("request_done_has_votes", change(Request, factories.request, votes=0)),
    ("request_open_once", twice(lambda: factories.request(factories_run()))),
    ("request_vote_once", lambda: request_vote_again()),
    ("request_vote_verdict_known", lambda: factories.request_vote(verdict="perhaps")),
    ("request_vote_by_another", lambda: own_request_vote()),
    ("question_once", lambda: [question(1), question(1)]),
    (
        "answer_outcome_known",
        lambda: Answer.objects.create(question=question(1), run_id=new_id(), outcome="perhaps"),
    ),
    ("item_once", lambda: [item(), item()]),
    ("item_kind_known", lambda: item(kind="other")),
    ("item_claimed_by_somebody", lambda: item(claimed_by_name="ann")),
    (
        "comment_kind_known",
        lambda: Comment.objects.create(kind="other", item_id=ITEM, run_id=ITEM, text="", by=""),
    ),
    ("read_mark_once", lambda: [mark("olga-1"), mark("")]),
    ("read_mark_kind_known", lambda: mark("olga-2", kind="other")),
]


def unfinished_as_nothing() -> None:
    """A status that is neither final nor not: without the other constraint, which refuses it first."""
    made = factories.operation(factories.run())
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE runs_operation DROP CONSTRAINT operation_finished_iff_final")
    Operation.objects.filter(pk=made.pk).update(status="perhaps")


_MADE: dict[str, Any] = {}


def factories_run() -> Run:
    """The same run for both rows of a pair."""
    if "run" not in _MADE:
        _MADE["run"] = factories.run()
    made: Run = _MADE["run"]
    return made


def _approval() -> Approval:
    if "approval" not in _MADE:
        _MADE["approval"] = factories.approval()
        _MADE["voter"] = factories.user()
    made: Approval = _MADE["approval"]
    return made


def revision_again() -> None:
    made = factories.approval_policy()
    made.pk = new_id()
    made.save(force_insert=True)


def request_vote_again() -> None:
    made = factories.request_vote()
    made.pk = new_id()
    made.save(force_insert=True)


def own_request_vote() -> None:
    made = factories.request()
    factories.request_vote(made, voter=made.requester)


def version(number: int) -> ApprovalVersion:
    return ApprovalVersion.objects.create(
        approval=_approval(), version=number + 1, payload={}, digest="", by=""
    )


def vote(verdict: str) -> Vote:
    of = _approval()
    return Vote.objects.create(
        approval=of, version=1, digest="", verdict=verdict, voter=_MADE["voter"], voter_name=""
    )


@pytest.mark.parametrize(
    ("constraint", "attack"), BAD_ROWS, ids=[f"{n}-{name}" for n, (name, _) in enumerate(BAD_ROWS)]
)
def test_the_database_refuses_a_bad_row(constraint: str, attack: Callable[[], object]):
    _MADE.clear()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE runs_run DISABLE TRIGGER state_chart")
    with pytest.raises(IntegrityError, match=rf"\b{constraint}\b"), transaction.atomic():
        attack()


def test_every_constraint_that_the_models_declare_is_attacked():
    declared = {
        c.name
        for label in ("runs", "approvals")
        for m in apps.get_app_config(label).get_models()
        for c in m._meta.constraints
    }
    # For the foreign key of votes alone: whatever breaks it breaks the primary key first.
    assert {name for name, _ in BAD_ROWS} == declared - {"request_of_requester"}


def test_two_tries_of_a_visit_cannot_have_one_number():
    one_row_of_each()
    made = Attempt.objects.get()
    with pytest.raises(IntegrityError, match="runs_attempt_pkey"), transaction.atomic():
        Attempt.objects.create(
            run_id=made.run_id,
            step_seq=1,
            attempt_no=1,
            epoch=2,
            step="pack",
            outcome="succeeded",
            started_at=made.started_at,
            ended_at=made.ended_at,
        )


# --- storage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "option"), [("runs_run", 70), ("runs_operation", 85), ("runs_worker", 50)])
def test_pages_leave_room_for_the_next_version_of_a_row(table: str, option: int):
    ((options,),) = rows("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", table)
    assert f"fillfactor={option}" in options
    assert f"`fillfactor` {option}" in section(table)


def test_no_index_holds_a_column_that_changes_at_each_step():
    """Else every checkpoint would write to every index of the table."""
    hot = {
        "step",
        "step_seq",
        "attempt_no",
        "epoch",
        "wake_at",
        "visit_started_at",
        "attempt_started_at",
        "failures",
    }
    hot |= {"lone_crashes", "state", "state_sealed", "event_seq", "event_head"}
    indexed = rows(
        "SELECT DISTINCT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)"
        " WHERE i.indrelid = 'runs_run'::regclass"
    )
    assert hot & {name for (name,) in indexed} == set()
