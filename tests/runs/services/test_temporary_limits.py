"""Limits that act until a time, and are over by themselves."""

from datetime import timedelta

import pytest
from django.db import transaction

from runs import clock, policies, registry, services
from runs.errors import Invalid, NotAllowed, NotFound, Stale
from runs.models import AuditEvent, Policy, Run
from runs.services import limits
from runs.states import Hold, Status
from tests import factories
from tests.races import Caller, wait_until_blocked

pytestmark = pytest.mark.django_db

STEP = ("step", "parcel/pack")


def in_an_hour():
    return clock.now() + timedelta(hours=1)


def attempts() -> int:
    return policies.for_step(registry.workflow("parcel").steps["pack"], policies.load()).max_attempts


def kinds() -> list[str]:
    return list(AuditEvent.objects.order_by("id").values_list("kind", flat=True))


def test_it_acts_until_its_time_and_not_a_moment_longer_with_no_process_running():
    services.set_limits(factories.admin("ada"), *STEP, max_attempts=6)
    policy = services.set_limits(
        factories.admin("bea"), *STEP, max_attempts=9, until=in_an_hour(), reason="outage"
    )
    assert (policy.max_attempts, policy.revision, attempts()) == (6, 2, 9)
    clock.shift(timedelta(minutes=59, seconds=59))
    assert attempts() == 9
    clock.shift(timedelta(seconds=1))
    assert attempts() == 6


def test_its_end_is_written_down_once_by_the_clock_and_bumps_the_revision():
    services.set_limits(
        factories.admin(), *STEP, max_attempts=9, timeout_s=5.0, until=in_an_hour(), reason="outage"
    )
    assert limits.end_temporary() == 0
    clock.shift(timedelta(hours=1))
    assert limits.end_temporary() == 2
    assert limits.end_temporary() == 0
    event = AuditEvent.objects.latest("id")
    assert (event.kind, event.actor, event.target) == ("limits_ended", "clock", "step parcel/pack")
    assert event.new == {"temporary": {"max_attempts": None, "timeout_s": None}}
    assert event.old is not None and event.old["temporary"]["max_attempts"]["reason"] == "outage"
    policy = Policy.objects.get()
    assert (policy.temporary, policy.revision) == ({}, 2)


def test_runs_that_a_temporary_limit_kept_alive_end_when_it_does():
    services.set_limits(factories.admin(), *STEP, max_attempts=9, until=in_an_hour())
    run = factories.run(Status.RETRYING, failures=6)
    Run.objects.filter(pk=run.pk).update(wake_at=clock.now() + timedelta(days=1), sort_at=clock.now())
    clock.shift(timedelta(hours=1))
    limits.end_temporary()
    run.refresh_from_db()
    assert run.wake_at is not None and run.wake_at <= clock.now()


def test_a_lasting_change_takes_the_place_of_a_temporary_one():
    services.set_limits(factories.admin("ada"), *STEP, max_attempts=9, until=in_an_hour())
    services.set_limits(factories.admin("bea"), *STEP, max_attempts=7)
    assert attempts() == 7
    assert Policy.objects.get().temporary == {}


def test_it_can_be_ended_before_its_time_and_extended():
    person = factories.admin()
    services.set_limits(person, *STEP, max_attempts=9, until=in_an_hour())
    services.set_limits(
        person, *STEP, max_attempts=9, until=clock.now() + timedelta(hours=3), seen_revision=1
    )
    clock.shift(timedelta(hours=2))
    assert attempts() == 9
    services.end_temporary_limit(person, *STEP, "max_attempts", seen_revision=2, reason="over")
    assert attempts() == 5


@pytest.mark.parametrize(
    ("values", "length"),
    [
        ({"max_attempts": 9}, timedelta(seconds=30)),
        ({"max_attempts": 9}, timedelta(days=366)),
        ({"max_attempts": 0}, timedelta(hours=1)),
        ({"max_attempts": 1001}, timedelta(hours=1)),
        ({"rate_count": 5}, timedelta(hours=1)),
        ({"concurrency": 0}, timedelta(hours=1)),
    ],
)
def test_what_no_limit_may_be_is_none_for_a_while_either(values, length):
    with pytest.raises(Invalid):
        services.set_limits(factories.admin(), *STEP, until=clock.now() + length, **values)
    assert not Policy.objects.exists() and not AuditEvent.objects.exists()


