"""The sentinel: starts worker processes, replaces and reaps dead ones, ticks schedules, ends the others on stop.

It stays single-threaded and closes its connections before each fork: a forked child would share the session,
and a lock that another thread holds at that moment would stay locked in the child for ever.
"""

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from typing import Any, Protocol

import structlog
from django.conf import settings
from django.db import InterfaceError, InternalError, OperationalError, connections
from django_q.brokers import Broker
from django_q.cluster import Sentinel, get_mp_context
from django_q.conf import Conf
from django_q.exceptions import TimeoutException
from django_q.status import Stat
from django_q.timeout import TimeoutHandler
from setproctitle import setproctitle
from uuid_utils.compat import uuid7

from agentops.cluster.options import ClusterOptions
from agentops.cluster.ordinary import brokers_of, tick_schedules
from agentops.cluster.processes import (
    EXIT_CUT,
    EXIT_FAILED,
    Arrivals,
    PipeEvent,
    die_with_parent,
    release_stop_signals,
    stop_signals_held,
)
from agentops.cluster.worker import RELEASE_SIGNAL, MakeRunExecution, run_worker_process
from agentops.logs import process_fields

log = structlog.get_logger(__name__)

# What the database is asked in one tick may take so long; then the next tick tries again, so that a lock or a
# dead network never keeps the sentinel from replacing workers (whole seconds: it is an alarm).
DATABASE_LIMIT_S = 3
# django-q2 looks for due schedules every 30 s.
SCHEDULES_S = 5.0
# Workers that die younger than this one after the other are replaced after a pause, which doubles (seconds).
YOUNG_S = 2.0
PAUSE_S = 0.25
LONGEST_PAUSE_S = 3.0
# Workers for runs that execute alone leave when no such run has been due for this long (seconds).
LONE_IDLE_S = 5.0
# Processes for lone runs at one time, where there are no more usual ones: each holds about four connections.
LONE_MOST = 8
# A worker that has started so long ago would have taken a lone run if one was due (seconds).
LONE_START_S = 2.0
# A reap that failed is repeated after this (seconds).
REAP_RETRY_S = 1.0
# Beyond the grace time: until workers that did not leave are killed, and until what must then be recorded is
# given up, which leaves it to the end of their leases (seconds).
KILL_MARGIN_S = 1.0
LAST_REAP_S = 5.0

# InternalError: a standby that is not promoted yet takes no writes.
DATABASE_AWAY = (OperationalError, InterfaceError, InternalError)


