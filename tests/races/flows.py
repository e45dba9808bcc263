"""The workflows that are raced for, and gates at which a body stands until the race begins."""

import asyncio
import threading
import uuid
from collections import deque
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from runs.errors import WaitExpired
from runs.workflow import Child, Complete, Fail, Goto, Retry, Workflow, tool


class Given(BaseModel):
    text: str
    limit_ms: int | None = None
    filler: str = ""


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


@tool(
    effect=True,
    in_doubt="ask",
    settle=timedelta(),
    from_reference=lambda reference: reference,
)
def race_pay(run: str, *, idempotency_key: str) -> str:
    """An effect that stands at a gate while it is being sent."""
    pass_gate(uuid.UUID(run))
    return f"paid under {idempotency_key}"


racing = Workflow("r_racing", input=Given)


@racing.step(start=True, retry=Retry(max_attempts=3, base=0.01, maximum=0.01))
def act(ctx: Any) -> Complete | Goto | Fail:
    if ctx.input.text != "pay":
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
            decision = ctx.ask("May I?", {"amount": 1}, timeout=limit)
            told = {"verdict": decision.verdict, "payload": decision.payload}
            return Fail("nobody decided") if decision.verdict == "expired" else Complete(told)
        case "answering":
            decision = ctx.ask(
                "May I?", {"amount": 1}, on_question=lambda question: f"because {question.text}"
            )
            return Complete(
                {"verdict": decision.verdict, "asked": [one["text"] for one in decision.questions]}
            )
        case "marked":
            ctx.wait_signal("paid", timeout=limit)
            return Complete(ctx.state.get("mark"))
        case "pay":
            return Complete(ctx.call(race_pay, run=str(ctx.run_id)))
        case "broken":
            return Goto(broken)
        case "family":
            ends = ctx.children([Child(racing, {"text": "complete"})] * 2)
            return Complete([end.status for end in ends])
    return Complete("done")


@racing.step
def finish(ctx: Any) -> Complete:
    return Complete("finished")


@racing.step
def broken(ctx: Any) -> Fail:
    return Fail("it is broken")


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
