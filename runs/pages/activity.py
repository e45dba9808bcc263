"""What pages show of queues and of what workers do: how much is due and since when, how much is done, and how fast.

The numbers of what is done come from `Activity`, which workers write every few seconds; those of what is due from the runs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connection

from runs import clock
from runs.models import Activity
from runs.models.worker import BINS
from runs.selectors import COUNT_LIMIT

#: What charts show, and in how many bars.
SHOWN, BARS = timedelta(hours=24), 48
#: What is kept for them.
KEPT = timedelta(days=14)

#: Queues by name: a skip through run_due, one look a queue. Of each what is due, up to a limit, in the order of claims; and
#: behind that the live workers of each queue (worker_open).
_DUE = """
WITH RECURSIVE names AS (
    (SELECT queue FROM runs_run WHERE sort_at IS NOT NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM runs_run r WHERE r.sort_at IS NOT NULL AND r.queue > n.queue ORDER BY r.queue LIMIT 1)
    FROM names n WHERE n.queue IS NOT NULL
)
SELECT n.queue, due.many, extract(epoch FROM agentops_now() - due.oldest)::float8 AS oldest_s, NULL::bigint AS workers,
    NULL::bigint AS draining
FROM names n CROSS JOIN LATERAL (
    SELECT count(*) AS many, min(wake_at) AS oldest FROM (
        SELECT r.wake_at FROM runs_run r
        WHERE r.queue = n.queue AND r.sort_at <= agentops_now() AND r.wake_at <= agentops_now()
        ORDER BY r.sort_at LIMIT %(limit)s) AS some_of
) AS due WHERE n.queue IS NOT NULL
UNION ALL
SELECT queue, NULL, NULL, count(*), count(*) FILTER (WHERE draining) FROM runs_worker, unnest(queues) AS queue
WHERE closed_at IS NULL AND beat_until > statement_timestamp() GROUP BY queue
"""

#: By queue and bar; `bar` 0 is the oldest. The primary key's index, by time.
_DONE = """
SELECT queue, floor(extract(epoch FROM at - (agentops_now() - make_interval(secs => %(shown)s))) / %(bar)s)::int AS bar,
    sum(started), sum(completed), sum(steps), sum(failed)
FROM runs_activity WHERE at > agentops_now() - make_interval(secs => %(shown)s) GROUP BY 1, 2
"""

#: Of the last hour, by queue and bin.
_LATENCY = """
SELECT a.queue, u.n::int, sum(u.w), sum(u.t)
FROM runs_activity a CROSS JOIN LATERAL unnest(a.waits, a.times) WITH ORDINALITY AS u (w, t, n)
WHERE a.at > agentops_now() - interval '1 hour' AND (u.w > 0 OR u.t > 0) GROUP BY 1, 2
"""


@dataclass
class Queue:
    """One queue as people see it."""

    name: str
    due: int = 0
    """Runs that wait for a free worker, up to COUNT_LIMIT + 1."""
    oldest_s: float | None = None
    """How long the one that has waited longest is due already."""
    workers: int = 0
    """Live ones that look at it."""
    draining: int = 0
    started: list[int] = field(default_factory=lambda: [0] * BARS)
    steps: list[int] = field(default_factory=lambda: [0] * BARS)
    failed: list[int] = field(default_factory=lambda: [0] * BARS)
    completed: list[int] = field(default_factory=lambda: [0] * BARS)
    waits: list[int] = field(default_factory=lambda: [0] * BINS)
    times: list[int] = field(default_factory=lambda: [0] * BINS)

    @property
    def unserved(self) -> bool:
        return bool(self.due) and self.workers == self.draining

    @property
    def hour(self) -> int:
        """Steps in the last hour."""
        return sum(self.steps[-BARS // 24 :])

    @property
    def typical_wait(self) -> str:
        return at_most(self.waits, 0.5)

    @property
    def slow_wait(self) -> str:
        return at_most(self.waits, 0.95)

    @property
    def typical_step(self) -> str:
        return at_most(self.times, 0.5)

    @property
    def slow_step(self) -> str:
        return at_most(self.times, 0.95)


def queues() -> list[Queue]:
    """Every queue with runs due or to come, with a live worker, or in which something was done lately. Three queries."""
    found: defaultdict[str, Queue] = _done()
    look_at_queues(found)
    with connection.cursor() as cursor:
        cursor.execute(_LATENCY)
        for name, place, waits, times in cursor.fetchall():
            found[name].waits[place - 1], found[name].times[place - 1] = waits, times
    return [found[name] for name in sorted(found)]


def look_at_queues(found: "defaultdict[str, Queue] | None" = None) -> "defaultdict[str, Queue]":
    """What is due in each queue, and who looks at it. One query."""
    found = _Queues() if found is None else found
    with connection.cursor() as cursor:
        cursor.execute(_DUE, {"limit": COUNT_LIMIT + 1})
        for name, due, oldest_s, workers, draining in cursor.fetchall():
            queue = found[name]
            if due is not None:
                queue.due, queue.oldest_s = due, oldest_s
            else:
                queue.workers, queue.draining = workers, draining
    return found


def _done() -> "defaultdict[str, Queue]":
    found: defaultdict[str, Queue] = _Queues()
    bar = SHOWN.total_seconds() / BARS
    with connection.cursor() as cursor:
        cursor.execute(_DONE, {"shown": SHOWN.total_seconds(), "bar": bar})
        for name, place, started, completed, steps, failed in cursor.fetchall():
            queue, place = found[name], min(max(place, 0), BARS - 1)
            queue.started[place] += started
            queue.completed[place] += completed
            queue.steps[place] += steps
            queue.failed[place] += failed
    return found


class _Queues(defaultdict[str, Queue]):
    def __missing__(self, name: str) -> Queue:
        made = self[name] = Queue(name)
        return made


@dataclass(frozen=True)
class Day:
    """What all queues did in the last 24 hours, in BARS parts, the oldest first."""

    completed: Sequence[int]
    failed: Sequence[int]
    """Attempts that ended with an error, those that were retried included."""
    steps: Sequence[int]


def day() -> Day:
    """One query."""
    rows = list(_done().values())
    return Day(
        completed=[sum(values) for values in zip(*(one.completed for one in rows), strict=True)]
        or [0] * BARS,
        failed=[sum(values) for values in zip(*(one.failed for one in rows), strict=True)] or [0] * BARS,
        steps=[sum(values) for values in zip(*(one.steps for one in rows), strict=True)] or [0] * BARS,
    )


def at_most(bins: Sequence[int], part: float) -> str:
    """A time that so large a part of what the bins count did not exceed, as words; "" where they count nothing.

    Bins double, so it is up to twice the true value: said as “under”.
    """
    left = sum(bins) * part
    if not left:
        return ""
    place = -1
    while left > 0:
        place += 1
        left -= bins[place]
    if place == BINS - 1:
        return "over 2 min"
    ms = 2**place
    return f"under {ms} ms" if ms < 1000 else f"under {ms / 1000:.0f} s"


def forget_old() -> int:
    """Delete what no chart shows any more; how many rows that were."""
    deleted, _ = Activity.objects.filter(at__lt=clock.now() - KEPT).delete()
    return deleted


def shown(queue: Queue) -> Mapping[str, Any]:
    """What a page shows of a queue, for its tag."""
    return {
        "due": queue.due,
        "workers": queue.workers,
        "steps": queue.steps,
        "oldest": int(queue.oldest_s or 0) // 10,
    }
