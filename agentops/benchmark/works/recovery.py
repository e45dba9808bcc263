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
            (working,) = bench.trace.wait(
                lambda m, n=number: (m.what, m.number) == ("work", n), 1, 30, "the step that shall be killed"
            )
            killed = time.monotonic()
            os.kill(working.pid, signal.SIGKILL)
            while True:
                (again,) = bench.trace.wait(lambda m, n=number: m.number == n, 1, 60, "the step's next try")
                if again.what == "work":
                    break
                repeated += 1
            samples.append(again.at - killed)
    return {"W4.recovery_s": round(max(samples), 2), "W4.repeated_steps": repeated}
