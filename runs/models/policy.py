"""Overrides of what the code says, read when a decision is made; and what limits that act at a claim need."""

from django.db import models
from django.db.models import Q

from runs.clock import Now

YEAR_S = 365 * 24 * 3600
CENTURY_DAYS = 36_525
MILLION = 1_000_000
#: Name of the one scope that is as wide as it gets.
ALL = "all"


class Policy(models.Model):
    """Overrides for one scope. An empty column means: the next wider scope decides, in the end the code.

    Scopes, narrow to wide: a step (`refund_request/act`), a workflow (`refund_request`); a tool (`refund`). Concurrency, rate
    and pause act in each scope on its own, and may be set for a queue (`default`) and for everything (`all`) as well.
    """

    class Scope(models.TextChoices):
        WORKFLOW = "workflow", "Workflow"
        STEP = "step", "Step"
        TOOL = "tool", "Tool"
        QUEUE = "queue", "Queue"
        EVERYTHING = "everything", "Everything"

    scope = models.TextField(choices=Scope)
    name = models.TextField()
    max_attempts = models.PositiveIntegerField(null=True, blank=True)
    backoff_base_s = models.FloatField(null=True, blank=True)
    backoff_max_s = models.FloatField(null=True, blank=True)
    timeout_s = models.FloatField(null=True, blank=True)
    crash_limit = models.PositiveIntegerField(null=True, blank=True)
    retention_days = models.PositiveIntegerField(null=True, blank=True)
    concurrency = models.PositiveIntegerField(null=True, blank=True)
    rate_count = models.PositiveIntegerField(null=True, blank=True)
    rate_period_s = models.FloatField(null=True, blank=True)
    priority = models.PositiveSmallIntegerField(null=True, blank=True)
    temporary = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="By limit: values that act until a time, then the columns again (runs.policies)",
    )
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
                condition=Q(scope__in=["workflow", "step", "tool", "queue", "everything"]),
                name="policy_scope_known",
            ),
            models.CheckConstraint(
                condition=~Q(scope="everything") | Q(name=ALL), name="policy_everything_is_one"
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
                condition=Q(paused=False) | Q(scope__in=["workflow", "queue", "everything"]),
                name="policy_pause_scope",
            ),
            models.CheckConstraint(
                condition=Q(concurrency__isnull=True) | Q(concurrency__gte=1, concurrency__lte=MILLION),
                name="policy_concurrency_range",
            ),
            models.CheckConstraint(
                condition=Q(rate_count__isnull=True, rate_period_s__isnull=True)
                | Q(
                    rate_count__isnull=False,
                    rate_count__gte=1,
                    rate_count__lte=MILLION,
                    rate_period_s__isnull=False,
                    rate_period_s__gt=0,
                    rate_period_s__lte=YEAR_S,
                ),
                name="policy_rate_is_whole",
            ),
            models.CheckConstraint(
                condition=Q(priority__isnull=True) | Q(scope="workflow", priority__lte=9),
                name="policy_priority_range",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


class Limit(models.Model):
    """A scope that has, or had, a limit of concurrency or rate. Its lock orders those who claim or call under the limit.

    How many are at it now is counted from live leases, never kept here. Made when the limit is first met.
    """

    key = models.TextField(primary_key=True, help_text="Scope and name, such as “step refund_request/act”")
    tokens = models.FloatField(help_text="Of its rate limit, when it was last looked at")
    refilled_at = models.DateTimeField()

    class Meta:
        db_table = "runs_limit"
        constraints = [models.CheckConstraint(condition=Q(tokens__gte=0), name="limit_tokens_not_negative")]

    def __str__(self) -> str:
        return self.key


class LimitedCall(models.Model):
    """A call of a tool with a concurrency limit, while it is under way. It counts while its worker's lease is live."""

    id = models.UUIDField(primary_key=True)
    key = models.TextField()
    run_id = models.UUIDField()
    worker_id = models.UUIDField()
    begun_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "runs_limited_call"
        indexes = [
            # How many calls are under way under one limit.
            models.Index(fields=["key"], name="limited_call_by_key"),
            # Calls of workers that have ended are removed.
            models.Index(fields=["worker_id"], name="limited_call_by_worker"),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.run_id}"
