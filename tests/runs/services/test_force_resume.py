"""Forcing a run on."""

from datetime import timedelta

import pytest

from runs import clock, services
from runs.errors import NotAllowed, Stale, StateMismatch
from runs.models import Attempt, Event
from runs.models.operation import Kind, OpStatus
from runs.states import TERMINAL, AttentionKind, Hold, Outcome, Status
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("status", [Status.QUEUED, Status.WAITING, Status.RETRYING, Status.CANCELLING])
def test_a_run_that_waits_for_its_time_is_due_at_once(status):
    later = clock.now() + timedelta(hours=1)
    run = factories.run(status, wake_at=later, sort_at=later)
    services.force_resume(factories.support("sam"), run.pk, seen_version=run.event_seq, reason="urgent")
    run.refresh_from_db()
    assert run.status == status
    assert run.wake_at is not None and run.wake_at <= clock.now()
    event = Event.objects.get(run_id=run.pk, kind="force_resumed")
    assert (event.actor, event.reason) == ("sam", "urgent")


def test_open_waits_stay_open_and_the_preview_says_so():
    wait = factories.signal_wait()
    preview = services.preview_force_resume(wait.run)
    assert "stays open (paid)" in preview.sentence
    services.force_resume(factories.support(), wait.run_id)
    wait.refresh_from_db()
    assert wait.status == OpStatus.OPEN


def test_a_parked_run_is_offered_again():
    run = factories.run(held_by=Hold.PAUSED)
    done = services.force_resume(factories.support(), run.pk)
    run.refresh_from_db()
    assert run.held_by == "" and run.sort_at is not None
    assert "paused" in done.sentence


def test_a_diverged_run_is_executed_again():
    run = factories.run(Status.ATTENTION, failures=2)
    services.force_resume(factories.support(), run.pk)
    run.refresh_from_db()
    assert (run.status, run.attention_kind, run.reason, run.failures) == (Status.QUEUED, "", "", 0)


def test_a_failed_compensation_is_tried_again():
    run = factories.run(
        Status.ATTENTION,
        attention_kind=AttentionKind.COMPENSATION,
        compensating=True,
        cancel_requested_at=clock.now(),
        cancel_requested_by="somebody",
    )
    undo = factories.operation(run, status=OpStatus.FAILED, name="cancel_courier")
    services.force_resume(factories.support(), run.pk)
    run.refresh_from_db()
    undo.refresh_from_db()
    assert (run.status, undo.status) == (Status.CANCELLING, OpStatus.RETRY)


def test_a_run_in_doubt_is_not_forced_past_the_question():
    pending = factories.doubt()
    with pytest.raises(StateMismatch, match="answer that first"):
        services.force_resume(factories.support(), pending.run_id)


def test_a_run_of_a_live_worker_in_time_is_left_alone():
    run = factories.run(Status.RUNNING)
    with pytest.raises(StateMismatch, match="alive"):
        services.force_resume(factories.support(), run.pk)
    run.refresh_from_db()
    assert run.status == Status.RUNNING


def test_a_run_of_a_silent_worker_is_taken_and_the_worker_can_not_come_back(settings):
    settings.AGENTOPS_LEASE_SECONDS = 0  # the server of the tests has just started
    worker = factories.worker(beats=False)
    run = factories.run(Status.RUNNING, worker_id=worker.pk)
    done = services.force_resume(factories.support("sam"), run.pk)
    run.refresh_from_db()
    worker.refresh_from_db()
    assert (run.status, run.worker_id, run.crashes) == (Status.QUEUED, None, 1)
    assert worker.closed_at is not None and worker.reaped_at is None
    assert "may still act" in done.sentence
    attempt = Attempt.objects.get(run_id=run.pk)
    assert (attempt.outcome, attempt.closed_by) == (Outcome.CRASHED, "sam")


def test_a_reaped_worker_is_said_to_have_ended():
    run = factories.run(Status.RUNNING, worker_id=factories.worker(reaped=True).pk)
    assert "has ended" in services.preview_force_resume(run).sentence


def test_an_overdue_attempt_counts_as_timed_out_and_its_worker_lives_on():
    worker = factories.worker()
    run = factories.run(Status.RUNNING, worker_id=worker.pk, wake_at=clock.now() - timedelta(seconds=1))
    services.force_resume(factories.support(), run.pk)
    run.refresh_from_db()
    assert (run.status, run.failures) == (Status.RETRYING, 1)
    assert run.wake_at is not None and run.wake_at <= clock.now()
    assert Attempt.objects.get(run_id=run.pk).outcome == Outcome.TIMED_OUT
    worker.refresh_from_db()
    assert worker.closed_at is None


def test_an_overdue_attempt_with_an_effect_under_way_keeps_it_pending():
    run = factories.run(Status.RUNNING, wake_at=clock.now() - timedelta(seconds=1))
    pending = factories.operation(run, Kind.EFFECT, OpStatus.PENDING)
    assert [str(line) for line in services.preview_force_resume(run).unknown] == ["book_courier"]
    services.force_resume(factories.support(), run.pk)
    pending.refresh_from_db()
    assert pending.status == OpStatus.PENDING


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_finished_run_is_not_forced_on(status):
    with pytest.raises(StateMismatch, match=status):
        services.force_resume(factories.support(), factories.run(status).pk)


@pytest.mark.parametrize("who", [factories.operator, factories.stranger])
def test_a_wrong_role_forces_nothing(who):
    run = factories.run(Status.ATTENTION)
    with pytest.raises(NotAllowed):
        services.force_resume(who(), run.pk)
    run.refresh_from_db()
    assert run.status == Status.ATTENTION


def test_a_stale_page_forces_nothing():
    run = factories.run(Status.ATTENTION)
    with pytest.raises(Stale):
        services.force_resume(factories.support(), run.pk, seen_version=run.event_seq - 1)


def test_the_second_of_two_clicks_on_one_page_is_stale():
    run = factories.run(Status.ATTENTION)
    services.force_resume(factories.support(), run.pk, seen_version=run.event_seq)
    with pytest.raises(Stale, match="queued"):
        services.force_resume(factories.support(), run.pk, seen_version=run.event_seq)
