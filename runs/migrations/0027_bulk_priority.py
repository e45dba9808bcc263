"""A bulk may change the priority of its runs. Old bulks are looked at by the next migration."""

from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.models import Q

VERBS = ["retry", "cancel", "force_resume", "prioritise"]


class Migration(migrations.Migration):
    dependencies = [("runs", "0026_chain_check")]

    operations = [
        migrations.AddField(
            model_name="bulk",
            name="priority",
            field=models.PositiveSmallIntegerField(help_text="That its runs are given", null=True),
        ),
        migrations.AlterField(
            model_name="bulk",
            name="verb",
            field=models.TextField(
                choices=[
                    ("retry", "Retry"),
                    ("cancel", "Cancel"),
                    ("force_resume", "Force resume"),
                    ("prioritise", "Change the priority"),
                ]
            ),
        ),
        migrations.RemoveConstraint("bulk", "bulk_verb_known"),
        AddConstraintNotValid(
            "bulk",
            models.CheckConstraint(condition=Q(("verb__in", VERBS)), name="bulk_verb_known"),
        ),
        AddConstraintNotValid(
            "bulk",
            models.CheckConstraint(
                condition=Q(("priority__isnull", False), ("priority__lte", 9), ("verb", "prioritise"))
                | Q(Q(("verb", "prioritise"), _negated=True), ("priority__isnull", True)),
                name="bulk_priority_of_its_verb",
            ),
        ),
    ]
