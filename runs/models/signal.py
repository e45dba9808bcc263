"""Signals: external events in a run's inbox."""

from django.db import models
from django.db.models import Q

from runs.clock import Now

from .field import RequiredPayloadField
from .run import new_id


class Signal(models.Model):
    """Kept before its wait exists, accepted once per (source, external id), answered alike when it comes again."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run_id = models.UUIDField(null=True, help_text="NULL until a wait with its correlation key takes it")
    name = models.TextField()
    correlation = models.TextField(blank=True, default="")
    source = models.TextField()
    external_id = models.TextField()
    payload = RequiredPayloadField()
    payload_sealed = models.BinaryField(null=True)
    digest = models.TextField()
    received_at = models.DateTimeField(db_default=Now())
    sent_by = models.TextField(blank=True, default="")
    consumed_by = models.UUIDField(null=True, help_text="The operation whose wait it settled")
    consumed_at = models.DateTimeField(null=True)
    ignored = models.TextField(blank=True, default="", help_text="Why it was kept but will not be used")

    class Meta:
        db_table = "runs_signal"
        constraints = [
            models.UniqueConstraint(fields=["source", "external_id"], name="signal_once"),
            models.UniqueConstraint(
                fields=["consumed_by"], condition=Q(consumed_by__isnull=False), name="signal_settles_one_wait"
            ),
        ]
        indexes = [
            # A wait that opens looks for a signal that came before it.
            models.Index(
                fields=["run_id", "name"],
                condition=Q(consumed_at__isnull=True, ignored=""),
                name="signal_unused",
            ),
            models.Index(
                fields=["name", "correlation"],
                condition=Q(consumed_at__isnull=True, ignored="", run_id__isnull=True),
                name="signal_unrouted",
            ),
            # The run page.
            models.Index(fields=["run_id", "id"], name="signal_by_run"),
        ]

    def __str__(self) -> str:
        return f"{self.name} from {self.source}"
