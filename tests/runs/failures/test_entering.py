"""What is recorded when a run enters `failed` or `attention`, on every way into it."""

import inspect
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

import runs
from runs import clock, lifecycle, services
from runs.diagnosis import failures
from runs.engine import closing
from runs.engine.execution import record_attempt
from runs.lifecycle import Actor
from runs.models import Attempt, AuditEvent, FailureGroup, FailureTally, Run
from runs.services import failures as verbs
from runs.states import AttentionKind, FailureKind, Outcome, Status
from tests import factories

pytestmark = pytest.mark.django_db


def user_of(person: Actor) -> User:
    assert isinstance(person.user, User)
    return person.user


def group_of(run: Run) -> FailureGroup:
    run.refresh_from_db()
    return FailureGroup.objects.get(pk=factories.fingerprint(run))


def running(**fields) -> Run:
    return lifecycle.lock_run(factories.run(Status.RUNNING, **fields).pk)


# --- what a group is made of ---------------------------------------------------------------------------------------------


def test_failures_that_differ_in_numbers_alone_are_in_one_group():
    one, other = (factories.failed("KeyError", f"no order {number}") for number in (7, 1042))
    assert one.fingerprint == other.fingerprint
    group = group_of(one)
    assert (group.error_type, group.message) == ("KeyError", "no order <n>")
    assert (group.workflow, group.step, group.version, group.state) == ("parcel", "pack", 1, "open")
    assert sum(FailureTally.objects.values_list("failures", flat=True)) == 2


def test_a_no_of_people_is_one_group_whoever_said_it_and_why():
    texts = (
        "pay_back: rejected by omar: not this one",
        "pay_back: rejected by ada\nand bo: too much\n\nreally",
    )
    one, other = (factories.failed("Rejected", text) for text in texts)
    assert one.fingerprint == other.fingerprint
    assert group_of(one).message == "pay_back: rejected"
    assert factories.failed("Rejected", "pay_back: expired by clock").fingerprint != one.fingerprint
    assert (
        factories.failed("ValueError", texts[0]).fingerprint
        != factories.failed("ValueError", texts[1]).fingerprint
    )


@pytest.mark.parametrize("other", [{"version": 2}, {"step": "ship"}, {"workflow": "letter"}])
def test_another_version_step_or_workflow_is_another_group(other):
    assert factories.failed().fingerprint != factories.failed(**other).fingerprint


def test_the_first_and_the_last_time_are_kept():
    first = factories.failed()
    clock.shift(timedelta(minutes=5))
    second = factories.failed()
    group = group_of(first)
    assert (group.first_at, group.last_at) == (first.finished_at, second.finished_at)


# --- every way into it ---------------------------------------------------------------------------------------------------


def test_the_error_of_the_attempt_counts_and_not_the_sentence_around_it():
    run = running(failures=4)
    record_attempt(run, Outcome.FAILED, error_type="Timeout", error="page 17 took 30 s")
    closing.spend_failure(run, closing.limits_of(run), factories.SYSTEM, reason="Timeout: page 17")
    group = group_of(run)
    assert (run.failure_kind, group.error_type, group.message) == (
        FailureKind.EXHAUSTED,
        "Timeout",
        "page <n> took <n> s",
    )


def test_a_worker_that_died_too_often():
    run = running(crashes=5, lone_crashes=2)
    closing.close_dead_attempt(run, outcome=Outcome.CRASHED, closed_by="worker 9", error="worker 9 is gone")
    group = group_of(run)
    assert (run.failure_kind, group.error_type) == (FailureKind.CRASHED, "WorkerLost")
    assert group.message == "killed its worker <n> times while running alone in it"


def test_an_attempt_that_took_too_long():
    run = running(failures=4)
    closing.close_dead_attempt(run, outcome=Outcome.TIMED_OUT, closed_by="", error="took longer than 60 s")
    assert (run.failure_kind, group_of(run).error_type) == (FailureKind.EXHAUSTED, "Timed out")


