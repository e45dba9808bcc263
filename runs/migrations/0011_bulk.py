"""A verb on many runs as a row of its own, with a row for each of its runs; and who may use one."""

import django.db.models.deletion
from django.apps.registry import Apps
from django.conf import settings
from django.contrib.auth.management import create_permissions
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

import runs.clock
import runs.models.run


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Permissions are otherwise made after all migrations.
    config = apps.get_app_config("runs")
    config.models_module = True  # a historical app has no module; without one nothing is made
    create_permissions(config, apps=apps, verbosity=0)
    permission = apps.get_model("auth", "Permission").objects.get(
        content_type__app_label="runs", codename="bulk"
    )
    for group in apps.get_model("auth", "Group").objects.filter(name__in=["support", "admins"]):
        group.permissions.add(permission)


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0010_limits_indexes"),
        ("approvals", "0003_groups"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Bulk",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.TextField()),
                ("reason", models.TextField()),
                (
                    "verb",
                    models.TextField(
                        choices=[("retry", "Retry"), ("cancel", "Cancel"), ("force_resume", "Force resume")]
                    ),
                ),
                (
                    "filter",
                    models.JSONField(help_text="What the runs were chosen by, as in the address of the page"),
                ),
                (
                    "status",
                    models.TextField(
                        choices=[
                            ("counting", "Counting"),
                            ("ready", "Ready"),
                            ("canary", "First runs"),
                            ("review", "To be looked at"),
                            ("running", "Running"),
                            ("paused", "Paused"),
                            ("stopped", "Stopped"),
                            ("done", "Done"),
                        ],
                        default="counting",
                    ),
                ),
                (
                    "paused_from",
                    models.TextField(
                        blank=True, default="", help_text="The status that resuming goes back to"
                    ),
                ),
                (
                    "said",
                    models.TextField(
                        blank=True,
                        default="",
                        help_text="Why it stands still or waits, in a sentence, where it does",
                    ),
                ),
                (
                    "revision",
                    models.PositiveIntegerField(default=1, help_text="Guard of a verb against a stale page"),
                ),
                (
                    "started_by",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("started_by_name", models.TextField()),
                (
                    "acts_for",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "acts_for_name",
                    models.TextField(help_text="Whose permissions count: who set it going last"),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=runs.clock.Now(), help_text="Runs that were created later do not join"
                    ),
                ),
                ("began_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("rate", models.PositiveIntegerField(default=60, help_text="Runs a minute, at most")),
                (
                    "canary",
                    models.PositiveIntegerField(default=5, help_text="So many first; then a person looks"),
                ),
                (
                    "chosen_status",
                    models.TextField(
                        blank=True, default="", help_text="Runs of this status are being chosen"
                    ),
                ),
                ("chosen_after", models.UUIDField(help_text="… and of them those after this one", null=True)),
                (
                    "chosen",
                    models.BooleanField(
                        default=False, help_text="All are chosen: the set does not change any more"
                    ),
                ),
                (
                    "to_look",
                    models.PositiveIntegerField(
                        default=0, help_text="So many of them are looked at beforehand"
                    ),
                ),
                ("total", models.PositiveIntegerField(default=0)),
                ("looked", models.PositiveIntegerField(default=0)),
                (
                    "out",
                    models.PositiveIntegerField(
                        default=0, help_text="Looked at, and the verb does not apply"
                    ),
                ),
                ("done", models.PositiveIntegerField(default=0)),
                ("refused", models.PositiveIntegerField(default=0)),
                ("skipped", models.PositiveIntegerField(default=0)),
                ("completed", models.PositiveIntegerField(default=0)),
                ("failed", models.PositiveIntegerField(default=0)),
                ("cancelled", models.PositiveIntegerField(default=0)),
                ("deleted", models.PositiveIntegerField(default=0)),
                (
                    "follow_after",
                    models.PositiveIntegerField(
                        default=0, help_text="The next look at them begins after this place"
                    ),
                ),
                (
                    "next_at",
                    models.DateTimeField(
                        db_default=runs.clock.Now(), help_text="The next run is not touched before"
                    ),
                ),
                ("follow_at", models.DateTimeField(db_default=runs.clock.Now())),
            ],
            options={
                "db_table": "runs_bulk",
                "permissions": [("bulk", "Can use a verb on many runs at once")],
            },
        ),
        migrations.CreateModel(
            name="BulkItem",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "bulk_id", "place", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "bulk",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="items",
                        to="runs.bulk",
                    ),
                ),
                ("place", models.PositiveIntegerField(help_text="From 1, oldest run first")),
                ("run_id", models.UUIDField()),
                ("seen_version", models.PositiveIntegerField(help_text="Of the run when it was chosen")),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("out", "Not eligible"),
                            ("done", "Done"),
                            ("refused", "Refused"),
                            ("skipped", "Skipped, it had changed"),
                        ],
                        default="waiting",
                    ),
                ),
                (
                    "look",
                    models.TextField(
                        blank=True, default="", help_text="What looking at it said; empty: not looked at"
                    ),
                ),
                ("said", models.TextField(blank=True, default="", help_text="What the verb said")),
                ("at", models.DateTimeField(help_text="When the verb was used", null=True)),
                (
                    "ended",
                    models.TextField(
                        blank=True,
                        choices=[
                            ("completed", "Completed"),
                            ("failed", "Failed again"),
                            ("cancelled", "Cancelled"),
                            ("deleted", "Deleted"),
                        ],
                        default="",
                    ),
                ),
            ],
            options={
                "db_table": "runs_bulk_item",
            },
        ),
        migrations.AddIndex(
            model_name="bulk",
            index=models.Index(
                condition=models.Q(
                    ("status__in", ["counting", "canary", "running"]),
                    (
                        "done__gt",
                        models.F("completed")
                        + models.F("failed")
                        + models.F("cancelled")
                        + models.F("deleted"),
                    ),
                    _connector="OR",
                ),
                fields=["id"],
                name="bulk_at_work",
            ),
        ),
        migrations.AddIndex(
            model_name="bulk",
            index=models.Index(
                models.F("status"), models.OrderBy(models.F("id"), descending=True), name="bulk_by_status"
            ),
        ),
        migrations.AddConstraint(
            model_name="bulk",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "status__in",
                        ["counting", "ready", "canary", "review", "running", "paused", "stopped", "done"],
                    )
                ),
                name="bulk_status_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulk",
            constraint=models.CheckConstraint(
                condition=models.Q(("verb__in", ["retry", "cancel", "force_resume"])), name="bulk_verb_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="bulk",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("name", ""), _negated=True), models.Q(("reason", ""), _negated=True)
                ),
                name="bulk_says_why",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulk",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("status", "paused"), ("paused_from__in", ["counting", "canary", "running"])),
                    models.Q(models.Q(("status", "paused"), _negated=True), ("paused_from", "")),
                    _connector="OR",
                ),
                name="bulk_paused_from_somewhere",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulk",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("finished_at__isnull", False), ("status__in", ["stopped", "done"])),
                    models.Q(
                        models.Q(("status__in", ["stopped", "done"]), _negated=True),
                        ("finished_at__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="bulk_finished_iff_ended",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulk",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("canary__gte", 1), ("canary__lte", 50), ("rate__gte", 1), ("rate__lte", 6000)
                ),
                name="bulk_pace_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulk",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "total__gte",
                        models.F("out") + models.F("done") + models.F("refused") + models.F("skipped"),
                    )
                ),
                name="bulk_counts_no_more_than_all",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulk",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "done__gte",
                        models.F("completed")
                        + models.F("failed")
                        + models.F("cancelled")
                        + models.F("deleted"),
                    )
                ),
                name="bulk_ends_of_what_is_done",
            ),
        ),
        migrations.AddIndex(
            model_name="bulkitem",
            index=models.Index(fields=["bulk", "state", "place"], name="bulk_item_by_state"),
        ),
        migrations.AddIndex(
            model_name="bulkitem",
            index=models.Index(
                condition=models.Q(("state", "done")),
                fields=["bulk", "ended", "place"],
                name="bulk_item_by_end",
            ),
        ),
        migrations.AddIndex(
            model_name="bulkitem",
            index=models.Index(
                condition=models.Q(("look", ""), _negated=True),
                fields=["bulk", "state", "look"],
                name="bulk_item_by_look",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkitem",
            constraint=models.UniqueConstraint(fields=("run_id", "bulk"), name="bulk_item_run_once"),
        ),
        migrations.AddConstraint(
            model_name="bulkitem",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["waiting", "out", "done", "refused", "skipped"])),
                name="bulk_item_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkitem",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state__in", ["waiting", "out"]), ("at__isnull", True)),
                    models.Q(
                        models.Q(("state__in", ["waiting", "out"]), _negated=True), ("at__isnull", False)
                    ),
                    _connector="OR",
                ),
                name="bulk_item_at_iff_handled",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkitem",
            constraint=models.CheckConstraint(
                condition=models.Q(("ended__in", ["", "completed", "failed", "cancelled", "deleted"])),
                name="bulk_item_end_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkitem",
            constraint=models.CheckConstraint(
                condition=models.Q(("ended", ""), ("state", "done"), _connector="OR"),
                name="bulk_item_end_of_done",
            ),
        ),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
