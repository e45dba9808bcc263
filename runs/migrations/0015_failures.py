"""Failure groups. The new column of runs is NULL and so changes the catalog alone; workers give existing failures theirs."""

from django.db import migrations, models
from django.db.models import F, Q

import runs.clock


class Migration(migrations.Migration):
    dependencies = [("runs", "0014_verbs_online")]

    operations = [
        migrations.AddField(
            "run",
            "fingerprint",
            models.UUIDField(
                blank=True, editable=False, help_text="Of its last failure, also after a retry", null=True
            ),
        ),
        migrations.CreateModel(
            name="FailureGroup",
            fields=[
                ("fingerprint", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("signature", models.UUIDField(help_text="The fingerprint without the version")),
                (
                    "sort",
                    models.TextField(choices=[("failure", "Failure"), ("attention", "Attention")]),
                ),
                ("workflow", models.TextField()),
                ("version", models.PositiveIntegerField()),
                ("step", models.TextField()),
                ("error_type", models.TextField(blank=True)),
                (
                    "message",
                    models.TextField(
                        blank=True,
                        help_text="The error's text with what differs from run to run folded away",
                    ),
                ),
                ("first_at", models.DateTimeField()),
                (
                    "last_at",
                    models.DateTimeField(
                        help_text="To ten seconds: failures closer together do not write it"
                    ),
                ),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("open", "Open"),
                            ("acknowledged", "Acknowledged"),
                            ("fixed", "Fixed"),
                            ("handled", "Handled"),
                        ],
                        default="open",
                    ),
                ),
                (
                    "fixed_in",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Version of the workflow from which on it should not happen",
                        null=True,
                    ),
                ),
                ("changed_at", models.DateTimeField(db_default=runs.clock.Now())),
                ("changed_by", models.TextField(blank=True, default="")),
                (
                    "revision",
                    models.PositiveIntegerField(default=0, help_text="Guard against stale pages"),
                ),
            ],
            options={
                "db_table": "runs_failure_group",
                "permissions": [("handle_failures", "Can say what becomes of a group of failures")],
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        F("sort"),
                        F("state"),
                        F("last_at").desc(),
                        F("fingerprint").desc(),
                        name="failure_by_state",
                    ),
                    models.Index(
                        F("sort"),
                        F("last_at").desc(),
                        F("fingerprint").desc(),
                        condition=Q(("state", "handled"), _negated=True),
                        name="failure_unhandled",
                    ),
                    models.Index(fields=["signature"], name="failure_by_signature"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(("state__in", ["open", "acknowledged", "fixed", "handled"])),
                        name="failure_state_known",
                    ),
                    models.CheckConstraint(
                        condition=Q(("sort__in", ["failure", "attention"])), name="failure_sort_known"
                    ),
                    models.CheckConstraint(
                        condition=Q(
                            Q(("state", "fixed"), _negated=True),
                            Q(("fixed_in__gte", 1), ("fixed_in__isnull", False)),
                            _connector="OR",
                        ),
                        name="failure_fixed_in_version",
                    ),
                    models.CheckConstraint(
                        condition=Q(("last_at__gte", F("first_at"))), name="failure_seen_in_order"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="FailureTally",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "fingerprint",
                        "hour",
                        "shard",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("fingerprint", models.UUIDField()),
                ("hour", models.DateTimeField(help_text="When it begins, UTC")),
                ("shard", models.PositiveSmallIntegerField()),
                ("failures", models.PositiveIntegerField(default=0)),
            ],
            options={
                "db_table": "runs_failure_tally",
                "default_permissions": (),
                "indexes": [models.Index(fields=["hour"], name="failure_tally_by_hour")],
            },
        ),
    ]
