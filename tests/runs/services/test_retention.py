"""Retention: what goes, what stays, and who may."""

import io
import json
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import IntegrityError, ProgrammingError, connection, transaction
from django.db.utils import DatabaseError
from pytest_django import Settings

from approvals.models import (
    Answer,
    Approval,
    ApprovalVersion,
    Comment,
    Item,
    ItemKind,
    Question,
    ReadMark,
    Vote,
)
from approvals.policies.models import Request, RequestVote
from approvals.services import decide
from runs import blobs, clock, doctor, lifecycle, services
from runs.errors import Conflict, Invalid, NotAllowed, NotFound
from runs.models import Attempt, AuditEvent, Event, Evidence, LimitedCall, LogLine, Message, Run
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.services import force_resume, receive_signal, retention
from runs.services.retention import RETENTION, Rule, delete_finished, over_age, rules, tick
from runs.states import TERMINAL, Status
from tests import factories
from tests.harness.waiting import wait_until
from tests.races import Caller, run_held, wait_until_blocked
from tests.runs.engine.conftest import running_worker

pytestmark = pytest.mark.django_db

NINETY = Rule("parcel", 90, "setting")


def years_pass(days: float = 100) -> None:
    """Let everything that is there now be that old."""
    clock.shift(timedelta(days=days))


def asked(*runs: Run, days: float = 90) -> int:
    """Ask the SQL function itself, whatever the service would have chosen. How many it deleted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT cardinality(agentops_delete_runs(%s, make_interval(secs => %s), %s, NULL, 'test', 'because'))",
            [[run.pk for run in runs], days * 86_400, new_id()],
        )
        count: int = cursor.fetchone()[0]
        return count


def rows_of(run: Run) -> dict[str, int]:
    """How many rows each table has of this run; every table with a `run_id`, also one that is added later."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'run_id'"
            " AND table_name ~ '^(runs|approvals)_' AND table_name NOT IN ('runs_start_key', 'runs_bulk_item')"
        )
        tables = [name for (name,) in cursor.fetchall()]
        counts = {}
        for table in tables:
            cursor.execute(f"SELECT count(*) FROM {table} WHERE run_id = %s", [run.pk])
            counts[table] = cursor.fetchone()[0]
    return counts


def told(line: AuditEvent) -> dict[str, Any]:
    counts: dict[str, Any] | None = line.old
    assert counts is not None
    return counts


def found_by_doctor() -> set[str]:
    """Names of the checks of the data that find something."""
    doctor.load()
    with connection.cursor() as cursor:
        # What a commit would do: the audit is chained at the end of a transaction.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        at = doctor.Snapshot(cursor, grace=0)
        return {problem.check for problem in doctor.run_checks(doctor.DATA, at)}


def full_run() -> Run:
    """A finished run with rows in every table that has any of a run."""
    run = factories.run(start_key=f"key {uuid.uuid4()}")
    approval = factories.approval(run)
    decide(factories.operator(), approval.pk, version=1, digest=approval.digest, verdict="approve")
    factories.operation(run, Kind.EFFECT, OpStatus.DONE)
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
    place = {"run_id": run.pk, "step_seq": 1, "attempt_no": 1}
    Message.objects.create(role="user", content="hello", digest="", position="1", **place)
    LogLine.objects.create(text="packing", position="2", **place)
    receive_signal(
        factories.SYSTEM, name="paid", payload=1, run_id=run.pk, source="bank", external_id=str(run.pk)
    )
    with connection.cursor() as cursor:
        cursor.execute(blobs.WRITE, {"keys": [f"of {run.pk}"], "bodies": [b"large"], "run": run.pk})
    Run.objects.filter(pk=run.pk).update(attempt_no=1)
    _what_people_did(run, approval)
    return finished(run)


