"""docs/faults.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = re.findall(r"^\| ([A-Z][0-9][^|]*)\|(.*)$", PAGE, re.MULTILINE)
#: The kinds of faults that were collected, by section.
KINDS = {
    "E": [1, 2, 3, 5, 6, 8, 10, 11, 12, 13, 15],
    "R": [1, 3, 5, 7, 8, 10, 12, 13, 14, 15, 17, 18, 19, 21, 22, 24, 25, 26],
    "T": [1, 2, 3, 5, 6, 8, 10, 11, 12, 14, 15],
    "W": [1, 3, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 21, 22, 23, 24],
    "V": [1, 2, 3, 5, 6, 9, 11, 12, 14],
    "S": [1, 3, 4, 6, 7, 8, 10, 11, 13, 14, 16, 17],
    "P": [1, 3, 5, 7, 8, 10, 12],
    "U": [1, 2, 4, 5, 7, 9, 10, 12, 13],
    "X": [1, 3, 4, 6, 8, 9, 11, 12, 13, 14],
    "O": [2, 3, 5, 7, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20],
}


def test_every_test_that_the_page_names_exists() -> None:
    named = {name for _, row in ROWS for name in re.findall(r"`([a-z0-9_]+)`", row)}
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def test_([a-z0-9_]+)", path.read_text(), re.MULTILINE)
    }
    assert named - defined == set()


def test_the_page_lists_every_kind_once_and_a_test_for_each_whose_feature_exists() -> None:
    listed = [kind for kinds, _ in ROWS for kind in re.findall(r"[A-Z][0-9]+", kinds)]
    assert sorted(listed) == sorted(f"{letter}{n}" for letter, numbers in KINDS.items() for n in numbers)
    waiting = PAGE.partition("## Not there yet")[2]
    untested = [kinds for kinds, row in ROWS if "`" not in row and f"| {kinds}|" not in waiting]
    assert untested == []
