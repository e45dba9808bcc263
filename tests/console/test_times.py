"""Timestamps: relative near, clock within the day, date beyond; durations with at most two units."""

from datetime import UTC, datetime, timedelta

import pytest
from django.template import Context

from agentops.console.times import clock, duration, full, moment
from agentops.templatetags.console import when

NOW = datetime(2026, 11, 29, 15, 46, 10, tzinfo=UTC)
HERE = Context({"now": NOW})


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"),
        (-12, "12 s ago"),
        (-260, "4 min ago"),
        (2290, "in 38 min"),
        (-7000, "today 13:49"),
        (-30 * 3600, "yesterday 09:46"),
        (20 * 3600, "tomorrow 11:46"),
        (-20 * 86400, "9 Nov 15:46"),
        (-500 * 86400, "17 Jul 2025"),
    ],
)
def test_a_moment_is_said_as_people_say_it(seconds: int, words: str) -> None:
    assert moment(NOW + timedelta(seconds=seconds), NOW) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0001, "< 1 ms"),
        (0.012, "12 ms"),
        (0.8, "0.8 s"),
        (59.97, "1 min"),
        (2280, "38 min"),
        (6480, "1 h 48 min"),
        (7200, "2 h"),
        (86400, "1 d"),
        (51 * 3600, "2 d 3 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_clock_time_names_the_day_unless_it_is_today() -> None:
    assert clock(NOW, NOW) == "15:46:10"
    assert clock(NOW - timedelta(days=1), NOW) == "28 Nov 15:46:10"


def test_the_full_time_is_in_the_title_with_its_zone() -> None:
    assert full(NOW) == "Sun 29 Nov 2026, 15:46:10.000 UTC"
    html = when(HERE, NOW - timedelta(seconds=5))
    assert 'datetime="2026-11-29T15:46:05.000+00:00"' in html
    assert 'title="Sun 29 Nov 2026, 15:46:05.000 UTC"' in html
    assert "5 s ago" in html


def test_what_is_due_is_never_in_the_past() -> None:
    assert ">now<" in when(HERE, NOW - timedelta(seconds=9), "due")
    assert ">in 9 s<" in when(HERE, NOW + timedelta(seconds=9), "due")


def test_a_passed_deadline_is_marked() -> None:
    assert 'class="late"' in when(HERE, NOW - timedelta(seconds=5), "deadline")
    assert "late" not in when(HERE, NOW + timedelta(seconds=5), "deadline")


def test_a_moment_that_is_not_there_is_said() -> None:
    assert when(HERE, None) == '<span class="muted">never</span>'
