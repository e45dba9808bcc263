"""Limits across processes: places are shared by all of them, and a killed process gives its own back when its lease is over."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runs.lifecycle import Actor
from runs.models import LimitedCall, Run
from runs.services import set_limits, start
from runs.states import Hold, Status
from tests import factories
from tests.cluster.flows.workflows import crowds
from tests.harness.processes import Child, Processes
from tests.harness.waiting import wait_until

type StartWorker = Callable[..., Child]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(processes: Processes) -> StartWorker:
    """Start `manage.py worker` with the workflows of these tests and wait until it is ready."""

    def begin(*arguments: str, **options: int) -> Child:
        env = {
            "AGENTOPS_APPS": "tests.cluster.flows",
            "AGENTOPS_LEASE_SECONDS": "2.5",
            "AGENTOPS_BEAT_SECONDS": "0.5",
            "AGENTOPS_SEND_MARGIN_SECONDS": "0.5",
        }
        child = processes.worker(*arguments, env=env, **options)
        child.wait_for_log("worker ready")
        return child

    return begin


def begin(workflow: str, folder: Path, count: int) -> list[Run]:
    return [start(Actor("system"), workflow, {"path": str(folder)}).run for _ in range(count)]


def open_all(folder: Path) -> None:
    (folder / "open-step").touch()
    (folder / "open-call").touch()


def completed() -> int:
    return Run.objects.filter(status=Status.COMPLETED).count()


def test_processes_together_never_exceed_a_limit_of_runs_or_of_calls(tmp_path: Path, worker: StartWorker):
    admin = factories.admin()
    set_limits(admin, "step", "cluster_crowded/crowd", concurrency=3)
    set_limits(admin, "tool", "crowded_call", concurrency=2)
    open_all(tmp_path)
    child = worker("--slots", "6", processes=3)
    begin("cluster_crowded", tmp_path, 30)
    wait_until(lambda: completed() == 30, 40, "all are done", evidence=child.log)
    seen = crowds(tmp_path)
    assert (max(seen["step"]), max(seen["call"])) == (3, 2)
    assert len(set(seen["pids"])) > 1
    assert not LimitedCall.objects.exists()


@pytest.mark.parametrize("what", ["step", "call"])
def test_a_killed_process_frees_its_places_when_its_lease_is_over(
    what: str, tmp_path: Path, worker: StartWorker
):
    scope, name = {
        "step": ("step", "cluster_crowded/crowd"),
        "call": ("tool", "crowded_call"),
    }[what]
    set_limits(factories.admin(), scope, name, concurrency=1)
    if what == "call":
        (tmp_path / "open-step").touch()
    # Each with a sentinel of its own: that of the first is killed too, so that nobody reaps its worker.
    first = worker("--slots", "4", processes=1)
    begin("cluster_crowded", tmp_path, 1)
    wait_until(lambda: crowds(tmp_path)[what], 15, "the first is inside", evidence=first.log)
    second = worker("--slots", "4", processes=1)
    (other,) = begin("cluster_crowded", tmp_path, 1)
    wait_until(
        lambda: Run.objects.filter(pk=other.pk, held_by=Hold.CONCURRENCY).exists(), 15, "the other is held"
    )
    killed = time.monotonic()
    first.kill()
    for left in tmp_path.glob("in-*"):
        left.unlink()
    open_all(tmp_path)
    wait_until(lambda: completed() == 2, 25, "both are done", evidence=second.log)
    assert time.monotonic() - killed > 1, "it was freed before the lease was over"
    assert max(crowds(tmp_path)[what]) == 1