def test_a_limit_that_was_lowered_shows_the_error_that_spent_it():
    run = running(failures=3)
    Attempt.objects.create(
        run_id=run.pk,
        step_seq=1,
        attempt_no=run.attempt_no,
        epoch=1,
        step="pack",
        outcome=Outcome.FAILED,
        started_at=run.created_at,
        ended_at=run.created_at,
        error_type="KeyError",
        error="'order_total'",
    )
    run.attempt_no += 1
    record_attempt(run, Outcome.FENCED, error="the retry limit was lowered")
    closing.exhaust(
        run, factories.SYSTEM, reason="the retry limit was lowered", limits=closing.limits_of(run)
    )
    assert group_of(run).error_type == "KeyError"


def test_a_run_that_fails_without_any_attempt_is_told_by_its_kind():
    run = running()
    lifecycle.end(
        run, Status.FAILED, factories.SYSTEM, reason="its deadline passed", kind=FailureKind.DEADLINE
    )
    assert (group_of(run).error_type, group_of(run).message) == ("Deadline", "its deadline passed")


def test_a_run_in_attention_is_in_a_group_of_its_own_sort():
    run = running()
    lifecycle.ask_person(run, AttentionKind.IN_DOUBT, "nobody knows whether pay 7 happened", factories.SYSTEM)
    group = group_of(run)
    assert (group.sort, group.error_type, group.message) == (
        "attention",
        "InDoubt",
        "nobody knows whether pay <n> happened",
    )


def test_nothing_but_the_one_function_moves_a_run_to_failed_or_attention():
    """So that no way leads past the fingerprint."""
    moving = ("Status.FAILED", "Status.ATTENTION")
    found = []
    for path in Path(inspect.getfile(runs)).parent.rglob("*.py"):
        for line in path.read_text().splitlines():
            if any(f"status = {name}" in line or f"status={name})" in line for name in moving):
                found.append((path.name, line.strip()))
    assert [name for name, line in found if ".update(" in line or "run.status" in line] == ["lifecycle.py"]


def test_a_failure_costs_two_statements_and_a_success_none():
    def statements(status: Status, **kind) -> list[str]:
        run = running()
        record_attempt(run, Outcome.FAILED, error_type="KeyError", error="x")
        with CaptureQueriesContext(connection) as asked:
            lifecycle.end(run, status, factories.SYSTEM, **kind)
        return [query["sql"] for query in asked]

    statements(Status.FAILED, kind=FailureKind.EXHAUSTED)
    failed = statements(Status.FAILED, kind=FailureKind.EXHAUSTED)
    completed = statements(Status.COMPLETED)
    assert len(failed) == len(completed) + 2
    assert not any("runs_failure" in sql or '"fingerprint" =' in sql for sql in completed)


# --- after a retry -------------------------------------------------------------------------------------------------------


def test_a_retried_run_is_not_counted_as_failed_any_more_and_its_group_still_knows_it():
    run, other = factories.failed(), factories.failed()
    group, person = group_of(run), factories.support()
    services.retry(person, run.pk)
    assert failures.still(user_of(person), [group]) == {group.pk: 1}
    run.refresh_from_db()
    assert run.fingerprint == group.pk
    Run.objects.filter(pk=run.pk).update(status=Status.RUNNING, worker_id=factories.worker().pk, sort_at=None)
    locked = lifecycle.lock_run(run.pk)
    lifecycle.end(locked, Status.COMPLETED, factories.SYSTEM)
    assert failures.still(user_of(person), [group]) == {group.pk: 1}
    assert [one.pk for one in failures.runs_of(user_of(person), group.pk, Status.COMPLETED)] == [run.pk]
    assert [one.pk for one in failures.runs_of(user_of(person), group.pk, Status.FAILED)] == [other.pk]


