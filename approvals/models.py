"""Approvals: requests that people decide on an exact payload.

A request has versions (an edit makes a new one) and votes on versions. Versions and votes are append-only; what is
required is frozen when the approval opens.
"""

from django.conf import settings
from django.db import models
from django.db.models import Q

from runs.clock import Now
from runs.models import Operation, Run
from runs.models.field import RequiredJSONField
from runs.models.run import new_id


class Approval(models.Model):
    class State(models.TextChoices):
        OPEN = "open", "Open"
        APPROVED = "approved", "Approved"
        REJECTED = "rejected", "Rejected"
        EXPIRED = "expired", "Expired"
        VOID = "void", "Void"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, on_delete=models.DO_NOTHING, related_name="approvals")
    operation = models.OneToOneField(Operation, on_delete=models.DO_NOTHING, related_name="approval")
    subject = models.TextField(blank=True, default="")
    name = models.TextField(help_text="The tool, or the name of the question")
    title = models.TextField(help_text="What the agent wants to do, in one line of plain language")
    why = models.TextField(blank=True, default="", help_text="The agent's own words, not checked")
    schema = models.JSONField(help_text="JSON Schema of the payload; edits must satisfy it")
    policy = models.TextField(blank=True, default="")
    requirement = models.JSONField(
        help_text="Frozen: groups, votes, excluded, time limit, what follows expiry"
    )
    state = models.TextField(choices=State, default=State.OPEN)
    version = models.PositiveIntegerField(default=1)
    payload = RequiredJSONField(help_text="Display form of the current version")
    digest = models.TextField(help_text="Keyed digest of the true arguments of the current version")
    opened_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True)
    decided_at = models.DateTimeField(null=True)
    decided_by = models.TextField(blank=True, default="")
    reason = models.TextField(blank=True, default="")
    consumed_at = models.DateTimeField(null=True, help_text="When the run took the decision over")

    class Meta:
        db_table = "approvals_approval"
        permissions = [("decide_approval", "Can approve, reject and edit approvals")]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["open", "approved", "rejected", "expired", "void"]),
                name="approval_state_known",
            ),
            models.CheckConstraint(
                condition=(Q(state="open") & Q(decided_at__isnull=True))
                | (~Q(state="open") & Q(decided_at__isnull=False)),
                name="approval_decided_iff_closed",
            ),
        ]
        indexes = [
            # The inbox: open approvals, oldest deadline first.
            models.Index(fields=["expires_at", "id"], condition=Q(state="open"), name="approval_inbox"),
            # Approvals of a run.
            models.Index(fields=["run", "id"], name="approval_by_run"),
        ]

    def __str__(self) -> str:
        return self.title


class ApprovalVersion(models.Model):
    """One payload that people were shown. Append-only."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    approval = models.ForeignKey(Approval, on_delete=models.DO_NOTHING, related_name="versions")
    version = models.PositiveIntegerField()
    payload = RequiredJSONField()
    payload_sealed = models.BinaryField(null=True)
    digest = models.TextField()
    by = models.TextField(help_text="'agent' for the first")
    by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.DO_NOTHING, related_name="+"
    )
    reason = models.TextField(blank=True, default="")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "approvals_version"
        constraints = [models.UniqueConstraint(fields=["approval", "version"], name="approval_version_once")]

    def __str__(self) -> str:
        return f"version {self.version}"


class Vote(models.Model):
    """One person's verdict on one version. Append-only."""

    class Verdict(models.TextChoices):
        APPROVE = "approve", "Approve"
        REJECT = "reject", "Reject"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    approval = models.ForeignKey(Approval, on_delete=models.DO_NOTHING, related_name="votes")
    version = models.PositiveIntegerField()
    digest = models.TextField()
    verdict = models.TextField(choices=Verdict)
    voter = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, related_name="+")
    voter_name = models.TextField()
    reason = models.TextField(blank=True, default="")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "approvals_vote"
        constraints = [
            models.UniqueConstraint(fields=["approval", "version", "voter"], name="vote_once_per_version"),
            models.CheckConstraint(condition=Q(verdict__in=["approve", "reject"]), name="vote_verdict_known"),
        ]

    def __str__(self) -> str:
        return f"{self.verdict} by {self.voter_name}"
