"""What workers do for a bulk: choosing, looking, using the verb, pacing, standing still; each turn as a worker makes it."""

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection, transaction

from runs import clock, services
from runs.bulk.selection import Filter
from runs.errors import Invalid
from runs.lifecycle import Actor
from runs.models import AuditEvent, Bulk, BulkItem, Event, Run
from runs.models.operation import Kind, OpStatus
from runs.services import bulk, bulk_work
from runs.states import FailureKind, Status
from tests import factories
from tests.races import Caller, wait_until_blocked

pytestmark = pytest.mark.django_db


def made(actor: Actor, verb: str = "retry", **given: Any) -> Bulk:
    """A bulk that is being counted."""
    pace = {name: given.pop(name) for name in ("rate", "canary") if name in given}
    return bulk.create_bulk(actor, verb, Filter(**given), name="Outage", reason="It is over", **pace).bulk


def work(of: Bulk, *, minutes: float = 0) -> Bulk:
    """Turns until nothing more can be done at this moment, or within these minutes."""
    while True:
        pause = bulk_work.turn(of.pk)
        if pause > minutes * 60:
            break
        if pause:
            clock.shift(timedelta(seconds=pause))
            minutes -= pause / 60
    of.refresh_from_db()
    return of


def ready(actor: Actor, verb: str = "retry", **given: Any) -> Bulk:
    return work(made(actor, verb, **given))


def running(actor: Actor, **given: Any) -> Bulk:
    """A bulk whose first run is done and looked at."""
    of = ready(actor, canary=1, **given)
    bulk.start_bulk(actor, of.pk)
    work(of)
    bulk.continue_bulk(actor, of.pk)
    of.refresh_from_db()
    return of


def states(of: Bulk) -> list[str]:
    return list(BulkItem.objects.filter(bulk=of).order_by("place").values_list("state", flat=True))


def retried(run: Run) -> int:
    return Event.objects.filter(run_id=run.pk, kind="retried").count()


def end(run: Run, status: Status) -> None:
    """A worker takes the run and ends it so."""
    rows = Run.objects.filter(pk=run.pk)
    rows.update(status="running", worker_id=factories.worker().pk, wake_at=clock.now(), sort_at=None)
    kind = FailureKind.EXHAUSTED if status == Status.FAILED else ""
    rows.update(
        status=status, failure_kind=kind, finished_at=clock.now(), worker_id=None, wake_at=None, sort_at=None
    )


# --- choosing ----------------------------------------------------------------------------------------------------------


def test_all_that_match_are_chosen_oldest_first_and_no_other() -> None:
    failed = [factories.run(Status.FAILED) for _ in range(3)]
    factories.run(Status.COMPLETED)
    factories.run(Status.FAILED, failure_kind=FailureKind.DECLARED)
    factories.run(Status.FAILED, step="ship")
    of = ready(factories.support(), workflow="parcel", step="pack", failure_kind="exhausted")
    chosen = BulkItem.objects.filter(bulk=of).order_by("place").values_list("place", "run_id")
    assert list(chosen) == [(number, run.pk) for number, run in enumerate(failed, start=1)]
    assert (of.status, of.total, of.looked, of.out) == ("ready", 3, 3, 0)


def test_what_is_chosen_is_the_same_whatever_the_size_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.bulk.selection.WINDOW", 2)
    waiting = {factories.run(status).pk for status in (Status.WAITING, Status.QUEUED, Status.RETRYING) * 3}
    of = ready(factories.support(), "cancel", workflow="parcel")
    assert set(BulkItem.objects.filter(bulk=of).values_list("run_id", flat=True)) == waiting
    assert of.total == 9


def test_a_run_that_is_created_or_fails_later_does_not_join() -> None:
    factories.run(Status.FAILED)
    of = made(factories.support())
    clock.shift(timedelta(seconds=1))
    factories.run(Status.FAILED)
    work(of)
    factories.run(Status.FAILED)
    assert of.total == 1


