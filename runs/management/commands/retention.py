"""`retention`: delete finished runs that are older than their workflow allows, now instead of at a worker's next turn."""

from dataclasses import replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs import blobs, clock
from runs.errors import VerbError
from runs.management.acting import actor_of, add_actor
from runs.services import retention


class Command(BaseCommand):
    help = "Delete finished runs that are older than their workflow allows, with everything that is theirs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="say what would be deleted, delete nothing"
        )
        parser.add_argument(
            "--older-than", type=int, metavar="DAYS", help="instead of what each workflow says"
        )
        parser.add_argument(
            "--workflow", action="append", metavar="NAME", help="only this one; may be repeated"
        )
        add_actor(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        older_than: int | None = options["older_than"]
        if older_than is not None and older_than < 1:
            raise CommandError("--older-than: finished runs are kept for a day at least")
        actor, rules = actor_of(options["username"]), retention.rules()
        if options["workflow"]:
            unknown = sorted(set(options["workflow"]) - {rule.workflow for rule in rules})
            if unknown:
                raise CommandError(f"there are no runs of {', '.join(unknown)}")
            rules = [rule for rule in rules if rule.workflow in options["workflow"]]
        if older_than is not None:
            rules = [replace(rule, days=older_than, source="command") for rule in rules]
        for rule in rules:
            if not rule.days:
                self.stdout.write(f"{rule.workflow}: runs are kept for ever ({rule.source})")
            elif options["dry_run"]:
                count = retention.over_age(rule, clock.now()).count()
                self.stdout.write(f"{rule.workflow}: {_runs(count)}, {rule.sentence}, would be deleted")
            else:
                try:
                    deleted = retention.delete_finished(actor, rule)
                except VerbError as error:
                    raise CommandError(str(error)) from error
                kept = f"; {deleted.kept} in use, left for the next time" if deleted.kept else ""
                self.stdout.write(f"{rule.workflow}: {_runs(deleted.runs)}, {rule.sentence}, deleted{kept}")
        if not options["dry_run"]:
            blobs.sweep()


def _runs(count: int) -> str:
    return f"{count} {'run' if count == 1 else 'runs'}"
