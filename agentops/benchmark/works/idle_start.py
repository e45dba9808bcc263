"""W2: nothing to do, then one run: from the call that enqueues it to the first line of its step."""

import random
import time

from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures, latencies

WARM = 10


def measure(bench: Bench) -> Figures:
    samples: list[float] = []
    with bench.workers():
        for number in range(WARM + bench.size.samples):
            time.sleep(random.uniform(0.02, 0.06))  # workers come to rest, out of step with their polls
            called = time.monotonic()
            bench.start("benchmark_idle", number)
            line = bench.trace.one(number, {"idle"}, 30, "the first line of the step")
            samples.append(line.at - called)
    return latencies("W2", "", samples[WARM:])
