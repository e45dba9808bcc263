"""Large payloads leave their row: uses of blobs, and the deletion of a use with its run."""

import django.db.models.deletion
import runs.clock
from django.db import migrations, models

# Bodies are compressed already: PostgreSQL need not try again. Changes the catalog alone.
STORAGE = "ALTER TABLE runs_blob ALTER COLUMN body SET STORAGE EXTERNAL"

# Whatever deletes runs, no use of a blob stays behind. The blobs themselves are swept later (`runs.blobs.sweep`): to delete one
# here would wait for whoever writes it at this moment.
USES_END = """
CREATE FUNCTION agentops_end_blob_uses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM runs_blob_use u USING gone WHERE u.run_id = gone.id;
    RETURN NULL;
END $$;
CREATE TRIGGER blob_uses_end AFTER DELETE ON runs_run REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION agentops_end_blob_uses();
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0003_retention")]

    operations = [
        migrations.CreateModel(
            name="BlobUse",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "run_id", "blob_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("run_id", models.UUIDField()),
                (
                    "blob",
                    models.ForeignKey(
                        db_column="sha256",
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="runs.blob",
                    ),
                ),
            ],
            options={
                "db_table": "runs_blob_use",
                "indexes": [models.Index(fields=["blob"], name="blob_use_by_blob")],
            },
        ),
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
        migrations.RunSQL(USES_END, "DROP FUNCTION agentops_end_blob_uses CASCADE"),
        # The columns stay for workers of the version before, which name them; nothing has ever been written there.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveField(model_name="run", name="state_blob"),
                migrations.RemoveField(model_name="operation", name="response_blob"),
            ]
        ),
        migrations.AlterField(
            model_name="run",
            name="state",
            field=models.JSONField(
                default=dict, help_text="Small, in full; large, a pointer: see runs.history"
            ),
        ),
        migrations.AlterField(
            model_name="attempt",
            name="state_after",
            field=models.JSONField(
                help_text="The state as this attempt left it, in full or as a patch; NULL: unchanged",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="operation",
            name="response",
            field=models.JSONField(
                help_text="The raw answer, where the result is not just that: it is not stored twice",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="blob",
            name="created_at",
            field=models.DateTimeField(db_default=runs.clock.Now(), help_text="When it was last written"),
        ),
    ]
