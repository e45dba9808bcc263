"""Workflows that do what authors should not do, or what rarely happens at one moment; the provider is that of `flows`."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from runs.models import Message
from runs.workflow import Complete, Fail, Goto, Retry, Workflow, tool
from tests.runs.engine.flows import QUICK, Given, pay, post, weather, world

# --- control flow that bodies swallow ----------------------------------------------------------------------------------

swallowing = Workflow("o_swallowing", input=Given)


@swallowing.step(start=True)
def swallow(ctx: Any) -> Complete:
    try:
        told = ctx.wait_signal("paid")
    except BaseException:
        ctx.call(pay, amount=1)
        return Complete("went on")
    return Complete(told)


meddling = Workflow("o_meddling", input=Given)
#: What happens to the run meanwhile, once each.
meddlers: list[Callable[[], None]] = []


@meddling.step(start=True)
def meddle(ctx: Any) -> Complete:
    ctx.state["tries"] = ctx.state.get("tries", 0) + 1
    while meddlers:
        meddlers.pop()()
    return Complete({"tries": ctx.state["tries"]})


gathering = Workflow("o_gathering", input=Given)


@gathering.step(start=True)
async def gather_all(ctx: Any) -> Complete:
    answers = await asyncio.gather(
        ctx.wait_signal("one", label="one"), ctx.wait_signal("two", label="two"), return_exceptions=True
    )
    return Complete([str(a) for a in answers])


leaving = Workflow("o_leaving", input=Given)


class Unprintable(BaseException):
    def __str__(self) -> str:
        raise ValueError("no text")


@leaving.step(start=True, retry=Retry(max_attempts=2, base=0.01))
def leave(ctx: Any) -> Complete:
    match ctx.input.text:
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "unprintable":
            raise Unprintable
        case "lock":
            raise ValueError(world.gate)
    return Complete()


leaving_async = Workflow("o_leaving_async", input=Given)


@leaving_async.step(start=True, retry=Retry(max_attempts=2, base=0.01))
async def leave_async(ctx: Any) -> Complete:
    async def child() -> None:
        raise SystemExit(3)

    if ctx.input.text == "child":
        await asyncio.gather(child())
    if ctx.input.text == "body":
        raise SystemExit(3)
    return Complete("stayed")


@tool(effect=True, in_doubt="ask", settle=timedelta(seconds=0.05), retry=QUICK)
def exiting(amount: int) -> str:
    world.do("exiting")
    raise SystemExit(1)


exiting_tool = Workflow("o_exiting_tool", input=Given)


@exiting_tool.step(start=True, retry=QUICK)
def call_exiting(ctx: Any) -> Complete:
    return Complete(ctx.call(exiting, amount=1))


# --- several at once -----------------------------------------------------------------------------------------------------

branches = Workflow("o_branches", input=Given)


@branches.step(start=True)
async def two_branches(ctx: Any) -> Complete:
    async def branch(name: str, amount: int) -> Any:
        told = await ctx.ask(f"May {name}?", {"name": name}, label=name)
        return [name, told.verdict, await ctx.call(pay, amount=amount, label=f"pay {name}")]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch("a", 1)), group.create_task(branch("b", 2))]
    return Complete([task.result() for task in tasks])


doubtful = Workflow("o_doubtful", input=Given)


@doubtful.step(start=True)
async def one_in_doubt(ctx: Any) -> Complete:
    return Complete(
        await asyncio.gather(
            ctx.call(post, amount=1, label="p"),
            ctx.call(pay, amount=2, label="q"),
            ctx.wait_signal("paid", label="s"),
        )
    )


unlabelled = Workflow("o_unlabelled", input=Given)


@tool(effect=True, in_doubt="ask", settle=timedelta(seconds=0.05))
async def post_async(amount: int) -> str:
    return world.do("post_async")


@unlabelled.step(start=True)
async def overlap(ctx: Any) -> Complete:
    labels: dict[str, Any] = {"label": "x"} if ctx.input.text == "one" else {}
    await asyncio.gather(ctx.call(post_async, amount=1, **labels), ctx.call(post_async, amount=2))
    return Complete()


grouped = Workflow("o_grouped", input=Given)


@grouped.step(start=True, retry=QUICK)
async def in_a_group(ctx: Any) -> Complete:
    world.ledger["tries"] += 1
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.call(pay, amount=1, label="a"))
    return Complete()


stumbling = Workflow("o_stumbling", input=Given)


@tool(effect=True, in_doubt="ask", settle=timedelta(seconds=0.05))
async def post_slowly(amount: int) -> str:
    await asyncio.sleep(0.3)
    return world.do("slowly")


@stumbling.step(start=True, retry=QUICK)
async def stumble(ctx: Any) -> Complete:
    async def fail() -> None:
        await asyncio.sleep(0.1)
        if world.ledger["stumbled"] < 1:
            world.ledger["stumbled"] += 1
            raise ValueError("one of two")

    if ctx.input.text == "group":
        async with asyncio.TaskGroup() as group:
            sent = group.create_task(ctx.call(post_slowly, amount=1, label="x"))
            group.create_task(fail())
        return Complete(sent.result())
    answer, _ = await asyncio.gather(ctx.call(post_slowly, amount=1, label="x"), fail())
    return Complete(answer)


# --- calls that outlive their attempt ---------------------------------------------------------------------------------------


def find_late(amount: int) -> str | None:
    return "found" if world.ledger["late"] else None


@tool(effect=True, verify=find_late, settle=timedelta(seconds=0.01), retry=QUICK)
def act_late(amount: int) -> str:
    world.ledger["begun"] += 1
    time.sleep(1.0)
    return world.do("late")


cut_short = Workflow("o_cut_short", input=Given)


@cut_short.step(start=True, timeout=0.4, retry=Retry(max_attempts=9, base=0.01, maximum=0.1))
async def be_cut(ctx: Any) -> Complete:
    return Complete(await ctx.call(act_late, amount=1))


timed = Workflow("o_timed_tool", input=Given)


@tool(effect=True, in_doubt="ask", timeout=0.1, retry=Retry(max_attempts=1, base=0.01))
async def hang(amount: int) -> str:
    world.do("hang")
    await asyncio.sleep(30)
    return "never"


@timed.step(start=True)
async def call_hanging(ctx: Any) -> Complete:
    return Complete(await ctx.call(hang, amount=1))


# --- atomic steps ------------------------------------------------------------------------------------------------------------

atomic = Workflow("o_atomic", input=Given, deadline=timedelta(hours=1))


def _note(ctx: Any) -> None:
    """A row of this database, as an application would write it."""
    from runs.models import Blob

    Blob.objects.create(sha256=f"{ctx.run_id} {ctx.input.text}", body=b"x")


@atomic.step(start=True, atomic=True, retry=Retry(max_attempts=2, base=0.01))
def write_rows(ctx: Any) -> Goto | Complete | Fail:
    world.ledger["atomic"] += 1
    ctx.state["noted"] = True
    _note(ctx)
    world.seen.append("written")
    if ctx.input.text in ("cancel", "deadline"):
        assert world.gate.wait(20)
    if ctx.input.text == "error":
        raise ValueError("after the write")
    if ctx.input.text == "exit":
        raise SystemExit(1)
    if ctx.input.text == "operation":
        ctx.call(pay, amount=1)
    if ctx.input.text == "fail":
        return Fail("no")
    return Complete("done") if ctx.input.text == "complete" else Goto(afterwards)


@atomic.step
def afterwards(ctx: Any) -> Complete:
    world.ledger["afterwards"] += 1
    return Complete(ctx.state)


# --- what bodies return and record ----------------------------------------------------------------------------------------------

returning = Workflow("o_returning", input=Given)


class Odd:
    """Of no type that can be recorded."""

    def __iter__(self) -> Any:
        raise RuntimeError("hostile")


@tool(effect=True, in_doubt="ask", settle=timedelta(seconds=0.05))
def answer_with(what: str) -> int:
    world.do("answered")
    return ANSWERS[what]()  # type: ignore[no-any-return]


class BrokenMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("hostile")


ANSWERS: dict[str, Any] = {
    "object": Odd,
    "text": lambda: "seven",
    "nul": lambda: "a\x00b",
    "nan": lambda: float("nan"),
    "huge": lambda: "x" * 5_000_001,
    "broken": BrokenMapping,
    "set": lambda: {1, 2},
}


@returning.step(start=True, retry=QUICK)
def give_back(ctx: Any) -> Any:
    world.ledger["tries"] += 1
    match ctx.input.text.partition(" "):
        case ["answer", _, what]:
            return Complete(ctx.call(answer_with, what=what))
        case ["result", _, what]:
            return Complete({"here": ANSWERS[what]()})
        case ["state", _, what]:
            ctx.state["here"] = ANSWERS[what]()
            return Goto(give_back)
        case ["argument", _, _]:
            ctx.call(keep_text, text="x" * 5_000_001)
        case ["message", _, what]:
            ctx.messages.add("agent", ANSWERS[what]())
        case ["log", _, _]:
            ctx.log("a\x00b", odd=Odd(), nan=float("nan"))
            return Complete()
        case ["none", _, _]:
            return None
        case ["generator", _, _]:
            return (x for x in [1])
        case ["nowhere", _, _]:
            return Goto("".join(("no", "where")))  # composed, so that the system check cannot tell
        case ["label", _, _]:
            ctx.call(pay, amount=1, label="".join(chr(0x4E00 + (i * 7919) % 20000) for i in range(4000)))
    return Complete()


@tool(effect=True, in_doubt="ask")
def keep_text(text: str) -> None:
    world.do("kept")


conversing = Workflow("o_conversing", input=Given)


@conversing.step(start=True, retry=QUICK)
def converse(ctx: Any) -> Complete:
    told = ctx.call(weather)
    ctx.messages.add("tool", told)
    ctx.external["session"] = "s-1"
    world.seen.append(Message.objects.filter(run_id=ctx.run_id).count())
    if ctx.attempt < 3:
        raise ValueError("again")
    return Complete([m["content"] for m in ctx.messages])


unregistered = Workflow("o_once", input=Given)


@unregistered.step(start=True, retry=QUICK)
def do_once(ctx: Any) -> Complete:
    done = ctx.once("by hand", world.do, "by hand")
    if ctx.attempt < 2:
        raise ValueError("again")
    return Complete(done)


pausing = Workflow("o_pausing", input=Given, deadline=timedelta(hours=1))


@pausing.step(start=True)
def go_on_later(ctx: Any) -> Goto:
    return Goto(last, after=timedelta(seconds=ctx.input.n))


@pausing.step
def last(ctx: Any) -> Complete:
    return Complete("later")


impatient = Workflow("o_impatient", input=Given)


@impatient.step(start=True)
def ask_briefly(ctx: Any) -> Complete:
    return Complete(ctx.ask("Quick?", timeout=timedelta(minutes=5)).verdict)


effect_and_deadline = Workflow("o_deadline", input=Given, deadline=timedelta(hours=1))


@effect_and_deadline.step(start=True)
def post_in_time(ctx: Any) -> Complete:
    return Complete(ctx.call(post, amount=1))


racing = Workflow("o_racing", input=Given)


@racing.step(start=True)
async def race(ctx: Any) -> Complete:
    decision, paid = await asyncio.gather(
        ctx.ask("May I?", timeout=timedelta(milliseconds=ctx.input.n), label="ask"),
        ctx.wait_signal("paid", label="paid", timeout=timedelta(seconds=30)),
    )
    if decision.approved:
        await ctx.call(pay, amount=1)
    return Complete([decision.verdict, paid])


booking = Workflow("o_booking", input=Given)


@tool(effect=True, idempotent=timedelta(hours=1), retry=QUICK)
def unbook(name: str, result: str, *, idempotency_key: str) -> str:
    return world.do(f"unbook {name} {result}", idempotency_key)


@tool(effect=True, idempotent=timedelta(hours=1), approval="o_policy", compensate=unbook, retry=QUICK)
def book_approved(name: str, *, idempotency_key: str) -> str:
    return world.do(f"book {name}", idempotency_key)


@booking.step(start=True)
def book_and_wait(ctx: Any) -> Complete:
    ctx.call(book_approved, name="suite")
    ctx.wait_signal("go")
    return Complete()


bounded = Workflow("o_bounded", input=Given, deadline=timedelta(hours=1))


@bounded.step(start=True, timeout=36_000)
def be_bounded(ctx: Any) -> Complete | Goto:
    match ctx.input.text:
        case "waiting":
            ctx.wait_signal("never")
        case "retrying":
            ctx.call(pay, amount=1)
        case "running":
            world.seen.append("in step")
            assert world.gate.wait(20)
        case "attention":
            ctx.call(post, amount=1)
        case "asking":
            ctx.ask("May I?", timeout=timedelta(days=3))
    return Complete()


hopeless = Workflow("o_hopeless", input=Given)


@hopeless.step(start=True)
async def doubt_and_error(ctx: Any) -> Complete:
    async def give_up() -> None:
        await asyncio.sleep(0.1)
        await ctx.call(pay, amount="not a number", label="never")

    await asyncio.gather(ctx.call(hang, amount=1, label="hang"), give_up())
    return Complete()


escaping = Workflow("o_escaping", input=Given)


@escaping.step(start=True)
def let_ctx_escape(ctx: Any) -> Complete:
    world.seen.append(ctx)
    return Complete()


@tool(
    effect=True,
    verify=lambda amount, idempotency_key: world.by_key.get(idempotency_key),
    settle=timedelta(seconds=60),
    retry=QUICK,
)
def settle_slowly(amount: int, *, idempotency_key: str) -> str:
    return world.do("settled", idempotency_key)


left_behind = Workflow("o_left_behind", input=Given)


@left_behind.step(start=True, retry=QUICK)
def find_it(ctx: Any) -> Complete:
    return Complete(ctx.call({"pay": pay, "settle": settle_slowly}[ctx.input.text], amount=5))
