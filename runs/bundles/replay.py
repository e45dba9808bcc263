"""Executes a support bundle again: today's code, against what was recorded, with no effect outside.

Each visit runs once, as its last attempt did: operations return their recorded answers. Where the code asks for something that
the record does not hold, the visit is over, since no tool, no model and no person is asked and nothing is written. What the
body then wants (the next step, an end, a wait, an error) is compared with what the run did.

Code that acts outside `ctx` acts here as well; sessions of the database are read-only for as long as this lasts.
"""

import asyncio
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any, cast

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from runs import blobs, codec, history, registry
from runs.bundles import bundle
from runs.engine import statements
from runs.engine.context import AsyncContext, Context
from runs.engine.database import Database
from runs.engine.execution import Execution, Record
from runs.engine.executor import control_flow
from runs.engine.lease import Lease
from runs.engine.requests import Block, Requests, Respond
from runs.engine.visit import Visit
from runs.errors import AgentopsError, Diverged, Suspend
from runs.kin import children
from runs.models.operation import OpStatus
from runs.registry import COMPENSATE, UnknownWorkflow
from runs.states import BY_PEOPLE, Outcome
from runs.workflow import Child, Complete, Fail, Goto, Step, Tool


class NotABundle(ValueError):
    """The file is no bundle, or one of another version."""


@dataclass(frozen=True)
class Told:
    """What became of one visit."""

    visit: int
    step: str
    sentence: str
    diverged: bool = False
    executed: bool = True


class _Beyond(BaseException):
    """The code asks for something that the record does not hold."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass
class Bundle:
    """A bundle as it was read, indexed by visit."""

    run: Mapping[str, Any]
    attempts: Mapping[int, Sequence[Mapping[str, Any]]]
    operations: Mapping[int, Sequence[Mapping[str, Any]]]
    messages: Sequence[Mapping[str, Any]]
    children: Mapping[str, Sequence[Mapping[str, Any]]]
    contents: Mapping[str, Any]
    states: Mapping[int, str] = field(default_factory=dict)
    """Canonical text of the state at the end of a visit, where one was recorded in it."""

    @property
    def run_id(self) -> uuid.UUID:
        return uuid.UUID(self.run["id"])

    def whole(self, display: Any) -> Any:
        """A display value, with what lies apart in its place."""
        if not blobs.is_marker(display):
            return display
        key = display["v"]["sha256"]
        if key not in self.contents:
            raise blobs.BlobDamaged(f"content {key} is not in the bundle")
        return self.contents[key]

    def state_before(self, visit: int) -> str:
        """Canonical text of the state with which a visit began."""
        earlier = [seq for seq in self.states if seq < visit]
        return self.states[max(earlier)] if earlier else "{}"


def read(path: Path) -> Bundle:
    """Raises NotABundle, and OSError where the file cannot be read."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        about = told["about"]
        if about["format"] != bundle.FORMAT or about["version"] != bundle.VERSION:
            raise NotABundle(
                f"{path} is a {about['format']!r} of version {about['version']}, and this reads version {bundle.VERSION}"
            )
        made = Bundle(
            run=told["run"],
            attempts=_by(told["attempts"], "step_seq"),
            operations=_by([one for one in told["operations"] if not one["forgotten"]], "step_seq"),
            messages=told["messages"],
            children=_by(told["children"], "parent_operation_id"),
            contents=told["blobs"],
        )
        rows = [(one["step_seq"], one["attempt_no"], one["state_after"]) for one in told["attempts"]]
        changed = [one for one in rows if one[2] is not None]
        made.states = {seq: text for seq, _, text in history.walked(made.run_id, changed, made.whole)}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, NotABundle):
            raise
        raise NotABundle(f"{path} cannot be read as a bundle: {type(error).__name__} {error}") from error
    return made


def _by(rows: Sequence[Mapping[str, Any]], key: str) -> dict[Any, list[Mapping[str, Any]]]:
    found: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row[key]].append(row)
    return found


# --- one visit after the other -----------------------------------------------------------------------------------------


def replay(of: Bundle) -> Iterator[Told]:
    """Execute each visit of the run again; what became of it, in order."""
    external: dict[str, Any] = {}
    began = datetime.fromisoformat(of.run["created_at"])
    with _read_only():
        for visit in sorted(of.attempts):
            attempts = of.attempts[visit]
            told = _again(of, visit, attempts, began, external)
            if told.diverged or not told.executed:
                # Nothing says in which visit they were set: those after this one find what it may have set.
                external |= of.run["external"]
            yield told
            began = datetime.fromisoformat(attempts[-1]["ended_at"])


