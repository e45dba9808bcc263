"""What all verbs share: one transaction, permission, lock, stale-page guard, state check.

A verb is one function: who may, lock, is the page still true, is the state right, write, event, wake.
"""

import functools
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import InternalError, OperationalError, connection, transaction

from runs import access, codec, lifecycle, states
from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch, Unavailable
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus

#: serialization_failure, deadlock_detected and lock_not_available: PostgreSQL ended this transaction for another's sake, or
#: did not let it wait any longer; nothing was written.
CONFLICTS = frozenset({"40001", "40P01", "55P03"})
TRIES = 5
#: What is said where PostgreSQL has ended the transaction without writing anything and another try at once cannot help.
REFUSED = dict.fromkeys(CONFLICTS, "others are at work on the same rows") | {
    "25006": "the database takes no writes now; it may be switching over to another server",
    "25P03": "this took longer than the database's time limit allows",
    "25P04": "this took longer than the database's time limit allows",
    "57014": "this took longer than the database's time limit allows",
}


@dataclass(frozen=True)
class Done:
    """What a verb did, in a sentence; `changed` is False where it had been done before."""

    run: Run
    sentence: str
    changed: bool = True


@dataclass(frozen=True)
class Line:
    """One thing that a verb keeps, repeats or cannot know; for an effect with what is recorded of it."""

    name: str
    at: datetime | None = None
    """When it was done, or sent."""
    key: uuid.UUID | None = None
    """The provider's key."""
    reference: str = ""
    """What the provider calls it."""
    why: str = ""
    operation: uuid.UUID | None = None
    visit: int | None = None
    repeats: bool = False
    """It has happened, or may have: a person must say of this one that it is to happen again."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Consequence:
    """What a verb would do to the run's effects, for the person who is about to press the button.

    The verb makes the same one under the run's lock, and does nothing if its digest is not the one that the person saw.
    """

    sentence: str
    kept: tuple[Line, ...] = ()
    again: tuple[Line, ...] = ()
    unknown: tuple[Line, ...] = ()
    again_title: str = "Will run again"
    unknown_title: str = "Unknown"
    visit: int | None = None
    """Of a verb that is meant for the visit where the run stands: a run that a limit parks behind a Goto tells no event of it."""

    @functools.cached_property
    def digest(self) -> str:
        """Of the effects in each column and of the visit, whatever the sentences around them say."""
        columns = [
            [[str(line.operation), str(line.key or ""), line.repeats] for line in column if line.operation]
            for column in (self.kept, self.again, self.unknown)
        ]
        return codec.digest([self.visit, columns])

    @property
    def to_confirm(self) -> tuple[Line, ...]:
        """What would happen a second time, if it has happened: each wants a tick of its own."""
        return tuple(line for line in (*self.again, *self.unknown) if line.repeats)


def names(lines: Iterable[Line]) -> tuple[str, ...]:
    """The names alone, for sentences and events."""
    return tuple(line.name for line in lines)


def agree(plan: Consequence, seen: str | None, confirmed: Collection[uuid.UUID] = ()) -> None:
    """Let a verb go on only if its plan is the one that the person saw, and each repetition in it was agreed to.

    Raises Stale, and Invalid naming what is not confirmed. `seen` is None for a caller without a page.
    """
    if seen is not None and seen != plan.digest:
        raise Stale("what it would keep and repeat has changed since the page was loaded")
    missing = [line for line in plan.to_confirm if line.operation not in confirmed]
    if missing:
        what = ", ".join(names(missing))
        raise Invalid(f"this would repeat {what}: confirm each of them, or choose otherwise")


def verb[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` in one transaction, and again (five times in all) where a deadlock or a conflict ended it.

    Raises Unavailable where the database has certainly written nothing and says that this passes. Inside somebody else's
    transaction it neither repeats nor explains: that transaction is broken as a whole.
    """

    @functools.wraps(function)
    def in_transaction(*args: P.args, **kwargs: P.kwargs) -> R:
        for left in range(TRIES - 1, -1, -1):
            try:
                with transaction.atomic():
                    return function(*args, **kwargs)
            except (OperationalError, InternalError) as error:
                state = getattr(error.__cause__, "sqlstate", None) or ""
                if state not in REFUSED or connection.in_atomic_block:
                    raise
                if not left or state not in CONFLICTS:
                    raise Unavailable(
                        f"nothing was changed: {REFUSED[state]}; try again in a moment"
                    ) from error
                time.sleep(random.uniform(0, 0.05))
        raise AssertionError("unreachable: the last try returns or raises")

    return in_transaction


