"""How lists, search, the page of a long run and claims get on as the table grows: at a hundredth, a tenth and all of its rows."""

import time

import psycopg

from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures, percentile
from agentops.benchmark.fill import fill
from agentops.benchmark.works.claims import SLOTS, claim_once, claimer, make_due
from agentops.benchmark.works.pages import ATTEMPTS, ask, emptied, long_run
from runs.engine.database import configure, connection_parameters

#: Claims of one round.
CLAIMS = 100
#: What is drawn, in this order.
LINES = {
    "list": "list of runs",
    "search": "search",
    "run": "page of a run with 5,000 attempts",
    "claim": "claim of 16 runs",
}


def measure(bench: Bench) -> Figures:
    figures: Figures = {}
    with emptied(bench):
        there = 0
        for rows in sizes(bench.size.many):
            fill(rows - there)
            there = rows
            run = long_run(min(ATTEMPTS, rows))
            asked = ask(run, bench.size.asks)
            for group in ("list", "search", "run"):
                mine = [one.ms for name, one in asked.items() if name.startswith(f"{group} ")]
                figures[f"growth.{rows}.{group}_p95_ms"] = round(max(percentile(ms, 95) for ms in mine), 1)
            figures[f"growth.{rows}.claim_p95_ms"] = round(percentile(_claims(bench), 95), 1)
    return figures


def sizes(many: int) -> tuple[int, ...]:
    return (max(many // 100, 1), max(many // 10, 2), many)


def _claims(bench: Bench) -> list[float]:
    """Milliseconds of claims by one claimer, among everything that is not due."""
    count = CLAIMS if bench.size.asks > 1 else 2
    make_due(count * SLOTS)
    samples = []
    with psycopg.connect(**connection_parameters(), autocommit=True) as raw:
        configure(raw)
        worker = claimer(raw, 0)
        for number in range(count):
            began = time.perf_counter()
            claim_once(raw, worker, f"queue_{number % 10}")
            samples.append((time.perf_counter() - began) * 1000)
    return samples
