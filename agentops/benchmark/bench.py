"""What every work measures with."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg

from agentops.benchmark.trace import Trace
from agentops.benchmark.workers import Workers
from runs import services
from runs.lifecycle import Actor

ACTOR = Actor("benchmark")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    runs: int
    """Ten-step runs of one round of W1."""
    floor_s: float
    """Seconds for each number of connections in one round of the floor."""
    samples: int
    """Of each latency."""
    kills: int
    calls: int
    """Model requests in flight at once."""
    call_s: float
    """Seconds that a model takes for its answer."""
    large_steps: int
    """Steps of the run with the large state."""
    children: int
    """Children of one parent."""
    many: int
    """Runs of a large table."""
    due: int
    """Runs that are due at once."""
    pairs: int
    """Rounds on the large table, in turns with rounds on an empty one."""
    asks: int
    """How often each page is asked for."""


FULL = Size(
    rounds=3,
    runs=300,
    floor_s=0.7,
    samples=120,
    kills=3,
    calls=1000,
    call_s=10,
    large_steps=500,
    children=10_000,
    many=1_000_000,
    due=100_000,
    pairs=7,
    asks=20,
)
QUICK = Size(
    rounds=1,
    runs=6,
    floor_s=0.05,
    samples=3,
    kills=1,
    calls=4,
    call_s=0.5,
    large_steps=12,
    children=20,
    many=600,
    due=300,
    pairs=1,
    asks=1,
)


@dataclass(frozen=True, slots=True)
class Bench:
    server: psycopg.Connection
    """A session outside the scratch databases."""
    folder: Path
    trace: Trace
    size: Size
    worker_arguments: list[str]

    @contextmanager
    def workers(
        self, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[Workers]:
        """A fresh worker tree, stopped at the end; `arguments` win over those of the command."""
        workers = Workers(
            self.folder, self.trace.path, [*self.worker_arguments, *arguments], environment=environment
        )
        try:
            yield workers
            workers.stop()
        finally:
            workers.kill()

    def start(self, workflow: str, number: int) -> Any:
        """Start one run; returns its id."""
        return services.start(ACTOR, workflow, {"n": number}).run.pk

    def start_many(self, workflow: str, first: int, count: int) -> list[Any]:
        """Start runs with the numbers from `first` on in one transaction; returns their ids."""
        lines = [f'{{"n": {first + i}}}' for i in range(count)]
        started: list[Any] = []
        for batch in services.start_many(ACTOR, workflow, lines, batch_size=count):
            started += batch.started
        return started


@contextmanager
def bench(server: psycopg.Connection, size: Size, worker_arguments: list[str]) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="agentops-benchmark-") as name:
        folder = Path(name)
        trace = Trace(folder)
        try:
            yield Bench(server, folder, trace, size, worker_arguments)
        finally:
            trace.close()
