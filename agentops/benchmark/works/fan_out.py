"""W9: one parent that starts many children and waits for all of them, in turns with as many runs that nobody waits for."""

import time
from statistics import median
from typing import Any

from django.db import connection

from agentops.benchmark.bench import ACTOR, Bench
from agentops.benchmark.figures import Figures
from agentops.benchmark.trace import TooSlow
from runs import services

LIMIT_S = 300.0

_OPEN = """
SELECT EXISTS (SELECT FROM runs_run WHERE workflow = %s AND status IN ('queued', 'running', 'waiting', 'retrying') LIMIT 1)
"""
_TOOK = "SELECT extract(epoch FROM max(finished_at) - %s)::float8 FROM runs_run WHERE workflow = %s AND finished_at > %s"


def measure(bench: Bench) -> Figures:
    plain: list[tuple[float, float]] = []
    families: list[float] = []
    count = bench.size.children
    with bench.workers():
        _family(10)
        _plain(bench, 10)
        for number in range(bench.size.rounds):
            # Neither always follows the other.
            if number % 2:
                families.append(_family(count))
            plain.append(_plain(bench, count))
            if not number % 2:
                families.append(_family(count))
    starting, executing = (median(part) for part in zip(*plain, strict=True))
    return {
        "W9.children": count,
        "W9.plain_start_s": round(starting, 2),
        "W9.plain_execute_s": round(executing, 2),
        "W9.family_s": round(median(families), 2),
        "W9.ratio_to_plain": round(median(families) / (starting + executing), 2),
        "W9.ratio_to_executing": round(median(families) / executing, 2),
        "W9.executions_of_parent": _ask(
            "SELECT max(tries) FROM (SELECT count(*) AS tries FROM runs_attempt a JOIN runs_run r ON r.id = a.run_id"
            " WHERE r.workflow = 'benchmark_family' GROUP BY r.id) AS each"
        ),
    }


def _plain(bench: Bench, count: int) -> tuple[float, float]:
    """Seconds until all are started, in one transaction, and from then to the last one's end."""
    begun = _ask("SELECT clock_timestamp()")
    bench.start_many("benchmark_leaf", 0, count)
    started = _ask("SELECT clock_timestamp()")
    return (started - begun).total_seconds(), _until_ended("benchmark_leaf", started)


def _family(count: int) -> float:
    """Seconds from the call that starts the parent to its end."""
    begun = _ask("SELECT clock_timestamp()")
    services.start(ACTOR, "benchmark_family", {"n": count})
    return _until_ended("benchmark_family", begun)


def _until_ended(workflow: str, begun: Any) -> float:
    end = time.monotonic() + LIMIT_S
    while _ask(_OPEN, workflow):
        if time.monotonic() > end:
            raise TooSlow(f"not within {LIMIT_S:g} s: all runs of {workflow} end")
        time.sleep(0.1)
    return float(_ask(_TOOK, begun, workflow, begun))


def _ask(query: str, *parameters: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        row = cursor.fetchone()
    return row[0]
