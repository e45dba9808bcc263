"""What people, clocks and other workers do in the gap between two durable facts, at each gap."""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.db import connection

from approvals.models import Approval
from approvals.services import edit
from runs import clock, codec
from runs.engine import (
    context,
    doubt,
    effects,
    execution,
    executor,
    leases,
    queries,
    sending,
    statements,
)
from runs.engine.classify import Verdict, classify
from runs.engine.lease import Lease
from runs.engine.lease import clock as lease_clock
from runs.engine.worker import RunWorker, WorkerClosed
from runs.errors import ContextClosed, LeaseLost, Retryable
from runs.models import Attempt, Event, Operation, Run, Worker
from runs.models.operation import OpStatus
from runs.models.run import new_id
from runs.services import answer_doubt, cancel
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine import odd_flows
from tests.runs.engine.conftest import running_worker, until
from tests.runs.engine.flows import pay, world
from tests.runs.engine.test_protocol import begin, outcomes, say, send, stop


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], Any]], None]:
    """Do something once, on the worker's own thread, when it comes by a failpoint."""

    def arrange(place: str, work: Callable[[], Any]) -> None:
        left = [1]
        lock = threading.Lock()

        def passed(name: str) -> None:
            with lock:
                now = name == place and bool(left) and left.pop() == 1
            if now:
                work()

        for module in (effects, sending, doubt, queries, executor):
            monkeypatch.setattr(module, "failpoint", passed)

    return arrange


At = Callable[[str, Callable[[], Any]], None]


def last_run() -> Run:
    return Run.objects.order_by("-id")[0]


# --- cancel ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "effects_seen"),
    [
        ("attempt.begun", 0),
        ("intent.before", 0),
        ("intent.committed", 1),
        ("effect.answered", 1),
        ("outcome.before", 1),
        ("outcome.committed", 1),
        ("checkpoint.before", 1),
    ],
)
def test_a_cancel_at_any_moment_ends_the_run_with_what_has_happened_on_record(
    place: str, effects_seen: int, at: At, worker: RunWorker
) -> None:
    at(place, lambda: stop(last_run()))
    run = until(begin("t_effect", 1, "post"))
    assert (run.status, world.ledger["post"]) == ("cancelled", effects_seen)
    done = Operation.objects.filter(run=run, status="done").count()
    assert done == effects_seen


def test_a_cancel_while_a_wait_opens_leaves_none_open(at: At, worker: RunWorker) -> None:
    at("suspend.before", lambda: stop(last_run()))
    run = until(begin("t_signal"))
    assert run.status == "cancelled"
    assert not Operation.objects.filter(run=run, status="open").exists()


def test_a_cancel_between_two_effects_undoes_the_first_once_although_an_answer_is_lost(
    at: At, worker: RunWorker
) -> None:
    def then() -> None:
        world.script = ["lost"]
        stop(last_run())

    at("outcome.committed", then)
    run = until(begin("t_trip"))
    assert run.status == "cancelled", run.reason
    assert world.ledger == Counter({"book flight": 1, "undo book flight-1": 1})


def test_what_is_undone_is_what_people_had_made_of_it(worker: RunWorker) -> None:
    run = until(begin("o_booking"), "waiting")
    approval = Approval.objects.get(run=run)
    edit(factories.operator(), approval.pk, version=1, arguments={"name": "single"}, reason="cheaper")
    approval.refresh_from_db()
    say(approval)
    wait_until(lambda: Operation.objects.filter(run=run, kind="signal").exists(), 10, "it is booked")
    stop(until(run, "waiting"))
    assert until(run).status == "cancelled"
    assert set(world.ledger) == {"book single", "unbook single book single-1"}


def left_by(sender: Worker, workflow: str, text: str, tool: str, **fields: Any) -> Operation:
    """An effect of a run that `sender` had begun and left pending; the run is to be taken over."""
    run, now = begin(workflow, 5, text), clock.now()
    Run.objects.filter(pk=run.pk).update(
        status="running",
        epoch=1,
        attempt_no=1,
        worker_id=factories.worker(reaped=True).pk,
        sort_at=None,
        wake_at=now + timedelta(minutes=1),
        attempt_started_at=now,
    )
    return Operation.objects.create(
        **{
            "run": run,
            "step_seq": 1,
            "position": "1",
            "ordinal": 1,
            "attempt_no": 1,
            "kind": "effect",
            "name": tool,
            "args_digest": codec.digest({"amount": 5}),
            "status": "pending",
            "request": {"amount": 5},
            "provider_key": effects.provider_key(run.pk, 1, "1", 0),
            "intent_epoch": 1,
            "intent_worker_id": sender.pk,
            "intent_at": now,
            "first_sent_at": now,
        }
        | fields
    )


