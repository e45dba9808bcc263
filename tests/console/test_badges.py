"""Every status of the models has a word, an icon and a class, and every icon exists."""

import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders

from agentops.console.badges import BADGES, OPERATION_KINDS, UnknownStatus, badge
from agentops.context import NAVIGATION
from agentops.templatetags.console import status
from approvals.models import Approval
from runs.models.operation import Kind, OpStatus
from runs.states import Outcome, Status

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
TONES = {"is-idle", "is-run", "is-wait", "is-retry", "is-att", "is-bad", "is-ok"}


def _static(name: str) -> str:
    found = finders.find(f"agentops/{name}")
    assert isinstance(found, str)
    return Path(found).read_text()


def _symbols() -> set[str]:
    return set(re.findall(r'<symbol id="([^"]+)"', _static("icons.svg")))


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [("run", Status), ("attempt", Outcome), ("operation", OpStatus), ("approval", Approval.State)],
)
def test_every_status_of_the_models_has_a_badge(kind: str, statuses: type[Status]) -> None:
    assert {member.value for member in statuses} <= set(BADGES[kind])


@pytest.mark.parametrize("kind", [member.value for member in Kind])
def test_every_kind_of_operation_has_an_icon(kind: str) -> None:
    assert OPERATION_KINDS[kind] in _symbols()


def test_every_icon_of_the_table_and_the_navigation_is_in_the_sprite() -> None:
    icons = {look.icon for table in BADGES.values() for look in table.values()}
    assert icons | {entry.icon for entry in NAVIGATION} <= _symbols()


def test_every_icon_named_in_a_template_is_in_the_sprite() -> None:
    text = "\n".join(path.read_text() for path in TEMPLATES.rglob("*.html"))
    assert set(re.findall(r'{% icon "([^"]+)"', text)) <= _symbols()


def test_no_two_statuses_of_one_kind_look_the_same() -> None:
    for table in BADGES.values():
        looks = [(look.icon, look.tone) for look in table.values()]
        assert len(looks) == len(set(looks))
        assert {look.tone for look in table.values()} <= TONES


def test_only_what_waits_for_the_reader_is_painted_solid() -> None:
    assert {
        f"{kind} {value}"
        for kind, table in BADGES.items()
        for value, look in table.items()
        if look.tone == "is-att"
    } == {"run attention", "operation in_doubt", "bulk review"}


def test_an_unknown_status_is_a_mistake_and_not_a_blank() -> None:
    with pytest.raises(UnknownStatus, match="no badge for run 'lost'"):
        badge("run", "lost")


def test_a_badge_always_carries_its_word_and_escapes_what_follows_it() -> None:
    html = status("approval", "open", pill=True, more=", <b>1</b> of 2")
    assert 'class="status is-wait pill"' in html
    assert "Open, &lt;b&gt;1&lt;/b&gt; of 2" in html
    assert "icons.svg#a-open" in html


def test_every_class_that_a_part_uses_has_a_rule() -> None:
    css = _static("console.css")
    for name in (
        *TONES,
        "ctl",
        "report",
        "chip",
        "pager",
        "json",
        "trace",
        "diffcode",
        "fall-row",
        "lane-gap",
    ):
        assert f".{name}" in css, name


def test_colours_are_named_in_the_tokens_only() -> None:
    assert not re.search(r"oklch\(|rgba?\(|hsl\(|#[0-9a-f]{3,8}\b", _static("console.css"))
