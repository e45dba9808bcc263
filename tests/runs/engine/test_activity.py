"""What a worker counts for charts."""

import pytest

from runs import services
from runs.engine.activity import bin_of
from runs.engine.worker import RunWorker
from runs.models import Activity, Worker
from runs.models.worker import BINS
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine import flows
from tests.runs.engine.conftest import running_worker, until

HELLO = flows.hello.name


def ask(worker: RunWorker, what: str) -> None:
    wait_until(
        lambda: Worker.objects.filter(pk=worker.worker_id).update(asked=what) == 1, 10, "it is registered"
    )


@pytest.mark.parametrize(
    ("seconds", "place"),
    [(-1.0, 0), (0.0005, 0), (0.001, 1), (0.0019, 1), (0.004, 3), (131.1, 18), (1e9, 18)],
)
def test_a_bin_holds_what_takes_less_than_its_power_of_two_milliseconds(seconds: float, place: int):
    assert bin_of(seconds) == place < BINS


def test_runs_steps_and_waits_are_added_up_by_queue_and_what_is_counted_is_added_once(
    transactional_db: None, quick: None
):
    with running_worker() as worker:
        runs = [services.start(factories.SYSTEM, HELLO, {"n": n}).run for n in range(3)]
        for run in runs:
            until(run)
        worker.tally.add()
        runs = [services.start(factories.SYSTEM, HELLO, {"n": n}).run for n in range(2)]
        for run in runs:
            until(run)
    rows = list(Activity.objects.filter(worker_id=worker.worker_id, queue="default"))
    assert sum(row.started for row in rows) == 5
    assert sum(row.completed for row in rows) == 5
    assert sum(row.steps for row in rows) == 10
    assert sum(sum(row.waits) for row in rows) == 5
    assert sum(sum(row.times) for row in rows) == 10
    assert [sum(row.suspended + row.failed for row in rows)] == [0]


def test_a_worker_that_is_told_to_rest_takes_nothing_new_until_it_may_again(worker: RunWorker):
    ask(worker, "drain")
    wait_until(lambda: worker._rests, 10, "the worker rests")
    run = services.start(factories.SYSTEM, HELLO, {}).run
    wait_until(lambda: Worker.objects.get(pk=worker.worker_id).draining, 10, "people see that it rests")
    run.refresh_from_db()
    assert run.status == "queued"
    ask(worker, "")
    until(run)


def test_a_worker_that_is_to_be_recycled_drains(transactional_db: None, quick: None):
    with running_worker() as worker:
        ask(worker, "recycle")
        wait_until(lambda: Worker.objects.get(pk=worker.worker_id).closed_at is not None, 10, "it has ended")
        assert worker.wants_recycle
