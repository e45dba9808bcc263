"""Workers without a clock of their own: each attempt runs on a thread that stops at every failpoint until the test lets it go.

One thread works at a time, so that what happens is what the test says, in that order: any interleaving of committed
transactions, at the granularity of the failpoints. All statements, transactions and verbs are those of production; only
processes, leases and the passing of time are played: a killed worker's threads unwind without another statement, a frozen one's
lease runs out, time is the shift of business time.
"""

import json
import math
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import django.db
import psycopg
import pytest
from django.db import connection
from django.db.backends.postgresql.base import DatabaseWrapper

from runs import clock, failpoints, policies, registry
from runs.engine import database, leases, statements
from runs.engine.database import Database
from runs.engine.execution import Execution
from runs.engine.executor import Executor
from runs.engine.lease import clock as lease_clock
from runs.engine.limited import Places
from runs.engine.worker import RunWorker
from tests.model.flows import Provider, Request, world

#: Seconds a lease lasts here; nothing beats by itself.
LEASE = 3600.0


class Killed(BaseException):
    """The process is gone: its threads unwind without another statement."""


class _NeverStops:
    def __init__(self) -> None:
        self.stopping = False

    def is_set(self) -> bool:
        return self.stopping

    def wait(self, timeout: float | None = None) -> bool:
        return self.stopping

    def fileno(self) -> int:
        raise AssertionError("nothing waits here")


class Attempt:
    """One claimed run in a virtual worker, standing at `place` until it is let go; None once it is over."""

    def __init__(self, stage: "Stage", worker: "VirtualWorker", execution: Execution) -> None:
        self.stage, self.worker, self.execution = stage, worker, execution
        self.place: str | None = "claimed"
        self.request: Request | None = None
        self.failure: BaseException | None = None
        self.loses = 0
        """How many of the next commits are not answered."""
        self._go = threading.Semaphore(0)
        self._doomed = False

    def park(self, place: str, request: Request | None = None) -> None:
        if self._doomed:
            raise Killed
        self.place, self.request = place, request
        self.stage._stopped()
        self._go.acquire()
        self.request = None
        if self._doomed:
            raise Killed

    @property
    def over(self) -> bool:
        return self.place is None

    def let_go(self) -> None:
        """Let it go, and do not wait: `stands` does."""
        assert not self.over
        self._go.release()

    def stands(self) -> str | None:
        """Wait until it stands again; where that is."""
        self.stage._wait()
        if self.failure is not None:
            raise self.failure
        return self.place

    def step(self) -> str | None:
        """Let it go to its next failpoint; where it stands then."""
        self.let_go()
        return self.stands()

    def to(self, *places: str) -> "Attempt":
        """Let it go until it stands at one of these. Requests on the way are answered."""
        while self.step() not in places:
            assert not self.over, f"it ended without coming to {places}"
        return self

    def finish(self) -> None:
        """Let it go to its end. Requests on the way are answered."""
        while not self.over:
            self.step()

    def answer(self, how: str) -> None:
        """What becomes of the request under way, see `Provider.settle`; its sender hears of it when it goes on."""
        assert self.request is not None
        world.settle(self.request, how)
        if how == "slow":
            self.request.ended_at = self.stage.elapsed

    def _die(self) -> None:
        self._doomed = True
        if not self.over:
            self._go.release()
            self.stage._wait()


class VirtualWorker(RunWorker):
    """A worker with a row, a lease and slots of its own, whose claims, beats and sweeps happen when a test says so."""

    def __init__(self, stage: "Stage") -> None:
        self.never = _NeverStops()
        super().__init__(worker_id=uuid.uuid4(), queues=[stage.queue], slots=8, stop=self.never)
        self.stage = stage
        self.lease.seconds = LEASE
        self.attempts: list[Attempt] = []
        self.dead = self.reaped = False
        self.database = stage.database
        # Never started: flows without limits leave no places, though other tests of this process declare limits.
        self.places = Places(self.worker_id, self.database, lambda: self.snapshot.kept)
        self.executor = Executor(
            self.snapshot,
            self._draining,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            places=self.places,
        )
        self._next_retention = math.inf
        self._register(registry.capabilities())
        self.beat()

    # --- what a worker's threads do by themselves in production ---------------------------------------------------------

    def claim(self, lose_answer: bool = False) -> list[Attempt]:
        """Claim what is due; each claimed run stands at `claimed`."""
        before, capabilities = len(self.attempts), registry.capabilities()
        self.stage.claim_loses = int(lose_answer)
        with suppress(psycopg.OperationalError):
            self._claim(capabilities)
            if len(self.attempts) == before:
                self._claim(capabilities)  # the first look may have been at runs that crashed
        self.stage.claim_loses = 0
        return self.attempts[before:]

    def _execute(self, execution: Execution) -> None:
        attempt = Attempt(self.stage, self, execution)
        self.attempts.append(attempt)
        self.stage._enter(attempt)
        try:
            attempt.park("claimed")
            super()._execute(execution)
        except Killed:
            pass
        except BaseException as error:
            attempt.failure = error
        finally:
            self.attempts.remove(attempt)
            attempt.place = None
            self.stage._leave()

    def _start(self, row: tuple[Any, ...]) -> None:
        super()._start(row)
        self.stage._wait()

    def beat(self) -> None:
        """One beat: renews the lease, hands strays back, fences overruns; or learns that the row is closed."""
        asked = lease_clock()
        row = self.database.once(
            statements.BEAT,
            {"worker": self.worker_id, "lease": LEASE, "lost": len(self._lost), "draining": self._draining()},
        )
        if row is None:
            self._close_from_outside()
            return
        self.lease.renew(asked)
        held = row[0]
        self._reconcile(json.loads(held) if isinstance(held, str) else held)
        self._overruns()

    @property
    def closed(self) -> bool:
        """It has learnt that its row is closed."""
        return self._closed.is_set()

    # --- what happens to it ----------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """It stops for longer than its lease; it goes on when a test lets it."""
        self.lease.end()
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE runs_worker SET beat_until = statement_timestamp() - interval '1 hour'"
                " WHERE id = %s AND closed_at IS NULL",
                [self.worker_id],
            )

    def kill(self, *, reaped: bool = True) -> None:
        """kill -9; its sentinel sees the end at once, or nobody does (its host is lost)."""
        self.dead = True
        for attempt in list(self.attempts):
            attempt._die()
        if reaped:
            self.reap()
        else:
            self.freeze()

    def reap(self) -> None:
        """waitpid has returned."""
        assert self.dead and not self.reaped
        self.reaped = True
        leases.reap(self.worker_id)
        self.stage.sender_ended(self)


