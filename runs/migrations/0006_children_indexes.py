"""Indexes of child runs, built while everything goes on."""

from django.db import migrations, models
from django.db.models import Q

from runs.online import AddIndexOnline, AddUniqueOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0005_children")]

    operations = [
        AddUniqueOnline(
            "run",
            models.UniqueConstraint(
                condition=Q(("parent_operation_id__isnull", False)),
                fields=("parent_operation_id", "child_index"),
                name="run_child_once",
            ),
        ),
        AddIndexOnline(
            "run",
            models.Index(
                condition=Q(("finished_at__isnull", True), ("parent_operation_id__isnull", False)),
                fields=["parent_operation_id", "child_index"],
                name="run_unfinished_child",
            ),
        ),
        AddIndexOnline(
            "operation",
            models.Index(
                condition=Q(("kind", "child"), ("status", "open")),
                fields=["id"],
                name="operation_open_children",
            ),
        ),
        AddIndexOnline(
            "operation",
            models.Index(condition=Q(("rest", ""), _negated=True), fields=["id"], name="operation_rest"),
        ),
    ]
