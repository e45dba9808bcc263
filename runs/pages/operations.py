"""What the page of one operation tells: in a sentence what came of it, each time that it was sent, and what it belongs to."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, QuerySet, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, JSONObject

from agentops.console.badges import ATTENTION, BAD, IDLE, OK, RETRY, RUN
from agentops.console.times import clock as clock_time
from agentops.console.times import duration
from runs import access, content
from runs.clock import Now
from runs.models import Event, Operation, Run
from runs.models.operation import WAIT_KINDS, Kind, OpStatus
from runs.pages import timeline
from runs.pages.sentences import Headline, sentence
from runs.pages.subjects import arguments, times

#: Forks that took it over, and answers about it, that the page names.
NAMED = 20
#: So many earlier sends an operation keeps: see `statements.INTENT`.
SENDS_KEPT = 50


def with_relations(user: access.Person, operations: QuerySet[Operation]) -> QuerySet[Operation]:
    """`operations` with what they belong to, as lists of plain values, and `read_at`.

    `undone_by` (operation_compensated_once), `origin` (primary key), `reused_by` (run_forks, then operation_identity), and
    `answers`, what people said about it (event_acted_on_run). Other runs only where the person may see them.
    """
    undoing = Operation.objects.filter(compensates=OuterRef("pk"))
    origin = access.visible(user, Operation.objects.filter(pk=OuterRef("copied_from")), through="run__")
    reused = Operation.objects.filter(
        run__forked_from=OuterRef("run_id"),
        step_seq=OuterRef("step_seq"),
        position=OuterRef("position"),
        copied_from=OuterRef("pk"),
    )
    answers = Event.objects.filter(
        run_id=OuterRef("run_id"), kind="doubt_answered", actor_id__isnull=False
    ).alias(about=KT("data__operation"))
    one = {
        "id": F("pk"),
        "name": F("name"),
        "status": F("status"),
        "at": F("finished_at"),
        "run": F("run_id"),
    }
    said = JSONObject(at=F("at"), actor=F("actor"), reason=F("reason"), seq=F("seq"), data=F("data"))
    return operations.annotate(
        read_at=Now(),
        undone_by=ArraySubquery(undoing.values(row=JSONObject(**one))[:1]),
        origin=ArraySubquery(origin.values(row=JSONObject(**one))[:1]),
        reused_by=ArraySubquery(
            access.visible(user, reused, through="run__")
            .order_by("run_id")
            .values(row=JSONObject(**one))[:NAMED]
        ),
        answers=ArraySubquery(
            answers.filter(about=Cast(OuterRef("pk"), TextField())).order_by("seq").values(row=said)[:NAMED]
        ),
    )


# --- each time that it was sent ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """One time that an effect was sent, or was about to be."""

    at: datetime | None
    attempt: int
    worker: str
    epoch: int | None
    key: str
    ended: datetime | None
    came: str
    """What came of it: follows “it”, as in “got no answer”."""
    error: str
    """What was said, in the words of provider or library: for those alone who may see payloads."""
    icon: str
    tone: str
    answered: bool
    sent: bool = True


def sends(run: Run, operation: Operation) -> list[Send]:
    """Oldest first; nothing for what is no effect, or was never about to be sent."""
    if operation.intent_at is None:
        return []
    return [*(_earlier(one) for one in operation.earlier_sends or ()), _last(run, operation)]


def _earlier(kept: dict[str, Any]) -> Send:
    error = ": ".join(part for part in (kept["error_type"], kept["error"]) if part)
    came, icon, tone, answered, sent = _came(kept["answered"], kept["error_type"], kept["by"], kept["ended"])
    return Send(
        at=_moment(kept["at"]),
        attempt=kept["attempt"],
        worker=kept["worker"] or "",
        epoch=kept["epoch"],
        key=kept["key"] or "",
        ended=_moment(kept["ended"]),
        came=came,
        error=error,
        icon=icon,
        tone=tone,
        answered=answered,
        sent=sent,
    )


def _came(settled: bool, error_type: str, by: str, ended: str | None) -> tuple[str, str, str, bool, bool]:
    """What came of a send before the last: words, icon, tone, whether it was answered, whether it was sent at all."""
    if error_type == "NotSent":
        return "was not sent after all", "o-closed", IDLE, False, False
    # Before the error, which is that of a call without an answer then.
    if settled and by == "verify":
        return "got no answer; the provider was asked and did not have it", "o-doubt", RETRY, False, True
    if settled and by:
        return f"got no answer; {by} said that it did not happen", "o-doubt", RETRY, False, True
    if settled and error_type:
        return f"was answered with an error, {error_type}: it did not happen", "o-retry", RETRY, True, True
    if settled:
        return "failed for certain; a person let it be tried again", "o-retry", RETRY, True, True
    if ended:
        return "got no answer", "o-doubt", RETRY, False, True
    return "got no answer: its worker was lost", "o-doubt", RETRY, False, True


def _last(run: Run, operation: Operation) -> Send:
    by, error_type = operation.settled_by, operation.error_type
    answered, sent = True, True
    ended = operation.call_ended_at.isoformat() if operation.call_ended_at else None
    match operation.status:
        case OpStatus.DONE if by in ("", "exhausted", "not_retryable"):
            came, icon, tone = "was answered: it happened", "o-done", OK
        case OpStatus.DONE:
            came, icon, tone, answered = "got no answer", "o-doubt", RETRY, False
        case OpStatus.FAILED:
            came, icon, tone = f"was answered with an error, {error_type}: it did not happen", "o-failed", BAD
        case OpStatus.PENDING if timeline.in_doubt(run, operation):
            came, icon, tone, answered, sent = _came(False, error_type, by, ended)
            tone = ATTENTION if sent else tone
        case OpStatus.PENDING:
            came, icon, tone, answered = "is under way", "o-pending", RUN, False
        case _:
            came, icon, tone, answered, sent = _came(True, error_type, by, ended)
    error = ": ".join(part for part in (error_type, operation.error) if part)
    return Send(
        at=operation.intent_at,
        attempt=operation.attempt_no,
        worker=str(operation.intent_worker_id or ""),
        epoch=operation.intent_epoch,
        key=str(operation.provider_key or ""),
        ended=operation.call_ended_at,
        came=came,
        error=error,
        icon=icon,
        tone=tone,
        answered=answered,
        sent=sent,
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


# --- the sentence --------------------------------------------------------------------------------------------------------


def opening(run: Run, operation: Operation, *, now: datetime, seen: bool) -> Headline:
    """What is true of the operation, as its page begins. `seen`: the person may see what was asked for, so that it says how much.

    `operation` is of `with_relations`.
    """
    if operation.kind in WAIT_KINDS:
        return _of_wait(operation, now)
    if operation.kind != Kind.EFFECT:
        return _of_question(operation, now)
    did = did_words(operation.name, operation, seen=seen)
    told = _sent(sends(run, operation))
    match operation.status:
        case OpStatus.DONE:
            when = clock_time(operation.finished_at or operation.started_at, now)
            fact = f"{did} once, at {when}"
            if operation.provider_ref:
                fact += f"; provider reference {operation.provider_ref}"
            return Headline(
                sentence(fact), " ".join([*told, *_settled(operation), *_afterwards(operation, now)])
            )
        case OpStatus.RETRY if not run.is_terminal:
            return Headline(
                f"{operation.name} has not happened so far.", " ".join([*told, "It is sent again."])
            )
        case OpStatus.FAILED | OpStatus.RETRY:
            return Headline(f"{operation.name} did not happen.", " ".join(told))
        case OpStatus.PENDING if timeline.in_doubt(run, operation):
            look = "Look for its key at the provider, then say what you found."
            return Headline(f"Nobody knows whether {operation.name} happened.", " ".join([*told, look]))
    return Headline(f"{operation.name} is being sent at this moment.", " ".join(told[:-1]))


def _sent(all_of_them: Sequence[Send]) -> list[str]:
    """“Sent twice: the first got no answer.”"""
    some = [one for one in all_of_them if one.sent]
    if not some:
        return ["It was never sent."]
    number = f"more than {SENDS_KEPT} times" if len(all_of_them) > SENDS_KEPT else times(len(some))
    lost = [place for place, one in enumerate(some) if not one.answered]
    if not lost:
        if len(some) == 1:
            return [
                "Sent once, and answered." if some[0].tone == OK else "Sent once; the answer was an error."
            ]
        if some[-1].tone != OK:
            return [f"Sent {number}; each answer was an error."]
        before = (
            "the first answer was an error" if len(some) == 2 else "the answers before the last were errors"
        )
        return [f"Sent {number}; {before}."]
    if len(some) == 1:
        return [f"Sent once; it {some[0].came}."]
    if len(lost) == len(some):
        none = "neither" if len(some) == 2 else "none"
        return [f"Sent {number}; {none} got an answer."]
    which = "the first" if lost == [0] else "the last" if lost == [len(some) - 1] else f"{len(lost)} of them"
    return [f"Sent {number}; {which} got no answer."]


def _settled(operation: Operation) -> list[str]:
    if operation.settled_by == "verify":
        return ["The provider was asked, and has it."]
    if operation.settled_by in ("", "exhausted", "not_retryable"):
        return []
    return [f"{operation.settled_by} found out and said so."]


def _afterwards(operation: Operation, now: datetime) -> list[str]:
    told = []
    if operation.copied_from:
        told.append("Another run did it; this one was forked from that and did not do it again.")
    for undoing in operation.undone_by:  # type: ignore[attr-defined]
        if undoing["status"] == OpStatus.DONE:
            when = clock_time(datetime.fromisoformat(undoing["at"]), now)
            told.append(f"It was undone by {undoing['name']}, at {when}.")
        else:
            told.append(f"It is to be undone by {undoing['name']}.")
    return told


def _of_question(operation: Operation, now: datetime) -> Headline:
    name = f"{Kind(operation.kind).label.partition(' ')[0]} {operation.name}".strip()
    match operation.status:
        case OpStatus.DONE:
            at = operation.finished_at or operation.started_at
            took = duration(max(0.0, (at - operation.started_at).total_seconds()))
            tries = f", asked {times(operation.tries)}" if operation.tries > 1 else ""
            kept = (
                " A later attempt asked again, and this answer was not kept." if operation.forgotten else ""
            )
            return Headline(
                sentence(f"{name} answered at {clock_time(at, now)}, after {took}{tries}"),
                f"It changed nothing outside.{kept}",
            )
        case OpStatus.FAILED:
            return Headline(f"{name} gave no answer.", f"It was asked {times(operation.tries)}.")
    return Headline(f"{name} has given no answer so far.", "It is asked again.")


def _of_wait(operation: Operation, now: datetime) -> Headline:
    what = {
        Kind.APPROVAL: f"Approval of {operation.name}",
        Kind.SIGNAL: f"Signal {operation.name}",
        Kind.TIMER: f"Timer {operation.name}".strip(),
        Kind.CHILD: "Child runs",
    }[Kind(operation.kind)]
    if operation.status == OpStatus.OPEN:
        until = (
            f", at the latest until {clock_time(operation.expires_at, now)}" if operation.expires_at else ""
        )
        return Headline(f"{what}: waited for since {clock_time(operation.started_at, now)}{until}.", "")
    at = operation.finished_at or operation.started_at
    took = duration(max(0.0, (at - operation.started_at).total_seconds()))
    verdict = getattr(operation, "verdict", "")
    ended = {
        OpStatus.CLOSED: "nobody waits for it any more",
        OpStatus.FAILED: "it did not come",
        OpStatus.DONE: {
            Kind.APPROVAL: (verdict or "decided").replace("_", " "),
            Kind.SIGNAL: "it came",
            Kind.TIMER: "it ran out",
            Kind.CHILD: "they have ended",
        }[Kind(operation.kind)],
    }[OpStatus(operation.status)]
    by = f" by {operation.settled_by}" if operation.settled_by and operation.kind == Kind.APPROVAL else ""
    return Headline(f"{what}: {ended}{by} at {clock_time(at, now)}, after {took}.", "")


#: What a tool is called, and what it has done then. Any other is said to have run.
_PAST = {
    "add": "Added",
    "book": "Booked",
    "buy": "Bought",
    "cancel": "Cancelled",
    "capture": "Captured",
    "charge": "Charged",
    "close": "Closed",
    "create": "Created",
    "delete": "Deleted",
    "file": "Filed",
    "grant": "Granted",
    "issue": "Issued",
    "mail": "Mailed",
    "notify": "Notified",
    "open": "Opened",
    "order": "Ordered",
    "pay": "Paid",
    "post": "Posted",
    "print": "Printed",
    "publish": "Published",
    "refund": "Refunded",
    "release": "Released",
    "remove": "Removed",
    "reserve": "Reserved",
    "revoke": "Revoked",
    "send": "Sent",
    "set": "Set",
    "ship": "Shipped",
    "transfer": "Transferred",
    "update": "Updated",
    "void": "Voided",
    "write": "Wrote",
}
#: After these an amount reads by itself: “Charged customer €184.50”.
_OF_MONEY = ("capture", "charge", "pay", "refund", "transfer")
_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£"}
_AMOUNT = ("amount", "total", "price")


def did_words(name: str, operation: Operation, *, seen: bool) -> str:
    """What was done, from the tool's name and its amount: “Charged €184.50”, “Sent mail”, “Ran close_books”."""
    verb, *rest = name.split("_")
    past = _PAST.get(verb.lower())
    money = amount(operation.request if operation.approved is None else operation.approved) if seen else ""
    if past is None:
        return f"Ran {name}" + (f" ({money})" if money else "")
    what = " ".join([past, *rest])
    if not money:
        return what
    return f"{what} {money}" if verb.lower() in _OF_MONEY else f"{what} ({money})"


