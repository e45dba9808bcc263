"""Threads that execute runs: one for each at a time, kept for the next."""

import contextvars
import fcntl
import os
import threading
from collections.abc import Callable

import pytest

from runs.engine.threads import Threads
from runs.engine.worker import _readable
from runs.services import start
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import running_worker, until
from tests.runs.engine.flows import hello

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("SEEN", default="nothing")


def done(threads: Threads, begun: list[threading.Thread]) -> threading.Thread:
    """The thread of a piece of work that has ended and whose thread is idle again."""
    before = len(begun)
    threads.run(lambda: begun.append(threading.current_thread()))
    wait_until(lambda: len(begun) > before and len(threads._idle) == 1, 10, "the thread is idle")
    return begun[-1]


def test_a_worker_waits_for_files_with_numbers_that_select_does_not_take() -> None:
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD, 1100)
    try:
        assert _readable([high], 0) == []
        os.write(writer, b"x")
        assert _readable([high], 10) == [high]
    finally:
        for number in (reader, writer, high):
            os.close(number)


def test_a_thread_is_used_again() -> None:
    threads, begun = Threads(), list[threading.Thread]()
    assert done(threads, begun) is done(threads, begun)
    threads.end()
    begun[0].join(10)
    assert not begun[0].is_alive()


def test_work_that_blocks_keeps_no_other_from_beginning() -> None:
    threads, gate, begun = Threads(), threading.Event(), threading.Barrier(21)

    def block() -> None:
        begun.wait(10)
        gate.wait(10)

    for _ in range(20):
        threads.run(block)
    begun.wait(10)
    gate.set()
    wait_until(lambda: len(threads._idle) == 20, 10, "all are idle")
    threads.end()


def test_what_a_step_sets_in_its_context_is_gone_with_it() -> None:
    threads, seen = Threads(), list[str]()

    def work() -> None:
        seen.append(SEEN.get())
        SEEN.set("what another run has left")

    for number in (1, 2):
        threads.run(work)
        wait_until(lambda: len(seen) == number and len(threads._idle) == 1, 10, "it has ended")  # noqa: B023
    assert seen == ["nothing", "nothing"]
    threads.end()


def test_a_thread_that_is_at_work_at_the_end_ends_after_it() -> None:
    threads, gate, begun = Threads(), threading.Event(), list[threading.Thread]()

    def work() -> None:
        begun.append(threading.current_thread())
        gate.wait(10)

    threads.run(work)
    wait_until(lambda: begun, 10, "it works")
    threads.end()
    gate.set()
    begun[0].join(10)
    assert not begun[0].is_alive()


def test_a_run_for_which_no_thread_could_be_started_keeps_no_slot(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = Threads.run, list[bool]()

    def run(threads: Threads, work: Callable[[], None]) -> None:
        if not refused:
            refused.append(True)
            raise RuntimeError("can't start new thread")
        real(threads, work)

    monkeypatch.setattr(Threads, "run", run)
    with running_worker(slots=1):
        begun = until(start(factories.SYSTEM, hello.name, {"n": 1}).run)
    assert (refused, begun.status) == ([True], "completed")
