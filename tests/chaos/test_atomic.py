"""A process that dies around the commit of an atomic step: what the step wrote is there exactly once."""

from pathlib import Path

import pytest

import tests.chaos.app.workflows  # noqa: F401
from runs.lifecycle import Actor
from runs.models import Attempt, Blob, Run
from runs.services import start
from tests.chaos.conftest import Clusters
from tests.harness.failpoints import Failpoint, environment
from tests.harness.processes import Processes

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(("place", "tries"), [("atomic.before_commit", 2), ("atomic.committed", 1)])
def test_what_an_atomic_step_writes_is_there_once_although_its_process_dies(
    place: str, tries: int, clusters: Clusters, processes: Processes, tmp_path: Path
) -> None:
    clusters.start(env=environment(Failpoint(place, "kill", once=tmp_path / "died")))
    run = start(Actor("test"), "z_atomic", {}).run
    processes.wait_until(lambda: Run.objects.get(pk=run.pk).status == "completed", 30, "the run completes")
    assert (tmp_path / "died").exists()
    assert Blob.objects.filter(sha256__startswith=str(run.pk)).count() == 1
    assert Attempt.objects.filter(run_id=run.pk, step="note").count() == tries
