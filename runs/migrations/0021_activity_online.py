"""What the migration before began: old rows looked at."""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0020_activity")]

    operations = [
        ValidateConstraint("worker", "worker_asked_known"),
    ]
