"""The newest approvals of a tool, which a policy is tried on; built while everything goes on."""

from django.db import migrations, models
from django.db.models import F

from runs.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("approvals", "0006_policies")]

    operations = [
        AddIndexOnline("approval", models.Index(F("name"), F("id").desc(), name="approval_by_name")),
    ]
