"""Programs that the demo runs: started, started again when they die, stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from django.conf import settings

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
#: After so long a life, the next death starts with the shortest pause again.
HEALTHY_AFTER_S = 60.0


class Child:
    """One program, in a process group of its own: Ctrl-C reaches the demo alone, which stops its programs in order.

    Start it from the main thread: the kernel watches the thread that forked.
    """

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
        self._started_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._again_at: float | None = None

    def start(self) -> None:
        """Start the program; its output is appended to the log."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "agentops.demo.bound_child",
                    str(os.getpid()),
                    sys.executable,
                    *self.command,
                ],
                cwd=settings.BASE_DIR,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self._pass_fds,
                process_group=0,
            )
        self._started_at, self._again_at = time.monotonic(), None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tend(self) -> str:
        """Start the program again if it has died and its pause is over. A line to print, or ""."""
        if self.running:
            return ""
        now = time.monotonic()
        if self._again_at is None:
            assert self._process is not None
            if now - self._started_at > HEALTHY_AFTER_S:
                self._pause_s = FIRST_PAUSE_S
            self._again_at = now + self._pause_s
            line = (
                f"{self.name} {_how(self._process.returncode)}; it starts again in {self._pause_s:g} s "
                f"({self.log_path} says why)"
            )
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
            return line
        if now >= self._again_at:
            self.start()
        return ""

    def last_line(self) -> str:
        """The last thing that the program wrote, for an error message."""
        with suppress(OSError):
            lines = [line for line in self.log_path.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-1].strip()
        return "it wrote nothing"

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
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _how(code: int) -> str:
    """How a program ended, from its return code."""
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
