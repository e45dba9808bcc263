"""What the migration before began, without stopping anybody: old bulks looked at."""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0027_bulk_priority")]

    operations = [
        ValidateConstraint("bulk", "bulk_verb_known"),
        ValidateConstraint("bulk", "bulk_priority_of_its_verb"),
    ]
