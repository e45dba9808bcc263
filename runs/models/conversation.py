"""Messages and log lines of a run."""

from django.db import models

from runs.clock import Now

from .field import RequiredPayloadField
from .run import new_id


class Message(models.Model):
    """A conversation entry; keyed (visit, position), visible at once, matched on re-execution."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run_id = models.UUIDField()
    step_seq = models.PositiveIntegerField()
    position = models.TextField()
    attempt_no = models.PositiveIntegerField()
    role = models.TextField()
    content = RequiredPayloadField()
    content_sealed = models.BinaryField(null=True)
    digest = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "runs_message"
        constraints = [
            # Identity, and the page of a run's messages in order.
            models.UniqueConstraint(fields=["run_id", "step_seq", "position"], name="message_identity")
        ]

    def __str__(self) -> str:
        return f"{self.role}: {str(self.content)[:40]}"


class LogLine(models.Model):
    """A line that a step logged; keyed like a message, so that a retried step does not write it twice."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run_id = models.UUIDField()
    step_seq = models.PositiveIntegerField()
    position = models.TextField()
    attempt_no = models.PositiveIntegerField()
    level = models.TextField(default="info")
    text = models.TextField()
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "runs_log_line"
        constraints = [
            models.UniqueConstraint(fields=["run_id", "step_seq", "position"], name="log_line_identity")
        ]

    def __str__(self) -> str:
        return self.text
