"""What the migration before began, without stopping anybody: the index of forks, old attempts looked at."""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations, models

from runs.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0013_verbs")]

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
    ]
