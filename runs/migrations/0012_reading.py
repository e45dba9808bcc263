"""Indexes of operations by which pages find runs and effects, built while everything goes on."""

from django.db import migrations, models
from django.db.models import F, Q

from runs.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0011_bulk")]

    operations = [
        AddIndexOnline(
            "operation",
            models.Index(
                F("kind"),
                F("run").desc(),
                condition=Q(("status", "open")),
                name="operation_open_by_kind",
            ),
        ),
        AddIndexOnline(
            "operation",
            models.Index(condition=Q(("kind", "effect")), fields=["run", "id"], name="operation_effects"),
        ),
    ]
