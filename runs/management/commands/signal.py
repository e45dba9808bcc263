"""`signal`: send a signal to a run, or to whichever run waits for a correlation key."""

import uuid
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs import services
from runs.errors import VerbError
from runs.management.acting import actor_of, add_actor
from runs.services.payloads import parse_json


class Command(BaseCommand):
    help = "Send a signal to a run (--run), or to the run that waits for a key (--correlation)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", help="name of the signal, such as payment.settled")
        to = parser.add_mutually_exclusive_group(required=True)
        to.add_argument("--run", type=uuid.UUID, metavar="ID")
        to.add_argument("--correlation", default="", metavar="KEY")
        parser.add_argument("--data", default="{}", metavar="JSON", help="the payload; {} without it")
        parser.add_argument(
            "--id",
            metavar="ID",
            help="identifies the event: sent again with the same id it counts once; random without it",
        )
        parser.add_argument(
            "--source", default="command line", help="who the event comes from; ids are unique within it"
        )
        parser.add_argument("--reason", default="", help="goes into the run's history")
        add_actor(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            received = services.receive_signal(
                actor_of(options["username"]),
                name=options["name"],
                payload=parse_json(options["data"], "the payload"),
                external_id=options["id"] or str(uuid.uuid4()),
                source=options["source"],
                run_id=options["run"],
                correlation=options["correlation"],
                reason=options["reason"],
            )
        except VerbError as error:
            raise CommandError(str(error)) from error
        known = "" if received.created else " (it had been received before)"
        if received.differs:
            known = (
                " (it had been received before with another payload, which counts; this one changes nothing)"
            )
        self.stdout.write(f"{received.signal.pk} {received.sentence}{known}")
