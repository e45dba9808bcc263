"""Moments inside steps, told to the benchmark: one line each through a named pipe.

`time.monotonic()` is one clock for all processes of a machine, so that a moment in a worker can be compared with one here.
"""

import os
import select
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "AGENTOPS_BENCHMARK_TRACE"


class TooSlow(Exception):
    """Something that the benchmark waits for did not happen; the message names it."""


_pipes: dict[int, int] = {}


def mark(what: str, number: int) -> None:
    """Called by a step: `what` happened now. Written at once; lines are shorter than PIPE_BUF, so that none are mixed."""
    now = time.monotonic()
    pid = os.getpid()
    if pid not in _pipes:
        _pipes[pid] = os.open(os.environ[VARIABLE], os.O_WRONLY)
    os.write(_pipes[pid], f"{now:.6f} {pid} {what} {number}\n".encode())


@dataclass(frozen=True, slots=True)
class Mark:
    at: float
    pid: int
    what: str
    number: int


class Trace:
    """The reading end of the pipe."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trace"
        os.mkfifo(self.path)
        # Open for writing too: the pipe stays open while no worker has it.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def close(self) -> None:
        os.close(self._pipe)

    def wait(self, wanted: Callable[[Mark], bool], count: int, timeout_s: float, why: str) -> list[Mark]:
        """Take the first `count` marks that are wanted, in the order in which they were written.

        Marks that are not wanted are forgotten. Raises TooSlow after `timeout_s` seconds.
        """
        found: list[Mark] = []
        end = time.monotonic() + timeout_s
        while len(found) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TooSlow(f"not within {timeout_s:g} s: {why} ({len(found)} of {count})")
            if select.select([self._pipe], [], [], min(left, 0.5))[0]:
                found += [mark for mark in self._read() if wanted(mark)]
        return found

    def one(self, number: int, whats: Collection[str], timeout_s: float, why: str) -> Mark:
        """The next mark of this number that says one of `whats`. Raises TooSlow after `timeout_s` seconds."""
        (mark,) = self.wait(lambda m: m.number == number and m.what in whats, 1, timeout_s, why)
        return mark

    def _read(self) -> list[Mark]:
        *lines, self._rest = (self._rest + os.read(self._pipe, 65_536)).split(b"\n")
        marks = []
        for line in lines:
            at, pid, what, number = line.decode().split(" ")
            marks.append(Mark(float(at), int(pid), what, int(number)))
        return marks
