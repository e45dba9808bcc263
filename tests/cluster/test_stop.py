"""SIGTERM and SIGINT: drain, grace time, and what is cut after it."""

import signal
import time

import pytest
from django_q.models import OrmQ

from tests.cluster.conftest import StandInCluster, StartCluster, enqueue, saved, wait_until
from tests.harness.server import ThrowAwayServer


def test_sigterm_to_main_drains_the_workers_and_main_exits_with_0(cluster: StandInCluster) -> None:
    ids = {cluster.worker_id(worker.pid) for worker in cluster.workers()}
    cluster.main.terminate()
    assert cluster.exit_code() == 0
    cluster.child.wait_gone()
    assert {line["worker_id"] for line in cluster.books("draining")} == ids
    assert {(line["worker_id"], line["graceful"]) for line in cluster.books("reaped")} == {
        (worker_id, "False") for worker_id in ids
    }
    assert len(cluster.lines("worker drained")) == 2


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains_as_well(
    cluster: StandInCluster, signal_number: signal.Signals
) -> None:
    cluster.child.send_to_all(signal_number)
    assert cluster.exit_code() == 0
    cluster.child.wait_gone()
    assert len(cluster.lines("worker drained")) == 2


@pytest.mark.parametrize("round_", range(3))
def test_a_signal_to_the_group_ends_a_cluster_at_any_moment_of_its_start(
    start_cluster: StartCluster, round_: int
) -> None:
    cluster = start_cluster(ready=False)
    # From the first fork on; before it, Python itself ends on the signal.
    wait_until(lambda: cluster.child.tree().sentinel, "the sentinel")
    wait_until(lambda: len(cluster.workers()) >= round_, "workers")
    cluster.child.send_to_all(signal.SIGTERM)
    assert cluster.exit_code() == 0, cluster.log()
    cluster.child.wait_gone()


def test_a_second_signal_changes_nothing(cluster: StandInCluster) -> None:
    busy = cluster.folder / "busy"
    busy.touch()
    cluster.child.send_to_all(signal.SIGTERM)
    wait_until(lambda: len(cluster.books("draining")) == 2, "drain")
    cluster.child.send_to_all(signal.SIGTERM)
    cluster.main.terminate()
    busy.unlink()
    assert cluster.exit_code() == 0
    assert len(cluster.lines("worker drained")) == 2


def test_what_runs_after_the_grace_time_is_cut_and_reaped_as_stopped(cluster: StandInCluster) -> None:
    (cluster.folder / "busy").touch()
    ids = {cluster.worker_id(worker.pid) for worker in cluster.workers()}
    begin = time.monotonic()
    cluster.main.terminate()
    assert cluster.exit_code() == 0
    assert 2 <= time.monotonic() - begin < 8
    cluster.child.wait_gone()
    assert {(line["worker_id"], line["graceful"]) for line in cluster.books("reaped")} == {
        (worker_id, "True") for worker_id in ids
    }


def test_a_frozen_worker_is_killed_after_the_grace_time(cluster: StandInCluster) -> None:
    frozen, _ = cluster.workers()
    worker_id = cluster.worker_id(frozen.pid)
    frozen.suspend()
    cluster.main.terminate()
    assert cluster.exit_code() == 0
    cluster.child.wait_gone()
    assert cluster.reaped(worker_id)["graceful"] == "True"
    assert len(cluster.lines("killing a worker that did not leave")) == 1


def test_a_worker_killed_during_the_drain_is_reaped_as_crashed(cluster: StandInCluster) -> None:
    (cluster.folder / "busy").touch()
    victim, other = cluster.workers()
    victim_id, other_id = cluster.worker_id(victim.pid), cluster.worker_id(other.pid)
    cluster.main.terminate()
    wait_until(lambda: len(cluster.books("draining")) == 2, "drain")
    victim.kill()
    assert cluster.reaped(victim_id)["graceful"] == "False"
    assert cluster.exit_code() == 0
    assert cluster.reaped(other_id)["graceful"] == "True"


def test_sigterm_to_one_worker_drains_it_and_it_is_replaced(cluster: StandInCluster) -> None:
    leaving, other = cluster.workers()
    worker_id = cluster.worker_id(leaving.pid)
    leaving.terminate()
    cluster.reaped(worker_id)
    cluster.replacement(leaving, other)
    assert [line["worker"] for line in cluster.lines("worker drained")] == [worker_id]


def test_an_ordinary_task_finishes_within_the_grace_time(cluster: StandInCluster) -> None:
    gate = cluster.folder / "gate"
    task = enqueue("wait_for", str(gate))
    wait_until(lambda: gate.with_name("gate.begun").exists(), "begin of the task")
    cluster.main.terminate()
    wait_until(lambda: cluster.lines("draining"), "drain")
    gate.touch()
    assert cluster.exit_code() == 0
    assert saved(task).result == "seen"


def test_nothing_is_taken_from_the_queue_after_the_signal(cluster: StandInCluster) -> None:
    (cluster.folder / "busy").touch()
    cluster.main.terminate()
    wait_until(lambda: len(cluster.books("draining")) == 2, "drain")
    enqueue("double", 1)
    assert cluster.exit_code() == 0
    assert OrmQ.objects.count() == 1


def test_a_stop_ends_although_the_database_is_away(
    cluster: StandInCluster, postgres_server: ThrowAwayServer
) -> None:
    with postgres_server.stopped():
        cluster.main.terminate()
        assert cluster.exit_code(within=25) == 0
    cluster.child.wait_gone()
    assert len(cluster.lines("could not be recorded")) == 2


@pytest.mark.long
def test_main_does_not_wait_for_ever_for_a_frozen_sentinel(start_cluster: StartCluster) -> None:
    cluster = start_cluster("--grace", "0")
    cluster.sentinel().suspend()
    cluster.main.terminate()
    assert cluster.exit_code(within=30) == 1
    cluster.child.wait_gone()