class Stage:
    """Virtual workers on one queue, one provider, one clock."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.queue = f"stage-{uuid.uuid4().hex[:8]}"
        self.database = Database(2)
        self.elapsed = timedelta()
        """Business time since the stage was set."""
        self.workers: list[VirtualWorker] = []
        self.claim_loses = 0
        self.places: list[str] = []
        self._arrived = threading.Semaphore(0)
        self._by_thread: dict[int, Attempt] = {}
        world.__init__()  # type: ignore[misc]
        self.world: Provider = world
        world.pause = self._pause
        world.sender = lambda: self._by_thread[threading.get_ident()].worker
        patch.setattr(failpoints, "_active", True)
        patch.setattr(failpoints, "_hit", self._pause)
        # No jitter; and what does not reach the database is repeated at once.
        patch.setattr(policies, "random", SimpleNamespace(uniform=lambda low, high: high))
        patch.setattr(database, "PAUSE", 0)
        self._lose_answers(patch)
        self._keep_connections(patch)

    # --- threads ---------------------------------------------------------------------------------------------------------

    def _enter(self, attempt: Attempt) -> None:
        self._by_thread[threading.get_ident()] = attempt

    def _leave(self) -> None:
        del self._by_thread[threading.get_ident()]
        connection.close()
        self._stopped()

    def _stopped(self) -> None:
        self._arrived.release()

    def _wait(self) -> None:
        assert self._arrived.acquire(timeout=60), "a thread neither stopped nor ended"

    def _pause(self, place: str, request: Request | None = None) -> None:
        attempt = self._by_thread.get(threading.get_ident())
        if attempt is not None:
            self.places.append(place)
            attempt.park(place, request)

    # --- answers of COMMIT that are lost --------------------------------------------------------------------------------

    def _loses(self) -> bool:
        attempt = self._by_thread.get(threading.get_ident())
        if attempt is not None and attempt.loses:
            attempt.loses -= 1
            return True
        return False

    def _lose_answers(self, patch: pytest.MonkeyPatch) -> None:
        every, commit = Database.all, DatabaseWrapper._commit  # type: ignore[attr-defined]

        def lossy(hot: Database, statement: str, parameters: Any) -> Any:
            answer = every(hot, statement, parameters)
            if statement.lstrip().startswith("SELECT"):
                return answer
            if self.claim_loses and answer and statement in (statements.CLAIM, statements.CLAIM_ALONE):
                self.claim_loses -= 1
                raise psycopg.OperationalError("the connection was lost")
            if self._loses():
                raise psycopg.OperationalError("the connection was lost")
            return answer

        def lossy_commit(wrapper: DatabaseWrapper) -> None:
            commit(wrapper)
            if self._loses():
                raise django.db.OperationalError("the connection was lost")

        patch.setattr(Database, "all", lossy)
        patch.setattr(DatabaseWrapper, "_commit", lossy_commit)

    def _keep_connections(self, patch: pytest.MonkeyPatch) -> None:
        """The engine gives its connections back after each transaction. Here few wait for one, and connecting takes longest."""
        close, own = DatabaseWrapper.close, threading.get_ident()

        def closing(wrapper: DatabaseWrapper) -> None:
            if threading.get_ident() not in (own, *self._by_thread):
                close(wrapper)

        patch.setattr(DatabaseWrapper, "close", closing)

    # --- the world -------------------------------------------------------------------------------------------------------

    def worker(self) -> VirtualWorker:
        made = VirtualWorker(self)
        self.workers.append(made)
        return made

    def attempts(self) -> list[Attempt]:
        return [a for w in self.workers for a in w.attempts]

    def sender_ended(self, worker: VirtualWorker) -> None:
        """Its end is known: from now on the settle time of what it sent runs.

        `reaped_at` is real time, which here stands nearly still; business time is what passes.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE runs_worker SET reaped_at = agentops_now() WHERE id = %s", [worker.worker_id]
            )
        for request in world.net:
            if request.sender is worker and request.ended_at is None:
                request.ended_at = self.elapsed

    def pass_time(self, length: timedelta) -> None:
        """Business time passes, also for attempts' own view of their deadlines."""
        clock.shift(length)
        self.elapsed += length
        for attempt in self.attempts():
            attempt.execution.deadline -= length.total_seconds()

    def sweep(self) -> int:
        """Any worker's sweep: expired rows are closed, what dead workers hold is taken over."""
        return leases.sweep()

    def close(self) -> None:
        for worker in self.workers:
            for attempt in list(worker.attempts):
                attempt._die()
        for worker in self.workers:
            worker._threads.end()
            leases.reap(worker.worker_id)
        self.database.close()


@contextmanager
def staged() -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(patch)
        try:
            yield stage
        finally:
            stage.close()
