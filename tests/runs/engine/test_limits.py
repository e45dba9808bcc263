"""Concurrency, rates, priority and pauses as they act on runs: never more at once than a limit says, and nobody forgotten."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
from django.db import connection, transaction

from runs import clock, policies, registry
from runs.engine import leases, limited
from runs.engine.database import Database
from runs.engine.worker import RunWorker
from runs.lifecycle import Actor
from runs.models import Attempt, Limit, LimitedCall, Operation, Run
from runs.services import cancel, pause_scope, resume_scope, set_limits, sort_waiting, start
from runs.states import Hold, Outcome, Status
from tests import factories
from tests.harness.waiting import wait_until
from tests.races import Caller, wait_until_blocked
from tests.runs.engine import limit_flows
from tests.runs.engine.conftest import running_worker, unhealthy, until
from tests.runs.engine.flows import world
from tests.runs.engine.limit_flows import crowd

SYSTEM = Actor("system")


@pytest.fixture(autouse=True)
def _cleared() -> None:
    crowd.clear()
    world.ledger.clear()


@pytest.fixture
def two_workers(transactional_db: None, quick: None) -> Iterator[tuple[RunWorker, RunWorker]]:
    """Two workers at work, and healthy data at the end."""
    with ExitStack() as stack:
        yield stack.enter_context(running_worker(8)), stack.enter_context(running_worker(8))
        assert unhealthy() == []


def begin(workflow: str, count: int = 1, **options: object) -> list[Run]:
    return [start(SYSTEM, workflow, {"n": n}, **options).run for n in range(count)]  # type: ignore[arg-type]


def known(*workers: RunWorker) -> None:
    """Wait until these workers have heard of every limit that there is now."""
    overrides = policies.load()

    def heard() -> bool:
        return all(
            {key: p.revision for key, p in w.snapshot.overrides.items()}
            == {key: p.revision for key, p in overrides.items()}
            for w in workers
        )

    wait_until(heard, 10, "the workers know the limits")


def ended(runs: list[Run]) -> None:
    for run in runs:
        assert until(run, timeout=30).status == Status.COMPLETED


@pytest.mark.parametrize(
    ("scope", "name", "watched"),
    [
        ("workflow", "l_plain", ("enter", "narrow", "leave")),
        ("step", "l_plain/narrow", ("narrow",)),
        ("queue", "default", ("enter", "narrow", "leave")),
        ("everything", "all", ("enter", "narrow", "leave")),
    ],
)
def test_two_workers_never_execute_more_runs_at_once_than_the_limit(two_workers, scope, name, watched):
    set_limits(factories.admin(), scope, name, concurrency=3)
    known(*two_workers)
    crowd.gather = dict.fromkeys(watched, 3)
    runs = begin("l_plain", 20)
    ended(runs)
    assert max(crowd.most[one] for one in watched) == 3
    assert sum(crowd.times.values()) == 60
    assert not Run.objects.exclude(held_by="").exists()


def test_a_limit_of_a_step_does_not_hold_up_the_other_steps(two_workers):
    set_limits(factories.admin(), "step", "l_plain/leave", concurrency=1)
    known(*two_workers)
    crowd.gather = {"enter": 2}
    ended(begin("l_plain", 12))
    assert crowd.most["leave"] == 1
    assert crowd.most["enter"] > 1


def test_an_atomic_step_goes_on_to_a_limited_one_through_a_claim(two_workers):
    set_limits(factories.admin(), "step", "l_atomic/after", concurrency=1)
    known(*two_workers)
    ended(begin("l_atomic", 8))
    assert (crowd.most["after"], crowd.times["after"]) == (1, 8)


def test_what_the_code_declares_is_kept_without_any_override(two_workers):
    crowd.gather = {"declared": 2}
    ended(begin("l_declared", 10))
    assert crowd.most["declared"] == 2
    assert set(Limit.objects.values_list("key", flat=True)) == {"workflow l_declared", "step l_declared/only"}


@pytest.mark.parametrize(("tool", "watched"), [("l_effect", "l_effect"), ("l_query", "l_query")])
def test_calls_of_a_tool_never_overlap_more_than_its_limit(two_workers, tool, watched):
    set_limits(factories.admin(), "tool", tool, concurrency=2)
    known(*two_workers)
    crowd.gather = {watched: 2}
    runs = begin("l_calls", 16)
    ended(runs)
    assert crowd.most[watched] == 2
    assert all(world.ledger[f"l_effect {n}"] == 1 for n in range(16))
    wait_until(lambda: not LimitedCall.objects.exists(), 5, "no call is under way")


def test_a_call_without_a_place_spends_nothing_and_holds_no_worker(worker):
    set_limits(factories.admin(), "tool", "l_effect", concurrency=1)
    known(worker)
    crowd.gate.clear()
    first = begin("l_calls")[0]
    wait_until(lambda: crowd.now["call body"] == 1 or crowd.now["l_query"] == 1, 10, "the first is at work")
    crowd.gate.set()
    until(first)
    crowd.clear()
    with connection.cursor() as cursor:  # a call of a worker whose lease is live, and which does not end
        cursor.execute(
            "INSERT INTO runs_limited_call (id, key, run_id, worker_id, begun_at)"
            " VALUES (%s, 'tool l_effect', %s, %s, now())",
            [uuid.uuid4(), uuid.uuid4(), worker.worker_id],
        )
    run = begin("l_calls")[0]
    until(run, "queued", also=lambda r: r.held_by == Hold.CONCURRENCY)
    assert (run.held_key, run.worker_id, run.wake_at, run.failures) == ("tool l_effect", None, None, 0)
    assert not Operation.objects.filter(run_id=run.pk, name="l_effect").exists()
    attempt = Attempt.objects.get(run_id=run.pk)
    assert (attempt.outcome, attempt.error_type) == (Outcome.SUSPENDED, "NoPlace")
    LimitedCall.objects.all().delete()
    assert until(run).status == Status.COMPLETED
    assert crowd.times["l_query"] == 1


def test_a_rate_lets_so_many_begin_and_time_the_rest(two_workers):
    set_limits(factories.admin(), "workflow", "l_declared", rate_count=4, rate_period_s=3600)
    known(*two_workers)
    runs = begin("l_declared", 7)
    wait_until(lambda: Run.objects.exclude(held_by="").count() == 3, 15, "three are held")
    wait_until(lambda: Run.objects.filter(status=Status.COMPLETED).count() == 4, 15, "four are done")
    assert crowd.times["declared"] == 4
    clock.shift(timedelta(minutes=31))
    wait_until(lambda: Run.objects.filter(status=Status.COMPLETED).count() == 6, 15, "two more have begun")
    assert Run.objects.exclude(held_by="").count() == 1
    set_limits(factories.admin("bea"), "workflow", "l_declared", rate_count=None, rate_period_s=None)
    ended(runs)


def test_a_rate_counts_each_step_that_begins(two_workers):
    set_limits(factories.admin(), "workflow", "l_plain", rate_count=4, rate_period_s=3600)
    known(*two_workers)
    begin("l_plain", 2)  # of three steps each; one of them may be through before the other begins
    held = Run.objects.filter(held_by=Hold.RATE)
    wait_until(
        lambda: held.exists() and Run.objects.exclude(status=Status.COMPLETED).count() == held.count(),
        15,
        "what is left is held",
    )
    assert sum(crowd.times.values()) == 4


def test_a_rate_of_a_tool_holds_calls_not_runs(worker):
    set_limits(factories.admin(), "tool", "l_query", rate_count=2, rate_period_s=3600)
    known(worker)
    begin("l_calls", 3)
    wait_until(lambda: Run.objects.filter(status=Status.COMPLETED).count() == 2, 15, "two are done")
    held = Run.objects.exclude(status=Status.COMPLETED).get()
    until(held, "queued", also=lambda r: r.held_by == Hold.RATE)
    assert held.held_key == "tool l_query"


def test_a_raised_limit_frees_what_it_held_at_once(worker):
    set_limits(factories.admin(), "workflow", "l_plain", concurrency=1)
    known(worker)
    crowd.gate.clear()
    runs = begin("l_plain", 4)
    wait_until(lambda: Run.objects.filter(held_by=Hold.CONCURRENCY).count() == 3, 15, "three are held")
    wait_until(lambda: crowd.now["enter"], 15, "the fourth has begun")
    assert crowd.now["enter"] == 1
    set_limits(factories.admin("bea"), "workflow", "l_plain", concurrency=3)
    wait_until(lambda: crowd.now["enter"] == 3, 15, "two more have begun")
    crowd.gate.set()
    ended(runs)
    assert max(crowd.most.values()) == 3


def test_neither_limited_nor_other_runs_wait_behind_each_other_for_ever(transactional_db, quick):
    set_limits(factories.admin(), "workflow", "l_calls", concurrency=1)
    limited_runs, others = begin("l_calls", 3), begin("l_plain", 12)
    with running_worker(1):
        ended(limited_runs)
        ended(others)


def test_a_higher_priority_goes_first_and_waiting_runs_are_sorted_by_an_own_verb(transactional_db, quick):
    person = factories.admin()
    old = begin("l_plain", 2)
    assert [run.priority for run in begin("l_declared")] == [3]
    set_limits(person, "workflow", "l_plain", priority=5)
    new = begin("l_plain")[0]
    old[0].refresh_from_db()
    assert (new.priority, old[0].priority) == (5, 0)
    assert sort_waiting(person, "l_plain") == 2
    old[0].refresh_from_db()
    assert old[0].wake_at is not None
    assert (old[0].priority, old[0].sort_at) == (5, old[0].wake_at - timedelta(minutes=5))


class Claimer:
    """A worker's row and the claim under limits, without executing anything."""

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.capabilities = registry.capabilities()
        leases.register(self.id, queues=["default"], capabilities=self.capabilities, slots=50)
        self.database = Database(1)

    def claim(self, most: int = 50, *, alone: bool = False) -> list[tuple[object, ...]]:
        rows, _ = limited.claim(
            self.database,
            {
                "queue": "default",
                "limit": most,
                "worker": self.id,
                "capabilities": self.capabilities,
                "paused": [],
                "timeouts": "{}",
            },
            alone=alone,
        )
        return rows

    def held(self) -> int:
        return Run.objects.filter(worker_id=self.id, status=Status.RUNNING).count()


