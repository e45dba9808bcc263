"""Runs and calls under a limit of concurrency or rate: a place is asked for before they begin, and given back after.

How many are under way is counted from live leases, while the limit's row is locked (see the migration `0009_limits`, where the
SQL functions are): a process that is killed frees its places when its lease is over. A run that finds no place is parked,
and holds no worker. Whatever frees a place makes parked runs due again, and each worker's sweep does.

Runs of a workflow, step and queue without limits never come here.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from django.conf import settings
from django.db import connection

from runs import registry
from runs.engine import statements
from runs.engine.database import UNSURE, Database
from runs.engine.execution import dumps
from runs.policies import Kept

log = structlog.get_logger(__name__)

#: Runs that one re-arming makes due at most, for each limit.
BATCH = 500

CLAIM = """
SELECT claimed, was, parked FROM agentops_claim_limited(%(queue)s, %(limit)s, %(worker)s, %(capabilities)s::text[],
    %(paused)s::text[], %(timeouts)s::jsonb, %(declared)s::jsonb, %(lease)s, %(alone)s)
"""

#: What the claim has taken: the function above cannot return rows as they are after its own update.
CLAIMED = f"""
SELECT {statements.CLAIMED} FROM unnest(%(claimed)s::uuid[], %(was)s::text[]) WITH ORDINALITY AS due (id, was, place)
JOIN runs_run r ON r.id = due.id WHERE r.worker_id = %(worker)s AND r.status || '' = 'running' ORDER BY due.place
"""

#: '' for a place, else the hold that is in the way.
ENTER = """
SELECT agentops_enter_call(%(key)s, %(call)s, %(run)s, %(worker)s, %(declared)s::jsonb, %(lease)s)
"""

REARM = "SELECT agentops_rearm_limited(%(keys)s::text[], %(declared)s::jsonb, %(lease)s, %(most)s)"

LEAVE = "DELETE FROM runs_limited_call WHERE id = ANY(%(calls)s) RETURNING key"


def claim(
    database: Database, parameters: Mapping[str, Any], *, alone: bool
) -> tuple[list[tuple[Any, ...]], bool]:
    """Claim due runs under their limits: their rows, as an ordinary claim returns them, and whether some were parked.

    `parameters` are those of an ordinary claim. What is lost between the two statements is handed back by reconciliation.
    """
    more = {
        "declared": dumps(registry.declared_limits()),
        "lease": settings.AGENTOPS_LEASE_SECONDS,
        "alone": alone,
    }
    claimed, was, parked = database.all(CLAIM, {**parameters, **more})[0]
    if not claimed:
        return [], parked > 0
    taken = {"claimed": claimed, "was": was, "worker": parameters["worker"]}
    return database.all(CLAIMED, taken), parked > 0


def rearm(keys: Iterable[str] | None = None) -> int:
    """Make parked runs due for which there is room now; of these limits, or of all. Returns how many.

    On Django's connection: verbs and sweeps call it.
    """
    with connection.cursor() as cursor:
        cursor.execute(REARM, _rearm_parameters(keys))
        return int(cursor.fetchone()[0])


def _rearm_parameters(keys: Iterable[str] | None) -> dict[str, Any]:
    return {
        "keys": None if keys is None else sorted(keys),
        "declared": dumps(registry.declared_limits()),
        "lease": settings.AGENTOPS_LEASE_SECONDS,
        "most": BATCH,
    }


def forget_calls_of_the_ended() -> int:
    """Remove calls of workers that have ended; they do not count any more. Returns how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM runs_limited_call c USING runs_worker w WHERE w.id = c.worker_id AND w.closed_at IS NOT NULL"
        )
        return int(cursor.rowcount)


class Places:
    """Places of this worker under limits: calls ask for them here, and what is free again is told on a thread of its own.

    What is lost here (the process is killed, the database is away) is found by the sweeps: a call counts while its worker's
    lease is live, a run while a worker has it.
    """

    #: Seconds between two rounds: of a thousand short runs that end one after the other not each re-arms another.
    PAUSE = 0.005

    def __init__(self, worker_id: uuid.UUID, database: Database, kept: Callable[[], Kept]) -> None:
        self.worker_id, self.database, self._kept = worker_id, database, kept
        self._freed: set[str] = set()
        self._left: set[uuid.UUID] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="places", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Tell what is left, and end."""
        self._over = True
        self._wake.set()
        self._thread.join(5)

    def is_limited(self, tool: str) -> bool:
        key = f"tool {tool}"
        kept = self._kept()
        return key in kept.concurrent or key in kept.rated

    def entry(self, key: str, call: uuid.UUID, run_id: uuid.UUID) -> dict[str, Any]:
        """Parameters of ENTER, which can be repeated: the same call keeps the place that it has."""
        return {
            "key": key,
            "call": call,
            "run": run_id,
            "worker": self.worker_id,
            "declared": dumps(registry.declared_limits()),
            "lease": settings.AGENTOPS_LEASE_SECONDS,
        }

    def leave(self, call: uuid.UUID) -> None:
        """The call has ended, whatever came of it."""
        with self._lock:
            self._left.add(call)
        self._wake.set()

    def left_step(self, workflow: str, step: str, queue: str, *, stays: bool) -> None:
        """A run is not executed at this step any more; with `stays`, this worker goes on with it at another one."""
        held = self._kept().held_at(workflow, step, queue)
        freed = [key for key in held if not stays or key.startswith("step ")]
        if freed:
            with self._lock:
                self._freed.update(freed)
            self._wake.set()

    def look_again(self, key: str) -> None:
        """A run was parked under this limit: a place that became free in between was told to nobody."""
        with self._lock:
            self._freed.add(key)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                freed, self._freed = self._freed, set()
                left, self._left = self._left, set()
            try:
                if left:
                    freed |= {row[0] for row in self.database.all(LEAVE, {"calls": list(left)})}
                    left = set()
                if freed:
                    self.database.all(REARM, _rearm_parameters(freed))
            except UNSURE as error:
                log.warning("places.later", error=str(error))
                with self._lock:
                    self._left |= left  # they would count until this worker ends
                    pending = bool(self._left)
                if pending and not self._over:
                    time.sleep(0.3)
                    self._wake.set()
            except Exception:
                log.exception("places.failed", calls=len(left))
            if self._over and not self._wake.is_set():
                return
            time.sleep(self.PAUSE)
