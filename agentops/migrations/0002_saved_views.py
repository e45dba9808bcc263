"""Filters of lists that people keep under a name."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("agentops", "0001_initial"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="SavedView",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("page", models.TextField(help_text="Name of the list's URL")),
                ("name", models.TextField()),
                ("query", models.TextField(help_text="Without “?”, on the first page")),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "agentops_saved_view",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("user", "page", "name"), name="saved_view_once")
                ],
            },
        ),
    ]