def test_retention_cannot_be_changed_for_a_while():
    with pytest.raises(Invalid, match="does not come back"):
        services.set_limits(factories.admin(), "workflow", "parcel", retention_days=1, until=in_an_hour())


def test_a_pause_may_end_by_itself_and_makes_its_runs_due():
    services.pause_scope(factories.admin("ada"), "queue", "default", until=in_an_hour(), reason="moving")
    (pause,) = policies.pauses(policies.load())
    assert (pause.scope, pause.pause_reason) == ("queue", "moving")
    parked = factories.run(held_by=Hold.PAUSED)
    clock.shift(timedelta(hours=1))
    assert policies.pauses(policies.load()) == []
    limits.end_temporary()
    parked.refresh_from_db()
    assert parked.held_by == ""


@pytest.mark.parametrize("scope", ["step", "tool"])
def test_a_step_and_a_tool_cannot_be_paused(scope):
    name = {"step": "parcel/pack", "tool": "book_courier"}[scope]
    with pytest.raises(Invalid):
        services.pause_scope(factories.admin(), scope, name)


@pytest.mark.parametrize(
    ("scope", "name", "values"),
    [
        ("queue", "nowhere", {"concurrency": 3}),
        ("everything", "something", {"concurrency": 3}),
        ("queue", "default", {"max_attempts": 3}),
        ("tool", "book_courier", {"priority": 3}),
        ("workflow", "parcel", {"priority": 10}),
        ("workflow", "parcel", {"rate_count": 5, "rate_period_s": 0}),
    ],
)
def test_a_scope_has_only_the_limits_that_act_in_it(scope, name, values):
    with pytest.raises(Invalid):
        services.set_limits(factories.admin(), scope, name, **values)
    assert not Policy.objects.exists()


# --- reverting -----------------------------------------------------------------------------------------------------------


def newest() -> AuditEvent:
    return AuditEvent.objects.latest("id")


def test_a_revert_is_a_new_change_with_the_old_values():
    person = factories.admin("ada")
    services.set_limits(person, *STEP, max_attempts=8, reason="outage")
    services.set_limits(person, *STEP, max_attempts=3, timeout_s=2.0)
    policy = services.revert_limits(
        factories.admin("bea"), str(newest().pk), seen_revision=2, reason="too low"
    )
    assert (policy.max_attempts, policy.timeout_s, policy.revision) == (8, None, 3)
    event = newest()
    assert (event.kind, event.actor, event.reason) == ("limits_reverted", "bea", "too low")
    services.revert_limits(person, str(event.pk), seen_revision=3)
    assert Policy.objects.get().max_attempts == 3


def test_a_revert_of_a_temporary_limit_ends_it_and_one_whose_time_is_over_does_not_come_back():
    person = factories.admin()
    services.set_limits(person, *STEP, max_attempts=9, until=in_an_hour())
    first = newest()
    services.end_temporary_limit(person, *STEP, "max_attempts")
    ended = newest()
    services.revert_limits(person, str(ended.pk))
    assert attempts() == 9
    services.revert_limits(person, str(first.pk))
    assert attempts() == 5
    clock.shift(timedelta(hours=2))
    services.revert_limits(person, str(ended.pk))
    assert (attempts(), Policy.objects.get().temporary) == (5, {})


def test_a_revert_from_a_stale_page_changes_nothing():
    person = factories.admin("ada")
    services.set_limits(person, *STEP, max_attempts=8)
    change = str(newest().pk)
    services.set_limits(person, *STEP, max_attempts=4)
    with pytest.raises(Stale, match="ada"):
        services.revert_limits(factories.admin(), change, seen_revision=1)
    assert Policy.objects.get().max_attempts == 4


def test_only_a_change_of_limits_can_be_reverted():
    person = factories.admin()
    services.pause_workflow(person, "parcel")
    for change in (str(newest().pk), "00000000-0000-7000-8000-000000000000"):
        with pytest.raises(NotFound):
            services.revert_limits(person, change)


