"""Take the audit out of the console, as CSV or JSON Lines: what a filter finds and the person may see, as the pages show it."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import transaction

from runs import codec
from runs.errors import Invalid, NotAllowed
from runs.lifecycle import Actor
from runs.models import AuditEvent
from runs.pages import audit
from runs.pages.audit_search import Chosen
from runs.services.verb import permit

#: Entries that are read, and held in memory, at a time.
BATCH = 500
COLUMNS = (
    "at",
    "who",
    "who_id",
    "kind",
    "sentence",
    "on",
    "run",
    "number",
    "workflow",
    "subject",
    "reason",
    "changed",
    "before",
    "after",
    "data",
    "hidden",
    "address",
)


def export_audit(actor: Actor, chosen: Chosen, form: str, *, reason: str = "") -> Iterator[bytes]:
    """A file in pieces, the newest entry first; the audit says who took it, by which filter.

    Each piece is read by a statement of its own when it is asked for, however long the reader takes: no transaction is open in
    between. What is written meanwhile is newer than where the export began, and not in it. Before each piece it is asked again
    what the person may see; NotAllowed then breaks the file off, so that nobody takes it for a whole one.

    Raises NotAllowed, Invalid (no such format).
    """
    _permit(actor)
    if form not in FORMATS:
        raise Invalid(f"an export is {' or '.join(FORMATS)}, not {form!r}")
    assert actor.user is not None, "a person: permit"
    with transaction.atomic():
        AuditEvent.objects.create(
            kind="audit_exported",
            target="audit",
            actor_user_id=actor.id,
            actor=actor.name,
            reason=codec.clean_text(reason.strip()),
            new={"format": form, "filter": chosen.stored()},
        )
    return FORMATS[form](audit.batches(lambda: _reader(actor), chosen, size=BATCH))


def _permit(actor: Actor) -> None:
    permit(actor, "runs.view_auditevent")
    permit(actor, "runs.export_audit")


def _reader(actor: Actor) -> AbstractBaseUser:
    """The person as they are now: what was read before is kept with the old object. Raises NotAllowed."""
    assert actor.user is not None, "a person: permit"
    now = User.objects.filter(pk=actor.user.pk).first()
    if now is None:
        raise NotAllowed(f"the account of {actor.name} is gone")
    _permit(Actor.of(now))
    return now


def _record(entry: audit.Entry) -> dict[str, Any]:
    """What the pages show of it."""
    return {
        "at": entry.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "who": entry.actor,
        "who_id": entry.actor_id,
        "kind": entry.kind,
        "sentence": f"{entry.actor} {entry.said}",
        "on": entry.target,
        "run": str(entry.run.pk) if entry.run else None,
        "number": entry.place.seq if entry.run else None,
        "workflow": entry.run.workflow if entry.run else None,
        "subject": entry.run.subject if entry.run else None,
        "reason": entry.reason,
        "changed": dict(entry.details),
        "before": entry.before,
        "after": entry.after,
        "data": entry.data,
        "hidden": entry.hidden,
        "address": entry.url,
    }


def _lines(batches: Iterable[list[audit.Entry]]) -> Iterator[bytes]:
    for batch in batches:
        yield "".join(f"{json.dumps(_record(entry), ensure_ascii=False)}\n" for entry in batch).encode()


#: What a spreadsheet takes for the beginning of a formula, also after blanks and as East Asian full-width characters.
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20|%]|[\t\r\n]")


def _cell(value: Any) -> Any:
    """A value as it stands in a table: text that a spreadsheet would calculate begins with an apostrophe."""
    if value is None or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, Mapping):
        value = json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _table(batches: Iterable[list[audit.Entry]]) -> Iterator[bytes]:
    yield _rows([COLUMNS])
    for batch in batches:
        yield _rows([_cell(value) for value in _record(entry).values()] for entry in batch)


def _rows(rows: Iterable[Iterable[Any]]) -> bytes:
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows(rows)
    return written.getvalue().encode()


FORMATS: Mapping[str, Callable[[Iterable[list[audit.Entry]]], Iterator[bytes]]] = {
    "csv": _table,
    "jsonl": _lines,
}