def _what_people_did(run: Run, approval: Approval) -> None:
    """Rows about the run that people left, and what limits keep of it."""
    person = factories.user()
    question = Question.objects.create(
        approval=approval, run_id=run.pk, number=1, version=1, text="Why so much?", by="olga"
    )
    Answer.objects.create(
        question=question, run_id=run.pk, outcome=Answer.Outcome.ANSWERED, text="As agreed."
    )
    item: dict[str, Any] = {"kind": ItemKind.APPROVAL, "item_id": approval.pk, "run_id": run.pk}
    Item.objects.create(**item)
    Comment.objects.create(text="Looks fine", by="olga", **item)
    ReadMark.objects.create(user=person, at=clock.now(), **item)
    asked_for = Request.objects.create(
        verb="force_resume",
        function="force_resume",
        target=f"run {run.pk}",
        run_id=run.pk,
        title="Force it on",
        arguments={},
        digest="d",
        sent_digest="s",
        facts={},
        requirement={},
        votes=1,
        requester=person,
        requester_name=person.username,
    )
    RequestVote.objects.create(
        request=asked_for,
        requester_id=person.pk,
        digest="d",
        verdict="approve",
        voter=factories.user(),
        voter_name="omar",
    )
    Evidence.objects.create(
        run_id=run.pk,
        operation=approval.operation,
        name="receipt.txt",
        sha256="0" * 64,
        body=b"paid",
        actor="olga",
    )
    LimitedCall.objects.create(
        id=uuid.uuid4(), key="tool mail", run_id=run.pk, worker_id=factories.worker().pk
    )


def finished(run: Run, status: Status = Status.COMPLETED) -> Run:
    with transaction.atomic():
        run = lifecycle.lock_run(run.pk)
        Run.objects.filter(pk=run.pk).update(
            status=Status.RUNNING, worker_id=factories.worker().pk, wake_at=clock.now(), sort_at=None
        )
        run.refresh_from_db()
        lifecycle.end(run, status, factories.SYSTEM)
    return run


# --- what goes ---------------------------------------------------------------------------------------------------------


def test_an_old_finished_run_goes_with_everything_that_is_its_and_nothing_of_another():
    gone, other = full_run(), full_run()
    before = rows_of(gone)
    assert min(before.values()) > 0, before
    years_pass()
    kept, healthy = rows_of(other), found_by_doctor()
    assert asked(gone) == 1
    blobs.sweep()
    assert not Run.objects.filter(pk=gone.pk).exists()
    assert set(rows_of(gone).values()) == {0}
    assert rows_of(other) == kept
    votes = Vote.objects.values_list("approval__run", flat=True)
    versions = ApprovalVersion.objects.values_list("approval__run", flat=True)
    assert set(votes) == set(versions) == {other.pk}
    assert found_by_doctor() <= healthy


def test_a_blob_that_no_run_uses_any_more_goes_and_a_shared_one_stays():
    gone, other = full_run(), full_run()
    with connection.cursor() as cursor:
        for run in (gone, other):
            cursor.execute(blobs.WRITE, {"keys": ["shared"], "bodies": [b"x"], "run": run.pk})
    years_pass()
    Run.objects.filter(pk=other.pk).update(finished_at=clock.now())
    assert tick() == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT sha256 FROM runs_blob ORDER BY sha256")
        assert [key for (key,) in cursor.fetchall()] == sorted([f"of {other.pk}", "shared"])


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_runs_go_however_they_ended_also_those_that_never_began(status: Status):
    factories.run(status)
    years_pass()
    assert delete_finished(RETENTION, NINETY).runs == 1
    assert not Run.objects.exists()


def test_the_oldest_go_first_in_batches(monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 2)
    runs = [factories.run(Status.COMPLETED) for _ in range(5)]
    years_pass()
    assert [run.pk for run in over_age(NINETY, clock.now())] == [run.pk for run in runs]
    assert delete_finished(RETENTION, NINETY).runs == 5
    lines = AuditEvent.objects.filter(kind="runs_deleted").order_by("id")
    assert [told(line)["runs"] for line in lines] == [2, 2, 1]


# --- what stays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(set(Status) - TERMINAL))
def test_an_unfinished_run_stays_however_old_also_when_asked_for_by_its_id(status: Status):
    run = factories.run(status)
    years_pass(10_000)
    assert delete_finished(RETENTION, NINETY).runs == 0
    assert asked(run) == 0
    assert Run.objects.get() == run


def test_a_young_run_stays_also_when_asked_for_by_its_id():
    factories.run(Status.COMPLETED)
    years_pass(89)
    run = Run.objects.get()
    assert delete_finished(RETENTION, NINETY).runs == 0
    assert asked(run) == 0
    years_pass(2)
    assert asked(run) == 1


def test_a_finished_run_with_an_effect_in_doubt_stays():
    """It cannot come about; but if it did, the run would be the only trace."""
    run = factories.run(Status.FAILED)
    factories.operation(run, Kind.EFFECT, OpStatus.PENDING)
    years_pass()
    assert asked(run) == 0
    assert delete_finished(RETENTION, NINETY).kept == 1


