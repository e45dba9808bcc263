"""Several like approvals side by side, and one verdict that is given to each of them by itself.

Like are those of one tool (or question) in one step: one verdict answers one question. What is the same in their payloads is told
once, what differs stands in a table. The verdict goes to `approvals.services.decide` for each, in a transaction of its own and
with the version and digest that the page showed: what is refused of one stops no other, and what is sent twice decides nothing
twice.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cached_property
from typing import Self

from django.contrib.auth.models import User

from agentops.console import badges
from agentops.console.numbers import number_of
from approvals import selectors, services
from approvals.background import amount_of
from approvals.decision import Decision, field_order
from approvals.inbox import worklist
from approvals.inbox.listing import Entry, as_sentence, together_url
from approvals.inbox.worklist import Line
from approvals.models import Approval, ItemKind
from approvals.payload import Field, Kind, fields
from approvals.policies import deciders
from runs import codec
from runs.errors import Invalid, NotFresh, Stale, StateMismatch, Unavailable, VerbError
from runs.lifecycle import Actor

#: Decided with one verdict at most: what a person can still look through.
MOST = 50
#: Fields that differ and have a column of their own; the others stand in a line below.
COLUMNS = 4
#: Characters of a value that a cell shows; the whole stands on the page of the request.
SHOWN = 160
#: Characters before the first difference that are shown with it.
BEFORE = 24

type Question = tuple[str, str, str]
"""What is asked: workflow, step, and name of the tool."""


# --- those that were chosen ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    """One request as the page showed it: what its check box sends."""

    item: uuid.UUID
    version: int
    digest: str

    def __str__(self) -> str:
        return f"{self.item}.{self.version}.{self.digest}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """What `str` wrote; None for anything else."""
        item, _, rest = text.partition(".")
        number, _, digest = rest.partition(".")
        version = number_of(number)
        if version is None or not 0 < len(digest) <= 64:
            return None
        try:
            return cls(uuid.UUID(item), version, digest)
        except ValueError:
            return None


@dataclass(frozen=True)
class Member:
    """One of the requests, for the person who looks at them."""

    decision: Decision
    entry: Entry

    @property
    def approval(self) -> Approval:
        return self.decision.approval

    @property
    def id(self) -> uuid.UUID:
        return self.approval.pk

    @property
    def line(self) -> Line:
        return self.entry.line

    @property
    def tick(self) -> Tick:
        return Tick(self.id, self.approval.version, self.approval.digest)

    @property
    def question(self) -> Question:
        return self.entry.question

    @cached_property
    def why_not(self) -> str:
        """Why this person cannot decide it now, as a sentence; "" if they can."""
        decision = self.decision
        if not decision.is_open:
            return f"{decision.outcome}."
        if decision.why_not:
            return f"Not yours to decide: {decision.why_not}."
        if not decision.sees_payload:
            return "You cannot decide on what you may not see."
        if self.line.voted_version == self.approval.version:
            return "You have voted on it; others have to vote as well."
        return ""

    @cached_property
    def fields(self) -> dict[str | None, Field]:
        """The fields of its payload that are there, by key."""
        approval = self.approval
        found = fields(approval.schema, approval.payload, field_order(self.decision.tool))
        return {field.key: field for field in found if field.present}


@dataclass(frozen=True)
class Cell:
    """A value, or the part of it in which it differs from the others."""

    label: str
    text: str
    """None of it where the field is not there."""
    present: bool = True
    number: bool = False
    json: bool = False
    cut: bool = False
    """There is more of it before or after."""


@dataclass(frozen=True)
class Row:
    """One request of the table."""

    member: Member
    cells: list[Cell]
    further: list[Cell]
    """Fields that differ and have no column."""
    ticked: bool


@dataclass(frozen=True)
class Unlike:
    """Requests that ask something else than those of the table, and all the same thing."""

    members: list[Member]

    @property
    def name(self) -> str:
        return self.members[0].approval.name

    @property
    def step(self) -> str:
        return self.members[0].line.step

    @property
    def workflow(self) -> str:
        return self.members[0].line.workflow

    @property
    def url(self) -> str:
        """Where these can be decided."""
        return together_url(member.id for member in self.members)


class Together:
    """What the page of several approvals shows one person. Two queries, however many there are."""

    def __init__(
        self,
        user: User,
        ids: Sequence[uuid.UUID],
        now: datetime,
        *,
        ticked: Iterable[uuid.UUID] = (),
        told: Iterable[uuid.UUID] = (),
    ) -> None:
        self.user, self.now = user, now
        self.chosen = list(dict.fromkeys(ids))
        """As the address has them, each once."""
        self.ids = self.chosen[:MOST]
        self._ticked, self._told = set(ticked), set(told)
        lines = {
            line.item: line for line in worklist.lines(user, [(ItemKind.APPROVAL, one) for one in self.ids])
        }
        self.members = [
            Member(Decision(found, user, now, line=lines[found.pk]), Entry(lines[found.pk], user))
            for found in selectors.several(user, self.ids)
            if found.pk in lines
        ]
        self.members.sort(key=lambda member: (member.line.target, member.id))

    @property
    def missing(self) -> int:
        """How many of those asked for do not exist, or not for this person."""
        return len(self.ids) - len(self.members)

    @property
    def beyond(self) -> int:
        """How many were chosen beyond MOST."""
        return len(self.chosen) - len(self.ids)

    @cached_property
    def _by_question(self) -> list[list[Member]]:
        """Those that can be decided, by what they ask; most of them first, and what is due first among as many."""
        found: dict[Question, list[Member]] = defaultdict(list)
        for member in self.members:
            if not member.why_not:
                found[member.question].append(member)
        return sorted(found.values(), key=len, reverse=True)

    @property
    def like(self) -> list[Member]:
        """Those that one verdict can be given to."""
        return self._by_question[0] if self._by_question else []

    @property
    def unlike(self) -> list[Unlike]:
        return [Unlike(members) for members in self._by_question[1:]]

    @property
    def closed(self) -> list[Member]:
        """Those that this person cannot decide, or not any more; without those whose result has just been told."""
        return [member for member in self.members if member.why_not and member.id not in self._told]

    @property
    def first(self) -> Member | None:
        """Stands for all like ones in what they have in common: the tool, the step, the workflow."""
        return self.like[0] if self.like else None

    # --- what is the same, what differs ---

    @cached_property
    def _keys(self) -> list[str | None]:
        """Every field of any of them, in the order of the first."""
        return list(dict.fromkeys(key for member in self.like for key in member.fields))

    @cached_property
    def _differ(self) -> list[str | None]:
        return [key for key in self._keys if len({_text(member.fields.get(key)) for member in self.like}) > 1]

    @property
    def same(self) -> list[Cell]:
        """The fields in which all agree, the agent's reason among them where it is one reason."""
        member = self.first
        if member is None:
            return []
        return [_cell(member.fields[key]) for key in self._keys if key not in self._differ]

    @property
    def same_why(self) -> str | None:
        """The agent's words where they are the same for all; None where they differ."""
        said = {member.approval.why for member in self.like}
        return said.pop() if len(said) == 1 else None

    @property
    def heads(self) -> list[Cell]:
        """The columns of what differs."""
        return [
            next(_cell(member.fields[key]) for member in self.like if key in member.fields)
            for key in self._columns
        ]

    @cached_property
    def _columns(self) -> list[str | None]:
        """What differs and has a column: rather what the agent chose than what nobody can change, such as the run's id."""
        fixed = {key for member in self.like for key, field in member.fields.items() if field.read_only}
        return ([key for key in self._differ if key not in fixed] or self._differ)[:COLUMNS]

    @cached_property
    def rows(self) -> list[Row]:
        starts = {
            key: _first_difference([m.fields[key].text for m in self.like if key in m.fields])
            for key in self._differ
        }
        made = []
        for member in self.like:
            cells = {key: _cell(member.fields.get(key), starts[key]) for key in self._differ}
            columns = [cells.pop(key) for key in self._columns]
            further = [cell for cell in cells.values() if cell.present]
            made.append(Row(member, columns, further, member.id in self._ticked))
        return made

    @property
    def altogether(self) -> str:
        """The amounts of all, by their unit: "412.50 EUR"; "" where a payload names none."""
        sums: Counter[str] = Counter()
        for member in self.like:
            amount, unit = amount_of([field for field in member.fields.values() if field.key is not None])
            number = None if amount is None else _number(amount)
            if number is None:
                return ""
            sums[unit.text if unit else ""] += number  # type: ignore[assignment]
        return " and ".join(f"{total:,} {unit}".strip()[:80] for unit, total in sums.items())

    # --- what a verdict would do ---

    @property
    def object(self) -> str:
        """What is approved: the tool, or what is asked."""
        return self.first.decision.object if self.first else ""

    @property
    def consequence(self) -> str:
        first = self.first
        if first is None:
            return ""
        name = first.approval.name
        if first.decision.is_call:
            yes = f"Approving lets {name} run once for each that is ticked, with exactly its own payload."
            no = f"{name} does not run"
        else:
            yes = "Approving lets the agent of each that is ticked go on with exactly this."
            no = "the agent goes on without it"
        return f"{yes}{self._short_of_votes} Rejecting tells each agent your reason; {no}."

    @property
    def _short_of_votes(self) -> str:
        short = sum(member.line.in_favour + 1 < member.decision.needed for member in self.like)
        if not short:
            return ""
        if short == 1:
            return " One of them needs another vote after yours."
        return f" {'All' if short == len(self.like) else f'{short} of them'} need another vote after yours."

    def not_fresh(self, signed_in_at: datetime | None) -> tuple[int, int] | None:
        """(how many of them want a younger sign-in, how young in minutes); None if this one will do."""
        wanted = []
        for member in self.like:
            try:
                deciders.check_fresh(member.approval.requirement, signed_in_at)
            except NotFresh as error:
                wanted.append(error.minutes)
        return (len(wanted), min(wanted)) if wanted else None


