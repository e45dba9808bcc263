import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from runs.failpoints import FailpointError, configure, failpoint
from tests.harness.failpoints import Failpoint, Pause, environment, switched_on
from tests.harness.waiting import wait_until

SCRIPT = """
import django
django.setup()
from runs.failpoints import failpoint
for number in range(3):
    print(number, flush=True)
    failpoint("place")
"""


def start(*entries: Failpoint) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "agentops.settings", **environment(*entries)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_place_does_nothing_while_all_are_off() -> None:
    failpoint("place")


def test_a_place_costs_nothing_while_all_are_off() -> None:
    started = time.perf_counter()
    for _ in range(100_000):
        failpoint("place")
    assert time.perf_counter() - started < 0.5


def test_only_the_named_place_raises() -> None:
    with switched_on(Failpoint("place", "raise")):
        failpoint("elsewhere")
        with pytest.raises(FailpointError, match="place"):
            failpoint("place")
    failpoint("place")


def test_an_entry_can_be_limited_to_the_nth_time() -> None:
    with switched_on(Failpoint("place", "raise", nth=2)):
        failpoint("place")
        with pytest.raises(FailpointError):
            failpoint("place")
        failpoint("place")


def test_an_entry_can_be_limited_to_once_for_all_processes(tmp_path: Path) -> None:
    entry = Failpoint("place", "kill", once=tmp_path / "marker")
    with start(entry) as first:
        assert first.communicate()[0] == "0\n"
    assert first.returncode == -signal.SIGKILL
    with start(entry) as second:
        assert second.communicate()[0] == "0\n1\n2\n"
    assert second.returncode == 0


def test_a_process_can_be_made_to_exit_with_a_status() -> None:
    with start(Failpoint("place", "exit", 7, nth=3)) as process:
        assert process.communicate()[0] == "0\n1\n2\n"
    assert process.returncode == 7


def test_a_process_can_stop_itself_and_be_continued() -> None:
    with start(Failpoint("place", "stop", nth=2)) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate()[0] == "0\n1\n2\n"
    assert process.returncode == 0


def test_a_paused_process_tells_its_number_and_goes_on_when_let(tmp_path: Path) -> None:
    pause = Pause(tmp_path, "place")
    with start(pause.entry) as process:
        assert pause.wait() == process.pid
        assert process.poll() is None
        pause.go()
        assert process.communicate()[0] == "0\n1\n2\n"


def test_a_thread_can_be_paused_in_this_process(tmp_path: Path) -> None:
    pause = Pause(tmp_path, "place")
    passed: list[str] = []

    def come_by() -> None:
        failpoint("place")
        passed.append("passed")

    with switched_on(pause.entry):
        thread = threading.Thread(target=come_by)
        thread.start()
        assert pause.wait() == os.getpid()
        assert passed == []
        pause.go()
        thread.join()
    assert passed == ["passed"]


def test_a_delay_is_kept() -> None:
    with switched_on(Failpoint("place", "delay", 0.05)):
        started = time.monotonic()
        failpoint("place")
    assert time.monotonic() - started >= 0.05


def test_failpoints_refuse_to_be_on_outside_debug_mode(settings: Settings) -> None:
    settings.AGENTOPS_DEBUG = False
    with pytest.raises(ImproperlyConfigured, match="AGENTOPS_DEBUG"):
        configure("place=kill")
    configure("")


@pytest.mark.parametrize(
    "text",
    [
        "place",
        "place=explode",
        "place=delay",
        "place=delay:soon",
        "place=kill:now",
        "=kill",
        "place=pause",
        "place=kill@0",
    ],
)
def test_a_wrong_entry_is_refused_by_name(text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="AGENTOPS_FAILPOINTS"):
        configure(text)


def test_waiting_tells_what_was_waited_for_and_what_is_known() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"until the kettle boils\.\nit is cold"):
        wait_until(lambda: False, 0.01, "the kettle boils", evidence=lambda: "it is cold")
