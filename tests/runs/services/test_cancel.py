"""Cancelling a run."""

import pytest

from runs import services
from runs.errors import NotAllowed, NotFound, Stale, StateMismatch
from runs.models import Event
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.states import AttentionKind, Hold, Status
from tests import factories
from tests.runs.engine.family import parked, silently_ended

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("status", [Status.QUEUED, Status.WAITING, Status.RETRYING, Status.ATTENTION])
def test_a_run_that_nobody_executes_is_cancelled_at_once(status):
    run = factories.run(status)
    done = services.cancel(
        factories.support("sam"), run.pk, seen_version=run.event_seq, reason="ordered twice"
    )
    run.refresh_from_db()
    assert done.changed
    assert (run.status, run.cancel_requested_by, run.wake_at) == (Status.CANCELLED, "sam", None)
    kinds = list(Event.objects.filter(run_id=run.pk).order_by("seq").values_list("kind", flat=True))
    assert kinds == ["started", "cancel_requested", "cancelled"]
    assert Event.objects.get(run_id=run.pk, kind="cancel_requested").reason == "ordered twice"


def test_its_open_waits_are_closed():
    wait = factories.signal_wait()
    services.cancel(factories.support(), wait.run_id)
    wait.refresh_from_db()
    assert wait.status == OpStatus.CLOSED


def test_a_parked_run_is_cancelled_too():
    run = factories.run(held_by=Hold.PAUSED)
    services.cancel(factories.support(), run.pk)
    run.refresh_from_db()
    assert (run.status, run.held_by) == (Status.CANCELLED, "")


def test_a_running_run_is_told_and_keeps_its_worker():
    run = factories.run(Status.RUNNING)
    done = services.cancel(factories.support(), run.pk)
    before = run.wake_at
    run.refresh_from_db()
    assert (run.status, run.wake_at) == (Status.RUNNING, before)
    assert run.cancel_requested_at is not None
    assert "next operation" in done.sentence


@pytest.mark.parametrize("status", [Status.QUEUED, Status.WAITING, Status.RETRYING])
def test_a_pending_effect_is_settled_first(status):
    run = factories.run(status)
    factories.operation(run, Kind.EFFECT, OpStatus.PENDING)
    services.cancel(factories.support(), run.pk)
    run.refresh_from_db()
    assert run.status == status
    assert run.cancel_requested_at is not None and run.sort_at is not None


def test_an_effect_in_doubt_keeps_the_run_in_attention():
    pending = factories.doubt()
    done = services.cancel(factories.support(), pending.run_id)
    pending.run.refresh_from_db()
    assert (pending.run.status, pending.run.attention_kind) == (Status.ATTENTION, AttentionKind.IN_DOUBT)
    assert "answered" in done.sentence


def test_effects_that_can_be_undone_are_undone_first():
    run = factories.run(Status.WAITING)
    factories.operation(run, compensate_with="cancel_courier")
    factories.operation(run, name="print_label")
    preview = services.preview_cancel(run)
    services.cancel(factories.support(), run.pk)
    run.refresh_from_db()
    assert (run.status, run.compensating, run.resume_step) == (Status.CANCELLING, True, "pack")
    assert [str(line) for line in preview.kept] == ["print_label"]
    assert [str(line) for line in preview.again] == ["book_courier"]
    assert "undone" in preview.sentence


@pytest.mark.parametrize("status", [Status.FAILED, Status.COMPLETED])
def test_a_finished_run_cannot_be_cancelled(status):
    run = factories.run(status)
    with pytest.raises(StateMismatch, match=status):
        services.cancel(factories.support(), run.pk)


def test_an_unknown_run_is_said_to_be_unknown():
    with pytest.raises(NotFound):
        services.cancel(factories.support(), new_id())


@pytest.mark.parametrize("who", [factories.operator, factories.stranger])
def test_a_wrong_role_cancels_nothing(who):
    run = factories.run()
    with pytest.raises(NotAllowed):
        services.cancel(who(), run.pk)
    run.refresh_from_db()
    assert run.cancel_requested_at is None


def test_a_system_cancels_nothing():
    with pytest.raises(NotAllowed):
        services.cancel(factories.SYSTEM, factories.run().pk)


def test_a_stale_page_cancels_nothing():
    run = factories.run()
    with pytest.raises(Stale):
        services.cancel(factories.support(), run.pk, seen_version=run.event_seq - 1)


def test_a_second_cancel_is_answered_without_change_even_from_the_old_page():
    run = factories.run(Status.RUNNING)
    services.cancel(factories.support("sam"), run.pk, seen_version=run.event_seq)
    again = services.cancel(factories.admin(), run.pk, seen_version=run.event_seq)
    assert not again.changed and "sam" in again.sentence
    assert Event.objects.filter(run_id=run.pk, kind="cancel_requested").count() == 1


def test_it_says_what_becomes_of_the_child_runs():
    run, _, made = parked(5)
    silently_ended(made[0])
    assert "4 child runs that have not ended are cancelled too." in services.preview_cancel(run).sentence
    assert "no longer waited for" not in services.preview_cancel(run).sentence
    left, _, _ = parked(1, orphans="leave")
    assert services.cancel(factories.support(), left.pk).sentence.endswith(
        "A child run that has not ended goes on."
    )


def test_child_runs_are_counted_up_to_a_limit(monkeypatch):
    monkeypatch.setitem(services.preview_cancel.__globals__, "CHILDREN_LIMIT", 2)
    run, _, _ = parked(4)
    assert "More than 2 child runs that have not ended" in services.preview_cancel(run).sentence
