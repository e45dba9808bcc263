"""`manage.py worker` with the real engine: runs survive the death and the stop of any process."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from django.conf import settings
from django.db import connection
from django_q.models import Task

from runs.lifecycle import Actor
from runs.models import Attempt, Run
from runs.services import start
from tests.cluster.conftest import enqueue, saved
from tests.cluster.flows.workflows import begun
from tests.harness.processes import Child, Processes
from tests.harness.server import ThrowAwayServer
from tests.harness.waiting import wait_until

type StartWorker = Callable[..., Child]


@pytest.fixture
def worker(processes: Processes) -> StartWorker:
    """Start `manage.py worker` with the workflows of these tests and wait until it is ready."""

    def begin(*arguments: str, grace: int = 10, **options: int) -> Child:
        env = {"AGENTOPS_APPS": "tests.cluster.flows", "AGENTOPS_GRACE_SECONDS": str(grace)}
        child = processes.worker(*arguments, env=env, **options)
        child.wait_for_log("worker ready")
        return child

    return begin


def begin(workflow: str, gate: Path) -> Run:
    return start(Actor("system"), workflow, {"path": str(gate)}).run


def wait_begun(child: Child, gate: Path, times: int = 1, within: float = 15) -> psutil.Process:
    """Wait until a step for the gate has begun so many times; returns the process of the last time."""
    pids = child.wait_until(
        lambda: pids if len(pids := begun(str(gate))) >= times else None, within, f"begin number {times}"
    )
    assert pids
    return psutil.Process(pids[-1])


def wait_status(run: Run, status: str, child: Child | None = None, within: float = 15) -> Run:
    def there() -> bool:
        run.refresh_from_db()
        return run.status == status

    wait_until(there, within, f"the run is {status}", evidence=lambda: child.log() if child else "")
    return run


def outcomes(run: Run) -> list[str]:
    return list(
        Attempt.objects.filter(run_id=run.pk)
        .order_by("step_seq", "attempt_no")
        .values_list("outcome", flat=True)
    )


def test_the_command_says_when_it_is_ready(worker: StartWorker) -> None:
    child = worker("--queue", "default", "--queue", "reports", "--slots", "3", processes=1)
    child.wait_for_log("worker ready: 1 process × 3 slots, queues default, reports")


def test_a_run_whose_worker_is_killed_is_executed_again_within_5_seconds(
    worker: StartWorker, tmp_path: Path
) -> None:
    child = worker()
    gate = tmp_path / "gate"
    run = begin("cluster_gated", gate)
    victim = wait_begun(child, gate)
    victim.kill()
    killed_at = time.monotonic()
    assert wait_begun(child, gate, times=2) != victim
    assert time.monotonic() - killed_at < 5
    gate.touch()
    wait_status(run, "completed", child)
    assert outcomes(run) == ["crashed", "succeeded"]


@pytest.mark.parametrize("role", ["sentinel", "main"])
def test_runs_go_on_in_the_next_cluster_after_the_death_of(
    role: str, worker: StartWorker, tmp_path: Path
) -> None:
    child = worker()
    gate = tmp_path / "gate"
    run = begin("cluster_gated", gate)
    wait_begun(child, gate)
    process: psutil.Process = getattr(child.tree(), role)
    process.kill()
    died_at = time.monotonic()
    assert child.wait_ended() == (1 if role == "sentinel" else -signal.SIGKILL)
    child.wait_gone()
    successor = worker()
    ready_at = time.monotonic()
    wait_begun(successor, gate, times=2, within=20)
    # How long a process takes to start is the machine's affair.
    assert time.monotonic() - max(ready_at, died_at + settings.AGENTOPS_LEASE_SECONDS) < 5
    gate.touch()
    wait_status(run, "completed", successor)


def test_a_step_that_ends_within_the_grace_time_succeeds(worker: StartWorker, tmp_path: Path) -> None:
    child = worker()
    gate = tmp_path / "gate"
    run = begin("cluster_gated", gate)
    wait_begun(child, gate)
    child.send_to_all(signal.SIGTERM)
    child.wait_until(
        lambda: child.log_path.read_text(errors="replace").count("stopped doing work") == 2,
        20,
        "both workers have been told to stop",
    )
    later = begin("cluster_gated", tmp_path / "later")
    gate.touch()
    assert child.wait_ended() == 0
    child.wait_gone()
    assert outcomes(wait_status(run, "completed")) == ["succeeded"]
    later.refresh_from_db()
    assert (later.status, outcomes(later)) == ("queued", [])


def test_a_step_that_goes_on_after_the_grace_time_is_stopped_and_spends_nothing(
    worker: StartWorker, tmp_path: Path
) -> None:
    child = worker(grace=1)
    gate = tmp_path / "gate"
    run = begin("cluster_gated", gate)
    wait_begun(child, gate)
    child.terminate()
    assert child.wait_ended() == 0
    child.wait_gone()
    run.refresh_from_db()
    assert outcomes(run) == ["stopped"]
    assert (run.status, run.crashes, run.failures) == ("queued", 0, 0)
    gate.touch()
    wait_status(run, "completed", worker())


def test_an_ordinary_task_outlives_the_runs_of_its_draining_worker(
    worker: StartWorker, tmp_path: Path
) -> None:
    """The engine ends its lease when it has drained; the sentinel must not take that for a dead worker."""
    child = worker(processes=1)
    gate = tmp_path / "task"
    task = enqueue("wait_for", str(gate))
    child.wait_until(lambda: gate.with_name("task.begun").exists(), 15, "the task begins")
    (leaving,) = child.tree().workers
    leaving.terminate()
    with connection.cursor() as cursor:

        def closed() -> bool:
            cursor.execute("SELECT count(*) FROM runs_worker WHERE closed_at IS NOT NULL")
            return bool(cursor.fetchone()[0])

        child.wait_until(closed, 15, "its lease is closed")
    later = enqueue("double", 1)
    # Two looks of the sentinel at the leases lie between.
    time.sleep(1.2)
    gate.touch()
    assert saved(later).result == 2
    assert Task.objects.get(id=task).result == "seen"


def test_the_time_out_of_an_ordinary_task_leaves_the_runs_of_its_process_alone(
    worker: StartWorker, tmp_path: Path
) -> None:
    child = worker(processes=1, grace=0)
    gate = tmp_path / "gate"
    run = begin("cluster_gated", gate)
    wait_begun(child, gate)
    (leaving,) = child.tree().workers
    task = saved(enqueue("never_end", timeout=1))
    assert "Task exceeded maximum timeout value" in task.result
    child.wait_for_log("releasing the worker")
    gate.touch()
    assert outcomes(wait_status(run, "completed", child)) == ["succeeded"]
    child.wait_until(lambda: child.tree().workers not in ([leaving], []), 15, "its replacement runs")


def test_a_step_that_kills_its_process_ends_as_crashed_and_its_neighbours_complete(
    worker: StartWorker, tmp_path: Path
) -> None:
    """All workers are kept busy, so that the deadly run needs a process of its own after its first crash."""
    child = worker("--slots", "4", processes=2)
    gate = tmp_path / "gate"
    neighbours = [begin("cluster_gated", gate) for _ in range(4)]
    wait_begun(child, gate, times=4)
    deadly = begin("cluster_deadly", tmp_path / "deadly")
    wait_status(deadly, "failed", child, within=60)
    assert deadly.failure_kind == "crashed"
    gate.touch()
    for neighbour in neighbours:
        wait_status(neighbour, "completed", child, within=30)
        assert outcomes(neighbour)[-1] == "succeeded"
    # Once beside others, then alone up to the limit.
    assert outcomes(deadly) == ["crashed"] * 4


def test_runs_that_shared_a_death_go_on_at_once_and_do_not_wait_for_each_other(
    worker: StartWorker, tmp_path: Path
) -> None:
    """Four steps that last as long as the test wants, and a deadly one, all in one process."""
    child = worker("--slots", "5", processes=1)
    gate = tmp_path / "gate"
    neighbours = [begin("cluster_gated", gate) for _ in range(4)]
    wait_begun(child, gate, times=4)
    deadly = begin("cluster_deadly", tmp_path / "deadly")
    wait_begun(child, gate, times=8, within=20)
    wait_status(deadly, "failed", child, within=40)
    assert outcomes(deadly) == ["crashed"] * 4
    gate.touch()
    for neighbour in neighbours:
        assert outcomes(wait_status(neighbour, "completed", child, within=30)) == ["crashed", "succeeded"]


def test_runs_go_on_after_a_restart_of_the_database(
    worker: StartWorker, postgres_server: ThrowAwayServer, tmp_path: Path
) -> None:
    child = worker()
    gate, later = tmp_path / "gate", tmp_path / "later"
    run = begin("cluster_gated", gate)
    wait_begun(child, gate)
    workers = child.tree().workers
    postgres_server.restart("immediate")
    connection.close()
    restarted_at = time.monotonic()
    begin("cluster_gated", later)
    wait_begun(child, later)
    assert time.monotonic() - restarted_at < 15
    gate.touch()
    assert outcomes(wait_status(run, "completed", child)) == ["succeeded"]
    assert child.tree().workers == workers