def test_what_people_changed_stays():
    services.set_limits(factories.admin(), "workflow", "parcel", max_attempts=2)
    factories.run(Status.COMPLETED)
    years_pass()
    assert tick() == 1
    assert sorted(AuditEvent.objects.values_list("kind", flat=True)) == ["limits_changed", "runs_deleted"]


@pytest.mark.parametrize("age", [timedelta(0), timedelta(hours=23), timedelta(days=-1)])
def test_no_run_goes_within_a_day_of_its_end(age: timedelta):
    run = factories.run(Status.COMPLETED)
    with pytest.raises(DatabaseError, match="a day at least"), transaction.atomic():
        asked(run, days=age / timedelta(days=1))


# --- families ----------------------------------------------------------------------------------------------------------


def family(child: Status, parent: Status = Status.COMPLETED) -> tuple[Run, Run]:
    """A run and one that it had started."""
    parent_run = factories.run(parent)
    wait = factories.operation(parent_run, Kind.CHILD, OpStatus.DONE, children=1)
    return parent_run, factories.run(
        child, parent_id=parent_run.pk, parent_operation_id=wait.pk, child_index=0, depth=1
    )


@pytest.mark.parametrize("child", sorted(set(Status) - TERMINAL))
def test_a_run_stays_while_one_that_it_started_is_not_finished(child: Status):
    parent, _ = family(child)
    years_pass()
    assert asked(parent) == 0
    assert tick() == 0


def test_a_family_goes_from_the_top():
    parent, child = family(Status.FAILED)
    years_pass()
    assert asked(child) == 0, "a parent that is retried reads what its children came to"
    assert asked(parent, child) == 1
    assert asked(child) == 1
    assert not Run.objects.exists()


def test_a_finished_run_stays_while_the_one_that_started_it_is_not_finished():
    parent, child = family(Status.COMPLETED, parent=Status.FAILED)
    services.retry(factories.support(), parent.pk)
    years_pass()
    assert asked(child) == 0
    assert tick() == 0


@pytest.mark.django_db(transaction=True)
def test_a_run_stays_while_somebody_works_on_one_that_it_started():
    """A child that is retried in this moment would be left without its parent."""
    parent, child = family(Status.FAILED)
    years_pass()
    with run_held(child.pk):
        assert Caller(lambda: asked(parent)).join().result == 0
    assert asked(parent) == 1


# --- start keys --------------------------------------------------------------------------------------------------------

GIVEN = {"order": "1042", "amount": "12.50"}


def spent_key() -> Run:
    run = services.start(factories.SYSTEM, "parcel", GIVEN, start_key="mail 7").run
    finished(run)
    years_pass()
    assert tick() == 1
    return run


def test_a_start_key_outlives_its_run():
    run = spent_key()
    again = services.start(factories.SYSTEM, "parcel", GIVEN, start_key="mail 7")
    assert (again.run.pk, again.created, again.deleted) == (run.pk, False, True)
    with pytest.raises(Conflict, match=rf"another input, by run {run.pk}, which has been deleted"):
        services.start(factories.SYSTEM, "parcel", {"order": "other"}, start_key="mail 7")
    assert not Run.objects.exists()
    assert services.start(factories.SYSTEM, "parcel", GIVEN, start_key="mail 8").created


def test_a_file_that_is_started_again_starts_nothing_twice_after_retention():
    def lines() -> list[str]:
        return ['{"order": "1"}', '{"order": "2"}']

    (first,) = services.start_many(factories.SYSTEM, "parcel", lines(), start_key=lambda n: f"f/{n}")
    finished(Run.objects.get(pk=first.started[0]))
    years_pass()
    assert tick() == 1
    (again,) = services.start_many(factories.SYSTEM, "parcel", lines(), start_key=lambda n: f"f/{n}")
    assert (again.started, set(again.existing), again.refused) == ([], set(first.started), [])
    other = ['{"order": "other"}', '{"order": "2"}', '{"order": "3"}']
    (third,) = services.start_many(factories.SYSTEM, "parcel", other, start_key=lambda n: f"f/{n}")
    assert (len(third.started), len(third.existing), [r.line for r in third.refused]) == (1, 1, [1])


