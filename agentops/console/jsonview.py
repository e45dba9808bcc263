"""JsonView: a recorded value as a tree of <details>, harmless, readable without a script."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from agentops.console.hostile import visible

ONE_LINE = 72
"""Containers whose JSON is at most this long stay on one line."""
OPEN_DEPTH = 3
"""Containers nested deeper than this start closed."""
LONG_STRING = 400
"""Characters of a string shown before the rest is one click away."""
BUDGET = 60_000
"""Characters of a value that one page shows; a payload may have 5 MB."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A value that is stored apart: a page shows its size, and who wants it opens its own address."""

    size: int
    """Bytes of JSON."""


class _Tree:
    """Renders one value and stops when the budget of characters is spent."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.cut = 0

    def value(self, value: Any, lead: SafeString, tail: str, depth: int) -> SafeString:
        if isinstance(value, dict | list) and value and len(flat := _dump(value)) > ONE_LINE:
            return self._container(value, flat, lead, tail, depth)
        if isinstance(value, str):
            return format_html('<div class="row">{}{}{}</div>', lead, self._string(value), tail)
        flat = _dump(value)
        self.left -= len(flat)
        return format_html('<div class="row">{}<span class="v">{}</span>{}</div>', lead, visible(flat), tail)

    def _container(
        self, value: dict[Any, Any] | list[Any], flat: str, lead: SafeString, tail: str, depth: int
    ) -> SafeString:
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        noun = "field" if isinstance(value, dict) else "item"
        size = f"{len(value):,} {noun}{'' if len(value) == 1 else 's'}"
        return format_html(
            '<details{}><summary>{}{} <span class="dim">{}</span></summary>'
            '<div class="in">{}</div><div class="row">{}{}</div></details>',
            mark_safe(" open") if depth < OPEN_DEPTH else "",
            lead,
            opening,
            size,
            mark_safe("".join(self._rows(value, depth + 1))),
            closing,
            tail,
        )

    def _rows(self, value: dict[Any, Any] | list[Any], depth: int) -> Iterable[SafeString]:
        pairs = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
        for index, (key, item) in enumerate(pairs, start=1):
            if self.left <= 0:
                self.cut += len(pairs) - index + 1
                yield format_html(
                    '<div class="row dim">{} more not shown here</div>', f"{len(pairs) - index + 1:,}"
                )
                return
            lead = SafeString("")
            if key is not None:
                name = _dump(str(key))
                self.left -= len(name)
                lead = format_html('<span class="k">{}</span>: ', visible(_shorten(name)))
            yield self.value(item, lead, "," if index < len(pairs) else "", depth)

    def _string(self, value: str) -> SafeString:
        text = _dump(value)
        if len(text) <= LONG_STRING:
            self.left -= len(text)
            return format_html('<span class="s">{}</span>', visible(text))
        shown = text[LONG_STRING : LONG_STRING + max(self.left, 0)]
        self.left -= LONG_STRING + len(shown)
        hidden = len(text) - LONG_STRING - len(shown)
        self.cut += 1 if hidden else 0
        return format_html(
            '<span class="s">{}</span><details class="rest"><summary>{} more characters</summary>'
            '<span class="s">{}</span>{}</details>',
            visible(text[:LONG_STRING]),
            f"{len(text) - LONG_STRING:,}",
            visible(shown),
            format_html('<span class="dim"> and {} not shown here</span>', f"{hidden:,}") if hidden else "",
        )


def json_html(value: Any, *, full_url: str = "", budget: int = BUDGET) -> SafeString:
    """Return `value` (anything `json` can write) as HTML.

    At most `budget` characters of it appear; what is cut is said, with a link to `full_url` where one is given.
    """
    if isinstance(value, Folded):
        whole = format_html(' <a href="{}">Show the whole value</a>', full_url) if full_url else ""
        return format_html(
            '<div class="row cut"><span class="dim">{} bytes of JSON, not loaded here.</span>{}</div>',
            f"{value.size:,}",
            whole,
        )
    tree = _Tree(budget)
    body = tree.value(value, SafeString(""), "", 0)
    if not (tree.cut and full_url):
        return body
    return format_html('{}<div class="row cut"><a href="{}">Show the whole value</a></div>', body, full_url)


def changes_html(before: dict[str, Any], after: dict[str, Any]) -> SafeString:
    """Return the top-level fields of two states, line by line: gone with a minus, new with a plus."""
    lines: list[tuple[str, str, SafeString]] = []
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = key in before, key in after
        if old and new and before[key] == after[key]:
            lines.append(("", " ", _field(key, after[key])))
            continue
        if old:
            lines.append(("minus", "-", _field(key, before[key])))
        if new:
            lines.append(("plus", "+", _field(key, after[key])))
    return format_html_join("", '<span class="{}">{} {}</span>', lines)


def _field(key: str, value: Any) -> SafeString:
    return visible(_shorten(f"{_dump(key)}: {_dump(value)}", 2_000))


def _shorten(text: str, limit: int = LONG_STRING) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more)"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