def ask_for_cancel(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(cancel_requested_at=clock.now(), cancel_requested_by="somebody")


@pytest.mark.parametrize("happened", [True, False])
def test_an_effect_in_doubt_under_a_cancel_is_looked_up_and_nobody_is_asked(
    happened: bool, transactional_db: None, quick: None
) -> None:
    left = left_by(factories.worker(reaped=True), "t_effect", "charge", "charge_verified")
    ask_for_cancel(left.run)
    if happened:
        world.by_key[str(left.provider_key)] = "charged before"
    with running_worker():
        run = until(left.run, "cancelled", "attention", "completed")
    left.refresh_from_db()
    assert (run.status, left.status) == ("cancelled", "done" if happened else "retry"), run.reason
    assert not world.ledger


def test_an_idempotent_effect_in_doubt_is_not_sent_again_under_a_cancel(
    transactional_db: None, quick: None
) -> None:
    left = left_by(factories.worker(reaped=True), "o_left_behind", "pay", "pay")
    ask_for_cancel(left.run)
    with running_worker():
        run = until(left.run, "cancelled", "attention", "completed")
    assert (run.status, "cancel was asked for" in run.reason) == ("attention", True)
    assert not world.ledger


# --- effects that another worker left pending ---------------------------------------------------------------------------


def test_an_idempotent_effect_is_sent_again_under_the_same_key_and_a_new_intent(
    transactional_db: None, quick: None
) -> None:
    left = left_by(factories.worker(), "o_left_behind", "pay", "pay")
    with running_worker() as living:
        assert until(left.run).result == "pay-1"
        sender = living.worker_id
    left.refresh_from_db()
    assert world.keys == [str(left.provider_key)]
    assert (left.intent_epoch, left.intent_worker_id, left.earlier_send_open) == (2, sender, True)
    (earlier,) = left.earlier_sends or []
    assert (earlier["epoch"], earlier["key"], earlier["answered"]) == (1, str(left.provider_key), False)


def test_each_send_is_kept_with_what_came_of_itself(db: None) -> None:
    left = left_by(
        factories.worker(reaped=True), "o_left_behind", "pay", "pay", error_type="ReadTimeout", error="28 s"
    )
    for epoch in (2, 3):  # the worker of the second send is lost
        Run.objects.filter(pk=left.run_id).update(epoch=epoch)
        fence: dict[str, Any] = {"run": left.run_id, "epoch": epoch, "seq": 1, "attempt": epoch}
        seen = {"id": left.pk, "seen": epoch - 1, "open": True, "window": None, "worker": new_id()}
        with connection.cursor() as cursor:
            cursor.execute(statements.RESTAMP, fence | seen)
            assert cursor.rowcount == 1
    left.refresh_from_db()
    errors = [(one["attempt"], one["error_type"], one["error"]) for one in left.earlier_sends or []]
    assert errors == [(1, "ReadTimeout", "28 s"), (2, "", "")]


@pytest.mark.parametrize("ago", [timedelta(hours=2), timedelta(hours=1, seconds=-5)])
def test_a_key_is_not_used_again_when_less_than_a_lease_of_its_window_is_left(
    ago: timedelta, transactional_db: None, quick: None
) -> None:
    left = left_by(
        factories.worker(reaped=True), "o_left_behind", "pay", "pay", first_sent_at=clock.now() - ago
    )
    with running_worker():
        run = until(left.run, "attention", "completed")
    assert (run.status, run.attention_kind) == ("attention", "in_doubt")
    assert not world.keys


def test_what_is_absent_is_sent_again_only_when_the_settle_time_has_passed_since_the_senders_end(
    transactional_db: None, quick: None
) -> None:
    # The intent is two hours old, but its sender was seen to end just now.
    long_ago = clock.now() - timedelta(hours=2)
    left = left_by(
        factories.worker(reaped=True),
        "o_left_behind",
        "settle",
        "settle_slowly",
        intent_at=long_ago,
        first_sent_at=long_ago,
    )
    with running_worker():
        until(left.run, "retrying", also=lambda r: Operation.objects.get(run=r).looks >= 2)
        assert not world.keys
        clock.shift(timedelta(seconds=61))
        assert until(left.run).result == "settled-1"
    assert world.keys == [str(left.provider_key)]


def test_what_is_absent_is_not_sent_again_while_its_sender_may_act_and_a_person_is_asked_in_time(
    monkeypatch: pytest.MonkeyPatch, transactional_db: None, quick: None
) -> None:
    monkeypatch.setattr(doubt, "LOOKS", 2)
    left = left_by(factories.worker(), "o_left_behind", "settle", "settle_slowly")
    with running_worker():
        clock.shift(timedelta(hours=1))
        run = until(left.run, "attention", "completed")
    assert (run.status, "the old worker may still act" in run.reason) == ("attention", True)
    assert not world.keys


# --- approvals -----------------------------------------------------------------------------------------------------------


def test_an_edit_between_the_look_and_the_intent_asks_again(at: At, worker: RunWorker) -> None:
    run = until(begin("t_guarded", 20), "waiting")
    approval = Approval.objects.get(run=run)
    at(
        "intent.before",
        lambda: edit(factories.operator(), approval.pk, version=1, arguments={"amount": 15}, reason="less"),
    )
    say(approval)
    wait_until(lambda: Approval.objects.get(pk=approval.pk).version == 2, 10, "it is edited")
    until(run, "waiting")
    assert not world.ledger
    approval.refresh_from_db()
    say(approval)
    assert until(run).result == "approved-1"
    assert world.seen == [15]


# --- outcomes --------------------------------------------------------------------------------------------------------------


def test_an_outcome_that_arrives_for_a_run_in_attention_lets_it_go_on(at: At, worker: RunWorker) -> None:
    def lose_the_run() -> None:
        run = last_run()
        leases.hand_back_stray(run.pk, worker.worker_id, run.epoch)
        until(run, "attention")

    at("outcome.before", lose_the_run)
    run = until(begin("t_effect", 1, "post"))
    assert (run.status, run.result, world.ledger["post"]) == ("completed", "post-1", 1)
    kinds = list(Event.objects.filter(run_id=run.pk).order_by("seq").values_list("kind", flat=True))
    assert kinds == ["started", "taken_over", "attention", "resumed", "completed"]


def test_an_outcome_after_a_person_has_answered_is_kept_as_evidence(at: At, worker: RunWorker) -> None:
    def answered() -> None:
        run = last_run()
        leases.hand_back_stray(run.pk, worker.worker_id, run.epoch)
        until(run, "attention")
        operation = Operation.objects.get(run=run)
        answer_doubt(
            factories.operator(), operation.pk, happened=True, result="seen", reason="", seen_version=None
        )

    at("outcome.before", answered)
    run = until(begin("t_effect", 1, "post"))
    assert (run.result, world.ledger["post"]) == ("seen", 1)
    wait_until(lambda: Event.objects.filter(run_id=run.pk, kind="late_outcome").exists(), 10, "it is kept")


def test_a_run_does_not_fail_with_an_effect_in_doubt(worker: RunWorker) -> None:
    run = until(begin("o_hopeless"), "attention", "failed")
    assert (run.status, run.attention_kind) == ("attention", "in_doubt")


def test_nothing_is_sent_once_too_little_of_the_lease_is_left_and_nobody_need_ask(
    monkeypatch: pytest.MonkeyPatch, worker: RunWorker
) -> None:
    answers = [False]
    monkeypatch.setattr(execution.Execution, "may_send", lambda self: answers.pop() if answers else True)
    run = until(begin("t_effect", 1, "post"), "completed", "attention")
    assert (run.status, world.ledger["post"]) == ("completed", 1)
    assert Operation.objects.get(run=run).intent_epoch == 2


def test_a_send_needs_a_margin_of_the_lease_and_the_attempts_time() -> None:
    lease = Lease(seconds=10, margin=3)
    now = lease_clock()
    held = object.__new__(execution.Execution)
    held.lost, held.lease, held.deadline = False, lease, now + 60
    assert not held.may_send()
    lease.renew(now - 7.5)
    assert not held.may_send()
    lease.renew(now - 6)
    assert held.may_send()
    held.deadline = now - 0.1
    assert not held.may_send()
    held.deadline, held.lost = now + 60, True
    assert not held.may_send()


# --- claims that another one superseded -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "workflow", "text"),
    [
        ("intent.before", "t_effect", "post"),
        ("checkpoint.before", "t_hello", ""),
        ("checkpoint.before", "t_failing", "declared"),
        ("suspend.before", "t_signal", ""),
        ("attempt.ended", "t_failing", ""),
        ("query.answered", "t_forget", ""),
    ],
)
def test_a_claim_that_was_superseded_writes_nothing_any_more(
    place: str, workflow: str, text: str, monkeypatch: pytest.MonkeyPatch, worker: RunWorker
) -> None:
    superseded, tried = threading.Event(), threading.Event()
    begun, left, lock = [0], [1], threading.Lock()
    lost: list[int] = []

    def passed(name: str) -> None:
        with lock:
            begun[0] += name == "attempt.begun"
            second = name == "attempt.begun" and begun[0] == 2
            now = name == place and bool(left) and left.pop() == 1
        if second:
            superseded.set()
            assert tried.wait(10)
        if now:
            run = last_run()
            leases.hand_back_stray(run.pk, worker.worker_id, run.epoch)
            assert superseded.wait(10)

    wait_until(lambda: hasattr(worker, "executor"), 10, "the worker has begun")
    real = worker.executor.run

    def run_it(execution: execution.Execution) -> None:
        try:
            real(execution)
        except LeaseLost:
            lost.append(execution.epoch)
            raise
        finally:
            if execution.epoch == 1:
                tried.set()

    monkeypatch.setattr(worker.executor, "run", run_it)
    for module in (effects, sending, doubt, queries, executor):
        monkeypatch.setattr(module, "failpoint", passed)
    run = begin(workflow, 1, text)
    if workflow == "t_signal":
        until(run, "waiting")
        send(run)
    run = until(run)
    assert run.status == ("failed" if text == "declared" else "completed"), run.reason
    assert lost == [1]
    written = Attempt.objects.filter(run_id=run.pk, epoch=1).values_list("outcome", "closed_by")
    assert list(written) == [("stopped", "reconcile")]
    assert not Operation.objects.filter(run=run, attempt_no=1).exists()


