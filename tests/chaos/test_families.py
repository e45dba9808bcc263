"""Workers that die between two children, and right before somebody asks whether their parent may go on."""

from pathlib import Path

import pytest

from agentops.sandbox.client import SandboxLedger
from runs.lifecycle import Actor
from runs.models import Attempt, Run
from runs.services import start
from tests.chaos.conftest import Clusters
from tests.harness.failpoints import Failpoint, environment
from tests.harness.processes import Processes, RunningSandbox
from tests.runs.engine.conftest import unhealthy

pytestmark = pytest.mark.django_db(transaction=True)


def families(count: int, *, after: int = 0) -> list[Run]:
    import tests.chaos.app.workflows  # noqa: F401

    numbers = range(after + 1, after + count + 1)
    return [start(Actor("test"), "z_family", {"order": f"{n}", "seconds": 0.2}).run for n in numbers]


def all_done(runs: list[Run]) -> bool:
    return Run.objects.filter(pk__in=[run.pk for run in runs], status="completed").count() == len(runs)


def deaths(folder: Path) -> int:
    return len(list(folder.glob("kill-*")))


def check(runs: list[Run], sandbox: RunningSandbox) -> None:
    """Each child exists once and acted once, and each join happened once."""
    assert Run.objects.filter(workflow="z_leaf").count() == 3 * len(runs)
    for run in runs:
        run.refresh_from_db()
        assert run.result == [f"{run.input['order']}.{n}" for n in range(3)]
        ends = Attempt.objects.filter(run_id=run.pk).values_list("outcome", flat=True)
        assert list(ends).count("succeeded") == 1
    with SandboxLedger(sandbox.url) as ledger:
        assert ledger.count(kind="refund") == 4 * len(runs)
        assert not ledger.summary().repeated
    assert unhealthy() == []


@pytest.mark.parametrize("place", ["checkpoint.committed", "follow_up.before", "suspend.committed"])
def test_a_worker_that_dies_between_two_children_loses_no_join_and_repeats_none(
    place: str, clusters: Clusters, processes: Processes, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    kills = [Failpoint(place, "kill", once=tmp_path / f"kill-{n}") for n in range(3)]
    clusters.start(workers=2, env=environment(*kills))
    runs = families(4)
    processes.wait_until(lambda: all_done(runs), 120, "every parent has joined its children")
    # Several parents may move in one commit, and then have one death in common: others follow until all deaths have come.
    while len(runs) < 10 and deaths(tmp_path) < len(kills):
        runs.extend(families(1, after=len(runs)))
        processes.wait_until(lambda: all_done(runs), 120, "every parent has joined its children")
    assert deaths(tmp_path) == len(kills)
    check(runs, sandbox)
