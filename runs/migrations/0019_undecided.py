"""A run whose approval nobody decided on in time can need attention. Changes no table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0018_audit_chain")]

    operations = [
        migrations.AlterField(
            model_name="run",
            name="attention_kind",
            field=models.TextField(
                blank=True,
                choices=[
                    ("in_doubt", "An effect is in doubt"),
                    ("diverged", "The code diverged from its record"),
                    ("compensation", "A compensation failed"),
                    ("undecided", "Nobody decided in time"),
                ],
                default="",
            ),
        ),
    ]
