"""Runs and their attempts."""

import uuid

from django.conf import settings
from django.contrib.postgres.indexes import OpClass
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower, Reverse
from uuid_utils.compat import uuid7

from runs.clock import Now
from runs.states import TERMINAL, AttentionKind, FailureKind, Hold, Outcome, Status

from .field import PayloadField, RequiredPayloadField


def new_id() -> uuid.UUID:
    """UUIDv7: time-ordered, so that primary keys grow at one end of the index on every PostgreSQL version."""
    return uuid7()


class Run(models.Model):
    """One execution of a workflow for one input.

    Columns that change at each step stand together: PostgreSQL writes only the changed middle of a row to its log. None of
    them is indexed, so that a checkpoint stays a heap-only update.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workflow = models.TextField()
    version = models.PositiveIntegerField()
    queue = models.TextField(default="default")
    priority = models.PositiveSmallIntegerField(
        default=0, help_text="0–9; each point is a minute's head start"
    )
    subject = models.TextField(
        blank=True, default="", help_text="What the run is about, such as “order 1042”"
    )
    tenant = models.TextField(blank=True, default="")
    start_key = models.TextField(null=True, blank=True)
    started_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,  # see run_by_starter
    )
    started_by_name = models.TextField()
    created_at = models.DateTimeField(db_default=Now())
    deadline_at = models.DateTimeField(null=True, blank=True)

    # --- a child run: who started it, for which wait, as which of its children ---
    parent_id = models.UUIDField(null=True, blank=True)
    parent_operation_id = models.UUIDField(null=True, blank=True)
    child_index = models.IntegerField(null=True, blank=True)
    depth = models.SmallIntegerField(
        default=0, db_default=0, help_text="How many runs stand above it: 0 for one that no run started"
    )
    # ---

    # --- a fork: the run that it was made from, and the visit at which both part ---
    forked_from = models.UUIDField(null=True, blank=True)
    forked_visit = models.IntegerField(null=True, blank=True)
    # ---

    input = RequiredPayloadField()
    input_sealed = models.BinaryField(null=True)
    input_digest = models.TextField(help_text="sha256 of the canonical JSON of the true input")

    # --- changes at each step: keep together, never index ---
    step = models.TextField(help_text="The cursor")
    step_seq = models.PositiveIntegerField(default=1)
    attempt_no = models.PositiveIntegerField(default=0, help_text="Tries of this visit so far")
    status = models.TextField(choices=Status, default=Status.QUEUED)
    epoch = models.PositiveBigIntegerField(default=0)
    wake_at = models.DateTimeField(null=True, blank=True)
    visit_started_at = models.DateTimeField(db_default=Now())
    attempt_started_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0, help_text="Failed and timed-out tries of this visit")
    crashes = models.PositiveIntegerField(default=0, help_text="Tries of this visit whose worker died")
    lone_crashes = models.PositiveIntegerField(default=0, help_text="Of these, deaths while it ran alone")
    state = models.JSONField(default=dict, help_text="Small, in full; large, a pointer: see runs.history")
    state_sealed = models.BinaryField(null=True)
    event_seq = models.PositiveIntegerField(default=0)
    event_head = models.BinaryField(default=b"")
    # ---

    sort_at = models.DateTimeField(
        null=True, blank=True, help_text="wake_at − head start; NULL: nothing to claim"
    )
    worker_id = models.UUIDField(null=True, blank=True)
    held_by = models.TextField(choices=Hold, blank=True, default="")
    held_key = models.TextField(
        blank=True, default="", db_default="", help_text="The limit that holds it, such as “tool refund”"
    )
    held_sort = models.DateTimeField(
        null=True, blank=True, help_text="sort_at of a run that a limit holds, to keep its place"
    )
    compensating = models.BooleanField(default=False)
    resume_step = models.TextField(
        blank=True, default="", help_text="Where the cursor stood when compensation began"
    )
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_by = models.TextField(blank=True, default="")
    attention_kind = models.TextField(choices=AttentionKind, blank=True, default="")
    failure_kind = models.TextField(choices=FailureKind, blank=True, default="")
    reason = models.TextField(
        blank=True, default="", help_text="Why it failed or needs attention, in a sentence"
    )
    fingerprint = models.UUIDField(
        null=True, blank=True, editable=False, help_text="Of its last failure, also after a retry"
    )
    result = PayloadField(null=True, blank=True)
    result_sealed = models.BinaryField(null=True)
    external = models.JSONField(default=dict, help_text="Identifiers elsewhere: transactions, sessions")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "runs_run"
        permissions = [
            ("start_run", "Can start a run"),
            ("signal_run", "Can send a signal to a run"),
            ("retry_run", "Can retry a failed run"),
            ("cancel_run", "Can cancel a run"),
            ("force_resume_run", "Can force a run on"),
            ("fork_run", "Can fork a run from one of its visits"),
            ("skip_step", "Can let a run go on at another step"),
            ("edit_state", "Can edit the state of a run"),
            ("kill_run", "Can kill a run"),
            ("resolve_doubt", "Can say whether an effect happened"),
            ("view_payload", "Can see inputs, states, messages and payloads"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in Status]), name="run_status_known"
            ),
            models.CheckConstraint(condition=Q(priority__lte=9), name="run_priority_range"),
            # A running run has a worker and is never offered; nobody else has one.
            models.CheckConstraint(
                condition=Q(
                    status="running", worker_id__isnull=False, wake_at__isnull=False, sort_at__isnull=True
                )
                | (~Q(status="running") & Q(worker_id__isnull=True)),
                name="run_worker_iff_running",
            ),
            models.CheckConstraint(
                condition=Q(
                    status__in=sorted(s.value for s in TERMINAL),
                    wake_at__isnull=True,
                    sort_at__isnull=True,
                    finished_at__isnull=False,
                )
                | (~Q(status__in=sorted(s.value for s in TERMINAL)) & Q(finished_at__isnull=True)),
                name="run_terminal_is_still",
            ),
            models.CheckConstraint(
                condition=(Q(status="failed") & ~Q(failure_kind=""))
                | (~Q(status="failed") & Q(failure_kind="")),
                name="run_failed_iff_kind",
            ),
            models.CheckConstraint(
                condition=(Q(status="attention") & ~Q(attention_kind=""))
                | (~Q(status="attention") & Q(attention_kind="")),
                name="run_attention_iff_kind",
            ),
            # Unfinished and not waiting: a wake time or a hold, or nobody would ever look again.
            models.CheckConstraint(
                condition=~Q(status__in=["queued", "retrying", "cancelling"])
                | Q(wake_at__isnull=False, sort_at__isnull=False)
                | ~Q(held_by=""),
                name="run_has_wake_source",
            ),
            models.CheckConstraint(
                condition=Q(wake_at__isnull=True, sort_at__isnull=True)
                | Q(wake_at__isnull=False, sort_at__isnull=False)
                | Q(status="running"),
                name="run_sort_follows_wake",
            ),
            models.CheckConstraint(
                condition=~Q(status="cancelling") | Q(compensating=True), name="run_cancelling_compensates"
            ),
            models.CheckConstraint(condition=Q(step_seq__gte=1), name="run_visit_counts_from_one"),
            models.UniqueConstraint(
                fields=["workflow", "start_key"],
                condition=Q(start_key__isnull=False),
                name="run_start_key_once",
            ),
            # Also reads the children of a wait in order. No CHECK ties the columns of a child together: PostgreSQL would read
            # its text anew at every checkpoint of every run.
            models.UniqueConstraint(
                fields=["parent_operation_id", "child_index"],
                condition=Q(parent_operation_id__isnull=False),
                name="run_child_once",
            ),
        ]
        indexes = [
            # The claim: due runs of one queue in order.
            models.Index(fields=["queue", "sort_at"], condition=Q(sort_at__isnull=False), name="run_due"),
            # A process for runs that crashed a worker looks for these alone.
            models.Index(
                fields=["queue", "sort_at"],
                condition=Q(sort_at__isnull=False, crashes__gt=0),
                name="run_due_alone",
            ),
            # Take-over, overruns and a worker's page: runs that a worker holds.
            models.Index(
                fields=["worker_id"], condition=Q(worker_id__isnull=False), name="run_held_by_worker"
            ),
            # Runs list: newest first, all, by workflow, by status.
            models.Index(fields=["workflow", "-id"], name="run_by_workflow"),
            models.Index(F("status"), F("id").desc(), name="run_by_status"),
            # Lifting a hold re-arms the parked runs.
            models.Index(fields=["held_by", "workflow"], condition=~Q(held_by=""), name="run_parked"),
            # A limit has room again: those that it holds, in the order in which they became due.
            models.Index(
                fields=["held_key", "held_sort"],
                condition=Q(held_by__in=["concurrency", "rate"]),
                name="run_held_by_limit",
            ),
            # Runs list, narrowed to one workflow: a status of it, and how many there are of each.
            models.Index(F("workflow"), F("status"), F("id").desc(), name="run_by_workflow_status"),
            # Failed runs that no workflow asked to fail: list and count.
            models.Index(
                F("id").desc(),
                condition=Q(status="failed") & ~Q(failure_kind="declared"),
                name="run_dead_letter",
            ),
            # Runs that stand for a person: those in doubt, and all others.
            models.Index(
                fields=["id"], condition=Q(status="attention", attention_kind="in_doubt"), name="run_in_doubt"
            ),
            models.Index(
                fields=["id"],
                condition=Q(status="attention") & ~Q(attention_kind="in_doubt"),
                name="run_stuck",
            ),
            # "All runs on order 1042"; search by the beginning of a subject, its end, and the beginning of a start key.
            models.Index(
                OpClass(Lower("subject"), name="text_pattern_ops"),
                condition=~Q(subject=""),
                name="run_subject_begins",
            ),
            models.Index(
                OpClass(Reverse(Lower("subject")), name="text_pattern_ops"),
                condition=~Q(subject=""),
                name="run_subject_ends",
            ),
            models.Index(
                OpClass(Lower("start_key"), name="text_pattern_ops"),
                condition=Q(start_key__isnull=False),
                name="run_start_key",
            ),
            # Deleting a user clears it. Runs that no person started are not in it: each claim would write an entry.
            models.Index(fields=["started_by"], condition=Q(started_by__isnull=False), name="run_by_starter"),
            # A child has ended: is one of its siblings still going?
            models.Index(
                fields=["parent_operation_id", "child_index"],
                condition=Q(parent_operation_id__isnull=False, finished_at__isnull=True),
                name="run_unfinished_child",
            ),
            # The runs of a failure group, by status: list and count.
            models.Index(
                F("fingerprint"),
                F("status"),
                F("id").desc(),
                condition=Q(fingerprint__isnull=False),
                name="run_by_fingerprint",
            ),
            # Failed before there were groups, or under a worker of an older version: given a fingerprint later.
            models.Index(
                fields=["id"],
                condition=Q(status__in=["failed", "attention"], fingerprint__isnull=True),
                name="run_without_fingerprint",
            ),
            # The forks of a run: its page, and whether one of them is under way.
            models.Index(
                fields=["forked_from", "id"], condition=Q(forked_from__isnull=False), name="run_forks"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workflow} {str(self.id)[:13]}"

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def seen_version(self) -> int:
        """Guard of a verb against a stale page: every change that a person can see writes an event."""
        return self.event_seq


class Attempt(models.Model):
    """One try at one visit; a row written once, when it ends. Append-only.

    No foreign key: the row is written under the run's lock in the statement that moves the run, and a key check would lock
    and log the run's row a second time at each step.
    """

    pk = models.CompositePrimaryKey("run_id", "step_seq", "attempt_no")
    run_id = models.UUIDField()
    step_seq = models.PositiveIntegerField()
    attempt_no = models.PositiveIntegerField()
    epoch = models.PositiveBigIntegerField()
    step = models.TextField()
    outcome = models.TextField(choices=Outcome)
    worker_id = models.UUIDField(null=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    error_type = models.TextField(blank=True, default="")
    error = models.TextField(blank=True, default="")
    traceback = models.TextField(blank=True, default="")
    retry_at = models.DateTimeField(null=True)
    state_after = models.JSONField(
        null=True, help_text="The state as this attempt left it, in full or as a patch; NULL: unchanged"
    )
    state_after_sealed = models.BinaryField(null=True)
    closed_by = models.TextField(
        blank=True, default="", help_text="Empty: its own worker; else who closed it"
    )

    class Meta:
        db_table = "runs_attempt"
        constraints = [
            models.CheckConstraint(
                condition=Q(outcome__in=[o.value for o in Outcome]), name="attempt_outcome_known"
            )
        ]

    def __str__(self) -> str:
        return f"{self.step} visit {self.step_seq} try {self.attempt_no}: {self.outcome}"


class StartKey(models.Model):
    """The start key of a run that retention has deleted: the same key starts no second run. Append-only.

    Written by the SQL function `agentops_delete_runs` alone, in the transaction that deletes the run.
    """

    pk = models.CompositePrimaryKey("workflow", "start_key")
    workflow = models.TextField()
    start_key = models.TextField()
    run_id = models.UUIDField(help_text="The run that it started")
    input_digest = models.TextField()
    deleted_at = models.DateTimeField()

    class Meta:
        db_table = "runs_start_key"

    def __str__(self) -> str:
        return f"{self.workflow} {self.start_key}"


class Clock(models.Model):
    """At most one row, which only tests write: how far business time is moved."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    shift = models.DurationField()

    class Meta:
        db_table = "runs_clock"
        constraints = [models.CheckConstraint(condition=Q(id=1), name="clock_one_row")]

    def __str__(self) -> str:
        return str(self.shift)
