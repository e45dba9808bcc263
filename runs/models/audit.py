"""Append-only history: a chain of events per run, and what administrators changed."""

from django.conf import settings
from django.db import models

from runs.clock import Now

from .run import new_id


class Event(models.Model):
    """One line of a run's audit history. Append-only; written by the SQL function `agentops_append_event` alone.

    `head = sha256(previous head || canonical text)`, computed in SQL under the run's lock; `manage.py doctor` verifies it.
    """

    pk = models.CompositePrimaryKey("run_id", "seq")
    run_id = models.UUIDField()
    seq = models.PositiveIntegerField()
    at = models.DateTimeField()
    kind = models.TextField()
    actor_id = models.BigIntegerField(null=True)
    actor = models.TextField(help_text="Name at the time; 'worker …', 'clock' or 'agent' for none")
    reason = models.TextField(blank=True, default="")
    data = models.JSONField(default=dict)
    head = models.BinaryField()

    class Meta:
        db_table = "runs_event"

    def __str__(self) -> str:
        return f"{self.seq} {self.kind} by {self.actor}"


class AuditEvent(models.Model):
    """One thing that a person changed outside a run, such as a limit. Append-only."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    at = models.DateTimeField(db_default=Now())
    kind = models.TextField()
    target = models.TextField()
    actor_user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_column="actor_id",
        related_name="+",
    )
    actor = models.TextField()
    reason = models.TextField(blank=True, default="")
    old = models.JSONField(null=True)
    new = models.JSONField(null=True)

    class Meta:
        db_table = "runs_audit_event"
        indexes = [models.Index(fields=["target", "-id"], name="audit_by_target")]

    def __str__(self) -> str:
        return f"{self.kind} {self.target} by {self.actor}"
