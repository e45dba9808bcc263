"""The author's side: workflows, steps, tools and transitions.

refunds = Workflow("refund_request", version=1, input=RefundRequest)

@tool(effect=True, idempotent=timedelta(hours=24))
def refund(order_id: str, amount: Decimal, *, idempotency_key: str) -> Receipt: ...

@refunds.step(start=True)
def act(ctx):
    receipt = ctx.call(refund, order_id=ctx.input.order_id, amount=ctx.input.amount)
    return Complete({"receipt": receipt.id})
"""

import functools
import inspect
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model

Seconds = float

#: Parameters that the engine fills in; they are no arguments of the call.
GIVEN = frozenset({"idempotency_key", "timeout"})


def minutes(n: float) -> timedelta:
    return timedelta(minutes=n)


def hours(n: float) -> timedelta:
    return timedelta(hours=n)


def days(n: float) -> timedelta:
    return timedelta(days=n)


@dataclass(frozen=True)
class Retry:
    """How often and how far apart. Back-off doubles from `base` to `maximum` seconds with full jitter."""

    max_attempts: int = 5
    base: Seconds = 1.0
    maximum: Seconds = 60.0


@dataclass(frozen=True)
class Rate:
    """At most so many starts in a period, on average: a bucket that holds `count` and fills evenly."""

    count: int
    per: timedelta = timedelta(seconds=1)


# --- transitions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goto:
    """Go on at `step` (the step itself or its name), `after` this long."""

    step: "Step | str"
    after: timedelta | None = None

    @property
    def target(self) -> str:
        return self.step if isinstance(self.step, str) else self.step.name


@dataclass(frozen=True)
class Complete:
    """The run is done; `result` must be recordable."""

    result: Any = None


@dataclass(frozen=True)
class Fail:
    """The workflow itself says that the run failed; it is not retried by itself."""

    reason: str


Transition = Goto | Complete | Fail


# --- child runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Child:
    """A run that a step starts with `ctx.child` or `ctx.children`. None: the workflow's own, of `priority` the parent's."""

    workflow: "Workflow | str"
    input: Any = None
    subject: str | None = None
    queue: str | None = None
    priority: int | None = None


@dataclass(frozen=True)
class Ended:
    """What had become of a child run when its parent took notice; whatever people do with it later, this holds."""

    run_id: uuid.UUID
    status: Literal["completed", "failed", "cancelled", "unfinished"]
    result: Any = None
    """Of a completed one; None, 0 and False are results like any other."""
    reason: str = ""
    kind: str = ""
    """Of a failed one: exhausted (the dead letter), crashed, not_retryable, declared or deadline."""

    @property
    def completed(self) -> bool:
        return self.status == "completed"


class Ends(tuple[Ended, ...]):
    """What became of each child run, in the order in which they were given."""

    @property
    def results(self) -> list[Any]:
        """Results of those that completed."""
        return [one.result for one in self if one.completed]

    @property
    def failures(self) -> list[Ended]:
        """Those that failed or were cancelled."""
        return [one for one in self if one.status in ("failed", "cancelled")]


# --- tools -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a `verify` function returns when the effect happened (needed only where its result is None)."""

    value: Any


@dataclass(frozen=True, eq=False)
class Tool:
    """A typed function that an agent may call."""

    fn: Callable[..., Any]
    name: str
    effect: bool = False
    verify: Callable[..., Any] | None = None
    idempotent: timedelta | None = None
    approval: str | None = None
    compensate: "Tool | None" = None
    in_doubt: Literal["", "ask"] = ""
    timeout: Seconds = 30.0
    retry: Retry = Retry()
    settle: timedelta = timedelta(seconds=60)
    cached_errors: bool = False
    from_reference: Callable[[str], Any] | None = None
    summary: Callable[..., str] | None = None
    file: str = ""
    line: int = 0
    concurrency: int | None = None
    rate: Rate | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function: in a test, or from another tool. Nothing is recorded."""
        return self.fn(*args, **kwargs)

    @functools.cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    @functools.cached_property
    def given(self) -> frozenset[str]:
        """Names among GIVEN that the function wants."""
        return GIVEN & self.signature.parameters.keys()

    @functools.cached_property
    def arguments(self) -> type[BaseModel]:
        """Pydantic model of the arguments; its JSON Schema describes the tool to models and edit forms to people."""
        hints = get_type_hints(self.fn, include_extras=True)
        fields: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            if name in GIVEN:
                continue
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[name] = (hints.get(name, Any), default)
        return create_model(f"{self.name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)

    @functools.cached_property
    def returns(self) -> TypeAdapter[Any]:
        hint = get_type_hints(self.fn, include_extras=True).get("return", Any)
        return TypeAdapter(hint)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


def _place(fn: Callable[..., Any]) -> tuple[str, int]:
    code = inspect.unwrap(fn).__code__
    return code.co_filename, code.co_firstlineno


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    effect: bool = False,
    name: str = "",
    verify: Callable[..., Any] | None = None,
    idempotent: timedelta | None = None,
    approval: str | None = None,
    compensate: Tool | None = None,
    in_doubt: Literal["", "ask"] = "",
    timeout: Seconds = 30.0,
    retry: Retry | None = None,
    settle: timedelta = timedelta(seconds=60),
    cached_errors: bool = False,
    from_reference: Callable[[str], Any] | None = None,
    summary: Callable[..., str] | None = None,
    concurrency: int | None = None,
    rate: Rate | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    effect: bool = False,
    name: str = "",
    verify: Callable[..., Any] | None = None,
    idempotent: timedelta | None = None,
    approval: str | None = None,
    compensate: Tool | None = None,
    in_doubt: Literal["", "ask"] = "",
    timeout: Seconds = 30.0,
    retry: Retry | None = None,
    settle: timedelta = timedelta(seconds=60),
    cached_errors: bool = False,
    from_reference: Callable[[str], Any] | None = None,
    summary: Callable[..., str] | None = None,
    concurrency: int | None = None,
    rate: Rate | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Declare a function as a tool; a query unless `effect`.

    Args:
        verify: called with the same arguments (and `idempotency_key` if it takes one); returns the result if the effect
            happened, None if it certainly is not there, and raises if it cannot tell.
        idempotent: how long the provider remembers an idempotency key, counted from the first send.
        approval: name of the approval policy that guards the call.
        compensate: the tool that undoes this effect after a cancel; called with the effect's result as `result`.
        in_doubt: "ask" says that you know: nobody can look this effect up, and a person is asked.
        timeout: seconds that one call may take.
        settle: after the sender has certainly ended, how long its request may still land.
        cached_errors: the provider answers a repeated key with the error it gave before.
        from_reference: makes a result from a bare reference that a person enters for "it happened".
        summary: called with the arguments, says in one line what the call would do.
        concurrency: how many calls may be under way at once, in all workers; None: any number.
        rate: how many calls may begin in a period, in all workers.
    """

    def declare(f: Callable[..., Any]) -> Tool:
        file, line = _place(f)
        made = Tool(
            fn=f,
            name=name or f.__name__,
            effect=effect,
            verify=verify,
            idempotent=idempotent,
            approval=approval,
            compensate=compensate,
            in_doubt=in_doubt,
            timeout=timeout,
            retry=retry or Retry(),
            settle=settle,
            cached_errors=cached_errors,
            from_reference=from_reference,
            summary=summary,
            file=file,
            line=line,
            concurrency=concurrency,
            rate=rate,
        )
        TOOLS.setdefault(made.name, []).append(made)
        return made

    return declare(fn) if fn is not None else declare


