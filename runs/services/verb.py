"""What all verbs share: one transaction, permission, lock, stale-page guard, state check.

A verb is one function: who may, lock, is the page still true, is the state right, write, event, wake.
"""

import functools
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from django.contrib.auth.models import PermissionsMixin
from django.db import InternalError, OperationalError, connection, transaction

from runs import lifecycle, states
from runs.errors import NotAllowed, NotFound, Stale, StateMismatch, Unavailable
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
class Consequence:
    """What a verb would do to the run's effects, for the person who is about to press the button."""

    sentence: str
    kept: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


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


def permit(actor: Actor, permission: str, *, system: bool = False) -> None:
    """Raise NotAllowed unless the actor's user is active and has the permission.

    An actor without a user (command line, webhook, clock) passes only where the verb says `system`.
    """
    if actor.user is None:
        if system:
            return
        raise NotAllowed(f"{actor.name} is no person; only a person may do this")
    user = cast(PermissionsMixin, actor.user)
    if not actor.user.is_active or not user.has_perm(permission):
        what = permission.rpartition(".")[2].replace("_", " ")
        raise NotAllowed(f"{actor.name} does not have the permission “{what}”")


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
        wanted = " or ".join(s.label.lower() for s in sources)
        raise StateMismatch(f"this run is {label(run)}; only a run that is {wanted} allows this")


def label(run: Run) -> str:
    """The run's status as a word in a sentence."""
    return states.Status(run.status).label.lower()


def done_effects(run: Run) -> tuple[str, ...]:
    """Names of the effects that have happened, oldest first: no verb repeats them."""
    done = Operation.objects.filter(run_id=run.pk, kind=Kind.EFFECT, status=OpStatus.DONE).order_by(
        "finished_at"
    )
    return tuple(done.values_list("name", flat=True))


def unknown_effects(run: Run) -> tuple[str, ...]:
    """Names of the effects whose outcome nobody has recorded."""
    return tuple(operation.name for operation in lifecycle.pending_effects(run))
