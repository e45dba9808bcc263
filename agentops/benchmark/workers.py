"""A real `manage.py worker` tree with default settings, in a session of its own."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from django.conf import settings
from django.core.management.base import CommandError

from agentops.benchmark import scratch, trace

READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a tree, in MB. `pss` shares what its processes share; Linux only, else None."""

    processes: int
    rss: float
    pss: float | None


class Workers:
    """The tree of one worker cluster on the scratch database."""

    def __init__(
        self, folder: Path, pipe: Path, arguments: list[str], *, environment: Mapping[str, str]
    ) -> None:
        """Start it and wait until it is ready. Raises CommandError with the end of its log."""
        self._log_path = folder / "worker.log"
        with self._log_path.open("ab") as log:
            self._main = subprocess.Popen(
                [sys.executable, "manage.py", "worker", *arguments],
                cwd=settings.BASE_DIR,
                env={**scratch.environment(), trace.VARIABLE: str(pipe), **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self) -> None:
        assert self._main.stdout is not None
        end = time.monotonic() + READY_S
        while (left := end - time.monotonic()) > 0:
            if select.select([self._main.stdout], [], [], left)[0]:
                line = self._main.stdout.readline()
                if b"ready" in line:
                    return
                if not line:
                    break
        raise CommandError(f"The workers did not become ready:\n{self.log()}")

    def log(self) -> str:
        """The last lines that the tree has logged."""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-30:])

    def stop(self) -> None:
        """Drain, and end; afterwards its sessions have told PostgreSQL their statistics."""
        self._main.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._main.wait(60)
        self.kill()

    def kill(self) -> None:
        """End whatever is left of the tree."""
        with suppress(ProcessLookupError):
            os.killpg(self._main.pid, signal.SIGKILL)
        self._main.wait()
        if self._main.stdout is not None:
            self._main.stdout.close()

    def cpu_s(self) -> float:
        """Seconds of processor time that the tree's living processes have used."""
        used = 0.0
        main = psutil.Process(self._main.pid)
        for process in [main, *main.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    def memory(self) -> Memory:
        rss, pss, processes = 0, 0, 0
        main = psutil.Process(self._main.pid)
        for process in [main, *main.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                full = process.memory_full_info()
                rss += full.rss
                pss += getattr(full, "pss", 0)
                processes += 1
        return Memory(processes, round(rss / 1e6, 1), round(pss / 1e6, 1) if pss else None)
