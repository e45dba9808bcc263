"""What a worker does, counted for charts: nothing is decided by it.

Counted in memory, and added to a row of `runs_activity` every few seconds, so that a step pays for it with a few additions. A
worker that is killed takes its last seconds with it.
"""

import threading
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from runs.engine.database import Database
from runs.engine.execution import dumps
from runs.models.worker import BINS

#: Seconds between two additions to the database.
EVERY = 5.0

#: One row for each five minutes, worker and queue; several workers never meet in one.
ADD = """
INSERT INTO runs_activity AS a (at, worker_id, queue, started, completed, steps, suspended, failed, waits, times)
SELECT date_bin('5 minutes', agentops_now(), 'epoch'), %(worker)s, p.queue, p.started, p.completed, p.steps, p.suspended,
    p.failed, p.waits, p.times
FROM json_to_recordset(%(rows)s::json) AS p(queue text, started integer, completed integer, steps integer, suspended integer,
    failed integer, waits integer[], times integer[])
ON CONFLICT (at, worker_id, queue) DO UPDATE SET started = a.started + excluded.started,
    completed = a.completed + excluded.completed, steps = a.steps + excluded.steps,
    suspended = a.suspended + excluded.suspended, failed = a.failed + excluded.failed,
    waits = ARRAY(SELECT x + y FROM unnest(a.waits, excluded.waits) WITH ORDINALITY AS t (x, y, n) ORDER BY n),
    times = ARRAY(SELECT x + y FROM unnest(a.times, excluded.times) WITH ORDINALITY AS t (x, y, n) ORDER BY n)
RETURNING 1
"""


@dataclass
class _Counts:
    started: int = 0
    completed: int = 0
    steps: int = 0
    suspended: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * BINS)
    times: list[int] = field(default_factory=lambda: [0] * BINS)


def bin_of(seconds: float) -> int:
    """Bin 0 holds what takes less than a millisecond, bin n what takes less than 2^n of them, the last one all the rest."""
    return min(BINS - 1, max(0, int(seconds * 1000)).bit_length())


class Tally:
    """Counts of one worker since they were last added to the database; used by all its slots."""

    def __init__(self, worker_id: uuid.UUID, database: Database) -> None:
        self.worker_id, self.database = worker_id, database
        self._counts: defaultdict[str, _Counts] = defaultdict(_Counts)
        self._lock = threading.Lock()

    def started(self, queue: str, waited: float) -> None:
        """A new run was claimed for the first time, `waited` seconds after its start."""
        with self._lock:
            counts = self._counts[queue]
            counts.started += 1
            counts.waits[bin_of(waited)] += 1

    def stepped(self, queue: str, took: float, *, completed: bool) -> None:
        """An attempt succeeded after `took` seconds; `completed`: and with it the run."""
        with self._lock:
            counts = self._counts[queue]
            counts.steps += 1
            counts.completed += completed
            counts.times[bin_of(took)] += 1

    def ended(self, queue: str, *, suspended: bool) -> None:
        """An attempt ended otherwise: to wait, or with an error."""
        with self._lock:
            counts = self._counts[queue]
            counts.suspended += suspended
            counts.failed += not suspended

    def add(self) -> None:
        """Add what was counted to the database. Raises one of UNSURE if that was lost: then these counts are, too."""
        with self._lock:
            counts, self._counts = self._counts, defaultdict(_Counts)
        if counts:
            rows: list[dict[str, Any]] = [{"queue": queue, **vars(one)} for queue, one in counts.items()]
            self.database.once(ADD, {"worker": self.worker_id, "rows": dumps(rows)})