def _again(
    of: Bundle,
    seq: int,
    attempts: Sequence[Mapping[str, Any]],
    began: datetime,
    external: dict[str, Any],
) -> Told:
    last = attempts[-1]
    name = last["step"]

    def left(why: str) -> Told:
        return Told(seq, name, f"not executed: {why}", executed=False)

    if last["outcome"] in BY_PEOPLE:
        return left(f"a person wrote this ({Outcome(last['outcome']).label.lower()})")
    if name == COMPENSATE:
        return left("it undid effects")
    hidden = [
        one["name"]
        for one in of.operations.get(seq, ())
        if one["hidden"] or any(child["hidden"] for child in of.children.get(one["id"], ()))
    ]
    if of.run["hidden"] or hidden or any(one["hidden"] for one in attempts):
        return left(f"what people may not see is not in the bundle ({', '.join(hidden) or 'input or state'})")
    workflow = of.run["workflow"]
    try:
        step = registry.step(workflow, of.run["version"], name)
    except UnknownWorkflow as error:
        return Told(seq, name, f"the code of today does not have it: {error}", diverged=True)
    if step.atomic:
        return left("it is atomic and writes the database itself")
    visit = _Visit(_execution(of, seq, last, began, external), step, _records(of, seq), {})
    state = codec.decode(json.loads(of.state_before(seq)))
    outcome = _outcome(visit, step, state)
    return _compared(of, seq, last, visit, outcome, state)


@dataclass(frozen=True)
class _Wanted:
    """What a body came to: a transition, an error of its own, or what ended it inside `ctx`."""

    transition: Any = None
    error: BaseException | None = None


def _outcome(visit: "_Visit", step: Step, state: Any) -> _Wanted:
    execution = visit.execution
    try:
        given = registry.workflow(execution.workflow, execution.version).validate_input(
            codec.decode(execution.input)
        )
        if step.is_async:
            context = _AsyncContext(visit, given, state, cast(Any, None))  # it leaves nothing to a pool
            transition = asyncio.run(step.fn(context))
        else:
            transition = step.fn(_Context(visit, given, state))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return _Wanted(error=visit.beyond or visit.stopped or control_flow(error) or error)
    finally:
        visit.closed = True
    # The body may have caught what it should have let through.
    if ended := visit.beyond or visit.stopped:
        return _Wanted(error=ended)
    return _Wanted(transition)


def _compared(
    of: Bundle, seq: int, last: Mapping[str, Any], visit: "_Visit", wanted: _Wanted, state: Any
) -> Told:
    step, outcome = last["step"], Outcome(last["outcome"])
    then = _then(of, seq, last)

    def same(sentence: str) -> Told:
        return Told(seq, step, sentence)

    def other(now: str) -> Told:
        return Told(seq, step, f"the run {then}; the code of today {now}", diverged=True)

    match wanted.error:
        case None:
            pass
        case _Beyond() as beyond:
            if outcome is Outcome.SUCCEEDED:
                return other(f"wants {beyond.what}, which is not recorded")
            return same(f"as recorded up to its end: the run {then}, and {beyond.what} comes next")
        case Suspend():
            waits = visit.standing and f"{visit.standing.kind} {visit.standing.name}"
            if outcome is Outcome.SUCCEEDED:
                return other(f"waits for {waits}")
            return same(f"as recorded: it waits for {waits}")
        case Diverged() as error:
            return other(f"leaves the record: {error}")
        case error if outcome is Outcome.FAILED and type(error).__name__ == last["error_type"]:
            return same(f"as recorded: it fails with {last['error_type']}")
        case error:
            return other(f"fails with {type(error).__name__}: {codec.error_text(error, 500)}")
    now = _says(wanted.transition)
    if outcome is not Outcome.SUCCEEDED:
        return other(now)
    if unused := visit.unused():
        return other(f"no longer comes to {', '.join(f'{one.kind} {one.name}' for one in unused)}")
    if now != _did(of, seq):
        return other(now)
    if isinstance(wanted.transition, Complete) and not _is(
        wanted.transition.result, of.whole(of.run["result"])
    ):
        return other("completes with another result")
    try:
        left = codec.canonical(codec.encode(state, path="state")).decode()
    except AgentopsError as error:
        return other(f"leaves a state that cannot be recorded: {error}")
    before, after = json.loads(left), json.loads(of.states.get(seq, of.state_before(seq)))
    if before != after:
        keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        return other(f"{now}, with another state ({', '.join(keys[:5])})")
    return same(f"as recorded: it {now}")


