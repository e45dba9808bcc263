"""Overrides of what the code says, read when a decision is made."""

from django.db import models
from django.db.models import Q

from runs.clock import Now

YEAR_S = 365 * 24 * 3600
CENTURY_DAYS = 36_525


class Policy(models.Model):
    """Overrides for one scope. An empty column means: the next wider scope decides, in the end the code.

    Scopes, narrow to wide: a step (`refund_request/act`), a workflow (`refund_request`); a tool (`refund`).
    """

    class Scope(models.TextChoices):
        WORKFLOW = "workflow", "Workflow"
        STEP = "step", "Step"
        TOOL = "tool", "Tool"

    scope = models.TextField(choices=Scope)
    name = models.TextField()
    max_attempts = models.PositiveIntegerField(null=True, blank=True)
    backoff_base_s = models.FloatField(null=True, blank=True)
    backoff_max_s = models.FloatField(null=True, blank=True)
    timeout_s = models.FloatField(null=True, blank=True)
    crash_limit = models.PositiveIntegerField(null=True, blank=True)
    retention_days = models.PositiveIntegerField(null=True, blank=True)
    paused = models.BooleanField(default=False)
    pause_reason = models.TextField(blank=True, default="")
    revision = models.PositiveIntegerField(default=1)
    changed_at = models.DateTimeField(db_default=Now())
    changed_by = models.TextField(blank=True, default="")

    class Meta:
        db_table = "runs_policy"
        permissions = [("change_limits", "Can change limits and pause workflows")]
        constraints = [
            models.UniqueConstraint(fields=["scope", "name"], name="policy_scope_once"),
            models.CheckConstraint(
                condition=Q(scope__in=["workflow", "step", "tool"]), name="policy_scope_known"
            ),
            models.CheckConstraint(
                condition=Q(max_attempts__isnull=True) | Q(max_attempts__gte=1, max_attempts__lte=1000),
                name="policy_attempts_range",
            ),
            models.CheckConstraint(
                condition=Q(timeout_s__isnull=True) | Q(timeout_s__gt=0), name="policy_timeout_positive"
            ),
            models.CheckConstraint(
                condition=(Q(backoff_base_s__isnull=True) | Q(backoff_base_s__gte=0))
                & (Q(backoff_max_s__isnull=True) | Q(backoff_max_s__gte=0)),
                name="policy_backoff_not_negative",
            ),
            # Longer is a slip of the hand, and more than a timedelta holds would stop the engine.
            models.CheckConstraint(
                condition=(Q(timeout_s__isnull=True) | Q(timeout_s__lte=YEAR_S))
                & (Q(backoff_base_s__isnull=True) | Q(backoff_base_s__lte=YEAR_S))
                & (Q(backoff_max_s__isnull=True) | Q(backoff_max_s__lte=YEAR_S)),
                name="policy_seconds_within_a_year",
            ),
            models.CheckConstraint(
                condition=Q(crash_limit__isnull=True) | Q(crash_limit__gte=1),
                name="policy_crash_limit_positive",
            ),
            models.CheckConstraint(
                condition=Q(retention_days__isnull=True)
                | Q(retention_days__gte=1, retention_days__lte=CENTURY_DAYS),
                name="policy_retention_range",
            ),
            models.CheckConstraint(
                condition=Q(retention_days__isnull=True) | Q(scope="workflow"),
                name="policy_retention_is_workflow",
            ),
            models.CheckConstraint(
                condition=Q(paused=False) | Q(scope="workflow"), name="policy_pause_is_workflow"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"
