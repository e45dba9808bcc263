"""The verbs on approvals: decide and edit."""

import json
import uuid
from datetime import datetime, timedelta
from typing import Any

import jsonschema
from django.db import connection
from django.utils.crypto import constant_time_compare
from pydantic import ValidationError

from approvals import waits
from approvals.models import Approval, ApprovalVersion, Vote
from approvals.policies import deciders
from runs import clock, codec, lifecycle, redaction, registry
from runs.errors import Invalid, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.models.operation import OpStatus
from runs.services.payloads import problems, recordable
from runs.services.verb import Consequence, Done, Line, permit, permit_somewhere, verb
from runs.states import AttentionKind, Status
from runs.workflow import Tool

State = Approval.State
Verdict = Vote.Verdict


@verb
def decide(
    actor: Actor,
    approval_id: uuid.UUID,
    *,
    version: int,
    digest: str,
    verdict: str,
    reason: str = "",
    signed_in_at: datetime | None = None,
) -> Done:
    """Approve or reject exactly the payload that was shown: its version and its keyed digest.

    The last vote that the frozen requirement asks for decides, and so does one rejection. The same vote again changes
    nothing. `signed_in_at` is when the person gave their password, for a requirement that wants a young sign-in.

    Raises NotAllowed (no permission, not in a required group, or excluded), NotFresh, NotFound, Invalid (no reason to reject),
    Stale (another version was shown), StateMismatch (decided, expired or void; says by whom).
    """
    permit_somewhere(actor, "approvals.decide_approval")
    verdict = _known(verdict)
    run, approval, votes, groups = _locked_with_votes(approval_id, actor)
    permit_decision(actor, run)
    deciders.check(actor, approval.requirement, groups)
    # A vote on an earlier version says nothing about this one.
    mine = (vote for vote in votes if vote.voter_id == actor.id and vote.version == version)
    earlier = next(mine, None)
    if earlier is not None and _stands(earlier, approval, verdict):
        return Done(run, f"You had already {_past(verdict)} this.", changed=False)
    _check_open(actor, approval)
    if version != approval.version or not constant_time_compare(digest, approval.digest):
        raise Stale(
            "this request has changed since the page was loaded: read the new version and decide on that"
        )
    if earlier is not None:
        raise StateMismatch(f"you had already {_past(earlier.verdict)} this version")
    deciders.check_fresh(approval.requirement, signed_in_at)
    if verdict == Verdict.REJECT and not reason.strip():
        raise Invalid("say why you reject it: the agent and whoever asked for it will read this")
    votes.append(_vote(actor, run, approval, verdict, reason))
    return _count(actor, run, approval, votes, reason)


def _known(verdict: str) -> Vote.Verdict:
    try:
        return Verdict(verdict)
    except ValueError:
        raise Invalid(f"a verdict is approve or reject, not {verdict!r}") from None


def _stands(earlier: Vote, approval: Approval, verdict: Vote.Verdict) -> bool:
    """Whether the same vote was given before and nothing has gone the other way since: a double click."""
    outcome = State.APPROVED if verdict == Verdict.APPROVE else State.REJECTED
    return (
        earlier.verdict == verdict
        and earlier.version == approval.version
        and approval.state in (State.OPEN, outcome)
    )


def _past(verdict: str) -> str:
    return "approved" if verdict == Verdict.APPROVE else "rejected"


def locked(approval_id: uuid.UUID) -> tuple[Run, Operation, Approval]:
    """Run, approval and operation under their locks, in the order that all others take them."""
    run = _lock_run(approval_id)
    (approval,) = Approval.objects.raw(
        "SELECT * FROM approvals_approval WHERE id = %s FOR UPDATE", [approval_id]
    )
    (operation,) = Operation.objects.raw(
        "SELECT * FROM runs_operation WHERE id = %s FOR UPDATE", [approval.operation_id]
    )
    return run, operation, approval


def _locked_with_votes(
    approval_id: uuid.UUID, actor: Actor
) -> tuple[Run, Approval, list[Vote], frozenset[str]]:
    """Run and approval under the same locks, the operation's too; votes on the present version and the actor's groups."""
    run = _lock_run(approval_id)
    (approval,) = Approval.objects.raw(_LOCK, {"approval": approval_id, "user": actor.id})
    votes = [Vote(**vote) for vote in json.loads(approval.votes_cast)]  # type: ignore[attr-defined]
    return run, approval, votes, frozenset(approval.groups_of_actor)  # type: ignore[attr-defined]


def _lock_run(approval_id: uuid.UUID) -> Run:
    try:
        return lifecycle.lock_run(approval_id, RUN_OF)
    except Run.DoesNotExist:
        raise NotFound(f"there is no approval {approval_id}") from None


