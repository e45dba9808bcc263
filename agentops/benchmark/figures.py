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
    "W1.ratio_to_floor": Meaning("of the floor, measured in turns with it", wanted=Wanted("least", 0.5)),
    "W1.commits_per_step": Meaning("commits per step, claims and beats included", wanted=Wanted("most", 1.1)),
    "W1.wal_bytes_per_step": Meaning("WAL per step, full-page images aside", "B", Wanted("most", 1024)),
    "W1.wal_image_bytes_per_step": Meaning("full-page images per step after a checkpoint", "B"),
    "W1.heap_only_updates": Meaning("share of updates of runs that wrote no index", ""),
    "W1b.floor_steps_per_s": Meaning("the floor again, in turns with W1b", "/s"),
    "W1b.floor_connections": Meaning("how many connections that was"),
    "W1b.steps_per_s": Meaning("the same runs with one effect in each step", "/s"),
    "W1b.ratio_to_floor": Meaning("of the floor, measured in turns with it", wanted=Wanted("least", 0.2)),
    "W1b.commits_per_step": Meaning("commits per step, claims and beats included", wanted=Wanted("most", 3)),
    "W1b.wal_bytes_per_step": Meaning("WAL per step, full-page images aside", "B"),
    "W2.p50_ms": Meaning(
        "idle start: enqueue call to first line of the step, median", "ms", Wanted("most", 8)
    ),
    "W2.p99_ms": Meaning("the slowest of a hundred", "ms", Wanted("most", 30)),
    "W3.p50_ms": Meaning("approval: decision to next line of the step, median", "ms", Wanted("most", 8)),
    "W3.p99_ms": Meaning("the slowest of a hundred", "ms", Wanted("most", 30)),
    "W3.signal_p50_ms": Meaning("signal to next line of the step, median", "ms", Wanted("most", 8)),
    "W3.signal_p99_ms": Meaning("the slowest of a hundred", "ms", Wanted("most", 30)),
    "W4.recovery_s": Meaning(
        "kill -9 of a busy worker to its step's next try, worst", "s", Wanted("most", 5)
    ),
    "W4.repeated_steps": Meaning("finished steps that were executed again", "", Wanted("most", 0)),
    "W5.runs": Meaning("runs that wait, for signals and for moments"),
    "W5.pairs": Meaning("rounds on that table, each in turns with one on an empty one"),
    "W5.step_ratio": Meaning(
        "W1's time for a step there, of that on the empty one", wanted=Wanted("most", 1.2)
    ),
    "W5.idle_ratio": Meaning("W2's median there, of that on the empty one", wanted=Wanted("most", 1.2)),
    "W5.resume_ratio": Meaning(
        "W3's median there (signal), of that on the empty one", wanted=Wanted("most", 1.2)
    ),
    "W5.memory_mb": Meaning("memory of the worker tree there", "MB"),
    "W5.memory_empty_mb": Meaning("and of that on the empty one", "MB"),
    "W6.def_in_flight": Meaning("model requests in flight at once, from def steps"),
    "W6.def_memory_mb": Meaning("memory of the worker tree then", "MB", Wanted("most", 600)),
    "W6.def_spread_s": Meaning("from the first request's start to the last one's", "s", Wanted("most", 2)),
    "W6.def_cpu": Meaning("share of the cores that the tree used meanwhile", "", Wanted("most", 0.5)),
    "W6.async_in_flight": Meaning("the same from async def steps"),
    "W6.async_memory_mb": Meaning("memory of the worker tree then", "MB", Wanted("most", 600)),
    "W6.async_spread_s": Meaning("from the first request's start to the last one's", "s", Wanted("most", 2)),
    "W6.async_cpu": Meaning("share of the cores that the tree used meanwhile", "", Wanted("most", 0.5)),
    "W7.runs": Meaning("due runs, in ten queues and three priorities; eight claimers"),
    "W7.claim_p50_ms": Meaning("one claim of up to 16 of them, median", "ms"),
    "W7.claim_p99_ms": Meaning("the slowest of a hundred", "ms", Wanted("most", 10)),
    "W7.claimed_twice": Meaning("runs that two claims took", "", Wanted("most", 0)),
    "W7.not_claimed": Meaning("runs that none took", "", Wanted("most", 0)),
    "W7.slowest_queue_share": Meaning(
        "of an even share, for the slowest queue at half-time", "", Wanted("least", 0.5)
    ),
    "W8.state_bytes": Meaning("JSON of a state of which each step changes a little", "B"),
    "W8.steps": Meaning("steps of that run"),
    "W8.bytes_changed_per_step": Meaning("what a step changes, as its patch says it", "B"),
    "W8.disk_bytes_per_step": Meaning(
        "growth of tables and indexes for each step", "B", Wanted("most", 4096)
    ),
    "W8.share_of_steps_by_state": Meaning("that growth, of steps × state", "", Wanted("most", 0.02)),
    "W8.wal_bytes_per_step": Meaning("WAL per step, full-page images aside", "B"),
    "W8.steps_per_s": Meaning("steps of the one run", "/s"),
    "W8.inexact_checkpoints": Meaning(
        "checkpoints that were not restored byte for byte", "", Wanted("most", 0)
    ),
    "W9.children": Meaning("children of one parent, each of one step"),
    "W9.plain_start_s": Meaning("as many runs without a parent: to start them in one transaction", "s"),
    "W9.plain_execute_s": Meaning("from then to the last one's end", "s"),
    "W9.family_s": Meaning("from the call that starts the parent to its end", "s"),
    "W9.ratio_to_plain": Meaning("of both, measured in turns with them", wanted=Wanted("most", 1.3)),
    "W9.ratio_to_executing": Meaning("of the second alone, although starting is part of this"),
    "W9.executions_of_parent": Meaning("between them it holds no slot", wanted=Wanted("most", 2)),
    "W10.runs": Meaning("runs in the table; one of them with 5,000 attempts"),
    "W10.list_p50_ms": Meaning("lists of runs, by every filter, median", "ms"),
    "W10.list_p95_ms": Meaning("the slowest of twenty, of the slowest list", "ms", Wanted("most", 100)),
    "W10.search_p50_ms": Meaning("searches, those that find nothing included, median", "ms"),
    "W10.search_p95_ms": Meaning("the slowest of twenty, of the slowest search", "ms", Wanted("most", 100)),
    "W10.run_p50_ms": Meaning("page of the long run, its parts and polls, median", "ms"),
    "W10.run_p95_ms": Meaning("the slowest of twenty, of the slowest part", "ms", Wanted("most", 100)),
    "W10.other_p50_ms": Meaning("limits, workers and approvals, median", "ms"),
    "W10.other_p95_ms": Meaning("the slowest of twenty, of the slowest page", "ms", Wanted("most", 100)),
    "W10.most_queries": Meaning("queries of the page that makes most", "", Wanted("most", 12)),
    "W11.import_s": Meaning("a Python process that loads the worker, and ends", "s", Wanted("most", 2)),
    "W11.first_claim_s": Meaning(
        "manage.py worker to the first line of a run that is due", "s", Wanted("most", 2)
    ),
    "W11.web_model_sdks": Meaning("packages of model providers in the web process", "", Wanted("most", 0)),
    "memory.processes": Meaning("processes of the worker tree"),
    "memory.rss_mb": Meaning("memory of the tree after W1", "MB"),
    "memory.pss_mb": Meaning("the same, shared pages counted once", "MB"),
}


def _growth(figures: Figures) -> dict[str, Meaning]:
    """The keys of growth, which name the number of rows."""
    says = "{}: 95 of 100 take no longer, with {:,} runs in the table"
    return {
        key: Meaning(says.format(key.rpartition(".")[2].partition("_")[0], int(key.split(".")[1])), "ms")
        for key in figures
        if key.startswith("growth.")
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
    for key, meaning in {**MEANINGS, **_growth(figures)}.items():
        if key in figures:
            wanted = meaning.wanted
            verdict = "" if wanted is None else "met" if wanted.holds(figures[key]) else "missed"
            figure = f"{figures[key]:,.10g} {meaning.unit}".strip()
            made.add_row(key, figure, str(wanted or ""), verdict, meaning.says)
    return made
