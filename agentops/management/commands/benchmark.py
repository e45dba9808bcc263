"""`manage.py benchmark`: how fast this installation's engine and database are."""

import json
import os
import signal
import sys
from argparse import ArgumentTypeError
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console

WORKS = ("floor", "W1", "W1b", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "W10", "W11", "growth")
#: They take minutes to fill a table with a million runs: measured where they are asked for.
LARGE = ("W5", "W10", "growth")


class Command(BaseCommand):
    help = (
        "Measures the engine in a scratch database on the configured server, beside the limit of that server, and drops the "
        "database. Whatever the figures, it exits with 0. The server should have nothing else to do."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--only",
            type=_works,
            default=tuple(work for work in WORKS if work not in LARGE),
            metavar="W1,W2,…",
            help=f"measure these works only; known: {', '.join(WORKS)} (default: without {', '.join(LARGE)})",
        )
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write the figures to this file as well"
        )
        parser.add_argument(
            "--processes", type=int, metavar="N", help="worker processes (default: as manage.py worker)"
        )
        parser.add_argument(
            "--slots", type=int, metavar="M", help="slots of each (default: as manage.py worker)"
        )
        parser.add_argument(
            "--rows",
            type=int,
            metavar="N",
            help="runs of the large tables of W5, W10 and growth (default 1,000,000); at most so many due ones of W7",
        )
        parser.add_argument(
            "--chart",
            type=Path,
            metavar="FILE",
            help="measure growth as well, and draw it into this SVG file",
        )
        parser.add_argument(
            "--quick",
            action="store_true",
            help="a few runs of each: shows that it works, the figures mean little",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        # Only now: they import the engine and the services, which `--help` can do without.
        from agentops.benchmark.bench import FULL, QUICK, bench
        from agentops.benchmark.figures import Figures, table
        from agentops.benchmark.scratch import scratch_databases
        from agentops.benchmark.trace import TooSlow

        signal.signal(signal.SIGTERM, _stop)
        arguments = [
            part
            for name in ("processes", "slots")
            if options[name] is not None
            for part in (f"--{name}", str(options[name]))
        ]
        figures: Figures = {}
        size = QUICK if options["quick"] else FULL
        if rows := options["rows"]:
            size = replace(size, many=rows, due=min(rows, size.due))
        try:
            with (
                scratch_databases() as server,
                bench(server, size, arguments) as made,
            ):
                wanted = (*options["only"], *(["growth"] if options["chart"] else []))
                for work in _in_order(wanted):
                    self.stderr.write(f"measuring {work} …")
                    figures |= _measure(work, made)
                version = server.info.parameter_status("server_version")
        except TooSlow as error:
            raise CommandError(str(error)) from error
        console = Console(width=None if sys.stdout.isatty() else 150)
        console.print(table(figures))
        if options["chart"]:
            from agentops.benchmark.chart import growth_svg

            about = f"PostgreSQL {version}, {os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}"
            options["chart"].write_text(growth_svg(figures, about))
        if options["json"]:
            facts = {
                "quick": options["quick"],
                "cpus": os.cpu_count(),
                "postgresql": version,
                "workers": arguments,
            }
            options["json"].write_text(json.dumps({**figures, "about": facts}, indent=2) + "\n")


def _measure(work: str, made: Any) -> dict[str, float]:
    # Importing the workflows here makes them known to the services of this process.
    from agentops.benchmark import workflows  # noqa: F401
    from agentops.benchmark.works import (
        claims,
        fan_out,
        growth,
        idle_start,
        large_state,
        model_calls,
        pages,
        parked,
        recovery,
        resume,
        starting,
        throughput,
    )

    match work:
        case "floor":
            return throughput.measure_floor(made)
        case "W1":
            return throughput.measure(made)
        case "W1b":
            return throughput.measure_effects(made)
        case "W2":
            return idle_start.measure(made)
        case "W3":
            return resume.measure(made)
        case "W5":
            return parked.measure(made)
        case "W6":
            return model_calls.measure(made)
        case "W7":
            return claims.measure(made)
        case "W8":
            return large_state.measure(made)
        case "W9":
            return fan_out.measure(made)
        case "W10":
            return pages.measure(made)
        case "W11":
            return starting.measure(made)
        case "growth":
            return growth.measure(made)
    return recovery.measure(made)


def _in_order(only: tuple[str, ...]) -> list[str]:
    """The floor is part of W1; alone it is measured only where W1 is not."""
    return [work for work in WORKS if work in only and not (work == "floor" and "W1" in only)]


def _works(text: str) -> tuple[str, ...]:
    wanted = tuple(part.strip() for part in text.split(",") if part.strip())
    known = {work.lower(): work for work in WORKS}
    unknown = [work for work in wanted if work.lower() not in known]
    if unknown or not wanted:
        raise ArgumentTypeError(
            f"there is no work {', '.join(unknown) or 'in an empty list'}; known: {', '.join(WORKS)}"
        )
    return tuple(known[work.lower()] for work in wanted)


def _stop(*_: object) -> NoReturn:
    """SIGTERM ends it like Ctrl-C: the workers are stopped and the scratch database is dropped."""
    raise SystemExit(143)
