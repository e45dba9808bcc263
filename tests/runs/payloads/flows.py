"""Workflows that hand over what cannot be recorded, or much of it."""

import socket
import threading
from datetime import timedelta
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from runs import models_provider
from runs.lifecycle import Actor
from runs.services import start
from runs.workflow import Complete, Goto, Retry, Workflow, tool


class Given(BaseModel):
    door: str = ""
    what: str = ""
    n: int = 0


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    return value


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class HoldsSocket(Exception):
    """Cannot be pickled, copied or written as JSON."""

    def __init__(self) -> None:
        self.socket, self.lock = socket.socket(), threading.Lock()
        self.socket.close()
        super().__init__("the line went dead", self.socket, self.lock)


class Meddling(BaseModel):
    """A model whose values are read by code that fails."""

    model_config = {"arbitrary_types_allowed": True}

    def model_dump(self, **options: Any) -> Any:
        raise RuntimeError("not now")


#: What JSON or PostgreSQL cannot hold, and what a refusal says of it.
BAD: dict[str, tuple[Any, str]] = {
    "nul": ("a\0b", "NUL"),
    "surrogate": ("a\ud800b", "lone surrogate"),
    "nan": (float("nan"), "nan"),
    "infinity": (float("-inf"), "-inf"),
    "bytes": (b"raw", "bytes"),
    "set": ({1, 2}, "set"),
    "integer": (10**5000, "more than 4300 digits"),
    "decimal": (Decimal("NaN"), "NaN"),
    "key": ({7: "seven"}, "key 7"),
    "nul in a key": ({"a\0b": 1}, "NUL"),
    "deep": (nested(3000), "levels deep"),
    "object": (object(), "object"),
    "socket": (HoldsSocket(), "HoldsSocket"),
}
ERRORS: dict[str, Exception] = {
    "unprintable": Unprintable(),
    "socket": HoldsSocket(),
    "nul": ValueError("a\0b"),
    "surrogate": ValueError("a\ud800b"),
    "integer": ValueError(10**5000),
    "long": ValueError("x" * 3_000_000),
    "no text": ValueError(),
}
#: What can be held although it looks odd: it comes back as it was.
ODD: dict[str, Any] = {
    "tag of a Decimal": {"$agentops": "decimal", "v": "1.50"},
    "tag of a blob": {"$agentops": "blob", "v": {"sha256": "0" * 64, "bytes": 3}},
    "tag of a patch": {"$agentops": "patch", "v": {"changes": [[["n"], 1]], "sum": 0}},
    "tag of nothing": {"$agentops": "pickle", "v": "gASVAAAA"},
    "tag of a dict": {"$agentops": "dict", "v": {"$agentops": "decimal", "v": "x"}},
    "tag within": {"in": [{"$agentops": "history", "v": {"seq": 1, "attempt": 1, "bytes": 9}}]},
    "long decimal": Decimal("0." + "1234567890" * 40),
    "large integer": 10**4000,
    "null": None,
    "list": [1, "two", None],
    "float": 0.2345678901234568,
    "deep": nested(150),
}


@tool
def echo(value: Any) -> Any:
    """A tool that takes anything; its argument has no JSON type, so that what is wrong shows when it is recorded."""
    return value


@tool
def fetch(kind: str) -> Any:
    return BAD[kind][0] if kind != "meddling" else Meddling()


@tool(effect=True, in_doubt="ask")
def act(kind: str) -> Any:
    return BAD[kind][0] if kind != "meddling" else Meddling()


@tool
def fail(kind: str) -> None:
    raise ERRORS[kind]


models_provider.register(
    "bad", lambda request, timeout: {"text": "a\0b\ud800", "usage": {}, "raw": float("nan"), "more": {1, 2}}
)

rough = Workflow("t_rough", input=Given)


@rough.step(start=True, retry=Retry(max_attempts=5, base=0.02, maximum=0.05))
def hand_over(ctx: Any) -> Any:
    value, _ = BAD.get(ctx.input.what, (None, ""))
    match ctx.input.door:
        case "state":
            ctx.state["documents"] = [{"ok": 1}, {"body": value}]
        case "arguments":
            ctx.call(echo, value={"body": value})
        case "once":
            ctx.once("act", lambda body: None, {"body": value})
        case "message":
            ctx.messages.add("agent", {"body": value})
        case "request":
            ctx.model(model="bad", messages=[{"role": "user", "content": value}])
        case "ask":
            ctx.ask("May I?", {"body": value}, policy="t_rough")
        case "external":
            ctx.external["body"] = value
        case "name of a tag":
            ctx.external["$agentops"] = "history"
        case "result":
            return Complete({"body": value})
        case "answer":
            return Complete({"answered": bool(repr(ctx.call(fetch, kind=ctx.input.what)))})
        case "effect":
            return Complete({"answered": bool(repr(ctx.call(act, kind=ctx.input.what)))})
        case "model":
            return Complete(ctx.model(model="bad", messages=[]).text)
        case "log":
            ctx.log(str(value) if isinstance(value, str) else "odd", level="in\0fo", body=value)
            return Complete("logged")
        case "error":
            raise ERRORS[ctx.input.what]
        case "tool error":
            ctx.call(fail, kind=ctx.input.what)
        case "odd":
            ctx.state["kept"] = ODD[ctx.input.what]
            ctx.messages.add("agent", ODD[ctx.input.what])
            ctx.call(echo, value=ODD[ctx.input.what])
            return Goto(come_back)
    return Complete("recorded")


