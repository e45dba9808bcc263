"""Parts of the cluster that need no cluster."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from agentops.cluster.options import ClusterOptions
from agentops.cluster.ordinary import TaskTimer
from agentops.cluster.processes import Arrivals, PipeEvent
from agentops.management.commands.worker import ready_line


@pytest.fixture
def event() -> Iterator[PipeEvent]:
    event = PipeEvent()
    yield event
    os.close(event.fileno())


def test_an_event_is_set_for_good(event: PipeEvent) -> None:
    assert not event.is_set()
    assert not event.wait(0.01)
    event.set()
    assert event.is_set()
    assert event.wait()
    assert event.is_set()
    event.only_observe()


def test_setting_an_event_never_blocks(event: PipeEvent) -> None:
    for _ in range(100_000):
        event.set()
    assert event.is_set()
    event.only_observe()


def test_an_event_is_set_when_nobody_is_left_who_could_set_it(event: PipeEvent) -> None:
    event.only_observe()
    assert event.is_set()


def test_arrivals_are_counted_once() -> None:
    arrivals = Arrivals()
    assert arrivals.count() == 0
    arrivals.announce()
    arrivals.announce()
    assert arrivals.count() == 2
    assert arrivals.count() == 0
    arrivals.close()
    arrivals.only_announce()


def test_the_timer_of_a_task_is_overdue_after_its_time() -> None:
    timer = TaskTimer()
    assert (timer.value, timer.is_overdue()) == (TaskTimer.IDLE, False)
    timer.value = 60
    timer.value += 3
    assert 62 < timer.value <= 63
    assert not timer.is_overdue()
    timer.value = 0.000_001
    while time.monotonic() <= (timer._deadline or 0):
        pass
    assert timer.is_overdue()


@pytest.mark.parametrize("value", [0, -1, -2])
def test_no_value_of_the_timer_marks_the_process_for_termination(value: int) -> None:
    timer = TaskTimer()
    timer.value = value
    assert timer.value == TaskTimer.IDLE
    with timer.get_lock():
        assert not timer.is_overdue()


def test_the_ready_line_counts_in_words() -> None:
    assert ready_line(ClusterOptions()) == "worker ready: 2 processes × 16 slots, queues default"
    one = ClusterOptions(queues=("a", "b"), processes=1, slots=1)
    assert ready_line(one) == "worker ready: 1 process × 1 slot, queues a, b"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--processes", "0"], "0 is too small: 1 or more"),
        (["--slots", "many"], "'many' is not a whole number"),
        (["--queue", " "], "a queue needs a name"),
    ],
)
def test_the_command_refuses(arguments: list[str], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        call_command("worker", *arguments, stdout=StringIO())


def test_the_help_names_the_environment() -> None:
    text = subprocess.run(
        [sys.executable, "manage.py", "worker", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for variable in ("AGENTOPS_WORKER_QUEUES", "AGENTOPS_WORKER_PROCESSES", "AGENTOPS_WORKER_SLOTS"):
        assert variable in text
