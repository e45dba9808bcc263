"""Races with real sessions: callers stand blocked on a lock that the test holds, and go at one instant."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from runs import lifecycle
from tests.harness.waiting import wait_until


@dataclass
class Caller:
    """A call in a thread with a session of its own; `result` or `error` is there after `join`."""

    call: Callable[[], Any]
    result: Any = None
    error: BaseException | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.call()
        except BaseException as error:
            self.error = error
        finally:
            connection.close()

    def join(self) -> "Caller":
        self.thread.join(timeout=20)
        assert not self.thread.is_alive(), "the caller is still blocked"
        return self


def blocked_sessions() -> int:
    """Sessions of this database that wait for a lock at this moment."""
    with connection.cursor() as cursor:
        # Inside a transaction the view is otherwise the same at every look.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        count: int = cursor.fetchone()[0]
        return count


def wait_until_blocked(sessions: int) -> None:
    wait_until(lambda: blocked_sessions() >= sessions, 20, f"{sessions} sessions wait for a lock")


@contextmanager
def run_held(run_id: uuid.UUID) -> Iterator[None]:
    """Hold the run's lock inside the block."""
    with transaction.atomic():
        lifecycle.lock_run(run_id)
        yield


def at_one_instant(run_id: uuid.UUID, *calls: Callable[[], Any]) -> list[Caller]:
    """Let all calls reach the run's lock, release it, and return what became of each; they arrived in this order."""
    with run_held(run_id):
        callers = []
        for call in calls:
            callers.append(Caller(call))
            wait_until_blocked(len(callers))
    return [caller.join() for caller in callers]
