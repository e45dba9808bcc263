"""`ctx`: what a step sees.

`Context` is for `def` steps and `AsyncContext` for `async def` steps; both drive the operations of a `Visit`.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from asgiref.sync import async_to_sync

from runs.engine.conversation import External, Messages
from runs.engine.questions import WITHIN
from runs.engine.requests import Block, Call, Question, Requests, Respond
from runs.engine.visit import CONTROL, Decision, Visit
from runs.errors import OutcomeUnknown
from runs.kin.children import Leave
from runs.workflow import Child, Ends, Tool, Workflow


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
                    elif isinstance(request, Respond):
                        answer = _respond(request)
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

    def call(
        self,
        tool: Tool,
        /,
        *,
        label: str | None = None,
        on_question: Callable[[Question], Any] | None = None,
        **arguments: Any,
    ) -> Any:
        """Call a tool; a recorded answer is returned without calling it.

        Args:
            on_question: answers what people ask back about its approval, with queries and model requests of `ctx`; what it
                returns is shown to them. Without it, the agent reads the questions with the decision.

        Raises:
            ToolFailed: it failed for good. Rejected: people did not allow it. InvalidInput: arguments of a wrong type.
        """
        return self._drive(self._visit.call(tool, label, arguments, on_question))

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
        on_question: Callable[[Question], Any] | None = None,
    ) -> Decision:
        """Ask people to decide on `payload`; holds no worker while they do. `on_question`: see `call`."""
        made: Decision = self._drive(
            self._visit.ask(
                title,
                payload,
                policy=policy,
                why=why,
                schema=schema,
                limit=timeout,
                label=label,
                on_question=on_question,
            )
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

    def child(
        self,
        workflow: Workflow | str,
        input: Any = None,
        /,
        *,
        subject: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        orphans: Leave = "cancel",
        label: str | None = None,
    ) -> Any:
        """Start a run of another workflow and wait for it, without holding a worker. Its result.

        Args:
            subject, queue, priority: None: the workflow's own; the priority of this run.
            orphans: what becomes of it if this run ends first: "cancel", or "leave".

        Raises:
            ChildFailed: it failed (also where that is a dead letter) or was cancelled. WaitExpired. InvalidInput.
        """
        wish = Child(workflow, input, subject, queue, priority)
        ends = self.children([wish], raising=True, timeout=timeout, orphans=orphans, label=label)
        return ends[0].result

    def children(
        self,
        wishes: Sequence[Child],
        *,
        wait: Literal["all", "any"] | int = "all",
        raising: bool = False,
        timeout: timedelta | None = None,
        unneeded: Leave = "cancel",
        orphans: Leave = "cancel",
        label: str | None = None,
    ) -> Ends:
        """Start runs and wait for them, without holding a worker; what became of each, in order, whatever that is.

        Args:
            wait: "all": until each has ended. A number (or "any" for 1): until so many have completed, or cannot any more.
            raising: raise ChildFailed instead, if one failed or was cancelled (with a number: if too few completed).
            unneeded: what becomes of children that go on when the wait is over: "cancel", or "leave".
            orphans: what becomes of them when this run ends: "cancel", or "leave".

        Raises:
            WaitExpired: `timeout` passed. ChildFailed. InvalidInput: one of them cannot be started; then none is.
        """
        made: Ends = self._drive(
            self._visit.children(
                wishes,
                wait=wait,
                raising=raising,
                limit=timeout,
                unneeded=unneeded,
                orphans=orphans,
                label=label,
            )
        )
        return made

    def map(
        self,
        workflow: Workflow | str,
        inputs: Iterable[Any],
        /,
        *,
        wait: Literal["all", "any"] | int = "all",
        raising: bool = False,
        timeout: timedelta | None = None,
        unneeded: Leave = "cancel",
        orphans: Leave = "cancel",
        label: str | None = None,
    ) -> Ends:
        """`children` of one workflow, one for each input."""
        return self.children(
            [Child(workflow, one) for one in inputs],
            wait=wait,
            raising=raising,
            timeout=timeout,
            unneeded=unneeded,
            orphans=orphans,
            label=label,
        )

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


def _respond(request: Respond) -> Any:
    token = WITHIN.set(request.within)
    try:
        return request.fn(request.question)
    finally:
        WITHIN.reset(token)


async def _respond_async(request: Respond) -> Any:
    """The answerer's own calls of `ctx` come back to the driver, in this task."""
    token = WITHIN.set(request.within)
    try:
        said = request.fn(request.question)
        return await said if inspect.isawaitable(said) else said
    finally:
        WITHIN.reset(token)


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
                    if isinstance(request, Respond):
                        answer, now = await _respond_async(request), None
                    else:
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

    async def call(
        self,
        tool: Tool,
        /,
        *,
        label: str | None = None,
        on_question: Callable[[Question], Any] | None = None,
        **arguments: Any,
    ) -> Any:
        """See `Context.call`; `on_question` may be `async def`."""
        return await self._drive(self._visit.call(tool, label, arguments, on_question))

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
        on_question: Callable[[Question], Any] | None = None,
    ) -> Decision:
        """See `Context.ask`; `on_question` may be `async def`."""
        made: Decision = await self._drive(
            self._visit.ask(
                title,
                payload,
                policy=policy,
                why=why,
                schema=schema,
                limit=timeout,
                label=label,
                on_question=on_question,
            )
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

    async def child(
        self,
        workflow: Workflow | str,
        input: Any = None,
        /,
        *,
        subject: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        orphans: Leave = "cancel",
        label: str | None = None,
    ) -> Any:
        """See `Context.child`."""
        wish = Child(workflow, input, subject, queue, priority)
        ends = await self.children([wish], raising=True, timeout=timeout, orphans=orphans, label=label)
        return ends[0].result

    async def children(
        self,
        wishes: Sequence[Child],
        *,
        wait: Literal["all", "any"] | int = "all",
        raising: bool = False,
        timeout: timedelta | None = None,
        unneeded: Leave = "cancel",
        orphans: Leave = "cancel",
        label: str | None = None,
    ) -> Ends:
        """See `Context.children`."""
        made: Ends = await self._drive(
            self._visit.children(
                wishes,
                wait=wait,
                raising=raising,
                limit=timeout,
                unneeded=unneeded,
                orphans=orphans,
                label=label,
            )
        )
        return made

    async def map(
        self,
        workflow: Workflow | str,
        inputs: Iterable[Any],
        /,
        *,
        wait: Literal["all", "any"] | int = "all",
        raising: bool = False,
        timeout: timedelta | None = None,
        unneeded: Leave = "cancel",
        orphans: Leave = "cancel",
        label: str | None = None,
    ) -> Ends:
        """See `Context.map`."""
        return await self.children(
            [Child(workflow, one) for one in inputs],
            wait=wait,
            raising=raising,
            timeout=timeout,
            unneeded=unneeded,
            orphans=orphans,
            label=label,
        )

    async def log(self, text: str, *, level: str = "info", **data: Any) -> None:
        """See `Context.log`."""
        await self._drive(self._visit.log(text, level, data))


@dataclass(frozen=True)
class _Raised:
    error: BaseException


def _shield(work: Callable[[], Any]) -> Any:
    """Carry control flow (BaseExceptions) out of a thread pool, whose workers would log and hold them."""
    try:
        return work()
    except BaseException as error:
        return _Raised(error)