def test_dead_letters_of_a_tool_are_those_that_it_ended() -> None:
    by_tool, by_code = factories.run(Status.FAILED), factories.run(Status.FAILED)
    factories.operation(by_tool, status=OpStatus.FAILED, name="book_courier")
    factories.operation(by_code, Kind.QUERY, name="book_courier")
    of = ready(factories.support(), tool="book_courier")
    assert list(BulkItem.objects.filter(bulk=of).values_list("run_id", flat=True)) == [by_tool.pk]


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({"subject": "order 7"}, 1),
        ({"queue": "slow"}, 1),
        ({"q": "order 1042"}, 2),
        ({"created_from": "2020-01-01T00:00", "created_to": "2020-01-03"}, 1),
        ({"failed_from": "2020-01-01T00:00+00:00", "failed_to": "2020-01-03T00:00"}, 1),
        ({"failed_to": "2020-01-01T00:00"}, 0),
    ],
)
def test_each_part_of_a_filter_narrows(given: dict[str, str], number: int) -> None:
    factories.run(Status.FAILED, subject="order 7")
    factories.run(Status.FAILED, queue="slow")
    old = factories.run(Status.FAILED)
    Run.objects.filter(pk=old.pk).update(created_at="2020-01-02T00:00Z", finished_at="2020-01-02T12:00Z")
    assert ready(factories.support(), **given).total == number


def test_where_nothing_matches_it_is_done_at_once_and_says_so() -> None:
    of = ready(factories.support())
    assert (of.status, of.said, of.total) == ("done", "No run matched", 0)


# --- the dry run -------------------------------------------------------------------------------------------------------


def test_the_dry_run_changes_nothing_and_says_for_each_run_what_the_verb_itself_says() -> None:
    fine = factories.run(Status.FAILED)
    late = factories.run(Status.FAILED, deadline_at=clock.now() - timedelta(hours=1))
    before = list(Run.objects.order_by("pk").values())
    of = ready(factories.support())
    assert list(Run.objects.order_by("pk").values()) == before
    assert not Event.objects.exclude(kind="started").exists()
    looked = {item.run_id: (item.state, item.look) for item in BulkItem.objects.filter(bulk=of)}
    assert looked[fine.pk] == ("waiting", services.preview_retry(fine).sentence)
    assert looked[late.pk][0] == "out"
    assert looked[late.pk][1].startswith("Its deadline passed at …, so it would fail again at once")
    assert (of.status, of.out, of.left) == ("ready", 1, 1)


def test_of_many_runs_some_are_looked_at_evenly_and_it_is_known_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_work, "LOOKS", 4)
    for _ in range(10):
        factories.run(Status.FAILED)
    of = ready(factories.support())
    looked = BulkItem.objects.filter(bulk=of).exclude(look="").order_by("place")
    assert list(looked.values_list("place", flat=True)) == [1, 3, 6, 8]
    assert (of.total, of.looked, of.to_look) == (10, 4, 4)


def test_where_no_run_is_eligible_there_is_nothing_to_start() -> None:
    factories.run(Status.FAILED, deadline_at=clock.now() - timedelta(hours=1))
    of = ready(factories.support())
    assert (of.status, of.said) == ("done", "No run is eligible")


# --- using the verb ----------------------------------------------------------------------------------------------------


def test_the_first_runs_go_and_then_it_waits_for_a_person_however_long() -> None:
    runs = [factories.run(Status.FAILED) for _ in range(8)]
    support = factories.support()
    of = ready(support)
    bulk.start_bulk(support, of.pk, rate=6000)
    work(of, minutes=5)
    assert (of.status, of.done, of.left) == ("review", 5, 3)
    assert [retried(run) for run in runs] == [1] * 5 + [0] * 3
    bulk.continue_bulk(support, of.pk)
    work(of, minutes=5)
    assert (of.status, of.done, of.left) == ("done", 8, 0)
    assert [retried(run) for run in runs] == [1] * 8


def test_each_run_has_the_persons_name_and_the_bulks_reason_in_its_history() -> None:
    run, support = factories.run(Status.FAILED), factories.support("sam")
    of = ready(support)
    bulk.start_bulk(support, of.pk)
    work(of)
    event = Event.objects.get(run_id=run.pk, kind="retried")
    assert (event.actor, event.reason) == ("sam", "Outage: It is over")
    kinds = list(AuditEvent.objects.order_by("id").values_list("kind", "target"))
    assert kinds == [(kind, f"bulk {of.pk}") for kind in ("bulk_made", "bulk_started", "bulk_done")]


def test_a_run_that_changed_since_it_was_chosen_is_skipped() -> None:
    changed, other = factories.run(Status.FAILED), factories.run(Status.FAILED)
    support = factories.support()
    of = ready(support)
    services.retry(support, changed.pk)
    end(changed, Status.FAILED)
    bulk.start_bulk(support, of.pk, rate=6000)
    work(of, minutes=1)
    assert states(of) == ["skipped", "done"]
    assert (retried(changed), retried(other)) == (1, 1)
    assert "changed since" in BulkItem.objects.get(bulk=of, place=1).said