@pytest.fixture
def claimers(transactional_db: None) -> Iterator[list[Claimer]]:
    made = [Claimer() for _ in range(4)]
    yield made
    for one in made:
        one.database.close()


def test_claims_at_one_instant_share_the_places_that_there_are(claimers):
    set_limits(factories.admin(), "workflow", "l_plain", concurrency=3)
    begin("l_plain", 12)
    claimers[0].claim(1)
    # All stand before the limit's row, and go at once: each counts what those before it have taken.
    with transaction.atomic():
        list(Limit.objects.select_for_update())
        callers = [Caller(claimer.claim) for claimer in claimers]
        wait_until_blocked(4)
    assert all(caller.join().error is None for caller in callers)
    assert sum(claimer.held() for claimer in claimers) == 3
    assert Run.objects.filter(held_by=Hold.CONCURRENCY, held_key="workflow l_plain").count() == 9


def test_a_dead_workers_places_are_free_when_its_lease_is_over_and_not_before(claimers, settings):
    set_limits(factories.admin(), "workflow", "l_plain", concurrency=2)
    begin("l_plain", 4)
    dead, other = claimers[:2]
    assert len(dead.claim()) == 2
    assert limited.rearm() == 0
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_worker SET beat_until = now() - interval '1 second' WHERE id = %s", [dead.id]
        )
    settings.AGENTOPS_LEASE_SECONDS = -10_000  # no grace after a restart of the server
    assert limited.rearm() == 2
    assert len(other.claim()) == 2
    # What is then taken over finds its places taken, and waits like the others.
    leases.sweep()
    assert other.claim(1, alone=True) == []
    assert Run.objects.filter(held_by=Hold.CONCURRENCY).count() == 2


