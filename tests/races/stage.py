"""Where races take place: workers that act when they are told to, two racers, and what must hold afterwards."""

import asyncio
import json
import os
import select
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from approvals.models import Approval, Request
from approvals.services import decide
from runs import clock, doctor, registry
from runs.engine import database, leases, statements
from runs.engine.database import Database, connect_directly
from runs.engine.executor import Executor
from runs.engine.lease import clock as lease_clock
from runs.engine.limited import Places
from runs.engine.threads import Threads
from runs.engine.worker import RunWorker
from runs.kin.families import Sweep
from runs.lifecycle import Actor
from runs.models import Bulk, Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.services import cancel, receive_signal, start_many, verb
from runs.states import TERMINAL, Status
from tests import factories
from tests.races.flows import GATES, Gate

SYSTEM = Actor("race")
#: Seconds after which something that should happen at once is taken for stuck.
STUCK = 20
#: Doctor's findings that a stage without running workers brings about by itself.
NOT_OF_DATA = {"silent_worker", "unserved_queue", "retention_behind"}


class _Never:
    """A worker on the stage is never told to stop."""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return False

    def fileno(self) -> int:
        raise AssertionError("nobody waits for it")


class Hand(RunWorker):
    """A worker that beats, claims and executes when it is told to, by the code of every worker."""

    def __init__(self, stage: "Stage", slots: int = 100) -> None:
        super().__init__(worker_id=uuid.uuid4(), queues=[], slots=slots, stop=_Never())
        self.database, self.loop, self.blocking = stage.database, stage.loop, stage.blocking
        # Never started: flows without limits leave no places, though other tests of this process declare limits.
        self.places = Places(self.worker_id, self.database, lambda: self.snapshot.kept)
        self.executor = Executor(self.snapshot, lambda: False, stage.loop, stage.blocking, places=self.places)
        self.capabilities = registry.capabilities()
        self._threads = stage.threads
        self._pipe, self._pipe_closed = threading.Lock(), False
        self.claimed: list[uuid.UUID] = []
        self.errors: list[Exception] = []
        leases.register(self.worker_id, queues=["race"], capabilities=self.capabilities, slots=slots)
        self.lasts(seconds=3600)
        # Its own view of its lease is that it has one: what fences it shall be the database.
        self.lease.renew(lease_clock() + 3600)

    def _start(self, row: tuple[Any, ...]) -> None:
        self.claimed.append(row[0])
        super()._start(row)

    def _broken(self, run_id: uuid.UUID, epoch: int, error: Exception) -> None:
        self.errors.append(error)
        super()._broken(run_id, epoch, error)

    def lasts(self, seconds: float) -> None:
        """Set the end of its lease in the database, so far from now; its row is open."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE runs_worker SET beat_until = statement_timestamp() + make_interval(secs => %s) WHERE id = %s",
                [seconds, self.worker_id],
            )

    def claim(self, queue: str) -> int:
        """Claim what is due in a queue and begin to execute it. How many runs."""
        before = len(self.claimed)
        self.snapshot.refresh()
        self.queues = [queue]
        self._claim(self.capabilities)
        return len(self.claimed) - before

    def claim_and_die(self, queue: str) -> list[tuple[uuid.UUID, int]]:
        """Claim and never execute, as if the process ended just then; (run, epoch) of each."""
        rows = self._claim_from(statements.CLAIM, queue, 100, self.capabilities)
        return [(row[0], row[6]) for row in rows]

    def idle(self) -> None:
        """Wait until it executes nothing any more."""
        until = time.monotonic() + STUCK
        while True:
            with self._lock:
                if not self._live:
                    return
            assert time.monotonic() < until, f"still executing: {list(self._live)}"
            select.select([self._wake_r], [], [], 0.2)
            self._drain_pipe()

    def beat(self, raw: psycopg.Connection[Any]) -> bool:
        """One beat, and what a worker does about its answer. False if its row was closed."""
        row = raw.execute(
            statements.BEAT, {"worker": self.worker_id, "lease": 3600, "lost": 0, "draining": False}
        ).fetchone()
        if row is None:
            self._close_from_outside()
            return False
        self._reconcile(row[0])
        return True

    def _wake(self) -> None:
        with self._pipe:
            if not self._pipe_closed:
                super()._wake()

    def end(self) -> None:
        self.idle()
        with self._pipe:
            self._pipe_closed = True
            os.close(self._wake_r)
            os.close(self._wake_w)


@dataclass
class Case:
    """One run that two sessions race for."""

    n: int
    run_id: uuid.UUID
    queue: str
    hands: list[Hand] = field(default_factory=list)
    """Workers that execute it, or once did; the body stands at the gate of the same number."""
    gates: list[Gate] = field(default_factory=list)
    neighbours: list[Gate] = field(default_factory=list)
    """Gates of other runs of the same worker, which end their attempts at the same instant."""
    approval: Approval | None = None
    beside: Approval | None = None
    """Of another run: decided together with that of this one."""
    operation: Operation | None = None
    """The effect that is in doubt."""
    bulk: Bulk | None = None
    request: Request | None = None
    version: int | None = None

    @property
    def run(self) -> Run:
        return Run.objects.get(pk=self.run_id)

    def gone(self) -> bool:
        return not Run.objects.filter(pk=self.run_id).exists()


type Act = Callable[[], Any]


class Racers:
    """Two threads that stay, each with a session of its own."""

    def __init__(self) -> None:
        self.calls: list[Act] = []
        self.told: list[Any] = [None, None]
        self.done = [threading.Event(), threading.Event()]
        self._go = [threading.Event(), threading.Event()]
        self._together = threading.Barrier(2)
        self._free = self._over = False
        self._threads = [threading.Thread(target=self._race, args=(n,), daemon=True) for n in (0, 1)]
        for thread in self._threads:
            thread.start()

    def _race(self, n: int) -> None:
        try:
            while True:
                self._go[n].wait()
                self._go[n].clear()
                if self._over:
                    return
                try:
                    if self._free:
                        self._together.wait(STUCK)
                    self.told[n] = self.calls[n]()
                except BaseException as error:
                    self.told[n] = error
                finally:
                    self.done[n].set()
        finally:
            connection.close()

    def begin(self, calls: list[Act], *, free: bool) -> None:
        self.calls, self.told, self._free = calls, [None, None], free
        for n in (0, 1):
            self.done[n].clear()

    def let(self, n: int) -> None:
        self._go[n].set()

    def wait(self) -> list[Any]:
        for n in (0, 1):
            assert self.done[n].wait(STUCK), f"racer {n} is stuck"
        return self.told

    def end(self) -> None:
        self._over = True
        for n in (0, 1):
            self._go[n].set()
            self._threads[n].join(STUCK)


class Stage:
    def __init__(self) -> None:
        self.database = Database(8)
        self.loop = asyncio.new_event_loop()
        self._loop = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._loop.start()
        self.blocking, self.threads = ThreadPoolExecutor(8), Threads()
        self.raw = [connect_directly() for _ in range(2)]
        self.watch, self.holder = psycopg.connect(**_parameters()), psycopg.connect(**_parameters())
        self.watch.autocommit = True
        self.racers = Racers()
        self.deadlocks: list[str] = []
        self.overlaps: Counter[int] = Counter()
        """Rounds by how many of the two waited for a lock at one instant."""
        self.yes, self.no = factories.operator("yes"), factories.operator("no")
        self.support, self.admin = factories.support("sue"), factories.admin("ada")
        self.begin_chunk()

    def end(self) -> None:
        self.racers.end()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._loop.join(5)
        self.loop.close()
        self.blocking.shutdown()
        self.threads.end()
        self.database.close()
        for raw in (*self.raw, self.watch, self.holder):
            raw.close()
        connections.close_all()

    # --- a chunk of rounds -----------------------------------------------------------------------------------------------

    def begin_chunk(self) -> None:
        """An empty database, but for people."""
        GATES.clear()
        self.made: list[Hand] = []
        self.runs: list[uuid.UUID] = []
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT string_agg(format('%I', relname), ', ') FROM pg_class WHERE relkind = 'r'"
                " AND relname ~ '^(runs|approvals)_' AND relnamespace = 'public'::regnamespace"
            )
            cursor.execute(f"TRUNCATE {cursor.fetchone()[0]} CASCADE")
        self.hands = [self.hand(), self.hand()]
        """One for each racer, to claim with."""
        self.driver = self.hand()

    def hand(self) -> Hand:
        made = Hand(self)
        self.made.append(made)
        return made

    def start(
        self,
        text: str,
        count: int,
        *,
        workflow: str = "r_racing",
        limit_ms: int | None = None,
        filler: int = 0,
    ) -> list[Case]:
        """So many runs, each due in a queue of its own. `filler`: characters that only this run's input holds."""
        given = {"text": text, "limit_ms": limit_ms}
        lines = [json.dumps(given | {"filler": f"{n:09}" * (filler // 9)}) for n in range(count)]
        cases = []
        for batch in start_many(SYSTEM, workflow, lines, queue="prepared"):
            cases += [Case(n, run_id, f"race {run_id}") for n, run_id in enumerate(batch.started)]
        self.runs += [case.run_id for case in cases]
        self.own_queues()
        return cases

    def own_queues(self) -> None:
        self.execute("UPDATE runs_run SET queue = 'race ' || id WHERE queue = 'prepared'")

    def execute(self, sql: str, *parameters: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def perform(self, cases: list[Case]) -> None:
        """Let a worker execute each of these runs once."""
        self.execute("UPDATE runs_run SET queue = 'prepared' WHERE id = ANY(%s)", [c.run_id for c in cases])
        self.driver.claim("prepared")
        self.driver.idle()
        self.own_queues()

    def at_gate(self, case: Case) -> None:
        """Have a worker of its own claim the run; its body stands at a gate."""
        hand, gate = self.hand(), Gate()
        GATES.setdefault(case.run_id, deque()).append(gate)
        assert hand.claim(case.queue) == 1
        assert gate.arrived.wait(STUCK), "the body did not come to its gate"
        case.hands.append(hand)
        case.gates.append(gate)

    # --- one round -------------------------------------------------------------------------------------------------------

    def race(self, acts: list[Act], *, n: int, lock: tuple[str, Any] | None) -> list[Any]:
        """Let both act at one instant; what each returned or raised.

        With `lock` (a query that locks rows, and its parameter) both begin while a third session holds that, which lets go
        when each of them has come to a lock, or has ended without one.
        """
        racers = self.racers
        racers.begin(acts, free=lock is None)
        if lock is None:
            racers.let(0)
            racers.let(1)
            return racers.wait()
        waiting = 0
        with self.holder.transaction():
            self.holder.execute(lock[0].encode(), [lock[1]])
            for begun, turn in enumerate((n % 2, 1 - n % 2), start=1):
                racers.let(turn)
                waiting = self._come_to_rest(begun)
        self.overlaps[waiting] += 1
        return racers.wait()

    def _come_to_rest(self, begun: int) -> int:
        """Wait until each of those who have begun waits for a lock or has ended; how many wait."""
        until = time.monotonic() + STUCK
        while True:
            row = self.watch.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone()
            assert row is not None
            waiting = int(row[0])
            if waiting + sum(done.is_set() for done in self.racers.done) >= begun:
                return waiting
            assert time.monotonic() < until, "one of the two neither ends nor waits for a lock"
            time.sleep(0.0005)

    # --- afterwards ------------------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """Let a worker work until nothing is due any more, or will be within a second."""
        driver, families = self.driver, Sweep()
        self.execute("UPDATE runs_run SET queue = 'prepared' WHERE id = ANY(%s)", self.runs)
        until = time.monotonic() + STUCK
        while True:
            leases.sweep()
            leases.rearm_unpaused()
            families.turn()
            driver.claim("prepared")
            driver.idle()
            due, soon = self._due()
            if not due and not soon:
                return
            if not due:
                time.sleep(0.005)  # a back-off of some milliseconds
            assert time.monotonic() < until, [(run.pk, run.status, run.reason) for run in self.unfinished()]

    def drive_one(self, case: Case) -> None:
        """Let a worker work on this run alone, until it is not due any more."""
        until = time.monotonic() + STUCK
        while True:
            leases.sweep()
            self.driver.claim(case.queue)
            self.driver.idle()
            run = case.run
            later = run.status == Status.WAITING and run.wake_at is not None and run.wake_at > clock.now()
            if run.is_terminal or run.wake_at is None or run.held_by or later:
                return
            assert time.monotonic() < until, (run.status, run.reason)

    def _due(self) -> tuple[int, int]:
        """How many runs are due now; how many will be within a second."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FILTER (WHERE wake_at <= agentops_now()), count(*) FROM runs_run"
                " WHERE wake_at <= agentops_now() + interval '1 second'"
            )
            due, soon = cursor.fetchone()
        return due, soon

    def unfinished(self) -> list[Run]:
        return list(Run.objects.exclude(status__in=TERMINAL))

    def satisfy(self) -> None:
        """Give every run what it waits for; cancel what waits for nothing that could come."""
        self.execute("DELETE FROM runs_policy")
        for run in self.unfinished():
            waits = run.operation_set.filter(status=OpStatus.OPEN)
            kinds = set(waits.values_list("kind", flat=True))
            if Kind.SIGNAL in kinds:
                receive_signal(
                    SYSTEM, name="paid", payload=0, run_id=run.pk, source="last", external_id=str(run.pk)
                )
            for approval in Approval.objects.filter(run=run, state="open"):
                decide(
                    self.yes, approval.pk, version=approval.version, digest=approval.digest, verdict="approve"
                )
            if not kinds:
                cancel(self.support, run.pk, reason="the race is over")

    def examine(self) -> None:
        """Every run comes to its end, nothing is lost on the way, and the data is healthy."""
        self.drive()
        for run in self.unfinished():
            assert run.status in ("waiting", "retrying"), (run.pk, run.status, run.reason)
        self.healthy()
        self.satisfy()
        self.drive()
        assert self.unfinished() == [], [(run.pk, run.status, run.reason) for run in self.unfinished()]
        self.healthy()
        for hand in self.made:
            assert hand.errors == [], hand.errors
            hand.end()
        assert self.deadlocks == []

    def healthy(self) -> None:
        doctor.load()
        known = {doctor.name_of(check) for check in doctor.DATA} - NOT_OF_DATA
        assert [problem for problem in doctor.examine(grace=0) if problem.check in known] == []


def _parameters() -> dict[str, Any]:
    return {k: v for k, v in database.connection_parameters().items() if k != "prepare_threshold"}


@contextmanager
def watched(stage: Stage, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A deadlock that the code under test would heal by trying again is an error here."""
    original = database.passes

    def passes(error: BaseException) -> bool:
        if "40P01" in (getattr(error, "sqlstate", ""), getattr(error.__cause__, "sqlstate", "")):
            stage.deadlocks.append(str(error))
        return original(error)

    patch.setattr(database, "passes", passes)
    patch.setattr(verb, "CONFLICTS", frozenset({"40001"}))
    before = deadlocks()
    yield
    assert deadlocks() == before


def deadlocks() -> int:
    """Deadlocks that PostgreSQL has ended in this database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        count: int = cursor.fetchone()[0]
        return count