def _text(field: Field | None) -> str | None:
    return None if field is None else field.text


def _number(field: Field) -> Decimal | None:
    value = codec.plain(field.value)
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    # A sum of others would take long to write out, and no person would have meant it.
    return number if number.is_finite() and abs(number.adjusted()) < 30 else None


def _cell(field: Field | None, start: int = 0) -> Cell:
    if field is None:
        return Cell("", "", present=False)
    whole = field.text
    part = whole[start : start + SHOWN]
    number = field.kind in (Kind.INTEGER, Kind.NUMBER, Kind.DECIMAL)
    cut = len(part) < len(whole)
    text = f"{'… ' if start else ''}{part}{' …' if start + SHOWN < len(whole) else ''}"
    return Cell(field.label, text, number=number, json=field.kind == Kind.JSON, cut=cut)


def _first_difference(texts: Sequence[str]) -> int:
    """Where texts are shown from, so that what differs is in sight: 0 unless they begin alike for long."""
    first, last = min(texts), max(texts)  # what these two share at the beginning, all share
    same = next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    if same < SHOWN // 2:
        return 0
    # From the beginning of a word.
    space = texts[0].rfind(" ", 0, same - BEFORE)
    return space + 1 if space >= 0 else same - BEFORE


# --- deciding ------------------------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """What became of one of them."""

    APPROVED = "approved"
    REJECTED = "rejected"
    COUNTED = "counted"
    """The vote counts, and others have to vote as well."""
    AGAIN = "again"
    """It had been decided in just this way by this person: the same form sent again."""
    TAKEN = "taken"
    """Somebody else was first, or it is over."""
    CHANGED = "changed"
    """The page showed another version of it."""
    NOT_ALLOWED = "not_allowed"
    NOT_FRESH = "not_fresh"
    NOT_DONE = "not_done"
    """The database did not let it through, which passes."""


