"""What people read around a request before they decide: votes, questions, comments, messages, and decisions in like cases."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection
from django.urls import reverse

from approvals.models import Answer, Approval
from approvals.payload import Field, Kind, fields
from runs import access, content

#: Comments, and messages, that a page shows; the newest.
COMMENTS = 50
MESSAGES = 8
#: Decisions on the same tool that are looked at, the newest.
ALIKE = 50


@dataclass(frozen=True)
class Said:
    """A comment."""

    pk: str
    by: str
    text: str
    at: datetime


@dataclass(frozen=True)
class Asked:
    """A question, with what became of it."""

    number: int
    version: int
    text: str
    by: str
    at: datetime
    outcome: str
    answer: str
    answered_at: datetime | None

    @property
    def answered(self) -> bool:
        return self.outcome == Answer.Outcome.ANSWERED

    @property
    def failed(self) -> bool:
        return self.outcome == Answer.Outcome.FAILED

    @property
    def nobody(self) -> bool:
        return self.outcome == Answer.Outcome.NOBODY


@dataclass(frozen=True)
class Decided:
    """A request of the same name that people decided."""

    pk: uuid.UUID
    title: str
    state: str
    version: int
    by: str
    reason: str
    decided_at: datetime
    took_s: float

    @property
    def edited(self) -> bool:
        return self.state == Approval.State.APPROVED and self.version > 1

    @property
    def url(self) -> str:
        return reverse("approvals:approval", args=[self.pk])


@dataclass(frozen=True)
class Outcome:
    """One line of what like cases came to: how many, and the newest of them."""

    word: str
    icon: str
    tone: str
    number: int
    newest: Decided
    x: str
    """Where its part of the bar begins, and how wide it is, in per cent."""
    width: str


@dataclass(frozen=True)
class Spoken:
    """A message of the run's conversation; its content as it is recorded."""

    pk: str
    role: str
    content: Any
    at: datetime


@dataclass(frozen=True)
class Voted:
    """A vote on one of its versions."""

    pk: uuid.UUID
    version: int
    digest: str
    verdict: str
    voter_id: int
    voter_name: str
    reason: str
    at: datetime


