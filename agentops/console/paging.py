"""Keyset paging: newer and older by key, because offsets and counts do not scale.

Keys are UUIDv7 and so ordered by time. `?before=KEY` asks for what is older than KEY, `?after=KEY` for what is newer.
"""

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Model, QuerySet
from django.http import QueryDict

from agentops.console.filters import link

SIZE = 50


@dataclass(frozen=True, slots=True)
class Page[M: Model]:
    """Rows of one page, newest first, and the links to its neighbours ("" where there is none)."""

    rows: list[M]
    newer: str
    older: str

    @property
    def alone(self) -> bool:
        return not (self.newer or self.older)


def page[M: Model](rows: QuerySet[M], query: QueryDict, *, key: str = "pk", size: int = SIZE) -> Page[M]:
    """Return the page of `rows` that `query` asks for, newest first; a key that is no UUID asks for the first page."""
    before, after = _uuid(query.get("before")), _uuid(query.get("after"))
    if after is not None:
        found = list(rows.filter(**{f"{key}__gt": after}).order_by(key)[: size + 1])
        more_newer, more_older = len(found) > size, True
        found = found[:size][::-1]
    else:
        narrowed = rows if before is None else rows.filter(**{f"{key}__lt": before})
        found = list(narrowed.order_by(f"-{key}")[: size + 1])
        more_newer, more_older = before is not None, len(found) > size
        found = found[:size]
    if not found:
        return Page([], link(query) if before or after else "", "")
    return Page(
        found,
        link(query, after=_key(found[0], key)) if more_newer else "",
        link(query, before=_key(found[-1], key)) if more_older else "",
    )


def _key(row: Model, key: str) -> str:
    return str(getattr(row, key))


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
