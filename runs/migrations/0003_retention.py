"""Retention: the keys that outlive runs, an age for each workflow, and history that lets one function delete it."""

from django.db import migrations, models

# A DELETE passes only while agentops_delete_runs is at work (see the migration delete_runs); the role of web and workers has no
# right to DELETE, so that the setting alone gains it nothing. History of what people changed is never deleted.
APPEND_ONLY = """
CREATE OR REPLACE FUNCTION agentops_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('agentops.retention', true) = 'on'
        AND TG_TABLE_NAME IN ('runs_attempt', 'runs_event', 'approvals_vote', 'approvals_version')
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_start_key
    FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
"""

APPEND_ONLY_AS_BEFORE = """
DROP TRIGGER append_only ON runs_start_key;
CREATE OR REPLACE FUNCTION agentops_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0002_guards"), ("approvals", "0002_guards")]

    operations = [
        migrations.CreateModel(
            name="StartKey",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "workflow", "start_key", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("workflow", models.TextField()),
                ("start_key", models.TextField()),
                ("run_id", models.UUIDField(help_text="The run that it started")),
                ("input_digest", models.TextField()),
                ("deleted_at", models.DateTimeField()),
            ],
            options={"db_table": "runs_start_key"},
        ),
        migrations.RunSQL(APPEND_ONLY, APPEND_ONLY_AS_BEFORE),
        migrations.AddField(
            model_name="policy",
            name="retention_days",
            field=models.PositiveIntegerField(null=True, blank=True),
        ),
        migrations.AddConstraint(
            model_name="policy",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("retention_days__isnull", True),
                    models.Q(("retention_days__gte", 1), ("retention_days__lte", 36525)),
                    _connector="OR",
                ),
                name="policy_retention_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="policy",
            constraint=models.CheckConstraint(
                condition=models.Q(("retention_days__isnull", True), ("scope", "workflow"), _connector="OR"),
                name="policy_retention_is_workflow",
            ),
        ),
    ]
