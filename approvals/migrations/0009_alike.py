"""What people decided on the same tool, found without reading all approvals; built while everything goes on."""

from django.db import migrations, models
from django.db.models import F, Q

from runs.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("approvals", "0008_policies_groups")]

    operations = [
        AddIndexOnline(
            "approval",
            models.Index(
                F("name"),
                F("id").desc(),
                condition=Q(("state__in", ["approved", "rejected"])),
                name="approval_decided_alike",
            ),
        ),
    ]