@rough.step
def come_back(ctx: Any) -> Any:
    odd = ODD[ctx.input.what]
    (message,) = ctx.messages
    assert ctx.state["kept"] == odd == message["content"] == ctx.call(echo, value=odd)
    return Complete(ctx.state["kept"])


large = Workflow("t_large", input=Given)
DOCUMENTS, VISITS = 60, 12


@large.step(start=True)
def read(ctx: Any) -> Goto:
    ctx.state["documents"] = [{"n": n, "body": f"word {n} " * 80} for n in range(DOCUMENTS)]
    return Goto(work)


@large.step
def work(ctx: Any) -> Any:
    """One document a visit; every third goes through the database, as it waits."""
    seen = ctx.state.get("seen", 0)
    assert [d["n"] for d in ctx.state["documents"]] == list(range(DOCUMENTS))
    assert [d["body"].endswith("!") for d in ctx.state["documents"]] == [n < seen for n in range(DOCUMENTS)]
    if seen == VISITS:
        return Complete(seen)
    ctx.state["documents"][seen]["body"] += "!"
    ctx.state["seen"] = seen + 1
    return Goto(work, after=timedelta(milliseconds=1) if seen % 3 == 2 else None)


small = Workflow("t_small", input=Given)


@small.step(start=True)
def count(ctx: Any) -> Goto | Complete:
    """A small state that changes in all ways; the third and the sixth visit are the first of another claim."""
    seen = ctx.state["seen"] = ctx.state.get("seen", 0) + 1
    ctx.state.setdefault("note", "n" * 300)
    if seen == 4:
        ctx.state["one"] = 1
    if seen == 5:
        ctx.state["one"] = True
    if seen == 7:
        del ctx.state["one"]
    if seen == 8:
        ctx.state["note"] = "m" * 300
    if seen == 9:
        return Complete(dict(ctx.state))
    return Goto(count, after=timedelta(milliseconds=1) if seen in (2, 5) else None)


shrinking = Workflow("t_shrinking", input=Given)


@shrinking.step(start=True)
def grow(ctx: Any) -> Goto:
    ctx.state.update(text="x" * 20_000, one=1)
    return Goto(change)


@shrinking.step
def change(ctx: Any) -> Goto:
    ctx.state["one"] = True
    return Goto(shrink)


@shrinking.step
def shrink(ctx: Any) -> Goto:
    assert ctx.state["one"] is True
    ctx.state["text"] = "short"
    return Goto(grow_again, after=timedelta(milliseconds=1))


@shrinking.step
def grow_again(ctx: Any) -> Goto:
    assert ctx.state == {"text": "short", "one": True}
    ctx.state["text"] = "y" * 20_000
    return Goto(end, after=timedelta(milliseconds=1))


@shrinking.step
def end(ctx: Any) -> Complete:
    return Complete(len(ctx.state["text"]))


heavy = Workflow("t_heavy", input=Given)
HEAVY = {"rows": [{"n": n, "text": "é" * 60} for n in range(2000)]}


@tool(effect=True, in_doubt="ask")
def store(rows: dict[str, Any]) -> Any:
    return {"id": "s1", "rows": rows}


@heavy.step(start=True)
def take(ctx: Any) -> Goto:
    ctx.messages.add("agent", HEAVY)
    answer = ctx.call(store, rows=HEAVY)
    assert answer["rows"] == HEAVY
    ctx.wait_signal("go", timeout=timedelta(minutes=1))
    again = ctx.call(store, rows=HEAVY, label="again")
    assert again["rows"] == HEAVY
    return Goto(give)


@heavy.step
def give(ctx: Any) -> Complete:
    (message,) = ctx.messages
    assert message["content"] == HEAVY
    return Complete(HEAVY)


parked = Workflow("t_parked", input=Given)


@parked.step(start=True)
def fill(ctx: Any) -> Goto:
    ctx.state["text"] = "x" * 50_000
    return Goto(listen)


@parked.step
def listen(ctx: Any) -> Complete:
    ctx.wait_signal("go", timeout=timedelta(minutes=1))
    return Complete(len(ctx.state["text"]))


huge = Workflow("t_huge", input=Given)


@huge.step(start=True)
def gather(ctx: Any) -> Goto:
    ctx.state["pages"] = ["é" * 245_000] * 10
    return Goto(amend)


@huge.step
def amend(ctx: Any) -> Goto:
    ctx.state["pages"][4] += "!"
    return Goto(conclude, after=timedelta(milliseconds=1))


@huge.step
def conclude(ctx: Any) -> Complete:
    return Complete([len(page) for page in ctx.state["pages"]])


handing_over = Workflow("t_handing_over", input=Given)


@handing_over.step(start=True, atomic=True)
def start_another(ctx: Any) -> Complete:
    given = {"door": "", "what": "x" * 50_000, "n": 0}
    start(Actor("system"), "t_rough", given)
    return Complete(given)
