"""Killing a run: it ends at once, and what nobody knows stays recorded as unknown."""

import pytest
from django.db import connection

from approvals.models import Approval
from runs import doctor, services
from runs.errors import Invalid, NotAllowed, Stale, StateMismatch
from runs.models import Attempt, Event, Operation, Run
from runs.models.operation import Kind, OpStatus, Rest
from runs.states import UNFINISHED, Status
from tests import factories

pytestmark = pytest.mark.django_db


def killed(run: Run, **given: object) -> Run:
    services.kill(factories.admin("ada"), run.pk, **({"reason": "runaway"} | given))  # type: ignore[arg-type]
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("status", UNFINISHED)
def test_it_ends_at_once_whatever_it_did_and_the_epoch_is_raised(status):
    run = factories.run(status)
    epoch = run.epoch
    killed(run)
    assert (run.status, run.epoch, run.worker_id, run.wake_at) == (Status.CANCELLED, epoch + 1, None, None)
    assert run.reason == "killed by ada: runaway"
    assert [e.kind for e in Event.objects.filter(run_id=run.pk).order_by("seq")][-2:] == [
        "killed",
        "cancelled",
    ]


def test_the_attempt_of_a_running_run_is_closed_as_fenced():
    run = killed(factories.run(Status.RUNNING))
    row = Attempt.objects.get(run_id=run.pk)
    assert (row.outcome, row.closed_by, row.epoch) == ("fenced", "ada", 1)


def test_nothing_is_undone():
    run = factories.run(Status.WAITING)
    factories.operation(run, compensate_with="cancel_courier")
    plan = services.preview_kill(run)
    assert [line.name for line in plan.kept] == ["book_courier"]
    assert "Nothing is undone" in plan.sentence
    killed(run)
    assert run.status == Status.CANCELLED and not run.compensating


def test_what_is_in_doubt_stays_so_is_listed_and_can_still_be_answered():
    doubt = factories.doubt(intent_worker_id=factories.worker(reaped=True).pk)
    run = doubt.run
    plan = services.preview_kill(run)
    assert [line.operation for line in plan.unknown] == [doubt.pk]
    killed(run)
    event = Event.objects.get(run_id=run.pk, kind="killed")
    assert event.data["in_doubt"] == [{"operation": str(doubt.pk), "name": "book_courier"}]
    doubt.refresh_from_db()
    assert doubt.status == OpStatus.PENDING
    with connection.cursor() as cursor:
        assert doctor.run_checks([doctor.unquiet_end], doctor.Snapshot(cursor, 0)) == []
    done = services.answer_doubt(
        factories.operator(), doubt.pk, happened=True, reference="bk_7", reason="seen in the ledger"
    )
    doubt.refresh_from_db()
    run.refresh_from_db()
    assert (doubt.status, doubt.provider_ref, run.status) == (OpStatus.DONE, "bk_7", Status.CANCELLED)
    assert done.sentence == "Recorded: it happened."


def test_open_waits_are_closed_and_children_go_as_their_workflow_says():
    approval = factories.approval()
    run = Run.objects.get(pk=approval.run_id)
    both = [
        factories.operation(
            run, Kind.CHILD, OpStatus.OPEN, name="parcel", children=1, request={"orphans": orphans}
        )
        for orphans in ("cancel", "leave")
    ]
    factories.run(Status.QUEUED, parent_id=run.pk, parent_operation_id=both[0].pk, child_index=0)
    assert "A child run that has not ended is cancelled too." in services.preview_kill(run).sentence
    killed(run)
    approval.refresh_from_db()
    assert approval.state == Approval.State.VOID
    assert list(
        Operation.objects.filter(pk__in=[b.pk for b in both]).order_by("id").values_list("status", "rest")
    ) == [
        (OpStatus.CLOSED, Rest.CANCEL),
        (OpStatus.CLOSED, ""),
    ]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_what_has_ended_cannot_be_killed(status):
    with pytest.raises(StateMismatch, match=status):
        killed(factories.run(status))


def test_a_reason_is_needed():
    with pytest.raises(Invalid, match="say why"):
        killed(factories.run(), reason=" ")


@pytest.mark.parametrize("who", [factories.operator, factories.support, factories.stranger])
def test_a_wrong_role_kills_nothing(who):
    run = factories.run()
    with pytest.raises(NotAllowed):
        services.kill(who(), run.pk, reason="x")
    run.refresh_from_db()
    assert run.status == Status.QUEUED


def test_a_stale_page_kills_nothing():
    run = factories.run()
    with pytest.raises(Stale):
        killed(run, seen_version=run.event_seq - 1)
