"""Figures, what is wanted of them, and the table that people read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

type Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Wanted:
    at: Literal["least", "most"]
    value: float

    def holds(self, figure: float) -> bool:
        return figure >= self.value if self.at == "least" else figure <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.at == 'least' else '≤'} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Meaning:
    says: str
    unit: str = ""
    wanted: Wanted | None = None


#: Every key of the report, in the order of the table.
MEANINGS: Mapping[str, Meaning] = {
    "floor.steps_per_s": Meaning("one CTE statement per step, best number of connections", "/s"),
    "floor.connections": Meaning("how many connections that was"),
    "W1.steps_per_s": Meaning("steps of ten-step runs, all enqueued at once", "/s"),
    "W1.ratio_to_floor": Meaning("of the floor, measured in turns with it", wanted=Wanted("least", 0.3)),
    "W1.commits_per_step": Meaning("commits per step, claims and beats included", wanted=Wanted("most", 1.2)),
    "W1.wal_bytes_per_step": Meaning("WAL per step, full-page images aside", "B", Wanted("most", 1024)),
    "W1.wal_image_bytes_per_step": Meaning("full-page images per step after a checkpoint", "B"),
    "W1.heap_only_updates": Meaning("share of updates of runs that wrote no index", ""),
    "W2.p50_ms": Meaning(
        "idle start: enqueue call to first line of the step, median", "ms", Wanted("most", 15)
    ),
    "W2.p99_ms": Meaning("the slowest of a hundred", "ms", Wanted("most", 50)),
    "W3.p50_ms": Meaning("approval: decision to next line of the step, median", "ms", Wanted("most", 15)),
    "W3.p99_ms": Meaning("the slowest of a hundred", "ms", Wanted("most", 50)),
    "W3.signal_p50_ms": Meaning("signal to next line of the step, median", "ms", Wanted("most", 15)),
    "W3.signal_p99_ms": Meaning("the slowest of a hundred", "ms", Wanted("most", 50)),
    "W4.recovery_s": Meaning(
        "kill -9 of a busy worker to its step's next try, worst", "s", Wanted("most", 5)
    ),
    "W4.repeated_steps": Meaning("finished steps that were executed again", "", Wanted("most", 0)),
    "memory.processes": Meaning("processes of the worker tree"),
    "memory.rss_mb": Meaning("memory of the tree after W1", "MB"),
    "memory.pss_mb": Meaning("the same, shared pages counted once", "MB"),
}


def percentile(samples: Sequence[float], percent: float) -> float:
    """The sample that `percent` of all do not exceed (nearest rank)."""
    ordered = sorted(samples)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def latencies(work: str, prefix: str, samples_s: Sequence[float]) -> Figures:
    """Median and 99th percentile of samples in seconds, as figures in milliseconds."""
    return {
        f"{work}.{prefix}p50_ms": round(percentile(samples_s, 50) * 1000, 2),
        f"{work}.{prefix}p99_ms": round(percentile(samples_s, 99) * 1000, 2),
    }


def table(figures: Figures) -> Table:
    """The figures beside what is wanted of them."""
    made = Table(title="Benchmark", title_justify="left")
    made.add_column("key")
    made.add_column("figure", justify="right")
    made.add_column("wanted", justify="right")
    made.add_column("")
    made.add_column("what it says")
    for key, meaning in MEANINGS.items():
        if key in figures:
            wanted = meaning.wanted
            verdict = "" if wanted is None else "met" if wanted.holds(figures[key]) else "missed"
            figure = f"{figures[key]:,.10g} {meaning.unit}".strip()
            made.add_row(key, figure, str(wanted or ""), verdict, meaning.says)
    return made
