"""What was done for a subject: every effect of every run on “order 1042”, in order of time, and what that adds up to.

A run that was started or forked by one on the subject belongs to it, whatever its own subject says. An effect that a fork took
over from another run is that run's effect and counts once: outcome and key are the same.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import connection

from agentops.console.times import clock as clock_time
from runs import access, blobs, clock, codec
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.pages import timeline

#: Newest runs on a subject that are looked at, with those that they started or that were forked from them.
RUNS = 1000
#: Newest effects of these that are looked at.
EFFECTS = 2000

# run_subject_begins, then operation_children and run_child_once, and run_forks: a family is walked from run to run.
_FAMILY = """
WITH RECURSIVE family AS (
    (SELECT id FROM runs_run WHERE subject <> '' AND lower(subject) = lower(%(subject)s) AND subject = %(subject)s
     ORDER BY id DESC LIMIT %(limit)s)
    UNION
    SELECT next.id FROM family, LATERAL (
        SELECT c.id FROM runs_operation o JOIN runs_run c ON c.parent_operation_id = o.id
        WHERE o.run_id = family.id AND o.kind = 'child'
        UNION ALL
        SELECT f.id FROM runs_run f WHERE f.forked_from = family.id) AS next
)
SELECT id FROM family LIMIT %(limit)s
"""

#: What the table of runs shows, and what says whether an effect is in doubt.
_OF_RUN = (
    "workflow",
    "subject",
    "tenant",
    "status",
    "failure_kind",
    "attention_kind",
    "reason",
    "step",
    "epoch",
    "parent_id",
    "forked_from",
    "created_at",
    "finished_at",
)
_OF_EFFECT = (
    "run_id",
    "step_seq",
    "attempt_no",
    "kind",
    "name",
    "status",
    "provider_key",
    "provider_ref",
    "tries",
    "looks",
    "intent_epoch",
    "intent_at",
    "call_ended_at",
    "settled_by",
    "error_type",
    "compensates",
    "copied_from",
    "started_at",
    "finished_at",
)


@dataclass
class Effect:
    """One effect, in the run that had it first."""

    operation: Operation
    run: Run
    badge: str
    status: str
    """Under which it has its badge."""
    reused_by: list[Run] = field(default_factory=list)
    """Forks that took it over, outcome and key included."""
    undone_by: Operation | None = None
    undoes: Operation | None = None
    summary: str = ""

    @property
    def at(self) -> datetime:
        """When its outcome was recorded; else when it was sent."""
        return self.operation.finished_at or self.operation.intent_at or self.operation.started_at

    @property
    def in_doubt(self) -> bool:
        return self.status == "in_doubt"

    @property
    def happened(self) -> bool:
        return self.operation.status == OpStatus.DONE


@dataclass(frozen=True)
class Verdict:
    """What is known of all effects of one name, as a sentence."""

    sentence: str
    tone: str
    icon: str


@dataclass(frozen=True)
class Told:
    """A subject, as its page tells it."""

    subject: str
    now: datetime
    runs: Sequence[Run]
    """Newest first."""
    effects: Sequence[Effect]
    """Oldest first."""
    cut: bool
    """There are more runs or effects than were looked at."""
    hidden: bool
    """There are runs on it that this person may not see: what they did is not told."""

    @property
    def verdicts(self) -> Sequence[Verdict]:
        return verdicts(self.effects, self.now)

    @property
    def in_doubt(self) -> int:
        return sum(effect.in_doubt for effect in self.effects)


def told(user: AbstractBaseUser | AnonymousUser, subject: str) -> Told:
    """All runs on `subject` that this person may see, and their effects. Three queries."""
    with connection.cursor() as cursor:
        cursor.execute(_FAMILY, {"subject": subject, "limit": RUNS + 1})
        ids = [run_id for (run_id,) in cursor.fetchall()]
    family = Run.objects.filter(pk__in=ids[:RUNS])
    seen = access.visible(user, family.annotate(read_at=clock.Now()).only("pk", *_OF_RUN))
    runs = {run.pk: run for run in seen.order_by("-id")}
    found = list(
        Operation.objects.filter(run_id__in=list(runs), kind=Kind.EFFECT)
        .only("pk", *_OF_EFFECT)
        .order_by("-id")[: EFFECTS + 1]
    )
    return Told(
        subject=subject,
        now=next((run.read_at for run in runs.values()), None) or clock.now(),
        runs=list(runs.values()),
        effects=effects_of(found[:EFFECTS], runs),
        cut=len(ids) > RUNS or len(found) > EFFECTS,
        hidden=len(runs) < len(ids[:RUNS]),
    )


def effects_of(operations: Iterable[Operation], runs: Mapping[uuid.UUID, Run]) -> list[Effect]:
    """Each effect once, oldest first, with what undid it and which forks took it over."""
    by_id = {one.pk: one for one in operations}
    undoing = {one.compensates: one for one in by_id.values() if one.compensates}
    made: dict[uuid.UUID, Effect] = {}
    copies: list[tuple[Operation, uuid.UUID]] = []
    for one in by_id.values():
        origin = one.copied_from
        if origin is not None:
            # A fork of a fork: the run that had it first, as far as it is to be seen here.
            while origin in by_id and (before := by_id[origin].copied_from) is not None:
                origin = before
            if origin in by_id:
                copies.append((one, origin))
                continue
        badge, status = timeline.shown_status(runs[one.run_id], one)
        made[one.pk] = Effect(
            one,
            runs[one.run_id],
            badge,
            status,
            undone_by=undoing.get(one.pk),
            undoes=by_id.get(one.compensates) if one.compensates else None,
        )
    for copy, origin in copies:
        made[origin].reused_by.append(runs[copy.run_id])
    return sorted(made.values(), key=lambda effect: (effect.operation.started_at, effect.operation.pk))


def verdicts(effects: Sequence[Effect], now: datetime) -> list[Verdict]:
    """One for each name: what is in doubt first, then in the order in which they began."""
    by_name: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_name[effect.operation.name].append(effect)
    found = [_verdict(name, some, now) for name, some in by_name.items()]
    return sorted(found, key=lambda verdict: verdict.tone != "is-att")


def _verdict(name: str, effects: Sequence[Effect], now: datetime) -> Verdict:
    happened = [one for one in effects if one.happened]
    doubtful = [one for one in effects if one.in_doubt]
    keys = {one.operation.provider_key or one.operation.pk for one in happened}
    if doubtful:
        so_far = f" It certainly ran {times(len(keys))} beside that." if keys else ""
        one = doubtful[0].operation
        sent = clock_time(one.intent_at or one.started_at, now)
        more = f", and {len(doubtful) - 1} more" if len(doubtful) > 1 else ""
        return Verdict(
            f"Nobody knows whether {name} ran: key {one.provider_key}, sent {sent}, no outcome recorded{more}.{so_far}",
            "is-att",
            "o-doubt",
        )
    if len(keys) > 1:
        undone = sum(one.undone_by is not None for one in happened)
        of_them = f"; {undone} of them {'was' if undone == 1 else 'were'} undone" if undone else ""
        return Verdict(
            f"{name} ran {times(len(keys))}, each under a key of its own{of_them}.", "is-retry", "s-retrying"
        )
    if happened:
        return Verdict(_once(name, happened[0], now), "is-ok", "o-done")
    last = effects[-1].operation
    match last.status:
        case OpStatus.PENDING:
            return Verdict(
                f"{name} is being sent at this moment: key {last.provider_key}.", "is-run", "o-pending"
            )
        case OpStatus.RETRY:
            return Verdict(
                f"{name} has not run: {_answers(last.tries)} said no, and it is sent again.",
                "is-retry",
                "o-retry",
            )
    error = f": {last.error_type}" if last.error_type else ""
    return Verdict(f"{name} did not run{error}.", "is-bad", "o-failed")


def _once(name: str, effect: Effect, now: datetime) -> str:
    one = effect.operation
    reference = f"reference {one.provider_ref}" if one.provider_ref else "no reference recorded"
    key = f"key {one.provider_key}" if one.provider_key else "no key"
    asked = one.settled_by == "verify"
    by = (
        f", as {'the provider said when it was asked' if asked else f'{one.settled_by} said'}"
        if one.settled_by
        else ""
    )
    undone = ""
    if effect.undone_by is not None:
        when = effect.undone_by.finished_at or effect.undone_by.started_at
        did = "was undone" if effect.undone_by.status == OpStatus.DONE else "is to be undone"
        undone = f" It {did} by {effect.undone_by.name}, {clock_time(when, now)}."
    return f"{name} ran once: {key}, {reference}, {clock_time(effect.at, now)}{by}.{undone}"


def times(number: int) -> str:
    """“once”, “twice”, “3 times”."""
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def _answers(number: int) -> str:
    return "an answer" if number == 1 else f"{number:,} answers"


# --- a request in a line -------------------------------------------------------------------------------------------------

#: Arguments that say how much, by the end of their name: these come first.
_AMOUNTS = ("amount", "total", "price", "sum", "quantity", "currency")
#: Arguments of a summary, and characters of one of them.
ARGUMENTS, CHARACTERS = 3, 40


def arguments(request: Any) -> dict[str, Any]:
    """The arguments of a request as plain JSON; none where it is kept apart from its row, or is no object."""
    given = None if blobs.is_marker(request) else codec.plain(request)
    return given if isinstance(given, dict) else {}


def summary(request: Any) -> str:
    """What a request says in its plain arguments, amounts first: “amount 92.00, currency EUR, order 1042”."""
    plain = {
        str(name): value
        for name, value in arguments(request).items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    }
    chosen = sorted(plain, key=lambda name: not name.lower().endswith(_AMOUNTS))[:ARGUMENTS]
    return ", ".join(f"{name} {_short(str(plain[name]))}" for name in chosen)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= CHARACTERS else f"{line[: CHARACTERS - 1]}…"


def summarize(effects: Sequence[Effect]) -> None:
    """Give each of these its summary; for somebody who may see payloads. One query."""
    sent = Operation.objects.filter(pk__in=[effect.operation.pk for effect in effects])
    requests = {
        pk: request if approved is None else approved
        for pk, request, approved in sent.values_list("pk", "request", "approved")
    }
    for effect in effects:
        effect.summary = summary(requests[effect.operation.pk])
