"""`manage.py demo`: the whole product on one machine, with something happening in it."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = (
        "Start a database, the console, workers and an invented outside world, with sample runs, and print where to sign "
        "in as whom. Ctrl-C stops everything; the next start goes on from there."
    )
    # It says itself what is wrong, in one sentence.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port",
            type=int,
            default=8000,
            metavar="N",
            help="port of the console (default: 8000; 0: any free one)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.AGENTOPS_DEBUG:
            raise CommandError(
                "The demo prints passwords and serves plain HTTP, which AGENTOPS_DEBUG=0 forbids: unset AGENTOPS_DEBUG on a "
                "machine of your own."
            )
        if settings.AGENTOPS_DB_ROLE:
            raise CommandError(
                "The demo makes tables as their owner, which AGENTOPS_DB_ROLE forbids: unset AGENTOPS_DB_ROLE; the demo sets "
                "it for the web server and the workers."
            )
        if not 0 <= options["port"] < 65536:
            raise CommandError(f"{options['port']} is no port: choose one from 1 to 65535.")
        # Only now: where the demo is refused, its app is not installed.
        from rich.console import Console

        from agentops.demo.supervisor import CannotRun, Demo
        from agentops.embedded import EmbeddedUnavailable

        try:
            Demo(options["port"], Console(highlight=False)).run()
        except (CannotRun, EmbeddedUnavailable) as error:
            raise CommandError(str(error)) from error
