"""The newest approvals of a tool, which a policy is tried on, and old approvals looked at, while everything goes on."""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations, models
from django.db.models import F

from runs.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("approvals", "0006_policies")]

    operations = [
        AddIndexOnline("approval", models.Index(F("name"), F("id").desc(), name="approval_by_name")),
        ValidateConstraint("approval", "approval_asked_not_negative"),
    ]
