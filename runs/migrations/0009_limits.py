"""Limits that act: concurrency and rates, at a claim and before a call; temporary limits; pauses of queues and of everything.

Columns with constant defaults change the catalog alone. Workers of the version before claim past the new limits.
"""

from django.db import migrations, models
from django.db.models import Q

import runs.clock

#: What acts now for each key (scope and name): a temporary limit, else the override, else what the code declares, which the
#: caller knows: {key: {"concurrency": n, "rate": n, "period": s}}.
LIMITS_NOW = """
CREATE FUNCTION agentops_limits_now(keys text[], declared jsonb)
RETURNS TABLE (key text, concurrency integer, rate integer, period double precision) LANGUAGE sql STABLE AS $$
    SELECT k.key, coalesce(o.concurrency, (declared #>> ARRAY[k.key, 'concurrency'])::integer),
        coalesce(o.rate, (declared #>> ARRAY[k.key, 'rate'])::integer),
        CASE WHEN o.rate IS NULL THEN (declared #>> ARRAY[k.key, 'period'])::double precision ELSE o.period END
    FROM unnest(keys) AS k (key)
    LEFT JOIN runs_policy p ON p.scope = split_part(k.key, ' ', 1) AND p.name = substr(k.key, strpos(k.key, ' ') + 1)
    CROSS JOIN LATERAL (SELECT
        CASE WHEN (p.temporary #>> '{concurrency,until}')::timestamptz > agentops_now()
            THEN (p.temporary #>> '{concurrency,values,concurrency}')::integer ELSE p.concurrency END AS concurrency,
        CASE WHEN (p.temporary #>> '{rate_count,until}')::timestamptz > agentops_now()
            THEN (p.temporary #>> '{rate_count,values,rate_count}')::integer ELSE p.rate_count END AS rate,
        CASE WHEN (p.temporary #>> '{rate_count,until}')::timestamptz > agentops_now()
            THEN (p.temporary #>> '{rate_count,values,rate_period_s}')::double precision ELSE p.rate_period_s END AS period
    ) AS o
$$
"""

#: How many are executed or called now under each key: of live leases alone, so that whoever dies frees its place when its
#: lease is over. After a restart of PostgreSQL every worker has one lease to beat.
UNDER_LIMIT = """
CREATE FUNCTION agentops_under_limit(keys text[], lease double precision)
RETURNS TABLE (key text, held bigint) LANGUAGE sql STABLE AS $$
    WITH live AS MATERIALIZED (
        SELECT id FROM runs_worker WHERE closed_at IS NULL AND (beat_until > statement_timestamp()
            OR pg_postmaster_start_time() + make_interval(secs => lease) > statement_timestamp())
    )
    SELECT k.key, count(*) FROM live JOIN runs_run r ON r.worker_id = live.id
    CROSS JOIN LATERAL (VALUES ('everything all'), ('queue ' || r.queue), ('workflow ' || r.workflow),
        ('step ' || r.workflow || '/' || r.step)) AS k (key)
    WHERE k.key = ANY(keys) GROUP BY k.key
    UNION ALL
    SELECT c.key, count(*) FROM live JOIN runs_limited_call c ON c.worker_id = live.id
    WHERE c.key = ANY(keys) GROUP BY c.key
$$
"""

#: The tokens of a bucket that holds `rate` and fills evenly in `period` seconds.
TOKENS = """
CREATE FUNCTION agentops_tokens(tokens double precision, refilled_at timestamptz, rate integer, period double precision)
RETURNS double precision LANGUAGE sql STABLE AS $$
    SELECT least(rate, tokens + rate / period * greatest(0, extract(epoch FROM agentops_now() - refilled_at)::double precision))
$$
"""