def test_a_run_keeps_its_place_in_the_order_while_a_limit_holds_it(claimers):
    set_limits(factories.admin(), "workflow", "l_plain", concurrency=1)
    first, second, third = (begin("l_plain")[0] for _ in range(3))
    urgent = begin("l_plain", priority=9)[0]
    (row,) = claimers[0].claim()
    assert row[0] == urgent.pk
    order = []
    for _ in range(3):
        finish(claimers[0])
        assert limited.rearm(["workflow l_plain"]) == 1
        order += [row[0] for row in claimers[0].claim()]
    assert order == [first.pk, second.pk, third.pk]


def finish(claimer: Claimer) -> None:
    """End what it holds as its process's death would, for good."""
    for run in Run.objects.filter(worker_id=claimer.id):
        cancel(factories.support(), run.pk, reason="done")
        leases.hand_back_stray(run.pk, claimer.id, run.epoch)


def test_what_crashed_before_is_claimed_alone_under_the_same_limit(claimers):
    set_limits(factories.admin(), "workflow", "l_plain", concurrency=1)
    runs = begin("l_plain", 2)
    Run.objects.filter(pk__in=[run.pk for run in runs]).update(crashes=1)
    assert claimers[0].claim() == []
    assert len(claimers[0].claim(1, alone=True)) == 1
    assert claimers[1].claim(1, alone=True) == []


