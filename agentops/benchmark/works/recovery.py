"""W4: `kill -9` of a worker that executes a step, until the step is tried again."""

import os
import signal
import time

from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures


def measure(bench: Bench) -> Figures:
    samples: list[float] = []
    repeated = 0
    with bench.workers():
        for number in range(bench.size.kills):
            bench.start("benchmark_busy", number)
            working = bench.trace.one(number, {"work"}, 30, "the step that shall be killed")
            killed = time.monotonic()
            os.kill(working.pid, signal.SIGKILL)
            while True:
                again = bench.trace.one(number, {"before", "work"}, 60, "the next try of the step")
                if again.what == "work":
                    break
                repeated += 1
            samples.append(again.at - killed)
    return {"W4.recovery_s": round(max(samples), 2), "W4.repeated_steps": repeated}
