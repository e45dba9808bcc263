"""Ordinary django-q2 tasks and schedules in worker processes."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from django_q.models import OrmQ, Schedule, Task

from tests.cluster.conftest import StandInCluster, StartCluster, enqueue, saved, wait_until
from tests.harness.server import ThrowAwayServer


@pytest.fixture
def single(start_cluster: StartCluster) -> StandInCluster:
    """A cluster of one worker process."""
    return start_cluster("--processes", "1", "--grace", "1")


def test_a_task_is_executed_saved_acknowledged_and_announced(single: StandInCluster) -> None:
    task = saved(enqueue("double", 21, task_name="doubling"))
    assert (task.success, task.result, task.attempt_count, task.cluster) == (True, 42, 1, "agentops")
    wait_until(lambda: single.books("post_execute"), "post_execute")
    assert [line["name"] for line in single.books("post_execute")] == ["doubling"]
    (worker,) = single.workers()
    assert [line["worker"] for line in single.lines("ordinary task done")] == [single.worker_id(worker.pid)]


def test_a_task_that_raises_is_saved_as_failed_with_its_traceback(single: StandInCluster) -> None:
    task = saved(enqueue("fail"))
    assert not task.success
    assert "the task was asked to fail" in task.result
    assert "Traceback" in task.result


def test_a_task_that_calls_sys_exit_is_saved_as_failed_and_the_process_stays(single: StandInCluster) -> None:
    (worker,) = single.workers()
    task = saved(enqueue("leave"))
    assert not task.success
    assert saved(enqueue("double", 1)).success
    assert single.workers() == [worker]


def test_a_result_that_cannot_be_stored_is_saved_as_a_failure(single: StandInCluster) -> None:
    task = saved(enqueue("give_lambda"))
    assert not task.success
    assert task.result == "The result could not be stored; the log says why."


def test_a_task_that_does_not_exist_is_saved_as_failed(single: StandInCluster) -> None:
    assert not saved(enqueue("no_such_task")).success


def test_a_payload_with_a_wrong_signature_is_dropped_and_others_run(single: StandInCluster) -> None:
    OrmQ.objects.create(key="agentops", payload="tampered:with", lock=timezone.now())
    assert saved(enqueue("double", 2)).success


def test_each_task_of_a_chain_is_executed_once(single: StandInCluster) -> None:
    book = single.folder / "chain"
    append = "tests.cluster.tasks.append_line"
    enqueue("append_line", str(book), "1", chain=[(append, (str(book), "2")), (append, (str(book), "3"))])
    wait_until(lambda: book.exists() and book.read_text() == "1\n2\n3\n", "all lines")
    wait_until(lambda: Task.objects.count() == 3 and not OrmQ.objects.exists(), "results")
    assert book.read_text() == "1\n2\n3\n"


def test_a_task_that_takes_too_long_fails_and_its_process_drains(single: StandInCluster) -> None:
    """django-q2 itself would terminate the process, with all runs in it."""
    (worker,) = single.workers()
    task = saved(enqueue("never_end", timeout=1))
    assert not task.success
    assert "Task exceeded maximum timeout value (1 seconds)" in task.result
    single.replacement(worker)
    (ended,) = wait_until(lambda: single.lines("worker ended"), "log line")
    assert ended["exit_code"] == 0
    assert len(single.books("draining")) == 1


def test_a_task_that_its_time_out_cannot_interrupt_is_left_behind(
    single: StandInCluster,
) -> None:
    (worker,) = single.workers()
    worker_id = single.worker_id(worker.pid)
    task = enqueue("never_end_nor_be_interrupted", timeout=1)
    single.replacement(worker, within=15)
    assert len(single.lines("goes on past its time-out")) == 1
    assert single.reaped(worker_id)["graceful"] == "True"
    assert not Task.objects.filter(id=task).exists()


def test_worker_processes_use_a_small_pool_of_connections(start_cluster: StartCluster) -> None:
    start_cluster("--processes", "1", "--slots", "3")
    assert saved(enqueue("pool_facts")).result == {"min_size": 0, "max_size": 4}


def test_a_result_survives_a_restart_of_the_database_during_the_task(
    single: StandInCluster, postgres_server: ThrowAwayServer
) -> None:
    gate = single.folder / "gate"
    task_id = enqueue("wait_for", str(gate))
    wait_until(lambda: gate.with_name("gate.begun").exists(), "begin of the task")
    with postgres_server.stopped():
        gate.touch()
        wait_until(lambda: single.lines("could not be stored"), "a failed save")
    connection.close()
    task = saved(task_id)
    assert (task.result, task.attempt_count) == ("seen", 1)


def test_workers_serve_the_queues_that_they_are_given(start_cluster: StartCluster) -> None:
    one = start_cluster("--processes", "1")
    two = start_cluster("--processes", "1", "--queue", "reports", "--queue", "mails")
    wanted = {"default": None, "reports": "reports", "mails": "mails"}
    for name, queue in wanted.items():
        saved(enqueue("double", 1, task_name=name, cluster=queue))

    def done(cluster: StandInCluster) -> set[str]:
        return {line["name"] for line in cluster.books("post_execute")}

    wait_until(lambda: done(one) | done(two) == set(wanted), "all tasks")
    assert done(one) == {"default"}
    assert done(two) == {"reports", "mails"}


def due(**fields: Any) -> Schedule:
    then = timezone.now() - timedelta(seconds=1)
    return Schedule.objects.create(next_run=then, schedule_type=Schedule.ONCE, repeats=-1, **fields)


def test_a_due_schedule_is_executed(single: StandInCluster) -> None:
    due(func="tests.cluster.tasks.double", args="4,", name="nightly")
    task = wait_until(lambda: Task.objects.filter(group="nightly").first(), "the scheduled task")
    assert task.result == 8
    assert not Schedule.objects.exists()


def test_a_broken_schedule_does_not_end_the_sentinel(single: StandInCluster) -> None:
    sentinel = single.sentinel()
    broken = due(func="tests.cluster.tasks.double", args="not python (")
    wait_until(lambda: single.lines("Could not create task from schedule"), "log line")
    broken.delete()
    due(func="tests.cluster.tasks.double", args="5,", name="sound")
    wait_until(lambda: Task.objects.filter(group="sound").first(), "the scheduled task")
    assert single.sentinel() == sentinel


def test_a_broken_schedule_does_not_keep_the_others_back(single: StandInCluster) -> None:
    due(name="broken", func="tests.cluster.tasks.double", args="no, python")
    due(name="sound", func="tests.cluster.tasks.double", args="4")
    assert wait_until(lambda: Task.objects.filter(group="sound").first(), "the scheduled task").result == 8
    assert list(Schedule.objects.values_list("name", flat=True)) == ["broken"]
    assert single.lines("Could not create task from schedule")