#: Claims due runs whose capability is limited; parks those that find no place. One statement of its caller, so that no frozen
#: process keeps the limits' locks. Each statement inside sees what was committed before it began: what others have claimed
#: is counted after the limits' rows are locked. Waits for those rows, and passes locked runs by.
CLAIM_LIMITED = """
CREATE FUNCTION agentops_claim_limited(
    asked_queue text, most integer, asked_worker uuid, capabilities text[], paused text[], timeouts jsonb, declared jsonb,
    lease double precision, alone boolean, OUT claimed uuid[], OUT was text[], OUT parked integer
) LANGUAGE plpgsql AS $$
DECLARE
    look CONSTANT integer := greatest(200, 4 * most);
    met text[];
    room jsonb := '{}';
    left_over jsonb := '{}';
    one record;
    k text;
    why text;
    full_key text;
    held_ids uuid[] := '{}';
    held_why text[] := '{}';
    held_keys text[] := '{}';
BEGIN
    claimed := '{}';
    was := '{}';
    parked := 0;
    SELECT array_agg(DISTINCT v.key) INTO met FROM (
        SELECT workflow, step FROM runs_run
        WHERE queue = asked_queue AND sort_at <= agentops_now() AND wake_at <= agentops_now() AND (crashes > 0) = alone
            AND (workflow || '@' || version || '/' || step) = ANY(capabilities)
        ORDER BY sort_at LIMIT look
    ) AS d CROSS JOIN LATERAL (VALUES ('everything all'), ('queue ' || asked_queue), ('workflow ' || d.workflow),
        ('step ' || d.workflow || '/' || d.step)) AS v (key);
    IF met IS NULL OR NOT EXISTS (SELECT FROM runs_worker w
            WHERE w.id = asked_worker AND w.closed_at IS NULL AND w.beat_until > statement_timestamp()) THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(l.key), '{}') INTO met FROM agentops_limits_now(met, declared) AS l
    WHERE l.concurrency IS NOT NULL OR l.rate IS NOT NULL;
    INSERT INTO runs_limit (key, tokens, refilled_at)
    SELECT l.key, coalesce(l.rate, 0), agentops_now() FROM agentops_limits_now(met, declared) AS l
    WHERE NOT EXISTS (SELECT FROM runs_limit x WHERE x.key = l.key) ORDER BY l.key ON CONFLICT DO NOTHING;
    PERFORM FROM runs_limit x WHERE x.key = ANY(met) ORDER BY x.key FOR NO KEY UPDATE;
    FOR one IN
        SELECT l.key, l.concurrency - coalesce(u.held, 0) AS free,
            agentops_tokens(x.tokens, x.refilled_at, l.rate, l.period) AS tokens, l.concurrency, l.rate
        FROM agentops_limits_now(met, declared) AS l JOIN runs_limit x ON x.key = l.key
        LEFT JOIN agentops_under_limit(met, lease) AS u ON u.key = l.key
    LOOP
        IF one.concurrency IS NOT NULL THEN
            room := room || jsonb_build_object(one.key, one.free);
        END IF;
        IF one.rate IS NOT NULL THEN
            left_over := left_over || jsonb_build_object(one.key, one.tokens);
        END IF;
    END LOOP;
    FOR one IN
        SELECT r.id, r.workflow, r.step, r.status, r.cancel_requested_at FROM runs_run r
        WHERE r.queue = asked_queue AND r.sort_at <= agentops_now() AND r.wake_at <= agentops_now()
            AND (r.crashes > 0) = alone AND (r.workflow || '@' || r.version || '/' || r.step) = ANY(capabilities)
        ORDER BY r.sort_at LIMIT look FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN cardinality(claimed) >= most;
        why := NULL;
        full_key := '';
        IF one.workflow = ANY(paused) AND one.cancel_requested_at IS NULL THEN
            why := 'paused';
        ELSE
            FOREACH k IN ARRAY ARRAY['everything all', 'queue ' || asked_queue, 'workflow ' || one.workflow,
                'step ' || one.workflow || '/' || one.step]
            LOOP
                IF (room ->> k)::integer <= 0 THEN
                    why := 'concurrency';
                ELSIF (left_over ->> k)::double precision < 1 THEN
                    why := 'rate';
                END IF;
                IF why IS NOT NULL THEN
                    full_key := k;
                    EXIT;
                END IF;
            END LOOP;
        END IF;
        IF why IS NOT NULL THEN
            held_ids := held_ids || one.id;
            held_why := held_why || why;
            held_keys := held_keys || full_key;
            CONTINUE;
        END IF;
        claimed := claimed || one.id;
        was := was || one.status;
        FOREACH k IN ARRAY ARRAY['everything all', 'queue ' || asked_queue, 'workflow ' || one.workflow,
            'step ' || one.workflow || '/' || one.step]
        LOOP
            IF room ? k THEN
                room := room || jsonb_build_object(k, (room ->> k)::integer - 1);
            END IF;
            IF left_over ? k THEN
                left_over := left_over || jsonb_build_object(k, (left_over ->> k)::double precision - 1);
            END IF;
        END LOOP;
    END LOOP;
    parked := cardinality(held_ids);
    IF parked > 0 THEN
        UPDATE runs_run r SET wake_at = NULL, sort_at = NULL, held_by = h.why, held_key = h.key, held_sort = r.sort_at
        FROM unnest(held_ids, held_why, held_keys) AS h (id, why, key) WHERE r.id = h.id;
    END IF;
    IF cardinality(claimed) > 0 THEN
        UPDATE runs_limit x SET tokens = greatest(0, t.value::double precision),
            refilled_at = greatest(x.refilled_at, agentops_now())
        FROM jsonb_each_text(left_over) AS t WHERE x.key = t.key;
        UPDATE runs_run r SET
            status = 'running', epoch = r.epoch + 1, attempt_no = r.attempt_no + 1, worker_id = asked_worker, sort_at = NULL,
            held_by = '', held_key = '', held_sort = NULL, attempt_started_at = agentops_now(),
            wake_at = LEAST(agentops_now() + make_interval(secs => coalesce(
                (timeouts ->> (r.workflow || '@' || r.version || '/' || r.step))::double precision, 60)),
                CASE WHEN r.deadline_at IS NOT NULL THEN greatest(r.deadline_at, agentops_now() + interval '1 second') END)
        WHERE r.id = ANY(claimed);
    END IF;
END $$
"""