@dataclass(frozen=True)
class Background:
    votes: list[Voted] = field(default_factory=list)
    """Oldest first."""
    comments: list[Said] = field(default_factory=list)
    questions: list[Asked] = field(default_factory=list)
    alike: list[Decided] = field(default_factory=list)
    messages: list[Spoken] = field(default_factory=list)

    @property
    def unanswered(self) -> int:
        return sum(not one.outcome for one in self.questions)

    @property
    def outcomes(self) -> list[Outcome]:
        """Approved as asked, approved edited, rejected; of those that there were."""
        sorts = (
            (
                "approved as asked",
                "a-approved",
                "is-ok",
                [d for d in self.alike if d.state == "approved" and not d.edited],
            ),
            ("approved edited", "a-edited", "is-run", [d for d in self.alike if d.edited]),
            ("rejected", "a-rejected", "is-bad", [d for d in self.alike if d.state == "rejected"]),
        )
        made, x = [], 0.0
        for word, icon, tone, found in sorts:
            if found:
                width = 100 * len(found) / len(self.alike)
                made.append(Outcome(word, icon, tone, len(found), found[0], f"{x:.2f}%", f"{width:.2f}%"))
                x += width
        return made

    @property
    def usual_s(self) -> float:
        """How long the middle one of them took, in seconds."""
        took = sorted(one.took_s for one in self.alike)
        return took[len(took) // 2] if took else 0.0


#: vote_once_per_version, comment_by_item, question_once, message_identity, approval_decided_alike: one round trip
#: for what would be five.
_BACKGROUND = """
(SELECT 'vote', jsonb_build_object('pk', id, 'version', version, 'digest', digest, 'verdict', verdict, 'voter_id', voter_id,
        'voter_name', voter_name, 'reason', reason, 'at', at)
    FROM approvals_vote WHERE approval_id = %(approval)s ORDER BY at, id)
UNION ALL
(SELECT 'comment', jsonb_build_object('pk', id, 'by', by, 'text', text, 'at', at)
    FROM approvals_comment WHERE item_id = %(approval)s AND kind = 'approval' ORDER BY id DESC LIMIT %(comments)s)
UNION ALL
(SELECT 'question', jsonb_build_object('number', q.number, 'version', q.version, 'text', q.text, 'by', q.by, 'at', q.at,
        'outcome', coalesce(n.outcome, ''), 'answer', coalesce(n.text, ''), 'answered_at', n.at)
    FROM approvals_question q LEFT JOIN approvals_answer n ON n.question_id = q.id
    WHERE q.approval_id = %(approval)s AND %(payloads)s ORDER BY q.number)
UNION ALL
(SELECT 'message', jsonb_build_object('pk', id, 'role', role, 'content', content, 'at', created_at)
    FROM runs_message WHERE run_id = %(run)s AND created_at <= %(opened)s AND %(payloads)s
    ORDER BY step_seq DESC, position DESC LIMIT %(messages)s)
UNION ALL
(SELECT 'alike', jsonb_build_object('pk', id, 'title', title, 'state', state, 'version', version, 'by', decided_by,
        'reason', reason, 'decided_at', decided_at, 'took_s', extract(epoch FROM decided_at - opened_at))
    FROM approvals_approval
    WHERE name = %(name)s AND state IN ('approved', 'rejected') AND id <> %(approval)s{read} ORDER BY id DESC LIMIT %(alike)s)
"""


def background(approval: Approval, user: AbstractBaseUser, *, payloads: bool) -> Background:
    """What surrounds a request; without `payloads` nothing of the conversation. One query."""
    parameters: dict[str, Any] = {
        "approval": approval.pk,
        "run": approval.run_id,
        "opened": approval.opened_at,
        "name": approval.name,
        "payloads": payloads,
        "comments": COMMENTS,
        "alike": ALIKE,
        "messages": MESSAGES,
    }
    found = Background()
    read = access.narrowing(user, "runs.view_payload", "run_id", parameters, also="approvals.view_approval")
    with connection.cursor() as cursor:
        cursor.execute(_BACKGROUND.format(read=read), parameters)
        for what, text in cursor.fetchall():
            data = decoded(text)
            for name in (
                "text",
                "reason",
            ):  # of comments and votes; of the others without payloads there is nothing
                if name in data:
                    data[name] = content.words(payloads, data[name])
            match what:
                case "vote":
                    found.votes.append(Voted(**data | {"pk": uuid.UUID(data["pk"])}))
                case "comment":
                    found.comments.insert(0, Said(**data))
                case "message":
                    found.messages.insert(0, Spoken(**data))
                case "question":
                    found.questions.append(Asked(**data))
                case "alike":
                    found.alike.append(Decided(**data | {"pk": uuid.UUID(data["pk"])}))
    return found


def decoded(text: str) -> dict[str, Any]:
    """A row as it was: Django's connection leaves JSON as text, and JSON has no times."""
    data: dict[str, Any] = json.loads(text)
    return {
        name: datetime.fromisoformat(value) if value and (name == "at" or name.endswith("_at")) else value
        for name, value in data.items()
    }


# --- how much, to whom ---------------------------------------------------------------------------------------------------

_AMOUNTS = ("amount", "total", "sum", "price", "value", "quantity", "count")
_PEOPLE = (
    "to",
    "recipient",
    "customer",
    "customer_name",
    "payee",
    "email",
    "address",
    "account",
    "user",
    "customer_id",
)
_UNITS = ("currency", "unit")
_NUMBERS = (Kind.DECIMAL, Kind.NUMBER, Kind.INTEGER)


@dataclass(frozen=True)
class Stakes:
    """What a payload moves, read off the names of its fields; "" where no field says it."""

    amount: str = ""
    whom: str = ""
    amount_label: str = ""
    whom_label: str = ""


def stakes(schema: dict[str, Any], payload: Any, order: Sequence[str]) -> Stakes:
    """How much, and to whom, as far as the fields of the payload are named for that."""
    present = [one for one in fields(schema, payload, order) if one.present and one.key is not None]
    amount, unit = amount_of(present)
    whom = _first([one for one in present if one.kind in (Kind.TEXT, Kind.CHOICE)], _PEOPLE)
    return Stakes(
        f"{amount.text}{f' {unit.text}' if unit else ''}"[:80] if amount else "",
        whom.text[:80] if whom else "",
        amount.label if amount else "",
        whom.label if whom else "",
    )


def amount_of(present: Sequence[Field]) -> tuple[Field | None, Field | None]:
    """The field that says how much, and the one that says of what."""
    amount = _first([one for one in present if one.kind in _NUMBERS], _AMOUNTS)
    return amount, _first(present, _UNITS)


def _first(found: Sequence[Field], names: Sequence[str]) -> Field | None:
    by_key = {str(one.key).lower(): one for one in found}
    return next((by_key[name] for name in names if name in by_key), None)
