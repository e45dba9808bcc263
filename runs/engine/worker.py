"""A worker process's part in executing runs: beat, claim, execute, sweep.

LISTEN is the hint, the poll the truth. Leases live on the worker's row: one UPDATE a beat renews all its runs.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import psycopg
import structlog
from django.conf import settings
from django.db import DatabaseError, connection

from runs import codec, policies, registry
from runs.diagnosis import failures
from runs.engine import leases, limited, statements
from runs.engine.activity import EVERY, Tally
from runs.engine.database import UNSURE, UNSURE_DJANGO, Database, cold, connect_directly, is_away
from runs.engine.execution import Execution, dumps
from runs.engine.executor import Executor, Snapshot
from runs.engine.followups import FollowUps
from runs.engine.lease import Lease, clock
from runs.engine.limited import Places
from runs.engine.threads import Threads
from runs.errors import LeaseLost
from runs.failpoints import failpoint
from runs.kin.families import Sweep
from runs.lifecycle import DUE_CHANNEL
from runs.models.worker import Asked
from runs.pages import activity
from runs.policies import POLICY_CHANNEL
from runs.services import bulk_work, chain, limits, retention

log = structlog.get_logger(__name__)


#: How long a worker that was taken for dead waits for answers to requests that it had sent.
EVIDENCE_SECONDS = 10.0

#: Statements that one claim under limits makes at most while each finds only runs to park.
PARKING_ROUNDS = 5


#: A worker with fewer free slots than this part of all waits so long (seconds) for more before it claims.
FEW_SLOTS = 4
GATHER_S = 0.004


class StopSignal(Protocol):
    """Set once, when this process shall drain."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def fileno(self) -> int: ...


def _readable(files: Sequence[int], seconds: float) -> list[int]:
    """Which of these file numbers can be read, after so many seconds at most.

    By `poll`: `select` fails where a number is above 1023, and steps open files as they like.
    """
    poll = select.poll()
    for number in files:
        poll.register(number, select.POLLIN)
    return [number for number, _ in poll.poll(seconds * 1000)]


class WorkerClosed(RuntimeError):
    """Somebody took this worker for dead and closed its row; the process must end without doing anything more."""