@dataclass(frozen=True)
class Result:
    """What became of one of them, with the sentence for the person who decided."""

    item: uuid.UUID
    outcome: Outcome
    sentence: str

    @property
    def look(self) -> badges.Badge:
        return _LOOKS[self.outcome]


_LOOKS = {
    Outcome.APPROVED: badges.Badge("Approved", "a-approved", badges.OK),
    Outcome.REJECTED: badges.Badge("Rejected", "a-rejected", badges.BAD),
    Outcome.COUNTED: badges.Badge("Vote counted", "a-open", badges.WAIT),
    Outcome.AGAIN: badges.Badge("Decided before", "info", badges.IDLE),
    Outcome.TAKEN: badges.Badge("Already decided", "a-void", badges.IDLE),
    Outcome.CHANGED: badges.Badge("Changed", "a-edited", badges.RETRY),
    Outcome.NOT_ALLOWED: badges.Badge("Not allowed", "lock", badges.BAD),
    Outcome.NOT_FRESH: badges.Badge("Sign in again", "lock", badges.RETRY),
    Outcome.NOT_DONE: badges.Badge("Not done", "s-failed", badges.BAD),
}


def decide_each(
    together: Together, ticks: Sequence[Tick], *, verdict: str, reason: str, signed_in_at: datetime | None
) -> list[Result]:
    """Give each its verdict, in a transaction of its own; what one is refused stops none of the others.

    Raises Invalid, and does nothing, if those that are still open ask different things: no page of ours offers that.
    """
    members = {member.id: member for member in together.members}
    if len({member.question for member in members.values() if member.decision.is_open}) > 1:
        raise Invalid("these do not all ask the same: one verdict answers one question")
    results = []
    for tick in ticks:
        member = members.get(tick.item)
        if member is None:
            results.append(Result(tick.item, Outcome.NOT_ALLOWED, "There is no such request."))
        elif not member.decision.sees_payload:
            results.append(
                Result(tick.item, Outcome.NOT_ALLOWED, "You cannot decide on what you may not see.")
            )
        else:
            results.append(_decide(together.user, tick, verdict, reason, signed_in_at))
    return _with_votes(results, {tick.item: tick.version for tick in ticks})


