"""Steps that kill their own process, and what becomes of those who shared it."""

import pytest

from agentops.sandbox.client import SandboxLedger
from runs.lifecycle import Actor
from runs.models import Attempt, Run
from runs.services import set_limits, start
from tests import factories
from tests.chaos.conftest import Clusters
from tests.harness.processes import Processes, RunningSandbox

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_step_that_kills_its_process_ends_in_the_dead_letter_and_the_innocent_lose_nothing(
    clusters: Clusters, processes: Processes, sandbox: RunningSandbox
) -> None:
    import tests.chaos.app.workflows  # noqa: F401

    # So that the test need not wait for the back-off between crashes.
    set_limits(
        factories.admin(),
        "workflow",
        "z_suicide",
        seen_revision=0,
        reason="test",
        backoff_base_s=0.1,
        backoff_max_s=0.2,
    )
    clusters.start(workers=1)
    innocents = [start(Actor("test"), "z_innocent", {"order": str(n), "seconds": 1.5}).run for n in range(5)]
    processes.wait_until(
        lambda: Run.objects.filter(workflow="z_innocent", step="linger", status="running").count() == 5,
        20,
        "the innocent runs share a process",
    )
    suicidal = start(Actor("test"), "z_suicide", {}).run

    def dead_letter() -> bool:
        suicidal.refresh_from_db()
        return suicidal.status == "failed"

    processes.wait_until(dead_letter, 60, "the suicidal run is in the dead letter")
    assert (suicidal.failure_kind, suicidal.lone_crashes) == ("crashed", 3)
    deaths = Attempt.objects.filter(run_id=suicidal.pk).values_list("outcome", flat=True)
    # The first took others with it; only deaths while alone counted towards the limit.
    assert list(deaths) == ["crashed"] * 4

    def all_lived() -> bool:
        return Run.objects.filter(pk__in=[r.pk for r in innocents], status="completed").count() == 5

    processes.wait_until(all_lived, 60, "the innocent runs complete")
    for run in innocents:
        run.refresh_from_db()
        assert (run.result, run.failures) == ("lived", 0)
    with SandboxLedger(sandbox.url) as ledger:
        assert ledger.count(kind="refund") == 5
        assert not ledger.summary().repeated