def test_a_worker_whose_row_was_closed_stops_and_says_so(transactional_db: None, quick: None) -> None:
    with pytest.raises(WorkerClosed), running_worker() as closed:
        wait_until(lambda: Worker.objects.filter(pk=closed.worker_id).exists(), 10, "it has registered")
        leases.reap(closed.worker_id)
        wait_until(lambda: closed.lease.remaining <= 0, 10, "it has noticed")
        assert not closed.lease.allows_send


# --- time ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["waiting", "retrying", "running", "asking"])
def test_the_deadline_of_a_run_ends_it_in_every_status(status: str, worker: RunWorker) -> None:
    world.script = [Retryable("busy", retry_after=3600 * 3)]
    run = begin("o_bounded", 0, status)
    if status == "running":
        wait_until(lambda: world.seen, 10, "it is in its step")
    else:
        until(run, "waiting" if status == "asking" else status)
    clock.shift(timedelta(hours=1, seconds=5))
    run = until(run)
    world.gate.set()
    assert (run.status, run.failure_kind) == ("failed", "deadline"), run.reason
    assert not Operation.objects.filter(run=run, status="open").exists()


def test_a_deadline_closes_no_question(worker: RunWorker) -> None:
    world.script = ["lost"]
    run = until(begin("o_bounded", 0, "attention"), "attention")
    clock.shift(timedelta(hours=2))
    assert until(begin("t_hello")).status == "completed"
    assert until(run, "attention").attention_kind == "in_doubt"


