"""Numbers as addresses hold them."""

import pytest

from agentops.console.numbers import number_of


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("007", 7), ("999999999", 999_999_999)])
def test_at_most_nine_digits_are_a_number(text: str, number: int) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize("text", [None, "", " 1", "-1", "+1", "1.0", "1e3", "٣", "²", "1\x00", "1000000000"])
def test_anything_else_is_none(text: str | None) -> None:
    assert number_of(text) is None
