"""W7: many due runs in ten queues, three priorities, eight claimers at once: how long a claim takes, and is it fair?"""

import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

import psycopg
from django.db import connection

from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures, percentile
from agentops.benchmark.fill import fill
from agentops.benchmark.works.pages import emptied
from runs.engine import statements
from runs.engine.database import configure, connection_parameters
from runs.models.run import new_id
from runs.states import Status

WORKFLOW = "due"
QUEUES = 10
CLAIMERS = 8
#: Runs that one claim takes: the free slots of an idle worker.
SLOTS = 16
#: Seconds between two claims of one claimer, for what it claimed: 8 × 16 runs each 20 ms are more than such a machine executes.
BETWEEN_S = 0.02


def measure(bench: Bench) -> Figures:
    with emptied(bench):
        return claim_all(bench.size.due)


def claim_all(due: int) -> Figures:
    """Claim so many due runs."""
    make_due(due)
    barrier = Barrier(CLAIMERS)
    with ThreadPoolExecutor(CLAIMERS) as threads:
        done = list(threads.map(lambda number: _claim(number, barrier), range(CLAIMERS)))
    claimed = [run for one in done for run in one.runs]
    samples = [ms for one in done for ms in one.ms]
    return {
        "W7.runs": due,
        "W7.claim_p50_ms": round(percentile(samples, 50), 2),
        "W7.claim_p99_ms": round(percentile(samples, 99), 2),
        "W7.claimed_twice": len(claimed) - len(set(claimed)),
        "W7.not_claimed": due - len(set(claimed)),
        "W7.slowest_queue_share": _slowest_share(done),
    }


def make_due(count: int) -> None:
    """Add so many runs that have been due for up to an hour, spread over the queues and priorities."""
    fill(count, mix={Status.QUEUED: 1}, steps=1, workflow=WORKFLOW)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_run SET queue = 'queue_' || n %% %s, priority = n / 10 %% 3,"
            " wake_at = agentops_now() - interval '1 hour' + n * interval '1 ms',"
            " sort_at = agentops_now() - interval '1 hour' + n * interval '1 ms' - (n / 10 %% 3) * interval '1 minute'"
            " FROM (SELECT id AS run, row_number() OVER () AS n FROM runs_run WHERE status = 'queued' AND workflow = %s)"
            " AS numbered WHERE run = id",
            [QUEUES, WORKFLOW],
        )
        cursor.execute("VACUUM (ANALYZE) runs_run")


def claimer(raw: psycopg.Connection, number: int) -> uuid.UUID:
    """The row of a worker that claims; returns its id."""
    worker = new_id()
    raw.execute(
        "INSERT INTO runs_worker (id, host, pid, process, queues, capabilities, slots, code_version, started_at, beat_at,"
        " beat_until, draining, lost_slots, gone_by) VALUES (%s, 'benchmark', %s, '', '{}', '{}', %s, '', now(), now(),"
        " now() + interval '1 hour', false, 0, '')",
        [worker, number, SLOTS],
    )
    return worker


def claim_once(raw: psycopg.Connection, worker: uuid.UUID, queue: str) -> list[uuid.UUID]:
    """The engine's claim, as an idle worker makes it; returns the runs."""
    parameters = {
        "queue": queue,
        "limit": SLOTS,
        "worker": worker,
        "capabilities": f'{{"{WORKFLOW}@1/step_1"}}',
        "paused": [],
        "timeouts": "{}",
    }
    return [row[0] for row in raw.execute(statements.CLAIM, parameters, prepare=True).fetchall()]


@dataclass
class _Claimed:
    runs: list[uuid.UUID] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    queues: list[tuple[float, str]] = field(default_factory=list)
    """When each run was claimed, and from which queue."""


def _claim(number: int, barrier: Barrier) -> _Claimed:
    """What a worker does that serves all queues in turn, until all of them are empty; nothing is executed."""
    done, empty, turn = _Claimed(), 0, number
    with psycopg.connect(**connection_parameters(), autocommit=True) as raw:
        configure(raw)
        worker = claimer(raw, number)
        barrier.wait()
        while empty < QUEUES:
            queue, turn = f"queue_{turn % QUEUES}", turn + 1
            began = time.perf_counter()
            runs = claim_once(raw, worker, queue)
            ended = time.perf_counter()
            empty = 0 if runs else empty + 1
            if runs:
                done.ms.append((ended - began) * 1000)
                done.runs += runs
                done.queues += [(ended, queue)] * len(runs)
                time.sleep(BETWEEN_S)
    return done


def _slowest_share(done: list[_Claimed]) -> float:
    """When half of all runs were claimed: claims from the queue that had the fewest, as part of an even share."""
    order = sorted(place for one in done for place in one.queues)
    half = Counter(queue for _, queue in order[: len(order) // 2])
    if not half:
        return 0.0
    return round(min(half[f"queue_{n}"] for n in range(QUEUES)) / (len(order) // 2 / QUEUES), 3)