def test_a_run_that_the_verb_refuses_keeps_its_sentence_and_the_rest_goes_on() -> None:
    soon = clock.now() + timedelta(minutes=5)
    factories.run(Status.FAILED, deadline_at=soon)
    factories.run(Status.FAILED)
    support = factories.support()
    of = ready(support)
    clock.shift(timedelta(minutes=6))
    bulk.start_bulk(support, of.pk, rate=6000)
    work(of, minutes=1)
    assert states(of) == ["refused", "done"]
    assert "its deadline passed" in BulkItem.objects.get(bulk=of, place=1).said
    assert (of.status, of.done, of.refused) == ("done", 1, 1)


def test_a_cancel_is_for_runs_in_the_status_they_were_chosen_by() -> None:
    still, moved = factories.run(Status.WAITING), factories.run(Status.WAITING)
    support = factories.support()
    of = ready(support, "cancel", status="waiting")
    services.force_resume(support, still.pk)  # an event, but it still waits
    services.cancel(support, moved.pk)
    bulk.start_bulk(support, of.pk, rate=6000)
    work(of, minutes=1)
    assert states(of) == ["done", "skipped"]
    still.refresh_from_db()
    assert still.status == Status.CANCELLED


def test_what_became_of_the_runs_afterwards_is_counted() -> None:
    runs = [factories.run(Status.FAILED) for _ in range(4)]
    support = factories.support()
    of = ready(support)
    bulk.start_bulk(support, of.pk, rate=6000)
    work(of, minutes=1)
    end(runs[0], Status.COMPLETED)
    end(runs[1], Status.FAILED)
    clock.shift(timedelta(seconds=5))
    bulk_work.turn(of.pk)
    of.refresh_from_db()
    assert (of.status, of.done, of.completed, of.failed, of.under_way) == ("done", 4, 1, 1, 2)
    ended = BulkItem.objects.filter(bulk=of).order_by("place").values_list("ended", flat=True)
    assert list(ended) == ["completed", "failed", "", ""]


# --- pace --------------------------------------------------------------------------------------------------------------


def test_the_rate_is_kept_by_the_clock_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_work, "ROOM", 100)
    for _ in range(20):
        factories.run(Status.FAILED)
    of = running(factories.support(), rate=6)
    before, of = of.done, work(of, minutes=2)
    assert 11 <= of.done - before <= 13


def test_it_leaves_the_queue_to_others_where_many_runs_are_due() -> None:
    for _ in range(3):
        factories.run(Status.FAILED)
    of = running(factories.support(), rate=6000)
    others = [factories.run(Status.QUEUED) for _ in range(bulk_work.ROOM)]
    work(of)
    assert (of.done, of.said) == (
        1,
        "Waits for room: 10 runs or more are due in queue default, and those go first",
    )
    for run in others:
        end(run, Status.COMPLETED)
    work(of, minutes=1)
    assert (of.done, of.status, of.said) == (3, "done", "")


# --- people ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda user: User.objects.filter(pk=user).update(is_active=False),
            "sam, for whom it acted, is switched off",
        ),
        (lambda user: User.objects.get(pk=user).groups.clear(), "does not have the permission"),
    ],
)
def test_it_pauses_and_says_so_when_the_person_may_no_more(change: Any, said: str) -> None:
    for _ in range(3):
        factories.run(Status.FAILED)
    support = factories.support("sam")
    of = running(support, rate=6000)
    change(support.id)
    work(of, minutes=1)
    assert (of.status, of.paused_from, of.done) == ("paused", "running", 1)
    assert said in of.said
    assert AuditEvent.objects.filter(kind="bulk_paused", actor="bulk", reason=of.said).exists()

    # Somebody else takes it over: it acts with that person's permissions from then on.
    other = factories.admin("ada")
    bulk.resume_bulk(other, of.pk)
    work(of, minutes=1)
    assert (of.status, of.done, of.acts_for_name) == ("done", 3, "ada")


def test_whoever_resumes_it_its_runs_are_chosen_as_whoever_made_it_sees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runs.bulk.selection.WINDOW", 1)
    for _ in range(3):
        factories.run(Status.FAILED, reason="the red one broke")
    of = made(factories.support("sam"), q="red one")
    bulk_work.turn(of.pk)
    bulk.pause_bulk(factories.support(), of.pk)
    blind = factories.admin("bea")
    assert isinstance(blind.user, User)
    group = Group.objects.create(name="blind")
    codenames = ["view_run", "bulk", "retry_run"]
    group.permissions.set(Permission.objects.filter(codename__in=codenames))
    blind.user.groups.set([group])
    bulk.resume_bulk(Actor.of(User.objects.get(pk=blind.user.pk)), of.pk)
    work(of)
    assert (of.total, of.status, of.acts_for_name, of.started_by_name) == (3, "ready", "bea", "sam")


