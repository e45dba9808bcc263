"""Ordinary django-q2 tasks inside a worker process.

`django_q.worker.worker` takes tasks from a `task_queue`, puts results into a `result_queue` and tells a
`timer` how long the task may take. In django-q2's cluster these are shared with the processes pusher, monitor
and sentinel under locks that a `kill -9` leaves locked. Here they are objects of this process, which talk to
the broker and the database.
"""

import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import structlog
from django.core.signing import BadSignature
from django.db import Error, connection, connections
from django.db.models import Q
from django.utils import timezone
from django_q import scheduler
from django_q.brokers import Broker, get_broker
from django_q.conf import Conf
from django_q.models import Schedule
from django_q.models import Task as SavedTask
from django_q.monitor import save_cached, save_task
from django_q.signals import post_execute
from django_q.signing import SignedPackage
from django_q.utils import get_func_repr
from django_q.worker import worker as django_q_worker

from agentops.cluster.processes import Stop

log = structlog.get_logger(__name__)

# django-q2's name for "end the loop".
STOP = "STOP"
# The database is looked at this often for new tasks by each process; a task waits half of it on average
# (seconds).
POLL_S = 0.5
# Pause after an error of the broker or the database (seconds).
RETRY_S = 1.0
# How often a result is refused by a database that answers, before the result itself is held to be the reason.
SAVES = 3

type Task = dict[str, Any]


def brokers_of(queues: Sequence[str]) -> list[Broker]:
    """Return django-q2's brokers for named queues; `default` is the queue that `async_task` uses without a name."""
    own = str(Conf.CLUSTER_NAME)
    return [get_broker(own if queue == "default" else queue) for queue in queues]


