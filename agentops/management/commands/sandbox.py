"""`sandbox` for `manage.py help` and call_command; manage.py itself takes the way without Django."""

from argparse import Namespace
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agentops.sandbox.__main__ import add_arguments, serve
from agentops.sandbox.ledger import LedgerUnusable
from agentops.sandbox.server import CannotStart
from agentops.sandbox.webhooks import BadTarget


class Command(BaseCommand):
    help = (
        "Run the sandbox: an invented provider over HTTP and SMTP with a ledger of its own (docs/sandbox.md)."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            serve(Namespace(**options))
        except (CannotStart, LedgerUnusable, BadTarget) as error:
            raise CommandError(str(error)) from error
