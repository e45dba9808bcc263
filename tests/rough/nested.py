"""Tests of the suite, run once more against another server."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.processes import ROOT

#: What must hold on every server; the first few seconds of it are run each time, the rest under the marker `long`.
SHORT = (
    "tests/runs/test_schema.py",
    "tests/runs/engine/test_waits.py",
)
CORE = ("tests/runs", "tests/approvals", "tests/chaos")


def run_tests(
    url: str, tests: Sequence[str], folder: Path, *, timeout: float, env: Mapping[str, str] | None = None
) -> str:
    """Run `tests` on the server of `url` in a process of its own; returns the summary. Fails with what it wrote."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGENTOPS_", "PYTEST_"))
    }
    # Its own folder, database and settings are made anew, as for a person who runs it.
    inherited.pop("DATABASE_URL", None)
    inherited.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-x",
            f"--basetemp={folder}",
            *tests,
        ],
        cwd=ROOT,
        env={**inherited, "AGENTOPS_TEST_DATABASE_URL": url, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert " passed" in summary
    return summary
