"""Indexes of failure groups on runs, built while everything goes on."""

from django.db import migrations, models
from django.db.models import F, Q

from runs.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0015_failures")]

    operations = [
        AddIndexOnline(
            "run",
            models.Index(
                F("fingerprint"),
                F("status"),
                F("id").desc(),
                condition=Q(("fingerprint__isnull", False)),
                name="run_by_fingerprint",
            ),
        ),
        AddIndexOnline(
            "run",
            models.Index(
                fields=["id"],
                condition=Q(("fingerprint__isnull", True), ("status__in", ["failed", "attention"])),
                name="run_without_fingerprint",
            ),
        ),
    ]
