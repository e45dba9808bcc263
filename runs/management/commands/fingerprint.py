"""manage.py fingerprint: sort failures of before into groups at once, instead of leaving it to the workers' turns."""

from typing import Any

from django.core.management.base import BaseCommand

from runs.diagnosis import failures


class Command(BaseCommand):
    help = (
        "Give every failed run, and every run in attention, that is in no failure group yet its group. Workers do the same,"
        " some seconds in every five minutes; after an update of a large installation this is quicker. Safe at any time."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        given = failures.give_fingerprints()
        self.stdout.write(f"{given:,} {'run is' if given == 1 else 'runs are'} sorted into failure groups.")
