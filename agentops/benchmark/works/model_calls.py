"""W6: many slow model requests in flight at once, from `def` steps (a thread each) and from `async def` steps (an event loop)."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO
from uuid import UUID

from django.conf import settings
from django.core.management.base import CommandError

from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures
from agentops.benchmark.trace import TooSlow
from agentops.benchmark.workers import Workers
from runs.models import Run

LIMIT_S = 180.0


def measure(bench: Bench) -> Figures:
    return _measure(bench, "benchmark_thinking", "def") | _measure(bench, "benchmark_thinking_async", "async")


def _measure(bench: Bench, workflow: str, prefix: str) -> Figures:
    processes = min(2, os.cpu_count() or 1)
    calls = bench.size.calls
    slots = -(-calls // processes)
    with (
        _slow_model(bench.size.call_s) as model,
        bench.workers(
            f"--processes={processes}",
            f"--slots={slots}",
            environment={
                "AGENTOPS_MODEL_BASE_URL": f"http://127.0.0.1:{model.port}",
                "AGENTOPS_MODEL_API_KEY": "none",
                "AGENTOPS_MODEL_NAME": "slow",
            },
        ) as workers,
    ):
        used, begun = workers.cpu_s(), time.monotonic()
        runs = bench.start_many(workflow, 0, calls)
        memory = _peak_memory(workers, model, calls)
        _finish(runs)
        elapsed, used = time.monotonic() - begun, workers.cpu_s() - used
        requests = model.requests()
    arrivals = sorted(at for at, _ in requests)
    return {
        f"W6.{prefix}_in_flight": max(count for _, count in requests),
        f"W6.{prefix}_memory_mb": memory,
        f"W6.{prefix}_spread_s": round(arrivals[-1] - arrivals[0], 2),
        f"W6.{prefix}_cpu": round(used / elapsed / processes, 3),
    }


def _peak_memory(workers: Workers, model: "SlowModel", calls: int) -> float:
    """Memory of the tree while all calls are in flight, in MB; shared pages counted once where that can be told."""
    end = time.monotonic() + LIMIT_S
    while len(model.requests()) < calls:
        if time.monotonic() > end:
            raise TooSlow(f"not within {LIMIT_S:g} s: {calls} model requests in flight")
        time.sleep(0.1)
    memory = workers.memory()
    return memory.rss if memory.pss is None else memory.pss


def _finish(runs: list[UUID]) -> None:
    end = time.monotonic() + LIMIT_S
    while left := Run.objects.filter(pk__in=runs, finished_at=None).count():
        if time.monotonic() > end:
            raise TooSlow(f"not within {LIMIT_S:g} s: the end of all runs ({left} are left)")
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class SlowModel:
    port: int
    output: IO[bytes]

    def requests(self) -> list[tuple[float, int]]:
        """When each request arrived, and how many were in flight then."""
        whole = os.pread(self.output.fileno(), 10_000_000, 0).decode()
        lines = whole[: whole.rfind("\n")].splitlines()[1:]
        return [(float(at), int(count)) for at, count in (line.split() for line in lines)]


@contextmanager
def _slow_model(seconds: float) -> Iterator[SlowModel]:
    with TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, str(Path(settings.BASE_DIR) / "agentops/benchmark/slow_model.py"), str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=output,
        )
        try:
            end = time.monotonic() + 20
            while not (first := os.pread(output.fileno(), 100, 0).partition(b"\n"))[1]:
                if process.poll() is not None or time.monotonic() > end:
                    raise CommandError("The stand-in for a model did not start.")
                time.sleep(0.02)
            yield SlowModel(int(first[0]), output)
        finally:
            process.kill()
            process.wait()