def test_a_head_start_does_not_wake_a_timer_early(worker: RunWorker) -> None:
    run = until(begin("t_sleep", 120, priority=9), "waiting")
    assert run.sort_at is not None and run.sort_at < clock.now()
    assert until(begin("t_hello")).status == "completed"
    run.refresh_from_db()
    assert (run.status, run.epoch) == ("waiting", 1)
    clock.shift(timedelta(minutes=3))
    assert (until(run).result or 0) >= 120


def test_a_timer_that_is_already_due_fires(worker: RunWorker) -> None:
    assert until(begin("t_sleep", 0)).status == "completed"


def test_what_a_provider_says_about_later_is_respected(worker: RunWorker) -> None:
    world.script = [Retryable("busy", retry_after=3600)]
    run = until(begin("t_effect", 1, "pay"), "retrying")
    assert run.wake_at is not None and run.wake_at > clock.now() + timedelta(minutes=59)
    clock.shift(timedelta(hours=1, seconds=1))
    assert until(run).status == "completed"


@pytest.mark.parametrize(
    ("status", "header", "verdict", "seconds"),
    [
        (429, "7", Verdict.RETRY, 7),
        (429, "soon", Verdict.RETRY, None),
        (429, "Wed, 21 Oct 2015 07:28:00 GMT", Verdict.RETRY, 0),
        (429, "999999", Verdict.RETRY, 3600),
        (429, None, Verdict.RETRY, None),
        (503, "7", Verdict.UNKNOWN, 7),
        (408, None, Verdict.RETRY, None),
        (422, None, Verdict.FINAL, None),
    ],
)
def test_an_answer_of_http_says_whether_it_happened(
    status: int, header: str | None, verdict: Verdict, seconds: float | None
) -> None:
    answer = httpx.Response(status, headers={} if header is None else {"Retry-After": header})
    found = classify(
        httpx.HTTPStatusError("no", request=httpx.Request("POST", "http://x"), response=answer), effect=True
    )
    assert (found.verdict, found.retry_after) == (verdict, seconds)


