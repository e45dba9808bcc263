"""Retention deletes with a run what has been kept about it since: questions, what people did about it, requests, evidence."""

from django.db import migrations

# As before, with the tables that have come since.
APPEND_ONLY = """
CREATE OR REPLACE FUNCTION agentops_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('agentops.retention', true) = 'on'
        AND TG_TABLE_NAME IN ('runs_attempt', 'runs_event', 'runs_evidence', 'approvals_vote', 'approvals_version',
            'approvals_question', 'approvals_answer', 'approvals_comment', 'approvals_request_vote')
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
"""

DELETE_RUNS = """
CREATE OR REPLACE FUNCTION agentops_delete_runs(
    wanted uuid[], older_than interval, line uuid, by_id bigint, by_name text, why text
) RETURNS uuid[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    cutoff timestamptz := agentops_now() - older_than;
    gone uuid[];
BEGIN
    IF older_than IS NULL OR older_than < interval '1 day' THEN
        RAISE EXCEPTION 'finished runs are kept for a day at least' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Whoever asks may be wrong, or late: what is locked is looked at again. A run that somebody else works on waits for the
    -- next time, so that no lock is waited for here while others are held. A family goes from the top: a parent that is retried
    -- reads what its children came to.
    SELECT array_agg(id) INTO gone FROM (
        SELECT id FROM runs_run r
        WHERE id = ANY(wanted) AND status IN ('completed', 'failed', 'cancelled') AND finished_at < cutoff
            AND NOT EXISTS (SELECT FROM runs_operation o WHERE o.run_id = r.id AND o.status IN ('pending', 'open'))
            AND NOT EXISTS (SELECT FROM runs_run parent WHERE parent.id = r.parent_id)
        ORDER BY id FOR UPDATE SKIP LOCKED
    ) AS locked;
    -- No child may be under way, or be retried in this moment: it would be left without its parent.
    WITH born AS MATERIALIZED (
        SELECT o.run_id AS parent, c.id FROM runs_operation o JOIN runs_run c ON c.parent_operation_id = o.id
        WHERE o.run_id = ANY(gone) AND o.kind = 'child'
    ), still AS (
        SELECT c.id FROM runs_run c WHERE c.id IN (SELECT id FROM born) AND c.finished_at IS NOT NULL
        ORDER BY c.id FOR SHARE SKIP LOCKED
    )
    SELECT array_agg(id) INTO gone FROM unnest(gone) AS asked (id) WHERE NOT EXISTS (
        SELECT FROM born LEFT JOIN still USING (id) WHERE born.parent = asked.id AND still.id IS NULL);
    IF gone IS NULL THEN
        RETURN '{}';
    END IF;
    INSERT INTO runs_start_key (workflow, start_key, run_id, input_digest, deleted_at)
    SELECT workflow, start_key, id, input_digest, agentops_now() FROM runs_run
    WHERE id = ANY(gone) AND start_key IS NOT NULL;
    INSERT INTO runs_audit_event (id, at, kind, target, actor_id, actor, reason, old, new)
    SELECT line, agentops_now(), 'runs_deleted', 'workflow ' || string_agg(DISTINCT workflow, ', '), by_id, by_name, why,
        jsonb_build_object('runs', count(*), 'finished_from', min(finished_at), 'finished_to', max(finished_at)), NULL
    FROM runs_run WHERE id = ANY(gone);

    -- See the trigger append_only.
    PERFORM set_config('agentops.retention', 'on', true);
    DELETE FROM approvals_answer WHERE run_id = ANY(gone);
    DELETE FROM approvals_question WHERE run_id = ANY(gone);
    DELETE FROM approvals_read_mark WHERE run_id = ANY(gone);
    DELETE FROM approvals_comment WHERE run_id = ANY(gone);
    DELETE FROM approvals_item WHERE run_id = ANY(gone);
    DELETE FROM approvals_request_vote v USING approvals_request q WHERE q.id = v.request_id AND q.run_id = ANY(gone);
    DELETE FROM approvals_request WHERE run_id = ANY(gone);
    DELETE FROM approvals_vote v USING approvals_approval a WHERE a.id = v.approval_id AND a.run_id = ANY(gone);
    DELETE FROM approvals_version v USING approvals_approval a WHERE a.id = v.approval_id AND a.run_id = ANY(gone);
    DELETE FROM approvals_approval WHERE run_id = ANY(gone);
    DELETE FROM runs_limited_call WHERE run_id = ANY(gone);
    DELETE FROM runs_evidence WHERE run_id = ANY(gone);
    DELETE FROM runs_operation WHERE run_id = ANY(gone);
    DELETE FROM runs_signal WHERE run_id = ANY(gone);
    DELETE FROM runs_message WHERE run_id = ANY(gone);
    DELETE FROM runs_log_line WHERE run_id = ANY(gone);
    DELETE FROM runs_attempt WHERE run_id = ANY(gone);
    DELETE FROM runs_event WHERE run_id = ANY(gone);
    DELETE FROM runs_run WHERE id = ANY(gone);
    PERFORM set_config('agentops.retention', '', true);
    RETURN gone;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0021_activity_online"), ("approvals", "0009_alike")]

    # Nothing leads back: the tables that the function names are there until the migrations before this are undone.
    operations = [
        migrations.RunSQL(APPEND_ONLY, migrations.RunSQL.noop),
        migrations.RunSQL(DELETE_RUNS, migrations.RunSQL.noop),
    ]
