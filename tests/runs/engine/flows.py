"""Small workflows for engine tests, and a provider in memory with a ledger that tests can read."""

import asyncio
import json
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from runs.errors import OutcomeUnknown, ToolFailed
from runs.workflow import Complete, Fail, Goto, Retry, Workflow, tool


class Given(BaseModel):
    n: int = 0
    text: str = ""


class Provider:
    """What the world did, and how it shall misbehave. Cleared before each test."""

    def __init__(self) -> None:
        self.ledger: Counter[str] = Counter()
        self.by_key: dict[str, str] = {}
        self.keys: list[str] = []
        self.script: list[Exception | str] = []
        self.verify_script: list[Exception] = []
        self.gate = threading.Event()
        self.seen: list[Any] = []

    def do(self, what: str, key: str = "") -> str:
        """Do `what` once per key; `script` may make it fail before ('before' …) or lose the answer ('lost')."""
        self.keys.append(key)
        turn = self.script.pop(0) if self.script else None
        if isinstance(turn, Exception):
            raise turn
        if key and key in self.by_key:
            return self.by_key[key]
        self.ledger[what] += 1
        answer = f"{what}-{self.ledger[what]}"
        if key:
            self.by_key[key] = answer
        if turn == "lost":
            raise OutcomeUnknown("no answer in time")
        return answer


world = Provider()

QUICK = Retry(max_attempts=3, base=0.02, maximum=0.05)

hello = Workflow("t_hello", input=Given)


@hello.step(start=True)
def first(ctx: Any) -> Goto:
    ctx.state["seen"] = [ctx.input.n]
    return Goto(second)


@hello.step
def second(ctx: Any) -> Complete:
    return Complete({"seen": ctx.state["seen"], "text": ctx.input.text})


hello_async = Workflow("t_hello_async", input=Given)


@tool
async def ask_async(n: int) -> int:
    await asyncio.sleep(0.01)
    world.ledger[f"ask{n}"] += 1
    return n * 2


@hello_async.step(start=True)
async def gather(ctx: Any) -> Complete:
    answers = await asyncio.gather(*(ctx.call(ask_async, n=i, label=f"a{i}") for i in range(3)))
    return Complete(answers)


ten = Workflow("t_ten", input=Given)


@ten.step(start=True)
def count(ctx: Any) -> Goto | Complete:
    ctx.state["i"] = ctx.state.get("i", 0) + 1
    return Goto(count) if ctx.state["i"] < 10 else Complete(ctx.state["i"])


# --- effects of the three kinds ------------------------------------------------------------------------------------------


@tool(effect=True, idempotent=timedelta(hours=1), retry=QUICK)
def pay(amount: int, *, idempotency_key: str) -> str:
    return world.do("pay", idempotency_key)


def look_up(amount: int, idempotency_key: str) -> str | None:
    if world.verify_script:
        raise world.verify_script.pop(0)
    return world.by_key.get(idempotency_key)


@tool(effect=True, verify=look_up, settle=timedelta(seconds=0.05), retry=QUICK)
def charge_verified(amount: int, *, idempotency_key: str) -> str:
    return world.do("charge", idempotency_key)


@tool(effect=True, in_doubt="ask", settle=timedelta(seconds=0.05), retry=QUICK)
def post(amount: int) -> str:
    return world.do("post")


EFFECTS = {"pay": pay, "charge": charge_verified, "post": post}

effectful = Workflow("t_effect", input=Given)


@effectful.step(start=True, retry=QUICK)
def act(ctx: Any) -> Complete:
    return Complete(ctx.call(EFFECTS[ctx.input.text], amount=ctx.input.n))


catching = Workflow("t_catching", input=Given)


@catching.step(start=True)
def try_it(ctx: Any) -> Complete:
    try:
        ctx.call(EFFECTS[ctx.input.text], amount=1)
    except ToolFailed as error:
        return Complete(str(error))
    return Complete("worked")


failing = Workflow("t_failing", input=Given)


@failing.step(start=True, retry=QUICK)
def fail_twice(ctx: Any) -> Complete | Fail:
    world.ledger["tried"] += 1
    ctx.log("trying")
    if ctx.input.text == "declared":
        return Fail("said so")
    if world.ledger["tried"] <= ctx.input.n:
        raise ValueError(f"error {world.ledger['tried']}")
    return Complete(world.ledger["tried"])


signalled = Workflow("t_signal", input=Given)


@signalled.step(start=True)
def wait_for_it(ctx: Any) -> Complete:
    world.ledger["bodies"] += 1
    return Complete(ctx.wait_signal("paid", timeout=timedelta(seconds=ctx.input.n) if ctx.input.n else None))


sleepy = Workflow("t_sleep", input=Given)


@sleepy.step(start=True)
def nap(ctx: Any) -> Complete:
    before = ctx.now()
    ctx.sleep(timedelta(seconds=ctx.input.n))
    return Complete((ctx.now() - before).total_seconds())


slow = Workflow("t_slow", input=Given)


