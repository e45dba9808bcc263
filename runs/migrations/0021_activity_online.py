"""What the migration before began: old rows looked at, and who may drain workers."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Permissions are otherwise made after all migrations.
    config = apps.get_app_config("runs")
    config.models_module = True  # a historical app has no module; without one nothing is made
    create_permissions(config, apps=apps, verbosity=0)
    group, _ = apps.get_model("auth", "Group").objects.get_or_create(name="admins")
    permissions = apps.get_model("auth", "Permission").objects
    group.permissions.add(permissions.get(content_type__app_label="runs", codename="drain_worker"))


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0020_activity"), ("approvals", "0003_groups")]

    operations = [
        ValidateConstraint("worker", "worker_asked_known"),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