@pytest.mark.django_db(transaction=True)
def test_a_start_while_the_run_of_its_key_is_being_deleted_starts_no_second_one():
    """The key must not be free in the moment between the two tables: what is known is not inserted again."""
    run = services.start(factories.SYSTEM, "parcel", GIVEN, start_key="mail 7").run
    finished(run)
    years_pass()
    with transaction.atomic():
        assert asked(run) == 1
        one = Caller(lambda: services.start(factories.SYSTEM, "parcel", GIVEN, start_key="mail 7"))
        line = ['{"order": "1042", "amount": "12.50"}']
        many = Caller(
            lambda: list(services.start_many(factories.SYSTEM, "parcel", line, start_key=lambda n: "mail 7"))
        )
        started, (batch,) = one.join().result, many.join().result
    assert (started.run.pk, started.created) == (run.pk, False)
    assert (batch.started, batch.existing) == ([], [run.pk])
    assert not Run.objects.exists()


def test_starting_by_hand_says_that_the_run_is_gone(tmp_path: Path):
    run, file, out = spent_key(), tmp_path / "input.json", io.StringIO()
    file.write_text(json.dumps(GIVEN))
    call_command("start", "parcel", "--key", "mail 7", "--input", str(file), stdout=out)
    assert out.getvalue() == f"{run.pk} had been started before, and has been deleted since\n"


# --- who may -----------------------------------------------------------------------------------------------------------


def test_the_role_of_web_and_workers_may_ask_for_it_and_not_delete_history_itself():
    run, other = full_run(), full_run()
    years_pass()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE agentops_app")
        assert asked(run) == 1
        refused = pytest.raises(ProgrammingError, match="permission denied")
        for table in ("runs_event", "runs_attempt", "approvals_vote", "approvals_version", "runs_start_key"):
            with refused, transaction.atomic():
                cursor.execute("SET LOCAL agentops.retention = 'on'")
                cursor.execute(f"DELETE FROM {table}")
        cursor.execute("RESET ROLE")
    assert Event.objects.filter(run_id=other.pk).exists()


def test_nobody_else_may_ask_for_it():
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE agentops_nobody")
        try:
            cursor.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO agentops_nobody")
            with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
                cursor.execute("SET LOCAL ROLE agentops_nobody")
                asked()
        finally:
            cursor.execute("RESET ROLE")


def test_after_it_the_owner_is_held_back_as_before():
    gone, other = full_run(), full_run()
    years_pass()
    assert asked(gone) == 1
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("DELETE FROM runs_event WHERE run_id = %s", [other.pk])


def test_people_need_a_permission():
    with pytest.raises(NotAllowed):
        delete_finished(factories.admin(), NINETY)
    factories.run(Status.COMPLETED)
    years_pass()
    person = factories.user("rita")
    person.user_permissions.add(Permission.objects.get(codename="delete_run", content_type__app_label="runs"))
    assert delete_finished(lifecycle.Actor.of(person), NINETY).runs == 1
    assert AuditEvent.objects.get(kind="runs_deleted").actor == "rita"


def test_the_line_of_audit_says_what_how_many_and_by_which_rule():
    for _ in range(3):
        factories.run(Status.COMPLETED)
    ended = Run.objects.order_by("finished_at").values_list("finished_at", flat=True)
    first, last = ended[0], ended[2]
    years_pass()
    tick()
    line = AuditEvent.objects.get(kind="runs_deleted")
    assert (line.target, line.actor) == ("workflow parcel", "retention")
    assert line.reason == "finished more than 90 days ago (setting)"
    assert told(line)["runs"] == 3
    assert told(line)["finished_from"][:19] == f"{first:%Y-%m-%dT%H:%M:%S}"
    assert told(line)["finished_to"][:19] == f"{last:%Y-%m-%dT%H:%M:%S}"


def test_verbs_on_a_deleted_run_find_nothing():
    run = full_run()
    approval = Approval.objects.get(run=run)
    years_pass()
    tick()
    for verb in (
        lambda: services.cancel(factories.support(), run.pk),
        lambda: services.retry(factories.support(), run.pk),
        lambda: force_resume(factories.support(), run.pk),
        lambda: decide(factories.operator(), approval.pk, version=1, digest="", verdict="approve"),
        lambda: receive_signal(
            factories.SYSTEM, name="paid", payload=1, run_id=run.pk, source="bank", external_id="new"
        ),
    ):
        with pytest.raises(NotFound):
            verb()