class Leases(Protocol):
    """What the sentinel asks of `runs.engine.leases`, over Django's connection."""

    def reap(self, worker_id: uuid.UUID, *, graceful: bool = False) -> object:
        """The process has ended for certain; `graceful`: it was stopped on purpose after its grace time."""

    def expired(self, worker_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
        """Those whose lease is over."""

    def lone_due(self, queues: Sequence[str]) -> int:
        """How many due runs wait for a process of their own."""


class Worker:
    """The sentinel's side of one worker process."""

    def __init__(self, worker_id: uuid.UUID, process: ForkProcess, *, alone: bool) -> None:
        self.id = worker_id
        self.process = process
        self.alone = alone
        self.born_at = time.monotonic()
        self.cut = False
        self.released = False

    @property
    def pid(self) -> int | None:
        """Read by django-q2's `Stat`."""
        return self.process.pid

    def has_ended(self) -> bool:
        """Whether waitpid has returned for it."""
        return not self.process.is_alive()

    def was_cut(self) -> bool:
        """Whether its running steps were stopped on purpose after the grace time, which is no crash.

        Exit code 0 says nothing here: a worker that drained has no running steps, and a step may call
        `os._exit(0)`.
        """
        return self.cut or self.process.exitcode == EXIT_CUT

    def age_s(self) -> float:
        return time.monotonic() - self.born_at


@dataclass(slots=True)
class PendingReap:
    """A process that has ended and that the database does not know of yet."""

    worker_id: uuid.UUID
    graceful: bool
    not_before: float = 0.0


class _NoQueue:
    """In place of the queues that django-q2's sentinel counts for its `Stat`."""

    def qsize(self) -> int:
        return 0

    def empty(self) -> bool:
        return True


def run_sentinel(parent_pid: int, **parts: Any) -> None:
    """Be the sentinel until the cluster is to stop; runs in a child that main has just forked."""
    die_with_parent(parent_pid, may_start_thread=False)
    process_fields["worker"] = "sentinel"
    setproctitle("agentops sentinel")
    try:
        WorkerSentinel(**parts).start()
    except BaseException:
        log.exception("the sentinel failed")
        # Not by raising: multiprocessing would wait for the workers, which end when this process has ended.
        os._exit(EXIT_FAILED)


class WorkerSentinel(Sentinel):  # type: ignore[misc]
    """django-q2's Sentinel without pusher, monitor and shared queues, and with leases to look after."""

    def __init__(
        self,
        *,
        options: ClusterOptions,
        cluster_id: uuid.UUID,
        stop: PipeEvent,
        arrivals: Arrivals,
        make_run_execution: MakeRunExecution,
        leases: Leases,
    ) -> None:
        stop.only_observe()
        arrivals.only_announce()
        self._brokers: list[Broker] = brokers_of(options.queues)
        super().__init__(stop, threading.Event(), cluster_id, self._brokers[0], Conf.TIMEOUT, start=False)
        # Sent to the whole group as well; only main decides to stop.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        release_stop_signals()
        # Its connection is closed before each fork, and one at a time is enough.
        connections["default"].settings_dict["OPTIONS"].pop("pool", None)
        self.pool_size = options.processes
        self.task_queue = self.result_queue = _NoQueue()
        self._options = options
        self._arrivals = arrivals
        self._make_run_execution = make_run_execution
        self._leases = leases
        self._to_reap: list[PendingReap] = []
        self._young_deaths = 0
        self._spawn_not_before = 0.0
        self._schedules_at = 0.0
        self._lone_due = 0
        self._lone_wanted = 0
        self._lone_needed_at = 0.0
        self._database_away = False
        self._judge_not_before = 0.0

    # --- the life of the cluster ----------------------------------------------------------------------------

    def spawn_cluster(self) -> None:
        self.pool: list[Worker] = []
        self._fill_pool()

    def status(self) -> str:
        if not self.start_event.is_set():
            return str(Conf.STARTING)
        return str(Conf.STOPPING if self.stop_event.is_set() else Conf.IDLE)

    def guard(self) -> None:
        """Look after the workers, in ticks, until the cluster is to stop."""
        self.start_event.set()
        while not self.stop_event.is_set():
            self._bury()
            self._fill_pool()
            self._release_lone_workers()
            self._use_database(
                self._reap,
                self._kill_expired,
                self._count_lone_due,
                self._tick_schedules,
                self._publish_status,
            )
            # The death of a worker ends the tick early.
            wait([self.stop_event.fileno(), *self._sentinels()], timeout=Conf.GUARD_CYCLE)
        self.stop()

    def stop(self) -> None:
        """Wait until the workers have drained, kill what is left after the grace time, and record their ends."""
        log.info("draining", workers=len(self.pool), grace_s=self._options.grace_s)
        end = time.monotonic() + self._options.grace_s + KILL_MARGIN_S
        while self.pool and (left := end - time.monotonic()) > 0:
            wait(self._sentinels(), timeout=min(left, Conf.GUARD_CYCLE))
            self._bury()
            self._use_database(self._reap)
        for worker in self.pool:
            log.warning("killing a worker that did not leave within the grace time", worker_id=str(worker.id))
            worker.cut = True
            worker.process.kill()
        for worker in self.pool:
            worker.process.join()
        self._bury()
        end = time.monotonic() + LAST_REAP_S
        while self._to_reap and time.monotonic() < end:
            self._use_database(self._reap)
            if self._to_reap:
                time.sleep(Conf.GUARD_CYCLE)
        for pending in self._to_reap:
            log.error(
                "the end of a worker could not be recorded; its lease runs out",
                worker_id=str(pending.worker_id),
            )
        connections.close_all()

    # --- processes ------------------------------------------------------------------------------------------

    def spawn_worker(self, *, alone: bool = False) -> None:
        """Fork a worker process; with `alone` it executes nothing but runs that crashed a worker, one at a time."""
        connections.close_all()
        worker_id = uuid7()
        process = get_mp_context().Process(
            target=run_worker_process,
            # django-q2 shows it in log lines and in the title of the process.
            name=f"worker-{worker_id}",
            args=(
                worker_id,
                os.getpid(),
                self._options,
                self.stop_event,
                self._arrivals,
                self._make_run_execution,
                alone,
            ),
            # Off, by Q_CLUSTER["daemonize_workers"], for tasks that start processes of their own.
            daemon=Conf.DAEMONIZE_WORKERS,
        )
        with stop_signals_held():
            process.start()
        self.pool.append(Worker(worker_id, process, alone=alone))

    def _sentinels(self) -> list[int]:
        return [worker.process.sentinel for worker in self.pool]

    def _lone_workers(self) -> list[Worker]:
        return [worker for worker in self.pool if worker.alone]

    def _fill_pool(self) -> None:
        while len(self.pool) - len(self._lone_workers()) < self.pool_size:
            if time.monotonic() < self._spawn_not_before:
                break
            self.spawn_worker()
        for _ in range(self._lone_missing()):
            self.spawn_worker(alone=True)

    def _lone_missing(self) -> int:
        """How many more processes the due lone runs need: what is still due, no idle one has taken.

        Those that have just started are about to. More than one at a time, since all runs of a worker share its death, and none
        of them should wait for the end of a long step of another.
        """
        alone = self._lone_workers()
        starting = sum(worker.age_s() < LONE_START_S for worker in alone)
        room = max(self.pool_size, min(self._options.slots, LONE_MOST)) - len(alone)
        return max(0, min(self._lone_wanted - starting, room))

    def _release_lone_workers(self) -> None:
        """Have them leave when nothing is due for them; what they execute they finish."""
        if time.monotonic() > self._lone_needed_at + LONE_IDLE_S:
            for worker in self._lone_workers():
                if worker.pid is not None and not worker.released:
                    worker.released = True
                    os.kill(worker.pid, RELEASE_SIGNAL)

    def _bury(self) -> None:
        """Take the processes that have ended out of the pool, to be replaced and reaped."""
        for worker in [worker for worker in self.pool if worker.has_ended()]:
            self.pool.remove(worker)
            self.reincarnations += 1
            graceful = worker.was_cut()
            self._to_reap.append(PendingReap(worker.id, graceful))
            in_order = graceful or worker.process.exitcode == 0
            report = log.info if in_order else log.error
            report(
                "worker ended", worker_id=str(worker.id), pid=worker.pid, exit_code=worker.process.exitcode
            )
            self._pause_after(worker)
            worker.process.close()

    def _pause_after(self, worker: Worker) -> None:
        """Do not fork as fast as the machine can when workers die as soon as they start."""
        if worker.alone:
            return
        if worker.age_s() >= YOUNG_S:
            self._young_deaths = 0
            return
        self._young_deaths += 1
        pause = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** (self._young_deaths - 1))
        self._spawn_not_before = time.monotonic() + pause

    # --- the database ---------------------------------------------------------------------------------------

    def _use_database(self, *parts: Callable[[], None]) -> None:
        """Do what needs the database; what fails or takes too long is tried again in the next tick."""
        try:
            with TimeoutHandler(DATABASE_LIMIT_S):
                for part in parts:
                    part()
        except (*DATABASE_AWAY, TimeoutException) as error:
            connections.close_all()
            if not self._database_away:
                log.warning("the database does not answer; trying again each tick", error=str(error).strip())
            self._database_away = True
            # What kept this process from the database may have kept its workers from it: they get a lease to beat again.
            self._judge_not_before = time.monotonic() + settings.AGENTOPS_LEASE_SECONDS
        else:
            if self._database_away:
                log.info("the database answers again")
            self._database_away = False

    def _reap(self) -> None:
        for pending in [pending for pending in self._to_reap if time.monotonic() >= pending.not_before]:
            # Set first, so that a reap that always fails leaves the ticks in between to everything else.
            pending.not_before = time.monotonic() + REAP_RETRY_S
            try:
                self._leases.reap(pending.worker_id, graceful=pending.graceful)
            except DATABASE_AWAY:
                raise
            # One worker whose runs cannot be handed back must not keep the others from being replaced and
            # reaped.
            except Exception:
                log.exception("a worker could not be reaped; trying again", worker_id=str(pending.worker_id))
            else:
                self._to_reap.remove(pending)

    def _kill_expired(self) -> None:
        """Kill workers whose lease is over; SIGKILL also ends one that was stopped, before it can go on."""
        expired = self._leases.expired([worker.id for worker in self.pool])
        if time.monotonic() < self._judge_not_before:
            return
        for worker in self.pool:
            if worker.id in expired:
                log.error("killing a worker whose lease is over", worker_id=str(worker.id), pid=worker.pid)
                worker.process.kill()
                worker.process.join(KILL_MARGIN_S)

    def _count_lone_due(self) -> None:
        """Idle workers take lone runs as well: only those still due a tick later need processes of their own."""
        before, self._lone_due = self._lone_due, self._leases.lone_due(self._options.queues)
        self._lone_wanted = min(before, self._lone_due)
        if self._lone_due:
            self._lone_needed_at = time.monotonic()

    def _tick_schedules(self) -> None:
        """Enqueue the ordinary tasks whose django-q2 schedule is due; django-q2 logs what goes wrong there."""
        if not Conf.SCHEDULER or time.monotonic() < self._schedules_at:
            return
        self._schedules_at = time.monotonic() + SCHEDULES_S
        for broker in self._brokers:
            tick_schedules(broker)

    def _publish_status(self) -> None:
        """For django-q2's `qinfo` and `qmonitor`, which see it where the processes share a cache."""
        Stat(self).save()
