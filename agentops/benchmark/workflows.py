"""What the benchmark's workers execute."""

import time
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from agentops.benchmark.large import change, first_state
from agentops.benchmark.trace import mark
from approvals.policies import policy
from runs.workflow import Complete, Goto, Workflow, tool

STEPS = 10

policy("benchmark", groups=["operators"], time_limit=None)


class Number(BaseModel):
    n: int


ten = Workflow("benchmark_ten", input=Number, description="Ten trivial steps; the state has 150 bytes.")
ten_effects = Workflow(
    "benchmark_ten_effects",
    input=Number,
    description="Ten steps with one effect each; the state has 150 bytes.",
)
large = Workflow(
    "benchmark_large", input=Number, description="A state of 200 KB; as many steps as its input says."
)
idle = Workflow("benchmark_idle", input=Number, description="One step that says when it began.")
asking = Workflow("benchmark_asking", input=Number, description="Waits for an approval.")
listening = Workflow("benchmark_listening", input=Number, description="Waits for a signal.")
thinking = Workflow("benchmark_thinking", input=Number, description="One model request in a def step.")
thinking_async = Workflow(
    "benchmark_thinking_async", input=Number, description="One model request in an async def step."
)
leaf = Workflow("benchmark_leaf", input=Number, description="One step that does nothing.")
family = Workflow("benchmark_family", input=Number, description="As many children as its input says.")
busy = Workflow(
    "benchmark_busy", input=Number, description="Its second step works for long, at the first try."
)


@tool(effect=True, idempotent=timedelta(hours=24))
def nothing(number: int, *, idempotency_key: str) -> str:
    """An effect whose provider answers at once."""
    return idempotency_key


def trivial(ctx: Any) -> Goto | Complete:
    ctx.state["done"] = done = ctx.state.get("done", 0) + 1
    ctx.state.setdefault("note", "x" * 130)
    if done < STEPS:
        return Goto(f"step_{done + 1}")
    mark("ten", ctx.input.n)
    return Complete({"ok": True})


def effective(ctx: Any) -> Goto | Complete:
    ctx.call(nothing, number=ctx.input.n)
    return trivial(ctx)


for number in range(1, STEPS + 1):
    ten.step(name=f"step_{number}", start=number == 1)(trivial)
    ten_effects.step(name=f"step_{number}", start=number == 1)(effective)


@large.step(start=True)
def fill(ctx: Any) -> Goto:
    ctx.state.update(first_state())
    return Goto(edit)


@large.step
def edit(ctx: Any) -> Goto | Complete:
    step = ctx.state["step"] + 1
    change(ctx.state, step)
    if step < ctx.input.n:
        return Goto(edit)
    mark("large", ctx.input.n)
    return Complete()


@thinking.step(start=True, timeout=120)
def think(ctx: Any) -> Complete:
    ctx.model(model="", messages=[{"role": "user", "content": f"call {ctx.input.n}"}], timeout=60)
    return Complete()


@thinking_async.step(start=True, timeout=120)
async def think_async(ctx: Any) -> Complete:
    await ctx.model(model="", messages=[{"role": "user", "content": f"call {ctx.input.n}"}], timeout=60)
    return Complete()


@leaf.step(start=True)
def grow(ctx: Any) -> Complete:
    return Complete(ctx.input.n)


@family.step(start=True)
def start_and_join(ctx: Any) -> Complete:
    return Complete(len(ctx.map(leaf, [{"n": n} for n in range(ctx.input.n)]).results))


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
