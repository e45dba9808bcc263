"""Indexes of lists, counts and search, built while everything goes on."""

from django.contrib.postgres.indexes import OpClass
from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.functions import Lower, Reverse

from runs.online import AddIndexOnline, RemoveIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0006_children_indexes")]

    operations = [
        AddIndexOnline(
            "run", models.Index(F("workflow"), F("status"), F("id").desc(), name="run_by_workflow_status")
        ),
        AddIndexOnline(
            "run",
            models.Index(
                F("id").desc(),
                condition=Q(("status", "failed"), Q(("failure_kind", "declared"), _negated=True)),
                name="run_dead_letter",
            ),
        ),
        AddIndexOnline(
            "run",
            models.Index(
                OpClass(Lower("subject"), name="text_pattern_ops"),
                condition=Q(("subject", ""), _negated=True),
                name="run_subject_begins",
            ),
        ),
        AddIndexOnline(
            "run",
            models.Index(
                OpClass(Reverse(Lower("subject")), name="text_pattern_ops"),
                condition=Q(("subject", ""), _negated=True),
                name="run_subject_ends",
            ),
        ),
        AddIndexOnline(
            "run",
            models.Index(
                OpClass(Lower("start_key"), name="text_pattern_ops"),
                condition=Q(("start_key__isnull", False)),
                name="run_start_key",
            ),
        ),
        RemoveIndexOnline("run", "run_by_subject"),
        AddIndexOnline(
            "operation",
            models.Index(fields=["run"], condition=Q(("status", "retry")), name="operation_retry"),
        ),
        AddIndexOnline(
            "operation",
            models.Index(fields=["run"], condition=Q(("kind", "child")), name="operation_children"),
        ),
        AddIndexOnline(
            "operation",
            models.Index(
                fields=["id"],
                condition=Q(("kind", "approval"), ("status", "open")),
                name="operation_open_approvals",
            ),
        ),
    ]
