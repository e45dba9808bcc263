import os
import signal
import sys
from pathlib import Path

import httpx
import pytest
from django.urls import reverse

from tests.harness.processes import Processes

# A tree shaped like a worker cluster: main, its child, and two children of that.
CLUSTER = """
import os, signal, time
print("main", flush=True)
if os.fork() == 0:
    for _ in range(2):
        if os.fork() == 0:
            print("worker", flush=True)
            time.sleep(600)
    time.sleep(600)
time.sleep(600)
"""


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path, os.environ["DATABASE_URL"])


def test_a_tree_is_listed_by_role_and_killed_with_its_orphans(processes: Processes) -> None:
    with processes:
        child = processes.start([sys.executable, "-c", CLUSTER], name="cluster")
        child.wait_until(lambda: len(child.tree().workers) == 2, 10, "the tree stands")
        tree = child.tree()
        assert tree.main is not None and tree.main.pid == child.pid
        assert tree.sentinel is not None and tree.sentinel.ppid() == child.pid
        assert {worker.ppid() for worker in tree.workers} == {tree.sentinel.pid}
        tree.sentinel.kill()
        child.wait_until(lambda: len(child.tree().others) == 2, 10, "both workers are orphans")
        assert child.tree().main is not None
    assert child.members() == []
    assert child.returncode == -signal.SIGKILL


def test_one_member_can_be_stopped_and_continued(processes: Processes) -> None:
    with processes:
        child = processes.start([sys.executable, "-c", CLUSTER], name="cluster")
        child.wait_until(lambda: len(child.tree().workers) == 2, 10, "the tree stands")
        first, second = child.tree().workers
        first.suspend()
        child.wait_until(lambda: first.status() == "stopped", 5, "the first worker stands still")
        assert second.status() != "stopped"
        first.resume()
        child.wait_until(lambda: first.status() != "stopped", 5, "the first worker goes on")


def test_a_tree_that_stands_still_is_killed_as_well(processes: Processes) -> None:
    with processes:
        child = processes.start([sys.executable, "-c", CLUSTER], name="cluster")
        child.wait_until(lambda: len(child.tree().workers) == 2, 10, "the tree stands")
        child.suspend()
    assert child.members() == []


def test_a_wait_that_fails_shows_the_log(processes: Processes) -> None:
    with processes:
        child = processes.start([sys.executable, "-c", "print('what it said')"], name="talker")
        assert child.wait_ended() == 0
        with pytest.raises(pytest.fail.Exception, match="what it said"):
            processes.wait_until(lambda: False, 0.01, "it says something else")


def test_a_command_that_fails_shows_its_log(processes: Processes) -> None:
    with processes, pytest.raises(AssertionError, match="Unknown command"):
        processes.run("no_such_command")


@pytest.mark.django_db(transaction=True)
def test_the_web_server_answers_from_the_test_database(tmp_path: Path, database_url: str) -> None:
    with Processes(tmp_path, database_url) as processes:
        child, url = processes.web()
        assert httpx.get(url + reverse("login"), follow_redirects=False).status_code == 200
        child.terminate()
        child.wait_gone()


def test_the_sandbox_answers_on_ports_of_its_own(processes: Processes) -> None:
    with processes:
        first, second = processes.sandbox(), processes.sandbox("--data", str(processes.folder / "second"))
        assert first.url != second.url
        assert httpx.get(first.url).status_code < 500
