"""Real processes of the product as children of a test: worker clusters, sandbox, web server, commands.

Each child leads a session of its own, so that everything it ever started is found again, orphans included, and ended.
Members of a tree are psutil processes: `kill()`, `suspend()`, `resume()` and `terminate()` act on one of them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx
import psutil

from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
LOG_LINES = 60


@dataclass(frozen=True, slots=True)
class Tree:
    """The living processes of a worker cluster by role; `others` are children of workers, and orphans."""

    main: psutil.Process | None
    sentinel: psutil.Process | None
    workers: list[psutil.Process]
    others: list[psutil.Process]

    @property
    def all(self) -> list[psutil.Process]:
        return [p for p in (self.main, self.sentinel) if p is not None] + self.workers + self.others


class Child:
    """A started command: its log, its tree, and signals to all of it."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    def __repr__(self) -> str:
        return f"<{self.name} {self.pid}>"

    # --- looking -------------------------------------------------------------------------------------------------

    @property
    def returncode(self) -> int | None:
        """Exit status of the main process (negative: the signal that ended it), None while it runs."""
        return self._popen.poll()

    def members(self) -> list[psutil.Process]:
        """All living processes of the session; zombies, whose parent has not looked yet, do not count."""
        self._popen.poll()
        return [process for pid in psutil.pids() if (process := _living(pid, session=self.pid)) is not None]

    def tree(self) -> Tree:
        """The living processes by role: the first one, its child, and that one's children."""
        main = sentinel = None
        workers: list[psutil.Process] = []
        others: list[psutil.Process] = []
        parents = {process.pid: _parent(process) for process in self.members()}
        processes = {process.pid: process for process in map(psutil.Process, parents)}
        for pid, parent in parents.items():
            if pid == self.pid:
                main = processes[pid]
            elif parent == self.pid:
                sentinel = processes[pid]
            elif parents.get(parent) == self.pid:
                workers.append(processes[pid])
            else:
                others.append(processes[pid])
        workers.sort(key=lambda process: process.pid)
        return Tree(main, sentinel, workers, others)

    def log(self, lines: int = LOG_LINES) -> str:
        """The last lines of what the tree has written to standard output and error."""
        text = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join([f"--- {self.name} ({self.log_path}) ---", *text[-lines:]])

    def wait_until[T](self, condition: Callable[[], T], timeout: float, why: str) -> T:
        """Wait up to `timeout` seconds; the test fails with the log when `condition` stays false."""
        return wait_until(condition, timeout, why, evidence=self.log)

    def wait_for_log(self, text: str, timeout: float = 20) -> None:
        """Wait until the log contains `text`."""
        self.wait_until(
            lambda: text in self.log_path.read_text(errors="replace"), timeout, f"{self.name} writes {text!r}"
        )

    def wait_ended(self, timeout: float = 20) -> int:
        """Wait until the main process ends; returns its exit status."""
        self.wait_until(lambda: self.returncode is not None, timeout, f"{self.name} ends")
        assert self.returncode is not None
        return self.returncode

    def wait_gone(self, timeout: float = 20) -> None:
        """Wait until no process of the tree is left, orphans included."""
        wait_until(
            lambda: not self.members(),
            timeout,
            f"all processes of {self.name} are gone",
            evidence=lambda: f"left: {self.members()}\n{self.log()}",
        )

    # --- acting --------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """Send SIGTERM to the main process, as a supervisor does."""
        self._popen.terminate()

    def send_to_all(self, number: signal.Signals) -> None:
        """Send a signal to every process of the tree at once, as a terminal or a container does."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the whole tree with SIGKILL and wait until it is gone."""
        deadline = time.monotonic() + 10
        # Again and again: one may have forked while another was killed.
        while members := self.members():
            for process in members:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._popen.poll()
            if time.monotonic() > deadline:
                raise AssertionError(f"{members} cannot be killed")
            time.sleep(0.01)
        self._popen.wait(timeout=10)

    def suspend(self) -> None:
        """Stop every process of the tree (SIGSTOP)."""
        self.send_to_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let every process of the tree go on (SIGCONT)."""
        self.send_to_all(signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """A sandbox that answers."""

    child: Child
    url: str
    smtp: str


@dataclass
class Processes:
    """Starts children with the database of the test, and ends all of them in `close()`."""

    folder: Path
    database_url: str
    extra: dict[str, str] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a child: that of the tests, with the real settings and the test's database."""
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "agentops.settings",
            "DATABASE_URL": self.database_url,
            "AGENTOPS_DATA_DIR": str(self.folder / "data"),
            "PYTHONUNBUFFERED": "1",
            **self.extra,
            **(extra or {}),
        }

    def start(
        self, command: Sequence[str], *, name: str | None = None, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start any command; `env` is added to its environment (see failpoints.environment)."""
        number = len(self.children) + 1
        child = Child(
            f"{number:02}-{name or Path(command[0]).name}", command, self.environment(env), self.folder
        )
        self.children.append(child)
        return child

    def manage(self, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        """Start `manage.py …`, to run beside the test."""
        return self.start([sys.executable, "manage.py", *arguments], name=arguments[0], env=env)

    def run(self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> str:
        """Run `manage.py …` to its end and return its output; the test fails when it does not end with 0."""
        child = self.manage(*arguments, env=env)
        status = child.wait_ended(timeout)
        assert status == 0, f"manage.py {' '.join(arguments)} ended with {status}\n{child.log()}"
        return child.log_path.read_text(errors="replace")

    def worker(
        self, *arguments: str, processes: int = 2, env: Mapping[str, str] | None = None, timeout: float = 30
    ) -> Child:
        """Start a worker cluster, and wait until its sentinel and `processes` workers run."""
        child = self.manage("worker", "--processes", str(processes), *arguments, env=env)
        self.wait_until(
            lambda: child.returncode is not None or len(child.tree().workers) >= processes,
            timeout,
            f"{processes} workers of {child.name} run",
        )
        assert child.returncode is None, f"{child.name} ended with {child.returncode}\n{child.log()}"
        return child

    def sandbox(
        self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 20
    ) -> RunningSandbox:
        """Start a sandbox on free ports, and wait until it answers."""
        ports = ["--port", "0", "--smtp-port", "0"]
        child = self.manage("sandbox", *ports, *arguments, env=env)

        def facts() -> dict[str, str] | None:
            for line in child.log_path.read_text(errors="replace").splitlines():
                if line.startswith("{") and '"smtp"' in line:
                    found: dict[str, str] = json.loads(line)
                    return found
            return None

        answer = self.wait_until(facts, timeout, f"{child.name} answers")
        assert answer is not None
        return RunningSandbox(child, answer["url"], answer["smtp"])

    def web(
        self, *, threads: int = 4, env: Mapping[str, str] | None = None, timeout: float = 20
    ) -> tuple[Child, str]:
        """Start the console under gunicorn; returns the child and its URL once it answers."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        child = self.start(
            [
                *(sys.executable, "-m", "gunicorn", "agentops.wsgi", "--bind", f"127.0.0.1:{port}"),
                *("--worker-class", "gthread", "--threads", str(threads), "--no-control-socket"),
            ],
            name="web",
            env=env,
        )

        def answers() -> bool:
            assert child.returncode is None, f"{child.name} ended with {child.returncode}\n{child.log()}"
            with suppress(httpx.TransportError):
                httpx.get(url, timeout=5)
                return True
            return False

        self.wait_until(answers, timeout, f"{child.name} answers")
        return child, url

    def wait_until[T](self, condition: Callable[[], T], timeout: float, why: str) -> T:
        """Wait up to `timeout` seconds; the test fails with the logs of all children when `condition` stays false."""
        return wait_until(condition, timeout, why, evidence=self.logs)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n\n".join(child.log() for child in self.children)

    def close(self) -> None:
        """Kill whatever still runs. The logs are printed: pytest shows them when the test has failed."""
        for child in self.children:
            child.kill()
        if self.children:
            print(self.logs())


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _living(pid: int, *, session: int) -> psutil.Process | None:
    try:
        if os.getsid(pid) != session:
            return None
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0
