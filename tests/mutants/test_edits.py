"""The mutation check fits today's source, and docs/proof.md says what it does."""

import re
from pathlib import Path

import pytest

from tests.mutants.edits import MUTANTS, Edit, Mutant

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "proof.md").read_text()
#: Rows of the page's tables of rules: rule, what it says, tests, what happens without it.
ROWS = {
    cells[0].strip("`"): cells
    for line in PAGE.splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
EDITS = [edit for mutant in MUTANTS for edit in mutant.edits]


def defined() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def test_([a-z0-9_]+)", path.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.path}: {edit.old.strip()[:40]}")
def test_each_edit_applies_exactly_once(edit: Edit) -> None:
    assert (ROOT / edit.path).read_text().count(edit.old) == 1
    assert edit.old != edit.new


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_names_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        path, _, function = test.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), test


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_page_has_a_row_for_each_rule_of_a_mutant_and_no_other() -> None:
    assert {rule for mutant in MUTANTS for rule in mutant.rules} == ROWS.keys()
    assert len(ROWS) >= 39


def test_every_test_that_the_page_names_exists_and_every_rule_has_one() -> None:
    named = {rule: set(re.findall(r"`([a-z0-9_]+)`", cells[2])) for rule, cells in ROWS.items()}
    assert [rule for rule, tests in named.items() if not tests] == []
    assert set().union(*named.values()) - defined() == set()
    for mutant in MUTANTS:
        for rule in mutant.rules:
            assert {test.partition("::test_")[2] for test in mutant.tests} & named[rule], (mutant.name, rule)
