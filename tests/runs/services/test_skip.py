"""Skipping a step: the run goes on at another one, with the state that a person gives it."""

from datetime import timedelta

import pytest

from approvals.models import Approval
from runs import clock, history, services
from runs.errors import Invalid, NotAllowed, Stale, StateMismatch
from runs.models import Attempt, Event, Run
from runs.models.operation import OpStatus
from runs.states import FailureKind, Outcome, Status
from tests import factories

pytestmark = pytest.mark.django_db

SKIPPABLE = (Status.QUEUED, Status.WAITING, Status.RETRYING, Status.ATTENTION, Status.FAILED)


def skipped(run: Run, to: str = "ship", **given: object) -> Run:
    services.skip(factories.support("sam"), run.pk, **({"to": to, "reason": "packed by hand"} | given))  # type: ignore[arg-type]
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("status", SKIPPABLE)
def test_the_run_goes_on_at_the_step_that_was_chosen(status):
    run = skipped(factories.run(status, step_seq=2, attempt_no=0), state={"box": 7})
    assert (run.status, run.step, run.step_seq, run.attempt_no, run.failures) == (
        Status.QUEUED,
        "ship",
        3,
        0,
        0,
    )
    assert (run.state, run.failure_kind, run.finished_at, run.attention_kind) == ({"box": 7}, "", None, "")
    assert run.sort_at is not None


def test_the_visit_and_the_history_say_who_skipped_it_and_what_changed():
    run = skipped(factories.run(Status.FAILED, attempt_no=2, state={"box": 1}), state={"box": 7})
    row = Attempt.objects.get(run_id=run.pk)
    assert (row.step, row.step_seq, row.attempt_no, row.outcome) == ("pack", 1, 3, Outcome.SKIPPED)
    assert (row.closed_by, row.error) == ("sam", "skipped by sam: packed by hand")
    back = history.restored(run.pk, 1, 3)
    assert back is not None and back.shown == {"box": 7}
    event = Event.objects.get(run_id=run.pk, kind="skipped")
    assert (event.actor, event.reason) == ("sam", "packed by hand")
    assert (event.data["step"], event.data["to"], event.data["changed"]) == ("pack", "ship", ["box"])


def test_a_page_of_a_step_that_the_run_has_left_skips_nothing_although_no_event_tells_of_it():
    run = factories.run(Status.QUEUED)
    seen = services.preview_skip(run, "ship").digest
    # It went on to another step, and a limit has parked it there: neither writes an event.
    Run.objects.filter(pk=run.pk).update(
        step="ship", step_seq=2, held_by="concurrency", wake_at=None, sort_at=None
    )
    with pytest.raises(Stale, match="changed since the page was loaded"):
        skipped(run, "pack", seen_version=run.event_seq, seen_plan=seen)


def test_without_another_state_it_stays_as_it_is():
    run = skipped(factories.run(Status.FAILED, state={"box": 1}))
    assert run.state == {"box": 1}
    assert Attempt.objects.get(run_id=run.pk).state_after is None


def test_what_the_step_waits_for_is_closed_and_what_it_was_to_try_again_is_given_up():
    approval = factories.approval()
    run = Run.objects.get(pk=approval.run_id)
    again = factories.operation(run, status=OpStatus.RETRY, name="print_label")
    assert services.preview_skip(run, "ship").sentence.endswith(
        " The open approval of book_courier becomes void. print_label is given up."
    )
    skipped(run)
    approval.refresh_from_db()
    again.refresh_from_db()
    assert approval.state == Approval.State.VOID
    assert again.status == OpStatus.CLOSED


def test_going_back_names_every_effect_that_may_happen_again_and_wants_it_confirmed():
    run = factories.run(Status.FAILED, step="ship", step_seq=2)
    now = clock.now()
    Attempt.objects.create(
        run_id=run.pk,
        step_seq=1,
        attempt_no=1,
        epoch=1,
        step="pack",
        outcome="succeeded",
        started_at=now,
        ended_at=now,
    )
    done = factories.operation(run, step_seq=1, provider_ref="bk_1")
    plan = services.preview_skip(run, "pack")
    assert [(line.operation, line.repeats) for line in plan.again] == [(done.pk, True)]
    assert plan.kept == ()
    with pytest.raises(Invalid, match="would repeat book_courier"):
        skipped(run, "pack")
    services.skip(
        factories.support(), run.pk, to="pack", reason="anew", confirmed=[done.pk], seen_plan=plan.digest
    )
    run.refresh_from_db()
    assert (run.step, run.step_seq) == ("pack", 3)


def test_a_plan_that_has_changed_since_is_refused():
    run = factories.run(Status.FAILED)
    seen = services.preview_skip(run, "ship").digest
    factories.operation(run)
    with pytest.raises(Stale, match="keep and repeat"):
        skipped(run, seen_plan=seen)


def test_a_run_in_doubt_is_answered_first():
    with pytest.raises(StateMismatch, match="answer that first"):
        skipped(factories.doubt().run)


@pytest.mark.parametrize("status", [s for s in Status if s not in SKIPPABLE])
def test_a_run_that_a_worker_has_or_that_has_ended_is_not_moved(status):
    with pytest.raises(StateMismatch, match=status):
        skipped(factories.run(status))


def test_a_run_that_is_to_be_cancelled_is_not_moved():
    run = factories.run(Status.WAITING, cancel_requested_by="ada", cancel_requested_at=clock.now())
    with pytest.raises(StateMismatch, match="ada has asked"):
        skipped(run)


def test_a_passed_deadline_needs_a_later_one():
    run = factories.run(
        Status.FAILED, deadline_at=clock.now() - timedelta(minutes=1), failure_kind=FailureKind.DEADLINE
    )
    with pytest.raises(StateMismatch, match="deadline passed"):
        skipped(run)
    later = clock.now() + timedelta(hours=1)
    services.skip(factories.support(), run.pk, to="ship", reason="x", extend_deadline_to=later)
    run.refresh_from_db()
    assert (run.status, run.deadline_at) == (Status.QUEUED, later)


def test_only_a_step_of_its_workflow_can_be_chosen_and_a_reason_is_needed():
    run = factories.run(Status.FAILED)
    with pytest.raises(Invalid, match="no step 'fly'; its steps are: pack, ship"):
        skipped(run, "fly")
    with pytest.raises(Invalid, match="say why"):
        services.skip(factories.support(), run.pk, to="ship", reason="  ")


@pytest.mark.parametrize("who", [factories.operator, factories.stranger])
def test_a_wrong_role_skips_nothing(who):
    run = factories.run(Status.FAILED)
    with pytest.raises(NotAllowed):
        services.skip(who(), run.pk, to="ship", reason="x")
    run.refresh_from_db()
    assert run.step == "pack"


def test_a_stale_page_skips_nothing():
    run = factories.run(Status.FAILED)
    with pytest.raises(Stale):
        skipped(run, seen_version=run.event_seq - 1)
