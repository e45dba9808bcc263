"""The programs of a trial: clusters, web server, sandbox. Started again when they die, and dying with the trial."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from django.conf import settings

#: Until a program that has died is started again, as a supervisor would (seconds).
PAUSE_S = 0.3


@dataclass(frozen=True)
class Tree:
    """The living processes of a program: main, its children, and theirs. Of a cluster: main, the sentinel, the workers."""

    main: psutil.Process | None
    second: tuple[psutil.Process, ...]
    third: tuple[psutil.Process, ...]

    @property
    def all(self) -> tuple[psutil.Process, ...]:
        return (*((self.main,) if self.main else ()), *self.second, *self.third)


class Program:
    """One program in a process group of its own. Start it from the main thread: the kernel watches the thread that forked."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log_path: Path,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name, self.command, self.env, self.log_path = name, list(command), dict(env), log_path
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None
        self._again_at: float | None = None
        self.starts = 0

    def start(self) -> None:
        """Start the program; its output is appended to the log."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "agentops.demo.bound_child", str(os.getpid())),
                    *(sys.executable, *self.command),
                ],
                cwd=settings.BASE_DIR,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self._pass_fds,
                process_group=0,
            )
        self._again_at = None
        self.starts += 1

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def tend(self) -> bool:
        """Start the program again if it has been dead for a moment; whether it was started."""
        if self.running:
            return False
        now = time.monotonic()
        if self._again_at is None:
            self._again_at = now + PAUSE_S
        if now < self._again_at:
            return False
        self._kill_group()
        self.start()
        return True

    def tree(self) -> Tree:
        """What lives of it now; zombies do not count."""
        if not self.running:
            return Tree(None, (), ())
        try:
            main = psutil.Process(self.pid)
            second = _living(main)
            return Tree(main, second, tuple(one for parent in second for one in _living(parent)))
        except psutil.NoSuchProcess:
            return Tree(None, (), ())

    def ask_to_stop(self) -> None:
        """SIGTERM to the program itself, which knows how to stop its own children."""
        if self._process is not None and self.running:
            self._process.terminate()

    def wait(self, seconds: float) -> bool:
        """Whether the program has ended within `seconds`."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the program and to what is left of its process group."""
        if self._process is not None:
            self._kill_group()
            self._process.wait()

    def _kill_group(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def last_line(self) -> str:
        """The last thing that the program wrote, for an error message."""
        with suppress(OSError):
            lines = [line for line in self.log_path.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-1].strip()
        return "it wrote nothing"


def _living(parent: psutil.Process) -> tuple[psutil.Process, ...]:
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in parent.children():
            with suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
    return tuple(sorted(found, key=lambda process: process.pid))
