"""Worker processes."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q


class Asked(models.TextChoices):
    """What a person asks of a worker process."""

    DRAIN = "drain", "Take no new runs"
    RECYCLE = "recycle", "End, and let its cluster start another"


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
    code_version = models.TextField(blank=True, default="")  # runs.engine.code
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    beat_until = models.DateTimeField()
    draining = models.BooleanField(default=False)
    lost_slots = models.PositiveIntegerField(default=0)
    closed_at = models.DateTimeField(null=True, help_text="No beat renews a closed row")
    reaped_at = models.DateTimeField(null=True, help_text="waitpid returned, or a person declared it gone")
    gone_by = models.TextField(blank=True, default="")
    asked = models.TextField(
        choices=Asked,
        blank=True,
        default="",
        db_default="",
        help_text="What a person wants of it; read at each beat",
    )
    asked_by = models.TextField(blank=True, default="", db_default="")

    class Meta:
        db_table = "runs_worker"
        permissions = [
            ("declare_gone", "Can declare a worker gone for good"),
            ("drain_worker", "Can drain and recycle workers"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(asked__in=["", "drain", "recycle"]), name="worker_asked_known"
            ),
            models.CheckConstraint(
                condition=Q(reaped_at__isnull=True) | Q(closed_at__isnull=False),
                name="worker_reaped_is_closed",
            ),
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


#: Bins of `Activity.waits` and `.times`; bin n counts what takes less than 2^n ms, the last one (from 131 s on) the rest.
BINS = 19


class Activity(models.Model):
    """What a worker did in five minutes for one queue. For charts; a worker that is killed takes its last seconds with it."""

    pk = models.CompositePrimaryKey("at", "worker_id", "queue")
    at = models.DateTimeField(help_text="Beginning of the five minutes")
    worker_id = models.UUIDField()
    queue = models.TextField()
    started = models.PositiveIntegerField(help_text="Runs claimed for the first time")
    completed = models.PositiveIntegerField(help_text="Runs")
    steps = models.PositiveIntegerField(help_text="Attempts that succeeded")
    suspended = models.PositiveIntegerField(help_text="Attempts that ended to wait")
    failed = models.PositiveIntegerField(help_text="Attempts that ended with an error")
    waits = ArrayField(models.IntegerField(), size=BINS, help_text="Of new runs, from start to claim, by bin")
    times = ArrayField(models.IntegerField(), size=BINS, help_text="Of attempts that succeeded, by bin")

    class Meta:
        db_table = "runs_activity"

    def __str__(self) -> str:
        return f"{self.queue} at {self.at:%Y-%m-%d %H:%M}"
