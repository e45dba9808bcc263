"""Child runs: what a parent is told, how often they exist, and what becomes of them."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from runs import blobs, clock, doctor, lifecycle, policies, redaction
from runs.engine.worker import RunWorker
from runs.errors import Diverged
from runs.kin import children, families
from runs.kin.children import ChildWait
from runs.models import Attempt, Event, Operation, Run
from runs.services import cancel, force_resume, pause_workflow, retry
from runs.states import Status
from runs.workflow import Child
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import until
from tests.runs.engine.family import begin, ended, family, parked, say_go, silently_ended, statuses, waiting
from tests.runs.engine.flows import world


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


# --- what a parent is told -----------------------------------------------------------------------------------------------


def test_a_parent_gets_what_each_child_came_to_in_the_order_of_its_wishes(worker: RunWorker) -> None:
    run = until(begin("f_parent", "double fail ok raise"))
    assert run.status == "completed", run.reason
    ends = run.result["ends"]
    assert [one["status"] for one in ends] == ["completed", "failed", "completed", "failed"]
    assert (ends[0]["result"], ends[2]["result"]) == ({"n": 0}, 2)
    assert (ends[1]["kind"], ends[1]["reason"]) == ("declared", "child 1 gave up")
    # The dead letter is an end like any other: nobody waits for somebody to retry it.
    assert ends[3]["kind"] == "exhausted"
    assert "child 3 broke" in ends[3]["reason"]


def test_none_zero_false_and_nothing_at_all_are_results(worker: RunWorker) -> None:
    run = until(begin("f_parent", "none zero false empty list"))
    assert run.result["results"] == [None, 0, False, "", []]


def test_one_child_gives_its_result(worker: RunWorker) -> None:
    run = until(begin("f_single", "none"))
    assert run.result == {"got": None}
    (only,) = family(run)
    assert (only.subject, only.depth, only.child_index, only.started_by_name) == ("seven", 1, 0, "test")


def test_the_failure_of_one_child_ends_a_parent_that_does_not_catch_it(worker: RunWorker) -> None:
    run = until(begin("f_single", "refuse"))
    assert (run.status, run.failure_kind) == ("failed", "not_retryable")
    assert "ChildFailed: the child run of f_child was not completed: it failed" in run.reason
    # Not tried again by the step's policy: the recorded answer would be the same.
    assert Attempt.objects.filter(run_id=run.pk).count() == 2


def test_failures_are_raised_where_a_step_wants_that(worker: RunWorker) -> None:
    run = until(begin("f_parent", "ok fail", raising=True))
    assert run.result["failed"] == "of 2 child runs of f_child, 1 failed"
    assert [one["status"] for one in run.result["ends"]] == ["completed", "failed"]


def test_no_children_are_no_wait(worker: RunWorker) -> None:
    run = until(begin("f_parent", ""))
    assert (run.result["ends"], Attempt.objects.filter(run_id=run.pk).count()) == ([], 1)


def test_async_steps_wait_for_children_side_by_side(worker: RunWorker) -> None:
    run = until(begin("f_async"))
    assert run.result == {"first": {"n": 2}, "second": [0, 1, 2]}
    assert len(family(run)) == 4


def test_waits_in_a_row_and_visits_in_a_row_have_children_of_their_own(worker: RunWorker) -> None:
    run = until(begin("f_twice"))
    assert run.result == [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]
    assert len(family(run)) == 8


# --- how many are enough ---------------------------------------------------------------------------------------------------


def test_the_first_result_is_enough_and_the_others_are_cancelled(worker: RunWorker) -> None:
    run = until(begin("f_parent", "wait ok wait", wait="any"))
    assert [one["status"] for one in run.result["ends"]] == ["unfinished", "completed", "unfinished"]
    wait_until(lambda: statuses(run) == ["cancelled", "completed", "cancelled"], 15, "they are cancelled")
    assert Operation.objects.get(run=run).rest == ""


def test_a_failure_is_no_result_where_one_is_wanted(worker: RunWorker) -> None:
    run = waiting(begin("f_parent", "fail wait", wait="any"), "failed", "waiting")
    say_go(family(run)[1])
    assert until(run).result["results"] == [1]


def test_a_wait_is_over_once_too_many_have_failed(worker: RunWorker) -> None:
    run = until(begin("f_parent", "fail fail wait", wait=2, raising=True))
    assert run.result["failed"] == "of 3 child runs of f_child, 2 failed"
    assert [one["status"] for one in run.result["ends"]] == ["failed", "failed", "unfinished"]


def test_two_of_three_are_enough(worker: RunWorker) -> None:
    run = until(begin("f_parent", "ok wait ok", wait=2))
    assert run.result["results"] == [0, 2]


@pytest.mark.parametrize("wait", [0, 4, "some", True])
def test_a_number_that_cannot_be_is_refused(wait: Any, worker: RunWorker) -> None:
    run = until(begin("f_parent", "ok ok ok", wait=wait))
    assert run.status == "failed"
    assert "it must be 'all', 'any' or a number from 1 to 3" in run.reason
    assert family(run) == []


def test_time_is_up_before_they_ended(worker: RunWorker) -> None:
    run = until(begin("f_parent", "ok wait", timeout=0.3))
    assert run.result == {"late": "the 2 child runs of f_child did not end in time"}
    wait_until(lambda: statuses(run) == ["completed", "cancelled"], 15, "the late one is cancelled")


# --- how often they exist -------------------------------------------------------------------------------------------------


def test_children_are_started_once_however_often_the_body_is_executed(worker: RunWorker) -> None:
    run = waiting(begin("f_parent", "ok wait wait"), "completed", "waiting", "waiting")
    ids = [one.pk for one in family(run)]
    for epoch in (2, 3, 4):
        force_resume(factories.support(), run.pk, reason="look again")
        wait_until(lambda: Run.objects.get(pk=run.pk).epoch >= epoch, 10, "it was claimed")  # noqa: B023
        until(run, "waiting")
    for one in family(run)[1:]:
        say_go(one)
    assert until(run).result["results"] == [0, 1, 2]
    assert [one.pk for one in family(run)] == ids
    assert (world.ledger["child 1"], world.ledger["child 0"]) == (2, 1)


def test_other_children_than_those_recorded_stop_the_run(worker: RunWorker) -> None:
    run = until(begin("f_drifting"), "attention")
    assert run.attention_kind == "diverged"
    assert "now has other arguments" in run.reason
    assert len(family(run)) == 1


def test_a_child_that_cannot_be_started_refuses_all(worker: RunWorker) -> None:
    run = until(begin("f_wrong"))
    assert (run.status, run.failure_kind, family(run)) == ("failed", "not_retryable", [])
    assert "child 1 (f_child): n: Input should be a valid integer" in run.reason


def test_no_more_children_than_allowed(worker: RunWorker, settings: Any) -> None:
    settings.AGENTOPS_CHILDREN = 2
    run = until(begin("f_parent", "ok ok ok"))
    assert (run.status, family(run)) == ("failed", [])
    assert "3 child runs at once, and at most 2 are allowed" in run.reason


def test_a_workflow_that_starts_itself_without_end_is_stopped(worker: RunWorker, settings: Any) -> None:
    settings.AGENTOPS_CHILD_DEPTH = 3
    run = until(begin("f_endless"))
    assert run.status == "failed"
    deepest = Run.objects.filter(workflow="f_endless").order_by("-depth")[0]
    assert deepest.depth == 3
    assert "f_endless → f_endless → f_endless → f_endless" in deepest.reason
    assert "a workflow that starts itself needs an end" in deepest.reason


# --- retries ---------------------------------------------------------------------------------------------------------------


def test_the_recorded_answer_holds_when_a_child_is_retried_later(worker: RunWorker) -> None:
    run = until(begin("f_parent", "ok wait", n=1, wait="all", raising=True), "waiting")
    second = waiting(run, "completed", "waiting") and family(run)[1]
    Run.objects.filter(pk=second.pk).update(deadline_at=clock.now() - timedelta(seconds=1))
    force_resume(factories.support(), second.pk, reason="go")
    assert until(second).failure_kind == "deadline"
    assert until(run).status == "failed"
    recorded = Operation.objects.get(run=run).result
    retry(factories.support(), second.pk, reason="again", extend_deadline_to=clock.now() + timedelta(hours=1))
    say_go(until(second, "waiting"))
    assert until(second).status == "completed"
    run.refresh_from_db()
    assert (run.status, Operation.objects.get(run=run).result) == ("failed", recorded)
    # Retried itself, the parent looks at its children anew.
    retry(factories.support(), run.pk, reason="the child is done now")
    assert until(run).result["results"] == [0, 1]


def test_a_child_that_is_retried_before_its_parent_looked_is_waited_for(worker: RunWorker) -> None:
    run = waiting(begin("f_parent", "fail wait"), "failed", "waiting")
    first, second = family(run)
    retry(factories.support(), first.pk, reason="again")
    until(first)
    say_go(second)
    assert until(run).status == "completed"


def test_a_wait_that_was_closed_with_its_run_is_opened_again_by_a_retry(worker: RunWorker) -> None:
    run = waiting(begin("f_parent", "ok wait", orphans="leave"), "completed", "waiting")
    Run.objects.filter(pk=run.pk).update(deadline_at=clock.now() - timedelta(seconds=1))
    force_resume(factories.support(), run.pk, reason="go")
    assert until(run).failure_kind == "deadline"
    retry(factories.support(), run.pk, reason="again", extend_deadline_to=clock.now() + timedelta(hours=1))
    until(run, "waiting")
    say_go(family(run)[1])
    assert until(run).result["results"] == [0, 1]


# --- cancel ----------------------------------------------------------------------------------------------------------------


def test_a_cancelled_parent_takes_its_children_along(worker: RunWorker) -> None:
    run = waiting(begin("f_parent", "ok wait wait"), "completed", "waiting", "waiting")
    cancel(factories.support(), run.pk, reason="enough")
    assert until(run).status == "cancelled"
    wait_until(lambda: statuses(run) == ["completed", "cancelled", "cancelled"], 15, "they are cancelled")
    last = family(run)[2]
    assert last.cancel_requested_by == f"run {str(run.pk)[:13]}"
    assert "cancel_requested" in Event.objects.filter(run_id=last.pk).values_list("kind", flat=True)


def test_no_child_begins_when_a_cancel_waits_for_an_effect_in_doubt(worker: RunWorker) -> None:
    run = until(begin("f_doubtful"), "attention")
    assert (run.attention_kind, run.cancel_requested_by) == ("in_doubt", "ada")
    assert family(run) == []


def test_children_may_be_left_to_themselves(worker: RunWorker) -> None:
    run = waiting(begin("f_parent", "ok wait", orphans="leave"), "completed", "waiting")
    cancel(factories.support(), run.pk, reason="enough")
    until(run)
    say_go(family(run)[1])
    assert until(family(run)[1]).status == "completed"


@pytest.mark.parametrize(("orphans", "then"), [("cancel", "cancelled"), ("leave", "waiting")])
def test_what_is_left_going_on_ends_with_the_run_or_does_not(
    orphans: str, then: str, worker: RunWorker
) -> None:
    run = begin("f_left", orphans)
    wait_until(
        lambda: Operation.objects.filter(run=run, name="finish").exists(), 15, "it is in its second step"
    )
    assert statuses(run) == ["completed", "waiting"]
    say_go(run, "finish")
    until(run)
    sweep = families.Sweep()
    sweep.turn()
    wait_until(lambda: statuses(run)[1] == then, 15, f"the other is {then}")


def test_children_that_never_began_are_cancelled_without_a_worker(transactional_db: None) -> None:
    run, wait, made = parked(5)
    ended(run)
    assert families.Sweep().turn() == 5
    for one in made:
        one.refresh_from_db()
        assert (one.status, one.epoch, one.reason) == (
            "cancelled",
            0,
            "the run that started it no longer waits for it",
        )
    wait.refresh_from_db()
    assert wait.rest == ""


def test_many_children_are_cancelled_in_portions(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, wait, _ = parked(7)
    ended(run)
    assert [families.cancel_rest(wait.pk, limit=3) for _ in range(4)] == [3, 3, 1, 0]
    wait.refresh_from_db()
    assert (wait.rest, {one.status for one in family(run)}) == ("", {"cancelled"})


def test_a_paused_child_is_cancelled_all_the_same(worker: RunWorker) -> None:
    run = waiting(begin("f_parent", "wait"), "waiting")
    pause_workflow(factories.admin(), "f_child", reason="stop")
    wait_until(
        lambda: "f_child" in policies.paused_workflows(worker.snapshot.overrides), 10, "the worker knows"
    )
    cancel(factories.support(), run.pk, reason="enough")
    wait_until(lambda: statuses(run) == ["cancelled"], 15, "it is cancelled")


# --- many ------------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_ten_thousand_children_are_started_in_ten_statements(django_assert_max_num_queries: Any) -> None:
    prepared = children.prepare([Child("f_child", {"n": n}) for n in range(10_000)])
    run, wait, _ = parked(0)
    with django_assert_max_num_queries(15), transaction.atomic():
        children.start(run, wait, prepared)
    assert Run.objects.filter(parent_operation_id=wait.pk).count() == 10_000
    assert Event.objects.filter(kind="started", data__parent=str(run.pk)).count() == 10_000
    assert doctor_finds(doctor.chain_head, doctor.broken_chain) == []


@pytest.mark.django_db
def test_the_reasons_of_thousands_that_failed_do_not_fill_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "REASONS", 4000)
    run, wait, made = parked(40)
    for one in made:
        silently_ended(one, Status.FAILED)
    Run.objects.filter(parent_operation_id=wait.pk).update(reason="x" * 5000)
    with transaction.atomic():
        assert ChildWait().look(lifecycle.lock_run(run.pk), wait)
    wait.refresh_from_db()
    recorded = redaction.true_value(wait.result, wait.result_sealed)
    assert recorded["ends"] == "f" * 40
    assert sum(len(one["reason"]) for one in recorded["others"].values()) == 4000
    assert {one["reason"][-1] for one in recorded["others"].values()} == {"…"}


@pytest.mark.django_db
def test_a_large_input_of_a_child_is_stored_apart_and_read_back(settings: Any) -> None:
    settings.AGENTOPS_SPILL_BYTES = 1024
    run, wait, _ = parked(0)
    (prepared,) = children.prepare([Child("f_child", {"do": "x" * 3000})])
    with transaction.atomic():
        children.start(run, wait, [prepared])
    (made,) = family(run)
    assert blobs.is_marker(made.input)
    assert redaction.true_value(made.input, None)["do"] == "x" * 3000
    assert made.input_digest == prepared.digest


def doctor_finds(*checks: doctor.Check) -> list[doctor.Problem]:
    with connection.cursor() as cursor:
        return doctor.run_checks(checks, doctor.Snapshot(cursor, grace=0))


@pytest.mark.django_db
def test_a_child_that_was_deleted_stops_its_parent_instead_of_shifting_the_others() -> None:
    with pytest.raises(Diverged, match="1 child runs that this step started are gone"):
        children.ends({"ends": "cc", "others": {}}, [(uuid.uuid4(), 1, None)], list)


@pytest.mark.django_db
def test_a_child_that_is_retried_between_two_looks_is_not_recorded_as_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, wait, made = parked(2)
    silently_ended(made[0])
    monkeypatch.setattr(children, "enough", lambda wait: True)
    with transaction.atomic():
        assert not ChildWait().look(lifecycle.lock_run(run.pk), wait)
    wait.refresh_from_db()
    assert (wait.status, wait.rest) == ("open", "")
