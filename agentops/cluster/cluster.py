"""Main: forks the sentinel, turns signals into a stop of the cluster, and says with its exit code how it ended."""

import os
import threading
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from types import FrameType

import structlog
from django.db import connections
from django_q.cluster import Cluster, get_mp_context
from setproctitle import setproctitle

from agentops import heap
from agentops.cluster.options import ClusterOptions
from agentops.cluster.processes import EXIT_FAILED, Arrivals, PipeEvent, stop_signals_held
from agentops.cluster.sentinel import DATABASE_LIMIT_S, KILL_MARGIN_S, LAST_REAP_S, Leases, run_sentinel
from agentops.cluster.worker import MakeRunExecution
from agentops.logs import process_fields

log = structlog.get_logger(__name__)

# What the sentinel may take beyond the grace time before main takes it for stuck (seconds).
SENTINEL_MARGIN_S = KILL_MARGIN_S + LAST_REAP_S + 2 * DATABASE_LIMIT_S


class WorkerCluster(Cluster):  # type: ignore[misc]
    """django-q2's Cluster, without locks that a killed process could keep."""

    def __init__(
        self, options: ClusterOptions, *, make_run_execution: MakeRunExecution, leases: Leases
    ) -> None:
        # django-q2 installs the signal handlers, which need the event.
        with stop_signals_held():
            super().__init__()
            self.stop_event = PipeEvent()
        self.start_event = threading.Event()
        self._options = options
        self._arrivals = Arrivals()
        self._make_run_execution = make_run_execution
        self._leases = leases

    def start(self) -> int:
        """Fork the sentinel; returns the process id of main. The caller's process must be single-threaded."""
        if (threads := threading.enumerate()) != [threading.main_thread()]:
            log.warning(
                "forking with threads, which may leave locks locked",
                threads=[thread.name for thread in threads],
            )
        process_fields["worker"] = "main"
        setproctitle(f"agentops worker {' '.join(self._options.queues)}")
        connections.close_all()
        # Here and not in the sentinel: a collection writes to all that it looks at, and what a child writes it no longer shares.
        heap.keep()
        self.sentinel: ForkProcess = get_mp_context().Process(
            target=run_sentinel,
            name=f"sentinel-{self.cluster_id}",
            args=(os.getpid(),),
            kwargs={
                "options": self._options,
                "cluster_id": self.cluster_id,
                "stop": self.stop_event,
                "arrivals": self._arrivals,
                "make_run_execution": self._make_run_execution,
                "leases": self._leases,
            },
        )
        with stop_signals_held():
            self.sentinel.start()
        self._arrivals.close()
        return os.getpid()

    def wait_until_ready(self) -> bool:
        """Return True when all workers are ready for work, False when the cluster ends before."""
        missing = self._options.processes
        while missing > 0:
            arrivals = self._arrivals.fileno()
            ready = wait([arrivals, self.sentinel.sentinel, self.stop_event.fileno()])
            if arrivals not in ready or not (arrived := self._arrivals.count()):
                return False
            missing -= arrived
        self.start_event.set()
        return True

    def wait_until_ended(self) -> int:
        """Wait until the cluster has ended; returns main's exit code: 0 after a stop, 1 for a supervisor."""
        wait([self.sentinel.sentinel, self.stop_event.fileno()])
        if self.stop_event.is_set():
            self.sentinel.join(self._options.grace_s + SENTINEL_MARGIN_S)
            if self.sentinel.is_alive():
                log.error("the sentinel does not end; killing it, which ends its workers")
                self.sentinel.kill()
        self.sentinel.join()
        if self.sentinel.exitcode == 0 and self.stop_event.is_set():
            return 0
        log.error("the sentinel ended unasked, and its workers with it", exit_code=self.sentinel.exitcode)
        return EXIT_FAILED

    def stop(self) -> bool:
        """Ask the cluster to drain and end; safe in a signal handler, at any time, any number of times."""
        self.stop_event.set()
        return True

    def sig_handler(self, signum: int, frame: FrameType | None) -> None:
        self.stop()