#: Statements of a decision, as plain SQL and few: a run goes on after them, and each costs a fifth of a millisecond
#: (docs/why.md). Whoever votes or edits holds the run's lock before, so what is read beside these locks stays as it is.
RUN_OF = "SELECT run_id FROM approvals_approval WHERE id = %s"
_LOCK = """
SELECT a.*, ARRAY(
    SELECT g.name FROM auth_group g JOIN auth_user_groups m ON m.group_id = g.id WHERE m.user_id = %(user)s
) AS groups_of_actor, (
    SELECT coalesce(jsonb_agg(jsonb_build_object('id', v.id, 'approval_id', v.approval_id, 'version', v.version,
        'digest', v.digest, 'verdict', v.verdict, 'voter_id', v.voter_id, 'voter_name', v.voter_name) ORDER BY v.at, v.id), '[]')
    FROM approvals_vote v WHERE v.approval_id = a.id AND v.version = a.version
) AS votes_cast
FROM approvals_approval a JOIN runs_operation o ON o.id = a.operation_id WHERE a.id = %(approval)s FOR UPDATE OF a, o
"""
_INSERT_VOTE = """
INSERT INTO approvals_vote (id, approval_id, version, digest, verdict, voter_id, voter_name, reason)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s) RETURNING at
"""


def permit_decision(actor: Actor, run: Run) -> None:
    """Raise NotAllowed unless this person may decide approvals of this run, and see what they decide on."""
    for permission in ("approvals.view_approval", "approvals.decide_approval", "runs.view_payload"):
        permit(actor, permission, run=run)


def check_may_decide(actor: Actor, approval: Approval) -> None:
    """Raise NotAllowed unless the frozen requirement lets this person decide."""
    deciders.check(actor, approval.requirement)


def _check_open(actor: Actor, approval: Approval) -> None:
    """Raise StateMismatch, saying who was first, unless the request is open."""
    match approval.state:
        case State.OPEN:
            return
        case State.VOID:
            raise StateMismatch(f"this request is void: {approval.reason or 'its run goes on without it'}")
        case State.EXPIRED:
            raise StateMismatch("this request has expired: nobody decided in time")
    names = approval.decided_by.split(", ")
    by = " and ".join("you" if name == actor.name else name for name in names)
    raise StateMismatch(f"already {approval.state} by {by}")


def _vote(actor: Actor, run: Run, approval: Approval, verdict: Vote.Verdict, reason: str) -> Vote:
    voter = actor.user
    assert voter is not None, "a person: check_may_decide"
    vote = Vote(
        approval=approval,
        version=approval.version,
        digest=approval.digest,
        verdict=verdict,
        voter_id=voter.pk,
        voter_name=actor.name,
        reason=reason,
    )
    written = (vote.pk, approval.pk, vote.version, vote.digest, str(verdict), voter.pk, actor.name, reason)
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_VOTE, written)
        (vote.at,) = cursor.fetchone()
    return vote


def _count(actor: Actor, run: Run, approval: Approval, votes: list[Vote], reason: str) -> Done:
    """Decide if the last of these votes on this version was the last that was needed, and wake the run."""
    verdict, needed = votes[-1].verdict, approval.requirement["votes"]
    what = {"approval": str(approval.pk), "version": approval.version, "digest": approval.digest}
    voted = ("vote", {**what, "verdict": str(verdict)})
    voters = [vote for vote in votes if vote.verdict == Verdict.APPROVE]
    for_it = sum(vote.digest == approval.digest for vote in voters)
    if verdict == Verdict.APPROVE and for_it < needed:
        lifecycle.append_events(run, actor, reason, voted)
        return Done(run, f"Your vote counts; {needed - for_it} more needed.")
    state = State.APPROVED if verdict == Verdict.APPROVE else State.REJECTED
    by = actor.name if verdict == Verdict.REJECT else ", ".join(vote.voter_name for vote in voters)
    waits.decide(run, Operation(pk=approval.operation_id), approval, state, by, reason)
    decided = ("approval_decided", {**what, "verdict": str(state)})
    lifecycle.append_events(run, actor, reason, voted, decided)
    if run.status == Status.WAITING:
        lifecycle.set_due(run)
    elif run.attention_kind == AttentionKind.UNDECIDED and approval.requirement.get("parked"):
        lifecycle.requeue(run)
    return Done(run, f"{approval.title}: {state.label.lower()}.")


def preview_decide(approval: Approval, in_favour: int | None = None) -> Consequence:
    """What approving would do now; the sentence tells of rejecting, too. `in_favour`: votes that the caller has counted."""
    needed = approval.requirement["votes"]
    for_it = waits.approvals_so_far(approval) if in_favour is None else in_favour
    if for_it + 1 < needed:
        yes = f"Approving is vote {for_it + 1} of {needed}."
    elif tool_of(approval) is None:
        yes = "Approving lets the agent go on with exactly this."
    else:
        yes = f"Approving lets {approval.name} run once with exactly this payload."
    no = "" if tool_of(approval) is None else f"; {approval.name} does not run"
    return Consequence(f"{yes} Rejecting tells the agent your reason{no}.", again=(Line(approval.name),))


# --- edit ------------------------------------------------------------------------------------------------------------


