"""The list at the left of the inbox: what fits the filters of the address, under headings by how soon it is due."""

import uuid
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from urllib.parse import urlencode

from django.contrib.auth.models import AbstractBaseUser, PermissionsMixin
from django.http import QueryDict
from django.urls import reverse

from agentops.console import badges, paging, polling
from approvals import selectors
from approvals.inbox import worklist
from approvals.inbox.worklist import Key, Line, Wanted
from approvals.models import Approval, ItemKind
from runs import access, content
from runs.selectors import COUNT_LIMIT

#: Rows of a page of the list; no more than can be decided together.
SIZE = 50
#: So many sorts of like requests are offered above the list to be decided together; the rest from the page of any of them.
SORTS = 3

SHOWN = ("mine", "others", "decided")
CLAIMS = {
    "": "Anybody’s",
    "me": "Claimed by me",
    "nobody": "Claimed by nobody",
    "others": "Claimed by others",
}

#: What is due within this long stands under this heading.
SOON: tuple[tuple[timedelta, str], ...] = (
    (timedelta(), "Past target"),
    (timedelta(hours=2), "Due within two hours"),
    (timedelta(hours=24), "Due within a day"),
)
LATER = "Later"

_LOOKS = {
    ItemKind.DOUBT: badges.Badge("In doubt", "o-doubt", badges.ATTENTION),
    ItemKind.STUCK: badges.Badge("Stuck", "s-attention", badges.ATTENTION),
    ItemKind.DEAD: badges.Badge("Dead letter", "s-failed", badges.BAD),
}

_DEAD = {
    "exhausted": "{} gave up after its last try",
    "crashed": "{} killed its worker too often",
    "not_retryable": "{} failed, and trying again would not help",
    "deadline": "{} ran out of time",
}
_STUCK = {
    "diverged": "{} no longer does what it recorded",
    "compensation": "Undoing what {} did failed",
}


def read(query: QueryDict) -> Wanted:
    """The filters in an address; what is unknown there is left out."""
    show, kind, claim = query.get("show", ""), query.get("kind", ""), query.get("claim", "")
    return Wanted(
        show=show if show in SHOWN else "mine",
        kind=kind if kind in ItemKind.values else "",
        claim=claim if claim in CLAIMS else "",
        snoozed=query.get("snoozed") == "yes",
        group=query.get("group", "")[:150].replace("\x00", ""),
    )


def address(wanted: Wanted, **more: str) -> str:
    """The filters as the end of an address: "?show=mine&kind=doubt"."""
    parts = {
        "show": wanted.show,
        "kind": wanted.kind,
        "claim": wanted.claim,
        "snoozed": "yes" if wanted.snoozed else "",
        "group": wanted.group,
    } | more
    return "?" + urlencode({name: value for name, value in parts.items() if value})


def title_of(line: Line) -> str:
    """What it is, in one line. Text of agents and providers: show it with `|visible`."""
    match line.kind:
        case ItemKind.APPROVAL:
            return title_of_approval(line.approval) if line.approval else ""
        case ItemKind.DOUBT:
            return f"Did {line.doubtful or 'the effect'} happen?"
        case ItemKind.STUCK:
            return _STUCK.get(line.attention_kind, "{} needs a person").format(line.workflow)
    return _DEAD.get(line.failure_kind, "{} failed").format(line.workflow)


