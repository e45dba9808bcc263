"""Changing limits, pausing and resuming workflows."""

from datetime import timedelta

import pytest
from django.db import transaction

from runs import clock, services
from runs.errors import Invalid, NotAllowed, Stale
from runs.models import AuditEvent, Policy, Run
from runs.models.operation import Kind, OpStatus
from runs.services import limits
from runs.states import Hold, Status
from tests import factories
from tests.races import Caller, wait_until_blocked

pytestmark = pytest.mark.django_db


def is_due(run: Run) -> bool:
    run.refresh_from_db()
    return run.wake_at is not None and run.wake_at <= clock.now()


def test_a_change_is_stored_with_an_audit_event_of_old_and_new():
    person = factories.admin("ada")
    services.set_limits(person, "step", "parcel/pack", seen_revision=0, max_attempts=8, reason="flaky week")
    policy = services.set_limits(
        person, "step", "parcel/pack", seen_revision=1, max_attempts=3, timeout_s=2.5
    )
    assert (policy.max_attempts, policy.timeout_s, policy.revision, policy.changed_by) == (3, 2.5, 2, "ada")
    first, second = AuditEvent.objects.order_by("id")
    assert (first.reason, first.old, first.new) == ("flaky week", {"max_attempts": None}, {"max_attempts": 8})
    assert second.old == {"max_attempts": 8, "timeout_s": None}
    assert second.target == "step parcel/pack"


def test_a_lowered_limit_wakes_the_runs_that_have_used_it_up_and_no_others():
    spent, fresh = factories.run(Status.RETRYING, failures=3), factories.run(Status.RETRYING, failures=2)
    elsewhere = factories.run(Status.RETRYING, failures=3, step="ship")
    assert "1 of 2 runs" in services.preview_set_limits("step", "parcel/pack", max_attempts=3).sentence
    services.set_limits(factories.admin(), "step", "parcel/pack", max_attempts=3)
    assert is_due(spent)
    assert not is_due(fresh)
    assert not is_due(elsewhere)


def test_a_workflow_limit_does_not_reach_a_step_with_its_own():
    services.set_limits(factories.admin("ada"), "step", "parcel/pack", max_attempts=10)
    own, wide = (
        factories.run(Status.RETRYING, failures=3),
        factories.run(Status.RETRYING, failures=3, step="ship"),
    )
    assert "1 of 2 runs" in services.preview_set_limits("workflow", "parcel", max_attempts=3).sentence
    services.set_limits(factories.admin("bea"), "workflow", "parcel", max_attempts=3)
    assert "No run ends" in services.preview_set_limits("workflow", "parcel", max_attempts=3).sentence
    assert is_due(wide)
    assert not is_due(own)


def test_a_tool_limit_wakes_the_runs_whose_operation_has_used_it_up():
    run = factories.run(Status.RETRYING)
    factories.operation(run, Kind.EFFECT, OpStatus.RETRY, tries=2)
    services.set_limits(factories.admin(), "tool", "book_courier", max_attempts=2)
    assert is_due(run)


def test_clearing_gives_the_limit_back_to_the_code():
    services.set_limits(factories.admin("ada"), "step", "parcel/pack", max_attempts=8)
    run = factories.run(Status.RETRYING, failures=5)
    policy = services.clear_limits(factories.admin("bea"), "step", "parcel/pack", seen_revision=1)
    assert policy.max_attempts is None
    assert is_due(run)


def test_many_runs_are_woken_in_batches(monkeypatch):
    monkeypatch.setattr(limits, "BATCH", 2)
    runs = [factories.run(Status.RETRYING, failures=3) for _ in range(5)]
    services.set_limits(factories.admin(), "step", "parcel/pack", max_attempts=1)
    assert all(is_due(run) for run in runs)


