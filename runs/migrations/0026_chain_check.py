"""Checks of the audit chain, and how far each has come."""

from django.db import migrations, models
from django.db.models import Q

import runs.clock
import runs.models.run


class Migration(migrations.Migration):
    dependencies = [("runs", "0025_sends_online")]

    operations = [
        migrations.CreateModel(
            name="ChainCheck",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=runs.models.run.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("begun_at", models.DateTimeField(db_default=runs.clock.Now())),
                ("begun_by", models.TextField()),
                (
                    "state",
                    models.TextField(
                        choices=[("checking", "Under way"), ("sound", "Sound"), ("broken", "Broken")],
                        default="checking",
                    ),
                ),
                (
                    "seq",
                    models.BigIntegerField(default=0, help_text="The last link that was found good"),
                ),
                ("head", models.BinaryField(default=b"", help_text="Its digest")),
                (
                    "linked",
                    models.BooleanField(
                        default=False, help_text="Every link is good; events are looked up now"
                    ),
                ),
                (
                    "looked_up",
                    models.UUIDField(help_text="The last event that was found in a link", null=True),
                ),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "bad_seq",
                    models.BigIntegerField(help_text="The first link that is not good", null=True),
                ),
                (
                    "bad_event",
                    models.UUIDField(help_text="The event of that link, or the first in none", null=True),
                ),
                (
                    "said",
                    models.TextField(blank=True, default="", help_text="What is wrong, as a sentence"),
                ),
            ],
            options={
                "db_table": "runs_chain_check",
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(("ended_at__isnull", True), ("state", "checking"))
                        | Q(("ended_at__isnull", False), ("state__in", ["sound", "broken"])),
                        name="chain_check_ended_iff_over",
                    ),
                    models.CheckConstraint(
                        condition=Q(("state", "broken"), Q(("said", ""), _negated=True))
                        | Q(Q(("state", "broken"), _negated=True), ("said", "")),
                        name="chain_check_broken_iff_said",
                    ),
                    models.UniqueConstraint(
                        fields=["state"],
                        condition=Q(("state", "checking")),
                        name="chain_check_one_at_work",
                    ),
                ],
            },
        ),
    ]
