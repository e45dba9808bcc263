"""The workflow of the reference model, and a provider in memory whose ledger is the judge.

Visit 1 does effect A, waits, does effect B; visit 2 does effect C; the compensation of A follows a cancel. A request of an
effect lands when the test says so, not when it is sent: also after its sender has died.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from runs.errors import NotRetryable, OutcomeUnknown, Retryable
from runs.workflow import Complete, Goto, Retry, Tool, Workflow, tool

#: Seconds that a request may take to land once its sender has ended.
SETTLE = timedelta(seconds=630)
#: How long the provider remembers a key.
WINDOW = timedelta(days=1)
#: No jitter (the stage takes it out), so that a back-off is over exactly when business time was moved by two minutes.
BACK_OFF = Retry(max_attempts=4, base=60, maximum=60)


@dataclass(eq=False)
class Request:
    """One request on its way; `sender` is the virtual worker that sent it."""

    thing: str
    key: str
    sender: Any
    idempotent: bool
    state: str = "flying"
    ended_at: timedelta | None = None
    """When its sender was known to have ended, in business time since the stage was set."""
    answer: str | Exception | None = None


class Provider:
    """What the world did. `arrive` is called in the sender's thread, and stops it there."""

    def __init__(self) -> None:
        self.ledger: Counter[str] = Counter()
        self.answers: dict[str, str] = {}
        """By key: what the provider answers when asked, or when the key comes again."""
        self.forgotten: set[str] = set()
        self.net: list[Request] = []
        self.raised: Counter[str] = Counter()
        self.amounts: dict[str, int] = {}
        self.pause: Callable[[str, Request | None], None] = lambda place, request: None
        self.sender: Callable[[], Any] = lambda: None

    def send(self, kind: str, thing: str, amount: int, key: str) -> str:
        request = Request(thing, key, self.sender(), kind == "idempotent")
        self.net.append(request)
        self.amounts[thing] = amount
        self.pause("tool.in_request", request)
        answer = request.answer
        if answer is None:
            self.land(request)
            answer = request.answer
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, str)
        return answer

    def land(self, request: Request) -> None:
        """The provider does what the request asks for."""
        request.state = "landed"
        if not (request.idempotent and request.key in self.answers and request.key not in self.forgotten):
            self.ledger[request.thing] += 1
            self.answers[request.key] = f"{request.thing} {self.ledger[request.thing]}"
            self.forgotten.discard(request.key)
        request.answer = request.answer or self.answers[request.key]

    def settle(self, request: Request, how: str) -> None:
        """What its sender will hear, or not."""
        match how:
            case "done":
                self.land(request)
            case "done, answer lost":
                self.land(request)
                request.answer = OutcomeUnknown("no answer in time")
            case "lost":
                request.state, request.answer = "lost", OutcomeUnknown("no answer in time")
            case "slow":
                request.answer = OutcomeUnknown("no answer in time")
            case "refused":
                request.state, request.answer = "lost", Retryable("busy")
            case "refused for good":
                request.state, request.answer = "lost", NotRetryable("no such account")
            case _:
                raise AssertionError(how)

    def find(self, key: str) -> str | None:
        """Asked whether a key is known; the answer is as old as its way back is long."""
        self.pause("verify.asked", None)
        found = self.answers.get(key)
        self.pause("verify.answered", None)
        return found


world = Provider()


def _effect(kind: str, name: str, **options: Any) -> Tool:
    def act(of: str, amount: int, *, idempotency_key: str) -> str:
        return world.send(kind, f"{of} {name}", amount, idempotency_key)

    if kind == "idempotent":
        options["idempotent"] = WINDOW
    elif kind == "verified":
        options["verify"] = lambda of, amount, idempotency_key: world.find(idempotency_key)
    else:
        options["in_doubt"] = "ask"
    return tool(effect=True, name=f"m_{name}_{kind}", settle=SETTLE, retry=BACK_OFF, timeout=3600, **options)(
        act
    )


@tool(effect=True, name="m_undo", idempotent=WINDOW, settle=SETTLE, retry=BACK_OFF, timeout=3600)
def undo(of: str, result: str, *, idempotency_key: str) -> str:
    return world.send("idempotent", f"{of} undo", 0, idempotency_key)


KINDS = ("idempotent", "verified", "unknowable")
FIRST = {kind: _effect(kind, "A") for kind in KINDS}
UNDOABLE = {kind: _effect(kind, "U", compensate=undo) for kind in KINDS}
SECOND = {kind: _effect(kind, "B") for kind in KINDS}
APPROVED = {kind: _effect(kind, "G", approval="m_policy") for kind in KINDS}
THIRD = {kind: _effect(kind, "C") for kind in KINDS}


@tool(name="m_weather", retry=BACK_OFF)
def weather(of: str) -> str:
    return "fair"


class Plan(BaseModel):
    """What a run of the model's workflow does."""

    of: str
    kinds: tuple[str, str, str] = ("idempotent", "idempotent", "idempotent")
    wait: str = "none"
    """none, signal, timed signal, approval, timer."""
    undoable: bool = False
    fails: int = 0
    """How often the second body raises."""
    short: bool = False
    """Only effect A and the end."""


whole = Workflow("m_whole", input=Plan)


@whole.step(start=True, timeout=3100, retry=BACK_OFF)
def first_visit(ctx: Any) -> Goto | Complete:
    plan: Plan = ctx.input
    first = UNDOABLE if plan.undoable else FIRST
    done = [ctx.call(first[plan.kinds[0]], of=plan.of, amount=1)]
    if plan.short:
        return Complete(done)
    match plan.wait:
        case "signal":
            done.append(ctx.wait_signal("paid"))
        case "timed signal":
            done.append(ctx.wait_signal("paid", timeout=timedelta(minutes=31)))
        case "timer":
            ctx.sleep(timedelta(minutes=31))
    second = APPROVED if plan.wait == "approval" else SECOND
    done.append(ctx.call(second[plan.kinds[1]], of=plan.of, amount=2))
    ctx.state["done"] = done
    return Goto(second_visit)


@whole.step(timeout=3100, retry=BACK_OFF)
def second_visit(ctx: Any) -> Complete:
    plan: Plan = ctx.input
    ctx.call(weather, of=plan.of)
    if world.raised[plan.of] < plan.fails:
        world.raised[plan.of] += 1
        raise ValueError("an error of the body")
    done = [*ctx.state["done"], ctx.call(THIRD[plan.kinds[2]], of=plan.of, amount=3)]
    return Complete(done)
