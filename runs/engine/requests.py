"""What an operation asks of whoever drives it, and what an attempt wants when it suspends.

Operations are generators that yield what has to be done outside the database (`Call`) or in it (`Block`), so that `def` and
`async def` steps share one protocol: a driver in `context` carries the requests out, on the thread or off the event loop.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runs import codec
from runs.engine.execution import Record
from runs.errors import Diverged, Suspend
from runs.states import Hold

if TYPE_CHECKING:
    from runs.engine.visit import Visit


@dataclass(frozen=True)
class Block:
    """Something short that blocks: a statement or a transaction."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Call:
    """The outside world: no transaction and no pooled connection is held while it works."""

    fn: Callable[..., Any]
    arguments: dict[str, Any]
    is_async: bool
    timeout: float


@dataclass(frozen=True)
class Question:
    """What a person asks about an open request, as the author's answerer gets it. Text of a person: not checked."""

    text: str
    by: str
    number: int
    """From 1, within the request."""
    version: int
    """The version of the request that the person saw."""


@dataclass
class Within:
    """The positions below one question: those of the visit stay as they are, whatever is asked and however often."""

    prefix: str
    operations: int = 0
    messages: int = 0
    logs: int = 0
    in_flight: int = 0


@dataclass(frozen=True)
class Respond:
    """The author's answerer, called (or awaited) where the step itself runs."""

    fn: Callable[..., Any]
    question: Question
    within: Within


Requests = Generator[Block | Call | Respond, Any, Any]


@dataclass
class OpenWait:
    """Open this wait and suspend until it is settled."""

    kind: str
    name: str
    position: str
    ordinal: int
    request: Any
    digest: str
    limit: timedelta | None
    correlation: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    existing: uuid.UUID | None = None
    instead: Callable[[uuid.UUID], str] | None = None
    """As `Instead`, where the digest is not that of the request alone."""


@dataclass
class BackOff:
    """Try again after `pause`; no worker is held."""

    pause: timedelta
    reason: str


@dataclass
class AskDoubt:
    """Only a person can say whether this effect happened."""

    operation_id: uuid.UUID
    why: str


@dataclass
class NoPlace:
    """A limit is reached: park the run until there is room under it. Nothing was begun, and nothing is spent."""

    hold: Hold
    key: str

    @property
    def reason(self) -> str:
        what = (
            "as many calls as it may have are under way"
            if self.hold == Hold.CONCURRENCY
            else "its rate is used up"
        )
        return f"{self.key}: {what}"


Want = OpenWait | BackOff | AskDoubt | NoPlace


type Instead = Callable[[uuid.UUID], str]
"""The digest that the arguments would have if they named this run instead of the run that asks."""


def instead(visit: Visit, encoded: Any) -> Instead:
    return lambda origin: codec.digest_instead(encoded, visit.execution.run_id, origin)


def compare(record: Record, kind: str, name: str, digest: str, instead: Instead) -> None:
    """Raises Diverged when the record at this position is of something else.

    A fork that hands its own id on, as tools are often given the run's, makes the same call as the run that it was made from.
    """
    if (record.kind, record.name) != (kind, name):
        raise Diverged(
            f"operation {record.position} was {record.kind} {record.name} when it was recorded and is {kind} {name} now"
        )
    same = record.args_digest == digest or (
        record.origin is not None and record.args_digest == instead(record.origin)
    )
    if not same:
        raise Diverged(
            f"operation {record.position}, {kind} {name}, now has other arguments than when it was recorded"
        )


def suspend(visit: Visit, want: Want) -> Suspend:
    """Note what the attempt waits for; the executor carries it out in one transaction once the body has unwound."""
    visit.wants.append(want)
    return Suspend()
