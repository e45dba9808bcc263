"""What pages over a million runs need: the runs in attention apart by why, and statistics without which plans go wrong."""

from django.db import migrations, models
from django.db.models import Q

from runs.online import AddIndexOnline, AddStatisticsOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0028_bulk_priority_online")]

    operations = [
        AddIndexOnline(
            "run",
            models.Index(
                fields=["id"],
                condition=Q(attention_kind="in_doubt", status="attention"),
                name="run_in_doubt",
            ),
        ),
        AddIndexOnline(
            "run",
            models.Index(
                fields=["id"],
                condition=Q(status="attention") & ~Q(attention_kind="in_doubt"),
                name="run_stuck",
            ),
        ),
        # Most operations are done, and most open ones are of few kinds: taken as independent, the two look a hundred times rarer
        # together than they are, and a list reads and sorts all that wait for a signal instead of the newest fifty.
        AddStatisticsOnline("operation_kind_and_status", "kind, status", "runs_operation", "mcv"),
        # Of an expression in an index over a part of the rows, PostgreSQL 18 keeps statistics and does not use them.
        AddStatisticsOnline("run_lower_subject", "lower(subject)", "runs_run"),
        AddStatisticsOnline("run_reverse_subject", "reverse(lower(subject))", "runs_run"),
    ]
