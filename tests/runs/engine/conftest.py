"""A worker on threads of the test's own process, for what does not need a process of its own."""

import os
import select
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connections

from runs import doctor
from runs.engine.worker import RunWorker
from runs.models import Run
from runs.states import TERMINAL
from tests.harness.sessions import pooled
from tests.harness.waiting import wait_until


class PipeStop:
    def __init__(self) -> None:
        self._r, self._w = os.pipe()

    def set(self) -> None:
        os.write(self._w, b"x")

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        return bool(select.select([self._r], [], [], timeout)[0])

    def fileno(self) -> int:
        return self._r

    def close(self) -> None:
        os.close(self._r)
        os.close(self._w)


@contextmanager
def running_worker(slots: int = 8, queues: tuple[str, ...] = ("default",)) -> Iterator[RunWorker]:
    """A worker at work; drained and closed at the end, whose own failure fails the test."""
    stop = PipeStop()
    with pooled():
        yield from _at_work(RunWorker(worker_id=uuid.uuid4(), queues=queues, slots=slots, stop=stop), stop)


def _at_work(worker: RunWorker, stop: PipeStop) -> Iterator[RunWorker]:
    failure: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failure.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="worker-under-test")
    thread.start()
    try:
        yield worker
    finally:
        stop.set()
        thread.join(20)
        stop.close()
        assert not thread.is_alive(), "the worker did not drain"
        if failure:
            raise failure[0]


@pytest.fixture
def worker(transactional_db: None, quick: None) -> Iterator[RunWorker]:
    """A worker at work. Whatever the test did, its data must be healthy at the end."""
    with running_worker() as started:
        yield started
        assert unhealthy() == []


def unhealthy() -> list[doctor.Problem]:
    """What doctor finds wrong in the data; a minute's grace, which tests on shared machines may need."""
    doctor.load()
    known = {doctor.name_of(check) for check in doctor.DATA}
    return [problem for problem in doctor.examine(grace=60) if problem.check in known]


@pytest.fixture
def quick(settings: object) -> None:
    """Beats and polls so short that tests do not wait for them."""
    settings.AGENTOPS_BEAT_SECONDS = 0.2  # type: ignore[attr-defined]
    settings.AGENTOPS_POLL_SECONDS = 0.05  # type: ignore[attr-defined]


def until(
    run: Run, *statuses: str, timeout: float = 15, also: Callable[[Run], bool] = lambda run: True
) -> Run:
    """The run once it stands in one of `statuses` (any terminal one by default)."""
    wanted = set(statuses) or {str(s.value) for s in TERMINAL}

    def there() -> bool:
        run.refresh_from_db()
        return run.status in wanted and also(run)

    wait_until(there, timeout, f"{run} is {sorted(wanted)}", evidence=lambda: f"{run.status} {run.reason}")
    return run
