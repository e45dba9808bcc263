"""One execution of a step's body: what its visit has recorded, the positions handed out, what it wants when it suspends.

The operations are generators (see `requests`); `Context` and `AsyncContext` drive them.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from django.conf import settings
from pydantic import TypeAdapter

from runs import codec, models_provider, policies
from runs.engine import limited, statements
from runs.engine.database import cold
from runs.engine.effects import effect
from runs.engine.execution import Execution, Record, dumps
from runs.engine.limited import Places
from runs.engine.queries import query
from runs.engine.queries import wait as wait_for
from runs.engine.questions import WITHIN, respond
from runs.engine.requests import Block, NoPlace, OpenWait, Requests, Want, Within, suspend
from runs.engine.values import check_size, encode_arguments, record_answer
from runs.errors import (
    AgentopsError,
    Cancelled,
    ChildFailed,
    ContextClosed,
    Diverged,
    InvalidInput,
    LeaseLost,
    Suspend,
    UnlabelledParallel,
)
from runs.kin import children
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.states import Hold
from runs.workflow import Child, Ends, Step, Tool

#: The engine's control flow, which user code must let through; where several meet, the first of these counts.
CONTROL = (LeaseLost, ContextClosed, Diverged, Cancelled, Suspend)


@dataclass(frozen=True)
class Decision:
    """What people answered to `ctx.ask`."""

    verdict: str
    payload: Any
    by: str
    reason: str
    questions: tuple[Mapping[str, Any], ...] = ()
    """What people asked back before they decided: text, by, and the answer, if there was one."""

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
        places: Places | None = None,
    ) -> None:
        self.execution, self.step, self.records = execution, step, records
        self.overrides = overrides
        self.places = places
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
        if (within := WITHIN.get()) is not None:
            return self._begin_within(within, label)
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

    def _begin_within(self, within: Within, label: str | None) -> tuple[str, int]:
        """The same below a question, whose operations are numbered apart."""
        with self._lock:
            if label is None and within.in_flight:
                raise UnlabelledParallel("operations that overlap in time need a label= each")
            within.operations += 1
            position = f"{within.prefix}/{within.operations if label is None else f'={label}'}"
            if position in self.used:
                raise AgentopsError(
                    f"two operations of this answer have the label {label!r}; labels must differ"
                )
            self.used.add(position)
            within.in_flight += 1
            self.in_flight += 1
            return position, self._ordinal

    def check_labels(self) -> None:
        """Raises UnlabelledParallel also in the operation that came first: nothing is sent in an order that is chance."""
        if self.overlapped:
            raise UnlabelledParallel("operations that overlap in time need a label= each")

    def finish(self, label: str | None, position: str) -> None:
        within = WITHIN.get()
        with self._lock:
            self.in_flight -= 1
            if within is not None:
                # Of no moment to what comes after: a later attempt does not execute it again.
                within.in_flight -= 1
                return
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

    def take_place(self, tool: Tool) -> Requests:
        """A place for a call of this tool under its limits; None where it has none. Suspends if there is none left.

        Asked for before anything of the call is recorded or sent; `leave_place` gives it back.
        """
        places = self.places
        if places is None or not places.is_limited(tool.name):
            return None
        call, key = new_id(), f"tool {tool.name}"
        execution = self.execution
        asked = places.entry(key, call, execution.run_id)
        row, _ = yield Block(lambda: execution.database.until_sure(limited.ENTER, asked, execution.lease))
        if row[0]:
            raise suspend(self, NoPlace(Hold(row[0]), key))
        return call

    def leave_place(self, call: uuid.UUID | None) -> None:
        if call is not None and self.places is not None:
            self.places.leave(call)

    def next_log(self) -> str:
        within = WITHIN.get()
        with self._lock:
            if within is not None:
                within.logs += 1
                return f"{within.prefix}/{within.logs}"
            self._logs += 1
            return str(self._logs)

    def next_message(self) -> str:
        within = WITHIN.get()
        with self._lock:
            if within is not None:
                within.messages += 1
                return f"{within.prefix}/{within.messages:06d}"
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

    def call(
        self,
        tool: Tool,
        label: str | None,
        given: Mapping[str, Any],
        on_question: Callable[..., Any] | None = None,
    ) -> Requests:
        python, encoded = encode_arguments(tool, given)
        position, ordinal = self.begin(label)
        try:
            if tool.effect:
                return (
                    yield from effect(self, tool, position, ordinal, python, encoded, on_question=on_question)
                )
            return (yield from query(self, tool, position, ordinal, python, encoded))
        finally:
            self.finish(label, position)

    def compensate(self, tool: Tool, of: uuid.UUID, given: Mapping[str, Any]) -> Requests:
        python, encoded = encode_arguments(tool, given)
        position, ordinal = self.begin(f"undo {of}")
        try:
            return (yield from effect(self, tool, position, ordinal, python, encoded, compensates=of))
        finally:
            self.finish(f"undo {of}", position)

    def once(
        self, label: str, fn: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Requests:
        unregistered = _unregistered(label, fn)
        encoded = codec.encode({"arguments": list(arguments), "keywords": dict(keywords)}, path=label)
        check_size("arguments", encoded, label)
        position, ordinal = self.begin(label)
        bound = {"arguments": arguments, "keywords": dict(keywords)}
        try:
            return (yield from effect(self, unregistered, position, ordinal, bound, encoded))
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
        check_size("arguments", encoded, "model request")
        awaited = self.step is not None and self.step.is_async
        asked = Tool(fn=provider.function(awaited=awaited), name=provider.name, timeout=timeout)
        position, ordinal = self.begin(label)
        try:
            answer = yield from query(
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
        on_question: Callable[..., Any] | None = None,
    ) -> Requests:
        encoded = codec.encode(payload, path=title)
        check_size("arguments", encoded, title)
        position, ordinal = self.begin(label)
        options = {
            "title": title,
            "why": why or self.reason,
            "schema": dict(schema or {}),
            "policy": policy,
            "arguments": encoded,
            "answers": on_question is not None,
        }
        try:
            asked = self.records.get(position)
            if asked is not None and asked.status == OpStatus.OPEN:
                yield from respond(self, asked.id, position, on_question)
            record = yield from wait_for(
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
            tuple(told.get("questions", ())),
        )

    def wait_signal(
        self, name: str, limit: timedelta | None, correlation: str, label: str | None
    ) -> Requests:
        request = {"name": name, "correlation": correlation}
        position, ordinal = self.begin(label)
        try:
            record = yield from wait_for(
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
            yield from wait_for(
                self,
                OpenWait(Kind.TIMER, "sleep", position, ordinal, request, codec.digest(request), length),
            )
        finally:
            self.finish(label, position)
        return None

    def children(
        self,
        wishes: Sequence[Child],
        *,
        wait: Literal["all", "any"] | int,
        raising: bool,
        limit: timedelta | None,
        unneeded: children.Leave,
        orphans: children.Leave,
        label: str | None,
    ) -> Requests:
        """Start runs and wait for them; what became of each. Raises ChildFailed, WaitExpired, InvalidInput."""
        terms = children.Terms(_wanted(wait, len(wishes)), raising, unneeded, orphans)
        prepared = children.prepare(wishes)
        names = sorted({one.definition.name for one in prepared})
        request = {
            "workflows": names,
            "count": len(prepared),
            "wanted": terms.wanted,
            "raising": raising,
            "unneeded": unneeded,
            "orphans": orphans,
        }
        position, ordinal = self.begin(label)
        try:
            if not prepared:
                return Ends()
            if position not in self.records:
                yield Block(lambda: self._check_family(len(prepared), names))
            asked = OpenWait(
                Kind.CHILD,
                names[0] if len(names) == 1 else "several workflows",
                position,
                ordinal,
                request,
                codec.digest([request, [[one.definition.name, one.digest] for one in prepared]]),
                limit,
                options={"prepared": prepared, "terms": terms},
                instead=lambda origin: codec.digest(
                    [
                        request,
                        [
                            [one.definition.name, one.digest_instead(self.execution.run_id, origin)]
                            for one in prepared
                        ],
                    ]
                ),
            )
            record = yield from wait_for(self, asked)
            ends = yield Block(lambda: self._ends(record))
        finally:
            self.finish(label, position)
        if record.status == OpStatus.FAILED:
            raise ChildFailed(record.error, ends)
        return ends

    def _check_family(self, count: int, names: list[str]) -> None:
        """Raises InvalidInput where too many runs would stand beside or above one another."""
        most: int = settings.AGENTOPS_CHILDREN
        if count > most:
            raise InvalidInput(
                f"{count:,} child runs at once, and at most {most:,} are allowed (AGENTOPS_CHILDREN): start them in portions"
            )
        deepest: int = settings.AGENTOPS_CHILD_DEPTH
        line = cold(lambda unsure: children.line(self.execution.run_id), self.execution.lease)
        if len(line) > deepest:
            told = " → ".join([*line, *names[:1]][-6:])
            raise InvalidInput(
                f"a child run would be the {deepest + 1}th below one another (… {told}), and at most {deepest} are allowed"
                " (AGENTOPS_CHILD_DEPTH): a workflow that starts itself needs an end"
            )

    def _ends(self, record: Record) -> Ends:
        rows = self.execution.database.all(children.RESULTS, {"wait": record.copied_from or record.id})
        return children.ends(record.true_result, rows, self.execution.whole)

    def log(self, text: str, level: str, data: Mapping[str, Any]) -> Requests:
        self.check_open()
        position = self.next_log()
        yield Block(
            lambda: self.write(
                statements.LOG_LINE,
                {
                    "id": new_id(),
                    "position": position,
                    "level": codec.clean_text(str(level), 50),
                    "text": codec.clean_text(str(text)),
                    "data": dumps(record_answer(dict(data), "log line", "log")),
                },
            )
        )
        return None

    def write(self, statement: str, parameters: dict[str, Any]) -> tuple[Any, ...]:
        row = self.execution.write(statement, parameters)
        if row is None:
            self.execution.refused_unless_held()
            raise Diverged("a message differs from the one recorded at its place")
        return row


def _wanted(wait: Literal["all", "any"] | int, count: int) -> int | None:
    """How many children must complete; None: all must have ended. Raises InvalidInput."""
    if wait == "all":
        return None
    wanted = 1 if wait == "any" else wait
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not (1 <= wanted <= count or not count):
        raise InvalidInput(f"wait={wait!r}: it must be 'all', 'any' or a number from 1 to {count}")
    return wanted


def _unregistered(label: str, fn: Callable[..., Any]) -> Tool:
    """A function given to `ctx.once`: nobody can look its effect up, so a person is asked."""

    def call(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        return fn(*arguments, **keywords)

    async def call_async(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        return await fn(*arguments, **keywords)

    chosen = call_async if inspect.iscoroutinefunction(fn) else call
    return Tool(fn=chosen, name=label, effect=True, in_doubt="ask")


def _here() -> Any:
    """The task or thread that is executing."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def _rank(error: BaseException) -> int:
    return next(rank for rank, kind in enumerate(CONTROL) if isinstance(error, kind))
