"""What a family of forked processes needs from the operating system: to die together, and to be told to stop.

Nothing here holds a lock across processes, so that `kill -9` of any of them at any moment leaves nothing
locked.
"""

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

# <linux/prctl.h>
PR_SET_PDEATHSIG = 1
# How often a worker looks at its parent where the kernel does not tell it (seconds).
PARENT_WATCH_S = 0.5

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})

EXIT_FAILED = 1
# The grace time was over and steps or tasks were still running: they were stopped on purpose, which is no
# crash. A number that no step hands to os._exit() by chance.
EXIT_CUT = 117


class Readable(Protocol):
    """Something that select() can wait for."""

    def fileno(self) -> int: ...


class Stop(Readable, Protocol):
    """The request to stop, as workers see it; its descriptor is readable once it is set."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


def die_with_parent(parent_pid: int, *, may_start_thread: bool) -> None:
    """Have this process die when the process that forked it ends in whatever way. Call it first thing in the child.

    On Linux the kernel sends SIGKILL. It watches the thread that forked, so only a main thread may fork.
    Elsewhere a thread looks at the parent, unless this process forks in its turn and must stay
    single-threaded.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    elif may_start_thread:
        threading.Thread(target=_watch_parent, args=(parent_pid,), name="parent-watch", daemon=True).start()
    # It may have died before the kernel was told to watch it.
    _leave_orphan(parent_pid)


def _watch_parent(parent_pid: int) -> None:
    while True:
        _leave_orphan(parent_pid)
        time.sleep(PARENT_WATCH_S)


def _leave_orphan(parent_pid: int) -> None:
    if os.getppid() != parent_pid:
        os._exit(EXIT_FAILED)


@contextmanager
def stop_signals_held() -> Iterator[None]:
    """Fork inside: a stop signal that arrives meanwhile waits until the child has handlers of its own.

    The child calls `release_stop_signals` when it has them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        release_stop_signals()


def release_stop_signals() -> None:
    """Deliver the stop signals that were held back since the fork."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


class PipeEvent:
    """An event that one process sets and many see, also inside signal handlers.

    Set by writing to a pipe that nobody reads. It counts as set, too, when every process that could set it is
    gone.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        """Set it for good; one write(2), safe in a signal handler."""
        # A full pipe has been set often enough.
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is set, after at most `timeout` seconds (None: as long as it takes)."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def fileno(self) -> int:
        return self._reader

    def only_observe(self) -> None:
        """Give up the right to set it; each process that only waits does so after the fork."""
        os.close(self._writer)


class Arrivals:
    """Worker processes announce that they are ready; main counts them."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def announce(self) -> None:
        # Nobody reads any more once the cluster is up, and the pipe may fill with later arrivals.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._writer, b"\0")

    def count(self) -> int:
        """Return how many have arrived since the last call."""
        try:
            return len(os.read(self._reader, select.PIPE_BUF))
        except BlockingIOError:
            return 0

    def fileno(self) -> int:
        return self._reader

    def only_announce(self) -> None:
        """Give up the right to count; every process but main does so after the fork."""
        os.close(self._reader)

    def close(self) -> None:
        """Give up the right to announce, after having done so."""
        os.close(self._writer)
