"""Worker processes."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q


class Worker(models.Model):
    """One process. Its row is the lease of every run that it holds: one UPDATE a beat renews them all."""

    id = models.UUIDField(primary_key=True)
    host = models.TextField()
    pid = models.PositiveIntegerField()
    process = models.TextField(
        blank=True, default="", help_text="Boot, PID namespace, number and start time; empty: not known"
    )
    queues = ArrayField(models.TextField())
    capabilities = ArrayField(models.TextField(), help_text="workflow@version/step")
    slots = models.PositiveIntegerField()
    code_version = models.TextField(blank=True, default="")
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    beat_until = models.DateTimeField()
    draining = models.BooleanField(default=False)
    lost_slots = models.PositiveIntegerField(default=0)
    closed_at = models.DateTimeField(null=True, help_text="No beat renews a closed row")
    reaped_at = models.DateTimeField(null=True, help_text="waitpid returned, or a person declared it gone")
    gone_by = models.TextField(blank=True, default="")

    class Meta:
        db_table = "runs_worker"
        permissions = [("declare_gone", "Can declare a worker gone for good")]
        constraints = [
            models.CheckConstraint(
                condition=Q(reaped_at__isnull=True) | Q(closed_at__isnull=False),
                name="worker_reaped_is_closed",
            )
        ]
        indexes = [
            # Whose lease is over; which live workers are capable.
            models.Index(fields=["beat_until"], condition=Q(closed_at__isnull=True), name="worker_open"),
            # Closed, and nobody has seen it end: any worker on the same machine looks whether it has.
            models.Index(
                fields=["id"],
                condition=Q(closed_at__isnull=False, reaped_at__isnull=True),
                name="worker_unreaped",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"
