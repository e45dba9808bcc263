"""The index of runs that a limit holds, built while everything goes on."""

from django.db import migrations, models
from django.db.models import Q

from runs.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0009_limits")]

    operations = [
        AddIndexOnline(
            "run",
            models.Index(
                condition=Q(("held_by__in", ["concurrency", "rate"])),
                fields=["held_key", "held_sort"],
                name="run_held_by_limit",
            ),
        ),
    ]
