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
SAME_SHOWN = 12
"""Fields that two states have in common and that their difference still shows; of more it says how many they are."""


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


def changes_html(before: Any, after: Any, *, budget: int = BUDGET) -> SafeString:
    """Return the top-level fields of two states, line by line: gone with a minus, new with a plus.

    What is no object is one line. About `budget` characters appear; how many fields that leaves out is said.
    """
    if not (isinstance(before, dict) and isinstance(after, dict)):
        whole = [("minus", "-", _line(_dump(before))), ("plus", "+", _line(_dump(after)))]
        return format_html_join("", '<span class="{}">{} {}</span>', whole)
    keys = [*before, *(key for key in after if key not in before)]
    same = {key for key in before if key in after and _alike(before[key], after[key])}
    kept = ("", " ", after)
    lines: list[tuple[str, str, SafeString]] = []
    left, cut = budget, 0
    for key in keys:
        if left <= 0:
            cut += key not in same
            continue
        differs = [side for side in (("minus", "-", before), ("plus", "+", after)) if key in side[2]]
        told = differs if key not in same else [kept] if len(same) <= SAME_SHOWN else []
        for css, sign, values in told:
            text = _line(f"{_dump(key)}: {_dump(values[key])}")
            left -= len(text)
            lines.append((css, sign, text))
    if cut:
        lines.append(("dim", " ", _line(f"{cut:,} more that differ, not shown here")))
    if len(same) > SAME_SHOWN:
        lines.append(("dim", " ", _line(f"{len(same):,} fields are the same in both")))
    return format_html_join("", '<span class="{}">{} {}</span>', lines)


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same as JSON: to Python 1, 1.0 and True are equal."""
    return one is other or (one == other and _sorted(one) == _sorted(other))


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _line(text: str) -> SafeString:
    return visible(_shorten(text, 2_000))


def _shorten(text: str, limit: int = LONG_STRING) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more)"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