@pytest.mark.parametrize(
    ("scope", "name"), [("queue", "default"), ("everything", "all"), ("workflow", "l_plain")]
)
def test_nothing_begins_under_a_pause_and_all_goes_on_after_it(worker, scope, name):
    admin = factories.admin()
    pause_scope(admin, scope, name, reason="moving house")
    known(worker)
    runs = begin("l_plain", 3)
    wait_until(lambda: Run.objects.filter(held_by=Hold.PAUSED).count() == 3, 15, "all are parked")
    assert crowd.times["enter"] == 0
    resume_scope(factories.admin("bea"), scope, name, reason="done")
    ended(runs)


def test_what_two_pauses_hold_goes_on_when_both_are_over(worker):
    admin = factories.admin()
    pause_scope(admin, "queue", "default")
    pause_scope(admin, "workflow", "l_plain")
    known(worker)
    run = begin("l_plain")[0]
    until(run, "queued", also=lambda r: r.held_by == Hold.PAUSED)
    resume_scope(admin, "queue", "default")
    known(worker)
    run.refresh_from_db()
    assert run.held_by == Hold.PAUSED
    resume_scope(admin, "workflow", "l_plain")
    ended([run])


def test_thousands_under_a_pause_do_not_stand_in_the_way_of_others(transactional_db, quick):
    factories.admin()
    pause_scope(factories.admin("bea"), "workflow", "l_calls")
    begin("l_calls", 60)
    run = begin("l_plain")[0]
    with running_worker(1):
        assert until(run, timeout=5).status == Status.COMPLETED


def test_runs_without_limits_cause_no_statement_more(transactional_db, quick):
    """The rows of limits are neither read nor made, and the claim is the one that it always was."""
    with running_worker() as worker:
        ended(begin("l_plain", 3))
        assert not worker.snapshot.kept.asks_anew("l_plain", "narrow", "default")
    assert not Limit.objects.exists()
    assert limit_flows.plain.concurrency is None


def test_a_pause_for_a_while_is_not_lifted_by_a_sweep_before_its_time(transactional_db):
    pause_scope(factories.admin(), "queue", "default", until=clock.now() + timedelta(hours=1))
    run = factories.run(held_by=Hold.PAUSED)
    assert leases.rearm_unpaused() == 0
    clock.shift(timedelta(hours=1))
    assert leases.rearm_unpaused() == 1
    run.refresh_from_db()
    assert run.held_by == ""
