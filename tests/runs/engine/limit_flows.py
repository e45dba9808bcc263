"""Workflows and tools under limits; each writes down how many of its kind are at work beside it."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from runs.workflow import Complete, Goto, Rate, Retry, Workflow, tool
from tests.runs.engine.flows import Given, world


class Crowd:
    """How many are inside at once, by name."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.times: Counter[str] = Counter()
        self.lock = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()
        #: So many wait for one another, once, by name: a slow machine must not keep a limit from being reached.
        self.gather: dict[str, int] = {}

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        with self.lock:
            self.now[name] += 1
            self.times[name] += 1
            self.most[name] = max(self.most[name], self.now[name])
            self.lock.notify_all()
            self.lock.wait_for(lambda: self.most[name] >= self.gather.get(name, 0), 20)
        try:
            self.gate.wait(20)
            time.sleep(0.01)  # so that those who may overlap do
            yield
        finally:
            with self.lock:
                self.now[name] -= 1


crowd = Crowd()

#: Limited by overrides, in the tests.
plain = Workflow("l_plain", input=Given)


@plain.step(start=True)
def enter(ctx: Any) -> Goto:
    with crowd.inside("enter"):
        return Goto(narrow)


@plain.step
def narrow(ctx: Any) -> Goto:
    with crowd.inside("narrow"):
        return Goto(leave)


@plain.step
def leave(ctx: Any) -> Complete:
    with crowd.inside("leave"):
        return Complete()


@tool(effect=True, idempotent=timedelta(hours=1), retry=Retry(max_attempts=3, base=0.02, maximum=0.05))
def l_effect(n: int, *, idempotency_key: str) -> str:
    with crowd.inside("l_effect"):
        return world.do(f"l_effect {n}", idempotency_key)


@tool
def l_query(n: int) -> int:
    with crowd.inside("l_query"):
        return n


@tool
async def l_slow_query(n: int) -> int:
    with crowd.inside("l_slow_query"):
        return n


calls = Workflow("l_calls", input=Given)


@calls.step(start=True)
def call(ctx: Any) -> Complete:
    with crowd.inside("call body"):
        asked = ctx.call(l_query, n=ctx.input.n)
    return Complete([asked, ctx.call(l_effect, n=ctx.input.n)])


@calls.step
async def call_async(ctx: Any) -> Complete:
    return Complete(await ctx.call(l_slow_query, n=ctx.input.n))


#: Limited by its code.
declared = Workflow("l_declared", input=Given, concurrency=2, priority=3, queue="default")


@declared.step(start=True, rate=Rate(1000, timedelta(seconds=1)))
def only(ctx: Any) -> Complete:
    with crowd.inside("declared"):
        return Complete()


atomic = Workflow("l_atomic", input=Given)


@atomic.step(start=True, atomic=True)
def write(ctx: Any) -> Goto:
    return Goto(after)


@atomic.step
def after(ctx: Any) -> Complete:
    with crowd.inside("after"):
        return Complete()