class TaskTimer:
    """django-q2's `timer`: until when the ordinary task that runs now must have ended.

    In django-q2 the values 0 (timed out) and -2 (recycled) have the sentinel terminate or replace the
    process. Here the worker's loop ends by itself in both cases and the process drains, so that neither ends
    the runs beside the task.
    """

    IDLE = -1.0

    def __init__(self) -> None:
        self._deadline: float | None = None

    @property
    def value(self) -> float:
        """Seconds left, or IDLE."""
        return self.IDLE if self._deadline is None else self._deadline - time.monotonic()

    @value.setter
    def value(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds if seconds > 0 else None

    def is_overdue(self) -> bool:
        """Whether a task goes on past its time-out: it sits in a call that cannot be interrupted."""
        deadline = self._deadline
        return deadline is not None and time.monotonic() > deadline

    def get_lock(self) -> AbstractContextManager[None]:
        return nullcontext()


class TaskSource:
    """django-q2's `task_queue`: takes tasks from the brokers until the worker is to stop."""

    def __init__(self, brokers: Sequence[Broker], stop: Stop) -> None:
        self._brokers = deque(brokers)
        self._stop = stop
        self._taken: deque[Task] = deque()
        self._broken = False
        self.current: Task | None = None

    def get(self) -> Task | str:
        """Return the next task, or STOP. Holds no connection while it waits."""
        self.current = None
        while not self._stop.is_set():
            self._take()
            if self._taken:
                self.current = self._taken.popleft()
                return self.current
            self._stop.wait(RETRY_S if self._broken else POLL_S)
        return STOP

    def _take(self) -> None:
        if self._taken:
            return
        try:
            for _ in range(len(self._brokers)):
                broker = self._brokers[0]
                # The next look starts with the next queue, so that a busy one starves no other.
                self._brokers.rotate(-1)
                for ack_id, package in broker.dequeue() or ():
                    self._unpack(broker, ack_id, package)
                if self._taken:
                    break
        # Each kind of broker raises errors of its own; the task stays with it, whatever they are.
        except Exception as error:
            if not self._broken:
                log.warning("ordinary tasks cannot be fetched; trying again", error=str(error).strip())
            self._broken = True
        else:
            if self._broken:
                log.info("ordinary tasks can be fetched again")
            self._broken = False
        finally:
            connections.close_all()

    def _unpack(self, broker: Broker, ack_id: Any, package: str) -> None:
        try:
            task: Task = SignedPackage.loads(package)
        except (TypeError, BadSignature):
            log.exception("dropped an ordinary task whose signature is wrong", ack_id=ack_id)
            broker.fail(ack_id)
            return
        # Code that this version does not have: it stays in the queue for another worker, and comes back after
        # `retry`.
        except Exception:
            log.exception("left an ordinary task that cannot be unpacked", ack_id=ack_id)
            return
        self._taken.append({**task, "cluster": broker.list_key, "ack_id": ack_id})


class TaskResults:
    """django-q2's `result_queue`: saves a result, acknowledges the task and sends `post_execute`, in place."""

    def __init__(self, brokers: Sequence[Broker], stop: Stop) -> None:
        self._brokers = {broker.list_key: broker for broker in brokers}
        self._stop = stop

    def put(self, task: Task) -> None:
        """Store the result; while the database is away this blocks, until the worker is to stop.

        A result that could not be stored is not acknowledged, and the task comes back after `retry`.
        """
        broker = self._brokers[task["cluster"]]
        # save_task expects what async_task leaves out.
        record = {"group": None, "cached": False, "sync": False, **task}
        refused = 0
        while not self._save(record, broker):
            refused += 1
            if refused == SAVES:
                record |= {"result": "The result could not be stored; the log says why.", "success": False}
                record.pop("chain", None)
            elif refused > SAVES:
                log.error(
                    "an ordinary task's result cannot be stored; the task comes back", name=task["name"]
                )
                return
            if self._database_is_away():
                # Nothing is known about the result then.
                refused = 0
                if self._stop.wait(RETRY_S):
                    return
        task |= {"result": record["result"], "success": record["success"]}
        task.pop("ack_id", None)
        post_execute.send_robust(sender="django_q", task=task)
        connections.close_all()
        what = {"name": task["name"], "func": get_func_repr(task["func"])}
        if task["success"]:
            log.info("ordinary task done", **what)
        else:
            log.error("ordinary task failed", result=str(task["result"]), **what)

    def _save(self, record: Task, broker: Broker) -> bool:
        """Save and acknowledge; returns whether both are done."""
        try:
            if record.get("cached"):
                save_cached(record, broker)
            else:
                save_task(record, broker)
                # The follower in a chain was enqueued by that call, and must not be a second time.
                record.pop("chain", None)
                # save_task logs and swallows what goes wrong: without a look, a task would be acknowledged
                # unsaved.
                if not self._is_saved(record):
                    return False
            if record["success"] or record.get("ack_failure", False):
                broker.acknowledge(record["ack_id"])
        # Errors of the broker, of a chain that cannot be packed, of the database: the task stays
        # unacknowledged.
        except Exception:
            log.exception("an ordinary task's result could not be stored", name=record["name"])
            return False
        return True

    def _database_is_away(self) -> bool:
        connections.close_all()
        try:
            connection.ensure_connection()
        except Error:
            return True
        return False

    def _is_saved(self, record: Task) -> bool:
        if record["success"] and not record.get("save", Conf.SAVE_LIMIT >= 0):
            return True
        mine = Q(stopped=record["stopped"]) | Q(success=True)
        return bool(SavedTask.objects.filter(mine, id=record["id"]).exists())


def tick_schedules(broker: Broker) -> None:
    """Enqueue the ordinary tasks of this broker's queue whose django-q2 schedule is due; what goes wrong is logged.

    django-q2 takes all due schedules in one transaction, so that one whose arguments cannot be read would keep back all
    others for ever. Here each has its own.
    """
    due = Schedule.objects.exclude(repeats=0).filter(next_run__lt=timezone.now()).order_by("next_run")
    for schedule_id in list(due.values_list("pk", flat=True)):
        with _as_if_alone(schedule_id), _queue_name(broker.list_key):
            scheduler.scheduler(broker)


@contextmanager
def _queue_name(name: str) -> Iterator[None]:
    """django-q2's scheduler serves the schedules of one queue, the one that its configuration names."""
    own = Conf.CLUSTER_NAME
    Conf.CLUSTER_NAME = name
    try:
        yield
    finally:
        Conf.CLUSTER_NAME = own


@contextmanager
def _as_if_alone(schedule_id: int) -> Iterator[None]:
    """What django-q2's scheduler takes for all schedules is this one."""
    scheduler.Schedule = SimpleNamespace(
        objects=Schedule.objects.filter(pk=schedule_id), ONCE=Schedule.ONCE, __name__=Schedule.__name__
    )
    try:
        yield
    finally:
        scheduler.Schedule = Schedule


def serve(source: TaskSource, results: TaskResults, timer: TaskTimer, timeout: int | None) -> None:
    """Execute ordinary tasks in this, the main thread, until the source says stop or the worker is to be recycled.

    `timeout` is the default time-out of a task in seconds. A task that ends django-q2's loop, for example by
    `sys.exit()` or through a broken `pre_execute` receiver, is recorded as failed, and the loop goes on: the
    runs of this process have no part in it.
    """
    while True:
        try:
            django_q_worker(source, results, timer, timeout)
            return
        except (Exception, SystemExit) as error:
            signal.alarm(0)
            timer.value = TaskTimer.IDLE
            task = source.current
            if task is None:
                raise
            log.exception("an ordinary task ended the worker's loop", name=task["name"])
            reason = f"{error} : {traceback.format_exc()}"
            results.put({**task, "result": reason, "success": False, "stopped": timezone.now()})
