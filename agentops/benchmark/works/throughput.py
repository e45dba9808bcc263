"""W1 and W1b: ten-step runs, all at once, in turns with the floor: of trivial steps, and with one effect in each step."""

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
from agentops.benchmark.workers import Memory
from agentops.benchmark.workflows import STEPS

ROUND_LIMIT_S = 120.0


@dataclass
class Wal:
    """Bytes written to the log inside the block; `images` are its full-page images, 0 where nobody can tell them apart."""

    records: int = 0
    images: int = 0


@dataclass(frozen=True, slots=True)
class _Measured:
    """Medians over the rounds; per step, claims, beats and the end of runs included."""

    floors: list[dict[int, float]]
    steps_per_s: float
    commits_per_step: float
    wal_bytes_per_step: int
    wal_image_bytes_per_step: int
    memory: Memory


def measure_floor(bench: Bench) -> Figures:
    with floor(scratch.url(scratch.FLOOR)) as made:
        return _floor_figures([_floor_round(made, bench) for _ in range(bench.size.rounds)], "floor.")


def measure(bench: Bench) -> Figures:
    """W1, and the floor."""
    with floor(scratch.url(scratch.FLOOR)) as made:
        measured = _measure(bench, made, "benchmark_ten")
    figures = _floor_figures(measured.floors, "floor.")
    ratio = round(measured.steps_per_s / figures["floor.steps_per_s"], 3)
    figures |= {
        "W1.steps_per_s": measured.steps_per_s,
        "W1.ratio_to_floor": ratio,
        "W1.commits_per_step": measured.commits_per_step,
        "W1.wal_bytes_per_step": measured.wal_bytes_per_step,
        "W1.wal_image_bytes_per_step": measured.wal_image_bytes_per_step,
        "W1.heap_only_updates": _heap_only(),
        "memory.processes": measured.memory.processes,
        "memory.rss_mb": measured.memory.rss,
    }
    if measured.memory.pss is not None:
        figures["memory.pss_mb"] = measured.memory.pss
    return figures


def measure_effects(bench: Bench) -> Figures:
    """W1b, and the floor beside which it was measured."""
    with floor(scratch.url(scratch.FLOOR)) as made:
        measured = _measure(bench, made, "benchmark_ten_effects")
    figures = _floor_figures(measured.floors, "W1b.floor_")
    ratio = round(measured.steps_per_s / figures["W1b.floor_steps_per_s"], 3)
    return figures | {
        "W1b.steps_per_s": measured.steps_per_s,
        "W1b.ratio_to_floor": ratio,
        "W1b.commits_per_step": measured.commits_per_step,
        "W1b.wal_bytes_per_step": measured.wal_bytes_per_step,
    }


def _floor_round(made: Floor, bench: Bench) -> dict[int, float]:
    return {n: made.steps_per_s(n, bench.size.floor_s) for n in CONNECTIONS}


def _floor_figures(rounds: list[dict[int, float]], prefix: str) -> Figures:
    """The best number of connections, by the median of the rounds."""
    medians = {n: median(r[n] for r in rounds) for n in CONNECTIONS}
    best = max(medians, key=lambda n: medians[n])
    return {f"{prefix}steps_per_s": round(medians[best]), f"{prefix}connections": best}


def _measure(bench: Bench, made: Floor, workflow: str) -> _Measured:
    """Rounds of the floor and of ten-step runs of this workflow, in turns."""
    size = bench.size
    floors: list[dict[int, float]] = []
    rates: list[float] = []
    log = Wal()
    before = _commits(bench)
    with bench.workers() as workers:
        warm = size.runs // 5 + 1
        ten_step_round(bench, workflow, 0, warm)
        for number in range(size.rounds):
            floors.append(_floor_round(made, bench))
            # From here on the first change of a page writes an image of it: those are counted apart.
            bench.server.execute("CHECKPOINT")
            with logged(bench, log):
                rates.append(ten_step_round(bench, workflow, (number + 1) * 1_000_000, size.runs))
        memory = workers.memory()
    steps = size.runs * size.rounds * STEPS
    return _Measured(
        floors=floors,
        steps_per_s=round(median(rates), 1),
        commits_per_step=round((_commits(bench) - before) / (steps + warm * STEPS), 3),
        wal_bytes_per_step=round(log.records / steps),
        wal_image_bytes_per_step=round(log.images / steps),
        memory=memory,
    )


def ten_step_round(bench: Bench, workflow: str, first: int, count: int) -> float:
    """Steps per second from the moment when the runs are enqueued, or the first one is begun, to the last one's end."""
    runs = bench.start_many(workflow, first, count)
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
def logged(bench: Bench, log: Wal) -> Iterator[None]:
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
