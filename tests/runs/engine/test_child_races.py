"""Children that end at one instant, parents that begin to wait just then, workers that die in between: no wake-up is lost."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from runs import lifecycle
from runs.engine.database import Database
from runs.engine.followups import FollowUps
from runs.engine.worker import RunWorker
from runs.errors import VerbError
from runs.kin import children, families
from runs.models import Attempt, Run
from runs.services import cancel
from runs.states import Status
from tests import factories
from tests.races import Caller, run_held, wait_until_blocked
from tests.races.stage import deadlocks
from tests.runs.engine.conftest import running_worker, until
from tests.runs.engine.family import (
    as_running,
    begin,
    ended,
    family,
    is_due,
    parked,
    silently_ended,
    statuses,
    waiting,
)
from tests.runs.engine.flows import world
from tests.runs.engine.test_races import Racers


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


@pytest.fixture
def no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody finds later what was not said at once."""
    monkeypatch.setattr(families.Sweep, "turn", lambda self: 0)


def play_last_two(rounds: int) -> None:
    racers, before = Racers(2), deadlocks()
    for n in range(rounds):
        run, _, (first, second) = parked(2)
        status = (Status.CANCELLED, Status.FAILED)[n % 2]
        as_running(first)
        as_running(second)
        told = racers.round(lambda: ended(first, status), lambda: ended(second, status))  # noqa: B023
        assert told == [None, None]
        assert is_due(run), f"round {n}"
    racers.end()
    assert deadlocks() == before


def test_twenty_times_the_last_two_children_end_at_one_instant(transactional_db: None) -> None:
    play_last_two(20)


@pytest.mark.long
def test_a_thousand_times_the_last_two_children_end_at_one_instant(transactional_db: None) -> None:
    play_last_two(1000)


def test_two_commits_before_two_looks_and_two_looks_before_the_lock(transactional_db: None) -> None:
    """Both children are committed, both look, both find the wait over: the parent is made due once, and stays so."""
    run, wait, (first, second) = parked(2)
    silently_ended(first)
    silently_ended(second)
    with run_held(run.pk):
        callers = [
            Caller(lambda: families.tell_parent(wait.pk, 0)),
            Caller(lambda: families.tell_parent(wait.pk, 1)),
        ]
        wait_until_blocked(2)
    for caller in callers:
        assert caller.join().error is None
    assert is_due(run)


def test_one_of_two_children_does_not_touch_its_parent(transactional_db: None) -> None:
    run, wait, (first, _) = parked(2)
    silently_ended(first)
    with run_held(run.pk):
        # It would block, and never come back before the lock is given up.
        assert Caller(lambda: families.tell_parent(wait.pk, 0)).join().error is None
    assert not is_due(run)


def test_a_child_that_ends_while_its_parent_suspends_waits_for_it_and_wakes_it(
    transactional_db: None,
) -> None:
    run, wait, (only,) = parked(1)
    as_running(run)
    with transaction.atomic():
        parent = lifecycle.lock_run(run.pk)
        assert not children.enough(wait)
        assert Caller(lambda: silently_ended(only)).join().error is None
        late = Caller(lambda: families.tell_parent(wait.pk, 0))
        wait_until_blocked(1)
        parent.status, parent.worker_id, parent.wake_at, parent.sort_at = Status.WAITING, None, None, None
        parent.attempt_started_at = None
        parent.save()
    assert late.join().error is None
    assert is_due(run)


def test_a_running_parent_is_left_alone_and_looks_itself(transactional_db: None) -> None:
    run, wait, (only,) = parked(1)
    as_running(run)
    run.refresh_from_db()
    before = run.wake_at
    silently_ended(only)
    families.tell_parent(wait.pk, 0)
    run.refresh_from_db()
    assert (run.wake_at, run.status) == (before, "running")
    with transaction.atomic():
        lifecycle.lock_run(run.pk)
        assert children.enough(wait)


def test_a_paused_parent_stays_parked(transactional_db: None) -> None:
    run, wait, (only,) = parked(1)
    Run.objects.filter(pk=run.pk).update(held_by="paused")
    silently_ended(only)
    families.tell_parent(wait.pk, 0)
    assert (families.Sweep().turn(), is_due(run)) == (0, False)


# --- hints that are lost --------------------------------------------------------------------------------------------------


def test_a_sweep_finds_the_parent_that_nobody_told(transactional_db: None) -> None:
    run, _, made = parked(3)
    sweep = families.Sweep()
    for one in made:
        assert (sweep.turn(), is_due(run)) == (0, False)
        silently_ended(one)
    assert sweep.turn() == 1
    assert is_due(run)
    assert sweep.turn() == 0


