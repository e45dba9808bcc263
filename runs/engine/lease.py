"""The worker's own view of its lease, on a clock that goes on while the host is suspended."""

import sys
import threading
import time

if sys.platform == "linux":

    def clock() -> float:
        """Seconds; CLOCK_MONOTONIC would stop while the host is suspended, and a lease does not."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    clock = time.monotonic


class Lease:
    """Valid for `seconds` after the last successful beat was *asked for*, so that it ends before the database says so."""

    def __init__(self, seconds: float, margin: float) -> None:
        self.seconds, self.margin = seconds, margin
        self._until = 0.0
        self._lock = threading.Lock()

    def renew(self, asked_at: float) -> None:
        """A beat that was sent at `asked_at` (of `clock`) succeeded."""
        with self._lock:
            self._until = max(self._until, asked_at + self.seconds)

    def end(self) -> None:
        """The row was closed: nothing may be sent any more."""
        with self._lock:
            self._until = 0.0

    @property
    def remaining(self) -> float:
        """Seconds left; negative when over."""
        return self._until - clock()

    @property
    def allows_send(self) -> bool:
        """Whether enough is left to decide to start an effect."""
        return self.remaining > self.margin