#: Makes parked runs due where their limit has room (of all limits, or of some): as many as there is room for, in the order in
#: which they had become due. The claim decides; that several do this at once costs no more than parking some again.
REARM_LIMITED = """
CREATE FUNCTION agentops_rearm_limited(only_keys text[], declared jsonb, lease double precision, most integer)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    one record;
    free integer;
    armed integer;
    all_armed integer := 0;
    queues text[];
BEGIN
    FOR one IN
        SELECT x.key, x.tokens, x.refilled_at FROM runs_limit x WHERE (only_keys IS NULL OR x.key = ANY(only_keys)) AND EXISTS (
            SELECT FROM runs_run r WHERE r.held_by IN ('concurrency', 'rate') AND r.held_key = x.key)
    LOOP
        SELECT least(most, l.concurrency - coalesce((SELECT u.held FROM agentops_under_limit(ARRAY[one.key], lease) AS u), 0),
            floor(agentops_tokens(one.tokens, one.refilled_at, l.rate, l.period) + 0.001)) INTO free
        FROM agentops_limits_now(ARRAY[one.key], declared) AS l;
        CONTINUE WHEN free <= 0;
        WITH chosen AS (
            SELECT id FROM runs_run WHERE held_by IN ('concurrency', 'rate') AND held_key = one.key
            ORDER BY held_sort LIMIT free FOR NO KEY UPDATE SKIP LOCKED
        ), due AS (
            UPDATE runs_run r SET held_by = '', held_key = '', held_sort = NULL, wake_at = agentops_now(),
                sort_at = coalesce(r.held_sort, agentops_now() - make_interval(mins => r.priority))
            FROM chosen WHERE r.id = chosen.id RETURNING r.queue
        )
        SELECT count(*), array_agg(DISTINCT due.queue) INTO armed, queues FROM due;
        all_armed := all_armed + armed;
        PERFORM pg_notify('agentops_due', q) FROM unnest(queues) AS q;
    END LOOP;
    RETURN all_armed;
END $$
"""