# --- the worker ------------------------------------------------------------------------------------------------------------


def test_ctx_is_closed_once_its_attempt_has_ended(worker: RunWorker) -> None:
    until(begin("o_escaping"))
    ctx: context.Context = world.seen[0]
    uses: list[Callable[[], Any]] = [
        lambda: ctx.call(pay, amount=1),
        lambda: ctx.log("late"),
        lambda: ctx.messages.add("agent", "late"),
        lambda: ctx.external.update(late=1),
        lambda: ctx.wait_signal("late"),
    ]
    for use in uses:
        with pytest.raises(ContextClosed):
            use()
    assert not world.ledger


def test_a_worker_serves_all_its_queues_and_no_other(transactional_db: None, quick: None) -> None:
    with running_worker(queues=("one", "two")):
        runs = [begin("t_hello", queue=queue) for queue in ("one", "two", "one", "two")]
        other = begin("t_hello", queue="three")
        assert {until(run).status for run in runs} == {"completed"}
        other.refresh_from_db()
        assert other.status == "queued"


def test_a_worker_that_has_lost_half_its_slots_asks_to_be_replaced(
    transactional_db: None, quick: None
) -> None:
    with running_worker(slots=2) as few:
        run = begin("t_slow")
        wait_until(lambda: few.wants_recycle, 10, "it wants to be replaced")
        assert outcomes(run)[0] == "timed_out"
    with running_worker():
        assert until(run).status == "failed"


def test_cancel_finds_a_run_on_its_second_attempt(worker: RunWorker) -> None:
    world.script = [Retryable("busy"), Retryable("busy", retry_after=3600)]
    run = until(begin("t_effect", 1, "pay"), "retrying", also=lambda r: outcomes(r) == ["suspended"] * 2)
    cancel(factories.support(), run.pk, reason="enough")
    assert until(run).status == "cancelled"


def test_what_a_step_made_does_not_count_when_its_end_is_refused_over_an_effect_in_doubt(
    worker: RunWorker,
) -> None:
    def doubt_arises() -> None:
        run = Run.objects.get()
        factories.operation(run, status=OpStatus.PENDING, intent_worker_id=run.worker_id)

    odd_flows.meddlers.append(doubt_arises)
    run = until(begin("o_meddling"), "attention")
    assert (run.attention_kind, outcomes(run)) == ("in_doubt", ["fenced"])
    assert (run.state, run.result) == ({}, None), "the step is executed again, and would count twice"


def test_a_run_whose_doubt_ended_while_its_end_was_refused_completes_with_its_result(
    worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = execution.Execution.checkpoint

    def refused(self: execution.Execution, statement: Any, parameters: dict[str, Any]) -> Any:
        return None if statement is statements.COMPLETE else real(self, statement, parameters)

    monkeypatch.setattr(execution.Execution, "checkpoint", refused)
    run = until(begin("o_meddling"))
    assert (run.status, outcomes(run)) == ("completed", ["succeeded"])
    assert run.state == run.result == {"tries": 1}


@pytest.mark.usefixtures("transactional_db", "quick")
def test_a_claim_that_takes_several_beats_to_take_up_its_runs_is_not_handed_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, handed = threading.Event(), []
    real_start, real_back = RunWorker._start, leases.hand_back_stray

    def slow(self: RunWorker, row: Any) -> None:
        assert gate.wait(20)
        real_start(self, row)

    def back(*arguments: Any) -> Any:
        handed.append(arguments)
        return real_back(*arguments)

    monkeypatch.setattr(RunWorker, "_start", slow)
    monkeypatch.setattr(leases, "hand_back_stray", back)
    with running_worker() as worker:
        run = begin("t_hello")
        wait_until(lambda: (run.pk, 1) in worker._strays, 10, "a beat finds the run with nobody executing it")
        seen = Worker.objects.get(pk=worker.worker_id).beat_at
        beats = 3 * settings.AGENTOPS_BEAT_SECONDS
        wait_until(
            lambda: (Worker.objects.get(pk=worker.worker_id).beat_at - seen).total_seconds() > beats,
            20,
            "three more beats",
        )
        gate.set()
        assert until(run).status == "completed"
    assert (handed, run.epoch) == ([], 1)
