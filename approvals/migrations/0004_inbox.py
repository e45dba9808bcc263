"""What people do about what waits for them, and the questions that they ask back."""

import django.db.models.deletion
import runs.clock
import runs.models.run
from django.conf import settings
from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("approvals", "0003_groups"),
        ("runs", "0008_delete_runs"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="approval",
            name="answers",
            field=models.BooleanField(
                db_default=False, default=False, help_text="The workflow answers questions about it"
            ),
        ),
        migrations.AddField(
            model_name="approval",
            name="asked",
            # A positive one brings a check of its own, for which PostgreSQL reads every row.
            field=models.IntegerField(db_default=0, default=0, help_text="Questions that people asked back"),
        ),
        AddConstraintNotValid(
            "approval",
            models.CheckConstraint(condition=models.Q(("asked__gte", 0)), name="approval_asked_not_negative"),
        ),
        migrations.CreateModel(
            name="Question",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("run_id", models.UUIDField()),
                ("number", models.PositiveIntegerField(help_text="From 1, within the request")),
                ("version", models.PositiveIntegerField(help_text="The version that the person saw")),
                ("text", models.TextField()),
                ("by", models.TextField()),
                ("at", models.DateTimeField(db_default=runs.clock.Now())),
                (
                    "approval",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="questions",
                        to="approvals.approval",
                    ),
                ),
                (
                    "by_user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "approvals_question",
            },
        ),
        migrations.CreateModel(
            name="Comment",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("approval", "Approval"),
                            ("doubt", "In doubt"),
                            ("stuck", "Stuck"),
                            ("dead", "Dead letter"),
                        ]
                    ),
                ),
                ("item_id", models.UUIDField()),
                ("run_id", models.UUIDField()),
                ("text", models.TextField()),
                ("by", models.TextField()),
                ("at", models.DateTimeField(db_default=runs.clock.Now())),
                (
                    "by_user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "approvals_comment",
            },
        ),
        migrations.CreateModel(
            name="Item",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("approval", "Approval"),
                            ("doubt", "In doubt"),
                            ("stuck", "Stuck"),
                            ("dead", "Dead letter"),
                        ]
                    ),
                ),
                ("item_id", models.UUIDField()),
                ("run_id", models.UUIDField()),
                ("claimed_by_name", models.TextField(blank=True, default="")),
                ("claimed_at", models.DateTimeField(null=True)),
                ("snoozed_until", models.DateTimeField(null=True)),
                ("snoozed_by", models.TextField(blank=True, default="")),
                (
                    "changed_at",
                    models.DateTimeField(
                        help_text="When something was added that people should read", null=True
                    ),
                ),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=0, help_text="Guard of the verbs on it against a stale page"
                    ),
                ),
                (
                    "claimed_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "approvals_item",
                "permissions": [
                    ("handle_item", "Can claim, assign, snooze and comment on what waits for people")
                ],
            },
        ),
        migrations.CreateModel(
            name="ReadMark",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("approval", "Approval"),
                            ("doubt", "In doubt"),
                            ("stuck", "Stuck"),
                            ("dead", "Dead letter"),
                        ]
                    ),
                ),
                ("item_id", models.UUIDField()),
                ("run_id", models.UUIDField()),
                ("at", models.DateTimeField()),
                (
                    "user",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "approvals_read_mark",
            },
        ),
        migrations.CreateModel(
            name="Answer",
            fields=[
                (
                    "question",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="answer",
                        serialize=False,
                        to="approvals.question",
                    ),
                ),
                ("run_id", models.UUIDField()),
                (
                    "outcome",
                    models.TextField(
                        choices=[
                            ("answered", "Answered"),
                            ("failed", "Could not be answered"),
                            ("nobody", "The workflow answers no questions here"),
                        ]
                    ),
                ),
                (
                    "text",
                    models.TextField(
                        blank=True, default="", help_text="The agent's own words, or why there are none"
                    ),
                ),
                ("at", models.DateTimeField(db_default=runs.clock.Now())),
            ],
            options={
                "db_table": "approvals_answer",
                "indexes": [models.Index(fields=["run_id"], name="answer_by_run")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("outcome__in", ["answered", "failed", "nobody"])),
                        name="answer_outcome_known",
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="question",
            index=models.Index(fields=["run_id"], name="question_by_run"),
        ),
        migrations.AddConstraint(
            model_name="question",
            constraint=models.UniqueConstraint(fields=("approval", "number"), name="question_once"),
        ),
        migrations.AddIndex(
            model_name="comment",
            index=models.Index(fields=["item_id", "kind", "id"], name="comment_by_item"),
        ),
        migrations.AddIndex(
            model_name="comment",
            index=models.Index(fields=["run_id"], name="comment_by_run"),
        ),
        migrations.AddConstraint(
            model_name="comment",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["approval", "doubt", "stuck", "dead"])),
                name="comment_kind_known",
            ),
        ),
        migrations.AddIndex(
            model_name="item",
            index=models.Index(fields=["run_id"], name="item_by_run"),
        ),
        migrations.AddConstraint(
            model_name="item",
            constraint=models.UniqueConstraint(fields=("item_id", "kind"), name="item_once"),
        ),
        migrations.AddConstraint(
            model_name="item",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["approval", "doubt", "stuck", "dead"])),
                name="item_kind_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="item",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("claimed_at__isnull", True), ("claimed_by__isnull", True), ("claimed_by_name", "")
                    ),
                    models.Q(models.Q(("claimed_by_name", ""), _negated=True), ("claimed_at__isnull", False)),
                    _connector="OR",
                ),
                name="item_claimed_by_somebody",
            ),
        ),
        migrations.AddIndex(
            model_name="readmark",
            index=models.Index(fields=["run_id"], name="read_mark_by_run"),
        ),
        migrations.AddConstraint(
            model_name="readmark",
            constraint=models.UniqueConstraint(fields=("user", "item_id", "kind"), name="read_mark_once"),
        ),
        migrations.AddConstraint(
            model_name="readmark",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["approval", "doubt", "stuck", "dead"])),
                name="read_mark_kind_known",
            ),
        ),
        migrations.RunSQL(
            """
            CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON approvals_question
                FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
            CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON approvals_answer
                FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
            CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON approvals_comment
                FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
            """,
            """
            DROP TRIGGER append_only ON approvals_question;
            DROP TRIGGER append_only ON approvals_answer;
            DROP TRIGGER append_only ON approvals_comment
            """,
        ),
    ]
