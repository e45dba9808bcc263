"""Approvals, parallel waits, cancel and compensation, executed by a real worker."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from approvals.models import Approval
from approvals.services import decide, edit
from runs import clock
from runs.errors import NotRetryable, Retryable
from runs.lifecycle import Actor
from runs.models import Attempt, Operation, Run
from runs.services import (
    answer_doubt,
    cancel,
    pause_workflow,
    receive_signal,
    resume_workflow,
    retry,
    set_limits,
    start,
)
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import until
from tests.runs.engine.flows import world

SYSTEM = Actor("system")

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


def begin(workflow: str, n: int = 0, text: str = "", **options: Any) -> Run:
    return start(SYSTEM, workflow, {"n": n, "text": text}, **options).run


def approval_of(run: Run) -> Approval:
    until(run, "waiting")
    return Approval.objects.get(run=run, state="open")


def say(approval: Approval, verdict: str, who: Actor | None = None) -> None:
    decide(
        who or factories.operator(),
        approval.pk,
        version=approval.version,
        digest=approval.digest,
        verdict=verdict,
        reason="because",
    )


def test_a_question_is_answered_by_a_person_and_holds_no_worker() -> None:
    run = begin("t_ask", 3)
    say(approval_of(run), "approve")
    assert until(run).result == ["approved", {"n": 3}]
    assert list(Attempt.objects.filter(run_id=run.pk).values_list("outcome", flat=True)) == [
        "suspended",
        "succeeded",
    ]


def test_a_rejection_reaches_the_body_as_rejected() -> None:
    run = begin("t_ask", 3)
    say(approval_of(run), "reject")
    assert until(run).result == ["rejected", {"n": 3}]


def test_an_approved_effect_happens_once_after_the_yes() -> None:
    run = begin("t_guarded", 20)
    approval = approval_of(run)
    assert not world.ledger
    say(approval, "approve")
    assert until(run).result == "approved-1"
    assert world.seen == [20]
    approval.refresh_from_db()
    assert approval.consumed_at is not None


def test_an_approved_effect_that_is_done_is_not_asked_for_again_when_its_step_is_retried() -> None:
    run = begin("t_guarded_twice", 20)
    say(approval_of(run), "approve")
    run = until(run)
    assert (run.status, run.result) == ("completed", "approved-1"), run.reason
    assert Approval.objects.filter(run=run).count() == 1


def test_what_runs_is_what_was_edited_and_then_approved() -> None:
    run = begin("t_guarded", 20)
    approval = approval_of(run)
    edit(factories.operator(), approval.pk, version=1, arguments={"amount": 15}, reason="too much")
    approval.refresh_from_db()
    say(approval, "approve")
    until(run)
    assert world.seen == [15], run.reason
    operation = Operation.objects.get(run=run, kind="effect")
    assert (operation.request, operation.approved) == ({"amount": 20}, {"amount": 15})


def test_a_rejected_effect_never_happens_and_the_run_says_who_rejected_it() -> None:
    run = begin("t_guarded", 20)
    say(approval_of(run), "reject", factories.operator("olivia"))
    run = until(run)
    assert (run.status, run.failure_kind) == ("failed", "not_retryable")
    assert "olivia" in run.reason
    assert not world.ledger


def test_an_approval_that_expires_is_no_yes() -> None:
    run = begin("t_guarded", 20)
    approval_of(run)
    clock.shift(timedelta(hours=25))
    run = until(run)
    assert run.status == "failed"
    assert not world.ledger
    # Settled in the claim: no attempt was spent on the expiry itself.
    assert Attempt.objects.filter(run_id=run.pk).count() == 2


def test_cancel_of_a_waiting_run_compensates_in_reverse() -> None:
    run = begin("t_trip")
    until(run, "waiting")
    cancel(factories.support(), run.pk, reason="changed their mind")
    run = until(run)
    assert run.status == "cancelled", run.reason
    assert world.ledger == Counter(
        {"book flight": 1, "book hotel": 1, "undo book hotel-1": 1, "undo book flight-1": 1}
    )
    undone = Operation.objects.filter(run=run, compensates__isnull=False).order_by("ordinal")
    assert [op.request["result"] for op in undone] == ["book hotel-1", "book flight-1"]


def test_a_compensation_that_fails_asks_a_person() -> None:
    run = begin("t_trip")
    until(run, "waiting")
    world.script = [NotRetryable("too late")]
    cancel(factories.support(), run.pk, reason="changed their mind")
    run = until(run, "attention")
    assert run.attention_kind == "compensation"


@pytest.mark.parametrize(("happened", "result"), [(True, "looked up"), (False, "post-2")])
def test_both_answers_to_a_doubt_lead_on(happened: bool, result: str) -> None:
    world.script = ["lost"]
    run = until(begin("t_effect", 5, "post"), "attention")
    operation = Operation.objects.get(run=run, status="pending")
    clock.shift(timedelta(seconds=5))
    answer_doubt(
        factories.operator(),
        operation.pk,
        seen_version=run.event_seq,
        happened=happened,
        result="looked up" if happened else None,
        reason="looked at the provider",
    )
    assert until(run).result == result


def test_a_failed_run_is_retried_in_place_and_its_effects_hold() -> None:
    run = until(begin("t_failing", 4))
    assert run.status == "failed"
    world.ledger["tried"] = 4
    retry(factories.support(), run.pk, seen_version=run.event_seq, reason="fixed")
    assert until(run, "completed").result == 5


def test_a_cancelled_run_starts_no_further_effect() -> None:
    world.script = [Retryable("busy", retry_after=0.2)]
    run = begin("t_effect", 5, "pay")
    until(run, "retrying")
    cancel(factories.support(), run.pk, reason="stop")
    assert until(run).status == "cancelled"
    assert not world.ledger


def test_a_lowered_retry_limit_ends_a_run_in_back_off() -> None:
    world.script = []
    set_limits(
        factories.admin(),
        "step",
        "t_failing/fail_twice",
        seen_revision=0,
        reason="slow",
        backoff_base_s=3600.0,
        backoff_max_s=3600.0,
    )
    run = until(begin("t_failing", 99), "retrying")
    set_limits(
        factories.admin(), "step", "t_failing/fail_twice", seen_revision=1, reason="enough", max_attempts=1
    )
    run = until(run, "failed")
    assert run.failure_kind == "exhausted"


def test_a_raised_retry_limit_gives_a_run_in_back_off_more_tries() -> None:
    set_limits(
        factories.admin(), "step", "t_failing/fail_twice", seen_revision=0, reason="more", max_attempts=6
    )
    run = until(begin("t_failing", 5))
    assert (run.status, run.result) == ("completed", 6)


def test_a_paused_workflow_parks_its_runs_and_resumes_them() -> None:
    admin = factories.admin()
    pause_workflow(admin, "t_hello", seen_revision=0, reason="incident")
    run = begin("t_hello", 1)
    wait_until(lambda: Run.objects.get(pk=run.pk).held_by == "paused", 60, "the run is parked")
    resume_workflow(admin, "t_hello", seen_revision=1, reason="over")
    assert until(run).status == "completed"


def test_a_signal_of_a_running_workflow_is_not_lost_whenever_it_comes() -> None:
    runs = [begin("t_signal") for _ in range(10)]
    for run in runs:
        receive_signal(SYSTEM, name="paid", payload=1, run_id=run.pk, source="test", external_id=str(run.pk))
    assert {until(run).result for run in runs} == {1}
