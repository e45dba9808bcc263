"""Families of runs: begun by a workflow and executed by workers, or as rows that nobody executes."""

from typing import Any

from django.db import transaction

from runs import clock, lifecycle
from runs.kin import children
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.services import receive_signal, start
from runs.states import FailureKind, Status
from runs.workflow import Child
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine import family_flows
from tests.runs.engine.conftest import until


def begin(workflow: str, do: str = "", n: int = 0, **options: Any) -> Run:
    return start(Actor("test"), workflow, {"do": do, "n": n, "options": options}).run


def family(run: Run) -> list[Run]:
    return list(Run.objects.filter(parent_id=run.pk).order_by("child_index"))


def statuses(run: Run) -> list[str]:
    return [one.status for one in family(run)]


def say_go(run: Run, name: str = "go") -> None:
    receive_signal(Actor("test"), name=name, payload=1, external_id=str(run.pk), source="test", run_id=run.pk)


def waiting(run: Run, *expected: str) -> Run:
    """The parent once it waits, and its children once they stand so."""
    until(run, "waiting")
    wait_until(
        lambda: statuses(run) == list(expected),
        15,
        f"children are {expected}",
        evidence=lambda: str(statuses(run)),
    )
    return run


def parked(count: int, *, wanted: int | None = None, **terms: Any) -> tuple[Run, Operation, list[Run]]:
    """A parent that waits for so many children, which nobody has begun; as the engine makes them."""
    run = factories.run(Status.WAITING)
    request = {"unneeded": "cancel", "orphans": "cancel", "raising": False} | terms
    wait = factories.operation(run, Kind.CHILD, OpStatus.OPEN, name="f_child", request=request)
    wait.children, wait.children_wanted = count, wanted
    wait.save()
    wishes = [Child(family_flows.child, {"n": n}) for n in range(count)]
    with transaction.atomic():
        children.start(run, wait, children.prepare(wishes))
    return run, wait, family(run)


def ended(run: Run, status: Status = Status.CANCELLED) -> None:
    """End a run as a verb does it: under its lock, its parent told after the commit."""
    kind = FailureKind.DECLARED if status == Status.FAILED else None
    with transaction.atomic():
        lifecycle.end(lifecycle.lock_run(run.pk), status, Actor("test"), kind=kind)


def silently_ended(run: Run, status: Status = Status.COMPLETED) -> None:
    """End a run whose worker is killed right after the commit: nobody is told."""
    as_running(run)
    kind = {"failure_kind": "declared"} if status == Status.FAILED else {}
    Run.objects.filter(pk=run.pk).update(
        status=status, finished_at=clock.now(), wake_at=None, sort_at=None, worker_id=None, **kind
    )


def as_running(run: Run) -> None:
    """As if a worker had it."""
    Run.objects.filter(pk=run.pk).update(
        status="running",
        worker_id=factories.worker().pk,
        wake_at=clock.now(),
        sort_at=None,
        epoch=1,
        attempt_no=1,
        attempt_started_at=clock.now(),
    )


def is_due(run: Run) -> bool:
    run.refresh_from_db()
    return run.wake_at is not None
