"""Fork, skip, edit state, kill, evidence: columns, words, rights; the online part is the next migration."""

import django.db.models.deletion
import django.db.models.functions
from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.models.lookups import LessThanOrEqual

import runs.clock
import runs.models.run
from runs.states import allowed_pairs

# Moves are only added: workers of the version before, whose chart is smaller, are not refused anything.
STATE_CHART = f"""
CREATE OR REPLACE FUNCTION agentops_check_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.status, NEW.status) NOT IN ({", ".join(f"('{a}', '{b}')" for a, b in sorted(allowed_pairs()))}) THEN
        RAISE EXCEPTION 'a run cannot go from % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
"""

APPEND_ONLY = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_evidence
    FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
ALTER TABLE runs_evidence ALTER COLUMN body SET STORAGE EXTERNAL;
"""

OUTCOMES = [
    "succeeded",
    "suspended",
    "failed",
    "timed_out",
    "crashed",
    "stopped",
    "fenced",
    "cancelled",
    "skipped",
    "edited",
    "forked",
]


class Migration(migrations.Migration):
    dependencies = [("runs", "0012_reading")]

    operations = [
        migrations.AddField("run", "forked_from", models.UUIDField(blank=True, null=True)),
        migrations.AddField("run", "forked_visit", models.IntegerField(blank=True, null=True)),
        migrations.AddField(
            "operation",
            "copied_from",
            models.UUIDField(
                help_text="In a fork: the operation of another run whose answer this is", null=True
            ),
        ),
        migrations.AlterField(
            "attempt",
            "outcome",
            models.TextField(
                choices=[
                    ("succeeded", "Succeeded"),
                    ("suspended", "Suspended"),
                    ("failed", "Failed"),
                    ("timed_out", "Timed out"),
                    ("crashed", "Crashed"),
                    ("stopped", "Stopped"),
                    ("fenced", "Fenced"),
                    ("cancelled", "Cancelled"),
                    ("skipped", "Skipped"),
                    ("edited", "State edited"),
                    ("forked", "Forked"),
                ]
            ),
        ),
        migrations.RemoveConstraint("attempt", "attempt_outcome_known"),
        AddConstraintNotValid(
            "attempt",
            models.CheckConstraint(
                condition=models.Q(("outcome__in", OUTCOMES)), name="attempt_outcome_known"
            ),
        ),
        migrations.CreateModel(
            name="Evidence",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("run_id", models.UUIDField()),
                (
                    "operation",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="evidence",
                        to="runs.operation",
                    ),
                ),
                ("name", models.TextField(help_text="As the file was called; never a path")),
                ("sha256", models.TextField()),
                ("body", models.BinaryField()),
                ("actor_id", models.BigIntegerField(null=True)),
                ("actor", models.TextField()),
                ("created_at", models.DateTimeField(db_default=runs.clock.Now())),
            ],
            options={
                "db_table": "runs_evidence",
                "indexes": [models.Index(fields=["run_id", "operation"], name="evidence_by_run")],
                "constraints": [
                    models.CheckConstraint(
                        condition=LessThanOrEqual(
                            models.Func(
                                models.F("body"),
                                function="octet_length",
                                output_field=models.IntegerField(),
                            ),
                            1024 * 1024,
                        ),
                        name="evidence_is_small",
                    )
                ],
            },
        ),
        migrations.RunSQL(APPEND_ONLY, migrations.RunSQL.noop),
        migrations.RunSQL(STATE_CHART, migrations.RunSQL.noop),
        migrations.AlterModelOptions(
            name="run",
            options={
                "permissions": [
                    ("start_run", "Can start a run"),
                    ("signal_run", "Can send a signal to a run"),
                    ("retry_run", "Can retry a failed run"),
                    ("cancel_run", "Can cancel a run"),
                    ("force_resume_run", "Can force a run on"),
                    ("fork_run", "Can fork a run from one of its visits"),
                    ("skip_step", "Can let a run go on at another step"),
                    ("edit_state", "Can edit the state of a run"),
                    ("kill_run", "Can kill a run"),
                    ("resolve_doubt", "Can say whether an effect happened"),
                    ("view_payload", "Can see inputs, states, messages and payloads"),
                ]
            },
        ),
    ]
