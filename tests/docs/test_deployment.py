"""docs/deployment.md names every setting, and the unit files are good ones."""

import ast
import re
import shutil
import subprocess

import pytest

from tests.harness.processes import ROOT

READERS = {"text", "flag", "integer", "integers", "number", "items", "apps", "secret"}
PAGE = (ROOT / "docs/deployment.md").read_text()


def read_by_settings() -> dict[str, str]:
    """Variables that settings.py reads, with the reader of each."""
    found = {}
    for node in ast.walk(ast.parse((ROOT / "agentops/settings.py").read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "env" and node.func.attr in READERS:
            name = node.args[0]
            assert isinstance(name, ast.Constant) and isinstance(name.value, str), (
                f"line {node.lineno} reads no fixed name"
            )
            found[name.value] = node.func.attr
    return found


def table() -> list[tuple[str, bool]]:
    """Variables in the first column of the table of settings, and whether each is marked as a secret."""
    section = PAGE.split("\n## Settings\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [(name, bool(mark)) for cell in cells for name, mark in re.findall(r"`([A-Z_]+)`( †)?", cell)]


def test_every_setting_is_in_the_table_and_nothing_else():
    names = [name for name, _ in table()]
    assert sorted(names) == sorted(read_by_settings())


def test_those_that_may_come_from_a_file_are_marked():
    marked = {name for name, mark in table() if mark}
    assert marked == {name for name, reader in read_by_settings().items() if reader == "secret"}


@pytest.mark.parametrize("name", ["agentops-web.service", "agentops-worker.service"])
def test_systemd_accepts_the_unit_file(name, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / name
    # It looks for the programs that a unit starts.
    unit.write_text((ROOT / "docs/deploy" / name).read_text().replace("/srv/agentops", str(ROOT)))
    said = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")


def test_the_page_shows_the_command_of_the_web_unit():
    unit = (ROOT / "docs/deploy/agentops-web.service").read_text()
    command = re.search(r"^ExecStart=/srv/agentops/(.*?[^\\])$", unit, re.MULTILINE | re.DOTALL)
    assert command is not None
    assert " ".join(command[1].replace("\\\n", " ").split()) in PAGE
