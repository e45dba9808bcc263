"""Approvals: requests that people decide on an exact payload.

A request has versions (an edit makes a new one) and votes on versions. Versions and votes are append-only; what is
required is frozen when the approval opens.
"""

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from approvals.policies.models import Policy, PolicyRevision, Request, RequestVote
from runs.clock import Now
from runs.models import Operation, Run
from runs.models.field import RequiredJSONField
from runs.models.run import new_id

__all__ = [
    "Answer",
    "Approval",
    "ApprovalVersion",
    "Comment",
    "Item",
    "ItemKind",
    "Policy",
    "PolicyRevision",
    "Question",
    "ReadMark",
    "Request",
    "RequestVote",
    "Vote",
]


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
    reminded_at = models.DateTimeField(null=True, help_text="When people were last reminded of it")
    answers = models.BooleanField(
        default=False, db_default=False, help_text="The workflow answers questions about it"
    )
    asked = models.IntegerField(default=0, db_default=0, help_text="Questions that people asked back")

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
            models.CheckConstraint(condition=Q(asked__gte=0), name="approval_asked_not_negative"),
        ]
        indexes = [
            # The inbox: open approvals, oldest deadline first.
            models.Index(fields=["expires_at", "id"], condition=Q(state="open"), name="approval_inbox"),
            # Approvals of a run.
            models.Index(fields=["run", "id"], name="approval_by_run"),
            # What people decided on the same tool, newest first.
            models.Index(
                F("name"),
                F("id").desc(),
                condition=Q(state__in=["approved", "rejected"]),
                name="approval_decided_alike",
            ),
            # The newest requests for one tool, which a policy is tried on.
            models.Index(F("name"), F("id").desc(), name="approval_by_name"),
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


# --- asking back ---------------------------------------------------------------------------------------------------------


class Question(models.Model):
    """What a person asked back about one version of a request. Append-only; the request stays open."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    approval = models.ForeignKey(
        Approval, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="questions"
    )
    run_id = models.UUIDField()
    number = models.PositiveIntegerField(help_text="From 1, within the request")
    version = models.PositiveIntegerField(help_text="The version that the person saw")
    text = models.TextField()
    by = models.TextField()
    by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "approvals_question"
        constraints = [
            # Also reads the questions of a request in order.
            models.UniqueConstraint(fields=["approval", "number"], name="question_once")
        ]
        indexes = [
            # Retention deletes by run.
            models.Index(fields=["run_id"], name="question_by_run"),
        ]

    def __str__(self) -> str:
        return self.text


class Answer(models.Model):
    """What became of a question. Append-only, and written once."""

    class Outcome(models.TextChoices):
        ANSWERED = "answered", "Answered"
        FAILED = "failed", "Could not be answered"
        NOBODY = "nobody", "The workflow answers no questions here"

    question = models.OneToOneField(
        Question, on_delete=models.DO_NOTHING, db_constraint=False, primary_key=True, related_name="answer"
    )
    run_id = models.UUIDField()
    outcome = models.TextField(choices=Outcome)
    text = models.TextField(blank=True, default="", help_text="The agent's own words, or why there are none")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "approvals_answer"
        constraints = [
            models.CheckConstraint(
                condition=Q(outcome__in=["answered", "failed", "nobody"]), name="answer_outcome_known"
            )
        ]
        indexes = [
            # Retention deletes by run.
            models.Index(fields=["run_id"], name="answer_by_run"),
        ]

    def __str__(self) -> str:
        return self.text


# --- what people do about what waits for them ------------------------------------------------------------------------------


class ItemKind(models.TextChoices):
    """What can wait for people. The id of an item is that of its approval, else that of its run."""

    APPROVAL = "approval", "Approval"
    DOUBT = "doubt", "In doubt"
    STUCK = "stuck", "Stuck"
    DEAD = "dead", "Dead letter"


class Item(models.Model):
    """What people did about something that waits for them: who has claimed it, until when nobody wants to see it.

    Written by the first verb on it. What waits is not here, but where it is: see `approvals.inbox.worklist`.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    kind = models.TextField(choices=ItemKind)
    item_id = models.UUIDField()
    run_id = models.UUIDField()
    claimed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    claimed_by_name = models.TextField(blank=True, default="")
    claimed_at = models.DateTimeField(null=True)
    snoozed_until = models.DateTimeField(null=True)
    snoozed_by = models.TextField(blank=True, default="")
    changed_at = models.DateTimeField(null=True, help_text="When something was added that people should read")
    version = models.PositiveIntegerField(
        default=0, help_text="Guard of the verbs on it against a stale page"
    )

    class Meta:
        db_table = "approvals_item"
        permissions = [("handle_item", "Can claim, assign, snooze and comment on what waits for people")]
        constraints = [
            models.UniqueConstraint(fields=["item_id", "kind"], name="item_once"),
            models.CheckConstraint(
                condition=Q(kind__in=["approval", "doubt", "stuck", "dead"]), name="item_kind_known"
            ),
            models.CheckConstraint(
                condition=Q(claimed_by_name="", claimed_at__isnull=True, claimed_by__isnull=True)
                | (~Q(claimed_by_name="") & Q(claimed_at__isnull=False)),
                name="item_claimed_by_somebody",
            ),
        ]
        indexes = [
            # Retention deletes by run.
            models.Index(fields=["run_id"], name="item_by_run"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.item_id}"


class Comment(models.Model):
    """What people say to one another about an item. Append-only; the agent never reads it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    kind = models.TextField(choices=ItemKind)
    item_id = models.UUIDField()
    run_id = models.UUIDField()
    text = models.TextField()
    by = models.TextField()
    by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "approvals_comment"
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=["approval", "doubt", "stuck", "dead"]), name="comment_kind_known"
            )
        ]
        indexes = [
            # Comments on an item in order.
            models.Index(fields=["item_id", "kind", "id"], name="comment_by_item"),
            # Retention deletes by run.
            models.Index(fields=["run_id"], name="comment_by_run"),
        ]

    def __str__(self) -> str:
        return self.text


class ReadMark(models.Model):
    """Until when one person has read an item."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, db_index=False, related_name="+"
    )
    kind = models.TextField(choices=ItemKind)
    item_id = models.UUIDField()
    run_id = models.UUIDField()
    at = models.DateTimeField()

    class Meta:
        db_table = "approvals_read_mark"
        constraints = [
            models.UniqueConstraint(fields=["user", "item_id", "kind"], name="read_mark_once"),
            models.CheckConstraint(
                condition=Q(kind__in=["approval", "doubt", "stuck", "dead"]), name="read_mark_kind_known"
            ),
        ]
        indexes = [
            # Retention deletes by run.
            models.Index(fields=["run_id"], name="read_mark_by_run"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} read {self.kind} {self.item_id}"