def _decide(user: User, tick: Tick, verdict: str, reason: str, signed_in_at: datetime | None) -> Result:
    try:
        done = services.decide(
            Actor.of(user),
            tick.item,
            version=tick.version,
            digest=tick.digest,
            verdict=verdict,
            reason=reason,
            signed_in_at=signed_in_at,
        )
    except VerbError as error:
        outcome = next(outcome for kind, outcome in _REFUSALS if isinstance(error, kind))
        return Result(tick.item, outcome, as_sentence(str(error)))
    decided = Outcome.APPROVED if verdict == services.Verdict.APPROVE else Outcome.REJECTED
    return Result(tick.item, decided if done.changed else Outcome.AGAIN, as_sentence(done.sentence))


#: The narrower before the wider.
_REFUSALS: tuple[tuple[type[VerbError], Outcome], ...] = (
    (Stale, Outcome.CHANGED),
    (StateMismatch, Outcome.TAKEN),
    (NotFresh, Outcome.NOT_FRESH),
    (Unavailable, Outcome.NOT_DONE),
    (VerbError, Outcome.NOT_ALLOWED),
)


def _with_votes(results: list[Result], versions: Mapping[uuid.UUID, int]) -> list[Result]:
    """The same, where a vote was given that decided nothing yet. One that was edited since then waits for no second vote."""
    given = [result.item for result in results if result.outcome in (Outcome.APPROVED, Outcome.REJECTED)]
    still_open = dict(
        Approval.objects.filter(pk__in=given, state=Approval.State.OPEN).values_list("pk", "version")
    )
    return [
        replace(result, outcome=Outcome.COUNTED)
        if still_open.get(result.item) == versions[result.item]
        else result
        for result in results
    ]


def summary(results: Sequence[Result]) -> str:
    """What became of all of them: "6 approved. Not decided: 1 was over already, 1 had changed since you looked." """
    found = Counter(result.outcome for result in results)
    done = [f"{found[one]} {_SAID[one]}" for one in _DONE if found[one]]
    left = [f"{found[one]} {_SAID[one]}" for one in Outcome if found[one] and one not in _DONE]
    said = f"{', '.join(done)}." if done else "Nothing was done."
    if not left:
        return said
    return f"{said} {'Not decided: ' if done else ''}{', '.join(left)}."


_DONE = (Outcome.APPROVED, Outcome.REJECTED, Outcome.COUNTED)
_SAID = {
    Outcome.APPROVED: "approved",
    Outcome.REJECTED: "rejected",
    Outcome.COUNTED: "with your vote, waiting for another",
    Outcome.AGAIN: "decided so by you before",
    Outcome.TAKEN: "decided before or over",
    Outcome.CHANGED: "changed since you looked",
    Outcome.NOT_ALLOWED: "not yours to decide",
    Outcome.NOT_FRESH: "waiting for your password",
    Outcome.NOT_DONE: "not let through by the database",
}
