"""Steps, retries and waits, executed by a real worker on a real database."""

from datetime import timedelta
from typing import Any

import pytest

from runs import clock
from runs.errors import NotRetryable, Retryable
from runs.lifecycle import Actor
from runs.models import Attempt, Event, LogLine, Operation, Run
from runs.services import start
from tests.runs.engine import flows
from tests.runs.engine.conftest import until
from tests.runs.engine.flows import world

SYSTEM = Actor("system")

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


def begin(workflow: str, n: int = 0, text: str = "", **options: Any) -> Run:
    return start(SYSTEM, workflow, {"n": n, "text": text}, **options).run


def outcomes(run: Run) -> list[str]:
    rows = Attempt.objects.filter(run_id=run.pk).order_by("step_seq", "attempt_no")
    return list(rows.values_list("outcome", flat=True))


def test_a_run_goes_through_its_steps_and_keeps_its_state() -> None:
    run = until(begin("t_hello", 7, "hi"))
    assert (run.status, run.result) == ("completed", {"seen": [7], "text": "hi"})
    assert outcomes(run) == ["succeeded", "succeeded"]


def test_a_loop_visits_its_step_ten_times_under_one_epoch() -> None:
    run = until(begin("t_ten"))
    assert (run.result, run.step_seq, run.epoch) == (10, 10, 1)


def test_async_steps_gather_labelled_calls() -> None:
    run = until(begin("t_hello_async"))
    assert run.result == [0, 2, 4], run.reason
    assert Operation.objects.filter(run=run, status="done").count() == 3


def test_an_error_is_retried_and_logs_are_written_once() -> None:
    run = until(begin("t_failing", 2))
    assert (run.status, run.result) == ("completed", 3)
    assert outcomes(run) == ["failed", "failed", "succeeded"]
    assert LogLine.objects.filter(run_id=run.pk).count() == 1


def test_retries_end_in_the_dead_letter() -> None:
    run = until(begin("t_failing", 99))
    assert (run.status, run.failure_kind, run.failures) == ("failed", "exhausted", 3)
    assert "error 3" in run.reason


def test_fail_is_the_workflows_own_word() -> None:
    run = until(begin("t_failing", 0, "declared"))
    assert (run.status, run.failure_kind, run.reason) == ("failed", "declared", "said so")


@pytest.mark.parametrize("tool", ["pay", "charge", "post"])
def test_an_effect_happens_once_and_its_answer_is_recorded(tool: str) -> None:
    run = until(begin("t_effect", 5, tool))
    assert (run.status, run.result) == ("completed", f"{tool}-1")
    assert world.ledger[tool] == 1


@pytest.mark.parametrize("tool", ["pay", "charge", "post"])
def test_a_definite_failure_is_tried_again_without_holding_a_worker(tool: str) -> None:
    world.script = [Retryable("busy"), Retryable("busy")]
    run = until(begin("t_effect", 5, tool))
    assert (run.status, run.result, world.ledger[tool]) == ("completed", f"{tool}-1", 1)
    assert outcomes(run) == ["suspended", "suspended", "succeeded"]
    sent = Operation.objects.get(run=run).earlier_sends or []
    assert [(one["attempt"], one["answered"], one["error"]) for one in sent] == [
        (1, True, "busy"),
        (2, True, "busy"),
    ]


def test_a_tool_that_exhausts_its_retries_ends_the_run_without_spending_the_steps() -> None:
    world.script = [Retryable("busy")] * 9
    run = until(begin("t_effect", 5, "pay"))
    assert (run.status, run.failure_kind) == ("failed", "exhausted")
    assert outcomes(run) == ["suspended", "suspended", "failed"]


def test_user_code_sees_a_final_failure_and_may_go_on() -> None:
    world.script = [NotRetryable("no such account")]
    run = until(begin("t_catching", 0, "pay"))
    assert run.result == "pay: no such account"


@pytest.mark.parametrize("tool", ["pay", "charge"])
def test_a_lost_answer_is_settled_without_a_second_effect(tool: str) -> None:
    world.script = ["lost"]
    run = until(begin("t_effect", 5, tool))
    assert (run.status, run.result, world.ledger[tool]) == ("completed", f"{tool}-1", 1)
    assert len(set(world.keys)) == 1
    if tool == "charge":  # it was looked up, and what the call had said is kept
        effect = Operation.objects.get(run_id=run.pk, kind="effect")
        assert (effect.settled_by, effect.error_type) == ("verify", "") and effect.error


def test_a_lost_answer_that_nobody_can_look_up_asks_a_person() -> None:
    world.script = ["lost"]
    run = until(begin("t_effect", 5, "post"), "attention")
    assert run.attention_kind == "in_doubt"
    assert world.ledger["post"] == 1


def test_a_signal_before_its_wait_is_kept_and_one_after_wakes_the_run() -> None:
    from runs.services import receive_signal

    early = begin("t_signal")
    until(early, "waiting")
    receive_signal(SYSTEM, name="paid", payload={"n": 1}, run_id=early.pk, source="test", external_id="e1")
    assert until(early).result == {"n": 1}


def test_a_wait_expires_by_the_databases_clock() -> None:
    run = until(begin("t_signal", 3600), "waiting")
    clock.shift(timedelta(hours=2))
    run = until(run)
    assert (run.status, run.failure_kind) == ("failed", "exhausted")
    assert "WaitExpired" in run.reason


def test_a_sleep_holds_no_worker() -> None:
    run = until(begin("t_sleep", 7200), "waiting")
    assert run.worker_id is None
    clock.shift(timedelta(hours=3))
    assert (until(run).result or 0) >= 7200


def test_a_def_step_that_overruns_is_fenced_and_counts_as_a_failure() -> None:
    run = until(begin("t_slow"))
    assert (run.status, run.failure_kind) == ("failed", "exhausted")
    assert outcomes(run) == ["timed_out", "timed_out"]


def test_an_async_step_that_overruns_is_cut_short() -> None:
    run = until(begin("t_slow_async"))
    assert (run.status, outcomes(run)) == ("failed", ["timed_out", "timed_out"])


def test_divergence_stops_before_a_second_effect() -> None:
    run = until(begin("t_drift"), "attention")
    assert run.attention_kind == "diverged"
    assert world.ledger["pay"] == 1


def test_a_retry_forgets_trailing_queries_only() -> None:
    run = until(begin("t_forget"))
    assert run.result == ["w1", "w3"]
    assert world.ledger["pay"] == 1


def test_falsy_answers_are_answers() -> None:
    run = until(begin("t_falsy"))
    assert run.result == list(flows.FALSY.values())
    assert {world.ledger[name] for name in flows.FALSY} == {1}
    assert world.ledger["touch"] == 1


def test_the_chain_of_events_says_what_happened() -> None:
    run = until(begin("t_failing", 1))
    kinds = list(Event.objects.filter(run_id=run.pk).order_by("seq").values_list("kind", flat=True))
    assert kinds == ["started", "retrying", "completed"]


def test_an_answer_looks_the_same_when_it_is_new_and_when_it_was_recorded() -> None:
    run = until(begin("t_ordered"))
    assert run.status == "completed", run.reason
