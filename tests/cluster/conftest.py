"""Clusters with stand-ins for the engine, as processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django_q.models import OrmQ, Task
from django_q.tasks import async_task

ROOT = Path(__file__).resolve().parents[2]
# For what happens at once on a machine with nothing else to do.
SOON_S = 15.0

type Line = dict[str, Any]


def wait_until[Found](condition: Callable[[], Found | None], what: str, within: float = SOON_S) -> Found:
    """Return the condition's first true result; fails, saying `what`, after `within` seconds."""
    end = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(0.02)
    return found


def enqueue(func: str, *args: object, **options: object) -> str:
    """Enqueue an ordinary task and return its id; `options` are those of `async_task`."""
    task_id: str = async_task(f"tests.cluster.tasks.{func}", *args, **options)
    return task_id


def saved(task_id: str) -> Task:
    """Wait until the task is saved and no longer in the queue."""
    task = wait_until(lambda: Task.objects.filter(id=task_id).first(), "the task's result")
    wait_until(lambda: not OrmQ.objects.exists(), "an empty queue")
    return task


class StandInCluster:
    """One running `tests.cluster.stand_in`, leader of a process group."""

    def __init__(self, folder: Path, database_url: str, *arguments: str) -> None:
        self.folder = folder
        self.log_path = folder / "log"
        with self.log_path.open("w") as log:
            self.main = psutil.Popen(
                [sys.executable, "-W", "always", "-m", "tests.cluster.stand_in", str(folder), *arguments],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.cluster.settings",
                    "DATABASE_URL": database_url,
                    "AGENTOPS_LOG_JSON": "1",
                },
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.seen: set[psutil.Process] = set()

    # --- what it does ---------------------------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        assert self.main.stdout.readline() == b"ready\n", self.log()
        wait_until(lambda: self.workers() and self.sentinel(), "processes")

    def sentinel(self) -> psutil.Process:
        (sentinel,) = self.main.children()
        self.seen.add(sentinel)
        return sentinel

    def workers(self) -> list[psutil.Process]:
        """The worker processes, oldest first."""
        workers: list[psutil.Process] = self.sentinel().children()
        self.seen |= set(workers)
        return sorted(workers, key=lambda worker: worker.create_time())

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
        return self.log_path.read_text()

    def lines(self, text: str) -> list[Line]:
        """Lines of the log whose message contains `text`."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if text in line["event"]]

    # --- how it ends ----------------------------------------------------------------------------------------

    def signal_group(self, signal_number: int) -> None:
        os.killpg(self.main.pid, signal_number)

    def exit_code(self, within: float = SOON_S) -> int:
        try:
            return int(self.main.wait(timeout=within))
        except psutil.TimeoutExpired:
            pytest.fail(f"main goes on after {within} s: {self.log()}")

    def survivors(self) -> list[psutil.Process]:
        """Processes of the tree that were seen and have not ended."""
        return [process for process in self.seen if process.is_running() and process.status() != "zombie"]

    def clean_up(self) -> None:
        for process in [*self.seen, self.main]:
            if process.is_running():
                process.kill()
        self.main.wait()
        self.main.stdout.close()


type StartCluster = Callable[..., StandInCluster]


@pytest.fixture
def start_cluster(tmp_path: Path, database_url: str) -> Iterator[StartCluster]:
    """Start a stand-in cluster with the given options and wait until it is ready (unless `ready=False`)."""
    clusters: list[StandInCluster] = []

    def start(*arguments: str, ready: bool = True) -> StandInCluster:
        folder = tmp_path / str(len(clusters))
        folder.mkdir()
        clusters.append(cluster := StandInCluster(folder, database_url, *arguments))
        if ready:
            cluster.wait_until_ready()
        return cluster

    yield start
    logs = [cluster.log() for cluster in clusters]
    for cluster in clusters:
        cluster.clean_up()
    for log in logs:
        # Forking with threads, unclosed connections and files.
        assert "Warning" not in log, log


@pytest.fixture
def cluster(start_cluster: StartCluster) -> StandInCluster:
    """A cluster of two worker processes and a grace time of 2 s."""
    return start_cluster("--processes", "2", "--grace", "2")


@pytest.fixture(autouse=True)
def stop_signals_reach_children() -> None:
    """pytest may have been started with SIGINT ignored, which children inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
