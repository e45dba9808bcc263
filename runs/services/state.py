"""The state of a run as a person gives it: read, checked, and recorded in the run's history."""

import copy
import decimal
from typing import Any

from runs import codec, history
from runs.engine.execution import record_attempt
from runs.errors import Invalid, StateMismatch
from runs.lifecycle import Actor
from runs.models import Run
from runs.services.payloads import recordable
from runs.services.verb import Effects
from runs.states import Outcome


def checked_state(encoded: Any) -> dict[str, Any]:
    """`encoded` if a step could have left it. Raises Invalid."""
    try:
        value = codec.decode(encoded)
    except (KeyError, TypeError, ValueError, decimal.InvalidOperation, RecursionError) as error:
        raise Invalid(f"the state holds a tag that means nothing: {type(error).__name__} {error}") from None
    if not isinstance(value, dict):
        raise Invalid("the state must be an object, with a name for each value")
    made: dict[str, Any] = recordable(value, "the state", "state")
    return made


def present(run: Run) -> history.Restored:
    """The state in the run's row. Raises StateMismatch where it cannot be read."""
    try:
        return history.whole(run.pk, run.state, run.state_sealed)
    except ValueError as error:
        raise StateMismatch(f"its state cannot be read: {error}") from None


def merged(before: history.Restored, given: dict[str, Any]) -> dict[str, Any]:
    """The true state where a person changed the one that is shown: what was hidden and not touched stays."""
    if codec.canonical(before.shown) == codec.canonical(before.true):
        return given
    if not isinstance(before.true, dict):
        raise Invalid("this state holds something that is not shown, and cannot be edited in part")
    made: dict[str, Any] = history.apply(copy.deepcopy(before.true), history.changes(before.shown, given))
    return made


def record(run: Run, outcome: Outcome, actor: Actor, state: Any, *, why: str = "") -> str:
    """Write the row of a person's verb into the visit, as its next attempt; returns the row's digest. `state` None: unchanged.

    The caller holds the run's lock, no worker has the run, and it saves `attempt_no`, `state` and `state_sealed`.
    """
    run.attempt_no += 1
    after: tuple[Any, bytes | None] = (None, None)
    if state is not None:
        kept = history.written(run.pk, state, run.step_seq, run.attempt_no)
        run.state, run.state_sealed = kept.state, kept.state_sealed
        after = (kept.after, kept.after_sealed)
    told = f"{outcome.label.lower()} by {actor.name}" + (f": {why}" if why else "")
    return record_attempt(run, outcome, closed_by=actor.name, error=told, state_after=after)


def nobody_in_doubt(effects: Effects) -> None:
    """Raise StateMismatch while one of the run's effects is in doubt: what it is recorded with must be met again."""
    if effects.unknown:
        raise StateMismatch(f"nobody knows whether {effects.unknown[0].name} happened: answer that first")


def forward_only(run: Run) -> None:
    """Raise StateMismatch for a run that is being cancelled or undone: no step of its workflow follows."""
    if run.compensating:
        raise StateMismatch("its effects are being undone: no step of its workflow follows any more")
    if run.cancel_requested_at is not None:
        raise StateMismatch(f"{run.cancel_requested_by} has asked for its cancel")


def places_changed(before: Any, after: Any, most: int = 50) -> list[str]:
    """Where two states differ, as paths, for the history; values are not told."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return ["$"]
    keys = sorted(before.keys() | after.keys())
    found = [
        k
        for k in keys
        if codec.canonical(before.get(k)) != codec.canonical(after.get(k)) or (k in before) != (k in after)
    ]
    return found[:most]
