"""Retrying a failed run in place."""

from datetime import timedelta

import pytest

from runs import clock, services
from runs.errors import Invalid, NotAllowed, Stale, StateMismatch
from runs.models import Attempt, Event, Run
from runs.models.operation import Kind, OpStatus
from runs.states import FailureKind, Outcome, Status
from tests import factories

pytestmark = pytest.mark.django_db


def failed(**fields) -> Run:
    return factories.run(Status.FAILED, attempt_no=5, failures=5, crashes=1, lone_crashes=1, **fields)


def test_the_run_goes_on_at_the_same_visit_with_counters_at_zero():
    run = failed(step_seq=3, step="ship", result={"x": 1})
    services.retry(factories.support("sam"), run.pk, seen_version=run.event_seq, reason="provider is back")
    run.refresh_from_db()
    assert (run.status, run.step, run.step_seq) == (Status.QUEUED, "ship", 3)
    assert (run.failures, run.crashes, run.lone_crashes) == (0, 0, 0)
    assert run.attempt_no == 5  # attempts are counted on, their rows stay
    assert (run.failure_kind, run.finished_at, run.result) == ("", None, None)
    assert run.sort_at is not None
    event = Event.objects.get(run_id=run.pk, kind="retried")
    assert (event.actor, event.reason) == ("sam", "provider is back")


def test_the_failed_operation_is_tried_again_under_the_next_generation_and_done_ones_hold():
    run = failed()
    done = factories.operation(run, result={"id": "1"})
    broken = factories.operation(
        run, status=OpStatus.FAILED, error_type="NotRetryable", error="no", tries=5, settled_by="exhausted"
    )
    preview = services.preview_retry(run)
    services.retry(factories.support(), run.pk)
    done.refresh_from_db()
    broken.refresh_from_db()
    assert done.status == OpStatus.DONE
    assert (broken.status, broken.generation, broken.tries, broken.finished_at) == (
        OpStatus.RETRY,
        1,
        0,
        None,
    )
    assert broken.settled_by == ""  # that it was exhausted is true no more
    assert [line.operation for line in preview.kept] == [done.pk]
    (again,) = preview.again
    assert (again.operation, again.why) == (broken.pk, "it failed for certain: no; tried under a new key")


def test_while_an_earlier_send_could_land_it_is_in_doubt_again_under_its_key():
    run = failed()
    broken = factories.operation(
        run,
        status=OpStatus.FAILED,
        earlier_send_open=True,
        generation=2,
        intent_worker_id=factories.worker().pk,
    )
    services.retry(factories.support(), run.pk)
    broken.refresh_from_db()
    assert (broken.status, broken.generation) == (OpStatus.PENDING, 2)


def test_what_people_rejected_stays_rejected():
    run = failed()
    rejected = factories.operation(run, Kind.APPROVAL, result={"verdict": "rejected"})
    preview = services.preview_retry(run)
    services.retry(factories.support(), run.pk)
    rejected.refresh_from_db()
    assert rejected.status == OpStatus.DONE
    assert "stays rejected" in preview.sentence


def test_a_failure_that_the_code_went_on_from_stays_as_recorded():
    run = failed()
    now = clock.now()
    caught = factories.operation(run, status=OpStatus.FAILED, finished_at=now - timedelta(seconds=5))
    factories.operation(run, name="print_label", started_at=now - timedelta(seconds=4))
    services.retry(factories.support(), run.pk)
    caught.refresh_from_db()
    assert caught.status == OpStatus.FAILED


def test_of_parallel_operations_the_failed_one_is_tried_again():
    run = failed()
    now = clock.now()
    broken = factories.operation(run, status=OpStatus.FAILED, finished_at=now - timedelta(seconds=5))
    factories.operation(run, name="print_label", started_at=now - timedelta(seconds=4))
    Attempt.objects.create(
        run_id=run.pk,
        step_seq=run.step_seq,
        attempt_no=5,
        epoch=1,
        step=run.step,
        outcome=Outcome.FAILED,
        started_at=now,
        ended_at=now,
        error_type="ToolFailed",
    )
    services.retry(factories.support(), run.pk)
    broken.refresh_from_db()
    assert broken.status == OpStatus.RETRY


def test_an_expired_wait_is_opened_again_for_as_long_as_the_first_time():
    run = failed()
    now = clock.now()
    expired = factories.operation(
        run,
        Kind.SIGNAL,
        OpStatus.FAILED,
        name="paid",
        started_at=now - timedelta(hours=7),
        expires_at=now - timedelta(hours=1),
        error_type="WaitExpired",
    )
    services.retry(factories.support(), run.pk)
    expired.refresh_from_db()
    assert expired.status == OpStatus.OPEN
    assert expired.expires_at is not None and timedelta(hours=5) < expired.expires_at - now < timedelta(
        hours=7
    )


def test_a_run_whose_deadline_has_passed_needs_a_later_one():
    run = failed(deadline_at=clock.now() - timedelta(minutes=1), failure_kind=FailureKind.DEADLINE)
    assert "deadline" in services.preview_retry(run).sentence
    with pytest.raises(StateMismatch, match="deadline passed"):
        services.retry(factories.support(), run.pk)
    with pytest.raises(Invalid):
        services.retry(factories.support(), run.pk, extend_deadline_to=clock.now() - timedelta(seconds=1))
    later = clock.now() + timedelta(hours=1)
    services.retry(factories.support(), run.pk, extend_deadline_to=later)
    run.refresh_from_db()
    assert (run.status, run.deadline_at) == (Status.QUEUED, later)


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.FAILED, Status.RETRYING)])
def test_only_a_failed_run_can_be_retried(status):
    run = factories.run(status)
    with pytest.raises(StateMismatch, match=status):
        services.retry(factories.support(), run.pk)


def test_a_run_in_back_off_is_tried_now_and_keeps_its_counters():
    run = factories.run(Status.RETRYING, failures=2)
    services.retry(factories.support(), run.pk, reason="the provider is back")
    run.refresh_from_db()
    assert (run.status, run.failures) == (Status.RETRYING, 2)
    assert run.wake_at is not None and run.wake_at <= clock.now()
    assert Event.objects.get(run_id=run.pk, kind="retried").data["now"] is True


def test_a_plan_that_has_changed_since_is_refused():
    run = failed()
    seen = services.preview_retry(run).digest
    factories.operation(run, status=OpStatus.FAILED)
    with pytest.raises(Stale, match="keep and repeat"):
        services.retry(factories.support(), run.pk, seen_plan=seen)


@pytest.mark.parametrize("who", [factories.operator, factories.stranger])
def test_a_wrong_role_retries_nothing(who):
    run = failed()
    with pytest.raises(NotAllowed):
        services.retry(who(), run.pk)
    run.refresh_from_db()
    assert run.status == Status.FAILED


def test_a_stale_page_retries_nothing():
    run = failed()
    with pytest.raises(Stale):
        services.retry(factories.support(), run.pk, seen_version=run.event_seq - 1)


def test_a_second_retry_is_refused_with_the_present_state():
    run = failed()
    services.retry(factories.support(), run.pk)
    with pytest.raises(StateMismatch, match="queued"):
        services.retry(factories.support(), run.pk)
    assert Event.objects.filter(run_id=run.pk, kind="retried").count() == 1
