"""Mutation check: take one rule away at a time, and see its tests fail.

    uv run python -m tests.mutants              all of them, about 20 minutes
    uv run python -m tests.mutants lease_margin only those of a rule, or those whose name has these words
    uv run python -m tests.mutants --jobs 2     two at a time

Works on copies of the tree; the tree itself is not touched. Ends with status 1 when a mutant survives, or when a test that
shall find one fails without it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.harness.server import ThrowAwayServer
from tests.mutants.edits import MUTANTS, Edit, Mutant

ROOT = Path(__file__).resolve().parents[2]
#: Not part of the source.
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "screenshots")
#: Seconds; a test that hangs has noticed, too.
LIMIT = 600
FAILED = 1
"""Status of pytest when tests ran and failed; others mean that it could not run them."""


class Copy:
    """A copy of the tree with a database server of its own, whose migrated database is kept from one mutant to the next."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        shutil.copytree(ROOT, self.tree, ignore=LEFT_OUT)
        self._server = ThrowAwayServer(folder / "postgres")
        self._server.start()
        self._migrated = False
        self._written = time.time()

    def close(self) -> None:
        self._server.stop("immediate")

    def read(self, path: str) -> str:
        return (self.tree / path).read_text()

    def write(self, path: str, text: str) -> None:
        """Python tells compiled files by the second of their source: no two versions have the same."""
        self._written += 2
        (self.tree / path).write_text(text)
        os.utime(self.tree / path, (self._written, self._written))

    def apply(self, edit: Edit) -> None:
        text = self.read(edit.path)
        if text.count(edit.old) != 1:
            raise SystemExit(
                f"{edit.path} has this {text.count(edit.old)} times, and must have it once:\n{edit.old}"
            )
        self.write(edit.path, text.replace(edit.old, edit.new))

    def pytest(self, tests: Sequence[str], limit: float, *, migrate: bool = False) -> tuple[int | None, str]:
        """Status (None: it did not end in time) and last line of pytest."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AGENTOPS_")}
        environment |= {"AGENTOPS_TEST_DATABASE_URL": self._server.url(), "PYTHONPATH": str(self.tree)}
        options = ["-q", "-x", "-p", "no:cacheprovider", "--tb=no", "--reuse-db"]
        if migrate or not self._migrated:
            options.append("--create-db")
        self._migrated = not migrate
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=self.tree,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self._migrated = False  # it was cut, and has put nothing back
            return None, f"no end within {limit:.0f} s"
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        return done.returncode, lines[-1].strip("= ") if lines else done.stderr.strip()[-200:]


def main() -> int:
    parser = argparse.ArgumentParser(description="Take one rule away at a time, and see its tests fail.")
    parser.add_argument("names", nargs="*", help="rules, or words of the mutants' names; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default 1)")
    given = parser.parse_args()
    chosen = [m for m in MUTANTS if not given.names or _wanted(m, given.names)]
    if not chosen:
        parser.error(f"no mutant is called {', '.join(given.names)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        copies: SimpleQueue[Copy] = SimpleQueue()
        for n in range(given.jobs):
            copy = Copy(folder / str(n))
            stack.callback(copy.close)
            copies.put(copy)
        sound = _unmutated(copies, chosen)
        with ThreadPoolExecutor(given.jobs) as pool:
            killed = list(pool.map(lambda m: _try(copies, m), chosen))
    print(f"\n{sum(killed)} of {len(chosen)} mutants were found")
    return 0 if sound and all(killed) else 1


def _wanted(mutant: Mutant, names: Sequence[str]) -> bool:
    return any(name in mutant.rules or name in mutant.name for name in names)


def _unmutated(copies: SimpleQueue[Copy], chosen: Sequence[Mutant]) -> bool:
    """Whether the tests pass as long as no rule is missing."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    copy = copies.get()
    status, told = copy.pytest(tests, limit=LIMIT * 2)
    copies.put(copy)
    print(f"{'passes' if status == 0 else 'FAILS':10} the source as it is ({told})", flush=True)
    return status == 0


def _try(copies: SimpleQueue[Copy], mutant: Mutant) -> bool:
    copy, begun = copies.get(), time.monotonic()
    before = {edit.path: copy.read(edit.path) for edit in mutant.edits}
    try:
        for edit in mutant.edits:
            copy.apply(edit)
        migrate = any("migrations" in path for path in before)
        status, told = copy.pytest(mutant.tests, limit=LIMIT, migrate=migrate)
    finally:
        for path, text in before.items():
            copy.write(path, text)
        copies.put(copy)
    # An error in a fixture says nothing: it may be one of the surroundings.
    killed = status is None or (status == FAILED and " failed" in f" {told}")
    rules = ", ".join(mutant.rules)
    print(
        f"{'found' if killed else 'SURVIVES':10} {rules}: {mutant.name} ({told}, {time.monotonic() - begun:.0f} s)",
        flush=True,
    )
    return killed


if __name__ == "__main__":
    raise SystemExit(main())
