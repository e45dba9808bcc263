"""Workflows that start child runs, for tests."""

import asyncio
from datetime import timedelta
from typing import Any

from django.db import connection
from pydantic import BaseModel

from runs.errors import ChildFailed, NotRetryable, OutcomeUnknown, WaitExpired
from runs.services import cancel
from runs.workflow import Child, Complete, Ended, Fail, Goto, Retry, Workflow, tool
from tests import factories
from tests.runs.engine.flows import world


class Wish(BaseModel):
    do: str = ""
    n: int = 0
    options: dict[str, Any] = {}


#: What a child answers, by what it is told to do.
ANSWERS: dict[str, Any] = {"none": None, "zero": 0, "false": False, "empty": "", "list": []}

child = Workflow("f_child", input=Wish, subject=lambda given: f"{given.do} {given.n}")


@tool(retry=Retry(max_attempts=1))
def refuse() -> None:
    raise NotRetryable("no such city")


@child.step(start=True, retry=Retry(max_attempts=2, base=0.01, maximum=0.02))
def work(ctx: Any) -> Complete | Fail:
    given = ctx.input
    world.ledger[f"child {given.n}"] += 1
    match given.do:
        case "fail":
            return Fail(f"child {given.n} gave up")
        case "raise":
            raise RuntimeError(f"child {given.n} broke")
        case "refuse":
            ctx.call(refuse)
        case "wait":
            ctx.wait_signal("go")
        case "double":
            return Complete({"n": given.n * 2})
    return Complete(ANSWERS.get(given.do, given.n))


@child.step(atomic=True)
def unused(ctx: Any) -> Complete:
    return Complete()


atomic = Workflow("f_atomic", input=Wish)


@atomic.step(start=True, atomic=True)
def at_once(ctx: Any) -> Complete:
    return Complete(ctx.input.n)


def shown(ended: Ended) -> dict[str, Any]:
    return {"status": ended.status, "result": ended.result, "reason": ended.reason, "kind": ended.kind}


def wishes(given: Wish) -> list[Child]:
    """`do` is what each child is to do, one word for each."""
    return [Child(child, {"do": do, "n": n}) for n, do in enumerate(given.do.split())]


parent = Workflow("f_parent", input=Wish)


@parent.step(start=True, retry=Retry(max_attempts=2, base=0.01, maximum=0.02))
def gather(ctx: Any) -> Complete:
    world.ledger["parent body"] += 1
    options = dict(ctx.input.options)
    if "timeout" in options:
        options["timeout"] = timedelta(seconds=options["timeout"])
    try:
        ends = ctx.children(wishes(ctx.input), **options)
    except ChildFailed as failed:
        if ctx.input.n == 1:
            raise
        return Complete({"failed": str(failed), "ends": [shown(one) for one in failed.ends]})
    except WaitExpired as late:
        return Complete({"late": str(late)})
    world.ledger["joined"] += 1
    return Complete({"ends": [shown(one) for one in ends], "results": ends.results})


single = Workflow("f_single", input=Wish)


@single.step(start=True)
def one(ctx: Any) -> Complete:
    return Complete({"got": ctx.child("f_child", {"do": ctx.input.do, "n": 7}, subject="seven")})


apart = Workflow("f_async", input=Wish)


@apart.step(start=True)
async def overlap(ctx: Any) -> Complete:
    first, second = await asyncio.gather(
        ctx.child(child, {"do": "double", "n": 1}, label="a"),
        ctx.map(child, [{"n": n} for n in range(3)], label="b"),
    )
    return Complete({"first": first, "second": second.results})


doubtful = Workflow("f_doubtful", input=Wish)


@doubtful.step(start=True)
async def cancelled_amid(ctx: Any) -> Complete:
    """While one branch would start a child, the call of the other is cut, just after somebody asked for a cancel."""
    run_id = ctx.run_id

    def cut() -> None:
        cancel(factories.support("ada"), run_id, reason="enough")
        connection.close()
        raise OutcomeUnknown("no answer")

    await asyncio.gather(
        ctx.child(child, {"n": 1}, label="child"), ctx.once("cut", cut), return_exceptions=True
    )
    return Complete()


twice = Workflow("f_twice", input=Wish)


@twice.step(start=True)
def again(ctx: Any) -> Goto | Complete:
    """Two waits in one visit, two visits."""
    a = ctx.map(child, [{"n": n} for n in range(2)]).results
    b = ctx.map("f_atomic", [{"n": n} for n in range(2, 4)]).results
    ctx.state.setdefault("seen", []).append([a, b])
    return Goto(again) if len(ctx.state["seen"]) < 2 else Complete(ctx.state["seen"])


endless = Workflow("f_endless", input=Wish)


@endless.step(start=True)
def deeper(ctx: Any) -> Complete:
    return Complete(ctx.child("f_endless", {"n": ctx.input.n + 1}))


drifting = Workflow("f_drifting", input=Wish)


@drifting.step(start=True)
def drift(ctx: Any) -> Complete:
    """Asks for other children at each execution."""
    world.ledger["drift"] += 1
    return Complete(ctx.map(child, [{"n": world.ledger["drift"]}]).results)


wrong = Workflow("f_wrong", input=Wish)


@wrong.step(start=True)
def ask_for_the_impossible(ctx: Any) -> Complete:
    return Complete(ctx.map(child, [{"n": 1}, {"n": "one"}]).results)


left = Workflow("f_left", input=Wish)


@left.step(start=True)
def leave(ctx: Any) -> Goto:
    """The first result is enough; the others go on, until this run ends."""
    ctx.map(child, [{"n": 0}, {"do": "wait", "n": 1}], wait="any", unneeded="leave", orphans=ctx.input.do)
    return Goto(later)


@left.step
def later(ctx: Any) -> Complete:
    ctx.wait_signal("finish")
    return Complete()