def _is(value: Any, recorded: Any) -> bool:
    return codec.canonical(codec.encode(value, lenient=True)) == codec.canonical(recorded)


def _says(transition: Any) -> str:
    match transition:
        case Goto():
            return f"goes on to {transition.target}"
        case Complete():
            return "completes"
        case Fail():
            return f"fails: {transition.reason}"
    return f"returns {type(transition).__name__}, which is no transition"


def _did(of: Bundle, seq: int) -> str:
    """What the run did at the end of a visit that succeeded, in the words of `_says`."""
    later = [one for one in of.attempts if one > seq]
    following = of.attempts[min(later)][0]["step"] if later else None
    if following is None and of.run["step_seq"] > seq:
        following = of.run["step"]
    if following is not None:
        return f"goes on to {following}"
    return "completes" if of.run["status"] == "completed" else f"fails: {of.run['reason']}"


def _then(of: Bundle, seq: int, last: Mapping[str, Any]) -> str:
    """What the run did, for the middle of a sentence."""
    outcome = Outcome(last["outcome"])
    match outcome:
        case Outcome.SUCCEEDED:
            return (
                _did(of, seq)
                .replace("goes", "went")
                .replace("completes", "completed")
                .replace("fails", "failed")
            )
        case Outcome.FAILED:
            return f"failed here with {last['error_type']}: {last['error'].splitlines()[0][:200] if last['error'] else ''}"
        case Outcome.SUSPENDED:
            return "stands here, waiting"
    return f"ended here ({outcome.label.lower()})"


# --- the engine's parts, over a record ---------------------------------------------------------------------------------


def _records(of: Bundle, seq: int) -> dict[str, Record]:
    found = {}
    for row in of.operations.get(seq, ()):
        values: dict[str, Any] = {one.name: row.get(one.name) for one in fields(Record)}
        values["id"] = uuid.UUID(row["id"])
        if row.get("copied_from") and of.run.get("forked_from"):
            values["origin"] = uuid.UUID(of.run["forked_from"])
        values["result"] = of.whole(row["result"])
        for name in ("first_sent_at", "call_ended_at", "finished_at"):
            values[name] = row[name] and datetime.fromisoformat(row[name])
        found[row["position"]] = Record(**values)
    return found


def _execution(
    of: Bundle, seq: int, last: Mapping[str, Any], began: datetime, external: dict[str, Any]
) -> "_Execution":
    run = of.run
    given = of.whole(run["input"])
    made = _Execution(
        database=cast(Database, _Recorded(of)),
        lease=Lease(inf, 0),
        worker_id=uuid.UUID(int=0),
        run_id=of.run_id,
        workflow=run["workflow"],
        version=run["version"],
        step=last["step"],
        step_seq=seq,
        attempt_no=last["attempt_no"],
        epoch=last["epoch"],
        queue=run["queue"],
        stored_state=(None, None),
        stored_input=(given, None),
        compensating=False,
        cancel_requested=False,
        failures=0,
        crashes=0,
        visit_started_at=began,
        attempt_started_at=datetime.fromisoformat(last["started_at"]),
        deadline=inf,
        external=external,
        started_by=run["started_by_name"],
        subject=run["subject"],
    )
    made.input = given
    return made