class RunWorker:
    """Executes runs in `slots` slots until `stop` is set. `run` blocks; call it on a thread of its own."""

    def __init__(
        self,
        *,
        worker_id: uuid.UUID,
        queues: Sequence[str],
        slots: int,
        stop: StopSignal,
        alone: bool = False,
    ) -> None:
        """With `alone` it takes nothing but runs that were there when a worker died, one at a time."""
        self.worker_id, self.queues, self.stop, self.alone = worker_id, list(queues), stop, alone
        self.slots = 1 if alone else slots
        self.wants_recycle = False
        """Drain and start afresh: too many slots are lost to attempts that timed out and cannot be killed, or a person asks."""
        self._rests = False
        """A person wants it to take nothing new."""
        self.lease = Lease(settings.AGENTOPS_LEASE_SECONDS, settings.AGENTOPS_SEND_MARGIN_SECONDS)
        self.snapshot = Snapshot()
        self._live: dict[uuid.UUID, Execution] = {}
        self._lost: set[int] = set()
        self._strays: dict[tuple[uuid.UUID, int], int] = {}
        self._claims_begun = self._claims_ended = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._queue_turn = 0
        self._limited_first = self._parked = False
        self._split_of: tuple[policies.Kept, dict[str, tuple[list[str], list[str]]]] | None = None
        self._threads = Threads()
        self._freed_at = 0.0
        self._families = Sweep()
        self._judge_not_before = 0.0
        self._next_tally = clock() + EVERY
        # Workers that start together do not take their turns together.
        self._next_retention = clock() + random.uniform(0, retention.TICK_EVERY)
        self._bulks: threading.Thread | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Register, work, drain, close. Raises WorkerClosed when this worker was taken for dead."""
        capabilities = registry.capabilities()
        self._register(capabilities)
        self.database = Database(min(8, max(2, self.slots)))
        self.loop = asyncio.new_event_loop()
        # A `def` tool of an `async def` step blocks a thread while it works; the loop's own few would be a hidden limit.
        self.loop.set_default_executor(ThreadPoolExecutor(max(32, self.slots), thread_name_prefix="tools"))
        loop = threading.Thread(target=self._run_loop, name="steps-loop", daemon=True)
        loop.start()
        self.blocking = ThreadPoolExecutor(min(8, max(2, self.slots)), thread_name_prefix="steps-db")
        self.follow_ups = FollowUps(self.database)
        self.follow_ups.start()
        self.places = Places(self.worker_id, self.database, lambda: self.snapshot.kept)
        self.places.start()
        self.tally = Tally(self.worker_id, self.database)
        self.executor = Executor(
            self.snapshot,
            self._draining,
            self.loop,
            self.blocking,
            self.follow_ups.child_ended,
            self.places,
            self.tally,
        )
        beats = threading.Thread(target=self._beats, name="beats", daemon=True)
        beats.start()
        try:
            self._work(capabilities)
        finally:
            self._ended.set()
            self._threads.end()
            self.lease.end()
            self.loop.call_soon_threadsafe(self.loop.stop)
            beats.join(settings.AGENTOPS_BEAT_SECONDS + 5)
            self.blocking.shutdown(wait=False)
            self.follow_ups.close()
            self.places.close()
            with suppress(*UNSURE):  # charts can do without these last seconds
                self.tally.add()
            loop.join(1)
            self.database.close()
        if self._closed.is_set():
            raise WorkerClosed("the lease of this worker was ended by others; its process ends")
        self._unregister()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._ended.is_set():
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    # A task of one body raised it; the others' go on.
                    log.warning("loop.goes_on", error=type(error).__name__)
        finally:
            self.loop.close()

    def _register(self, capabilities: list[str]) -> None:
        while not self.stop.is_set():
            asked = clock()
            try:
                cold(
                    lambda unsure: leases.register(
                        self.worker_id, queues=self.queues, capabilities=capabilities, slots=self.slots
                    )
                )
                self.snapshot.refresh()
                self.lease.renew(asked)
                return
            except UNSURE_DJANGO as error:
                log.warning("worker.register_again", error=str(error))
                self.stop.wait(0.5)
            finally:
                connection.close()

    def _unregister(self) -> None:
        """Nothing runs any more: end the lease. Whether the process is dead, only its parent can say."""
        try:
            cold(lambda unsure: leases.close(self.worker_id))
        except UNSURE_DJANGO as error:
            log.warning("worker.close_failed", error=str(error))  # the lease runs out by itself

    def _draining(self) -> bool:
        return self.stop.is_set() or self.wants_recycle

    # --- beats ---------------------------------------------------------------------------------------------------------

    def _beats(self) -> None:
        """Renew the lease on a connection of its own, so that no slow statement can delay it."""
        raw: psycopg.Connection[Any] | None = None
        pause = settings.AGENTOPS_BEAT_SECONDS
        while not self._ended.is_set() and not self._closed.is_set():
            asked = clock()
            try:
                if raw is None:
                    raw = connect_directly()
                failpoint("beat.before")
                row = raw.execute(
                    statements.BEAT,
                    {
                        "worker": self.worker_id,
                        "lease": self.lease.seconds,
                        "lost": len(self._lost),
                        "draining": self._draining() or self._rests,
                    },
                    prepare=True,
                ).fetchone()
            except UNSURE as error:
                log.warning("beat.failed", error=str(error), lease_left=round(self.lease.remaining, 2))
                if raw is not None:
                    raw.close()
                raw = None
                self._ended.wait(min(0.3, pause))
                continue
            if row is None:
                self._close_from_outside()
                break
            if self.lease.remaining < self.lease.seconds / 2:
                # What kept these beats from the database may have kept those of others: they get a lease to beat again.
                self._judge_not_before = clock() + self.lease.seconds
            self.lease.renew(asked)
            self._obey(row[1])
            self._reconcile(row[0])
            self._overruns()
            self._ended.wait(pause)
        if raw is not None:
            raw.close()

    def _obey(self, asked: str) -> None:
        """Do what a person asks of this process."""
        rests = asked == Asked.DRAIN
        if self._rests and not rests:
            self._wake()
        self._rests = rests
        if asked == Asked.RECYCLE and not self.wants_recycle:
            log.info("worker.recycled_by_a_person", worker=str(self.worker_id))
            self.wants_recycle = True
            self._wake()

    def _close_from_outside(self) -> None:
        log.error("worker.closed", worker=str(self.worker_id))
        self.lease.end()
        with self._lock:
            for execution in self._live.values():
                execution.lost = True
        self._closed.set()
        self._wake()

    def _reconcile(self, held: list[list[Any]]) -> None:
        """Hand back runs that this worker owns and does not execute: the answer to its claim was lost.

        Only what two beats in a row found so, if every claim that had begun by the first of them has ended since, and so has
        entered what it claimed: on a starved machine two beats alone would not say that.
        """
        strays: dict[tuple[uuid.UUID, int], int] = {}
        for run_text, epoch, cancelled in held:
            run_id = uuid.UUID(run_text)
            with self._lock:
                execution = self._live.get(run_id)
                if execution is not None and execution.epoch == epoch:
                    execution.cancel_requested = execution.cancel_requested or bool(cancelled)
                    continue
            strays[run_id, epoch] = self._strays.get((run_id, epoch), self._claims_begun)
        for run_id, epoch in strays.keys() & self._strays.keys():
            if self._claims_ended < strays[run_id, epoch]:
                continue
            log.warning("run.handed_back", run=str(run_id))
            try:
                leases.hand_back_stray(run_id, self.worker_id, epoch)
            except UNSURE_DJANGO as error:
                log.warning("run.hand_back_again", error=str(error))
            except Exception:
                # One run that cannot be moved must not stop the beats of all others.
                log.exception("run.hand_back_failed", run=str(run_id))
        self._strays = strays

    def _overruns(self) -> None:
        """Fence attempts whose deadline has passed. A `def` step cannot be killed: its slot is lost until it returns."""
        with self._lock:
            late = [e for e in self._live.values() if e.time_left < -0.2 and not e.lost]
        for execution in late:
            try:
                closed = leases.close_overrun(execution.run_id, self.worker_id, execution.epoch)
            except UNSURE_DJANGO as error:
                log.warning("overrun.again", error=str(error))
                continue
            except Exception:
                log.exception("overrun.failed", run=str(execution.run_id))
                continue
            if not closed:
                continue
            execution.lost = True
            log.warning("attempt.timed_out", run=str(execution.run_id), step=execution.step)
            with self._lock:
                # Another claim of this worker may have entered the run again meanwhile.
                if self._live.get(execution.run_id) is execution:
                    del self._live[execution.run_id]
                self._lost.add(id(execution))
                self.wants_recycle = self.wants_recycle or len(self._lost) * 2 >= self.slots
            self._wake()

    # --- claims --------------------------------------------------------------------------------------------------------

    def _work(self, capabilities: list[str]) -> None:
        listener: psycopg.Connection[Any] | None = None
        next_sweep = 0.0
        while not self._draining() and not self._closed.is_set():
            try:
                if listener is None:
                    listener = connect_directly()
                    listener.execute(f"LISTEN {DUE_CHANNEL}")
                    listener.execute(f"LISTEN {POLICY_CHANNEL}")
                    self.snapshot.refresh()
                if clock() >= next_sweep:
                    next_sweep = clock() + settings.AGENTOPS_BEAT_SECONDS / 2
                    self._sweep()
                self._let_slots_gather()
                if not self._claim(capabilities):
                    self._idle(listener, min(settings.AGENTOPS_POLL_SECONDS, max(0.0, next_sweep - clock())))
            except (*UNSURE, *UNSURE_DJANGO) as error:
                log.warning("worker.database_away", error=str(error))
                # After a restart every idle connection is dead: do not meet them one by one.
                self.database.forget_idle()
                if listener is not None:
                    listener.close()
                listener = None
                self.stop.wait(0.3)
            finally:
                connection.close()
        if listener is not None:
            listener.close()
        self._drain()

    def _let_slots_gather(self) -> None:
        """When nearly all slots are taken and one has just become free, wait a moment for more: one claim fills them all.

        A claim costs as much as several checkpoints, and hardly more for several runs than for one.
        """
        few = self.slots // FEW_SLOTS
        while 0 < self._free() < few and (left := self._freed_at + GATHER_S - clock()) > 0:
            _readable([self._wake_r, self.stop.fileno()], left)
            if self._draining():
                return
            self._drain_pipe()

    def _free(self) -> int:
        with self._lock:
            return self.slots - len(self._live) - len(self._lost)

    def _drain(self) -> None:
        """No new claims; running steps go on until they end or the process is ended from outside.

        A worker that was taken for dead starts nothing more, but waits a while for answers on their way: each is evidence.
        """
        give_up: float | None = None
        while give_up is None or clock() < give_up:
            if give_up is None and self._closed.is_set():
                give_up = clock() + EVIDENCE_SECONDS
            with self._lock:
                if not self._live:
                    return
            _readable([self._wake_r], 0.2)
            self._drain_pipe()

    def _idle(self, listener: psycopg.Connection[Any], pause: float) -> None:
        readers = [listener.fileno(), self.stop.fileno(), self._wake_r]
        ready = _readable(readers, pause)
        if listener.fileno() in ready:
            for notice in listener.notifies(timeout=0):
                if notice.channel == POLICY_CHANNEL:
                    self.snapshot.refresh()
        if self._wake_r in ready:
            self._drain_pipe()

    def _sweep(self) -> None:
        if self.lease.remaining > 0 and clock() >= self._judge_not_before:
            leases.sweep()
        leases.park_incapable(self.queues)
        leases.rearm_executable()
        leases.rearm_unpaused()
        self._sweep_limits()
        self._families.turn()
        self.snapshot.refresh()
        if clock() >= self._next_tally:
            self._next_tally = clock() + EVERY
            self.tally.add()
        if clock() >= self._next_retention:
            self._next_retention = clock() + retention.TICK_EVERY
            threading.Thread(target=self._retain, name="retention", daemon=True).start()
        if not self.alone and (self._bulks is None or not self._bulks.is_alive()) and bulk_work.at_work():
            self._bulks = threading.Thread(target=self._work_on_bulks, name="bulks", daemon=True)
            self._bulks.start()

    def _sweep_limits(self) -> None:
        """Pauses and limits that nobody told, time that lifts them, and temporary ones that are over."""
        for queue in self.queues:
            if paused := policies.paused_in(queue, self.snapshot.overrides):
                leases.park_paused(queue, paused)
        if self.snapshot.kept.concurrent:
            limited.forget_calls_of_the_ended()
        limited.rearm()
        if any(policy.temporary for policy in self.snapshot.overrides.values()):
            limits.end_temporary()

    def _work_on_bulks(self) -> None:
        """Turns of what people have asked for many runs, on a thread of its own: no claim waits for them."""
        try:
            bulk_work.tick(sleep=self.stop.wait)
        except UNSURE_DJANGO as error:
            log.warning("bulks.later", error=str(error))
        except Exception:
            log.exception("bulks.failed")
        finally:
            connection.close()

    def _retain(self) -> None:
        """A turn of retention, on a thread of its own: no claim waits for it."""
        try:
            retention.tick()
            failures.tick()
            activity.forget_old()
            chain.tick()
        except UNSURE_DJANGO as error:
            log.warning("retention.later", error=str(error))
        except Exception:
            log.exception("retention.failed")
        finally:
            connection.close()

    def _claim(self, capabilities: list[str]) -> bool:
        """Claim due runs of one queue into free slots. True if there may be more to claim at once."""
        with self._lock:
            live = len(self._live)
            if any(e.crashes > 0 for e in self._live.values()):
                return False  # it runs alone
        free = self.slots - live - len(self._lost)
        if free <= 0 or self._rests or self._draining() or self.lease.remaining <= self.lease.margin:
            return False  # also if it was told to stop while it swept
        self._claims_begun += 1
        try:
            return self._claim_into(free, live, capabilities)
        finally:
            self._claims_ended = self._claims_begun

    def _claim_into(self, free: int, live: int, capabilities: list[str]) -> bool:
        turns = len(self.queues)
        for _ in range(turns):
            queue = self.queues[self._queue_turn % turns]
            self._queue_turn += 1
            if self.snapshot.kept.of_runs:
                rows = self._claim_beside_limited(queue, free, live, capabilities)
            else:
                rows = [] if self.alone else self._claim_from(statements.CLAIM, queue, free, capabilities)
                if not rows and live == 0:
                    rows = self._claim_from(statements.CLAIM_ALONE, queue, 1, capabilities)
            if rows:
                failpoint("claim.committed")
                for row in rows:
                    try:
                        self._start(row)
                    except Exception as error:
                        log.exception("run.engine_error", run=str(row[0]))
                        self._broken(row[0], row[6], error)
                # The queue is empty now, or the slots are full: look at once only where another queue may have work.
                return turns > 1 and len(rows) < free
        parked, self._parked = self._parked, False
        return parked

    def _claim_beside_limited(
        self, queue: str, free: int, live: int, capabilities: list[str]
    ) -> list[tuple[Any, ...]]:
        """Claims where some of what is due may be limited: with the limits' rows locked, and beside that as ever.

        They take turns at being first, so that neither waits behind the other for ever.
        """
        begun = clock()
        unlimited, under_limits = self._split(queue, capabilities)
        rows: list[tuple[Any, ...]] = []
        self._limited_first = not self._limited_first
        turns = (True, False) if self._limited_first else (False, True)
        for alone in (False, True):
            if alone and (rows or live):
                break
            if self.alone and not alone:
                continue
            for under in turns:
                room = 1 - len(rows) if alone else free - len(rows)
                names = under_limits if under else unlimited
                if room <= 0 or not names:
                    continue
                if under:
                    rows += self._claim_limited(queue, room, names, alone=alone)
                else:
                    statement = statements.CLAIM_ALONE if alone else statements.CLAIM
                    rows += self._claim_from(statement, queue, room, names)
        self._claimed_at = begun
        return rows

    def _claim_limited(
        self, queue: str, room: int, capabilities: list[str], *, alone: bool
    ) -> list[tuple[Any, ...]]:
        # Behind those that find no place and are parked may stand some whose limit has room.
        for _ in range(PARKING_ROUNDS):
            parameters = self._claim_parameters(queue, room, capabilities)
            rows, parked = limited.claim(self.database, parameters, alone=alone)
            self._parked = self._parked or parked
            if rows or not parked:
                return rows
        return []

    def _split(self, queue: str, capabilities: list[str]) -> tuple[list[str], list[str]]:
        """Capabilities without and with a limit in this queue."""
        kept = self.snapshot.kept
        if self._split_of is None or self._split_of[0] is not kept:
            self._split_of = (kept, {})
        found = self._split_of[1].get(queue)
        if found is None:
            found = self._split_of[1][queue] = ([], [])
            for name in capabilities:
                workflow, _, rest = name.rpartition("@")
                step = rest.partition("/")[2]
                keys = policies.keys_of(workflow, step, queue)
                found[not kept.of_runs.isdisjoint(keys)].append(name)
        return found

    def _claim_from(
        self, statement: str, queue: str, limit: int, capabilities: list[str]
    ) -> list[tuple[Any, ...]]:
        return self.database.all(statement, self._claim_parameters(queue, limit, capabilities))

    def _claim_parameters(self, queue: str, limit: int, capabilities: list[str]) -> dict[str, Any]:
        overrides = self.snapshot.overrides
        self._claimed_at = clock()
        return {
            "queue": queue,
            "limit": limit,
            "worker": self.worker_id,
            "capabilities": self._array_of(capabilities),
            "paused": policies.paused_in(queue, overrides),
            "timeouts": self._timeouts(overrides),
        }

    def _array_of(self, capabilities: list[str]) -> str:
        """As the text of an array, made once: psycopg would look at each of them at each claim."""
        if capabilities is not getattr(self, "_array_made_of", None):
            self._array_made_of = capabilities
            escaped = (name.replace("\\", "\\\\").replace('"', '\\"') for name in capabilities)
            self._array_text = "{" + ",".join(f'"{name}"' for name in escaped) + "}"
        return self._array_text

    def _timeouts(self, overrides: policies.Overrides) -> str:
        if overrides is not getattr(self, "_timeouts_of", None):
            self._timeouts_of = overrides
            self._timeouts_text = dumps(registry.timeouts(overrides))
        return self._timeouts_text

    def _start(self, row: tuple[Any, ...]) -> None:
        execution = Execution(
            database=self.database,
            lease=self.lease,
            worker_id=self.worker_id,
            run_id=row[0],
            workflow=row[1],
            version=row[2],
            step=row[3],
            step_seq=row[4],
            attempt_no=row[5],
            epoch=row[6],
            queue=row[7],
            stored_state=(row[8], row[9]),
            stored_input=(row[10], row[11]),
            compensating=row[12],
            cancel_requested=row[13] and not row[12],
            failures=row[14],
            crashes=row[15],
            visit_started_at=row[16],
            attempt_started_at=row[17],
            # Counted from before the claim, so that this deadline is not later than the database's.
            deadline=self._claimed_at + row[18],
            external=row[19],
            past_run_deadline=bool(row[20]),
            started_by=row[21],
            subject=row[22],
            was=row[23],
            parent_wait=row[24],
            child_index=row[25],
            forked=row[26],
        )
        with self._lock:
            self._live[execution.run_id] = execution
        try:
            self._threads.run(lambda: self._execute(execution))
        except Exception:
            # No thread could be started: nobody else would give the slot back.
            with self._lock:
                self._live.pop(execution.run_id, None)
            raise

    def _execute(self, execution: Execution) -> None:
        structlog.contextvars.bind_contextvars(run=str(execution.run_id))
        try:
            self.executor.run(execution)
        except LeaseLost as error:
            log.info("run.lost", reason=str(error), step=execution.step)
        except Exception as error:
            if is_away(error):
                # The run is handed back by reconciliation, once there is a database again, and spends nothing.
                log.warning("run.database_away", step=execution.step, error=str(error).strip())
            else:
                log.exception("run.engine_error", step=execution.step)
                self._broken(execution.run_id, execution.epoch, error)
        finally:
            connection.close()
            if self.snapshot.kept.of_runs:
                self.places.left_step(execution.workflow, execution.step, execution.queue, stays=False)
            with self._lock:
                if self._live.get(execution.run_id) is execution:
                    del self._live[execution.run_id]
                self._lost.discard(id(execution))
                self._freed_at = clock()
            structlog.contextvars.clear_contextvars()
            self._wake()

    def _broken(self, run_id: uuid.UUID, epoch: int, error: Exception) -> None:
        """Whatever the engine stumbled over must not come back for ever."""
        told = codec.clean_text(f"{type(error).__name__}: {error}", 2000)
        try:
            leases.close_broken(run_id, self.worker_id, epoch, told)
        except (*UNSURE_DJANGO, DatabaseError) as again:
            log.warning("run.not_closed", error=str(again))  # reconciliation hands it back

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._wake_w, b"x")

    def _drain_pipe(self) -> None:
        try:
            while os.read(self._wake_r, 4096):
                pass
        except BlockingIOError:
            pass
