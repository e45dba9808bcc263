"""Child runs: who started a run, and what an operation waits for.

They change the catalog alone; their indexes follow in the next migration. Workers of the version before do not write them.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0004_blobs")]

    operations = [
        migrations.AddField("run", "parent_id", models.UUIDField(blank=True, null=True)),
        migrations.AddField("run", "parent_operation_id", models.UUIDField(blank=True, null=True)),
        migrations.AddField("run", "child_index", models.IntegerField(blank=True, null=True)),
        migrations.AddField(
            "run",
            "depth",
            models.SmallIntegerField(
                db_default=0,
                default=0,
                help_text="How many runs stand above it: 0 for one that no run started",
            ),
        ),
        migrations.AddField("operation", "children", models.IntegerField(null=True)),
        migrations.AddField("operation", "children_wanted", models.IntegerField(null=True)),
        migrations.AddField(
            "operation",
            "rest",
            models.TextField(
                blank=True,
                choices=[("cancel", "Cancel"), ("at_end", "Cancel at the end")],
                db_default="",
                default="",
                help_text="What is still to be done about child runs that nobody waits for any more",
            ),
        ),
    ]