class _Recorded:
    """Answers the engine's questions from the bundle."""

    def __init__(self, of: Bundle) -> None:
        self.of = of

    def all(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        if statement == statements.MESSAGES:
            columns = ("step_seq", "position", "role", "content")
            return [(*(one[name] for name in columns), None, one["digest"]) for one in self.of.messages]
        if statement == children.RESULTS:
            return [
                (uuid.UUID(one["id"]), one["result"], None)
                for one in self.of.children[str(parameters["wait"])]
            ]
        raise _Beyond("something that only a running engine can read")


class _Execution(Execution):
    """Writes nothing, and compares what a body writes at once with what was written."""

    def whole(self, displays: Sequence[Any]) -> list[Any]:
        of = cast(_Recorded, self.database).of
        return [of.whole(display) for display in displays]

    def write(self, statement: Any, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        if statement == statements.MESSAGE:
            recorded = {
                one["position"]: one["digest"]
                for one in cast(_Recorded, self.database).of.messages
                if one["step_seq"] == self.step_seq
            }
            if recorded.get(parameters["position"], parameters["digest"]) != parameters["digest"]:
                return None  # which the visit takes for what it is: a message that differs
            return (1,)
        if statement in (statements.LOG_LINE, statements.EXTERNAL):
            return (1,)
        raise _Beyond("to write something that is not recorded")

    def refused_unless_held(self) -> None:
        """Nobody else has the run."""

    def under_lock[T](self, work: Callable[[Any], T], applied: T) -> T:
        raise _Beyond("to move the run")


class _Visit(Visit):
    """Ends where the record ends."""

    beyond: _Beyond | None = None
    asked = ""
    """What the body asks for at this moment, in words."""

    def call(self, tool: Tool, *more: Any) -> Requests:
        self.asked = f"{'effect' if tool.effect else 'query'} {tool.name}"
        return super().call(tool, *more)

    def once(self, label: str, *more: Any) -> Requests:
        self.asked = f"effect {label}"
        return super().once(label, *more)

    def model(self, **given: Any) -> Requests:
        self.asked = "a model request"
        return super().model(**given)

    def ask(self, title: str, *more: Any, **given: Any) -> Requests:
        self.asked = f"approval of {title!r}"
        return super().ask(title, *more, **given)

    def wait_signal(self, name: str, *more: Any) -> Requests:
        self.asked = f"signal {name}"
        return super().wait_signal(name, *more)

    def sleep(self, *more: Any) -> Requests:
        self.asked = "to sleep"
        return super().sleep(*more)

    def children(self, wishes: Sequence[Child], **given: Any) -> Requests:
        self.asked = f"{len(wishes)} child run{'s' * (len(wishes) != 1)}"
        return super().children(wishes, **given)

    def begin(self, label: str | None) -> tuple[str, int]:
        position, ordinal = super().begin(label)
        record, gate = self.records.get(position), self.records.get(f"{position}/approval")
        self.standing = record or gate
        if record is None and gate is None:
            self.refuse(self.asked)
        elif record is None and gate is not None and gate.status == OpStatus.DONE:
            if (gate.true_result or {}).get("verdict") == "approved":
                self.refuse(f"{self.asked}, which is approved,")
        elif record is not None and record.status == OpStatus.PENDING:
            self.refuse(f"{record.kind} {record.name}, whose outcome nobody knows,")
        elif record is not None and record.status == OpStatus.RETRY:
            self.refuse(f"{record.kind} {record.name}, which failed with {record.error_type},")
        return position, ordinal

    standing: Record | None = None
    """What is recorded of the operation at work, or of the approval in front of it."""

    def refuse(self, what: str) -> None:
        self.beyond = self.beyond or _Beyond(what)
        raise self.beyond

    def answer(self, request: Any) -> Any:
        """Carry out what an operation asks of its driver, as far as the record has an answer."""
        if isinstance(request, Block):
            if self.standing is not None and self.standing.status == OpStatus.OPEN:
                raise Suspend  # before the engine looks whether people have asked back
            return request.work()
        self.refuse("to answer a question" if isinstance(request, Respond) else self.asked)
        return None


class _Context(Context):
    def _drive(self, requests: Requests) -> Any:
        return _driven(cast(_Visit, self._visit), requests)


class _AsyncContext(AsyncContext):
    async def _drive(self, requests: Requests) -> Any:
        return _driven(cast(_Visit, self._visit), requests)


def _driven(visit: _Visit, requests: Requests) -> Any:
    """Drive an operation with what is recorded; a request for more ends the visit."""
    try:
        request: Any = next(requests)
        while True:
            request = requests.send(visit.answer(request))
    except StopIteration as done:
        return done.value
    except (Suspend, Diverged) as error:
        visit.stop(error)
        raise


@contextmanager
def _read_only() -> Iterator[None]:
    """Let the sessions of this process write nothing, those to come included."""

    def close_to_writes(connection: BaseDatabaseWrapper, **_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")

    connection_created.connect(close_to_writes)
    connections.close_all()
    try:
        yield
    finally:
        connection_created.disconnect(close_to_writes)
        connections.close_all()
