"""`kill -9` and SIGSTOP of any one process of the cluster."""

import signal

from django.db import connection

from tests.cluster.conftest import StandInCluster, StartCluster, enqueue, saved, wait_until
from tests.harness.server import ThrowAwayServer


def test_a_killed_idle_worker_is_reaped_and_replaced_and_new_work_runs(cluster: StandInCluster) -> None:
    victim, other = cluster.workers()
    worker_id = cluster.worker_id(victim.pid)
    victim.kill()
    assert cluster.reaped(worker_id) == {
        "event": "reaped",
        "pid": cluster.sentinel().pid,
        "worker_id": worker_id,
        "graceful": "False",
        "threads": "1",
    }
    cluster.replacement(victim, other)
    task = enqueue("double", 21)
    assert saved(task).result == 42


def test_new_work_runs_after_idle_workers_were_killed_again_and_again(cluster: StandInCluster) -> None:
    known = []
    for _ in range(4):
        victims = cluster.workers()
        known += victims
        for victim in victims:
            victim.kill()
        cluster.replacement(*known)
    tasks = [enqueue("double", number) for number in range(1, 6)]
    assert [saved(task).result for task in tasks] == [2, 4, 6, 8, 10]


def test_a_killed_busy_worker_is_replaced_and_new_work_runs(cluster: StandInCluster) -> None:
    gate = cluster.folder / "gate"
    enqueue("wait_for", str(gate))
    wait_until(lambda: gate.with_name("gate.begun").exists(), "begin of the task")
    line = wait_until(lambda: cluster.lines("processing"), "log line of the task")[0]
    (busy,) = (w for w in cluster.workers() if cluster.worker_id(w.pid) == line["worker"])
    known = cluster.workers()
    busy.kill()
    cluster.reaped(line["worker"])
    cluster.replacement(*known)
    task = enqueue("double", 4)
    # The interrupted task stays in the queue until `retry` is over.
    assert saved(task, queued=1).result == 8


def test_main_exits_with_1_and_leaves_no_orphans_when_the_sentinel_is_killed(cluster: StandInCluster) -> None:
    cluster.sentinel().kill()
    assert cluster.exit_code() == 1
    cluster.child.wait_gone()


def test_no_orphans_are_left_when_main_is_killed(cluster: StandInCluster) -> None:
    cluster.main.kill()
    cluster.child.wait_gone()


def test_no_orphans_are_left_when_main_is_killed_while_it_starts(start_cluster: StartCluster) -> None:
    cluster = start_cluster(ready=False)
    wait_until(lambda: cluster.child.tree().sentinel, "the sentinel")
    cluster.main.kill()
    cluster.child.wait_gone()


def test_a_stopped_worker_whose_lease_is_over_is_killed_and_reaped(cluster: StandInCluster) -> None:
    frozen, other = cluster.workers()
    worker_id = cluster.worker_id(frozen.pid)
    frozen.suspend()
    (cluster.folder / "expired").write_text(worker_id)
    assert cluster.reaped(worker_id)["graceful"] == "False"
    cluster.replacement(frozen, other)


def test_a_reap_that_fails_is_repeated(cluster: StandInCluster) -> None:
    (cluster.folder / "reap-fails").touch()
    victim, other = cluster.workers()
    worker_id = cluster.worker_id(victim.pid)
    victim.kill()
    cluster.reaped(worker_id)
    cluster.replacement(victim, other)
    assert len(cluster.lines("could not be reaped")) == 1


def test_a_worker_is_replaced_while_the_database_keeps_the_sentinel_waiting(cluster: StandInCluster) -> None:
    victim, other = cluster.workers()
    worker_id = cluster.worker_id(victim.pid)
    (cluster.folder / "slow-query").write_text("60")
    wait_until(lambda: cluster.lines("the database does not answer"), "a tick that takes too long")
    victim.kill()
    cluster.replacement(victim, other)
    (cluster.folder / "slow-query").unlink()
    cluster.reaped(worker_id)
    wait_until(lambda: cluster.lines("the database answers again"), "log line")


def test_the_sentinel_survives_a_database_that_is_away_and_reaps_afterwards(
    cluster: StandInCluster, postgres_server: ThrowAwayServer
) -> None:
    sentinel = cluster.sentinel()
    victim = cluster.workers()[0]
    worker_id = cluster.worker_id(victim.pid)
    with postgres_server.stopped():
        victim.kill()
        wait_until(lambda: cluster.lines("the database does not answer"), "log line")
    connection.close()
    assert cluster.reaped(worker_id)
    cluster.replacement(victim)
    task = enqueue("double", 3)
    assert saved(task).result == 6
    assert cluster.sentinel() == sentinel
    assert len(cluster.lines("the database does not answer")) == 1


def test_a_worker_whose_runs_thread_fails_leaves_with_an_error_and_is_replaced(
    cluster: StandInCluster,
) -> None:
    known = cluster.workers()
    (cluster.folder / "raise").touch()
    cluster.replacement(*known)
    (line,) = wait_until(lambda: cluster.lines("worker ended"), "log line")
    assert line["exit_code"] == 1
    assert cluster.reaped(line["worker_id"])["graceful"] == "False"
    (reason,) = cluster.lines("the execution of runs ended with an error")
    assert reason["worker"] == line["worker_id"]
    assert "the stand-in was asked to fail" in reason["exception"]


def test_a_worker_that_wants_to_be_recycled_drains_and_is_replaced(cluster: StandInCluster) -> None:
    known = cluster.workers()
    (cluster.folder / "recycle").touch()
    cluster.replacement(*known)
    (line,) = wait_until(lambda: cluster.lines("worker ended"), "log line")
    assert line["exit_code"] == 0
    assert [line["worker_id"]] == [drained["worker_id"] for drained in cluster.books("draining")]


def test_replacements_inherit_no_more_descriptors_than_the_first_workers(cluster: StandInCluster) -> None:
    first = max(worker.num_fds() for worker in cluster.workers())
    held_by_sentinel = cluster.sentinel().num_fds()
    known = []
    for _ in range(4):
        victim = cluster.workers()[0]
        known += cluster.workers()
        victim.send_signal(signal.SIGKILL)
        cluster.replacement(*known)
    last = cluster.workers()[-1]
    assert last.num_fds() <= first + 2
    assert cluster.sentinel().num_fds() <= held_by_sentinel + 2


def test_runs_that_execute_alone_get_processes_of_their_own_as_long_as_there_are_some(
    cluster: StandInCluster,
) -> None:
    usual = cluster.workers()
    (cluster.folder / "lone-due").write_text("9")
    lone = wait_until(lambda: [line for line in cluster.books("started") if line["alone"] == "True"], "start")
    wait_until(lambda: len(cluster.workers()) == 4, "not more than a worker has slots beside them")
    task = enqueue("double", 1)
    assert saved(task).result == 2
    assert not {line["worker"] for line in cluster.lines("processing")} & {line["worker_id"] for line in lone}
    (cluster.folder / "lone-due").unlink()
    wait_until(lambda: cluster.workers() == usual, "their end")
    ended = wait_until(
        lambda: lines if len(lines := cluster.lines("worker ended")) == 2 else None, "log lines"
    )
    assert [line["exit_code"] for line in ended] == [0, 0]
