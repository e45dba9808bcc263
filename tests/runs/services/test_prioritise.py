"""Changing a run's priority."""

from datetime import timedelta

import pytest

from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.models import Event, Run
from runs.models.run import new_id
from runs.services.prioritise import prioritise
from runs.states import Hold, Status
from tests import factories

pytestmark = pytest.mark.django_db


def test_a_run_that_is_due_takes_its_place_by_the_new_priority():
    run = factories.run(Status.QUEUED)
    run.refresh_from_db()
    done = prioritise(factories.support("sam"), run.pk, priority=7, seen_version=run.event_seq, reason="vip")
    fresh = Run.objects.get(pk=run.pk)
    assert done.changed and fresh.priority == 7 and done.sentence == "Its priority is 7 now."
    assert run.sort_at and fresh.sort_at == run.sort_at - timedelta(minutes=7)
    assert fresh.wake_at == run.wake_at
    event = Event.objects.get(run_id=run.pk, kind="prioritised")
    assert (event.actor, event.reason, event.data) == ("sam", "vip", {"before": 0, "priority": 7})


@pytest.mark.parametrize("status", [Status.WAITING, Status.RETRYING, Status.ATTENTION])
def test_a_run_that_waits_keeps_the_priority_for_later(status: Status):
    run = factories.run(status)
    prioritise(factories.support(), run.pk, priority=3)
    assert Run.objects.get(pk=run.pk).priority == 3


def test_a_parked_run_stays_parked():
    run = factories.run(held_by=Hold.PAUSED)
    prioritise(factories.support(), run.pk, priority=3)
    fresh = Run.objects.get(pk=run.pk)
    assert (fresh.priority, fresh.held_by, fresh.sort_at) == (3, Hold.PAUSED, None)


@pytest.mark.parametrize("status", [Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_what_no_worker_is_going_to_take_is_refused(status: Status):
    run = factories.run(status)
    with pytest.raises(StateMismatch):
        prioritise(factories.support(), run.pk, priority=3)
    assert Run.objects.get(pk=run.pk).priority == 0


def test_the_same_priority_is_refused():
    run = factories.run()
    with pytest.raises(StateMismatch, match="its priority is 0 already"):
        prioritise(factories.support(), run.pk, priority=0)


@pytest.mark.parametrize("priority", [-1, 10])
def test_there_are_ten_priorities(priority: int):
    with pytest.raises(Invalid):
        prioritise(factories.support(), factories.run().pk, priority=priority)


def test_who_may_not_use_bulks_may_not_change_it():
    run = factories.run()
    with pytest.raises(NotAllowed):
        prioritise(factories.actor("omar", "operators"), run.pk, priority=3)
    assert not Event.objects.filter(run_id=run.pk, kind="prioritised").exists()


def test_a_stale_page_and_a_run_that_is_not_there_change_nothing():
    run = factories.run()
    with pytest.raises(Stale):
        prioritise(factories.support(), run.pk, priority=3, seen_version=run.event_seq + 1)
    with pytest.raises(NotFound):
        prioritise(factories.support(), new_id(), priority=3)
    assert Run.objects.get(pk=run.pk).priority == 0
