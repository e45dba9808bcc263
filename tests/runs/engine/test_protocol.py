"""Rules of the execution protocol, each attacked: what a body, a provider, people and the network may do at the wrong moment."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, transaction
from django.db.backends.postgresql.base import DatabaseWrapper

from approvals.models import Approval
from approvals.services import decide
from runs import clock, doctor, redaction
from runs.engine import leases, statements
from runs.engine.worker import RunWorker
from runs.errors import NotRetryable
from runs.lifecycle import Actor, append_event, lock_run
from runs.models import Attempt, Blob, Event, LogLine, Message, Operation, Run, Worker
from runs.services import answer_doubt, cancel, receive_signal, start
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine import odd_flows  # noqa: F401
from tests.runs.engine.conftest import running_worker, until
from tests.runs.engine.faults import losses
from tests.runs.engine.flows import world

SYSTEM = Actor("system")


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


def begin(workflow: str, n: int = 0, text: str = "", **options: Any) -> Run:
    return start(SYSTEM, workflow, {"n": n, "text": text}, **options).run


def outcomes(run: Run) -> list[str]:
    rows = Attempt.objects.filter(run_id=run.pk).order_by("step_seq", "attempt_no")
    return list(rows.values_list("outcome", flat=True))


def send(run: Run, name: str = "paid", payload: Any = 1) -> None:
    receive_signal(
        SYSTEM, name=name, payload=payload, run_id=run.pk, source="test", external_id=f"{name} {run.pk}"
    )


def say(approval: Approval, verdict: str = "approve") -> None:
    decide(
        factories.operator(),
        approval.pk,
        version=approval.version,
        digest=approval.digest,
        verdict=verdict,
        reason="because",
    )


def stop(run: Run) -> None:
    cancel(factories.support(), run.pk, reason="enough")


# --- bodies that catch what they must let through --------------------------------------------------------------


def test_a_body_that_catches_the_suspend_neither_goes_on_nor_acts(worker: RunWorker) -> None:
    run = until(begin("o_swallowing"), "waiting", "completed")
    assert run.status == "waiting"
    assert not world.ledger
    send(run, payload=7)
    assert until(run).result == 7


def test_a_gather_that_returns_exceptions_cannot_swallow_a_wait(worker: RunWorker) -> None:
    run = until(begin("o_gathering"), "waiting", "completed")
    assert run.status == "waiting"
    assert Operation.objects.filter(run=run, status="open").count() == 2
    send(run, "two", 2)
    send(run, "one", 1)
    assert until(run).result == ["1", "2"]


@pytest.mark.parametrize("what", ["exit", "interrupt", "unprintable", "lock"])
def test_whatever_a_body_raises_is_an_error_of_the_body(what: str, worker: RunWorker) -> None:
    run = until(begin("o_leaving", 0, what))
    assert (run.status, run.failure_kind) == ("failed", "exhausted"), run.reason
    assert outcomes(run) == ["failed", "failed"]


def test_a_system_exit_on_the_event_loop_stops_no_other_run(worker: RunWorker) -> None:
    for what in ("body", "child"):
        run = until(begin("o_leaving_async", 0, what))
        assert (run.status, outcomes(run)) == ("failed", ["failed", "failed"])
    assert until(begin("o_leaving_async")).result == "stayed"


def test_a_tool_that_raises_system_exit_leaves_an_effect_in_doubt_whose_call_has_ended(
    worker: RunWorker,
) -> None:
    run = until(begin("o_exiting_tool"), "attention", "failed")
    assert run.attention_kind == "in_doubt"
    operation = Operation.objects.get(run=run)
    assert operation.call_ended_at is not None
    assert world.ledger["exiting"] == 1


# --- several operations at once --------------------------------------------------------------------------------


def test_two_approvals_of_one_step_are_answered_in_reverse_and_each_branch_goes_on(worker: RunWorker) -> None:
    run = until(begin("o_branches"), "waiting")
    by_title = {a.title: a for a in Approval.objects.filter(run=run)}
    assert set(by_title) == {"May a?", "May b?"}
    say(by_title["May b?"], "reject")
    # The branch that has its answer does not wait for the other.
    wait_until(lambda: world.ledger["pay"] == 1, 10, "branch b goes on")
    until(run, "waiting")
    say(by_title["May a?"])
    assert until(run).result == [["a", "approved", "pay-2"], ["b", "rejected", "pay-1"]]


def test_one_of_several_effects_in_doubt_keeps_the_others(worker: RunWorker) -> None:
    world.script = ["lost"]
    run = until(begin("o_doubtful"), "attention", "waiting")
    lost = Operation.objects.filter(run=run, status="pending").first()
    if lost is None:  # the lost answer was that of the idempotent one, which settles itself
        send(run)
        assert until(run).status == "completed"
        return
    send(run)
    clock.shift(timedelta(minutes=1))
    answer_doubt(
        factories.operator(), lost.pk, happened=True, result="seen", reason="looked", seen_version=None
    )
    assert until(run).result == ["seen", "pay-1", 1]
    assert (world.ledger["post"], world.ledger["pay"]) == (1, 1)


@pytest.mark.parametrize("labels", ["none", "one"])
def test_overlapping_operations_without_labels_are_refused_before_anything_is_sent(
    labels: str, worker: RunWorker
) -> None:
    run = until(begin("o_unlabelled", 0, labels), "failed", "attention")
    assert (run.status, run.failure_kind) == ("failed", "not_retryable")
    assert "UnlabelledParallel" in run.reason
    assert not world.ledger


def test_a_final_failure_inside_a_task_group_spends_no_retries_of_the_step(worker: RunWorker) -> None:
    world.script = [NotRetryable("no such account")]
    run = until(begin("o_grouped"))
    assert (run.status, run.failure_kind) == ("failed", "not_retryable")
    assert world.ledger["tries"] == 1


@pytest.mark.parametrize("way", ["gather", "group"])
def test_an_effect_under_way_is_not_cut_by_the_error_of_a_sibling(way: str, worker: RunWorker) -> None:
    run = until(begin("o_stumbling", 0, way), "completed", "attention", "failed")
    assert (run.status, run.result) == ("completed", "slowly-1")
    assert world.ledger["slowly"] == 1


# --- time limits -----------------------------------------------------------------------------------------------


def test_a_call_that_outlives_its_attempt_is_not_taken_for_ended(worker: RunWorker) -> None:
    run = until(begin("o_cut_short"))
    assert (run.status, world.ledger["late"], world.ledger["begun"]) == ("completed", 1, 1), run.reason
    assert outcomes(run)[0] == "timed_out"


def test_an_async_tool_is_cut_at_its_own_time_limit_and_then_in_doubt(worker: RunWorker) -> None:
    run = until(begin("o_timed_tool"), "attention")
    operation = Operation.objects.get(run=run)
    assert (operation.status, operation.error_type) == ("pending", "TimeoutError")
    assert world.ledger["hang"] == 1


def test_a_delay_does_not_outlive_the_runs_deadline(worker: RunWorker) -> None:
    run = until(begin("o_pausing", 86_400), "queued", also=lambda r: r.step == "last")
    clock.shift(timedelta(hours=2))
    run = until(run)
    assert (run.status, run.failure_kind) == ("failed", "deadline")


def test_a_delay_is_waited_for_without_a_worker(worker: RunWorker) -> None:
    run = until(begin("o_pausing", 600), "queued", also=lambda r: r.step == "last")
    assert run.worker_id is None
    clock.shift(timedelta(minutes=11))
    assert until(run).result == "later"


def test_a_question_expires_at_the_limit_that_its_author_gave(worker: RunWorker) -> None:
    run = until(begin("o_impatient"), "waiting")
    clock.shift(timedelta(minutes=6))
    assert until(run).result == "expired"


def test_a_decision_after_the_limit_counts_while_no_worker_has_settled_the_expiry(
    transactional_db: None,
) -> None:
    with running_worker():
        run = until(begin("o_impatient"), "waiting")
    clock.shift(timedelta(minutes=6))
    say(Approval.objects.get(run=run))
    with running_worker():
        assert until(run).result == "approved"


def test_a_deadline_that_passes_with_an_effect_in_doubt_asks_first_and_then_fails(worker: RunWorker) -> None:
    world.script = ["lost"]
    run = until(begin("o_deadline"), "attention")
    clock.shift(timedelta(hours=2))
    operation = Operation.objects.get(run=run)
    answer_doubt(
        factories.operator(), operation.pk, happened=True, result="seen", reason="", seen_version=None
    )
    run = until(run)
    assert (run.status, run.failure_kind) == ("failed", "deadline")


def test_a_cancel_beats_a_deadline_that_passed_meanwhile(worker: RunWorker) -> None:
    world.script = ["lost"]
    run = until(begin("o_deadline"), "attention")
    stop(run)
    clock.shift(timedelta(hours=2))
    operation = Operation.objects.get(run=run)
    answer_doubt(
        factories.operator(), operation.pk, happened=True, result="seen", reason="", seen_version=None
    )
    assert until(run).status == "cancelled"


# --- atomic steps ----------------------------------------------------------------------------------------------


def test_an_atomic_step_and_its_checkpoint_are_one_transaction(worker: RunWorker) -> None:
    run = until(begin("o_atomic"))
    assert (run.status, run.result) == ("completed", {"noted": True})
    assert until(begin("o_atomic", 0, "complete")).result == "done"
    assert Blob.objects.count() == 2


@pytest.mark.parametrize("what", ["error", "exit", "operation", "fail"])
def test_an_atomic_step_that_does_not_commit_leaves_no_trace(what: str, worker: RunWorker) -> None:
    run = until(begin("o_atomic", 0, what))
    assert run.status == "failed"
    assert Blob.objects.count() == 0
    assert (world.ledger["pay"], world.ledger["afterwards"]) == (0, 0)


def test_a_cancel_during_an_atomic_step_undoes_it(worker: RunWorker) -> None:
    run = begin("o_atomic", 0, "cancel")
    wait_until(lambda: world.seen, 10, "the step has written")
    stop(run)
    world.gate.set()
    assert until(run).status == "cancelled"
    assert Blob.objects.count() == 0


def test_an_atomic_step_whose_checkpoint_is_refused_has_not_been_done(worker: RunWorker) -> None:
    run = begin("o_atomic", 0, "deadline")
    wait_until(lambda: world.seen, 10, "the step has written")
    Run.objects.filter(pk=run.pk).update(deadline_at=clock.now() - timedelta(seconds=1))
    world.gate.set()
    run = until(run)
    assert (run.status, run.failure_kind, run.step) == ("failed", "deadline", "write_rows")
    assert Blob.objects.count() == 0


def test_an_atomic_step_whose_commit_was_not_answered_is_not_repeated(
    worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = DatabaseWrapper._commit, [1]  # type: ignore[attr-defined]

    def commit(wrapper: DatabaseWrapper) -> None:
        real(wrapper)
        if world.seen and left:
            left.pop()
            raise OperationalError("the connection was lost")

    monkeypatch.setattr(DatabaseWrapper, "_commit", commit)
    run = until(begin("o_atomic"))
    assert (run.status, world.ledger["atomic"], world.ledger["afterwards"]) == ("completed", 1, 1)
    assert Blob.objects.count() == 1


# --- answers of COMMIT that are lost ---------------------------------------------------------------------------


HOT: dict[str, tuple[str | statements.Fenced, str, str]] = {
    "intent": (statements.INTENT, "t_effect", "pay"),
    "outcome": (statements.OUTCOME, "t_effect", "post"),
    "query": (statements.RECORD, "t_forget", ""),
    "goto": (statements.GOTO, "t_hello", ""),
    "complete": (statements.COMPLETE, "t_hello", ""),
    "log": (statements.LOG_LINE, "t_failing", ""),
    "message": (statements.MESSAGE, "o_conversing", ""),
}


@pytest.mark.parametrize("place", HOT)
def test_a_hot_statement_whose_answer_is_lost_is_applied_once(place: str, worker: RunWorker) -> None:
    statement, workflow, text = HOT[place]
    with losses() as lose:
        lose.of_statement(statement)
        run = until(begin(workflow, 0, text))
    assert (lose.lost, run.status) == (1, "completed"), run.reason
    assert all(count == 1 for thing, count in world.ledger.items() if thing in ("pay", "post"))
    assert not {"crashed", "stopped"} & set(outcomes(run))


def test_a_call_that_is_said_to_have_ended_twice_is_still_asked_about_once(worker: RunWorker) -> None:
    world.script = ["lost"]
    with losses() as lose:
        lose.of_statement(statements.CALL_ENDED)
        until(begin("t_effect", 0, "post"), "attention")
    assert (lose.lost, world.ledger["post"]) == (1, 1)


COLD = {
    "suspend": ("t_signal", ""),
    "failed attempt": ("t_failing", ""),
    "declared failure": ("t_failing", "declared"),
    "delay": ("o_pausing", ""),
    "intent of what was approved": ("t_guarded", ""),
}


@pytest.mark.parametrize("place", COLD)
def test_a_colder_move_whose_answer_is_lost_is_applied_once(place: str, worker: RunWorker) -> None:
    workflow, text = COLD[place]
    n = {"failed attempt": 1, "intent of what was approved": 5}.get(place, 0)
    if place == "intent of what was approved":
        run = until(begin(workflow, n, text), "waiting")
        with losses() as lose:
            lose.of_colder_move()
            say(Approval.objects.get(run=run))
            run = until(run)
        assert world.ledger["approved"] == 1
    else:
        with losses() as lose:
            lose.of_colder_move()
            run = begin(workflow, n, text)
            if place == "suspend":
                until(run, "waiting")
                send(run)
            run = until(run)
    assert lose.lost == 1
    assert run.status == ("failed" if place == "declared failure" else "completed"), run.reason
    assert "stopped" not in outcomes(run)


def test_a_cancel_that_follows_an_intent_whose_answer_was_lost_needs_nobody(worker: RunWorker) -> None:
    run: list[Run] = []
    with losses() as lose:
        lose.of_statement(statements.INTENT, then=lambda: stop(run[0]))
        with_id = begin("t_effect", 0, "post", queue="elsewhere")
        run.append(with_id)
        Run.objects.filter(pk=with_id.pk).update(queue="default")
        ended = until(with_id, "cancelled", "attention")
    assert (lose.lost, ended.status) == (1, "cancelled")
    assert not world.ledger


# --- what cannot be recorded -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["object", "text", "nul", "nan", "huge", "broken", "set"])
def test_an_answer_that_does_not_fit_is_recorded_and_never_asked_for_again(
    what: str, worker: RunWorker
) -> None:
    run = until(begin("o_returning", 0, f"answer {what}"), "failed", "attention", "completed")
    assert (run.status, run.failure_kind) == ("failed", "not_retryable"), run.reason
    assert "InvalidAnswer" in run.reason or "the answer is not what was declared" in run.reason
    assert world.ledger["answered"] == 1
    assert Operation.objects.get(run=run).status == "done"


@pytest.mark.parametrize(
    "what",
    [
        "result object",
        "result nul",
        "result nan",
        "result huge",
        "state set",
        "state nan",
        "state huge",
        "argument",
        "message nul",
        "none",
        "generator",
        "nowhere",
    ],
)
def test_what_a_body_hands_over_and_cannot_be_recorded_ends_the_run_at_once(
    what: str, worker: RunWorker
) -> None:
    run = until(begin("o_returning", 0, what))
    assert (run.status, run.failure_kind) == ("failed", "not_retryable"), run.reason
    assert world.ledger["tries"] == 1
    if what.startswith(("result", "state")) and "huge" not in what:
        assert "here" in run.reason  # the path to it


def test_a_log_line_takes_whatever_it_is_given(worker: RunWorker) -> None:
    run = until(begin("o_returning", 0, "log"))
    assert run.status == "completed", run.reason
    line = LogLine.objects.get(run_id=run.pk)
    assert (line.text, line.data) == ("a⟦U+0000⟧b", {"odd": "⟦Odd⟧", "nan": "⟦nan⟧"})


def test_a_statement_that_the_database_refuses_is_not_repeated_for_ever(worker: RunWorker) -> None:
    run = until(begin("o_returning", 0, "label"))
    assert run.status == "failed"
    assert not world.ledger["pay"]


# --- the record of a visit -------------------------------------------------------------------------------------


def test_messages_are_written_once_and_what_they_were_made_from_is_not_asked_again(worker: RunWorker) -> None:
    run = until(begin("o_conversing"), "completed", "attention", "failed")
    assert (run.status, run.result) == ("completed", ["w1"]), run.reason
    assert (Message.objects.filter(run_id=run.pk).count(), world.seen) == (1, [1, 1, 1])
    run.refresh_from_db()
    assert run.external == {"session": "s-1"}


def test_an_unregistered_function_is_called_once(worker: RunWorker) -> None:
    run = until(begin("o_once"))
    assert (run.result, world.ledger["by hand"]) == ("by hand-1", 1)


def test_an_unregistered_function_whose_answer_is_lost_asks_a_person(worker: RunWorker) -> None:
    world.script = ["lost"]
    run = until(begin("o_once"), "attention")
    assert (run.attention_kind, world.ledger["by hand"]) == ("in_doubt", 1)


# --- the worker itself -----------------------------------------------------------------------------------------


def test_a_run_that_cannot_be_handed_back_does_not_stop_the_heart(
    worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise DatabaseError("a row that nobody expected")

    stray = begin("t_hello", queue="elsewhere")
    now = clock.now()
    with monkeypatch.context() as patch:
        patch.setattr(leases, "hand_back_stray", broken)
        wait_until(
            lambda: Worker.objects.filter(pk=worker.worker_id).exists(), 10, "the worker has registered"
        )
        Run.objects.filter(pk=stray.pk).update(
            status="running",
            epoch=1,
            attempt_no=1,
            worker_id=worker.worker_id,
            sort_at=None,
            wake_at=now + timedelta(minutes=1),
            attempt_started_at=now,
            queue="default",
        )
        wait_until(lambda: (stray.pk, 1) in worker._strays, 10, "the stray is seen")
        seen = Worker.objects.get(pk=worker.worker_id).beat_at
        wait_until(
            lambda: (Worker.objects.get(pk=worker.worker_id).beat_at - seen).total_seconds() > 0.7,
            10,
            "it beats on",
        )
    assert until(stray).status == "completed"


def test_a_run_that_cannot_be_taken_up_does_not_stop_its_worker(
    worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = redaction.true_value

    def sealed(display: Any, seal: Any) -> Any:
        if isinstance(display, dict) and display.get("text") == "sealed":
            raise ValueError("this value is sealed and no key to open it is configured")
        return real(display, seal)

    monkeypatch.setattr(redaction, "true_value", sealed)
    poisoned = begin("t_hello", 1, "sealed")
    wait_until(
        lambda: Attempt.objects.filter(run_id=poisoned.pk, outcome="crashed").exists(), 10, "it is closed"
    )
    assert until(begin("t_hello", 1, "open")).status == "completed"
    assert "crashed" in outcomes(poisoned)
    stop(poisoned)


def test_three_thousand_events_still_chain(transactional_db: None) -> None:
    run = factories.run()
    with transaction.atomic():
        locked = lock_run(run.pk)
        for n in range(3000):
            append_event(locked, "note", SYSTEM, f"é{n}", n=n, nested={"b": [1, None], "a": "ß"})
    assert Event.objects.filter(run_id=run.pk).count() == 3001
    doctor.load()
    assert [p for p in doctor.examine(grace=60) if "chain" in p.check or "event" in p.check] == []