@verb
def edit(actor: Actor, approval_id: uuid.UUID, *, version: int, arguments: Any, reason: str = "") -> Done:
    """Change the payload within its schema: a new version, on which nobody has voted yet.

    Allowed while the request is open, and after an approval as long as the run has not taken the decision over.

    Raises NotAllowed, NotFound, Stale, Invalid (does not fit the schema, or changes nothing), StateMismatch.
    """
    permit_somewhere(actor, "approvals.decide_approval")
    run, operation, approval = locked(approval_id)
    permit_decision(actor, run)
    check_may_decide(actor, approval)
    if version != approval.version:
        raise Stale("this request has changed since the page was loaded: read the new version and edit that")
    reopened = approval.state != State.OPEN
    if reopened:
        _check_may_reopen(actor, run, operation, approval)
    encoded = validated(approval, arguments)
    if codec.is_keyed_digest(encoded, approval.digest):
        raise Invalid("the edit changes nothing")
    new_version(actor, approval, encoded, reason)
    if reopened:
        _reopen(operation, approval)
    lifecycle.append_event(
        run,
        "approval_edited",
        actor,
        reason,
        approval=str(approval.pk),
        version=approval.version,
        digest=approval.digest,
        reopened=reopened,
    )
    return Done(run, f"Version {approval.version} is up for decision; earlier votes are void.")


def tool_of(approval: Approval) -> Tool | None:
    """The tool whose call is to be approved; None for a question of the agent."""
    try:
        return registry.tool(approval.name)
    except registry.UnknownWorkflow:
        return None


def _check_may_reopen(actor: Actor, run: Run, operation: Operation, approval: Approval) -> None:
    if approval.state != State.APPROVED:
        _check_open(actor, approval)
    # A tool's call confirms the version with its intent. A question has no intent: its answer is taken over by the claim.
    taken = approval.consumed_at is not None or run.is_terminal or run.step_seq != operation.step_seq
    if taken or (tool_of(approval) is None and run.status != Status.WAITING):
        raise StateMismatch(
            f"{approval.name} was approved by {approval.decided_by} and the run has taken that over"
        )


def validated(approval: Approval, arguments: Any) -> Any:
    """Edited arguments, encoded. Raises Invalid with the path if they do not fit the tool's arguments or the schema."""
    tool = tool_of(approval)
    if tool is not None:
        try:
            return recordable(tool.arguments.model_validate(arguments), "the payload", "arguments")
        except ValidationError as error:
            raise Invalid(problems(error, "the payload")) from None
    encoded = recordable(arguments, "the payload", "arguments")
    validator = jsonschema.Draft202012Validator(approval.schema)
    mistakes = sorted(validator.iter_errors(codec.plain(encoded)), key=lambda mistake: mistake.json_path)
    if mistakes:
        raise Invalid(
            "the payload does not fit: " + "; ".join(f"{m.json_path}: {m.message}" for m in mistakes)
        )
    return encoded


def new_version(actor: Actor, approval: Approval, encoded: Any, reason: str) -> None:
    """Put this payload up for decision as the next version, on which nobody has voted yet. The caller holds the locks."""
    display, sealed = redaction.split(encoded)
    approval.version += 1
    approval.payload, approval.digest = display, codec.keyed_digest(encoded)
    approval.state, approval.decided_at, approval.decided_by, approval.reason = State.OPEN, None, "", ""
    approval.title = _title(approval, encoded)
    approval.save()
    ApprovalVersion.objects.create(
        approval=approval,
        version=approval.version,
        payload=display,
        payload_sealed=sealed,
        digest=approval.digest,
        by=actor.name,
        by_user_id=actor.id,
        reason=reason,
    )


def _title(approval: Approval, encoded: Any) -> str:
    """What the call would do now, in the tool's words: the title must not go on naming the amount of the first version."""
    tool = tool_of(approval)
    if tool is None or tool.summary is None:
        return approval.title
    arguments = dict(tool.arguments.model_validate(codec.decode(encoded)))
    return codec.clean_text(tool.summary(**arguments), 500)


def _reopen(operation: Operation, approval: Approval) -> None:
    """Take the recorded decision back; a time limit that passed meanwhile begins anew."""
    operation.status, operation.finished_at, operation.settled_by = OpStatus.OPEN, None, ""
    operation.result = operation.result_sealed = None
    now, limit_s = clock.now(), approval.requirement["time_limit_s"]
    if approval.expires_at is not None and approval.expires_at <= now and limit_s is not None:
        approval.expires_at = now + timedelta(seconds=limit_s)
        approval.save(update_fields=["expires_at"])
    operation.expires_at = waits.next_look(approval, now)
    operation.save()


def preview_edit(approval: Approval) -> Consequence:
    """What an edit would do now."""
    votes = waits.approvals_so_far(approval)
    lost = "1 vote on version {} becomes void" if votes == 1 else f"{votes} votes on version {{}} become void"
    void = f" {lost.format(approval.version)}." if votes else ""
    return Consequence(
        f"A new version {approval.version + 1} is up for decision.{void}", again=(Line(approval.name),)
    )
