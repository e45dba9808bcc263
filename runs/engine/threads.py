"""Threads that execute runs: as many as there are runs at the same time, and kept for the next ones."""

import contextvars
import threading
from collections.abc import Callable


class Threads:
    """Each piece of work has a thread of its own from its beginning to its end, however long it blocks.

    Starting a thread costs as much as a trivial step, and a thread that is kept keeps Django's connection object as well.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._ended = False

    def run(self, work: Callable[[], None]) -> None:
        """Begin `work` at once. It does not raise."""
        with self._lock:
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = _Thread(self)
            thread.work = work
            thread.start()
        else:
            thread.work = work
            thread.gate.release()

    def end(self) -> None:
        """Let the idle ones go, and the others when they have done their work."""
        with self._lock:
            self._ended = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.gate.release()

    def _keep(self, thread: "_Thread") -> bool:
        with self._lock:
            if not self._ended:
                self._idle.append(thread)
            return not self._ended


class _Thread(threading.Thread):
    def __init__(self, threads: Threads) -> None:
        super().__init__(name="run", daemon=True)
        self._threads = threads
        self.work: Callable[[], None] | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def run(self) -> None:
        while self.work is not None:
            work, self.work = self.work, None
            # Context variables that a step sets are gone with it, as if the thread were new.
            contextvars.Context().run(work)
            del work
            if not self._threads._keep(self):
                return
            self.gate.acquire()
