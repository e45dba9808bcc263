"""Operators, support and admins, with one named permission per verb, so that a site can cut it otherwise."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

VIEW = [
    "runs.view_run",
    "runs.view_operation",
    "runs.view_event",
    "runs.view_policy",
    "runs.view_worker",
    "runs.view_payload",
    "approvals.view_approval",
]
DOUBT = ["runs.resolve_doubt", "runs.declare_gone"]
SUPPORT = [*VIEW, *DOUBT, *(f"runs.{v}_run" for v in ("start", "signal", "retry", "cancel", "force_resume"))]

GROUPS = {
    "operators": [*VIEW, *DOUBT, "runs.start_run", "approvals.decide_approval"],
    "support": SUPPORT,
    "admins": [*SUPPORT, "approvals.decide_approval", "runs.change_limits", "runs.view_auditevent"],
}


def create(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Permissions are otherwise made after all migrations.
    for label in ("runs", "approvals"):
        config = apps.get_app_config(label)
        config.models_module = True  # a historical app has no module; without one nothing is made
        create_permissions(config, apps=apps, verbosity=0)
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    for name, codenames in GROUPS.items():
        group, _ = group_model.objects.get_or_create(name=name)
        for codename in codenames:
            label, code = codename.split(".")
            group.permissions.add(permission_model.objects.get(content_type__app_label=label, codename=code))


class Migration(migrations.Migration):
    dependencies = [
        ("approvals", "0002_guards"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [migrations.RunPython(create, migrations.RunPython.noop)]