# --- how long ----------------------------------------------------------------------------------------------------------


def days() -> tuple[int, str]:
    (rule,) = rules()
    return rule.days, rule.source


def test_an_override_counts_before_the_workflow_and_the_workflow_before_the_setting(
    settings: Settings, monkeypatch
):
    factories.run(Status.COMPLETED)
    settings.AGENTOPS_RETENTION_DAYS = 30
    assert days() == (30, "setting")
    monkeypatch.setattr(factories.parcel, "retention", timedelta(days=6, hours=1))
    assert days() == (7, "workflow")
    services.set_limits(factories.admin("ada"), "workflow", "parcel", retention_days=2)
    assert days() == (2, "override by ada")
    services.clear_limits(factories.admin("bea"), "workflow", "parcel")
    assert days() == (7, "workflow")


def test_zero_days_keep_runs_for_ever(settings: Settings):
    settings.AGENTOPS_RETENTION_DAYS = 0
    factories.run(Status.COMPLETED)
    years_pass(30_000)
    assert tick() == 0
    services.set_limits(factories.admin(), "workflow", "parcel", retention_days=1)
    assert tick() == 1


@pytest.mark.parametrize("value", [0, -1, 36_526])
def test_an_age_that_is_none_is_refused(value: int):
    with pytest.raises(Invalid):
        services.set_limits(factories.admin(), "workflow", "parcel", retention_days=value)


def test_only_a_workflow_has_an_age():
    with pytest.raises(Invalid):
        services.set_limits(factories.admin(), "step", "parcel/pack", retention_days=5)


def test_a_workflow_that_no_code_declares_any_more_has_the_age_of_the_setting():
    factories.run(Status.COMPLETED, workflow="forgotten")
    factories.run(Status.COMPLETED)
    assert [rule.workflow for rule in rules()] == ["forgotten", "parcel"]
    years_pass()
    assert tick() == 2


def test_the_page_says_what_a_shorter_age_would_delete():
    factories.run(Status.COMPLETED)
    years_pass(10)
    said = services.preview_set_limits("workflow", "parcel", retention_days=5).sentence
    assert "1 finished run is older" in said
    assert (
        "nothing is deleted" in services.preview_set_limits("workflow", "parcel", retention_days=20).sentence
    )


# --- beside other work -------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_run_that_somebody_works_on_is_passed_by_and_goes_the_next_time():
    run = full_run()
    years_pass()
    with run_held(run.pk):
        passed = Caller(lambda: delete_finished(RETENTION, NINETY)).join()
        assert (passed.result.runs, passed.result.kept) == (0, 1)
    assert delete_finished(RETENTION, NINETY).runs == 1


@pytest.mark.django_db(transaction=True)
def test_who_waits_for_a_run_that_is_being_deleted_is_told_that_it_is_gone():
    run, support = full_run(), factories.support()
    years_pass()
    with transaction.atomic():
        assert asked(run) == 1
        late = Caller(lambda: services.retry(support, run.pk))
        wait_until_blocked(1)
    assert isinstance(late.join().error, NotFound)


@pytest.mark.django_db(transaction=True)
def test_one_run_that_something_else_refers_to_keeps_no_other(monkeypatch):
    runs = [factories.run(Status.COMPLETED) for _ in range(7)]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE site_note (run uuid REFERENCES runs_run DEFERRABLE INITIALLY DEFERRED)")
        cursor.execute("INSERT INTO site_note VALUES (%s)", [runs[3].pk])
    years_pass()
    deleted = delete_finished(RETENTION, NINETY)
    assert (deleted.runs, deleted.kept) == (6, 1)
    assert Run.objects.get() == runs[3]
    with pytest.raises(IntegrityError):
        asked(runs[3])


@pytest.mark.django_db(transaction=True)
def test_one_worker_at_a_time_takes_a_turn_and_a_turn_comes_to_an_end():
    for _ in range(3):
        factories.run(Status.COMPLETED)
    years_pass()
    assert tick(seconds=0) == 0

    def held() -> int:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('agentops retention', 0))")
            return Caller(tick).join().result  # type: ignore[no-any-return]

    assert held() == 0
    assert tick() == 3


