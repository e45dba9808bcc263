"""`manage.py chaos`: proof on one's own machine that nothing is lost and nothing happens twice."""

import json
import random
import sys
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agentops.chaos import plan
from agentops.chaos.surroundings import JUDGE, prepared


class Command(BaseCommand):
    help = (
        "Run a load of workflows in real processes on a scratch database, break whatever can break, and compare what is recorded "
        "with what happened (docs/chaos.md). Exit code 0: nothing lost, nothing twice; 1: something wrong; 2: cannot judge."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--duration",
            type=_positive,
            default=60.0,
            metavar="SECONDS",
            help="of load and faults (default: 60)",
        )
        parser.add_argument(
            "--seed", type=int, metavar="N", help="of every choice (default: a new one, printed)"
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to FILE as JSON, too")
        parser.add_argument(
            "--rate", type=_positive, default=3.0, metavar="N", help="runs started a second (default: 3)"
        )
        parser.add_argument(
            "--faults-per-minute",
            type=_not_negative,
            default=40.0,
            metavar="N",
            help="of processes, database and people (default: 40); those of providers come by request",
        )
        parser.add_argument(
            "--only",
            type=_names,
            default=(),
            metavar="KINDS",
            help=f"these kinds of faults, with commas, KIND=WEIGHT for a rate; groups: {', '.join(plan.Group)}; "
            f"kinds: {', '.join(plan.Kind)}",
        )
        parser.add_argument("--without", type=_names, default=(), metavar="KINDS", help="all but these")
        parser.add_argument(
            "--workflow",
            action=_Workflow,
            dest="given",
            metavar="NAME",
            help="of the installed apps (AGENTOPS_APPS), instead of the samples; may be given more than once",
        )
        parser.add_argument(
            "--input",
            action=_Input,
            dest="given",
            metavar="JSON",
            help="for runs of the --workflow before it",
        )
        parser.add_argument(
            "--inputs",
            action=_Inputs,
            dest="given",
            metavar="FILE",
            help="likewise, an input a line, taken in turn",
        )
        parser.add_argument(
            "--clusters", type=_count, default=2, metavar="N", help="worker clusters (default: 2)"
        )
        parser.add_argument("--processes", type=_count, default=2, metavar="N", help="of each (default: 2)")
        parser.add_argument(
            "--slots", type=_count, default=8, metavar="N", help="of each process (default: 8)"
        )
        parser.add_argument(
            "--drain-limit",
            type=_positive,
            default=60.0,
            metavar="SECONDS",
            help="after the faults, how long no run may come to its end until the rest counts as stuck (default: 60)",
        )
        parser.add_argument(
            "--keep", action="store_true", help="leave database, ledger and logs for inspection"
        )
        parser.add_argument(
            JUDGE, type=Path, metavar="FOLDER", help="judge a kept trial again, instead of making one"
        )
        parser.add_argument(
            "--ignore-database-url",
            action="store_true",
            help="run although DATABASE_URL is set; it is not used",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        surroundings = prepared()
        if surroundings is None:
            raise CommandError("Chaos needs a process of its own: start it as `manage.py chaos`.")
        if surroundings.refusal:
            raise CommandError(surroundings.refusal)
        if not settings.AGENTOPS_DEBUG:
            raise CommandError(
                "Chaos kills processes and switches failpoints on, which AGENTOPS_DEBUG=0 forbids: unset AGENTOPS_DEBUG on a "
                "machine of your own."
            )
        if options["judge"] and options["judge"].absolute() != surroundings.folder:
            raise CommandError(
                f"{JUDGE} has to be written out: the settings are read before it is known otherwise."
            )
        from rich.console import Console

        from agentops.chaos import report
        from agentops.chaos.ledgers import CannotJudge
        from agentops.chaos.trial import CannotRun, Trial
        from agentops.embedded import EmbeddedUnavailable

        console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
        try:
            trial = Trial(_trial_options(options), surroundings, console)
            made = trial.judge_again() if options["judge"] else trial.run()
        except (CannotRun, CannotJudge, EmbeddedUnavailable) as error:
            raise CommandError(str(error), returncode=report.CANNOT_JUDGE) from error
        console.print(report.rendered(made))
        if surroundings.kept:
            console.print(f"Kept: {surroundings.folder}")
        if options["json"]:
            self._write(options["json"], made)
        if code := report.exit_code(made):
            sys.exit(code)

    def _write(self, path: Path, made: dict[str, Any]) -> None:
        try:
            path.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"The report cannot be written to {path}: {error.strerror}.") from None


def _trial_options(options: dict[str, Any]) -> Any:
    from agentops.chaos.load import Given
    from agentops.chaos.trial import Options
    from runs import registry

    try:
        weights = plan.choose(options["only"], options["without"])
        for name, _ in options["given"] or ():
            registry.workflow(name)
    except (plan.UnknownKind, registry.UnknownWorkflow) as error:
        raise CommandError(str(error)) from None
    return Options(
        duration=options["duration"],
        seed=random.SystemRandom().randrange(1, 10**6) if options["seed"] is None else options["seed"],
        per_second=options["rate"],
        faults_per_minute=options["faults_per_minute"],
        weights=weights,
        given=[Given(name, inputs or [{}]) for name, inputs in options["given"] or ()],
        clusters=options["clusters"],
        processes=options["processes"],
        slots=options["slots"],
        drain_limit=options["drain_limit"],
        keep=options["keep"] or options["judge"] is not None,
    )


# --- arguments ----------------------------------------------------------------------------------------------------------


class _Workflow(Action):
    """Begins the entry of a workflow: its name and the inputs that follow."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.given = [*(namespace.given or []), (values, [])]


class _Input(Action):
    """An input of the workflow named last."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        if not namespace.given:
            parser.error(f"{option} belongs behind the --workflow that it is for")
        namespace.given[-1][1].extend(self.parsed(parser, values))

    def parsed(self, parser: ArgumentParser, text: str) -> list[Any]:
        try:
            return [json.loads(text)]
        except ValueError as error:
            parser.error(f"{text!r} is no JSON: {error}")


class _Inputs(_Input):
    """A file with an input in each line."""

    def parsed(self, parser: ArgumentParser, text: str) -> list[Any]:
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines if line.strip()]
        except OSError as error:
            parser.error(f"{text} cannot be read: {error.strerror}")
        except ValueError as error:
            parser.error(f"{text} has a line that is no JSON: {error}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _positive(text: str) -> float:
    number = _not_negative(text)
    if number == 0:
        raise ArgumentTypeError("0 is too small")
    return number


def _not_negative(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e6:
        raise ArgumentTypeError(f"{text!r} is no number of that kind")
    return number


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 1000):
        raise ArgumentTypeError(f"{text!r} is no number from 1 to 1000")
    return int(text)
