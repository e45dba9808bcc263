"""Sparkline: a trend as a row of bars."""

import pytest

from agentops.console.sparkline import HEIGHT, LEAST, TALLEST, sparkline


def heights(*numbers: int) -> list[float]:
    return [float(bar.height) for bar in sparkline(numbers, "").bars]


def test_the_highest_bar_fills_the_drawing_and_the_others_are_in_proportion():
    assert heights(5, 10, 20) == [TALLEST / 4, TALLEST / 2, TALLEST]


def test_one_among_thousands_is_still_to_be_seen():
    assert heights(1, 100_000) == [LEAST, TALLEST]


def test_nothing_is_a_line_and_no_bar():
    drawn = sparkline([0, 0, 3], "3 today")
    assert [bar.empty for bar in drawn.bars] == [True, True, False]
    assert drawn.label == "3 today"


@pytest.mark.parametrize("number", [1, 14, 24])
def test_bars_stay_within_the_drawing(number):
    for bar in sparkline(range(number), "").bars:
        assert float(bar.x) + float(bar.width) <= 100
        assert float(bar.y) >= 0
        assert float(bar.y) + float(bar.height) <= HEIGHT + 0.05


def test_no_numbers_are_no_bars():
    assert list(sparkline([], "").bars) == []
