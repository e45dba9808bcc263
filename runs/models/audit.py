"""Append-only history: a chain of events per run, and what administrators changed."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from runs.clock import Now

from .run import new_id

#: What an approval's policy does in the place of people.
ACTED_BY_POLICIES = ["approval_decided", "approval_escalated", "approval_parked", "approval_reminded"]
#: Events that people caused, by the console or the command line, and those that an approval's policy did in their place. No
#: worker writes one, so that the indexes with this condition cost a run nothing.
ACTED = Q(actor_id__isnull=False) | Q(actor="command line") | Q(kind__in=ACTED_BY_POLICIES)


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
        indexes = [
            # The audit page: what people and policies did to runs, all, of one of them, of one kind; newest first.
            models.Index(fields=["at", "run_id", "seq"], condition=ACTED, name="event_acted"),
            models.Index(fields=["actor", "at", "run_id", "seq"], condition=ACTED, name="event_acted_by"),
            models.Index(fields=["kind", "at", "run_id", "seq"], condition=ACTED, name="event_acted_kind"),
            # What people did to one run, among all that workers wrote of it: its timeline.
            models.Index(fields=["run_id", "seq"], condition=ACTED, name="event_acted_on_run"),
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind} by {self.actor}"


class AuditEvent(models.Model):
    """One thing that a person changed outside a run, such as a limit. Append-only; chained by `AuditLink`."""

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
        indexes = [
            models.Index(fields=["target", "-id"], name="audit_by_target"),
            # The audit page: all, of one person, of one kind; newest first.
            models.Index(fields=["at", "id"], name="audit_by_time"),
            models.Index(fields=["actor", "at", "id"], name="audit_by_actor"),
            models.Index(fields=["kind", "at", "id"], name="audit_by_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.target} by {self.actor}"


class AuditLink(models.Model):
    """The place of an audit event in the chain over all of them. Append-only; written by the trigger `chain` alone, at commit.

    `head = sha256(head of the link before || canonical text)`; `manage.py doctor` and the audit page verify it.
    """

    seq = models.BigIntegerField(primary_key=True)
    event_id = models.UUIDField(unique=True)
    head = models.BinaryField()

    class Meta:
        db_table = "runs_audit_link"

    def __str__(self) -> str:
        return f"{self.seq} {self.event_id}"


class AuditHead(models.Model):
    """The one row under whose lock the audit chain grows: where it ends."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    seq = models.BigIntegerField()
    head = models.BinaryField()

    class Meta:
        db_table = "runs_audit_head"
        constraints = [models.CheckConstraint(condition=Q(id=1), name="audit_head_one_row")]

    def __str__(self) -> str:
        return str(self.seq)


class ChainCheck(models.Model):
    """One check of the audit chain, from its first link to its last; made a part at a time.

    First each link is compared with the one before and with its event, then each event is looked up among the links. What an
    earlier check found sound is an anchor: a chain that was made anew as a whole has another digest there.
    """

    class State(models.TextChoices):
        CHECKING = "checking", "Under way"
        SOUND = "sound", "Sound"
        BROKEN = "broken", "Broken"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    begun_at = models.DateTimeField(db_default=Now())
    begun_by = models.TextField()
    state = models.TextField(choices=State, default=State.CHECKING)
    seq = models.BigIntegerField(default=0, help_text="The last link that was found good")
    head = models.BinaryField(default=b"", help_text="Its digest")
    linked = models.BooleanField(default=False, help_text="Every link is good; events are looked up now")
    looked_up = models.UUIDField(null=True, help_text="The last event that was found in a link")
    ended_at = models.DateTimeField(null=True)
    bad_seq = models.BigIntegerField(null=True, help_text="The first link that is not good")
    bad_event = models.UUIDField(null=True, help_text="The event of that link, or the first in none")
    said = models.TextField(blank=True, default="", help_text="What is wrong, as a sentence")

    class Meta:
        db_table = "runs_chain_check"
        default_permissions = ()
        constraints = [
            models.CheckConstraint(
                condition=Q(state="checking", ended_at__isnull=True)
                | Q(state__in=["sound", "broken"], ended_at__isnull=False),
                name="chain_check_ended_iff_over",
            ),
            models.CheckConstraint(
                condition=Q(state="broken") & ~Q(said="") | ~Q(state="broken") & Q(said=""),
                name="chain_check_broken_iff_said",
            ),
            # Two people who press the button go on with the same check.
            models.UniqueConstraint(
                fields=["state"], condition=Q(state="checking"), name="chain_check_one_at_work"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.state} up to {self.seq}"
