"""The workflows that are raced for, and gates at which a body stands until the race begins."""

import asyncio
import threading
import uuid
from collections import deque
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from runs.errors import WaitExpired
from runs.workflow import Complete, Fail, Goto, Retry, Workflow


class Given(BaseModel):
    text: str
    limit_ms: int | None = None


class Gate:
    """Stops one body on its way to the end of its attempt."""

    def __init__(self) -> None:
        self.arrived, self.opened = threading.Event(), threading.Event()

    def open(self) -> None:
        self.opened.set()


#: Gates by run, in the order in which bodies come to them; a body that finds none passes.
GATES: dict[uuid.UUID, deque[Gate]] = {}


def pass_gate(run_id: uuid.UUID) -> None:
    waiting = GATES.get(run_id)
    if waiting:
        gate = waiting.popleft()
        gate.arrived.set()
        assert gate.opened.wait(60), "nobody opened the gate"


racing = Workflow("r_racing", input=Given)


@racing.step(start=True, retry=Retry(max_attempts=3, base=0.01, maximum=0.01))
def act(ctx: Any) -> Complete | Goto | Fail:
    pass_gate(ctx.run_id)
    limit = None if ctx.input.limit_ms is None else timedelta(milliseconds=ctx.input.limit_ms)
    match ctx.input.text:
        case "goto":
            return Goto(finish)
        case "fail":
            return Fail("said so")
        case "error":
            raise ValueError("no luck")
        case "later":
            return Goto(late)
        case "signal":
            try:
                return Complete(ctx.wait_signal("paid", timeout=limit))
            except WaitExpired:
                return Fail("nobody paid")
        case "decision":
            verdict = ctx.ask("May I?", {"amount": 1}, timeout=limit).verdict
            return Fail("nobody decided") if verdict == "expired" else Complete(verdict)
    return Complete("done")


@racing.step
def finish(ctx: Any) -> Complete:
    return Complete("finished")


@racing.step(retry=Retry(max_attempts=3, base=3600, maximum=3600))
def late(ctx: Any) -> Complete:
    raise ValueError("try much later")


racing_both = Workflow("r_racing_both", input=Given)


@racing_both.step(start=True)
async def act_both(ctx: Any) -> Complete:
    decision, paid = await asyncio.gather(
        ctx.ask("May I?", {"amount": 1}, label="ask"), ctx.wait_signal("paid", label="paid")
    )
    return Complete([decision.verdict, paid])
