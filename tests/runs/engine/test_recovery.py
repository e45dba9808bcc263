"""Take-over, hand-back and counting: faults that other systems had in the same places (docs/faults.md)."""

import random
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection

from runs import clock
from runs.engine import closing, leases
from runs.engine.worker import RunWorker
from runs.lifecycle import lock_run
from runs.models import Attempt, Run, Worker
from runs.models.operation import Kind, OpStatus
from runs.services import set_limits
from runs.states import Outcome, Status
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import running_worker, until
from tests.runs.engine.flows import world
from tests.runs.engine.test_moments import At, at, last_run  # noqa: F401
from tests.runs.engine.test_protocol import begin, outcomes, stop


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


def held_by_the_dead(count: int, *, reaped: bool = True) -> tuple[Worker, list[Run]]:
    dead = factories.worker(**({"reaped": True} if reaped else {"beats": False}))
    return dead, [factories.run(Status.RUNNING, worker_id=dead.pk) for _ in range(count)]


def test_two_workers_claim_each_run_once(transactional_db: None, quick: None) -> None:
    with running_worker(), running_worker():
        runs = [begin("t_ten") for _ in range(20)]
        assert {(until(run).status, run.epoch) for run in runs} == {("completed", 1)}


def test_a_step_of_several_leases_length_is_executed_once_while_its_worker_beats(
    settings: object, transactional_db: None, quick: None
) -> None:
    settings.AGENTOPS_LEASE_SECONDS = 0.5  # type: ignore[attr-defined]
    settings.AGENTOPS_SEND_MARGIN_SECONDS = 0.1  # type: ignore[attr-defined]
    settings.AGENTOPS_BEAT_SECONDS = 0.05  # type: ignore[attr-defined]
    with running_worker(), running_worker():
        run = until(begin("t_slow_but_fine"))
    assert (run.status, outcomes(run), world.ledger["in step"]) == ("completed", ["succeeded"], 1)


@pytest.mark.django_db
def test_a_worker_that_is_reaped_twice_gives_its_runs_up_once() -> None:
    dead, (run,) = held_by_the_dead(1)
    assert leases.reap(dead.pk) == 1
    run.refresh_from_db()
    assert (run.status, run.crashes) == ("queued", 1)
    other = factories.worker()
    Run.objects.filter(pk=run.pk).update(
        status="running",
        worker_id=other.pk,
        epoch=2,
        attempt_no=2,
        sort_at=None,
        attempt_started_at=clock.now(),
    )
    assert leases.reap(dead.pk) == 0
    run.refresh_from_db()
    assert (run.status, run.worker_id, run.crashes) == ("running", other.pk, 1)


@pytest.mark.django_db
def test_after_a_restart_of_postgresql_every_worker_has_one_lease_to_beat_again(settings: object) -> None:
    dead, (run,) = held_by_the_dead(1, reaped=False)
    settings.AGENTOPS_LEASE_SECONDS = 1_000_000.0  # type: ignore[attr-defined]
    assert (leases.sweep(), leases.expired([dead.pk])) == (0, set())
    settings.AGENTOPS_LEASE_SECONDS = 0.001  # type: ignore[attr-defined]
    assert (leases.sweep(), leases.expired([dead.pk])) == (1, {dead.pk})
    dead.refresh_from_db()
    run.refresh_from_db()
    # The row is closed first, so that no beat renews it.
    assert (dead.closed_at is not None, dead.reaped_at, run.status) == (True, None, "queued")


@pytest.mark.django_db
def test_a_run_that_ended_is_not_taken_over_from_an_old_list() -> None:
    dead = factories.worker(reaped=True)
    run = factories.run(Status.COMPLETED)
    assert not leases._take_over(run.pk, dead.pk, Outcome.CRASHED, "late")
    run.refresh_from_db()
    assert (run.status, Attempt.objects.filter(run_id=run.pk).exists()) == ("completed", False)


def test_one_run_that_cannot_be_taken_over_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    _, runs = held_by_the_dead(3)
    real = closing.close_dead_attempt

    def close(run: Run, **options: object) -> None:
        if run.pk == runs[1].pk:
            raise DatabaseError("a row that nobody expected")
        real(run, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(leases, "close_dead_attempt", close)
        leases.sweep()
    assert [Run.objects.get(pk=r.pk).status for r in runs] == ["queued", "running", "queued"]
    assert leases.sweep() == 1


@pytest.mark.django_db
def test_a_run_whose_worker_dies_before_it_saw_the_cancel_is_cancelled() -> None:
    dead, (run,) = held_by_the_dead(1)
    stop(run)
    assert leases.reap(dead.pk) == 1
    run.refresh_from_db()
    assert run.status == "cancelled"


@pytest.mark.django_db
def test_the_pause_after_a_crash_grows_and_the_crashes_come_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    (_, (run,)), pauses = held_by_the_dead(1), []
    for _ in range(4):
        locked = lock_run(run.pk)
        closing.close_dead_attempt(locked, outcome=Outcome.CRASHED, closed_by="take-over")
        if locked.status == Status.FAILED:
            break
        assert locked.wake_at is not None
        pauses.append(round((locked.wake_at - clock.now()).total_seconds()))
        Run.objects.filter(pk=run.pk).update(
            status="running",
            worker_id=factories.worker().pk,
            sort_at=None,
            attempt_no=locked.attempt_no + 1,
            epoch=locked.epoch + 1,
        )
    assert pauses == [0, 1, 2]
    assert (locked.status, locked.failure_kind, locked.lone_crashes) == ("failed", "crashed", 3)


@pytest.mark.django_db
def test_a_run_that_is_given_up_with_an_effect_in_doubt_asks_first() -> None:
    dead, (run,) = held_by_the_dead(1)
    Run.objects.filter(pk=run.pk).update(crashes=3, lone_crashes=2)
    factories.operation(run, Kind.EFFECT, OpStatus.PENDING)
    leases.reap(dead.pk)
    run.refresh_from_db()
    assert (run.status, run.attention_kind, run.lone_crashes) == ("attention", "in_doubt", 3)


def test_an_error_after_a_cancel_is_not_retried(at: At, worker: RunWorker) -> None:  # noqa: F811
    at("attempt.ended", lambda: stop(last_run()))
    run = until(begin("t_failing", 99))
    assert (run.status, world.ledger["tried"]) == ("cancelled", 1)


def test_a_step_without_retries_that_fails_after_its_wait_ends_at_once(worker: RunWorker) -> None:
    set_limits(
        factories.admin(), "step", "t_signal/wait_for_it", seen_revision=0, reason="once", max_attempts=1
    )
    run = until(begin("t_signal", 60), "waiting")
    clock.shift(timedelta(minutes=2))
    run = until(run)
    assert (run.status, run.failure_kind, outcomes(run)) == ("failed", "exhausted", ["suspended", "failed"])


def test_a_worker_that_is_not_told_of_work_finds_it(worker: RunWorker) -> None:
    def listeners() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
            return int(cursor.fetchone()[0])

    wait_until(listeners, 10, "the worker listens, and is cut off")
    assert until(begin("t_hello")).status == "completed"
