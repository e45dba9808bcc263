"""`manage.py doctor`: look for what is wrong in the data and in the installation."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError
from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from runs import doctor

MARKS = {doctor.ERROR: ("✗ error  ", "bold red"), doctor.WARNING: ("! warning", "yellow")}


class Command(BaseCommand):
    help = (
        "Check every invariant against the data, and the installation. Changes nothing. Exit code 1 if there is an error;"
        " warnings leave it at 0."
    )
    requires_system_checks = ()  # it reports them itself

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", metavar="FILE", type=Path, help="write the report to FILE as JSON, too")

    def handle(self, *args: Any, **options: Any) -> None:
        console = Console(
            file=cast(IO[str], self.stdout),
            highlight=False,
            markup=False,
            # In a pipe or a file, one line stays one line.
            width=None if self.stdout.isatty() else 10_000,
        )
        try:
            with console.status("Looking …") if console.is_terminal else nullcontext() as status:
                problems = doctor.examine(
                    begun=lambda name: status.update(f"Looking: {name} …") if status else None
                )
        except OperationalError as error:
            raise CommandError(f"The database does not answer: {str(error).strip()}") from None
        if options["json"]:
            self._write(options["json"], problems)
        for problem in sorted(problems, key=lambda found: found.severity):
            console.print(described(problem))
        console.print(summary(problems))
        if not doctor.is_ok(problems):
            sys.exit(1)

    def _write(self, path: Path, problems: list[doctor.Problem]) -> None:
        text = json.dumps(doctor.report(problems), indent=2, ensure_ascii=False)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"The report cannot be written to {path}: {error.strerror}.") from None


def described(problem: doctor.Problem) -> Group:
    """A problem as people read it: what, examples, what to do."""
    mark, style = MARKS[problem.severity]
    count = f" ({problem.count})" if problem.count > 1 else ""
    more = problem.count - len(problem.sample)
    below = [Text(printable(item)) for item in problem.sample]
    if more and below:
        below.append(Text(f"… and {more} more"))
    below.append(Text(problem.advice, style="dim"))
    head = Text.assemble((mark, style), f"  {problem.check}{count}")
    return Group(head, *(Padding(line, (0, 0, 0, 11), expand=False) for line in below))


def printable(text: str) -> str:
    """`text` without what a terminal would obey: names in it may come from anywhere."""
    return "".join(c if c.isprintable() else "�" for c in text)


def summary(problems: list[doctor.Problem]) -> Text:
    errors = sum(problem.severity == doctor.ERROR for problem in problems)
    warnings = len(problems) - errors
    checks = len(doctor.INSTALLATION) + len(doctor.SCHEMA) + len(doctor.DATA)
    if not problems:
        return Text(f"{checks} checks, nothing wrong.", style="green")
    return Text(f"{checks} checks: {_many(errors, 'error')}, {_many(warnings, 'warning')}.", style="bold")


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