@slow.step(start=True, timeout=0.4, retry=Retry(max_attempts=2, base=0.01))
def take_long(ctx: Any) -> Complete:
    world.ledger["slow"] += 1
    time.sleep(2)
    return Complete()


slow_async = Workflow("t_slow_async", input=Given)


@slow_async.step(start=True, timeout=0.3, retry=Retry(max_attempts=2, base=0.01))
async def take_long_async(ctx: Any) -> Complete:
    world.ledger["slow"] += 1
    await asyncio.sleep(30)
    return Complete()


asking = Workflow("t_ask", input=Given)


@asking.step(start=True)
def ask_people(ctx: Any) -> Complete:
    decision = ctx.ask("May I?", {"n": ctx.input.n}, why="because")
    return Complete([decision.verdict, decision.payload])


@tool(effect=True, idempotent=timedelta(hours=1), approval="t_policy", retry=QUICK)
def pay_approved(amount: int, *, idempotency_key: str) -> str:
    world.seen.append(amount)
    return world.do("approved", idempotency_key)


guarded = Workflow("t_guarded", input=Given)


@guarded.step(start=True)
def pay_after_yes(ctx: Any) -> Complete:
    return Complete(ctx.call(pay_approved, amount=ctx.input.n))


guarded_twice = Workflow("t_guarded_twice", input=Given)


@guarded_twice.step(start=True, retry=QUICK)
def pay_and_stumble(ctx: Any) -> Complete:
    paid = ctx.call(pay_approved, amount=ctx.input.n)
    world.ledger["tries"] += 1
    if world.ledger["tries"] < 2:
        raise ValueError("again")
    return Complete(paid)


@tool(effect=True, idempotent=timedelta(hours=1), retry=QUICK)
def undo_book(result: str, *, idempotency_key: str) -> str:
    return world.do(f"undo {result}", idempotency_key)


@tool(effect=True, idempotent=timedelta(hours=1), compensate=undo_book, retry=QUICK)
def book(name: str, *, idempotency_key: str) -> str:
    return world.do(f"book {name}", idempotency_key)


trip = Workflow("t_trip", input=Given)


@trip.step(start=True)
def travel(ctx: Any) -> Complete:
    ctx.call(book, name="flight")
    ctx.call(book, name="hotel")
    ctx.wait_signal("go")
    return Complete()


drifting = Workflow("t_drift", input=Given)


@drifting.step(start=True, retry=QUICK)
def drift(ctx: Any) -> Complete:
    world.ledger["drifts"] += 1
    ctx.call(pay, amount=world.ledger["drifts"])
    raise ValueError("again")


forgetful = Workflow("t_forget", input=Given)


@tool
def weather() -> str:
    world.ledger["weather"] += 1
    return f"w{world.ledger['weather']}"


@forgetful.step(start=True, retry=QUICK)
def forget(ctx: Any) -> Complete:
    before = ctx.call(weather)
    ctx.call(pay, amount=1)
    after = ctx.call(weather)
    world.ledger["tries"] += 1
    if world.ledger["tries"] < 2:
        raise ValueError("again")
    return Complete([before, after])


falsy = Workflow("t_falsy", input=Given)
FALSY: dict[str, Any] = {"none": None, "zero": 0, "empty": "", "list": [], "false": False}


@tool(retry=QUICK)
def falsy_answer(name: str) -> Any:
    world.ledger[name] += 1
    return FALSY[name]


@tool(effect=True, idempotent=timedelta(hours=1))
def touch(name: str, *, idempotency_key: str) -> None:
    world.do("touch", idempotency_key)


@falsy.step(start=True, retry=QUICK)
def falsies(ctx: Any) -> Complete:
    answers = [ctx.call(falsy_answer, name=name) for name in FALSY]
    ctx.call(touch, name="x")
    world.ledger["tries"] += 1
    if world.ledger["tries"] < 2:
        raise ValueError("again")
    return Complete(answers)


ordered = Workflow("t_ordered", input=Given)
UNSORTED = {"zeta": 1, "a": {"long key": 1, "b": 2}, "mm": [{"y": 1, "x": 1e22}], "neg": -0.0}


@tool
def unsorted_answer() -> Any:
    return UNSORTED


@tool(effect=True, idempotent=timedelta(hours=1))
def keep(text: str, *, idempotency_key: str) -> None:
    world.do("keep", idempotency_key)


@ordered.step(start=True, retry=QUICK)
def prompt(ctx: Any) -> Complete:
    text = json.dumps(ctx.call(unsorted_answer))
    ctx.call(keep, text=text)
    world.ledger["tries"] += 1
    if world.ledger["tries"] < 2:
        raise ValueError("again")
    return Complete(text)


slow_but_fine = Workflow("t_slow_but_fine", input=Given)


@slow_but_fine.step(start=True)
def several_beats_long(ctx: Any) -> Complete:
    world.ledger["in step"] += 1
    time.sleep(1.2)
    return Complete()