def test_it_pauses_while_it_chooses_when_whoever_made_it_may_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.bulk.selection.WINDOW", 1)
    for _ in range(3):
        factories.run(Status.FAILED)
    sam = factories.support("sam")
    of = made(sam)
    bulk_work.turn(of.pk)
    bulk.pause_bulk(sam, of.pk)
    bulk.resume_bulk(factories.admin("ada"), of.pk)
    User.objects.filter(username="sam").update(is_active=False)
    work(of)
    assert (of.status, of.chosen) == ("paused", False)
    assert of.said == "sam, as whom its runs are chosen, is switched off"


def test_an_error_that_nobody_foresaw_stands_it_still_and_touches_no_further_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(3):
        factories.run(Status.FAILED)
    of = running(factories.support(), rate=6000)

    def broken(*args: Any) -> None:
        raise LookupError("the step is gone")

    monkeypatch.setattr(bulk_work, "apply", broken)
    work(of, minutes=1)
    assert (of.status, of.done) == ("paused", 1)
    assert "LookupError: the step is gone" in of.said


def test_only_bulks_with_something_to_do_are_looked_at() -> None:
    assert bulk_work.at_work() == []
    factories.run(Status.FAILED)
    of = made(factories.support())
    assert bulk_work.at_work() == [of.pk]
    work(of)
    assert bulk_work.at_work() == []
    bulk_work.tick(1, sleep=lambda pause: pytest.fail("there is nothing to wait for"))


def test_a_second_worker_leaves_it_to_the_first(transactional_db: None) -> None:
    factories.run(Status.FAILED)
    of, pauses = made(factories.support()), []

    def second() -> None:
        pauses.append(bulk_work.turn(of.pk))
        connection.close()

    with transaction.atomic():
        Bulk.objects.select_for_update().get(pk=of.pk)
        other = threading.Thread(target=second)
        other.start()
        other.join(10)
    assert pauses == [bulk_work.BUSY_PAUSE]


@pytest.mark.django_db(transaction=True)
def test_a_form_sent_twice_at_one_instant_makes_one_bulk() -> None:
    sam, form = factories.support("sam"), uuid.uuid4()

    def send() -> bulk.BulkDone:
        return bulk.create_bulk(sam, "retry", Filter(), name="Outage", reason="It is over", bulk_id=form)

    with transaction.atomic():
        first = send()
        second = Caller(send)
        wait_until_blocked(1)
    second.join()
    assert second.error is None and (first.changed, second.result.changed) == (True, False)
    assert Bulk.objects.get().pk == form and AuditEvent.objects.filter(kind="bulk_made").count() == 1


# --- priority ----------------------------------------------------------------------------------------------------------


def test_all_that_match_are_given_another_priority_and_each_says_so_in_its_history() -> None:
    sam = factories.support("sam")
    runs = [factories.run(Status.QUEUED) for _ in range(3)]
    there = factories.run(Status.WAITING, priority=8)
    busy = factories.run(Status.RUNNING)
    of = work(bulk.create_bulk(sam, "prioritise", Filter(), name="VIP", reason="Promised", priority=8).bulk)
    assert (of.status, of.total, of.out) == (
        "ready",
        4,
        1,
    )  # one has it already; what is executed is not looked for
    bulk.start_bulk(sam, of.pk)
    of = work(of, minutes=5)
    assert (of.status, of.done) == ("done", 3)
    assert {run.priority for run in Run.objects.filter(pk__in=[run.pk for run in runs])} == {8}
    assert Run.objects.get(pk=busy.pk).priority == 0
    reasons = Event.objects.filter(run_id=runs[0].pk, kind="prioritised").values_list("reason", flat=True)
    assert list(reasons) == ["VIP: Promised"]
    assert not Event.objects.filter(run_id=there.pk, kind="prioritised").exists()


@pytest.mark.parametrize(
    ("verb", "priority"), [("prioritise", None), ("prioritise", 10), ("retry", 3), ("retry", 10)]
)
def test_a_priority_belongs_to_its_verb(verb: str, priority: int | None) -> None:
    with pytest.raises(Invalid, match="from 0 to 9"):
        bulk.create_bulk(factories.support(), verb, Filter(), name="a", reason="b", priority=priority)
