"""Policies made of data, and verbs that others approve first."""

from django.conf import settings
from django.db import models
from django.db.models import F, Func, Q, Value

from runs.clock import Now
from runs.models.field import RequiredJSONField
from runs.models.run import new_id

# --- policies made of data -------------------------------------------------------------------------------------------------


def _has_no(path: str) -> Q:
    """A condition on the rules: nothing in them is as the SQL/JSON path says."""
    found = Func(F("rules"), Value(path), function="jsonb_path_exists", output_field=models.BooleanField())
    return Q(Func(found, template="NOT %(expressions)s", output_field=models.BooleanField()))


class Policy(models.Model):
    """What the database says instead of the code; `approvals.policies.effective` reads it. Each change is a revision."""

    class Scope(models.TextChoices):
        POLICY = "policy", "Policy of the code"
        TOOL = "tool", "Tool"
        WORKFLOW = "workflow", "Workflow"
        VERB = "verb", "Verb"

    scope = models.TextField(choices=Scope)
    name = models.TextField()
    active = models.BooleanField(default=True, help_text="False: the code decides again")
    rules = models.JSONField(help_text="See approvals.policies.effective.Rule; the first that holds counts")
    revision = models.PositiveIntegerField(default=1)
    changed_by = models.TextField(blank=True, default="")
    changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "approvals_policy"
        constraints = [
            models.UniqueConstraint(fields=["scope", "name"], name="approval_policy_once"),
            models.CheckConstraint(
                condition=Q(scope__in=["policy", "tool", "workflow", "verb"]),
                name="approval_policy_scope_known",
            ),
            models.CheckConstraint(
                condition=Q(active=False) | ~Q(rules=[]), name="approval_policy_active_has_rules"
            ),
            models.CheckConstraint(
                condition=_has_no('$[*] ? (@.on_expiry == "approve" && !(@.sentence != ""))'),
                name="approval_policy_silence_in_words",
            ),
            # A verb that nobody decided on in time is not carried out, whatever else.
            models.CheckConstraint(
                condition=~Q(scope="verb") | _has_no('$[*] ? (@.on_expiry != "reject")'),
                name="approval_policy_verb_needs_yes",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


class PolicyRevision(models.Model):
    """A policy as it was from one change to the next. Append-only."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    policy = models.ForeignKey(Policy, on_delete=models.DO_NOTHING, related_name="revisions")
    revision = models.PositiveIntegerField()
    active = models.BooleanField()
    rules = models.JSONField()
    by = models.TextField()
    by_user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, related_name="+")
    reason = models.TextField(blank=True, default="")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "approvals_policy_revision"
        constraints = [
            models.UniqueConstraint(fields=["policy", "revision"], name="approval_policy_revision_once")
        ]

    def __str__(self) -> str:
        return f"revision {self.revision}"


# --- verbs that others approve first ---------------------------------------------------------------------------------------


class Request(models.Model):
    """A verb that somebody wants to use and others have to approve first, with its arguments frozen."""

    class State(models.TextChoices):
        OPEN = "open", "Open"
        DONE = "done", "Carried out"
        REFUSED = "refused", "Approved, but no longer possible"
        REJECTED = "rejected", "Rejected"
        WITHDRAWN = "withdrawn", "Withdrawn"
        EXPIRED = "expired", "Expired"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    verb = models.TextField(help_text="What the policy calls it")
    function = models.TextField(help_text="Name of the verb itself, such as pause_workflow")
    target = models.TextField(help_text="What it is done to: one open request for each")
    run_id = models.UUIDField(null=True, help_text="The run it is done to; none for a limit")
    title = models.TextField(help_text="What would be done, in one line")
    arguments = RequiredJSONField(help_text="Frozen; display form")
    arguments_sealed = models.BinaryField(null=True)
    digest = models.TextField(help_text="Keyed digest of the true arguments")
    sent_digest = models.TextField(
        help_text="Of the arguments as they were sent: a form sent twice is one request"
    )
    facts = models.JSONField(help_text="What the policy's expressions were tried on")
    reason = models.TextField(blank=True, default="")
    requirement = models.JSONField(help_text="Frozen, as that of an approval")
    votes = models.PositiveIntegerField(help_text="How many different people must approve")
    in_favour = models.PositiveIntegerField(default=0)
    requester = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, related_name="+")
    requester_name = models.TextField()
    state = models.TextField(choices=State, default=State.OPEN)
    opened_at = models.DateTimeField(db_default=Now())
    escalates_at = models.DateTimeField(null=True, help_text="From when on further groups may decide")
    expires_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)
    closed_by = models.TextField(blank=True, default="")
    outcome = models.TextField(blank=True, default="", help_text="What was done, or why nothing was")

    class Meta:
        db_table = "approvals_request"
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["open", "done", "refused", "rejected", "withdrawn", "expired"]),
                name="request_state_known",
            ),
            models.CheckConstraint(
                condition=(Q(state="open") & Q(closed_at__isnull=True))
                | (~Q(state="open") & Q(closed_at__isnull=False)),
                name="request_closed_iff_over",
            ),
            models.CheckConstraint(
                condition=Q(votes__gte=1)
                & (~Q(state__in=["done", "refused"]) | Q(in_favour__gte=F("votes"))),
                name="request_done_has_votes",
            ),
            # A double click, a second browser and two people at one instant ask once. Finds the open request of a target.
            models.UniqueConstraint(
                fields=["verb", "target"], condition=Q(state="open"), name="request_open_once"
            ),
            # For the foreign key of votes, which carries the requester along.
            models.UniqueConstraint(fields=["id", "requester"], name="request_of_requester"),
        ]
        indexes = [
            # The inbox: open requests, the soonest to expire first.
            models.Index(fields=["expires_at", "id"], condition=Q(state="open"), name="request_inbox"),
            # Requests about a run, on its page; deleted with it.
            models.Index(fields=["run_id"], condition=Q(run_id__isnull=False), name="request_by_run"),
            # The newest requests for one verb, which a policy is tried on.
            models.Index(F("verb"), F("id").desc(), name="request_by_verb"),
        ]

    def __str__(self) -> str:
        return self.title


class RequestVote(models.Model):
    """One person's verdict on a request. Append-only; its foreign key is on (request, requester), see migration 0004."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    request = models.ForeignKey(
        Request, on_delete=models.DO_NOTHING, related_name="ballots", db_constraint=False, db_index=False
    )
    requester_id = models.IntegerField(help_text="Who made the request: never the voter")
    digest = models.TextField()
    verdict = models.TextField(choices=[("approve", "Approve"), ("reject", "Reject")])
    voter = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, related_name="+")
    voter_name = models.TextField()
    reason = models.TextField(blank=True, default="")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "approvals_request_vote"
        constraints = [
            models.UniqueConstraint(fields=["request", "voter"], name="request_vote_once"),
            models.CheckConstraint(
                condition=Q(verdict__in=["approve", "reject"]), name="request_vote_verdict_known"
            ),
            models.CheckConstraint(condition=~Q(voter=F("requester_id")), name="request_vote_by_another"),
        ]

    def __str__(self) -> str:
        return f"{self.verdict} by {self.voter_name}"
