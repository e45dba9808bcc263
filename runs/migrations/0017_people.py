"""Grants for a part of the runs; and who may use the verbs of 0013 and 0015, change people and export the audit."""

import django.db.models.deletion
from django.apps.registry import Apps
from django.conf import settings
from django.contrib.auth.management import create_permissions
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Q

import runs.clock
import runs.models.run


SUPPORT = ["fork_run", "skip_step", "edit_state", "handle_failures"]
GROUPS = {"support": SUPPORT, "admins": [*SUPPORT, "kill_run", "manage_people", "export_audit"]}


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Permissions are otherwise made after all migrations.
    config = apps.get_app_config("runs")
    config.models_module = True  # a historical app has no module; without one nothing is made
    create_permissions(config, apps=apps, verbosity=0)
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    for name, codenames in GROUPS.items():
        # A site may have done without one of them.
        for group in group_model.objects.filter(name=name):
            group.permissions.add(
                *permission_model.objects.filter(content_type__app_label="runs", codename__in=codenames)
            )


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("approvals", "0003_groups"),
        ("runs", "0016_failures_online"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Grant",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "capability",
                    models.TextField(
                        choices=[
                            ("view", "View"),
                            ("payloads", "View payloads"),
                            ("approve", "Approve"),
                            ("operate", "Operate"),
                            ("administer", "Administer"),
                        ]
                    ),
                ),
                (
                    "scope",
                    models.TextField(
                        choices=[
                            ("everything", "Everything"),
                            ("workflow", "One workflow"),
                            ("subject", "Subjects that begin with"),
                        ],
                        default="everything",
                    ),
                ),
                (
                    "name",
                    models.TextField(
                        blank=True,
                        default="",
                        help_text="The workflow, or what the subject begins with, upper and lower case told apart",
                    ),
                ),
                ("granted_at", models.DateTimeField(db_default=runs.clock.Now())),
                ("granted_by", models.TextField()),
                (
                    "group",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="auth.group",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "runs_grant",
                "permissions": [
                    ("manage_people", "Can change what people may do, and switch them off"),
                    ("export_audit", "Can take the history of administration out of the console"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(("group__isnull", True), ("user__isnull", False))
                        | Q(("group__isnull", False), ("user__isnull", True)),
                        name="grant_user_or_group",
                    ),
                    models.CheckConstraint(
                        condition=Q(
                            ("capability__in", ["view", "payloads", "approve", "operate", "administer"])
                        ),
                        name="grant_capability_known",
                    ),
                    models.CheckConstraint(
                        condition=Q(("name", ""), ("scope", "everything"))
                        | Q(("scope__in", ["workflow", "subject"]), Q(("name", ""), _negated=True)),
                        name="grant_scope_has_name",
                    ),
                    models.UniqueConstraint(
                        fields=["user", "capability", "scope", "name"],
                        condition=Q(("user__isnull", False)),
                        name="grant_user_once",
                    ),
                    models.UniqueConstraint(
                        fields=["group", "capability", "scope", "name"],
                        condition=Q(("group__isnull", False)),
                        name="grant_group_once",
                    ),
                ],
            },
        ),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
