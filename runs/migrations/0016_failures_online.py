"""Indexes of failure groups on runs, built while everything goes on; support and admins may handle failures."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import F, Q

from runs.online import AddIndexOnline

GROUPS = ("support", "admins")


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Permissions are otherwise made after all migrations.
    config = apps.get_app_config("runs")
    config.models_module = True  # a historical app has no module; without one nothing is made
    create_permissions(config, apps=apps, verbosity=0)
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    handle = permission_model.objects.get(content_type__app_label="runs", codename="handle_failures")
    # A site may have done without one of them.
    for group in group_model.objects.filter(name__in=GROUPS):
        group.permissions.add(handle)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0015_failures"), ("approvals", "0003_groups")]

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
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
