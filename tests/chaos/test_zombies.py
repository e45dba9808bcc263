"""A worker that is stopped past its lease and then goes on: it changes no run state and starts no further operation."""

import psutil
import pytest
from django.test import override_settings

from agentops.sandbox.client import SandboxLedger
from runs.lifecycle import Actor
from runs.models import Attempt, Event, Operation, Run, Worker
from runs.services import start
from tests.chaos.conftest import Clusters
from tests.harness.failpoints import Failpoint, environment
from tests.harness.processes import Processes, RunningSandbox

pytestmark = pytest.mark.django_db(transaction=True)

PLACES = {
    "before the intent": "intent.before",
    "between intent and send": "intent.committed",
    "in the request": "tool.in_request",
    "before the outcome": "outcome.before",
}


@pytest.fixture(autouse=True)
def app() -> object:
    with override_settings():
        import tests.chaos.app.workflows  # noqa: F401

        yield


@pytest.mark.parametrize("kind", ["refund", "charge"])
@pytest.mark.parametrize("place", PLACES)
def test_a_zombie_changes_nothing_and_the_ledger_shows_one_effect(
    place: str, kind: str, clusters: Clusters, processes: Processes, sandbox: RunningSandbox
) -> None:
    first = clusters.start(env=environment(Failpoint(PLACES[place], "stop")))
    run = start(Actor("test"), "z_effect", {"order": "1042", "kind": kind}).run

    zombie = first.tree().workers[0]
    first.wait_until(
        lambda: zombie.status() == psutil.STATUS_STOPPED, 20, "the worker stops at the failpoint"
    )
    # Its sentinel would kill it once the lease is over; here it must live on.
    first.suspend()

    clusters.start()

    def taken_over() -> bool:
        run.refresh_from_db()
        return run.epoch >= 2

    processes.wait_until(taken_over, 20, "another worker takes the run over")
    if not (kind == "charge" and place in ("between intent and send", "before the intent")):
        # Nothing but the provider's answer is needed to finish it.
        processes.wait_until(
            lambda: Run.objects.get(pk=run.pk).status == "completed", 30, "the run completes"
        )
    epoch_before = Run.objects.get(pk=run.pk).epoch
    zombie.resume()

    processes.wait_until(lambda: Run.objects.get(pk=run.pk).status == "completed", 30, "the run completes")
    ended_by_itself = processes.wait_until(
        lambda: not zombie.is_running() or zombie.status() == psutil.STATUS_ZOMBIE,
        20,
        "the zombie ends itself",
    )
    assert ended_by_itself
    run.refresh_from_db()
    assert (run.status, run.result) == ("completed", "done")
    assert epoch_before >= 2

    with SandboxLedger(sandbox.url) as ledger:
        entries = ledger.entries(kind=kind)
    assert len(entries) == 1, entries
    zombie_row = Worker.objects.get(pid=zombie.pid)
    assert zombie_row.closed_at is not None
    own = Attempt.objects.filter(run_id=run.pk, worker_id=zombie_row.pk)
    assert {a.outcome for a in own} == {"crashed"}
    assert Operation.objects.filter(run=run, kind="effect").count() == 1
    if place in ("in the request", "before the outcome"):
        # What it brought home is kept as evidence.
        assert Event.objects.filter(run_id=run.pk, kind="late_outcome").exists()