def permit(actor: Actor, permission: str, *, run: Run | None = None, system: bool = False) -> None:
    """Raise NotAllowed unless the actor's user is active and has the permission on this run; without a run: for everything.

    Ask with the run once its lock is held: what it is about decides. An actor without a user (command line, webhook, clock)
    passes only where the verb says `system`.
    """
    if actor.user is None:
        if system:
            return
        raise NotAllowed(f"{actor.name} is no person; only a person may do this")
    held = (
        access.everywhere(actor.user, permission) if run is None else access.may(actor.user, permission, run)
    )
    if not held:
        elsewhere = " here" if access.may(actor.user, permission) else ""
        raise NotAllowed(f"{actor.name} does not have the permission “{access.words(permission)}”{elsewhere}")


def permit_somewhere(actor: Actor, permission: str, *, system: bool = False) -> None:
    """The same for at least a part: so that somebody without any is told that first. `permit` follows, with what it is about."""
    if actor.user is None or not access.may(actor.user, permission):
        permit(actor, permission, system=system)


def lock(run_id: uuid.UUID) -> Run:
    """The run under its lock. Raises NotFound."""
    try:
        return lifecycle.lock_run(run_id)
    except Run.DoesNotExist:
        raise NotFound(f"there is no run {run_id}") from None


def guard(run: Run, seen_version: int | None) -> None:
    """Raise Stale if the page that the actor saw is older than the run. None: the caller has no page."""
    if seen_version is not None and seen_version != run.event_seq:
        raise Stale(f"this run has changed since the page was loaded; it is now {label(run)}")


def require(run: Run, event: str) -> None:
    """Raise StateMismatch unless the state chart allows `event` in the run's present status."""
    sources = states.sources_of(event)
    if run.status not in sources:
        wanted = " or ".join(_in_a_sentence(s) for s in sources)
        raise StateMismatch(f"this run is {label(run)}; only a run that is {wanted} allows this")


def label(run: Run) -> str:
    """The run's status as a word in a sentence."""
    return _in_a_sentence(states.Status(run.status))


def _in_a_sentence(status: states.Status) -> str:
    """What a run is: “waiting”, “in attention”."""
    return "in attention" if status == states.Status.ATTENTION else status.label.lower()


#: What a line tells of an effect; payloads are not read.
OF_AN_EFFECT = (
    "id",
    "run_id",
    "kind",
    "name",
    "status",
    "step_seq",
    "finished_at",
    "intent_at",
    "provider_key",
    "provider_ref",
    "compensate_with",
    "compensates",
    "error",
    "started_at",
    "call_ended_at",
)


def line_of(operation: Operation, *, why: str = "", repeats: bool = False) -> Line:
    """An operation as a line of a preview."""
    return Line(
        operation.name,
        at=operation.finished_at or operation.intent_at,
        key=operation.provider_key,
        reference=operation.provider_ref,
        why=why,
        operation=operation.pk,
        visit=operation.step_seq,
        repeats=repeats,
    )


@dataclass(frozen=True)
class Effects:
    """The effects of a run that a verb has to think of, oldest first."""

    done: tuple[Line, ...]
    """They have happened: no verb repeats them unasked."""
    unknown: tuple[Line, ...]
    """Nobody has recorded their outcome."""


def effects_of(run: Run) -> Effects:
    """One query; index operation_effects."""
    sent = Operation.objects.filter(
        run_id=run.pk, kind=Kind.EFFECT, status__in=[OpStatus.DONE, OpStatus.PENDING]
    )
    found = list(sent.only(*OF_AN_EFFECT).order_by("finished_at", "started_at", "id"))
    return Effects(
        tuple(line_of(one) for one in found if one.status == OpStatus.DONE),
        tuple(
            line_of(one, why=f"sent, and no answer is recorded{_sender(one)}")
            for one in found
            if one.status == OpStatus.PENDING
        ),
    )


def _sender(operation: Operation) -> str:
    return "; its call has ended" if operation.call_ended_at else "; its call may still be under way"
