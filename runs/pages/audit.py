"""What the audit pages read: everything that people did and policies did in their place, newest first.

Two tables are merged in order of time: what was done to runs (`runs_event`, those of `runs.models.audit.ACTED`) and what was
changed outside them (`runs_audit_event`). Each is looked through by one index, the newest first, up to a number of rows: where
a filter can only be answered by looking at a row's run, a page says how far it has looked instead of looking on for minutes.

Indexes: `event_acted`, `event_acted_by` (a person), `event_acted_kind` (a verb), `event_acted_on_run` (a run, or the few of a
workflow or subject); `audit_by_time`, `audit_by_actor`, `audit_by_kind`, `audit_by_target` (what it was about).
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.db import connection
from django.urls import reverse

from runs import access, redaction
from runs.models import AuditEvent, Event, Run
from runs.pages import audit_words as words
from runs.pages.audit_search import CHANGE, NAMES_SQL, Chosen, Place, Query, Search
from runs.pages.audit_words import Sentence
from runs.selectors import COUNT_LIMIT

#: Entries on one page.
SIZE = 50
#: Rows that a page, or a count, looks through at most where a filter is answered by a row's run.
LOOKS = 2000


@dataclass(frozen=True)
class Entry:
    """One thing that somebody did."""

    place: Place
    kind: str
    actor: str
    actor_id: int | None
    reason: str
    sentence: Sentence
    details: tuple[tuple[str, str], ...] = ()
    """What became of what: (“retry limit”, “5 attempts to 8 attempts”)."""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """What an event refers to; empty for whom it is not to be shown."""
    hidden: bool = False
    """There is more, of the content of the run, which this person may not see."""
    run: Run | None = None
    """The run that it is about, with its workflow and subject alone."""
    target: str = ""

    @property
    def at(self) -> datetime:
        return self.place.at

    @property
    def url(self) -> str:
        """Its own page."""
        if self.place.run_id is not None:
            return reverse("audit:event", args=[self.place.run_id, self.place.seq])
        return reverse("audit:change", args=[self.place.event_id])

    @property
    def said(self) -> str:
        """The sentence as text, without the name."""
        return words.plain(self.sentence)

    @property
    def name(self) -> str:
        """What the filter calls it."""
        return words.name_of(self.kind)


@dataclass(frozen=True)
class Listed:
    """A page of entries, newest first."""

    entries: list[Entry]
    following: Place | None
    """Where the next page, of older ones, begins; None if there is none."""
    looked_to: datetime | None
    """Looked through up to here only, since what was looked for is rare; None where the page is full, or was the last."""
    newer: Place | None = None
    """What is newer than this is on the page before; None if there is none."""


@dataclass(frozen=True)
class Counted:
    """How many there are: `number` is no more than COUNT_LIMIT + 1; `more`: so many at least, as far as was looked."""

    number: int
    more: bool
    names: tuple[str, ...] = ()
    """People and others who did something, by name; the first NAMES."""


# --- pages ---------------------------------------------------------------------------------------------------------------


def page(user: access.Person, chosen: Chosen, before: Place | None = None, *, size: int = SIZE) -> Listed:
    """A page of what matches and the person may see. Two queries, and one more for a workflow or subject."""
    return _page(user, Search(user, chosen), before, size, LOOKS)


def page_after(user: access.Person, chosen: Chosen, after: Place, *, size: int = SIZE) -> Listed:
    """The page before the one that begins behind this place: what is newer, newest first. Empty where nothing was found."""
    entries, end = _merged(user, Search(user, chosen, forward=True), after, size, LOOKS)
    entries = entries[::-1]
    return Listed(entries, entries[-1].place if entries else None, None, end)


def count(user: access.Person, chosen: Chosen) -> Counted:
    """How many match, and who did something at all. One query, and one more for a workflow or subject."""
    return _count(Search(user, chosen))


def page_and_count(
    user: access.Person, chosen: Chosen, before: Place | None = None, *, after: Place | None = None
) -> tuple[Listed, Counted]:
    """Both, in three queries, and one more for a workflow or subject. `after`: the page of what is newer than this place."""
    search = Search(user, chosen)
    counted = _count(search)
    if after is not None:
        listed = page_after(user, chosen, after, size=SIZE)
        if listed.entries:
            return listed, counted
    return _page(user, search, before, SIZE, LOOKS), counted


def _count(search: Search) -> Counted:
    changes = search.changes(None, COUNT_LIMIT, LOOKS)
    parameters, columns = changes.parameters, [changes.counting]
    if search.has_events:
        events = search.events(None, COUNT_LIMIT, LOOKS)
        parameters |= events.parameters
        columns.append(events.counting)
    else:
        columns.append("ARRAY[0, 0]")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(columns)}, {NAMES_SQL}", parameters)
        (outside, looked), (inside, looked_too), names = cursor.fetchone()
    number = outside + inside
    more = (looked >= LOOKS or looked_too >= LOOKS) and number <= COUNT_LIMIT
    return Counted(min(number, COUNT_LIMIT + 1), more, tuple(names))


def batches(reader: Callable[[], access.Person], chosen: Chosen, *, size: int) -> Iterator[list[Entry]]:
    """Everything that matches, newest first, so many at a time; each is read by itself, so that nothing is held in between.

    `reader` is asked before each who reads, as they are then; what it raises ends it.
    """
    before = None
    while True:
        user = reader()
        listed = _page(user, Search(user, chosen), before, size, max(size, LOOKS))
        if listed.entries:
            yield listed.entries
        if listed.following is None:
            return
        before = listed.following


def entry_of_event(user: access.Person, run: Run, seq: int) -> Entry | None:
    """One event of a run that the person may see, whoever wrote it."""
    found = Event.objects.filter(run_id=run.pk, seq=seq).first()
    if found is None:
        return None
    row = (
        found.at,
        found.run_id,
        found.seq,
        found.kind,
        found.actor_id,
        found.actor,
        found.reason,
        found.data,
    )
    return _entry_of_event(user, (*row, run.workflow, run.subject))


def entry_of_change(user: access.Person, event_id: uuid.UUID) -> Entry | None:
    """One audit event, if the person may see it."""
    search = Search(user, Chosen())
    parameters: dict[str, Any] = {"id": event_id}
    seen = search.changes_seen(parameters)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {CHANGE} FROM runs_audit_event a WHERE a.id = %(id)s{seen}", parameters)  # noqa: S608 (constants)
        row = cursor.fetchone()
    return None if row is None else _entry_of_change(user, row)


def _page(user: access.Person, search: Search, before: Place | None, size: int, looks: int) -> Listed:
    entries, end = _merged(user, search, before, size, looks)
    whole = len(entries) == size and end == entries[-1].place
    newer = (entries[0].place if entries else before) if before is not None else None
    return Listed(entries, end, end.at if end and not whole else None, newer)


def _merged(
    user: access.Person, search: Search, place: Place | None, size: int, looks: int
) -> tuple[list[Entry], Place | None]:
    """Both tables merged, in the order of the search; where one was not looked through to its end, only up to where it was.

    With the place from which to go on; None: there is no more.
    """
    parts = [_read(search.changes(place, size, looks), partial(_entry_of_change, user))]
    if search.has_events:
        parts.append(_read(search.events(place, size, looks), partial(_entry_of_event, user)))
    nearest = min if search.forward else max
    entries = sorted(
        (one for found, _ in parts for one in found),
        key=lambda one: one.place.order,
        reverse=not search.forward,
    )
    # What lies behind the point up to which one of the tables was looked through may have others before it.
    horizon = nearest((to for _, to in parts if to is not None), key=lambda one: one.order, default=None)
    if horizon is not None:
        entries = [one for one in entries if nearest(one.place.order, horizon.order) == one.place.order]
    if len(entries) > size:
        return entries[:size], entries[size - 1].place
    return entries, horizon


def _read(query: Query, made: Callable[[Sequence[Any]], Entry]) -> tuple[list[Entry], Place | None]:
    """Entries, and down to where the table was looked through; None: to its end, or there are more than a page shows."""
    with connection.cursor() as cursor:
        cursor.execute(query.sql, query.parameters)
        rows = cursor.fetchall()
    if not rows:
        return [], None
    found = [made(row[4:-1]) for row in rows if row[4] is not None]
    whole = rows[0][0] < query.looks or len(found) > query.size
    return found, None if whole else query.place(rows[0][1:4])


# --- rows to entries -----------------------------------------------------------------------------------------------------

#: Changes that are about what is in runs: what was said of them is content, as it is in the events of a run.
_ABOUT_RUNS = ("failure_", "request_")


def _entry_of_event(user: access.Person, row: Sequence[Any]) -> Entry:
    at, run_id, seq, kind, actor_id, actor, reason, data, workflow, subject = row
    run = Run(id=run_id, workflow=workflow, subject=subject)
    content = access.may_see_payloads(user, run)
    data = _shown(data) or {}
    return Entry(
        place=Place(at, run_id=run_id, seq=seq),
        kind=kind,
        actor=actor,
        actor_id=actor_id,
        reason=reason if content else "",
        sentence=words.of_run(kind, data, run_id, workflow, subject, content=content),
        data=data if content else {},
        hidden=not content and bool(data or reason),
        run=run,
        target=f"run {run_id}",
    )


def _entry_of_change(user: access.Person, row: Sequence[Any]) -> Entry:
    at, event_id, kind, target, actor_id, actor, reason, old, new = row
    hidden = (
        kind.startswith(_ABOUT_RUNS) and bool(reason) and not access.everywhere(user, "runs.view_payload")
    )
    reason = "" if hidden else reason
    event = AuditEvent(
        id=event_id,
        at=at,
        kind=kind,
        target=target,
        actor=actor,
        reason=reason,
        old=_shown(old),
        new=_shown(new),
    )
    return Entry(
        place=Place(at, event_id=event_id),
        kind=kind,
        actor=actor,
        actor_id=actor_id,
        reason=reason,
        sentence=words.outside(event),
        details=tuple(words.said(event)),
        before=event.old,
        after=event.new,
        hidden=hidden,
        target=target,
    )


def _shown(stored: Any) -> Any:
    """A JSON value of a row as people may see it; a cursor gives it as text, a model does not."""
    return redaction.redact(json.loads(stored) if isinstance(stored, str) else stored)
