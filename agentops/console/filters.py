"""FilterBar: the query string made visible. Every choice is a link, so a filter can be shared and works bare."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import QueryDict


@dataclass(frozen=True, slots=True)
class Choice:
    """One value a filter can take: `value` in the query string, `label` for people, `count` if known."""

    value: str
    label: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """One chip: `name` is the parameter, `choices` what it may be; "" means any."""

    name: str
    label: str
    choices: Sequence[Choice]
    value: str = ""

    @property
    def word(self) -> str:
        """What the chip shows: the label of the chosen value, the value itself if unknown, else "any"."""
        known = next((choice.label for choice in self.choices if choice.value == self.value), self.value)
        return known or "any"


def link(query: QueryDict, **changes: str | None) -> str:
    """Return `query` with `changes` (None or "" drops a parameter), on the first page, as "?…"."""
    fresh = query.copy()
    for place in ("before", "after"):
        fresh.pop(place, None)
    for name, value in changes.items():
        if value:
            fresh[name] = value
        else:
            fresh.pop(name, None)
    return f"?{fresh.urlencode()}"