@pytest.mark.parametrize(
    ("scope", "name", "values"),
    [
        ("step", "parcel/fly", {"max_attempts": 3}),
        ("workflow", "parcels", {"max_attempts": 3}),
        ("tool", "teleport", {"max_attempts": 3}),
        ("planet", "earth", {"max_attempts": 3}),
        ("step", "parcel/pack", {"max_attempts": 0}),
        ("step", "parcel/pack", {"max_attempts": 1001}),
        ("step", "parcel/pack", {"timeout_s": -1.0}),
        ("step", "parcel/pack", {"speed": 3}),
    ],
)
def test_what_no_code_declares_or_no_limit_may_be_is_refused(scope, name, values):
    with pytest.raises(Invalid):
        services.set_limits(factories.admin(), scope, name, **values)
    assert not Policy.objects.exists() and not AuditEvent.objects.exists()


@pytest.mark.parametrize("who", [factories.operator, factories.support, factories.stranger])
def test_a_wrong_role_changes_nothing(who):
    person = who()
    for change in (
        lambda: services.set_limits(person, "step", "parcel/pack", max_attempts=1),
        lambda: services.clear_limits(person, "step", "parcel/pack"),
        lambda: services.pause_workflow(person, "parcel"),
        lambda: services.resume_workflow(person, "parcel"),
    ):
        with pytest.raises(NotAllowed):
            change()
    assert not Policy.objects.exists()


def test_a_stale_page_changes_nothing():
    services.set_limits(factories.admin("ada"), "step", "parcel/pack", max_attempts=8)
    for seen in (0, 2):
        with pytest.raises(Stale, match="ada"):
            services.set_limits(factories.admin(), "step", "parcel/pack", seen_revision=seen, max_attempts=1)


def test_a_pause_is_kept_with_its_reason_and_lifting_it_makes_parked_runs_due():
    services.pause_workflow(factories.admin("ada"), "parcel", seen_revision=0, reason="provider is down")
    policy = Policy.objects.get()
    assert (policy.paused, policy.pause_reason) == (True, "provider is down")
    parked = factories.run(held_by=Hold.PAUSED, priority=2)
    other = factories.run(held_by=Hold.NO_CAPABLE_WORKER)
    assert services.preview_resume_workflow("parcel").sentence.startswith("1 parked runs")
    assert "0 running attempts" in services.preview_pause_workflow("parcel").sentence
    services.resume_workflow(factories.admin("bea"), "parcel", seen_revision=1)
    assert is_due(parked)
    assert parked.held_by == ""
    assert parked.sort_at is not None and parked.wake_at is not None
    assert parked.wake_at - parked.sort_at == timedelta(minutes=2)
    other.refresh_from_db()
    assert other.held_by == Hold.NO_CAPABLE_WORKER
    assert list(AuditEvent.objects.order_by("id").values_list("kind", flat=True)) == [
        "workflow_paused",
        "workflow_resumed",
    ]


@pytest.mark.django_db(transaction=True)
def test_of_two_first_changes_at_one_instant_the_second_is_told():
    ada, bea = factories.admin("ada"), factories.admin("bea")
    with transaction.atomic():
        services.set_limits(ada, "step", "parcel/pack", seen_revision=0, max_attempts=8)
        second = Caller(
            lambda: services.set_limits(bea, "step", "parcel/pack", seen_revision=0, max_attempts=3)
        )
        wait_until_blocked(1)
    assert isinstance(second.join().error, Stale)
    assert Policy.objects.get().max_attempts == 8


@pytest.mark.django_db(transaction=True)
def test_lifting_a_pause_waits_for_a_run_that_somebody_holds():
    from tests.races import run_held

    services.pause_workflow(factories.admin("ada"), "parcel")
    parked = factories.run(held_by=Hold.PAUSED)
    admin = factories.admin("bea")
    with run_held(parked.pk):
        lifting = Caller(lambda: services.resume_workflow(admin, "parcel"))
        wait_until_blocked(1)
    assert lifting.join().error is None
    assert is_due(parked)
