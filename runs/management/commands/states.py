"""`manage.py states`: the state chart as a page of documentation."""

from typing import Any

from django.core.management.base import BaseCommand

from runs.states_page import document


class Command(BaseCommand):
    help = "Print docs/states.md, made from the state chart in the code: `manage.py states > docs/states.md`."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(document(), ending="")
