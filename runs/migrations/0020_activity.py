"""What a person asks of a worker, who may, and what workers count for charts."""

import django.contrib.postgres.fields
from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Permissions are otherwise made after all migrations.
    config = apps.get_app_config("runs")
    config.models_module = True  # a historical app has no module; without one nothing is made
    create_permissions(config, apps=apps, verbosity=0)
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    drain = permission_model.objects.get(content_type__app_label="runs", codename="drain_worker")
    # A site may have done without the group.
    for group in group_model.objects.filter(name="admins"):
        group.permissions.add(drain)


class Migration(migrations.Migration):
    dependencies = [("runs", "0019_undecided"), ("approvals", "0003_groups")]

    operations = [
        migrations.AlterModelOptions(
            name="worker",
            options={
                "permissions": [
                    ("declare_gone", "Can declare a worker gone for good"),
                    ("drain_worker", "Can drain and recycle workers"),
                ]
            },
        ),
        # Before what locks the table that workers beat in.
        migrations.RunPython(grant, migrations.RunPython.noop),
        migrations.AddField(
            "worker",
            "asked",
            models.TextField(
                blank=True,
                choices=[
                    ("drain", "Take no new runs"),
                    ("recycle", "End, and let its cluster start another"),
                ],
                db_default="",
                default="",
                help_text="What a person wants of it; read at each beat",
            ),
        ),
        migrations.AddField("worker", "asked_by", models.TextField(blank=True, db_default="", default="")),
        AddConstraintNotValid(
            "worker",
            models.CheckConstraint(
                condition=models.Q(("asked__in", ["", "drain", "recycle"])), name="worker_asked_known"
            ),
        ),
        migrations.CreateModel(
            name="Activity",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "at",
                        "worker_id",
                        "queue",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("at", models.DateTimeField(help_text="Beginning of the five minutes")),
                ("worker_id", models.UUIDField()),
                ("queue", models.TextField()),
                ("started", models.PositiveIntegerField(help_text="Runs claimed for the first time")),
                ("completed", models.PositiveIntegerField(help_text="Runs")),
                ("steps", models.PositiveIntegerField(help_text="Attempts that succeeded")),
                ("suspended", models.PositiveIntegerField(help_text="Attempts that ended to wait")),
                ("failed", models.PositiveIntegerField(help_text="Attempts that ended with an error")),
                (
                    "waits",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(),
                        help_text="Of new runs, from start to claim, by bin",
                        size=19,
                    ),
                ),
                (
                    "times",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(),
                        help_text="Of attempts that succeeded, by bin",
                        size=19,
                    ),
                ),
            ],
            options={"db_table": "runs_activity"},
        ),
    ]