@pytest.mark.parametrize("who", [factories.operator, factories.support, factories.stranger])
def test_a_wrong_role_changes_nothing(who):
    services.set_limits(factories.admin("ada"), *STEP, max_attempts=9, until=in_an_hour())
    change, person = str(newest().pk), who()
    for call in (
        lambda: services.set_limits(person, *STEP, max_attempts=2, until=in_an_hour()),
        lambda: services.end_temporary_limit(person, *STEP, "max_attempts"),
        lambda: services.revert_limits(person, change),
        lambda: services.pause_scope(person, "everything", "all"),
        lambda: services.resume_scope(person, "everything", "all"),
        lambda: services.sort_waiting(person, "parcel"),
    ):
        with pytest.raises(NotAllowed):
            call()
    assert kinds() == ["limits_changed"]


@pytest.mark.django_db(transaction=True)
def test_of_two_admins_at_one_instant_the_second_sees_what_the_first_did():
    ada, bea = factories.admin("ada"), factories.admin("bea")
    services.set_limits(ada, *STEP, max_attempts=8)
    change = str(newest().pk)
    with transaction.atomic():
        services.set_limits(ada, *STEP, seen_revision=1, max_attempts=9, until=in_an_hour())
        second = Caller(lambda: services.revert_limits(bea, change, seen_revision=1))
        wait_until_blocked(1)
    assert isinstance(second.join().error, Stale)
    assert attempts() == 9


@pytest.mark.django_db(transaction=True)
def test_of_two_sweeps_at_one_instant_one_writes_the_end():
    services.set_limits(factories.admin(), *STEP, max_attempts=9, until=in_an_hour())
    clock.shift(timedelta(hours=1))
    with transaction.atomic():
        assert limits.end_temporary() == 1
        other = Caller(limits.end_temporary).join()
    assert (other.error, other.result) == (None, 0)
    assert kinds() == ["limits_changed", "limits_ended"]


# --- what would happen ---------------------------------------------------------------------------------------------------


def effects(preview) -> list[tuple[int, str]]:
    return [(effect.count, effect.text) for effect in preview.effects]


def test_a_raised_retry_limit_tells_whom_it_saves_and_which_dead_letters_could_be_retried():
    for failures in (1, 4, 4):
        factories.run(Status.RETRYING, failures=failures)
    for _ in range(2):
        factories.run(Status.FAILED, failure_kind="exhausted")
    factories.run(Status.FAILED, failure_kind="declared")
    preview = services.preview_set_limits(*STEP, max_attempts=8)
    assert preview.title == "Changes 3 waiting runs"
    assert effects(preview) == [
        (3, "in back-off get 3 more attempts"),
        (2, "of these are on their last attempt, and go on instead of failing"),
        (0, "in back-off have used up the new limit and end now, as exhausted"),
        (2, "could be retried; they stay where they are"),
    ]
    assert preview.effects[-1].url == (
        "/bulk/new?verb=retry&failure_kind=exhausted&workflow=parcel&step=pack"
    )


def test_a_concurrency_limit_tells_how_many_are_under_way_and_how_many_it_frees():
    worker = factories.worker()
    for _ in range(3):
        factories.run(Status.RUNNING, worker_id=worker.pk)
    for _ in range(4):
        factories.run(held_by=Hold.CONCURRENCY, held_key="workflow parcel")
    told = services.preview_set_limits("workflow", "parcel", concurrency=5)
    assert told.title == "Changes 4 runs that are held"
    assert [count for count, _ in effects(told)] == [3, 2, 2]
    low = services.preview_set_limits("workflow", "parcel", concurrency=1)
    assert low.sentence.startswith("2 more are under way than it allows")


def test_a_priority_tells_that_waiting_runs_keep_theirs():
    factories.run()
    factories.run(Status.WAITING)
    told = services.preview_set_limits("workflow", "parcel", priority=4)
    assert effects(told)[0][0] == 2
    services.set_limits(factories.admin(), "workflow", "parcel", priority=4)
    assert services.preview_sort_waiting("parcel").title == "Changes 2 runs"
