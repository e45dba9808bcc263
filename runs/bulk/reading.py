"""Bulks as people read them: what is true of one in a sentence, its numbers drawn, its runs a page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db.models import Count, Q, QuerySet
from django.db.models.functions import Now
from django.http import QueryDict

from agentops.console.filters import link
from agentops.console.numbers import number_of
from runs import access
from runs.bulk.selection import MEANT
from runs.errors import NotAllowed
from runs.lifecycle import Actor
from runs.models import Bulk, BulkItem, Grant, Run, Worker
from runs.selectors import PAYLOADS
from runs.services.bulk import filter_of, permit_on
from runs.services.bulk_verbs import VERBS
from runs.states import Status

#: Items on a page, and sorts of answers of the dry run that are shown one by one.
ITEMS = 50
REASONS = 12

type Viewer = User


# --- sentences ----------------------------------------------------------------------------------------------------------


def runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number:,} runs"


def are(number: int) -> str:
    return "is" if number == 1 else "are"


def was(number: int) -> str:
    return "was" if number == 1 else "were"


def title(made: Bulk) -> str:
    """“Retry 212 runs”."""
    verb = VERBS[made.verb].infinitive
    number = runs(made.eligible) if made.chosen else "runs"
    return f"{verb[:1].upper()}{verb[1:]} {number}"


def headline(made: Bulk, *, workers: bool) -> str:
    """What is true of it now, and what happens next."""
    all_of_them, left = runs(made.eligible), f"{runs(made.left)} {are(made.left)} left"
    outcome = f"{made.done:,} of {all_of_them} {was(made.done)} {VERBS[made.verb].past}{_ends(made)}"
    match made.status:
        case Bulk.Status.COUNTING:
            told = _counting(made)
        case Bulk.Status.READY:
            told = f"{_eligible(made)} Nothing has been done to any of them."
        case Bulk.Status.CANARY:
            first = runs(min(made.canary, made.eligible))
            told = (
                f"The first {first} go, {made.handled} {are(made.handled)} done; then it waits for a person."
            )
        case Bulk.Status.REVIEW:
            told = f"The first {runs(made.handled)} {are(made.handled)} done{_ends(made)}. It waits for a person to look at them,"
            told += f" and then to go on with the other {made.left:,}, or to stop."
        case Bulk.Status.RUNNING:
            told = (
                f"{made.handled:,} of {all_of_them} {are(made.handled)} done, {made.rate:,} a minute at most:"
            )
            told += f" {duration(made.left, made.rate)} left."
        case Bulk.Status.PAUSED:
            told = f"{made.said}. {left}; nothing happens until somebody resumes it."
        case Bulk.Status.STOPPED:
            told = f"{made.said}. {outcome}; the rest is as it was."
        case _:
            told = f"{made.said}: there was nothing to do." if made.said else f"All is done: {outcome}."
    if made.status in (Bulk.Status.CANARY, Bulk.Status.RUNNING) and made.said:
        told += f" {made.said}."
    if not workers and made.status in (Bulk.Status.COUNTING, Bulk.Status.CANARY, Bulk.Status.RUNNING):
        told += " No live worker: it goes on when one starts."
    return told


def _counting(made: Bulk) -> str:
    if not made.chosen:
        return f"The runs are being chosen: {made.total:,} so far."
    return f"{runs(made.total)} {are(made.total)} chosen; {made.looked:,} of {made.to_look:,} are looked at."


def _eligible(made: Bulk) -> str:
    past = VERBS[made.verb].past
    if made.to_look < made.total:
        fine = made.looked - made.out
        return (
            f"{runs(made.total)} are chosen. {made.looked:,} of them were looked at, spread evenly over all:"
            f" {fine:,} can be {past} ({fine / made.looked:.0%}). The others are looked at when their turn comes."
        )
    if not made.out:
        return f"{'The run' if made.total == 1 else f'All {made.total:,} runs'} can be {past}."
    return f"{made.left:,} of {runs(made.total)} can be {past}, {made.out:,} cannot."


def _ends(made: Bulk) -> str:
    """What became of them, after a colon."""
    said = [
        f"{number:,} {word}"
        for number, word in (
            (made.completed, "completed"),
            (made.failed, "failed again" if made.verb == Bulk.Verb.RETRY else "failed"),
            (made.cancelled, "cancelled"),
            (made.deleted, "deleted since"),
            (made.under_way, "under way"),
            (made.refused, "refused"),
            (made.skipped, "skipped"),
        )
        if number and not (made.verb == Bulk.Verb.CANCEL and word == "cancelled" and number == made.done)
    ]
    return f": {', '.join(said)}" if said else ""


def duration(number: int, rate: int) -> str:
    """How long so many runs take, in words."""
    minutes = number / rate
    if minutes < 1:
        return "less than a minute"
    if minutes < 90:
        return f"about {minutes:.0f} {'minute' if round(minutes) == 1 else 'minutes'}"
    return f"about {minutes / 60:.0f} hours"


# --- numbers, drawn -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """A part of the bar: so many runs, where it begins and how long it is, in per cent."""

    label: str
    tone: str
    number: int
    x: str
    width: str


def shares(made: Bulk) -> list[Share]:
    """What became of its runs, as parts of a bar over all of them; those that are none are left out."""
    if made.status in (Bulk.Status.COUNTING, Bulk.Status.READY):
        fine = made.looked - made.out
        return _bar(
            made.looked,
            [("eligible", "is-run", fine), ("not eligible", "is-idle", made.out)],
        )
    again = "failed again" if made.verb == Bulk.Verb.RETRY else "failed"
    return _bar(
        made.eligible,
        [
            ("completed", "is-ok", made.completed),
            ("cancelled", "is-ok" if made.verb == Bulk.Verb.CANCEL else "is-idle", made.cancelled),
            (again, "is-bad", made.failed),
            ("under way", "is-run", made.under_way + made.deleted),
            ("refused", "is-att", made.refused),
            ("skipped", "is-retry", made.skipped),
            ("left", "is-idle", made.left),
        ],
    )


def _bar(total: int, parts: Sequence[tuple[str, str, int]]) -> list[Share]:
    drawn, x = [], 0.0
    for label, tone, number in parts:
        if number:
            width = 100 * number / total
            drawn.append(Share(label, tone, number, f"{x:.2f}%", f"{max(width - 0.3, 0.2):.2f}%"))
            x += width
    return drawn


@dataclass(frozen=True)
class Reason:
    """One sort of answer of the dry run; `link` leads to its runs."""

    number: int
    sentence: str
    applies: bool
    link: str


def reasons(made: Bulk, query: QueryDict) -> list[Reason]:
    """What the dry run said, those to which the verb applies first, most frequent first. One query (`bulk_item_by_look`)."""
    rows = (
        BulkItem.objects.filter(bulk=made)
        .exclude(look="")
        .values("state", "look")
        .annotate(number=Count("place"))
        .order_by("-state", "-number", "look")[:REASONS]
    )
    return [
        Reason(
            row["number"],
            row["look"],
            row["state"] != BulkItem.State.OUT,
            link(query, look=row["look"], show=None),
        )
        for row in rows
    ]


# --- who sees it --------------------------------------------------------------------------------------------------------


def visible(user: access.Person, rows: QuerySet[Bulk]) -> QuerySet[Bulk]:
    """Those of the bulks that a person may know of: of who sees only a part of the runs, their own and those of that part."""
    if access.condition(user) is None:
        return rows
    found = Q(started_by=user.pk) | Q(acts_for=user.pk)
    for grant in access.scopes(user, "runs.view_run"):
        if grant.scope == Grant.Scope.WORKFLOW:
            found |= Q(filter__workflow=grant.name)
        else:
            found |= Q(filter__subject__startswith=grant.name)
    return rows.filter(found)


# --- its runs -----------------------------------------------------------------------------------------------------------

#: What the table can be narrowed to: word, and the columns that say so.
SHOWN: dict[str, tuple[str, dict[str, str]]] = {
    "waiting": ("Left", {"state": BulkItem.State.WAITING}),
    "under_way": ("Under way", {"state": BulkItem.State.DONE, "ended": ""}),
    "completed": ("Completed", {"state": BulkItem.State.DONE, "ended": BulkItem.Ended.COMPLETED}),
    "failed": ("Failed again", {"state": BulkItem.State.DONE, "ended": BulkItem.Ended.FAILED}),
    "cancelled": ("Cancelled", {"state": BulkItem.State.DONE, "ended": BulkItem.Ended.CANCELLED}),
    "deleted": ("Deleted since", {"state": BulkItem.State.DONE, "ended": BulkItem.Ended.DELETED}),
    "refused": ("Refused", {"state": BulkItem.State.REFUSED}),
    "skipped": ("Skipped", {"state": BulkItem.State.SKIPPED}),
    "out": ("Not eligible", {"state": BulkItem.State.OUT}),
}


@dataclass(frozen=True)
class Segment:
    label: str
    number: int
    href: str
    current: bool


def segments(made: Bulk, query: QueryDict) -> list[Segment]:
    """Links that narrow the table, with how many there are; those with none are left out."""
    numbers = {"waiting": made.left} | {
        name: getattr(made, name) for name in SHOWN if name not in ("waiting",)
    }
    now = query.get("show", "")
    chosen = [
        Segment("All", made.total, link(query, show=None, look=None), now == "" and not query.get("look"))
    ]
    for name, (label, _) in SHOWN.items():
        if numbers[name] or now == name:
            href = link(query, show=name, look=None)
            chosen.append(Segment(label, numbers[name], href, now == name))
    return chosen


@dataclass(frozen=True)
class Line:
    """One item and its run as it is now; None where it is gone, or the viewer may not see it."""

    item: BulkItem
    run: Run | None
    seen: bool
    """The viewer may see the run, or there is none any more."""


@dataclass(frozen=True)
class Items:
    """A page of items in the order of their places, and links to its neighbours ("" where there is none)."""

    lines: Sequence[Line]
    earlier: str
    later: str


def items(made: Bulk, query: QueryDict, viewer: Viewer) -> Items:
    """The items that the address asks for. Three queries, by `bulk_item_by_state`, `bulk_item_by_end` or the primary key."""
    found: QuerySet[BulkItem] = BulkItem.objects.filter(bulk=made)
    if (shown := query.get("show", "")) in SHOWN:
        found = found.filter(**SHOWN[shown][1])
    if look := query.get("look", "").replace("\x00", ""):
        found = found.filter(look=look)
    before, after = number_of(query.get("before")), number_of(query.get("after"))
    if before is not None:
        rows = list(found.filter(place__lt=before).order_by("-place")[: ITEMS + 1])
        more_earlier, more_later = len(rows) > ITEMS, True
        rows = rows[:ITEMS][::-1]
    else:
        narrowed = found if after is None else found.filter(place__gt=after)
        rows = list(narrowed.order_by("place")[: ITEMS + 1])
        more_earlier, more_later = after is not None, len(rows) > ITEMS
        rows = rows[:ITEMS]
    return Items(
        _lines(rows, viewer),
        link(query, before=str(rows[0].place)) if rows and more_earlier else "",
        link(query, after=str(rows[-1].place)) if rows and more_later else "",
    )


def _lines(rows: Sequence[BulkItem], viewer: Viewer) -> list[Line]:
    those = Run.objects.defer(*PAYLOADS).filter(pk__in=[row.run_id for row in rows])
    seen = access.visible(viewer, those).in_bulk()
    # Where the viewer does not see all of them: is it gone, or not theirs to see?
    there = set(those.values_list("pk", flat=True)) if len(seen) < len(rows) else set(seen)
    return [Line(row, seen.get(row.run_id), row.run_id in seen or row.run_id not in there) for row in rows]


# --- around it ----------------------------------------------------------------------------------------------------------


def workers_live() -> bool:
    """Whether a worker is there that would take a turn. One query (`worker_open`)."""
    return Worker.objects.filter(closed_at=None, draining=False, beat_until__gt=Now()).exists()


def chosen_by(made: Bulk) -> list[tuple[str, str]]:
    """(label, value) of what its runs were chosen by, the statuses always."""
    words = filter_of(made).words()
    if made.priority is not None:
        words = [("New priority", str(made.priority)), *words]
    if any(label == "Status" for label, _ in words):
        return words
    return [("Status", " or ".join(Status(one).label.lower() for one in MEANT[made.verb])), *words]


def may_act(viewer: Viewer, made: Bulk) -> bool:
    """Whether the verbs of this bulk would let the viewer pass: the same question as theirs."""
    try:
        permit_on(Actor.of(viewer), made)
    except NotAllowed:
        return False
    return True
