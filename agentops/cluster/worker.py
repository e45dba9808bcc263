"""One worker process: ordinary tasks in its main thread, runs in other threads, and an orderly way out.

It leaves when the cluster stops (`cluster_stop`), when somebody sends SIGTERM to it, or when it is released:
it has too many lost slots, has executed many ordinary tasks, one of them timed out, or the sentinel needs it
no longer. It then claims nothing more and waits for what it executes; for the grace time only, except when it
is released.
"""

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import NoReturn, Protocol

import structlog
from django.db import connections
from django_q.conf import Conf
from setproctitle import setproctitle

from agentops.cluster.options import ClusterOptions
from agentops.cluster.ordinary import TaskResults, TaskSource, TaskTimer, brokers_of, serve
from agentops.cluster.processes import (
    EXIT_CUT,
    EXIT_FAILED,
    Arrivals,
    PipeEvent,
    Stop,
    die_with_parent,
    release_stop_signals,
)
from agentops.logs import process_fields

log = structlog.get_logger(__name__)

# Cold-path transactions of all slots share this many connections of Django at most.
MAX_CONNECTIONS = 8
# How long a thread waits for one of them, and how long the pool tries to connect before it lets the next
# caller try anew: its pauses double, and a database that is back must be noticed soon (seconds).
CONNECTION_WAIT_S = 5.0
# Asks a worker to finish what it executes, without a limit, and to leave.
RELEASE_SIGNAL = signal.SIGUSR1
# How often the way out is looked at (seconds).
WATCH_S = 0.5
# A worker that is released waits so long for its running steps, longer than a step should take; cutting them
# would put their effects in doubt for the sake of housekeeping (seconds).
RELEASE_DRAIN_S = 900.0


class RunExecution(Protocol):
    """What executes runs in a worker process (`runs.engine.worker.RunWorker`)."""

    @property
    def wants_recycle(self) -> bool: ...

    def run(self) -> None: ...


class MakeRunExecution(Protocol):
    """How it is made, after the fork."""

    def __call__(
        self, *, worker_id: uuid.UUID, queues: tuple[str, ...], slots: int, stop: Stop, alone: bool
    ) -> RunExecution: ...


def run_worker_process(
    worker_id: uuid.UUID,
    parent_pid: int,
    options: ClusterOptions,
    cluster_stop: PipeEvent,
    arrivals: Arrivals,
    make_run_execution: MakeRunExecution,
    alone: bool,
) -> NoReturn:
    """Be a worker process until it is to end; runs in a child that the sentinel has just forked."""
    die_with_parent(parent_pid, may_start_thread=True)
    process_fields["worker"] = str(worker_id)
    setproctitle(f"agentops {'lone ' if alone else ''}worker {worker_id}")
    code = EXIT_FAILED
    try:
        code = WorkerProcess(worker_id, options, cluster_stop, make_run_execution, alone).run(ready=arrivals)
    except Exception:
        log.exception("the worker process failed")
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End this process now; threads that still run are not waited for, the interpreter would."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class WorkerProcess:
    """The parts of one worker process and the order in which they end."""

    def __init__(
        self,
        worker_id: uuid.UUID,
        options: ClusterOptions,
        cluster_stop: PipeEvent,
        make_run_execution: MakeRunExecution,
        alone: bool,
    ) -> None:
        self._options = options
        self._cluster_stop = cluster_stop
        self._asked = PipeEvent()
        self._drain = PipeEvent()
        self._alone = alone
        signal.signal(signal.SIGTERM, lambda *_: self._asked.set())
        signal.signal(RELEASE_SIGNAL, lambda *_: self._drain.set())
        # Ctrl-C reaches the whole group; only main decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        release_stop_signals()
        _use_connection_pool(options.slots)
        brokers = brokers_of(options.queues)
        self._source = TaskSource(brokers, self._drain)
        self._results = TaskResults(brokers, self._drain)
        self._timer = TaskTimer()
        self._runs = make_run_execution(
            worker_id=worker_id,
            queues=options.queues,
            slots=options.slots,
            stop=self._drain,
            alone=alone,
        )
        self._runs_thread = threading.Thread(target=self._execute_runs, name="runs", daemon=True)
        self._runs_ended_early = False

    def run(self, ready: Arrivals) -> int:
        """Work until the process is to end; returns its exit code."""
        self._runs_thread.start()
        threading.Thread(target=self._watch_way_out, name="way-out", daemon=True).start()
        ready.announce()
        ready.close()
        if self._alone:
            # An ordinary task would die with the run that this process is here to be killed by.
            self._drain.wait()
        else:
            serve(self._source, self._results, self._timer, Conf.TIMEOUT)
        self._drain.set()
        self._runs_thread.join()
        if self._runs_ended_early:
            return EXIT_FAILED
        log.info("worker drained")
        return 0

    def _execute_runs(self) -> None:
        try:
            self._runs.run()
        except BaseException:
            # Without this thread nobody renews the lease: leaving now lets others take the runs over at once.
            log.exception("the execution of runs ended with an error; leaving")
            _leave(EXIT_FAILED)
        if not (self._drain.is_set() or self._runs.wants_recycle):
            log.error("the execution of runs ended unasked; leaving")
            self._runs_ended_early = True
        self._drain.set()

    def _watch_way_out(self) -> None:
        """Begin the drain when there is a reason to, and end the process when its time for that is over."""
        stops = [self._cluster_stop.fileno(), self._asked.fileno()]
        while not (asked := bool(wait(stops, timeout=WATCH_S))):
            if self._runs.wants_recycle or self._timer.is_overdue():
                self._drain.set()
            if self._drain.is_set():
                asked = self._watch_release(stops)
                break
        self._drain.set()
        time.sleep(self._options.grace_s if asked else 0)
        log.warning("the time to drain is over; leaving what still runs")
        _leave(EXIT_CUT)

    def _watch_release(self, stops: Sequence[int]) -> bool:
        """Let the runs end in their own time; returns whether the process was asked to stop meanwhile."""
        log.info("releasing the worker")
        end = time.monotonic() + RELEASE_DRAIN_S
        while time.monotonic() < end:
            if wait(stops, timeout=WATCH_S):
                return True
            if self._timer.is_overdue() and not self._runs_thread.is_alive():
                log.error("an ordinary task goes on past its time-out; leaving it")
                return False
        return False


def _use_connection_pool(slots: int) -> None:
    """Have the threads of this process share a few connections; before the fork there must have been none."""
    connections.close_all()
    settings = connections["default"].settings_dict
    settings["CONN_MAX_AGE"] = 0
    settings["OPTIONS"]["pool"] = {
        "min_size": 0,
        "max_size": min(MAX_CONNECTIONS, slots + 1),
        "timeout": CONNECTION_WAIT_S,
        "reconnect_timeout": CONNECTION_WAIT_S,
    }
