"""Kinds of faults that users of other systems met, provoked here; docs/faults.md says which is which."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client

from approvals.models import Approval
from approvals.services import edit
from runs import clock
from runs.engine import leases
from runs.models import Attempt, Operation, Run, Worker
from runs.pages import reasons
from runs.services import cancel
from runs.states import Hold, Status
from runs.workflow import WORKFLOWS, Complete, Fail, Goto, Retry, Workflow
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import running_worker, until
from tests.runs.engine.flows import Given, world
from tests.runs.engine.test_protocol import begin, outcomes, say

pytestmark = pytest.mark.django_db(transaction=True)

holding = Workflow("f_hold", input=Given)
chain = Workflow("f_chain", input=Given)
asking = Workflow("f_ask", input=Given)
inside = threading.Semaphore(0)


@holding.step(start=True, timeout=60)
def hold(ctx: Any) -> Complete:
    """Holds its slot until the test opens the gate, or until it is cancelled."""
    inside.release()
    while not world.gate.wait(0.02):
        ctx.now()
        if ctx.cancelled:
            break
    return Complete()


@chain.step(start=True)
def one(ctx: Any) -> Goto:
    return Goto(two)


@chain.step(retry=Retry(max_attempts=2, base=0.01, maximum=0.02))
def two(ctx: Any) -> Goto | Fail:
    world.ledger["two"] += 1
    if ctx.input.text == "raise":
        raise ValueError("no")
    return Fail("no")


@chain.step
def three(ctx: Any) -> Complete:
    world.ledger["three"] += 1
    return Complete()


nesting = Workflow("f_nest", input=Given)


@nesting.step(start=True)
def nest(ctx: Any) -> Complete:
    """A run below a run below a run, which asks."""
    below = "f_nest" if ctx.input.n else "f_ask"
    return Complete(ctx.child(below, {"n": ctx.input.n - 1}))


@asking.step(start=True)
def ask(ctx: Any) -> Complete:
    world.ledger["asked"] += 1
    told = ctx.ask("What shall I write?", {"text": "Dear all"})
    return Complete(told.payload)


@pytest.fixture(autouse=True)
def fresh_world() -> Iterator[None]:
    world.__init__()  # type: ignore[misc]
    yield
    # Whatever still holds a slot ends now.
    world.gate.set()


@pytest.mark.parametrize("text", ["raise", "declare"])
def test_a_step_after_one_that_failed_for_good_never_begins(worker: object, text: str) -> None:
    run = until(begin("f_chain", text=text))
    assert (run.status, run.step) == ("failed", "two")
    assert world.ledger["two"] == (2 if text == "raise" else 1)
    assert world.ledger["three"] == 0
    assert not Attempt.objects.filter(run_id=run.pk, step="three").exists()


def test_a_decision_holds_where_another_worker_goes_on(quick: None) -> None:
    with running_worker():
        run = until(begin("t_guarded", 20), "waiting")
    say(Approval.objects.get(run_id=run.pk), "approve")
    with running_worker():
        assert until(run).status == "completed"
    assert Approval.objects.filter(run_id=run.pk).count() == 1
    assert world.ledger["approved"] == 1


def test_an_answer_in_free_words_reaches_the_run_that_asked_and_starts_no_other(worker: object) -> None:
    run = until(begin("f_ask"), "waiting")
    other = until(begin("f_ask"), "waiting")
    approval = Approval.objects.get(run_id=run.pk)
    written = {"text": "Dear Ada,\n“we are sorry” 🙂"}
    edit(factories.operator(), approval.pk, version=1, arguments=written, reason="in my words")
    approval.refresh_from_db()
    say(approval, "approve")
    assert until(run).result == written
    assert Run.objects.count() == 2
    other.refresh_from_db()
    assert other.status == "waiting"
    # Each asked, and the one that was answered went on.
    assert world.ledger["asked"] == 3


def test_the_question_of_a_nested_run_stands_in_the_inbox_and_its_answer_ends_them_all(
    worker: object,
) -> None:
    top = begin("f_nest", 2)
    wait_until(lambda: Approval.objects.exists(), 15, "the innermost run asks")
    approval = Approval.objects.get()
    until(approval.run, "waiting")
    browser = Client()
    browser.force_login(factories.user("", "operators"))
    assert f"/approvals/{approval.pk}/" in browser.get("/approvals/").content.decode()
    assert f"/approvals/{approval.pk}/decide/" in browser.get(f"/approvals/{approval.pk}/").content.decode()
    say(approval, "approve")
    assert until(top).result == {"text": "Dear all"}
    assert set(Run.objects.values_list("status", flat=True)) == {"completed"}


def test_a_run_that_is_due_later_holds_up_none_that_is_due_now(quick: None) -> None:
    later = begin("t_hello", priority=9)
    Run.objects.filter(pk=later.pk).update(
        wake_at=clock.now() + timedelta(hours=6), sort_at=clock.now() - timedelta(minutes=9)
    )
    run = begin("t_hello")
    with running_worker(slots=1):
        assert until(run).status == "completed"
    later.refresh_from_db()
    assert (later.status, outcomes(later)) == ("queued", [])


def test_a_long_sleep_is_one_timer_and_one_wake(quick: None) -> None:
    nap = Workflow("f_nap", input=Given)

    @nap.step(start=True)
    def sleep(ctx: Any) -> Complete:
        world.ledger["woken"] += 1
        ctx.sleep(timedelta(hours=6))
        return Complete()

    with running_worker():
        run = until(begin("f_nap"), "waiting")
        clock.shift(timedelta(hours=5, minutes=59))
        leases.sweep()
        run.refresh_from_db()
        assert run.status == "waiting"
        clock.shift(timedelta(hours=6, seconds=1))
        assert until(run).status == "completed"
    assert outcomes(run) == ["suspended", "succeeded"]
    assert world.ledger["woken"] == 2
    assert Operation.objects.filter(run=run, kind="timer").count() == 1


def test_a_step_that_no_worker_knows_spends_no_attempt_and_goes_on_when_one_does(quick: None) -> None:
    young = Workflow("f_young", input=Given)

    @young.step(start=True)
    def act(ctx: Any) -> Complete:
        return Complete("known")

    run = begin("f_young")
    known = WORKFLOWS.pop("f_young")
    try:
        with running_worker():
            Run.objects.filter(pk=run.pk).update(
                wake_at=clock.now() - timedelta(seconds=5), sort_at=clock.now() - timedelta(seconds=5)
            )
            run = until(run, "queued", also=lambda r: r.held_by == Hold.NO_CAPABLE_WORKER)
            assert (run.attempt_no, outcomes(run)) == (0, [])
            assert "worker" in reasons.why_not_moving(run)
    finally:
        WORKFLOWS["f_young"] = known
    with running_worker():
        assert until(run).result == "known"
    assert outcomes(run) == ["succeeded"]


def test_as_many_runs_overlap_as_there_are_slots_and_never_more(quick: None) -> None:
    runs = [begin("f_hold") for _ in range(7)]
    with running_worker(slots=4):
        for _ in range(4):
            assert inside.acquire(timeout=20)
        # A fifth would be claimed at one of the next polls.
        leases_seen = Run.objects.filter(status="running").count()
        assert leases_seen == 4
        assert not inside.acquire(timeout=0.5)
        world.gate.set()
        assert {until(run).status for run in runs} == {"completed"}
    while inside.acquire(blocking=False):
        pass


def test_a_cancelled_holder_gives_its_slot_back(quick: None) -> None:
    holder, next_one = begin("f_hold"), begin("t_hello")
    with running_worker(slots=1):
        assert inside.acquire(timeout=20)
        cancel(factories.support(), holder.pk, reason="enough")
        assert until(holder).status == "cancelled"
        assert until(next_one).status == "completed"


def test_a_run_that_is_started_in_an_open_transaction_begins_after_its_commit(quick: None) -> None:
    with running_worker() as worker:
        with transaction.atomic():
            run = begin("t_hello")
            other: list[Run] = []
            thread = threading.Thread(target=lambda: other.append(_completed_beside(run)))
            thread.start()
            thread.join(20)
            assert other, "a run that was started and committed meanwhile completes"
            assert Attempt.objects.filter(run_id=run.pk).count() == 0
        assert until(run).status == "completed"
        assert worker.wants_recycle is False


def _completed_beside(first: Run) -> Run:
    """Start another run on a session of this thread, and wait for its end: the worker has looked for work since."""
    try:
        run = until(begin("t_hello"))
        assert not Run.objects.filter(pk=first.pk).exists()
        return run
    finally:
        connection.close()


def test_a_step_that_goes_on_past_its_limit_under_a_living_worker_is_flagged() -> None:
    run = factories.run(Status.RUNNING)
    assert "overdue" not in reasons.why_not_moving(run)
    Run.objects.filter(pk=run.pk).update(wake_at=clock.now() - timedelta(minutes=5))
    run.refresh_from_db()
    assert "overdue: nobody has ended it at its limit" in reasons.why_not_moving(run)


def test_a_step_that_blocks_for_ever_is_closed_and_its_slot_is_shown_as_lost(quick: None) -> None:
    stuck = Workflow("f_stuck", input=Given)

    @stuck.step(start=True, timeout=0.2, retry=Retry(max_attempts=1))
    def block(ctx: Any) -> Complete:
        world.gate.wait(30)
        return Complete()

    with running_worker(slots=8) as worker:
        run = until(begin("f_stuck"))
        assert (run.status, outcomes(run)) == ("failed", ["timed_out"])
        assert "it may still be running in its worker" in Attempt.objects.get(run_id=run.pk).error
        rows = Worker.objects.filter(pk=worker.worker_id)
        wait_until(lambda: rows.get().lost_slots == 1, 10, "the next beat tells of the lost slot")
        world.gate.set()


def test_a_queue_whose_name_has_quotes_is_served_like_any_other(quick: None) -> None:
    queue = "o'brien\"; DROP TABLE runs_run; --"
    run = begin("t_hello", queue=queue)
    with running_worker(queues=(queue,)):
        assert until(run).status == "completed"
