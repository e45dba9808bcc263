"""Text from agents, customers and providers is harmless in every part."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from django.template import Context, Template
from django.template.loader import render_to_string
from hypothesis import given
from hypothesis import strategies as st

from agentops.console.filters import Choice, Filter
from agentops.console.hostile import isolated, plain, visible
from agentops.console.waterfall import Lane, waterfall
from agentops.look import samples
from agentops.templatetags import console
from runs.services.verb import Consequence, Line

NOW = datetime(2026, 11, 29, 15, 46, tzinfo=UTC)
DECEIVING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
TAGS = {
    "a",
    "b",
    "bdi",
    "br",
    "button",
    "code",
    "dd",
    "defs",
    "details",
    "div",
    "dl",
    "dt",
    "form",
    "g",
    "h1",
    "h2",
}
TAGS |= {
    "h3",
    "header",
    "input",
    "label",
    "li",
    "line",
    "nav",
    "ol",
    "p",
    "rect",
    "section",
    "small",
    "span",
    "strong",
}
TAGS |= {"summary", "svg", "text", "time", "ul", "use"}


class _Strict(HTMLParser):
    """Refuses every tag and attribute that no part of the console writes."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name != "style"
            assert not re.match(r"\s*javascript:", value or ""), value

    def handle_data(self, data: str) -> None:
        self.text += data


def _text(html: str) -> str:
    """Return the text of `html`, having found nothing harmful in it."""
    html.encode()  # a lone surrogate would stop the whole page
    assert not DECEIVING.search(html)
    parser = _Strict()
    parser.feed(html)
    parser.close()
    return parser.text


def _part(source: str, **context: object) -> str:
    return Template("{% load console %}" + source).render(Context(context))


def _parts(text: str) -> dict[str, str]:
    """Every part that takes text from outside, with `text` in all of its places."""
    preview = {
        "consequence": Consequence(text, (Line(text),), (Line(text),), (Line(text),)),
        "title": text,
        "note": text,
        "verb": text,
        "counted_at": NOW,
        "close": "/",
        "action": "/",
    }
    lane = Lane(text, "s-failed", "is-bad", NOW, NOW + timedelta(seconds=3), note=text, word="failed")
    chip = Filter("status", "Status", [Choice(text, text)], text)
    return {
        "visible": _part("{{ text|visible }}", text=text),
        "brief": _part("{{ text|brief:3 }}", text=text),
        "folded": _part("{{ text|folded }}", text=text * 400),
        "plain": _part('<p title="{{ text|plain }}">x</p>', text=text),
        "id": console.short_id(text),
        "who": console.who(text),
        "status": console.status("run", "failed", more=text),
        "json string": console.json(text),
        "json tree": console.json({text: [text, {text: text * 40}]}, full_url="/whole/"),
        "changes": console.changes({text: text}, {text: [text]}),
        "trace": console.traceback(f'Traceback:\n  File "{text}", line 3, in {text}\n    {text}\n{text}'),
        "fall": _part("{% fall drawn %}", drawn=waterfall([lane], now=NOW)),
        "consequence": render_to_string("components/consequence.html", preview),
        "reason form": render_to_string(
            "components/reason_form.html", {"verb": text, "action": "/", "label": text}
        ),
        "filters": render_to_string("components/filters.html", {"chips": [{"filter": chip, "choices": []}]}),
    }


PARTS = tuple(_parts("x"))


@pytest.mark.parametrize("text", samples.HOSTILE)
@pytest.mark.parametrize("part", PARTS)
def test_hostile_text_does_nothing_in_any_part(part: str, text: str) -> None:
    _text(_parts(text)[part])


@given(st.text())
def test_no_text_whatever_gets_through_unmarked(text: str) -> None:
    _text(visible(text))
    assert not DECEIVING.search(plain(text))
    _text(console.json({text: text}))
    _text(console.traceback(text))


def test_a_bidi_override_is_named_where_it_stands() -> None:
    assert visible("acc\u202e321") == 'acc<span class="ctl">U+202E</span>321'
    assert plain("acc\u202e321") == "acc[U+202E]321"


def test_nul_escape_tag_characters_and_lone_surrogates_are_named() -> None:
    assert plain("\x00\x1b\U000e0041\ud800") == "[U+0000][U+001B][U+E0041][U+D800]"


def test_line_breaks_tabs_and_joined_emoji_stay() -> None:
    assert plain("a\r\nb\tc 👩\u200d🔧") == "a\nb\tc 👩\u200d🔧"


def test_text_from_right_to_left_is_kept_apart_from_its_neighbours() -> None:
    assert isolated("שלום") == "<bdi>שלום</bdi>"


def test_template_syntax_in_text_is_text() -> None:
    assert "{{ 7|add:7 }}" in _text(_part("{{ text|visible }}", text="{{ 7|add:7 }}"))


def test_json_shows_integers_exactly_and_escapes_controls() -> None:
    text = _text(console.json({"big": 9007199254740993, "nul": "a\x00b"}))
    assert "9007199254740993" in text
    assert r"a\u0000b" in text


def test_a_long_text_is_folded_and_a_short_one_is_not() -> None:
    assert console.folded("short") == "<bdi>short</bdi>"
    long = "word " * 200
    assert _text(console.folded(long)).replace("400 more characters", "") == long
    assert "<summary>17 more characters</summary>" in console.folded("\n".join(["a"] * 21))


def test_a_text_in_a_line_ends_where_it_is_cut() -> None:
    assert console.brief("a " * 200, 4) == "<bdi>a a…</bdi>"
    assert console.brief("a b") == "<bdi>a b</bdi>"
