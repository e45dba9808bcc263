"""Runs that a living worker owns and does not execute: the answer to its claim was lost."""

from datetime import timedelta

from runs import clock, codec
from runs.engine.worker import RunWorker
from runs.lifecycle import Actor
from runs.models import Attempt, Operation, Run
from runs.services import start
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import until
from tests.runs.engine.flows import world


def test_a_run_whose_claim_got_lost_is_handed_back_and_finds_what_it_had_recorded(worker: RunWorker) -> None:
    world.__init__()  # type: ignore[misc]
    run = start(Actor("test"), "t_effect", {"n": 5, "text": "pay"}, queue="elsewhere").run
    now = clock.now()
    # As if this worker had claimed it, done the payment and lost the run on the way to its checkpoint.
    Run.objects.filter(pk=run.pk).update(
        status="running",
        epoch=1,
        attempt_no=1,
        worker_id=worker.worker_id,
        sort_at=None,
        wake_at=now + timedelta(minutes=1),
        attempt_started_at=now,
        queue="default",
    )
    Operation.objects.create(
        run=run,
        step_seq=1,
        position="1",
        ordinal=1,
        attempt_no=1,
        kind="effect",
        name="pay",
        args_digest=codec.digest({"amount": 5}),
        status="done",
        request={"amount": 5},
        result="paid before",
        finished_at=now,
    )
    run = until(run)
    assert (run.status, run.result) == ("completed", "paid before"), run.reason
    assert not world.ledger
    outcomes = (
        Attempt.objects.filter(run_id=run.pk).order_by("attempt_no").values_list("attempt_no", "outcome")
    )
    assert list(outcomes) == [(1, "stopped"), (2, "succeeded")]
    assert run.failures == run.crashes == 0


def test_a_run_that_is_being_executed_is_not_handed_back(worker: RunWorker) -> None:
    world.__init__()  # type: ignore[misc]
    run = start(Actor("test"), "t_slow_but_fine", {}).run
    wait_until(lambda: world.ledger["in step"] == 1, 5, "the step runs")
    assert until(run).status == "completed"
    assert Attempt.objects.filter(run_id=run.pk).count() == 1
