"""One verb on many runs, as a row of its own: it outlives pages, people's sessions and workers."""

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from runs.clock import Now

from .run import new_id

#: Bounds of what a person may ask for.
RATE_MOST = 6000
CANARY_MOST = 50


class Bulk(models.Model):
    """A verb on all runs that a filter had found. Its numbers change in the transaction that changes the item they count."""

    class Verb(models.TextChoices):
        RETRY = "retry", "Retry"
        CANCEL = "cancel", "Cancel"
        FORCE_RESUME = "force_resume", "Force resume"
        PRIORITISE = "prioritise", "Change the priority"

    class Status(models.TextChoices):
        COUNTING = "counting", "Counting"
        READY = "ready", "Ready"
        CANARY = "canary", "First runs"
        REVIEW = "review", "To be looked at"
        RUNNING = "running", "Running"
        PAUSED = "paused", "Paused"
        STOPPED = "stopped", "Stopped"
        DONE = "done", "Done"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.TextField()
    reason = models.TextField()
    verb = models.TextField(choices=Verb)
    priority = models.PositiveSmallIntegerField(null=True, help_text="That its runs are given")
    filter = models.JSONField(help_text="What the runs were chosen by, as in the address of the page")
    status = models.TextField(choices=Status, default=Status.COUNTING)
    paused_from = models.TextField(blank=True, default="", help_text="The status that resuming goes back to")
    said = models.TextField(
        blank=True, default="", help_text="Why it stands still or waits, in a sentence, where it does"
    )
    revision = models.PositiveIntegerField(default=1, help_text="Guard of a verb against a stale page")
    started_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    started_by_name = models.TextField()
    acts_for = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    acts_for_name = models.TextField(help_text="Whose permissions count: who set it going last")
    created_at = models.DateTimeField(db_default=Now(), help_text="Runs that were created later do not join")
    began_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    rate = models.PositiveIntegerField(default=60, help_text="Runs a minute, at most")
    canary = models.PositiveIntegerField(default=5, help_text="So many first; then a person looks")

    # --- how far the choosing is ---
    chosen_status = models.TextField(blank=True, default="", help_text="Runs of this status are being chosen")
    chosen_after = models.UUIDField(null=True, help_text="… and of them those after this one")
    chosen = models.BooleanField(default=False, help_text="All are chosen: the set does not change any more")
    to_look = models.PositiveIntegerField(default=0, help_text="So many of them are looked at beforehand")

    # --- how far it is; the sum of these is never more than `total` ---
    total = models.PositiveIntegerField(default=0)
    looked = models.PositiveIntegerField(default=0)
    out = models.PositiveIntegerField(default=0, help_text="Looked at, and the verb does not apply")
    done = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    skipped = models.PositiveIntegerField(default=0)

    # --- what became of the runs that are done; the rest is under way ---
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    deleted = models.PositiveIntegerField(default=0)
    follow_after = models.PositiveIntegerField(
        default=0, help_text="The next look at them begins after this place"
    )

    # Each item moves it. No index: it is read with the row.
    next_at = models.DateTimeField(db_default=Now(), help_text="The next run is not touched before")
    follow_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "runs_bulk"
        permissions = [("bulk", "Can use a verb on many runs at once")]
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    status__in=[
                        "counting",
                        "ready",
                        "canary",
                        "review",
                        "running",
                        "paused",
                        "stopped",
                        "done",
                    ]
                ),
                name="bulk_status_known",
            ),
            models.CheckConstraint(
                condition=Q(verb__in=["retry", "cancel", "force_resume", "prioritise"]),
                name="bulk_verb_known",
            ),
            models.CheckConstraint(
                condition=Q(verb="prioritise", priority__isnull=False, priority__lte=9)
                | (~Q(verb="prioritise") & Q(priority__isnull=True)),
                name="bulk_priority_of_its_verb",
            ),
            models.CheckConstraint(condition=~Q(name="") & ~Q(reason=""), name="bulk_says_why"),
            models.CheckConstraint(
                condition=(Q(status="paused") & Q(paused_from__in=["counting", "canary", "running"]))
                | (~Q(status="paused") & Q(paused_from="")),
                name="bulk_paused_from_somewhere",
            ),
            models.CheckConstraint(
                condition=Q(status__in=["stopped", "done"], finished_at__isnull=False)
                | (~Q(status__in=["stopped", "done"]) & Q(finished_at__isnull=True)),
                name="bulk_finished_iff_ended",
            ),
            models.CheckConstraint(
                condition=Q(rate__gte=1, rate__lte=RATE_MOST, canary__gte=1, canary__lte=CANARY_MOST),
                name="bulk_pace_range",
            ),
            models.CheckConstraint(
                condition=Q(total__gte=F("out") + F("done") + F("refused") + F("skipped")),
                name="bulk_counts_no_more_than_all",
            ),
            models.CheckConstraint(
                condition=Q(done__gte=F("completed") + F("failed") + F("cancelled") + F("deleted")),
                name="bulk_ends_of_what_is_done",
            ),
        ]
        indexes = [
            # A worker's turn: those in which something is to be done, or whose runs have not all ended.
            models.Index(
                fields=["id"],
                condition=Q(status__in=["counting", "canary", "running"])
                | Q(done__gt=F("completed") + F("failed") + F("cancelled") + F("deleted")),
                name="bulk_at_work",
            ),
            # The list, narrowed to a status.
            models.Index(F("status"), F("id").desc(), name="bulk_by_status"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def handled(self) -> int:
        """Runs that the verb was used on, or tried on."""
        return self.done + self.refused + self.skipped

    @property
    def eligible(self) -> int:
        """Runs that it is, or was, to be used on."""
        return self.total - self.out

    @property
    def left(self) -> int:
        return self.eligible - self.handled

    @property
    def under_way(self) -> int:
        """Runs that are done and have not ended since."""
        return self.done - self.completed - self.failed - self.cancelled - self.deleted

    @property
    def is_over(self) -> bool:
        return self.finished_at is not None


class BulkItem(models.Model):
    """One run of a bulk: whether the verb applies to it, what the verb did, and how the run ended afterwards.

    No foreign key to the run: the item outlives it, and says so. Which run it is and its version are frozen when it is chosen.
    """

    class State(models.TextChoices):
        WAITING = "waiting", "Waiting"
        OUT = "out", "Not eligible"
        DONE = "done", "Done"
        REFUSED = "refused", "Refused"
        SKIPPED = "skipped", "Skipped, it had changed"

    class Ended(models.TextChoices):
        COMPLETED = "completed", "Completed"
        FAILED = "failed", "Failed again"
        CANCELLED = "cancelled", "Cancelled"
        DELETED = "deleted", "Deleted"

    pk = models.CompositePrimaryKey("bulk_id", "place")
    bulk = models.ForeignKey(Bulk, on_delete=models.PROTECT, db_index=False, related_name="items")
    place = models.PositiveIntegerField(help_text="From 1, oldest run first")
    run_id = models.UUIDField()
    seen_version = models.PositiveIntegerField(help_text="Of the run when it was chosen")
    state = models.TextField(choices=State, default=State.WAITING)
    look = models.TextField(blank=True, default="", help_text="What looking at it said; empty: not looked at")
    said = models.TextField(blank=True, default="", help_text="What the verb said")
    at = models.DateTimeField(null=True, help_text="When the verb was used")
    ended = models.TextField(choices=Ended, blank=True, default="")

    class Meta:
        db_table = "runs_bulk_item"
        constraints = [
            models.UniqueConstraint(fields=["run_id", "bulk"], name="bulk_item_run_once"),
            models.CheckConstraint(
                condition=Q(state__in=["waiting", "out", "done", "refused", "skipped"]),
                name="bulk_item_state_known",
            ),
            models.CheckConstraint(
                condition=(Q(state__in=["waiting", "out"]) & Q(at__isnull=True))
                | (~Q(state__in=["waiting", "out"]) & Q(at__isnull=False)),
                name="bulk_item_at_iff_handled",
            ),
            models.CheckConstraint(
                condition=Q(ended__in=["", "completed", "failed", "cancelled", "deleted"]),
                name="bulk_item_end_known",
            ),
            models.CheckConstraint(condition=Q(ended="") | Q(state="done"), name="bulk_item_end_of_done"),
        ]
        indexes = [
            # The next one to act on; the table of a bulk's page, narrowed to a state.
            models.Index(fields=["bulk", "state", "place"], name="bulk_item_by_state"),
            # Runs that are done and have not ended since; the table, narrowed to an end.
            models.Index(
                fields=["bulk", "ended", "place"], condition=Q(state="done"), name="bulk_item_by_end"
            ),
            # What looking at them beforehand said, counted; the table, narrowed to one of these.
            models.Index(fields=["bulk", "state", "look"], condition=~Q(look=""), name="bulk_item_by_look"),
        ]

    def __str__(self) -> str:
        return f"{self.place} of {self.bulk_id}"
