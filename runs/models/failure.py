"""Failures that are alike, as one thing that people look at once."""

import uuid

from django.db import models
from django.db.models import F, Q

from runs.clock import Now


class FailureGroup(models.Model):
    """Runs that failed (or need attention) with one fingerprint, and what people have said about it.

    Made and touched in the transaction in which a run enters `failed` or `attention` (`runs.diagnosis.failures.entered`). How
    many runs are in it is counted when somebody asks, from the runs themselves: a counter here would be one row that all
    failures wait for.
    """

    class State(models.TextChoices):
        OPEN = "open", "Open"
        ACKNOWLEDGED = "acknowledged", "Acknowledged"
        FIXED = "fixed", "Fixed"
        HANDLED = "handled", "Handled"

    class Sort(models.TextChoices):
        FAILURE = "failure", "Failure"
        ATTENTION = "attention", "Attention"

    fingerprint = models.UUIDField(primary_key=True, editable=False)
    signature = models.UUIDField(help_text="The fingerprint without the version")
    sort = models.TextField(choices=Sort)
    workflow = models.TextField()
    version = models.PositiveIntegerField()
    step = models.TextField()
    error_type = models.TextField(blank=True)
    message = models.TextField(
        blank=True, help_text="The error's text with what differs from run to run folded away"
    )

    first_at = models.DateTimeField()
    last_at = models.DateTimeField(help_text="To ten seconds: failures closer together do not write it")

    state = models.TextField(choices=State, default=State.OPEN)
    fixed_in = models.PositiveIntegerField(
        null=True, blank=True, help_text="Version of the workflow from which on it should not happen"
    )
    changed_at = models.DateTimeField(db_default=Now())
    changed_by = models.TextField(blank=True, default="")
    revision = models.PositiveIntegerField(default=0, help_text="Guard against stale pages")

    class Meta:
        db_table = "runs_failure_group"
        default_permissions = ()
        permissions = [("handle_failures", "Can say what becomes of a group of failures")]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["open", "acknowledged", "fixed", "handled"]),
                name="failure_state_known",
            ),
            models.CheckConstraint(condition=Q(sort__in=["failure", "attention"]), name="failure_sort_known"),
            models.CheckConstraint(
                condition=~Q(state="fixed") | Q(fixed_in__isnull=False, fixed_in__gte=1),
                name="failure_fixed_in_version",
            ),
            models.CheckConstraint(condition=Q(last_at__gte=F("first_at")), name="failure_seen_in_order"),
        ]
        indexes = [
            # The list: one state, or everything that is not handled, newest failure first; and how many there are.
            models.Index(
                F("sort"), F("state"), F("last_at").desc(), F("fingerprint").desc(), name="failure_by_state"
            ),
            models.Index(
                F("sort"),
                F("last_at").desc(),
                F("fingerprint").desc(),
                condition=~Q(state="handled"),
                name="failure_unhandled",
            ),
            # The same error in other versions: its page, and what a new failure re-opens.
            models.Index(fields=["signature"], name="failure_by_signature"),
        ]

    def __str__(self) -> str:
        return f"{self.error_type or 'no error'} in {self.workflow}/{self.step}, version {self.version}"

    @property
    def fixed_words(self) -> str:
        """What follows “Fixed”."""
        return f" in version {self.fixed_in}"

    @property
    def target(self) -> str:
        """What the audit calls it."""
        return target_of(self.fingerprint)


def target_of(fingerprint: uuid.UUID) -> str:
    return f"failure {fingerprint}"


class FailureTally(models.Model):
    """How often runs entered a group within one hour. Several rows an hour, so that failures seldom wait for one another."""

    pk = models.CompositePrimaryKey("fingerprint", "hour", "shard")
    fingerprint = models.UUIDField()
    hour = models.DateTimeField(help_text="When it begins, UTC")
    shard = models.PositiveSmallIntegerField()
    failures = models.PositiveIntegerField(default=0)

    class Meta:
        db_table = "runs_failure_tally"
        default_permissions = ()
        indexes = [
            # What is older than any page shows is deleted.
            models.Index(fields=["hour"], name="failure_tally_by_hour")
        ]

    def __str__(self) -> str:
        return f"{self.failures} in the hour from {self.hour:%Y-%m-%d %H:%M}"
