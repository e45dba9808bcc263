"""Stating that a worker is gone for good."""

import pytest

from runs import services
from runs.errors import Invalid, NotAllowed, NotFound, StateMismatch
from runs.models import AuditEvent
from runs.models.run import new_id
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def test_a_silent_worker_is_closed_and_counts_as_reaped():
    worker = factories.worker(beats=False)
    run = factories.run(Status.RUNNING, worker_id=worker.pk)
    assert "1 runs" in services.preview_declare_gone(worker).sentence
    services.declare_gone(factories.operator("olga"), worker.pk, reason="host burnt down")
    worker.refresh_from_db()
    assert worker.closed_at is not None and worker.reaped_at is not None
    assert worker.gone_by == "olga"
    run.refresh_from_db()
    assert run.status == Status.RUNNING  # the take-over moves it
    event = AuditEvent.objects.get()
    assert (event.kind, event.actor, event.reason) == ("worker_declared_gone", "olga", "host burnt down")


def test_a_worker_that_beats_is_not_gone():
    worker = factories.worker()
    with pytest.raises(StateMismatch, match="still beats"):
        services.declare_gone(factories.operator(), worker.pk, reason="I think so")
    worker.refresh_from_db()
    assert worker.reaped_at is None


def test_it_needs_a_reason():
    with pytest.raises(Invalid):
        services.declare_gone(factories.operator(), factories.worker(beats=False).pk, reason=" ")


def test_a_wrong_role_declares_nothing():
    worker = factories.worker(beats=False)
    with pytest.raises(NotAllowed):
        services.declare_gone(factories.stranger(), worker.pk, reason="gone")
    worker.refresh_from_db()
    assert worker.reaped_at is None


def test_said_twice_it_changes_nothing():
    worker = factories.worker(beats=False)
    services.declare_gone(factories.operator("olga"), worker.pk, reason="gone")
    assert services.declare_gone(factories.support(), worker.pk, reason="gone").gone_by == "olga"
    assert AuditEvent.objects.count() == 1


def test_an_unknown_worker_is_said_to_be_unknown():
    with pytest.raises(NotFound):
        services.declare_gone(factories.operator(), new_id(), reason="gone")
