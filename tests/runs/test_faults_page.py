"""docs/faults.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    rows = re.findall(r"^\| [A-Z][0-9]+.*$", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)}
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def test_([a-z0-9_]+)", path.read_text(), re.MULTILINE)
    }
    assert len(rows) > 50
    assert named - defined == set()