def test_a_run_that_fails_otherwise_after_a_retry_moves_to_that_group():
    run = factories.failed("KeyError")
    before = factories.fingerprint(run)
    services.retry(factories.support(), run.pk)
    Run.objects.filter(pk=run.pk).update(
        status=Status.RUNNING, worker_id=factories.worker().pk, sort_at=None, attempt_no=2
    )
    locked = lifecycle.lock_run(run.pk)
    record_attempt(locked, Outcome.FAILED, error_type="Refused", error="no")
    lifecycle.end(locked, Status.FAILED, factories.SYSTEM, kind=FailureKind.NOT_RETRYABLE)
    run.refresh_from_db()
    assert run.fingerprint != before
    assert failures.still(user_of(factories.support()), list(FailureGroup.objects.filter(pk=before))) == {
        before: 0
    }


# --- what comes back -----------------------------------------------------------------------------------------------------


def test_a_handled_group_is_opened_by_the_next_failure_and_says_so():
    run = factories.failed()
    verbs.handle_failure(factories.support("sam"), factories.fingerprint(run), reason="was a typo")
    again = factories.failed()
    group = group_of(again)
    assert (group.state, group.pk) == ("open", run.fingerprint)
    event = AuditEvent.objects.get(kind="failure_reopened")
    assert event.target == group.target
    assert event.old is not None and event.new is not None
    assert event.new["run"] == str(again.pk)
    assert event.old["state"] == "handled"


def test_an_open_or_acknowledged_group_stays_as_it_is():
    run = factories.failed()
    factories.failed()
    assert group_of(run).revision == 0
    verbs.acknowledge_failure(factories.support("sam"), factories.fingerprint(run), reason="mine")
    factories.failed()
    assert (group_of(run).state, group_of(run).changed_by) == ("acknowledged", "sam")
    assert not AuditEvent.objects.filter(kind="failure_reopened").exists()


@pytest.mark.parametrize(("version", "state"), [(2, "fixed"), (3, "open"), (4, "open")])
def test_a_fixed_group_is_opened_by_a_failure_of_that_or_a_later_version(version, state):
    run = factories.failed(version=2)
    verbs.fix_failure(factories.support(), factories.fingerprint(run), version=3, reason="fixed")
    factories.failed(version=version)
    assert group_of(run).state == state


def test_another_error_opens_nothing():
    run = factories.failed("KeyError")
    verbs.fix_failure(factories.support(), factories.fingerprint(run), version=1, reason="fixed")
    factories.failed("Refused")
    assert group_of(run).state == "fixed"


# --- runs that failed before ---------------------------------------------------------------------------------------------


def forgotten(**fields) -> Run:
    """A failed run as versions before this left it."""
    return factories.run(Status.FAILED, reason="gave up: no order 7", **fields)


def test_workers_sort_in_what_failed_before():
    old, new = forgotten(), factories.failed()
    assert failures.tick() == 1
    group = group_of(old)
    assert (group.error_type, group.message) == ("Exhausted", "gave up: no order <n>")
    assert group.first_at == old.finished_at
    assert failures.tick() == 0
    assert group_of(new).pk != group.pk


def test_what_is_sorted_in_late_opens_what_was_settled_before_it_failed_and_nothing_else():
    first = forgotten()
    failures.tick()
    between = forgotten()
    clock.shift(timedelta(minutes=1))
    verbs.handle_failure(factories.support(), group_of(first).pk, reason="over")
    failures.tick()
    assert group_of(between).state == "handled"
    clock.shift(timedelta(minutes=1))
    forgotten()
    failures.tick()
    assert group_of(first).state == "open"


def test_a_run_that_somebody_works_on_is_passed_by_and_a_retried_one_left_alone():
    retried = forgotten()
    services.retry(factories.support(), retried.pk)
    assert failures.give_fingerprints() == 0


def test_old_tallies_are_deleted():
    factories.failed()
    clock.shift(failures.TALLIES_KEPT + timedelta(hours=1))
    factories.failed()
    failures.tick()
    assert FailureTally.objects.count() == 1
