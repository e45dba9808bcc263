"""W1: ten-step runs of trivial steps, all at once, in turns with the floor."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from django.db import NotSupportedError, ProgrammingError, connection

from agentops.benchmark import scratch
from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures
from agentops.benchmark.floor import CONNECTIONS, Floor, floor
from agentops.benchmark.workflows import STEPS

ROUND_LIMIT_S = 120.0


@dataclass
class Wal:
    """Bytes written to the log inside the block; `images` are its full-page images, 0 where nobody can tell them apart."""

    records: int = 0
    images: int = 0


def measure(bench: Bench, *, engine: bool) -> Figures:
    """The floor, and the engine's steps if wanted."""
    with floor(scratch.url(scratch.FLOOR)) as made:
        if not engine:
            return _floor_figures([_floor_round(made, bench) for _ in range(bench.size.rounds)])
        return _with_engine(bench, made)


def _floor_round(made: Floor, bench: Bench) -> dict[int, float]:
    return {n: made.steps_per_s(n, bench.size.floor_s) for n in CONNECTIONS}


def _floor_figures(rounds: list[dict[int, float]]) -> Figures:
    """The best number of connections, by the median of the rounds."""
    medians = {n: median(r[n] for r in rounds) for n in CONNECTIONS}
    best = max(medians, key=lambda n: medians[n])
    return {"floor.steps_per_s": round(medians[best]), "floor.connections": best}


def _with_engine(bench: Bench, made: Floor) -> Figures:
    size = bench.size
    floors: list[dict[int, float]] = []
    rates: list[float] = []
    log = Wal()
    before = _commits(bench)
    with bench.workers() as workers:
        warm = size.runs // 5 + 1
        _round(bench, 0, warm)
        for number in range(size.rounds):
            floors.append(_floor_round(made, bench))
            # From here on the first change of a page writes an image of it: those are counted apart.
            bench.server.execute("CHECKPOINT")
            with _wal(bench, log):
                rates.append(_round(bench, (number + 1) * 1_000_000, size.runs))
        memory = workers.memory()
    steps = size.runs * size.rounds * STEPS
    figures = _floor_figures(floors)
    figures |= {
        "W1.steps_per_s": round(median(rates), 1),
        "W1.ratio_to_floor": round(median(rates) / figures["floor.steps_per_s"], 3),
        "W1.commits_per_step": round((_commits(bench) - before) / (steps + warm * STEPS), 3),
        "W1.wal_bytes_per_step": round(log.records / steps),
        "W1.wal_image_bytes_per_step": round(log.images / steps),
        "W1.heap_only_updates": _heap_only(),
        "memory.processes": memory.processes,
        "memory.rss_mb": memory.rss,
    }
    if memory.pss is not None:
        figures["memory.pss_mb"] = memory.pss
    return figures


def _round(bench: Bench, first: int, count: int) -> float:
    """Steps per second from the moment when the runs are enqueued, or the first one is begun, to the last one's end."""
    runs = bench.start_many("benchmark_ten", first, count)
    enqueued = _ask("SELECT clock_timestamp()")
    bench.trace.wait(
        lambda mark: mark.what == "ten" and mark.number >= first,
        count,
        ROUND_LIMIT_S,
        "the last steps of all runs",
    )
    # The last line of a run comes before its last commit.
    unfinished = "SELECT count(*) FROM runs_run WHERE id = ANY(%s) AND finished_at IS NULL"
    end = time.monotonic() + ROUND_LIMIT_S
    while _ask(unfinished, runs) and time.monotonic() < end:
        time.sleep(0.05)
    seconds = _ask(
        "SELECT extract(epoch FROM max(r.finished_at) - least(%s, (SELECT min(started_at) FROM runs_attempt"
        " WHERE run_id = ANY(%s))))::float8 FROM runs_run r WHERE id = ANY(%s)",
        enqueued,
        runs,
        runs,
    )
    return count * STEPS / float(seconds)


def _ask(query: str, *parameters: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        row = cursor.fetchone()
    return row[0]


def _heap_only() -> float:
    share = _ask(
        "SELECT round(n_tup_hot_upd::numeric / greatest(n_tup_upd, 1), 3) FROM pg_stat_user_tables WHERE relname = 'runs_run'"
    )
    return float(share)


def _commits(bench: Bench) -> int:
    """Commits in the engine's database so far. Ours are told before they count, those of ended sessions are in."""
    connection.close()
    bench.server.execute("SELECT pg_stat_clear_snapshot()")
    row = bench.server.execute(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", [scratch.ENGINE]
    ).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def _wal(bench: Bench, log: Wal) -> Iterator[None]:
    """Add what is logged inside the block, by all of the server."""
    begun = _lsn(bench)
    yield
    ended = _lsn(bench)
    row = bench.server.execute("SELECT pg_wal_lsn_diff(%s, %s)", [ended, begun]).fetchone()
    assert row is not None
    images = _images(begun, ended)
    log.images += images
    log.records += int(row[0]) - images


def _lsn(bench: Bench) -> str:
    row = bench.server.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    return str(row[0])


def _images(begun: str, ended: str) -> int:
    """Bytes of full-page images between two places of the log; 0 without pg_walinspect: then they count as records."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
            cursor.execute("SELECT coalesce(sum(fpi_size), 0) FROM pg_get_wal_stats(%s, %s)", [begun, ended])
            return int(cursor.fetchone()[0])
    except (NotSupportedError, ProgrammingError):  # it is not installed, or this user may not use it
        return 0