#: Every declared tool by name; more than one of a name is a system-check error.
TOOLS: dict[str, list[Tool]] = {}


# --- workflows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Step:
    fn: Callable[..., Any]
    name: str
    workflow: "Workflow"
    timeout: Seconds
    retry: Retry
    atomic: bool
    file: str
    line: int
    concurrency: int | None = None
    rate: Rate | None = None

    @functools.cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


@dataclass(eq=False)
class Workflow:
    """A named, versioned state machine of steps."""

    name: str
    version: int = 1
    input: type[BaseModel] | None = None
    queue: str = "default"
    deadline: timedelta | None = None
    title: str = ""
    description: str = ""
    subject: Callable[[Any], str] | None = None
    crash_limit: int = 3
    retention: timedelta | None = None
    """How long finished runs are kept, in whole days, one at least; None: as the site's AGENTOPS_RETENTION_DAYS says."""
    concurrency: int | None = None
    """How many of its runs may be executed at once, in all workers; a run that waits holds no place. None: any number."""
    rate: Rate | None = None
    """How many steps of its runs may begin in a period, in all workers."""
    priority: int = 0
    """Of new runs that are given none: 0 to 9, each point a minute's head start."""
    steps: dict[str, Step] = field(default_factory=dict, init=False)
    start: Step | None = field(default=None, init=False)
    file: str = field(default="", init=False)
    line: int = field(default=0, init=False)
    #: Mistakes found while declaring, as (message, hint, where); the system checks report them.
    mistakes: list[tuple[str, str, str]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        # The caller of __init__. `inspect.stack()` would read the source of every module on the way, in every process.
        frame = sys._getframe(2)
        self.file, self.line = frame.f_code.co_filename, frame.f_lineno
        WORKFLOWS.setdefault(self.name, {}).setdefault(self.version, []).append(self)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @overload
    def step(self, fn: Callable[..., Any], /) -> Step: ...
    @overload
    def step(
        self,
        /,
        *,
        start: bool = False,
        name: str = "",
        timeout: Seconds = 60.0,
        retry: Retry | None = None,
        atomic: bool = False,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> Callable[[Callable[..., Any]], Step]: ...
    def step(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        start: bool = False,
        name: str = "",
        timeout: Seconds = 60.0,
        retry: Retry | None = None,
        atomic: bool = False,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> Step | Callable[[Callable[..., Any]], Step]:
        """Declare a step: reads persisted state, returns a transition.

        Args:
            start: the run begins here.
            timeout: seconds that one attempt may take.
            atomic: a `def` step that writes only this database runs in its checkpoint's transaction.
            concurrency: how many runs may be executed at this step at once, in all workers.
            rate: how many executions of it may begin in a period, in all workers.
        """

        def declare(f: Callable[..., Any]) -> Step:
            file, line = _place(f)
            made = Step(
                f, name or f.__name__, self, timeout, retry or Retry(), atomic, file, line, concurrency, rate
            )
            if made.name in self.steps:
                other = self.steps[made.name]
                self.mistakes.append(
                    (
                        f"workflow {self.name} has two steps named {made.name}",
                        f"the other one is at {other.where}; rename one of them",
                        made.where,
                    )
                )
            if start:
                if self.start is not None and self.start.name != made.name:
                    self.mistakes.append(
                        (
                            f"workflow {self.name} has two start steps",
                            f"the other one is {self.start.name} at {self.start.where}; keep one",
                            made.where,
                        )
                    )
                self.start = made
            self.steps[made.name] = made
            return made

        return declare(fn) if fn is not None else declare

    def validate_input(self, value: Any) -> Any:
        """`value` as the input model. Raises pydantic.ValidationError."""
        return value if self.input is None else self.input.model_validate(value)


#: Every declared workflow by name and version; more than one of both is a system-check error.
WORKFLOWS: dict[str, dict[int, list[Workflow]]] = {}
