"""What the benchmark's workers execute."""

import time
from typing import Any

from pydantic import BaseModel

from agentops.benchmark.trace import mark
from approvals.policies import policy
from runs.workflow import Complete, Goto, Workflow

STEPS = 10

policy("benchmark", groups=["operators"], time_limit=None)


class Number(BaseModel):
    n: int


ten = Workflow("benchmark_ten", input=Number, description="Ten trivial steps; the state has 150 bytes.")
idle = Workflow("benchmark_idle", input=Number, description="One step that says when it began.")
asking = Workflow("benchmark_asking", input=Number, description="Waits for an approval.")
listening = Workflow("benchmark_listening", input=Number, description="Waits for a signal.")
busy = Workflow(
    "benchmark_busy", input=Number, description="Its second step works for long, at the first try."
)


def trivial(ctx: Any) -> Goto | Complete:
    ctx.state["done"] = done = ctx.state.get("done", 0) + 1
    ctx.state.setdefault("note", "x" * 130)
    if done < STEPS:
        return Goto(f"step_{done + 1}")
    mark("ten", ctx.input.n)
    return Complete({"ok": True})


for number in range(1, STEPS + 1):
    ten.step(name=f"step_{number}", start=number == 1)(trivial)


@idle.step(start=True)
def begin(ctx: Any) -> Complete:
    mark("idle", ctx.input.n)
    return Complete()


@asking.step(start=True)
def ask(ctx: Any) -> Complete:
    ctx.ask("Go on?", {"n": ctx.input.n}, policy="benchmark")
    mark("decided", ctx.input.n)
    return Complete()


@listening.step(start=True)
def listen(ctx: Any) -> Complete:
    ctx.wait_signal("benchmark")
    mark("signalled", ctx.input.n)
    return Complete()


@busy.step(start=True)
def before(ctx: Any) -> Goto:
    mark("before", ctx.input.n)
    return Goto(work)


@busy.step(timeout=300)
def work(ctx: Any) -> Complete:
    mark("work", ctx.input.n)
    if ctx.attempt == 1:
        time.sleep(240)
    return Complete()
