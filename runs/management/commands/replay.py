"""`replay`: execute a support bundle again in development, with no effect, and say where today's code leaves it."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.text import Truncator


class Command(BaseCommand):
    help = (
        "Executes the steps of a support bundle again: recorded operations return what they returned, nothing is sent, asked"
        " or written. Exits with 1 where the code of today does something else than the run did."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="file that the run's page exported")

    def handle(self, *args: Any, **options: Any) -> None:
        # Only now: they import the engine, which `--help` can do without.
        from runs import registry
        from runs.bundles import replay

        try:
            of = replay.read(options["bundle"])
        except OSError as error:
            raise CommandError(f"{options['bundle']}: {error.strerror}") from error
        except replay.NotABundle as error:
            raise CommandError(str(error)) from error
        run = of.run
        try:
            registry.workflow(run["workflow"])
        except registry.UnknownWorkflow as error:
            # Not what a change of its code looks like: nothing of it is here.
            raise CommandError(
                f"{error}. Name its app in AGENTOPS_APPS; the demo's are there with AGENTOPS_DEBUG=1"
            ) from error
        self.stdout.write(f"run {run['id']} of {run['workflow']} version {run['version']}, {run['status']}")
        told = []
        for one in replay.replay(of):
            told.append(one)
            mark = "≠" if one.diverged else "=" if one.executed else "·"
            self.stdout.write(f"{mark} visit {one.visit} {one.step}: {Truncator(one.sentence).chars(1000)}")
        executed, diverged = sum(one.executed for one in told), sum(one.diverged for one in told)
        if diverged:
            raise CommandError(f"the code of today leaves the record in {diverged} of {len(told)} visits")
        self.stdout.write(
            f"the code of today does what the run did, in {executed} of {len(told)} visits executed again"
        )
