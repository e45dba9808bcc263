"""A chain over the history of administration, as each run has one over its own."""

from django.db import migrations, models

CHAIN = """
CREATE FUNCTION agentops_audit_text(seq bigint, e runs_audit_event) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT jsonb_build_array(
        seq, e.id, to_char(e.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        e.kind, e.target, e.actor_id, e.actor, e.reason, e.old, e.new
    )::text
$$;

-- At the end of the transaction that wrote the row, so that the lock which orders all of them is held for an instant only, and
-- comes after every other lock.
CREATE FUNCTION agentops_chain_audit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
    h bytea;
BEGIN
    -- The row is there but for the first event of an installation.
    INSERT INTO runs_audit_head (id, seq, head) VALUES (1, 0, ''::bytea) ON CONFLICT (id) DO NOTHING;
    UPDATE runs_audit_head SET
        seq = seq + 1, head = agentops_event_head(head, agentops_audit_text(seq + 1, NEW))
    WHERE id = 1 RETURNING seq, head INTO n, h;
    INSERT INTO runs_audit_link (seq, event_id, head) VALUES (n, NEW.id, h);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER chain AFTER INSERT ON runs_audit_event
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION agentops_chain_audit();

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_audit_link
    FOR EACH ROW EXECUTE FUNCTION agentops_append_only();

-- What is there already, oldest first. Nobody else writes meanwhile: CREATE TRIGGER holds the table.
DO $$
DECLARE
    e runs_audit_event;
    n bigint := 0;
    h bytea := ''::bytea;
BEGIN
    FOR e IN SELECT * FROM runs_audit_event ORDER BY id LOOP
        n := n + 1;
        h := agentops_event_head(h, agentops_audit_text(n, e));
        INSERT INTO runs_audit_link (seq, event_id, head) VALUES (n, e.id, h);
    END LOOP;
    INSERT INTO runs_audit_head (id, seq, head) VALUES (1, n, h);
END $$;
"""

UNCHAIN = """
DROP TRIGGER chain ON runs_audit_event;
DROP FUNCTION agentops_chain_audit;
DROP FUNCTION agentops_audit_text;
DROP TRIGGER append_only ON runs_audit_link;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0017_people")]

    operations = [
        migrations.CreateModel(
            name="AuditHead",
            fields=[
                ("id", models.PositiveSmallIntegerField(primary_key=True, serialize=False)),
                ("seq", models.BigIntegerField()),
                ("head", models.BinaryField()),
            ],
            options={
                "db_table": "runs_audit_head",
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="audit_head_one_row")
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditLink",
            fields=[
                ("seq", models.BigIntegerField(primary_key=True, serialize=False)),
                ("event_id", models.UUIDField(unique=True)),
                ("head", models.BinaryField()),
            ],
            options={"db_table": "runs_audit_link"},
        ),
        migrations.RunSQL(CHAIN, UNCHAIN),
    ]
