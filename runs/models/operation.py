"""Operations: what a visit did, asked and waited for."""

from django.db import models
from django.db.models import F, Q

from runs.clock import Now

from .field import PayloadField, RequiredPayloadField
from .run import Run, new_id


class Kind(models.TextChoices):
    EFFECT = "effect", "Effect"
    QUERY = "query", "Query"
    MODEL = "model", "Model request"
    APPROVAL = "approval", "Approval"
    SIGNAL = "signal", "Signal"
    TIMER = "timer", "Timer"
    CHILD = "child", "Child run"


class OpStatus(models.TextChoices):
    #: An effect's intent is committed and no outcome is known. Nobody executing it = in doubt.
    PENDING = "pending", "Pending"
    #: A wait is open.
    OPEN = "open", "Open"
    #: It certainly did not happen; it is tried again at the next look.
    RETRY = "retry", "Retrying"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    #: A wait that a cancel or an edit closed.
    CLOSED = "closed", "Closed"


class Rest(models.TextChoices):
    #: They are to be cancelled now.
    CANCEL = "cancel", "Cancel"
    #: They are to be cancelled once the run that started them has ended.
    AT_END = "at_end", "Cancel at the end"


WAIT_KINDS = (Kind.APPROVAL, Kind.SIGNAL, Kind.TIMER, Kind.CHILD)


