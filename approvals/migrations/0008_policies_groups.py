"""Whoever uses the console sees policies; admins change them."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

GROUPS = {
    "operators": ["view_policy", "view_request"],
    "support": ["view_policy", "view_request"],
    "admins": ["view_policy", "view_request", "change_policy"],
}


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Permissions are otherwise made after all migrations.
    config = apps.get_app_config("approvals")
    config.models_module = True  # a historical app has no module; without one nothing is made
    create_permissions(config, apps=apps, verbosity=0)
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    for name, codenames in GROUPS.items():
        # A site may have done without one of them.
        for group in group_model.objects.filter(name=name):
            group.permissions.add(
                *permission_model.objects.filter(content_type__app_label="approvals", codename__in=codenames)
            )


class Migration(migrations.Migration):
    dependencies = [
        ("approvals", "0007_policies_indexes"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [migrations.RunPython(grant, migrations.RunPython.noop)]
