"""W5: a table full of runs that wait for signals and moments: W1 to W3 on it, in turns with an empty one."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from django.db import connection
from psycopg import sql

from agentops.benchmark import scratch
from agentops.benchmark.bench import ACTOR, Bench
from agentops.benchmark.figures import Figures, percentile
from agentops.benchmark.fill import fill
from agentops.benchmark.works.resume import park
from agentops.benchmark.works.throughput import ten_step_round as ten_steps
from runs import services
from runs.states import Status

PARKED = "agentops_benchmark_parked"
WARM = 3


def measure(bench: Bench) -> Figures:
    size, empty, full = bench.size, scratch.ENGINE, PARKED
    seen: dict[str, list[dict[str, float]]] = {empty: [], full: []}
    with (
        _parked_database(bench),
        bench.workers() as ours,
        bench.workers(environment={"DATABASE_URL": scratch.url(PARKED)}) as theirs,
    ):
        for pair in range(size.pairs + 1):
            # Which one comes first changes from pair to pair. The first pair warms both.
            for name in (empty, full) if pair % 2 else (full, empty):
                with on(name):
                    found = _round(bench, pair)
                if pair:
                    seen[name].append(found)
        memory = {empty: ours.memory(), full: theirs.memory()}
    figures: Figures = {"W5.runs": size.many, "W5.pairs": size.pairs}
    for key in ("step_s", "idle_ms", "resume_ms"):
        ratios = [theirs[key] / ours[key] for ours, theirs in zip(seen[empty], seen[full], strict=True)]
        figures[f"W5.{key.partition('_')[0]}_ratio"] = round(median(ratios), 3)
    figures["W5.memory_mb"] = memory[full].pss or memory[full].rss
    figures["W5.memory_empty_mb"] = memory[empty].pss or memory[empty].rss
    return figures


def _round(bench: Bench, pair: int) -> dict[str, float]:
    """W1, W2 and W3 at a small size: seconds per step, and medians of the two latencies."""
    samples = max(2, bench.size.samples // 6)
    rate = ten_steps(bench, "benchmark_ten", (pair + 1) * 1_000_000, bench.size.runs)
    idle = []
    for number in range(WARM + samples):
        time.sleep(0.03)
        called = time.monotonic()
        bench.start("benchmark_idle", number)
        idle.append(bench.trace.one(number, {"idle"}, 30, "the first line of the step").at - called)
    resume = []
    for number, run_id in enumerate(park(bench, "benchmark_listening", WARM + samples)):
        time.sleep(0.03)
        called = time.monotonic()
        _signal(run_id)
        resume.append(bench.trace.one(number, {"signalled"}, 30, "the line after the wait").at - called)
    return {
        "step_s": 1 / rate,
        "idle_ms": percentile(idle[WARM:], 50),
        "resume_ms": percentile(resume[WARM:], 50),
    }


def _signal(run_id: uuid.UUID) -> None:
    services.receive_signal(
        ACTOR, name="benchmark", payload={}, external_id=str(run_id), source="benchmark", run_id=run_id
    )


@contextmanager
def _parked_database(bench: Bench) -> Iterator[None]:
    """A second scratch database, migrated like the first, with all the runs that wait."""
    connection.close()
    name = sql.Identifier(PARKED)
    bench.server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
    bench.server.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, sql.Identifier(scratch.ENGINE))
    )
    try:
        with on(PARKED):
            fill(bench.size.many, mix={Status.WAITING: 1}, steps=1, timers=True)
            with connection.cursor() as cursor:
                cursor.execute("VACUUM (ANALYZE)")
        bench.server.execute("CHECKPOINT")
        yield
    finally:
        connection.close()
        bench.server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


@contextmanager
def on(database: str) -> Iterator[None]:
    """Point this process at another of the scratch databases."""
    before = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = database
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before
