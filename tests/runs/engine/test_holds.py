"""What parks a due run lifts the hold, also where two of them cross."""

from typing import Any

import pytest
from django.db import connection

from runs import clock, doctor
from runs.engine import leases
from runs.models import Run
from runs.states import Hold
from tests import factories

pytestmark = pytest.mark.django_db


def without_reason() -> int:
    """How many parked runs doctor complains of."""
    with connection.cursor() as cursor:
        return sum(found.count for found in doctor.hold_without_reason(doctor.Snapshot(cursor, grace=0)))


def due() -> int:
    return Run.objects.filter(held_by="", wake_at__lte=clock.now(), sort_at__lte=clock.now()).count()


def test_a_run_that_was_parked_just_after_a_capable_worker_came_is_executed():
    factories.worker()
    run = factories.run(held_by=Hold.NO_CAPABLE_WORKER)
    other = factories.run(held_by=Hold.NO_CAPABLE_WORKER, queue="elsewhere")
    assert without_reason() == 1
    assert leases.rearm_executable() == 1
    run.refresh_from_db()
    other.refresh_from_db()
    assert (run.held_by, other.held_by) == ("", Hold.NO_CAPABLE_WORKER)
    assert without_reason() == 0


def test_more_parked_runs_than_a_batch_all_become_due():
    for _ in range(5):
        factories.run(held_by=Hold.NO_CAPABLE_WORKER)
    factories.worker()
    assert [leases.rearm_executable(batch=2) for _ in range(4)] == [2, 2, 1, 0]
    assert due() == 5


@pytest.mark.parametrize(
    "gone", [{"beats": False}, {"reaped": True}, {"capabilities": ["parcel@2/pack"]}], ids=str
)
def test_a_worker_that_cannot_execute_it_lifts_no_hold(gone: dict[str, Any]):
    factories.run(held_by=Hold.NO_CAPABLE_WORKER)
    factories.worker(**gone)
    assert leases.rearm_executable() == 0
