"""What Django cannot say: the event chain, the guards of the state chart, append-only tables, storage parameters."""

from django.db import migrations

from runs.states import allowed_pairs

EVENT_CHAIN = """
CREATE FUNCTION agentops_event_text(
    seq int, at timestamptz, kind text, actor_id bigint, actor text, reason text, data jsonb
) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT jsonb_build_array(
        seq, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), kind, actor_id, actor, reason, data
    )::text
$$;

CREATE FUNCTION agentops_event_head(previous bytea, canonical text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(previous || convert_to(canonical, 'UTF8'))
$$;

-- The UPDATE takes the run's lock: two writers can never extend the chain from the same head.
CREATE FUNCTION agentops_append_event(
    of_run uuid, event_kind text, by_id bigint, by_name text, why text, body jsonb
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := agentops_now();
    n int;
    h bytea;
BEGIN
    UPDATE runs_run SET
        event_seq = event_seq + 1,
        event_head = agentops_event_head(
            event_head, agentops_event_text(event_seq + 1, moment, event_kind, by_id, by_name, why, body))
    WHERE id = of_run RETURNING event_seq, event_head INTO n, h;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no run % to append an event to', of_run USING ERRCODE = 'foreign_key_violation';
    END IF;
    INSERT INTO runs_event (run_id, seq, at, kind, actor_id, actor, reason, data, head)
    VALUES (of_run, n, moment, event_kind, by_id, by_name, why, body, h);
    RETURN n;
END $$;
"""

APPEND_ONLY = """
CREATE FUNCTION agentops_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_attempt
    FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_event
    FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_audit_event
    FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
"""

STATE_CHART = f"""
CREATE FUNCTION agentops_check_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.status, NEW.status) NOT IN ({", ".join(f"('{a}', '{b}')" for a, b in sorted(allowed_pairs()))}) THEN
        RAISE EXCEPTION 'a run cannot go from % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
-- Costs nothing at a checkpoint that only moves the cursor, which does not name the column. AFTER: a BEFORE trigger would lock
-- the row and write that to the log at each update, whatever WHEN says.
CREATE TRIGGER state_chart AFTER UPDATE OF status ON runs_run
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION agentops_check_transition();
"""

# Room on each page for the next version of a row: checkpoints and beats stay heap-only updates.
STORAGE = """
ALTER TABLE runs_run SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE runs_operation SET (fillfactor = 85);
ALTER TABLE runs_worker SET (fillfactor = 50);
"""

APP_ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'agentops_app') THEN
        BEGIN
            CREATE ROLE agentops_app NOLOGIN;
        EXCEPTION
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role agentops_app was not created: the migrating user may not create roles';
            WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of this server was faster
        END;
    END IF;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]

    operations = [
        migrations.RunSQL(
            EVENT_CHAIN,
            "DROP FUNCTION agentops_append_event; DROP FUNCTION agentops_event_head; DROP FUNCTION agentops_event_text",
        ),
        migrations.RunSQL(APPEND_ONLY, "DROP FUNCTION agentops_append_only CASCADE"),
        migrations.RunSQL(STATE_CHART, "DROP FUNCTION agentops_check_transition CASCADE"),
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
        migrations.RunSQL(APP_ROLE, migrations.RunSQL.noop),
    ]
