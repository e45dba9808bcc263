"""`ctx`: what a step sees.

`Visit` holds what a visit has recorded and hands out positions; `Context` offers it to `def` steps, `AsyncContext` to
`async def` steps, both over the one protocol in `effects`.
"""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn

from asgiref.sync import async_to_sync
from pydantic import TypeAdapter

from runs import codec, models_provider, policies, redaction
from runs.engine import effects, statements
from runs.engine.database import cold
from runs.engine.effects import Block, Call, OpenWait, Requests, Want
from runs.engine.execution import Execution, Record, dumps
from runs.errors import (
    AgentopsError,
    Cancelled,
    ContextClosed,
    Diverged,
    LeaseLost,
    OutcomeUnknown,
    Suspend,
    UnlabelledParallel,
)
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.workflow import Step, Tool

#: The engine's control flow, which user code must let through; where several meet, the first of these counts.
CONTROL = (LeaseLost, ContextClosed, Diverged, Cancelled, Suspend)


@dataclass(frozen=True)
class Decision:
    """What people answered to `ctx.ask`."""

    verdict: str
    payload: Any
    by: str
    reason: str

    @property
    def approved(self) -> bool:
        return self.verdict == "approved"


class Visit:
    """One execution of a step's body: its records, the positions handed out so far, what it wants when it suspends."""

    def __init__(
        self,
        execution: Execution,
        step: Step | None,
        records: dict[str, Record],
        overrides: policies.Overrides,
    ) -> None:
        self.execution, self.step, self.records = execution, step, records
        self.overrides = overrides
        self.used: set[str] = set()
        self.wants: list[Want] = []
        self.final_failures: dict[str, str] = {}
        self.last_recorded = execution.visit_started_at
        self.reason = ""
        self.closed = False
        self._ordinal = 0
        self._logs = 0
        self._messages = 0
        self._lock = threading.Lock()
        self._unlabelled_in_flight = 0
        self.in_flight = 0
        self.overlapped = False
        """Operations without labels overlapped: nothing more is sent."""
        self.stopped: BaseException | None = None
        """What ended this attempt from inside `ctx`; whatever the body still returns or raises is ignored."""
        self._stopped_here: weakref.WeakSet[Any] = weakref.WeakSet()

    def stop(self, error: BaseException) -> None:
        """Control flow left `ctx`: its thread or task may not use `ctx` again. Its siblings may still open their waits."""
        with self._lock:
            self._stopped_here.add(_here())
            if isinstance(error, ContextClosed):
                return
            if self.stopped is None or _rank(error) < _rank(self.stopped):
                self.stopped = error

    def check_open(self) -> None:
        """Raises ContextClosed."""
        if self.closed or (self.stopped is not None and _here() in self._stopped_here):
            raise ContextClosed("ctx was used after its attempt had ended")

    def begin(self, label: str | None) -> tuple[str, int]:
        """Hand out the position of the next operation. Raises UnlabelledParallel, Diverged (a label twice) or ContextClosed."""
        self.check_open()
        with self._lock:
            if self.step is not None and self.step.atomic:
                raise AgentopsError(
                    f"step {self.step.name} is atomic: it writes this database only and may not use ctx operations"
                )
            self._ordinal += 1
            ordinal = self._ordinal
            if self._unlabelled_in_flight or (label is None and self.in_flight):
                self.overlapped = True
                raise UnlabelledParallel("operations that overlap in time need a label= each")
            if label is None:
                position = str(ordinal)
                self._unlabelled_in_flight += 1
            else:
                position = f"={label}"
            if position in self.used:
                raise AgentopsError(
                    f"two operations of this visit have the label {label!r}; labels must differ"
                )
            self.used.add(position)
            self.in_flight += 1
            return position, ordinal

    def check_labels(self) -> None:
        """Raises UnlabelledParallel also in the operation that came first: nothing is sent in an order that is chance."""
        if self.overlapped:
            raise UnlabelledParallel("operations that overlap in time need a label= each")

    def finish(self, label: str | None, position: str) -> None:
        with self._lock:
            self.in_flight -= 1
            if label is None:
                self._unlabelled_in_flight -= 1
            record = self.records.get(position)
            if record is not None and record.finished_at is not None:
                self.last_recorded = max(self.last_recorded, record.finished_at)

    def tool_limits(self, tool: Tool, *, fresh: bool = False) -> policies.Limits:
        """A tool's limits; `fresh` reads the database, because a decision about a failed try is being made."""
        if fresh:
            # The answer that is being decided on is evidence: it must not get lost for want of the newest limits.
            with suppress(LeaseLost):
                self.overrides = cold(lambda unsure: policies.load(), self.execution.lease)
        return policies.for_tool(tool, self.overrides)

    def next_log(self) -> str:
        with self._lock:
            self._logs += 1
            return str(self._logs)

    def next_message(self) -> str:
        with self._lock:
            self._messages += 1
            return f"{self._messages:06d}"

    def unused(self) -> list[Record]:
        """Recorded effects and waits that this execution of the body did not come to."""
        return [
            r
            for r in self.records.values()
            if r.position not in self.used
            and r.kind not in (Kind.QUERY, Kind.MODEL)
            and r.status != OpStatus.CLOSED
        ]

    # --- operations; generators that both contexts drive ------------------------------------------------------------

    def call(self, tool: Tool, label: str | None, given: Mapping[str, Any]) -> Requests:
        python, encoded = effects.encode_arguments(tool, given)
        position, ordinal = self.begin(label)
        try:
            if tool.effect:
                return (yield from effects.effect(self, tool, position, ordinal, python, encoded))
            return (yield from effects.query(self, tool, position, ordinal, python, encoded))
        finally:
            self.finish(label, position)

    def compensate(self, tool: Tool, of: uuid.UUID, given: Mapping[str, Any]) -> Requests:
        python, encoded = effects.encode_arguments(tool, given)
        position, ordinal = self.begin(f"undo {of}")
        try:
            return (yield from effects.effect(self, tool, position, ordinal, python, encoded, compensates=of))
        finally:
            self.finish(f"undo {of}", position)

    def once(
        self, label: str, fn: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Requests:
        unregistered = _unregistered(label, fn)
        encoded = codec.encode({"arguments": list(arguments), "keywords": dict(keywords)}, path=label)
        effects.check_size(encoded, label)
        position, ordinal = self.begin(label)
        bound = {"arguments": arguments, "keywords": dict(keywords)}
        try:
            return (yield from effects.effect(self, unregistered, position, ordinal, bound, encoded))
        finally:
            self.finish(label, position)

    def model(
        self,
        *,
        model: str,
        messages: Any,
        tools: tuple[Tool, ...],
        output_type: Any,
        label: str | None,
        timeout: float,
    ) -> Requests:
        provider = models_provider.resolve(model)
        request = {
            "model": provider.name,
            "messages": messages,
            "tools": [{"name": t.name, "schema": t.arguments.model_json_schema()} for t in tools],
            "output": None if output_type is str else TypeAdapter(output_type).json_schema(),
        }
        encoded = codec.encode(request, path="model request")
        effects.check_size(encoded, "model request")
        asked = Tool(fn=provider.complete, name=provider.name, timeout=timeout)
        position, ordinal = self.begin(label)
        try:
            answer = yield from effects.query(
                self, asked, position, ordinal, {"request": request, "timeout": timeout}, encoded, Kind.MODEL
            )
        finally:
            self.finish(label, position)
        return models_provider.reply(provider.name, answer, output_type)

    def ask(
        self,
        title: str,
        payload: Any,
        *,
        policy: str,
        why: str,
        schema: Mapping[str, Any] | None,
        limit: timedelta | None,
        label: str | None,
    ) -> Requests:
        encoded = codec.encode(payload, path=title)
        effects.check_size(encoded, title)
        position, ordinal = self.begin(label)
        options = {
            "title": title,
            "why": why or self.reason,
            "schema": dict(schema or {}),
            "policy": policy,
            "arguments": encoded,
        }
        try:
            record = yield from effects.wait(
                self,
                OpenWait(
                    Kind.APPROVAL,
                    title,
                    position,
                    ordinal,
                    encoded,
                    codec.digest(encoded),
                    limit,
                    options=options,
                ),
            )
        finally:
            self.finish(label, position)
        told = record.true_result or {}
        return Decision(
            str(told.get("verdict", "")),
            told.get("arguments"),
            str(told.get("by", "")),
            str(told.get("reason", "")),
        )

    def wait_signal(
        self, name: str, limit: timedelta | None, correlation: str, label: str | None
    ) -> Requests:
        request = {"name": name, "correlation": correlation}
        position, ordinal = self.begin(label)
        try:
            record = yield from effects.wait(
                self,
                OpenWait(
                    Kind.SIGNAL,
                    name,
                    position,
                    ordinal,
                    request,
                    codec.digest(request),
                    limit,
                    correlation=correlation,
                ),
            )
        finally:
            self.finish(label, position)
        return record.true_result

    def sleep(self, length: timedelta, label: str | None) -> Requests:
        request = {"seconds": length.total_seconds()}
        position, ordinal = self.begin(label)
        try:
            yield from effects.wait(
                self,
                OpenWait(Kind.TIMER, "sleep", position, ordinal, request, codec.digest(request), length),
            )
        finally:
            self.finish(label, position)
        return None

    def log(self, text: str, level: str, data: Mapping[str, Any]) -> Requests:
        self.check_open()
        position = self.next_log()
        yield Block(
            lambda: self._write(
                statements.LOG_LINE,
                {
                    "id": new_id(),
                    "position": position,
                    "level": level,
                    "text": codec.clean_text(text),
                    "data": dumps(codec.encode(dict(data), lenient=True)),
                },
            )
        )
        return None

    def _write(self, statement: str, parameters: dict[str, Any]) -> tuple[Any, ...]:
        row = self.execution.write(statement, parameters)
        if row is None:
            self.execution.refused_unless_held()
            raise Diverged("a message differs from the one recorded at its place")
        return row


def _unregistered(label: str, fn: Callable[..., Any]) -> Tool:
    """A function given to `ctx.once`: nobody can look its effect up, so a person is asked."""
    import inspect

    def call(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        return fn(*arguments, **keywords)

    async def call_async(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        return await fn(*arguments, **keywords)

    chosen = call_async if inspect.iscoroutinefunction(fn) else call
    return Tool(fn=chosen, name=label, effect=True, in_doubt="ask")


class Messages:
    """The run's conversation, oldest first. `add` keys an entry by (visit, position): re-execution does not repeat it."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._seen: list[dict[str, Any]] | None = None

    def _load(self) -> list[dict[str, Any]]:
        if self._seen is None:
            execution = self._visit.execution
            rows = execution.database.all(statements.MESSAGES, {"run": execution.run_id})
            # Messages of this visit are matched as the body comes to them again.
            self._seen = [
                {"role": role, "content": codec.decode(redaction.true_value(content, sealed))}
                for step_seq, _, role, content, sealed, _ in rows
                if step_seq < execution.step_seq
            ]
        return self._seen

    def add(self, role: str, content: Any) -> None:
        """Append an entry, visible at once. Raises Diverged if another one is recorded at this place."""
        visit = self._visit
        visit.check_open()
        encoded = codec.encode(content, path="message")
        effects.check_size(encoded, "message")
        display, sealed = redaction.split(encoded)
        visit._write(
            statements.MESSAGE,
            {
                "id": new_id(),
                "position": visit.next_message(),
                "role": role,
                "content": dumps(display),
                "sealed": sealed,
                "digest": codec.digest([role, encoded]),
            },
        )
        self._load().append({"role": role, "content": codec.decode(encoded)})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(list(self._load()))

    def __len__(self) -> int:
        return len(self._load())


class External(MutableMapping[str, Any]):
    """Identifiers elsewhere (transactions, sessions); durable as soon as they are set."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    def __getitem__(self, name: str) -> Any:
        return codec.decode(self._visit.execution.external[name])

    def __setitem__(self, name: str, value: Any) -> None:
        encoded = codec.encode(value, path=name)
        if self._visit.execution.external.get(name) == encoded:
            return
        self._visit.check_open()
        self._visit._write(statements.EXTERNAL, {"added": dumps({name: encoded})})
        self._visit.execution.external[name] = encoded

    def __delitem__(self, name: str) -> NoReturn:
        raise AgentopsError("an external identifier stays: it says what happened elsewhere")

    def __iter__(self) -> Iterator[str]:
        return iter(self._visit.execution.external)

    def __len__(self) -> int:
        return len(self._visit.execution.external)


class _Shared:
    """What both contexts offer without asking anything."""

    def __init__(self, visit: Visit, input: Any, state: Any) -> None:
        self._visit = visit
        self.input = input
        self.state = state
        self.messages = Messages(visit)
        self.external = External(visit)

    @property
    def run_id(self) -> uuid.UUID:
        return self._visit.execution.run_id

    @property
    def attempt(self) -> int:
        """Which try of this visit this is, from 1."""
        return self._visit.execution.attempt_no

    @property
    def started_by(self) -> str:
        return self._visit.execution.started_by

    @property
    def cancelled(self) -> bool:
        """Whether cancel was asked for; long work outside `ctx` may look and stop early."""
        return self._visit.execution.cancel_requested or self._visit.execution.lost

    @property
    def random(self) -> random.Random:
        """Seeded by run and visit: the same numbers on re-execution."""
        if not hasattr(self, "_random"):
            execution = self._visit.execution
            self._random = random.Random(f"{execution.run_id}/{execution.step_seq}")
        return self._random

    def now(self) -> datetime:
        """Database time of the last thing recorded before this: the visit's start or a finished operation."""
        return self._visit.last_recorded

    def explain(self, reason: str) -> None:
        """Say why the next effects are wanted; people see it, as the agent's words, when they are asked to approve."""
        self._visit.reason = reason


class Context(_Shared):
    """`ctx` of a `def` step."""

    def _drive(self, requests: Requests) -> Any:
        try:
            request = next(requests)
            while True:
                try:
                    if isinstance(request, Block):
                        answer = request.work()
                    else:
                        self._visit.check_labels()
                        answer = _call(request)
                except BaseException as error:
                    request = requests.throw(error)
                else:
                    request = requests.send(answer)
        except StopIteration as done:
            return done.value
        except CONTROL as error:
            self._visit.stop(error)
            raise

    def call(self, tool: Tool, /, *, label: str | None = None, **arguments: Any) -> Any:
        """Call a tool; a recorded answer is returned without calling it.

        Raises:
            ToolFailed: it failed for good. Rejected: people did not allow it. InvalidInput: arguments of a wrong type.
        """
        return self._drive(self._visit.call(tool, label, arguments))

    def once(self, label: str, fn: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        """Call an unregistered function once; if its outcome is lost, a person is asked whether it happened."""
        return self._drive(self._visit.once(label, fn, arguments, keywords))

    def model(
        self,
        *,
        messages: Any,
        model: str = "",
        tools: tuple[Tool, ...] = (),
        output_type: Any = str,
        label: str | None = None,
        timeout: float = 120.0,
    ) -> Any:
        """Ask a model; the answer is recorded and never asked for twice. Returns a `Reply` (text, output, usage)."""
        return self._drive(
            self._visit.model(
                model=model,
                messages=messages,
                tools=tools,
                output_type=output_type,
                label=label,
                timeout=timeout,
            )
        )

    def ask(
        self,
        title: str,
        payload: Any = None,
        *,
        policy: str = "",
        why: str = "",
        schema: Mapping[str, Any] | None = None,
        timeout: timedelta | None = None,
        label: str | None = None,
    ) -> Decision:
        """Ask people to decide on `payload`; holds no worker while they do."""
        made: Decision = self._drive(
            self._visit.ask(title, payload, policy=policy, why=why, schema=schema, limit=timeout, label=label)
        )
        return made

    def wait_signal(
        self, name: str, *, timeout: timedelta | None = None, correlation: str = "", label: str | None = None
    ) -> Any:
        """The payload of the signal; one that came before is kept for this. Raises WaitExpired."""
        return self._drive(self._visit.wait_signal(name, timeout, correlation, label))

    def sleep(self, length: timedelta, *, label: str | None = None) -> None:
        """Go on after `length`; holds no worker."""
        self._drive(self._visit.sleep(length, label))

    def log(self, text: str, *, level: str = "info", **data: Any) -> None:
        """Write a line that support will read; visible at once, once however often the step is retried."""
        self._drive(self._visit.log(text, level, data))


def _call(request: Call) -> Any:
    try:
        if request.is_async:
            return async_to_sync(request.fn)(**request.arguments)
        return request.fn(**request.arguments)
    except LEAVING as error:
        raise OutcomeUnknown(f"the tool raised {type(error).__name__}") from error


async def _call_async(request: Call) -> Any:
    """Await a tool; a `def` one on a thread."""
    if not request.is_async:
        return await asyncio.to_thread(_call, request)
    try:
        async with asyncio.timeout(request.timeout):
            return await request.fn(**request.arguments)
    except LEAVING as error:
        # Raised through a task, these would end the event loop with all that runs on it.
        raise OutcomeUnknown(f"the tool raised {type(error).__name__}") from error


#: What means to end the process; from a tool, it says as little about the call's outcome as any other error.
LEAVING = (SystemExit, KeyboardInterrupt, GeneratorExit)


class AsyncContext(_Shared):
    """`ctx` of an `async def` step: the same names, awaited."""

    def __init__(self, visit: Visit, input: Any, state: Any, blocking: Executor) -> None:
        super().__init__(visit, input, state)
        self._blocking = blocking

    async def _drive(self, requests: Requests) -> Any:
        cut: asyncio.CancelledError | None = None
        try:
            request = next(requests)
            while True:
                try:
                    if isinstance(request, Call):
                        self._visit.check_labels()
                        # A sibling that waits cancels its task group; this branch still comes as far as it can.
                        if cut is not None and self._visit.stopped is None:
                            raise cut
                    answer, now = await self._carry_out(request)
                    cut = cut or now
                    if isinstance(answer, _Raised):
                        raise answer.error
                except BaseException as error:
                    request = requests.throw(error)
                else:
                    request = requests.send(answer)
        except StopIteration as done:
            if cut is not None:
                raise cut from None
            return done.value
        except CONTROL as error:
            self._visit.stop(error)
            raise

    async def _carry_out(self, request: Block | Call) -> tuple[Any, asyncio.CancelledError | None]:
        """The answer (or `_Raised`), and the cancellation of this task that arrived meanwhile.

        A cancellation (the error of a sibling in a task group, the end of the attempt's time) cuts nothing that has begun:
        a statement commits, an effect happens, and its outcome is recorded. Only an `async def` tool is ended with the
        attempt's time; one on a thread cannot be.
        """
        work: asyncio.Future[Any]
        if isinstance(request, Block):
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._blocking, _shield, request.work)
        else:
            work = asyncio.ensure_future(_call_async(request))
        cut: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:
                cut = error
                if isinstance(request, Call) and request.is_async and self._visit.execution.time_left < 0.05:
                    work.cancel()
        try:
            return work.result(), cut
        except BaseException as error:
            return _Raised(error), cut

    async def call(self, tool: Tool, /, *, label: str | None = None, **arguments: Any) -> Any:
        """See `Context.call`."""
        return await self._drive(self._visit.call(tool, label, arguments))

    async def once(self, label: str, fn: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        """See `Context.once`."""
        return await self._drive(self._visit.once(label, fn, arguments, keywords))

    async def model(
        self,
        *,
        messages: Any,
        model: str = "",
        tools: tuple[Tool, ...] = (),
        output_type: Any = str,
        label: str | None = None,
        timeout: float = 120.0,
    ) -> Any:
        """See `Context.model`."""
        return await self._drive(
            self._visit.model(
                model=model,
                messages=messages,
                tools=tools,
                output_type=output_type,
                label=label,
                timeout=timeout,
            )
        )

    async def ask(
        self,
        title: str,
        payload: Any = None,
        *,
        policy: str = "",
        why: str = "",
        schema: Mapping[str, Any] | None = None,
        timeout: timedelta | None = None,
        label: str | None = None,
    ) -> Decision:
        """See `Context.ask`."""
        made: Decision = await self._drive(
            self._visit.ask(title, payload, policy=policy, why=why, schema=schema, limit=timeout, label=label)
        )
        return made

    async def wait_signal(
        self, name: str, *, timeout: timedelta | None = None, correlation: str = "", label: str | None = None
    ) -> Any:
        """See `Context.wait_signal`."""
        return await self._drive(self._visit.wait_signal(name, timeout, correlation, label))

    async def sleep(self, length: timedelta, *, label: str | None = None) -> None:
        """See `Context.sleep`."""
        await self._drive(self._visit.sleep(length, label))

    async def log(self, text: str, *, level: str = "info", **data: Any) -> None:
        """See `Context.log`."""
        await self._drive(self._visit.log(text, level, data))


def _here() -> Any:
    """The task or thread that is executing."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def _rank(error: BaseException) -> int:
    return next(rank for rank, kind in enumerate(CONTROL) if isinstance(error, kind))


@dataclass(frozen=True)
class _Raised:
    error: BaseException


def _shield(work: Callable[[], Any]) -> Any:
    """Carry control flow (BaseExceptions) out of a thread pool, whose workers would log and hold them."""
    try:
        return work()
    except BaseException as error:
        return _Raised(error)