#: A call of a limited tool asks for a place, before anything of it is recorded or sent: '' if it has one, else what is full.
#: Asked again for the same call (the answer was lost), the place that it has is still its own.
ENTER_CALL = """
CREATE FUNCTION agentops_enter_call(
    asked_key text, asked_call uuid, asked_run uuid, asked_worker uuid, declared jsonb, lease double precision
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    at record;
BEGIN
    INSERT INTO runs_limit (key, tokens, refilled_at)
    SELECT l.key, coalesce(l.rate, 0), agentops_now() FROM agentops_limits_now(ARRAY[asked_key], declared) AS l
    WHERE NOT EXISTS (SELECT FROM runs_limit x WHERE x.key = l.key) ON CONFLICT DO NOTHING;
    PERFORM FROM runs_limit x WHERE x.key = asked_key FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM runs_limited_call c WHERE c.id = asked_call) THEN
        RETURN '';
    END IF;
    SELECT l.concurrency, l.rate, agentops_tokens(x.tokens, x.refilled_at, l.rate, l.period) AS tokens, coalesce(u.held, 0) AS held
    INTO at FROM agentops_limits_now(ARRAY[asked_key], declared) AS l JOIN runs_limit x ON x.key = l.key
    LEFT JOIN agentops_under_limit(ARRAY[asked_key], lease) AS u ON u.key = l.key;
    IF at.held >= at.concurrency THEN
        RETURN 'concurrency';
    ELSIF at.tokens < 1 THEN
        RETURN 'rate';
    END IF;
    IF at.rate IS NOT NULL THEN
        UPDATE runs_limit x SET tokens = at.tokens - 1, refilled_at = greatest(x.refilled_at, agentops_now())
        WHERE x.key = asked_key;
    END IF;
    INSERT INTO runs_limited_call (id, key, run_id, worker_id, begun_at)
    VALUES (asked_call, asked_key, asked_run, asked_worker, agentops_now());
    RETURN '';
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0008_delete_runs")]

    operations = [
        migrations.AddField(
            "run",
            "held_key",
            models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="The limit that holds it, such as “tool refund”",
            ),
        ),
        migrations.AddField(
            "run",
            "held_sort",
            models.DateTimeField(
                blank=True, help_text="sort_at of a run that a limit holds, to keep its place", null=True
            ),
        ),
        migrations.AlterField(
            "run",
            "held_by",
            models.TextField(
                blank=True,
                choices=[
                    ("paused", "Paused"),
                    ("no_capable_worker", "No capable worker"),
                    ("concurrency", "Concurrency limit reached"),
                    ("rate", "Rate limit reached"),
                ],
                default="",
            ),
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                (
                    "key",
                    models.TextField(
                        help_text="Scope and name, such as “step refund_request/act”",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "tokens",
                    models.FloatField(help_text="Of its rate limit, when it was last looked at"),
                ),
                ("refilled_at", models.DateTimeField()),
            ],
            options={"db_table": "runs_limit"},
        ),
        migrations.AddConstraint(
            "limit", models.CheckConstraint(condition=Q(("tokens__gte", 0)), name="limit_tokens_not_negative")
        ),
        migrations.CreateModel(
            name="LimitedCall",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("key", models.TextField()),
                ("run_id", models.UUIDField()),
                ("worker_id", models.UUIDField()),
                ("begun_at", models.DateTimeField(db_default=runs.clock.Now())),
            ],
            options={
                "db_table": "runs_limited_call",
                "indexes": [
                    models.Index(fields=["key"], name="limited_call_by_key"),
                    models.Index(fields=["worker_id"], name="limited_call_by_worker"),
                ],
            },
        ),
        migrations.AlterField(
            "policy",
            "scope",
            models.TextField(
                choices=[
                    ("workflow", "Workflow"),
                    ("step", "Step"),
                    ("tool", "Tool"),
                    ("queue", "Queue"),
                    ("everything", "Everything"),
                ]
            ),
        ),
        migrations.AddField("policy", "concurrency", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField("policy", "rate_count", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField("policy", "rate_period_s", models.FloatField(blank=True, null=True)),
        migrations.AddField("policy", "priority", models.PositiveSmallIntegerField(blank=True, null=True)),
        migrations.AddField(
            "policy",
            "temporary",
            models.JSONField(
                blank=True,
                db_default={},
                default=dict,
                help_text="By limit: values that act until a time, then the columns again (runs.policies)",
            ),
        ),
        # The table has a row for each override, a few dozen: these look at all of them in a moment.
        migrations.RemoveConstraint("policy", "policy_scope_known"),
        migrations.AddConstraint(
            "policy",
            models.CheckConstraint(
                condition=Q(("scope__in", ["workflow", "step", "tool", "queue", "everything"])),
                name="policy_scope_known",
            ),
        ),
        migrations.RemoveConstraint("policy", "policy_pause_is_workflow"),
        migrations.AddConstraint(
            "policy",
            models.CheckConstraint(
                condition=Q(
                    ("paused", False), ("scope__in", ["workflow", "queue", "everything"]), _connector="OR"
                ),
                name="policy_pause_scope",
            ),
        ),
        migrations.AddConstraint(
            "policy",
            models.CheckConstraint(
                condition=Q(Q(("scope", "everything"), _negated=True), ("name", "all"), _connector="OR"),
                name="policy_everything_is_one",
            ),
        ),
        migrations.AddConstraint(
            "policy",
            models.CheckConstraint(
                condition=Q(
                    ("concurrency__isnull", True),
                    Q(("concurrency__gte", 1), ("concurrency__lte", 1_000_000)),
                    _connector="OR",
                ),
                name="policy_concurrency_range",
            ),
        ),
        migrations.AddConstraint(
            "policy",
            models.CheckConstraint(
                condition=Q(
                    Q(("rate_count__isnull", True), ("rate_period_s__isnull", True)),
                    Q(
                        ("rate_count__gte", 1),
                        ("rate_count__isnull", False),
                        ("rate_count__lte", 1_000_000),
                        ("rate_period_s__gt", 0),
                        ("rate_period_s__isnull", False),
                        ("rate_period_s__lte", 31_536_000),
                    ),
                    _connector="OR",
                ),
                name="policy_rate_is_whole",
            ),
        ),
        migrations.AddConstraint(
            "policy",
            models.CheckConstraint(
                condition=Q(
                    ("priority__isnull", True),
                    Q(("priority__lte", 9), ("scope", "workflow")),
                    _connector="OR",
                ),
                name="policy_priority_range",
            ),
        ),
        migrations.RunSQL(LIMITS_NOW, "DROP FUNCTION agentops_limits_now"),
        migrations.RunSQL(UNDER_LIMIT, "DROP FUNCTION agentops_under_limit"),
        migrations.RunSQL(TOKENS, "DROP FUNCTION agentops_tokens"),
        migrations.RunSQL(CLAIM_LIMITED, "DROP FUNCTION agentops_claim_limited"),
        migrations.RunSQL(REARM_LIMITED, "DROP FUNCTION agentops_rearm_limited"),
        migrations.RunSQL(ENTER_CALL, "DROP FUNCTION agentops_enter_call"),
    ]
