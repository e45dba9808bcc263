"""Policies made of data, and verbs that others approve first."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import runs.clock
import runs.models.run


class Migration(migrations.Migration):
    dependencies = [
        ("approvals", "0005_inbox_groups"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Policy",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "scope",
                    models.TextField(
                        choices=[
                            ("policy", "Policy of the code"),
                            ("tool", "Tool"),
                            ("workflow", "Workflow"),
                            ("verb", "Verb"),
                        ]
                    ),
                ),
                ("name", models.TextField()),
                ("active", models.BooleanField(default=True, help_text="False: the code decides again")),
                (
                    "rules",
                    models.JSONField(
                        help_text="See approvals.policies.effective.Rule; the first that holds counts"
                    ),
                ),
                ("revision", models.PositiveIntegerField(default=1)),
                ("changed_by", models.TextField(blank=True, default="")),
                ("changed_at", models.DateTimeField(db_default=runs.clock.Now())),
            ],
            options={
                "db_table": "approvals_policy",
            },
        ),
        migrations.CreateModel(
            name="PolicyRevision",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("revision", models.PositiveIntegerField()),
                ("active", models.BooleanField()),
                ("rules", models.JSONField()),
                ("by", models.TextField()),
                ("reason", models.TextField(blank=True, default="")),
                ("at", models.DateTimeField(db_default=runs.clock.Now())),
            ],
            options={
                "db_table": "approvals_policy_revision",
            },
        ),
        migrations.CreateModel(
            name="Request",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("verb", models.TextField(help_text="What the policy calls it")),
                ("function", models.TextField(help_text="Name of the verb itself, such as pause_workflow")),
                ("target", models.TextField(help_text="What it is done to: one open request for each")),
                ("run_id", models.UUIDField(help_text="The run it is done to; none for a limit", null=True)),
                ("title", models.TextField(help_text="What would be done, in one line")),
                ("arguments", models.JSONField(help_text="Frozen; display form")),
                ("arguments_sealed", models.BinaryField(null=True)),
                ("digest", models.TextField(help_text="Keyed digest of the true arguments")),
                (
                    "sent_digest",
                    models.TextField(
                        help_text="Of the arguments as they were sent: a form sent twice is one request"
                    ),
                ),
                ("facts", models.JSONField(help_text="What the policy's expressions were tried on")),
                ("reason", models.TextField(blank=True, default="")),
                ("requirement", models.JSONField(help_text="Frozen, as that of an approval")),
                ("votes", models.PositiveIntegerField(help_text="How many different people must approve")),
                ("in_favour", models.PositiveIntegerField(default=0)),
                ("requester_name", models.TextField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("open", "Open"),
                            ("done", "Carried out"),
                            ("refused", "Approved, but no longer possible"),
                            ("rejected", "Rejected"),
                            ("withdrawn", "Withdrawn"),
                            ("expired", "Expired"),
                        ],
                        default="open",
                    ),
                ),
                ("opened_at", models.DateTimeField(db_default=runs.clock.Now())),
                (
                    "escalates_at",
                    models.DateTimeField(help_text="From when on further groups may decide", null=True),
                ),
                ("expires_at", models.DateTimeField(null=True)),
                ("closed_at", models.DateTimeField(null=True)),
                ("closed_by", models.TextField(blank=True, default="")),
                (
                    "outcome",
                    models.TextField(blank=True, default="", help_text="What was done, or why nothing was"),
                ),
            ],
            options={
                "db_table": "approvals_request",
            },
        ),
        migrations.CreateModel(
            name="RequestVote",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("requester_id", models.IntegerField(help_text="Who made the request: never the voter")),
                ("digest", models.TextField()),
                ("verdict", models.TextField(choices=[("approve", "Approve"), ("reject", "Reject")])),
                ("voter_name", models.TextField()),
                ("reason", models.TextField(blank=True, default="")),
                ("at", models.DateTimeField(db_default=runs.clock.Now())),
            ],
            options={
                "db_table": "approvals_request_vote",
            },
        ),
        migrations.AddField(
            model_name="approval",
            name="reminded_at",
            field=models.DateTimeField(help_text="When people were last reminded of it", null=True),
        ),
        migrations.AddConstraint(
            model_name="policy",
            constraint=models.UniqueConstraint(fields=("scope", "name"), name="approval_policy_once"),
        ),
        migrations.AddConstraint(
            model_name="policy",
            constraint=models.CheckConstraint(
                condition=models.Q(("scope__in", ["policy", "tool", "workflow", "verb"])),
                name="approval_policy_scope_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="policy",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("active", False), models.Q(("rules", []), _negated=True), _connector="OR"
                ),
                name="approval_policy_active_has_rules",
            ),
        ),
        migrations.AddConstraint(
            model_name="policy",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Func(
                        models.Func(
                            models.F("rules"),
                            models.Value('$[*] ? (@.on_expiry == "approve" && !(@.sentence != ""))'),
                            function="jsonb_path_exists",
                            output_field=models.BooleanField(),
                        ),
                        output_field=models.BooleanField(),
                        template="NOT %(expressions)s",
                    )
                ),
                name="approval_policy_silence_in_words",
            ),
        ),
        migrations.AddConstraint(
            model_name="policy",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("scope", "verb"), _negated=True),
                    models.Func(
                        models.Func(
                            models.F("rules"),
                            models.Value('$[*] ? (@.on_expiry != "reject")'),
                            function="jsonb_path_exists",
                            output_field=models.BooleanField(),
                        ),
                        output_field=models.BooleanField(),
                        template="NOT %(expressions)s",
                    ),
                    _connector="OR",
                ),
                name="approval_policy_verb_needs_yes",
            ),
        ),
        migrations.AddField(
            model_name="policyrevision",
            name="by_user",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.DO_NOTHING, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="policyrevision",
            name="policy",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="revisions",
                to="approvals.policy",
            ),
        ),
        migrations.AddField(
            model_name="request",
            name="requester",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.DO_NOTHING, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="requestvote",
            name="request",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="ballots",
                to="approvals.request",
            ),
        ),
        migrations.AddField(
            model_name="requestvote",
            name="voter",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.DO_NOTHING, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddConstraint(
            model_name="policyrevision",
            constraint=models.UniqueConstraint(
                fields=("policy", "revision"), name="approval_policy_revision_once"
            ),
        ),
        migrations.AddIndex(
            model_name="request",
            index=models.Index(
                condition=models.Q(("state", "open")), fields=["expires_at", "id"], name="request_inbox"
            ),
        ),
        migrations.AddIndex(
            model_name="request",
            index=models.Index(
                condition=models.Q(("run_id__isnull", False)), fields=["run_id"], name="request_by_run"
            ),
        ),
        migrations.AddIndex(
            model_name="request",
            index=models.Index(
                models.F("verb"), models.OrderBy(models.F("id"), descending=True), name="request_by_verb"
            ),
        ),
        migrations.AddConstraint(
            model_name="request",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", ["open", "done", "refused", "rejected", "withdrawn", "expired"])
                ),
                name="request_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="request",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state", "open"), ("closed_at__isnull", True)),
                    models.Q(models.Q(("state", "open"), _negated=True), ("closed_at__isnull", False)),
                    _connector="OR",
                ),
                name="request_closed_iff_over",
            ),
        ),
        migrations.AddConstraint(
            model_name="request",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("votes__gte", 1),
                    models.Q(
                        models.Q(("state__in", ["done", "refused"]), _negated=True),
                        ("in_favour__gte", models.F("votes")),
                        _connector="OR",
                    ),
                ),
                name="request_done_has_votes",
            ),
        ),
        migrations.AddConstraint(
            model_name="request",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "open")), fields=("verb", "target"), name="request_open_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="request",
            constraint=models.UniqueConstraint(fields=("id", "requester"), name="request_of_requester"),
        ),
        migrations.AddConstraint(
            model_name="requestvote",
            constraint=models.UniqueConstraint(fields=("request", "voter"), name="request_vote_once"),
        ),
        migrations.AddConstraint(
            model_name="requestvote",
            constraint=models.CheckConstraint(
                condition=models.Q(("verdict__in", ["approve", "reject"])), name="request_vote_verdict_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="requestvote",
            constraint=models.CheckConstraint(
                condition=models.Q(("voter", models.F("requester_id")), _negated=True),
                name="request_vote_by_another",
            ),
        ),
        # A vote carries the requester along, so that one CHECK keeps requester and voter apart.
        migrations.RunSQL(
            """
            ALTER TABLE approvals_request_vote ADD CONSTRAINT request_vote_of_request
                FOREIGN KEY (request_id, requester_id) REFERENCES approvals_request (id, requester_id);
            CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON approvals_request_vote
                FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
            CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON approvals_policy_revision
                FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
            """,
            """
            DROP TRIGGER append_only ON approvals_policy_revision;
            DROP TRIGGER append_only ON approvals_request_vote;
            ALTER TABLE approvals_request_vote DROP CONSTRAINT request_vote_of_request
            """,
        ),
    ]
