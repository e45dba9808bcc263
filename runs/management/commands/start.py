"""`start`: one run from a JSON file, or one a line from a JSONL file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import Progress

from runs import services
from runs.errors import VerbError
from runs.lifecycle import Actor
from runs.management.acting import actor_of, add_actor
from runs.services.payloads import parse_json

#: Exit status when some lines of a file were refused and the others started.
SOME_REFUSED = 3


class Command(BaseCommand):
    help = "Start a run of a workflow (--input), or one run for each line of a file (--jsonl)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("workflow", metavar="WORKFLOW")
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--input", metavar="FILE", help="the input as JSON; “-” reads standard input; without it: {}"
        )
        what.add_argument("--jsonl", metavar="FILE", help="one input a line; “-” reads standard input")
        parser.add_argument(
            "--key",
            metavar="KEY",
            help="start key: the same key and input start one run, however often; line N of --jsonl has the key KEY/N",
        )
        parser.add_argument("--subject", help="what the run is about, such as “order 1042”")
        parser.add_argument("--tenant", default="")
        parser.add_argument("--queue", help="instead of the workflow's own")
        parser.add_argument(
            "--priority",
            type=int,
            help="0 to 9; each point is a minute's head start (default: the workflow's)",
        )
        parser.add_argument("--workflow-version", type=int, metavar="N", help="instead of the newest")
        parser.add_argument("--reason", default="", help="goes into the run's history")
        add_actor(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        actor = actor_of(options["username"])
        shared = {
            "tenant": options["tenant"],
            "queue": options["queue"],
            "priority": options["priority"],
            "version": options["workflow_version"],
            "reason": options["reason"],
        }
        try:
            if options["jsonl"]:
                if options["subject"]:
                    raise CommandError(
                        "--subject is for one run; with --jsonl the workflow makes the subjects"
                    )
                self._many(actor, options["workflow"], options["jsonl"], options["key"], shared)
            else:
                self._one(
                    actor, options["workflow"], options["input"], options["key"], options["subject"], shared
                )
        except VerbError as error:
            raise CommandError(str(error)) from error

    def _one(
        self,
        actor: Actor,
        workflow: str,
        name: str | None,
        key: str | None,
        subject: str | None,
        shared: dict[str, Any],
    ) -> None:
        given: Any = {}
        if name is not None:
            with _opened(name) as file:
                given = parse_json(file.read(), _shown(name))
        started = services.start(actor, workflow, given, start_key=key, subject=subject, **shared)
        said = "started" if started.created else "had been started before"
        self.stdout.write(
            f"{started.run.pk} {said}{', and has been deleted since' if started.deleted else ''}"
        )

    def _many(self, actor: Actor, workflow: str, name: str, key: str | None, shared: dict[str, Any]) -> None:
        keys: Callable[[int], str] | None = None if key is None else lambda number: f"{key}/{number}"
        total, started, existing, refused = _lines(name), 0, 0, list[services.Refused]()
        console = Console(file=sys.stderr)
        with _opened(name) as file, Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("Starting", total=total)
            for batch in services.start_many(actor, workflow, file, start_key=keys, **shared):
                started, existing = started + len(batch.started), existing + len(batch.existing)
                refused += batch.refused
                progress.update(bar, advance=batch.lines)
        self.stdout.write(f"{started} started, {existing} had been started before, {len(refused)} refused")
        for refusal in sorted(refused, key=lambda one: one.line):
            self.stderr.write(f"line {refusal.line}: {refusal.reason}")
        if refused:
            raise CommandError(
                f"{'1 line was' if len(refused) == 1 else f'{len(refused)} lines were'} refused; correct and start again",
                returncode=SOME_REFUSED,
            )


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name


@contextmanager
def _opened(name: str) -> Iterator[TextIO]:
    """The file, or standard input. What is no UTF-8 is kept, so that the line with it is refused and not the file."""
    if name == "-":
        yield sys.stdin
        return
    try:
        with Path(name).open(encoding="utf-8", errors="surrogateescape") as file:
            yield file
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}") from error


def _lines(name: str) -> int | None:
    """How many lines with content a file has, for the progress bar; None for standard input."""
    if name == "-":
        return None
    with _opened(name) as file:
        return sum(1 for line in file if line.strip())