class Operation(models.Model):
    """One recorded thing inside a visit; identity is (run, visit, position)."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    step_seq = models.PositiveIntegerField()
    position = models.TextField(help_text="The author's label or the ordinal")
    ordinal = models.PositiveIntegerField(help_text="Order of first appearance within the visit")
    attempt_no = models.PositiveIntegerField()
    kind = models.TextField(choices=Kind)
    name = models.TextField(help_text="Tool, model, signal or approval name")
    forgotten = models.BooleanField(default=False, help_text="A query that a later attempt asked again")
    args_digest = models.TextField(
        help_text="sha256 of the canonical JSON of the true arguments as requested"
    )
    status = models.TextField(choices=OpStatus)

    request = RequiredPayloadField()
    request_sealed = models.BinaryField(null=True)
    approved = PayloadField(null=True, help_text="Arguments as approved, where a person edited them")
    approved_sealed = models.BinaryField(null=True)
    response = PayloadField(
        null=True, help_text="The raw answer, where the result is not just that: it is not stored twice"
    )
    response_sealed = models.BinaryField(null=True)
    result = PayloadField(null=True)
    result_sealed = models.BinaryField(null=True)
    error_type = models.TextField(blank=True, default="")
    error = models.TextField(blank=True, default="")

    provider_key = models.UUIDField(null=True)
    provider_ref = models.TextField(blank=True, default="")
    generation = models.PositiveIntegerField(default=0)
    tries = models.PositiveIntegerField(default=0, help_text="Definite answers, retryable errors included")
    looks = models.PositiveIntegerField(default=0, help_text="Verifications that could not settle it")
    intent_epoch = models.PositiveBigIntegerField(null=True)
    intent_worker_id = models.UUIDField(null=True)
    intent_at = models.DateTimeField(null=True)
    first_sent_at = models.DateTimeField(null=True)
    call_ended_at = models.DateTimeField(
        null=True, help_text="The sender said: my call is over, outcome unknown"
    )
    earlier_send_open = models.BooleanField(
        default=False, help_text="Sent again while an earlier send could land"
    )
    settled_by = models.TextField(blank=True, default="", help_text="Empty: an answer; verify; or a person")
    earlier_sends = models.JSONField(
        null=True,
        help_text="Sends of an effect before the one that the columns tell of, oldest first; NULL: there were none",
    )

    #: Waits: when it opened for, and until when.
    expires_at = models.DateTimeField(null=True)
    correlation = models.TextField(blank=True, default="")
    #: Child runs: how many were started, how many of them must complete (NULL: all must have ended).
    children = models.IntegerField(null=True)
    children_wanted = models.IntegerField(null=True)
    rest = models.TextField(
        choices=Rest,
        blank=True,
        default="",
        db_default="",
        help_text="What is still to be done about child runs that nobody waits for any more",
    )
    compensates = models.UUIDField(null=True, help_text="The effect that this operation undoes")
    copied_from = models.UUIDField(
        null=True, help_text="In a fork: the operation of another run whose answer this is"
    )
    compensate_with = models.TextField(blank=True, default="", help_text="Tool that undoes this effect")

    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    #: Not a column: set by a wait kind's `expire` that leaves the wait open and wants a person to look, with why.
    parked: str = ""

    class Meta:
        db_table = "runs_operation"
        constraints = [
            # Identity; also the look-up of a visit's record on re-execution and the run page.
            models.UniqueConstraint(fields=["run", "step_seq", "position"], name="operation_identity"),
            models.CheckConstraint(
                condition=Q(kind__in=[k.value for k in Kind]), name="operation_kind_known"
            ),
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in OpStatus]), name="operation_status_known"
            ),
            models.CheckConstraint(
                condition=~Q(status="pending")
                | Q(
                    kind="effect",
                    intent_epoch__isnull=False,
                    intent_worker_id__isnull=False,
                    provider_key__isnull=False,
                ),
                name="operation_pending_has_intent",
            ),
            models.CheckConstraint(
                condition=~Q(status="open") | Q(kind__in=[k.value for k in WAIT_KINDS]),
                name="operation_open_is_wait",
            ),
            models.CheckConstraint(
                condition=(Q(status__in=["done", "failed", "closed"]) & Q(finished_at__isnull=False))
                | (Q(status__in=["pending", "open", "retry"]) & Q(finished_at__isnull=True)),
                name="operation_finished_iff_final",
            ),
            models.UniqueConstraint(
                fields=["compensates"],
                condition=Q(compensates__isnull=False),
                name="operation_compensated_once",
            ),
        ]
        indexes = [
            # Effects in doubt: of one run (a run never ends with one), and all of them (inbox, doctor).
            models.Index(fields=["run"], condition=Q(status="pending"), name="operation_pending"),
            # Tools that are tried again: why a run is not moving.
            models.Index(fields=["run"], condition=Q(status="retry"), name="operation_retry"),
            # Waits for child runs of one run, among all that it did: the page of a parent.
            models.Index(fields=["run"], condition=Q(kind="child"), name="operation_children"),
            # How many approvals are open, among millions of other waits.
            models.Index(
                fields=["id"], condition=Q(status="open", kind="approval"), name="operation_open_approvals"
            ),
            # A signal looks for the wait that it settles, by run or by correlation key.
            models.Index(fields=["run", "name"], condition=Q(status="open"), name="operation_open"),
            models.Index(
                fields=["name", "correlation"],
                condition=Q(status="open", kind="signal") & ~Q(correlation=""),
                name="operation_open_by_key",
            ),
            # The sweep: does what a parent waits for hold already; which child runs are to be cancelled?
            models.Index(
                fields=["id"], condition=Q(status="open", kind="child"), name="operation_open_children"
            ),
            models.Index(fields=["id"], condition=~Q(rest=""), name="operation_rest"),
            # Runs that wait for an approval, a signal, a timer, child runs: newest first.
            models.Index(
                F("kind"), F("run").desc(), condition=Q(status="open"), name="operation_open_by_kind"
            ),
            # What was done for a subject: the effects of its runs, in order of time, among all that these did.
            models.Index(fields=["run", "id"], condition=Q(kind="effect"), name="operation_effects"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.status})"

    def found_out(self) -> None:
        """Somebody has found out what became of an effect: what its last call said is no error of it, and stays as text."""
        self.error = ": ".join(part for part in (self.error_type, self.error) if part)
        self.error_type = ""
