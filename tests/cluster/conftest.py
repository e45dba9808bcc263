"""Clusters with stand-ins for the engine, as processes of their own."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django_q.models import OrmQ, Task
from django_q.tasks import async_task

from tests.harness import waiting
from tests.harness.processes import Child, Processes

# For what happens at once on a machine with nothing else to do.
SOON_S = 15.0

type Line = dict[str, Any]


def wait_until[Found](condition: Callable[[], Found | None], what: str, within: float = SOON_S) -> Found:
    """Return the condition's first true result; fails, saying `what`, after `within` seconds."""
    found = waiting.wait_until(condition, within, what)
    assert found is not None
    return found


def enqueue(func: str, *args: object, **options: object) -> str:
    """Enqueue an ordinary task and return its id; `options` are those of `async_task`."""
    task_id: str = async_task(f"tests.cluster.tasks.{func}", *args, **options)
    return task_id


def saved(task_id: str, *, queued: int = 0) -> Task:
    """Wait until the task is saved and acknowledged; `queued` others are left in the queue then."""
    task = wait_until(lambda: Task.objects.filter(id=task_id).first(), "the task's result")
    wait_until(lambda: OrmQ.objects.count() == queued, "acknowledgement")
    return task


class StandInCluster:
    """One running `tests.cluster.stand_in`."""

    def __init__(self, folder: Path, child: Child) -> None:
        self.folder = folder
        self.child = child
        self.main = psutil.Process(child.pid)

    # --- what it does ---------------------------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        self.child.wait_for_log("stand-in cluster ready")

    def sentinel(self) -> psutil.Process:
        sentinel = self.child.tree().sentinel
        assert sentinel is not None, self.log()
        return sentinel

    def workers(self) -> list[psutil.Process]:
        """The worker processes, by process id."""
        return self.child.tree().workers

    def books(self, event: str) -> list[Line]:
        """What the stand-ins wrote down about `event`."""
        path = self.folder / "books.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["event"] == event]

    def worker_id(self, pid: int) -> str:
        """Wait until the process has started to execute runs, and return its worker's id."""
        lines = wait_until(
            lambda: [line for line in self.books("started") if line["pid"] == pid], f"start of {pid}"
        )
        return str(lines[0]["worker_id"])

    def reaped(self, worker_id: str, within: float = SOON_S) -> Line:
        """Wait until the worker was reaped, and return what was written down about it."""
        lines = wait_until(
            lambda: [line for line in self.books("reaped") if line["worker_id"] == worker_id],
            f"reap of {worker_id}: {self.log()}",
            within,
        )
        assert len(lines) == 1
        return lines[0]

    def replacement(self, *known: psutil.Process, within: float = 5.0) -> psutil.Process:
        """Wait for a worker that executes runs and is none of `known`."""

        def fresh() -> psutil.Process | None:
            started = {line["pid"] for line in self.books("started")}
            return next((w for w in self.workers() if w not in known and w.pid in started), None)

        return wait_until(fresh, f"a new worker: {self.log()}", within)

    def log(self) -> str:
        return self.child.log_path.read_text()

    def lines(self, text: str) -> list[Line]:
        """Lines of the log whose message contains `text`."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if text in line["event"]]

    # --- how it ends ----------------------------------------------------------------------------------------

    def exit_code(self, within: float = SOON_S) -> int:
        return self.child.wait_ended(within)


type StartCluster = Callable[..., StandInCluster]


@pytest.fixture
def start_cluster(tmp_path: Path, processes: Processes) -> Iterator[StartCluster]:
    """Start a stand-in cluster with the given options and wait until it is ready (unless `ready=False`)."""
    clusters: list[StandInCluster] = []

    def start(*arguments: str, ready: bool = True) -> StandInCluster:
        folder = tmp_path / f"books-{len(clusters)}"
        folder.mkdir()
        child = processes.start(
            [sys.executable, "-W", "always", "-m", "tests.cluster.stand_in", str(folder), *arguments],
            name="stand-in",
            env={"DJANGO_SETTINGS_MODULE": "tests.cluster.settings", "AGENTOPS_LOG_JSON": "1"},
        )
        clusters.append(cluster := StandInCluster(folder, child))
        if ready:
            cluster.wait_until_ready()
        return cluster

    yield start
    for cluster in clusters:
        cluster.child.kill()
        # Forking with threads, unclosed connections and files.
        assert "Warning" not in cluster.log()


@pytest.fixture
def cluster(start_cluster: StartCluster) -> StandInCluster:
    """A cluster of two worker processes and a grace time of 2 s."""
    return start_cluster("--processes", "2", "--grace", "2")


@pytest.fixture(autouse=True)
def stop_signals_reach_children() -> None:
    """pytest may have been started with SIGINT ignored, which children inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
