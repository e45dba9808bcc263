"""Receive a signal: an external event for a run, from a provider, a program or a person."""

import copy
import uuid
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import IntegrityError, transaction

from runs import codec, lifecycle, redaction, waits
from runs.errors import Invalid
from runs.lifecycle import Actor
from runs.models import Operation, Run, Signal
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.services.payloads import recordable
from runs.services.verb import Consequence, guard, lock, permit, permit_somewhere, verb
from runs.states import Status

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Received:
    """`created` is False where this (source, external id) was known: the answer is that of the first time.

    `differs`: it was known with another payload, and that one counts.
    """

    signal: Signal
    created: bool
    differs: bool = False

    @property
    def sentence(self) -> str:
        """What became of it."""
        if self.signal.ignored:
            return f"stored, but not used: {self.signal.ignored}"
        if self.signal.consumed_at:
            return "delivered to the wait that it was for"
        return (
            "kept until a wait asks for it"
            if self.signal.run_id
            else "kept until a run waits for its correlation key"
        )


class _Moved(Exception):
    """A wait with the key opened or closed while its run's lock was awaited."""


def receive_signal(
    actor: Actor,
    *,
    name: str,
    payload: Any,
    external_id: str,
    source: str,
    run_id: uuid.UUID | None = None,
    correlation: str = "",
    seen_version: int | None = None,
    reason: str = "",
) -> Received:
    """Store a signal once per (source, external id) and settle the open wait that it is for, if there is one.

    Args:
        run_id: the run it is for; or else
        correlation: the key it is for: the open wait with this key, whichever run has it, now or later.

    A signal for a finished run is stored and marked ignored. A duplicate changes nothing, also with another payload: the first
    one counts, and the difference is logged.

    Raises:
        NotFound: no run has this id.
        Invalid: no address, no name, no external id, or a payload that is too large.
    """
    permit_somewhere(actor, "runs.signal_run", system=True)
    if not (name and external_id and source) or (run_id is None and not correlation):
        raise Invalid("a signal needs a name, a source, an external id, and a run id or a correlation key")
    encoded = recordable(payload, "the payload", "signal", lenient=True)
    display, sealed = redaction.split(encoded)
    signal = Signal(
        id=new_id(),
        run_id=run_id,
        name=codec.clean_text(name, 200),
        correlation=codec.clean_text(correlation, 500),
        source=codec.clean_text(source, 200),
        external_id=codec.clean_text(external_id, 500),
        payload=display,
        payload_sealed=sealed,
        digest=codec.digest(encoded),
        sent_by=actor.name,
    )
    known = _known(signal)
    if known is not None:
        _permit_known(actor, known)
    if known is None:
        try:
            return Received(_accept(actor, signal, seen_version, reason), created=True)
        except IntegrityError:  # the same signal at the same instant: the other one was first
            known = _known(signal)
            if known is None:
                raise
            _permit_known(actor, known)
    differs = known.digest != signal.digest
    if differs:
        _note_difference(actor, known, signal.digest)
    return Received(known, created=False, differs=differs)


def _permit_known(actor: Actor, known: Signal) -> None:
    """What became of a signal is told to those alone who could have sent it."""
    of = None if known.run_id is None else Run.objects.filter(pk=known.run_id).first()
    permit(actor, "runs.signal_run", run=of, system=True)


def _known(signal: Signal) -> Signal | None:
    by_id = "SELECT * FROM runs_signal WHERE source = %s AND external_id = %s"
    return next(iter(Signal.objects.raw(by_id, [signal.source, signal.external_id])), None)


@verb
def _accept(actor: Actor, given: Signal, seen_version: int | None, reason: str) -> Signal:
    # Another try must not see what this one made of it.
    signal = copy.copy(given)
    run, operation = _to_run(signal) if signal.run_id else _by_key(signal)
    # One that no run waits for yet may come to be any run's.
    permit(actor, "runs.signal_run", run=run, system=True)
    if run is not None:
        guard(run, seen_version)
        if run.is_terminal:
            signal.ignored = "run is finished"
    if run is not None and operation is not None:
        waits.consume(signal, run, operation)
    signal.save(force_insert=True)
    if run is None:
        return signal
    if operation is not None and run.status == Status.WAITING:
        lifecycle.set_due(run)
    lifecycle.append_event(
        run,
        "signal",
        actor,
        reason,
        signal=str(signal.pk),
        name=signal.name,
        source=signal.source,
        payload=signal.digest,
        settled=None if operation is None else str(operation.pk),
        ignored=signal.ignored,
    )
    return signal


def _open_waits() -> Any:
    return Operation.objects.filter(kind=Kind.SIGNAL, status=OpStatus.OPEN).order_by("started_at", "id")


def _to_run(signal: Signal) -> tuple[Run, Operation | None]:
    """The run under its lock, and its open wait of this name."""
    assert signal.run_id is not None
    run = lock(signal.run_id)
    if run.is_terminal:
        return run, None
    return run, next(iter(Operation.objects.raw(_OPEN_WAIT, [run.pk, signal.name])), None)


#: Of `_open_waits`, the first of a run and a name, locked: compiled here, as it stands between a signal and its run.
_OPEN_WAIT = """
SELECT * FROM runs_operation WHERE run_id = %s AND name = %s AND kind = 'signal' AND status = 'open'
ORDER BY started_at, id LIMIT 1 FOR UPDATE
"""


def _by_key(signal: Signal) -> tuple[Run | None, Operation | None]:
    """The open wait with this correlation key and its run, locked in that order; or neither, and none can open meanwhile."""
    waiting = _open_waits().filter(name=signal.name, correlation=signal.correlation)
    while True:
        seen = waiting.first()
        try:
            # A savepoint: rolling back to it also gives the locks back, so that the order run → key → operation holds.
            with transaction.atomic():
                run = None if seen is None else lock(seen.run_id)
                waits.lock_key(signal.name, signal.correlation)
                now = waiting.select_for_update().first()
                if (now and now.pk) != (seen and seen.pk):
                    raise _Moved
                return run, now
        except _Moved:
            continue


def preview_signal(run: Run, name: str) -> Consequence:
    """What a signal of this name to the run would do now."""
    if run.is_terminal:
        return Consequence("The run is finished: the signal is stored and not used.")
    # As receiving would store it: what a form brings may hold what PostgreSQL refuses.
    if _open_waits().filter(run_id=run.pk, name=codec.clean_text(name, 200)).exists():
        return Consequence(f"The run waits for {name} and goes on with this.")
    return Consequence(f"The run does not wait for {name} now: the signal is kept until it does.")


@verb
def _note_difference(actor: Actor, known: Signal, digest: str) -> None:
    """A provider sent another payload under an id that it had used: the first one counts, people can see the difference."""
    log.warning(
        "signal.conflicting_duplicate",
        source=known.source,
        external_id=known.external_id,
        run=str(known.run_id),
    )
    if known.run_id is not None:
        run = lock(known.run_id)
        lifecycle.append_event(
            run, "signal_conflict", actor, "", signal=str(known.pk), first=known.digest, again=digest
        )