def as_sentence(text: str) -> str:
    """A refusal as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def title_of_approval(approval: Approval) -> str:
    """What is asked; for who may not see that, of which tool or question."""
    return f"Approval of {approval.name}" if content.is_hidden(approval) else approval.title


def badge_of(approval: Approval) -> str:
    """Which line of the table of badges it is."""
    match approval.state:
        case Approval.State.OPEN if approval.asked:
            return "asked_back"
        case Approval.State.OPEN if approval.requirement.get("escalated"):
            return "escalated"
        case Approval.State.OPEN if approval.reminded_at is not None:
            return "reminded"
        case Approval.State.APPROVED if approval.version > 1:
            return "approved_edited"
    return str(approval.state)


def url_of(kind: ItemKind, item: uuid.UUID) -> str:
    """The page of an item."""
    if kind == ItemKind.APPROVAL:
        return reverse("approvals:approval", args=[item])
    return reverse("approvals:item", args=[str(kind), item])


def together_url(ids: Iterable[uuid.UUID]) -> str:
    """The page on which these approvals are decided together."""
    return f"{reverse('approvals:together')}?{urlencode([('id', str(one)) for one in ids])}"


@dataclass(frozen=True)
class Entry:
    """A line of the list. `mark` says why it is not mine to act on."""

    line: Line
    user: AbstractBaseUser

    @property
    def id(self) -> uuid.UUID:
        return self.line.item

    @property
    def url(self) -> str:
        return url_of(self.line.kind, self.line.item)

    @property
    def title(self) -> str:
        return title_of(self.line)

    @property
    def about(self) -> str:
        return self.line.subject or self.line.workflow

    @property
    def is_open(self) -> bool:
        return worklist.waits(self.line)

    @cached_property
    def look(self) -> badges.Badge:
        if self.line.approval is None:
            return _LOOKS[self.line.kind]
        return badges.badge("approval", badge_of(self.line.approval))

    @property
    def word(self) -> str:
        """What kind of thing it is, and for an approval how it stands."""
        line = self.line
        if line.approval is None or line.approval.state != Approval.State.OPEN:
            return self.look.word
        if line.approval.asked:
            return "Agent answered" if line.answered else "Asked back"
        return self.look.word

    @property
    def votes(self) -> str:
        """ "1 of 2" while it is open."""
        approval = self.line.approval
        if approval is None or approval.state != Approval.State.OPEN:
            return ""
        return f"{self.line.in_favour} of {approval.requirement['votes']}"

    @property
    def by(self) -> str:
        """Who decided, if a person did."""
        approval = self.line.approval
        if approval is None or approval.state == Approval.State.OPEN or approval.decided_by == "clock":
            return ""
        return approval.decided_by

    @property
    def blocks(self) -> str:
        """What waits behind the run: the run that started it, runs that it started; "" for nothing."""
        line = self.line
        if line.kind == ItemKind.DEAD:
            return ""
        behind = [f"blocks {line.parent}"] if line.parent_id else []
        if line.children:
            number = f"{COUNT_LIMIT:,}+" if line.children > COUNT_LIMIT else f"{line.children:,}"
            behind.append(f"{number} child run{'s' if line.children != 1 else ''}")
        return ", ".join(behind)

    @property
    def mine(self) -> bool:
        """Whether I have claimed it."""
        return bool(self.line.claimed_by_id == self.user.pk)

    @cached_property
    def mark(self) -> str:
        approval = self.line.approval
        if approval is None or approval.state != Approval.State.OPEN:
            return ""
        if self.line.voted_version == approval.version:
            return "you have voted"
        if not access.may(self.user, "approvals.decide_approval", self.line.run):
            return f"{' or '.join(approval.requirement['groups'])} decide"
        return selectors.why_not_decide(self.user, approval)

    @property
    def can_be_ticked(self) -> bool:
        """Whether it may be decided together with others like it."""
        approval = self.line.approval
        return approval is not None and approval.state == Approval.State.OPEN and not self.mark

    @property
    def question(self) -> tuple[str, str, str]:
        """What is asked: workflow, step, and name of the tool. Those with the same are like one another."""
        return self.line.workflow, self.line.step, self.line.approval.name if self.line.approval else ""

    @property
    def shown(self) -> tuple[object, ...]:
        """Everything that a person sees of it, for the tag of the list."""
        line = self.line
        return (
            line.kind,
            line.item,
            self.title,
            self.word,
            self.votes,
            self.by,
            self.blocks,
            self.mark,
            line.claimed_by,
            line.snoozed_until,
            line.unread,
            line.target,
        )


@dataclass(frozen=True)
class Group:
    title: str
    count: int
    """How many stand under this heading on all pages."""
    entries: list[Entry]


@dataclass(frozen=True)
class Alike:
    """Requests on a page of the list that ask the same: the page on which all of them are ticked is one link away."""

    entries: list[Entry]
    whole: bool
    """Whether what they ask is named with its workflow and step, because others have a tool of this name, too."""

    @property
    def name(self) -> str:
        workflow, step, name = self.entries[0].question
        return f"{name} in {workflow}, step {step}" if self.whole else name

    @property
    def url(self) -> str:
        return together_url(one.id for one in self.entries)


@dataclass(frozen=True)
class Segment:
    label: str
    count: int
    url: str
    current: bool


class Listing:
    """What fits the filters of an address, one page of it as rows; `selected` is what is open beside it.

    `now` may come later, but before anything is shown.
    """

    def __init__(
        self,
        user: AbstractBaseUser,
        query: QueryDict,
        now: datetime | None = None,
        selected: Key | None = None,
    ) -> None:
        self.user, self.now, self.selected = user, now, selected
        self.wanted = read(query)
        self.selected_line: Line | None = None
        self.pages: paging.Page[Approval] | None = None
        self.keys: list[Key] = []
        self.counts: Counter[str] = Counter()
        self.start, self.end = 0, 0
        if self.wanted.show == "decided":
            self.pages = paging.page(selectors.decided(user), query)
            which = [(ItemKind.APPROVAL, row.pk) for row in self.pages.rows]
        else:
            # Of all kinds, so that each segment says how many there are.
            every = worklist.keys(user, _any_kind(self.wanted))
            self.counts = Counter(str(key.kind) for key in every)
            self.keys = [key for key in every if self.wanted.kind in ("", key.kind)]
            self.start, self.end = self._page(query)
            which = [(key.kind, key.item) for key in self.keys[self.start : self.end]]
        if selected is not None and (selected.kind, selected.item) not in which:
            which.append((selected.kind, selected.item))
            self.entries = self._entries(which)
            # It is open beside a list on which it does not stand (any more).
            self.entries = [entry for entry in self.entries if entry.id != selected.item]
        else:
            self.entries = self._entries(which)

    def _entries(self, which: list[tuple[ItemKind, uuid.UUID]]) -> list[Entry]:
        found = worklist.lines(self.user, which)
        if self.selected is not None:
            here = (self.selected.kind, self.selected.item)
            self.selected_line = next((line for line in found if (line.kind, line.item) == here), None)
        return [Entry(line, self.user) for line in found]

    # --- what is on it ---

    @property
    def show(self) -> str:
        return self.wanted.show

    @cached_property
    def alike(self) -> list[Entry]:
        """Those on this page of the list that ask the same as the selected one, with it; none where it is the only one."""
        return next(
            (
                found
                for found in self._by_question
                if any(self.selected is not None and one.id == self.selected.item for one in found)
            ),
            [],
        )

    @property
    def alike_url(self) -> str:
        """Where they are decided together."""
        return together_url(one.id for one in self.alike)

    @cached_property
    def _by_question(self) -> list[list[Entry]]:
        """Those on this page that can be decided together, by what they ask: most of them first, then whatever is due first."""
        found: dict[tuple[str, str, str], list[Entry]] = {}
        for entry in self.entries:
            if entry.can_be_ticked:
                found.setdefault(entry.question, []).append(entry)
        return sorted((some for some in found.values() if len(some) > 1), key=len, reverse=True)

    @property
    def alike_here(self) -> list[Alike]:
        """The sorts of which there are most on this page, for the links above the list."""
        names = Counter(some[0].question[2] for some in self._by_question)
        return [Alike(some, names[some[0].question[2]] > 1) for some in self._by_question[:SORTS]]

    @cached_property
    def query(self) -> str:
        return address(self.wanted)

    @property
    def count(self) -> int:
        return sum(min(number, COUNT_LIMIT) for number in self._narrowed.values())

    @property
    def more(self) -> bool:
        """There is more than is counted."""
        return any(number > COUNT_LIMIT for number in self._narrowed.values())

    @property
    def count_text(self) -> str:
        """ "23", "1,000+"; "" for nothing, and for what is not waiting."""
        return f"{self.count:,}{'+' if self.more else ''}" if self.count else ""

    @property
    def _narrowed(self) -> dict[str, int]:
        return {kind: number for kind, number in self.counts.items() if self.wanted.kind in ("", kind)}

    @cached_property
    def groups(self) -> list[Group]:
        if self.pages is not None:
            return [Group("Decided", len(self.entries), self.entries)] if self.entries else []
        assert self.now is not None, "it is told before anything is shown"
        totals = Counter(_urgency(key.due, self.now) for key in self.keys)
        groups: dict[str, list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(_urgency(entry.line.target, self.now), []).append(entry)
        return [Group(title, totals[title], found) for title, found in groups.items()]

    @property
    def segments(self) -> list[Segment]:
        """All, and each kind of which there is something or which is chosen."""
        labels = {
            "": "All",
            ItemKind.APPROVAL: "Approvals",
            ItemKind.DOUBT: "In doubt",
            ItemKind.STUCK: "Stuck",
            ItemKind.DEAD: "Dead",
        }
        return [
            Segment(
                label,
                self.counts[kind] if kind else 0,
                address(_with(self.wanted, kind=kind)),
                self.wanted.kind == kind,
            )
            for kind, label in labels.items()
            if not kind or self.counts[kind] or self.wanted.kind == kind
        ]

    @property
    def shows(self) -> list[tuple[str, str, bool]]:
        """(label, address, chosen) of whose items are shown."""
        labels = (("mine", "Mine to act on"), ("others", "Others’"), ("decided", "Decided"))
        return [
            (label, address(_with(self.wanted, show=show, kind="")), self.wanted.show == show)
            for show, label in labels
        ]

    @property
    def claims(self) -> list[tuple[str, str, bool]]:
        return [
            (label, address(_with(self.wanted, claim=claim)), self.wanted.claim == claim)
            for claim, label in CLAIMS.items()
        ]

    @property
    def snoozes(self) -> list[tuple[str, str, bool]]:
        return [
            (label, address(_with(self.wanted, snoozed=snoozed)), self.wanted.snoozed == snoozed)
            for snoozed, label in ((False, "Awake"), (True, "Snoozed"))
        ]

    @property
    def group_choices(self) -> list[tuple[str, str, bool]]:
        assert isinstance(self.user, PermissionsMixin)
        names = ["", *sorted({group.name for group in self.user.groups.all()} | {self.wanted.group} - {""})]
        return [
            (name or "Any group", address(_with(self.wanted, group=name)), self.wanted.group == name)
            for name in names
        ]

    @property
    def narrowed(self) -> list[tuple[str, str]]:
        """(what narrows the list, the address without it): what a person would otherwise overlook."""
        wanted, found = self.wanted, []
        if wanted.show != "mine":
            word = "Others’" if wanted.show == "others" else "Decided"
            found.append((word, address(_with(wanted, show="mine"))))
        if wanted.claim:
            found.append((CLAIMS[wanted.claim], address(_with(wanted, claim=""))))
        if wanted.snoozed:
            found.append(("Snoozed", address(_with(wanted, snoozed=False))))
        if wanted.group:
            found.append((f"{wanted.group} decide", address(_with(wanted, group=""))))
        return found

    @cached_property
    def tag(self) -> str:
        return polling.tag(
            self.query,
            [entry.shown for entry in self.entries],
            [(group.title, group.count) for group in self.groups],
            sorted(self.counts.items()),
            self.selected and self.selected.item,
            self.newer,
            self.older,
        )

    # --- where one is ---

    @property
    def at(self) -> int | None:
        """Place of what is selected, from 0; None where it is not on the list."""
        if self.selected is None:
            return None
        place = bisect_left(self.keys, self.selected)
        return place if place < len(self.keys) and self.keys[place].item == self.selected.item else None

    @property
    def position(self) -> str:
        """ "3 of 23"."""
        return "" if self.at is None else f"{self.at + 1:,} of {self.count_text}"

    @property
    def previous(self) -> str:
        """Address of the item before the selected one; "" for none."""
        return self._beside(-1)

    @property
    def next(self) -> str:
        """Address of the item after the selected one, or of the one that took its place."""
        return self._beside(1)

    def _beside(self, offset: int) -> str:
        if self.pages is not None:
            places = [Key(entry.line.target, entry.line.kind, entry.id) for entry in self.entries]
            here = next(
                (n for n, k in enumerate(places) if self.selected and k.item == self.selected.item), None
            )
            wanted = None if here is None else here + offset
        else:
            places = self.keys
            if self.selected is None:
                wanted = 0 if offset > 0 else None
            elif self.at is not None:
                wanted = self.at + offset
            else:
                wanted = bisect_left(places, self.selected) + (0 if offset > 0 else -1)
                # Decided, the last one: there may still be something before it.
                if offset > 0 and wanted >= len(places) and places:
                    wanted = 0
        if wanted is None or not 0 <= wanted < len(places):
            return ""
        return url_of(places[wanted].kind, places[wanted].item) + self.query

    # --- pages ---

    def _page(self, query: QueryDict) -> tuple[int, int]:
        """First row and the one after the last: as the address says, else where the selected item stands."""
        after, before = _cursor(query.get("after")), _cursor(query.get("before"))
        if before is not None:
            end = bisect_left(self.keys, before)
            start = max(0, end - SIZE)
        elif after is not None:
            start = bisect_right(self.keys, after)
        else:
            start = (self.at or 0) // SIZE * SIZE
        return start, min(start + SIZE, len(self.keys))

    @property
    def newer(self) -> str:
        """Address of the rows before these."""
        if self.pages is not None:
            return self.pages.newer
        return (
            address(self.wanted, before=_written(self.keys[self.start]))
            if 0 < self.start < len(self.keys)
            else ""
        )

    @property
    def older(self) -> str:
        if self.pages is not None:
            return self.pages.older
        last = self.end - 1
        return address(self.wanted, after=_written(self.keys[last])) if 0 <= last < len(self.keys) - 1 else ""


def _urgency(due: datetime, now: datetime) -> str:
    return next((title for within, title in SOON if due - now <= within), LATER)


def _with(wanted: Wanted, **changes: str | bool) -> Wanted:
    parts = {name: getattr(wanted, name) for name in ("show", "kind", "claim", "snoozed", "group")}
    return Wanted(**(parts | changes))


def _any_kind(wanted: Wanted) -> Wanted:
    return _with(wanted, kind="")


def key_of(line: Line) -> Key:
    """Where an item stands, or stood, in the list."""
    return Key(line.target, line.kind, line.item)


def key_of_approval(approval: Approval) -> Key:
    """The same of an approval."""
    target = approval.expires_at or approval.opened_at + worklist.TARGETS[ItemKind.APPROVAL]
    return Key(target, ItemKind.APPROVAL, approval.pk)


_STAMP = "%Y%m%dT%H%M%S%f"


def _written(key: Key) -> str:
    return f"{key.due.astimezone(UTC):{_STAMP}}.{key.kind}.{key.item}"


def _cursor(text: str | None) -> Key | None:
    """The key that `_written` wrote; None for anything else, which asks for the first page."""
    parts: Sequence[str] = (text or "").split(".")
    if len(parts) != 3 or parts[1] not in ItemKind.values:
        return None
    try:
        due = datetime.strptime(parts[0], _STAMP).replace(tzinfo=UTC)
        return Key(due, ItemKind(parts[1]), uuid.UUID(parts[2]))
    except ValueError:
        return None
