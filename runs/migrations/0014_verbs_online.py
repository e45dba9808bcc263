"""What the migration before began, without stopping anybody: the index of forks, old attempts looked at, groups."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from runs.online import AddIndexOnline

SUPPORT = ["fork_run", "skip_step", "edit_state"]
GROUPS = {"support": SUPPORT, "admins": [*SUPPORT, "kill_run"]}


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Permissions are otherwise made after all migrations.
    config = apps.get_app_config("runs")
    config.models_module = True  # a historical app has no module; without one nothing is made
    create_permissions(config, apps=apps, verbosity=0)
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    for name, codenames in GROUPS.items():
        group, _ = group_model.objects.get_or_create(name=name)
        chosen = permission_model.objects.filter(content_type__app_label="runs", codename__in=codenames)
        group.permissions.add(*chosen)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0013_verbs"), ("approvals", "0003_groups")]

    operations = [
        AddIndexOnline(
            "run",
            models.Index(
                condition=models.Q(("forked_from__isnull", False)),
                fields=["forked_from", "id"],
                name="run_forks",
            ),
        ),
        ValidateConstraint("attempt", "attempt_outcome_known"),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