def amount(request: Any) -> str:
    """How much a request is about, with its currency: “€184.50”; "" where it does not say."""
    given = arguments(request)
    for name, value in given.items():
        if not str(name).lower().endswith(_AMOUNT) or isinstance(value, bool):
            continue
        number = str(value)
        if (
            not isinstance(value, str | int | float)
            or not number.replace(".", "", 1).isdigit()
            or len(number) > 20
        ):
            continue
        currency = next((str(v) for n, v in given.items() if str(n).lower().endswith("currency")), "")
        if currency in _SYMBOLS:
            return f"{_SYMBOLS[currency]}{number}"
        return f"{number} {currency[:3]}".strip()
    return ""


@dataclass(frozen=True)
class Answer:
    """What a person said about an effect in doubt."""

    at: datetime
    by: str
    happened: bool
    reference: str
    reason: str
    evidence: uuid.UUID | None
    """The file that came with it."""
    name: str
    """Of that file."""


def answers(operation: Operation, *, seen: bool) -> list[Answer]:
    """Oldest first; `operation` is of `with_relations`. `seen`: the person may see what they said."""
    return [
        Answer(
            at=datetime.fromisoformat(row["at"]),
            by=row["actor"],
            happened=bool(row["data"].get("happened")),
            reference=str(row["data"].get("reference") or ""),
            reason=content.words(seen, row["reason"]),
            evidence=uuid.UUID(kept["id"]) if kept else None,
            name=str(kept.get("name", "")),
        )
        for row in operation.answers  # type: ignore[attr-defined]
        for kept in [row["data"].get("evidence") or {}]
    ]