def test_a_sweep_comes_round_to_every_page(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "PAGE", 2)
    made = [parked(1) for _ in range(5)]
    sweep = families.Sweep()
    silently_ended(made[4][2][0])
    silently_ended(made[0][2][0])
    assert [sweep.turn() for _ in range(4)] == [1, 0, 1, 0]
    assert [is_due(run) for run, _, _ in made] == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("wanted", "ends", "over"),
    [
        (1, "f", [False]),
        (1, "fc", [False, True]),
        (2, "fcf", [False, False, True]),
        (2, "cc", [False, True]),
        (3, "cf", [False, True]),
    ],
)
def test_a_sweep_knows_how_many_are_enough(
    wanted: int, ends: str, over: list[bool], transactional_db: None
) -> None:
    run, _, made = parked(3, wanted=wanted)
    seen = []
    for one, letter in zip(made, ends, strict=False):
        silently_ended(one, Status.COMPLETED if letter == "c" else Status.FAILED)
        families.Sweep().turn()
        seen.append(is_due(run))
    assert seen == over


def test_follow_ups_that_are_lost_cost_a_sweep(
    transactional_db: None, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FollowUps, "_ask", lambda self, wait_id, place: None)
    with running_worker():
        run = until(begin("f_parent", "ok ok"))
    assert run.result["results"] == [0, 1]
    assert world.ledger["joined"] == 1


@pytest.fixture
def follow_ups(transactional_db: None) -> Iterator[FollowUps]:
    database = Database(2)
    made = FollowUps(database)
    yield made
    database.close()


def test_what_is_left_is_asked_about_when_a_worker_stops(follow_ups: FollowUps) -> None:
    run, wait, (only,) = parked(1)
    silently_ended(only)
    follow_ups.child_ended(wait.pk, 0)
    follow_ups.start()
    follow_ups.close()
    assert is_due(run)


def test_a_wait_that_cannot_be_asked_about_keeps_no_other_from_it(
    follow_ups: FollowUps, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, broken, _), (second, sound, _) = parked(1), parked(1)
    for run in (first, second):
        silently_ended(family(run)[0])
    real = families.wake_parent

    def wake(parent_id: Any, wait_id: Any) -> bool:
        if wait_id == broken.pk:
            raise RuntimeError("a row that nobody expected")
        return real(parent_id, wait_id)

    monkeypatch.setattr(families, "wake_parent", wake)
    follow_ups.child_ended(broken.pk, 0)
    follow_ups.child_ended(sound.pk, 0)
    follow_ups.start()
    follow_ups.close()
    assert (is_due(first), is_due(second)) == (False, True)


# --- real workers -----------------------------------------------------------------------------------------------------------


def test_no_parent_is_forgotten_without_a_sweep(transactional_db: None, quick: None, no_sweep: None) -> None:
    with running_worker(slots=6), running_worker(slots=6):
        many = [begin("f_parent", "ok ok") for _ in range(20)] + [begin("f_parent", "ok " * 60)]
        for run in many:
            assert until(run, timeout=60).status == "completed", run.reason
    assert world.ledger["joined"] == 21
    assert {statuses(run)[0] for run in many} == {"completed"}


def test_atomic_children_tell_their_parent_as_well(
    transactional_db: None, quick: None, no_sweep: None
) -> None:
    with running_worker():
        assert until(begin("f_twice")).status == "completed"


def play_cancels(rounds: int) -> None:
    who, racers, before = factories.support(), Racers(2), deadlocks()
    endings = set()
    for n in range(rounds):
        run = waiting(begin("f_parent", "wait wait"), "waiting", "waiting")
        first, second = family(run)
        silently = (first, second)[n % 2]

        def stop() -> Any:
            return cancel(who, run.pk, reason="enough")  # noqa: B023

        def end() -> Any:
            return cancel(who, silently.pk, reason="not this one")  # noqa: B023

        cancel(who, (second, first)[n % 2].pk, reason="nor that one")
        told = racers.round(stop, end)
        unexpected = [t for t in told if isinstance(t, Exception) and not isinstance(t, VerbError)]
        assert not unexpected
        endings.add(until(run).status)
    racers.end()
    assert deadlocks() == before
    assert endings <= {"cancelled", "completed"}


def test_cancel_races_the_end_of_the_last_child(worker: RunWorker) -> None:
    play_cancels(20)


def test_a_parent_holds_no_slot_while_its_children_work(transactional_db: None, quick: None) -> None:
    """One slot for a parent, its child and its grandchild: it goes round only because who waits holds none."""
    with running_worker(slots=1):
        run = until(begin("f_parent", "ok ok ok"), timeout=30)
    assert run.status == "completed"
    assert list(Attempt.objects.filter(run_id=run.pk).values_list("outcome", flat=True)) == [
        "suspended",
        "succeeded",
    ]