@pytest.mark.django_db(transaction=True)
def test_a_worker_takes_its_turn_by_itself(monkeypatch, settings: Settings):
    settings.AGENTOPS_BEAT_SECONDS, settings.AGENTOPS_POLL_SECONDS = 0.2, 0.05
    monkeypatch.setattr(retention, "TICK_EVERY", 0.05)
    factories.run(Status.COMPLETED)
    years_pass()
    with running_worker():
        wait_until(lambda: not Run.objects.exists(), 15, "the run is deleted")


@pytest.mark.django_db(transaction=True)
def test_ten_thousand_runs_leave_no_more_behind_than_their_space():
    """Filled and purged again and again, the tables do not grow."""

    def fill() -> None:
        with connection.cursor() as cursor:
            cursor.execute(FILL)

    def size() -> int:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM (ANALYZE) runs_run")
            cursor.execute("VACUUM (ANALYZE) runs_attempt")
            cursor.execute(
                "SELECT pg_total_relation_size('runs_run') + pg_total_relation_size('runs_attempt')"
            )
            found: int = cursor.fetchone()[0]
            return found

    sizes = []
    for _ in range(4):
        fill()
        sizes.append(size())
        years_pass()
        assert delete_finished(RETENTION, NINETY).runs == 10_000
        size()
    assert Attempt.objects.count() == Run.objects.count() == 0
    # Pages of indexes that became empty are used again only some vacuums later; what stays behind would make this fourfold.
    assert sizes[3] < sizes[0] * 1.8, sizes


FILL = """
WITH made AS (
    INSERT INTO runs_run (id, workflow, version, queue, priority, subject, tenant, started_by_name, created_at, input,
        input_digest, step, step_seq, attempt_no, status, epoch, visit_started_at, failures, crashes, lone_crashes, state,
        event_seq, event_head, held_by, compensating, resume_step, cancel_requested_by, attention_kind, failure_kind, reason,
        external, finished_at)
    SELECT (lpad(to_hex((extract(epoch FROM statement_timestamp()) * 1000)::bigint), 12, '0')
            || substr(md5(n::text || random()), 1, 20))::uuid,
        'parcel', 1, 'default', 0, '', '', 'x', agentops_now(), '{}', '', 'pack', 1, 1, 'completed', 1, agentops_now(), 0, 0, 0,
        jsonb_build_object('text', repeat('x', 200)), 0, '', '', false, '', '', '', '', '', '{}', agentops_now()
    FROM generate_series(1, 10000) n RETURNING id
)
INSERT INTO runs_attempt (run_id, step_seq, attempt_no, epoch, step, outcome, started_at, ended_at, error_type, error,
    traceback, closed_by)
SELECT id, 1, 1, 1, 'pack', 'succeeded', agentops_now(), agentops_now(), '', '', '', '' FROM made
"""


# --- the command -------------------------------------------------------------------------------------------------------


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("retention", *arguments, stdout=out)
    return out.getvalue()


def test_a_dry_run_says_what_would_go_and_deletes_nothing():
    factories.run(Status.COMPLETED)
    years_pass()
    assert "parcel: 1 run, finished more than 90 days ago (setting), would be deleted" in command("--dry-run")
    assert Run.objects.count() == 1


def test_the_command_deletes_and_says_so():
    factories.run(Status.COMPLETED)
    factories.run(Status.FAILED)
    years_pass()
    assert command() == "parcel: 2 runs, finished more than 90 days ago (setting), deleted\n"
    assert AuditEvent.objects.get(kind="runs_deleted").actor == "command line"


def test_the_command_takes_another_age_and_only_some_workflows():
    factories.run(Status.COMPLETED)
    factories.run(Status.COMPLETED, workflow="forgotten")
    years_pass(10)
    assert "0 runs" in command("--dry-run")
    assert command("--older-than", "9", "--workflow", "parcel") == (
        "parcel: 1 run, finished more than 9 days ago (command), deleted\n"
    )
    assert Run.objects.get().workflow == "forgotten"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--older-than", "0"], "a day at least"), (["--workflow", "nothing"], "no runs of nothing")],
)
def test_the_command_refuses_what_makes_no_sense(arguments: list[str], told: str):
    with pytest.raises(CommandError, match=told):
        command(*arguments)


def test_the_command_says_what_is_kept_for_ever(settings: Settings):
    settings.AGENTOPS_RETENTION_DAYS = 0
    factories.run(Status.COMPLETED)
    assert command() == "parcel: runs are kept for ever (setting)\n"
