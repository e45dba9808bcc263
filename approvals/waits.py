"""Approval as a kind of wait: what the engine calls when a run needs people to decide."""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.urls import NoReverseMatch, reverse

from approvals import questions
from approvals.models import Approval, ApprovalVersion, Vote
from approvals.policies import effective
from runs import clock, codec, redaction, waits
from runs.clock import Now
from runs.lifecycle import CLOCK, append_event
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus

State = Approval.State


class ApprovalWait:
    name: str = Kind.APPROVAL

    def required(
        self, policy: str, arguments: Mapping[str, Any], *, tool: str = "", workflow: str = ""
    ) -> bool:
        """Whether a call with these (decoded) arguments needs an approval under the policy that has the last word on it."""
        return effective.required(effective.Call(policy, tool, workflow), arguments)

    def guards(self, tool: str, workflow: str) -> bool:
        """Whether a policy made of data is about this tool or workflow, as this process knows."""
        return effective.guarded.holds(tool, workflow)

    refresh = staticmethod(effective.guarded.refresh)

    def open(self, run: Run, operation: Operation, options: Mapping[str, Any]) -> None:
        """Write the request and its first version, its requirement frozen; sets the operation's time limit.

        `options`: title, why, schema, policy, tool ("" for a question), arguments (true, encoded), subject. The agent's words are
        hostile text.
        """
        encoded = options["arguments"]
        display, sealed = redaction.split(encoded)
        call = effective.Call(options.get("policy", ""), options.get("tool", ""), run.workflow)
        requirement = effective.requirement(call, codec.decode(encoded), run)
        limit_s = requirement["time_limit_s"]
        limits = [operation.expires_at] if operation.expires_at is not None else []
        now = clock.now()
        limits += [] if limit_s is None else [now + timedelta(seconds=limit_s)]
        # The author's `timeout=` or the policy's, whichever comes first.
        expires_at = min(limits, default=None)
        approval = Approval(
            id=operation.pk,  # so that an operation leads to its approval without a query
            run=run,
            operation=operation,
            subject=codec.clean_text(options.get("subject", ""), 200),
            name=operation.name,
            title=codec.clean_text(options.get("title", "") or operation.name, 500),
            why=codec.clean_text(options.get("why", ""), 10_000),
            schema=options.get("schema") or {},
            policy=options.get("policy", ""),
            answers=options.get("answers", False),
            requirement=requirement,
            payload=display,
            digest=codec.keyed_digest(encoded),
            opened_at=now,
            expires_at=expires_at,
        )
        operation.expires_at = next_look(approval, now)
        operation.save(update_fields=["expires_at"])
        approval.save(force_insert=True)
        ApprovalVersion.objects.create(
            approval=approval,
            version=1,
            payload=display,
            payload_sealed=sealed,
            digest=approval.digest,
            by="agent",
        )

    def look(self, run: Run, operation: Operation) -> bool:
        """Whether the body has something to do: a question to answer. A decision settles the operation by itself."""
        return questions.waiting(operation.pk)

    unanswered = staticmethod(questions.unanswered)
    answer = staticmethod(questions.answer)

    def expire(self, run: Run, operation: Operation) -> None:
        """The time limit passed: ask further people, or record that nobody decided. Or people are to be reminded before that."""
        approval = Approval.objects.select_for_update().get(operation=operation)
        requirement = approval.requirement
        if _is_reminder(approval):
            _remind(run, operation, approval)
        elif requirement["escalation"]:
            _escalate(run, operation, approval)
        elif requirement["on_expiry"] == "park":
            _park(run, operation, approval)
        elif requirement["on_expiry"] == "approve":
            decide(
                run,
                operation,
                approval,
                State.APPROVED,
                CLOCK.name,
                f"nobody objected in time, and the policy says: {requirement.get('sentence') or 'then yes'}",
            )
        else:
            decide(run, operation, approval, State.EXPIRED, CLOCK.name, "nobody decided in time")

    def close(self, operation: Operation) -> None:
        Approval.objects.filter(operation=operation, state=State.OPEN).update(
            state=State.VOID, decided_at=Now(), reason="the run ended or was cancelled"
        )

    def describe(self, operation: Operation) -> waits.Description:
        return waits.Description(f"it needs approval of {operation.name}", url=_url(operation))

    def describe_all(self, operations: Sequence[Operation]) -> Mapping[uuid.UUID, waits.Description]:
        """With who may decide, and how many have to. One query, by primary key."""
        asked = Approval.objects.filter(pk__in=[one.pk for one in operations]).values_list(
            "pk", "requirement"
        )
        requirements = dict(asked)
        return {
            one.pk: waits.Description(
                f"it needs approval of {one.name}{_by_whom(requirements.get(one.pk, {}))}", url=_url(one)
            )
            for one in operations
        }

    def confirm(self, operation: Operation, version: int) -> bool:
        """Take the decision over, in the transaction that records the effect's intent. False: not approved as it was read.

        What will be executed must be what people voted on: the digest is made again from the recorded arguments, under the
        project's key, so that a decision which was only written into the database does not pass.
        """
        approval = Approval.objects.select_for_update().filter(operation_id=operation.pk).first()
        if approval is None or approval.state != State.APPROVED or approval.version != version:
            return False
        fresh = Operation.objects.get(pk=operation.pk)
        recorded = redaction.true_value(fresh.result, fresh.result_sealed)
        if not codec.is_keyed_digest(recorded["arguments"], approval.digest) or not _carried(approval):
            return False
        if approval.consumed_at is None:
            approval.consumed_at = Now()
            approval.save(update_fields=["consumed_at"])
        return True


def _by_whom(requirement: Mapping[str, Any]) -> str:
    """“ by operators or admins (2 votes)”."""
    by = f" by {effective.who(requirement)}" if requirement else ""
    votes = requirement.get("votes", 1)
    return f"{by} ({votes} votes)" if votes > 1 else by


def _url(operation: Operation) -> str:
    """Address of the approval's page; "" where the console is not part of the site."""
    try:
        return reverse("approvals:approval", args=[operation.pk])
    except NoReverseMatch:
        return ""


def _carried(approval: Approval) -> bool:
    """Whether enough votes on exactly this version approve it, or its policy lets silence mean yes."""
    if approval.decided_by == CLOCK.name:
        return bool(approval.requirement["on_expiry"] == "approve")
    return bool(approvals_so_far(approval) >= approval.requirement["votes"])


def approvals_so_far(approval: Approval) -> int:
    """Votes for the current version's exact payload."""
    return Vote.objects.filter(
        approval=approval, version=approval.version, digest=approval.digest, verdict=Vote.Verdict.APPROVE
    ).count()


def true_arguments(approval: Approval) -> Any:
    """The encoded true arguments of the current version."""
    versions = ApprovalVersion.objects.filter(approval=approval, version=approval.version)
    return redaction.true_value(*versions.values_list("payload", "payload_sealed").get())


def decide(run: Run, operation: Operation, approval: Approval, state: str, by: str, reason: str) -> None:
    """Close the request and record the answer on its operation. The caller holds the locks and saw both open."""
    approval.state, approval.decided_by, approval.reason = state, by, reason
    with connection.cursor() as cursor:
        cursor.execute(_DECIDE, {"id": approval.pk, "state": str(state), "by": by, "reason": reason})
        approval.decided_at, display, sealed = cursor.fetchone()
    if state == State.EXPIRED and approval.requirement["on_expiry"] == "fail":
        waits.settle(
            operation,
            None,
            status=OpStatus.FAILED,
            error=f"nobody decided on {approval.title} in time",
            by=by,
        )
    else:
        result = {
            "verdict": str(state),
            "version": approval.version,
            "by": by,
            "reason": reason,
            "arguments": codec.decode(redaction.true_value(json.loads(display), sealed)),
        }
        if asked := questions.told(approval):
            result["questions"] = asked
        waits.settle(operation, result, by=by)
    if by == CLOCK.name:
        append_event(
            run,
            "approval_decided",
            CLOCK,
            reason,
            approval=str(approval.pk),
            verdict=str(state),
            version=approval.version,
        )


#: As plain SQL, and with the payload that was decided on in the same round trip: a run waits for it.
_DECIDE = """
UPDATE approvals_approval a
SET state = %(state)s, decided_by = %(by)s, reason = %(reason)s, decided_at = agentops_now()
FROM approvals_version v WHERE a.id = %(id)s AND v.approval_id = a.id AND v.version = a.version
RETURNING a.decided_at, v.payload, v.payload_sealed
"""


def _escalate(run: Run, operation: Operation, approval: Approval) -> None:
    """Let further groups decide, for longer: once. The requirement stays frozen otherwise."""
    escalation = approval.requirement["escalation"]
    groups = [*approval.requirement["groups"], *escalation["groups"]]
    approval.requirement = {
        **approval.requirement,
        "groups": sorted(set(groups)),
        "escalation": None,
        "escalated": True,
    }
    now = clock.now()
    approval.expires_at = now + timedelta(seconds=escalation["time_limit_s"])
    operation.expires_at = next_look(approval, now)
    approval.save(update_fields=["requirement", "expires_at"])
    operation.save(update_fields=["expires_at"])
    append_event(
        run,
        "approval_escalated",
        CLOCK,
        "nobody decided in time",
        approval=str(approval.pk),
        to=escalation["groups"],
    )


def next_look(approval: Approval, now: datetime) -> datetime | None:
    """When the engine has to look at an open approval again: at the next reminder or at its time limit, whichever comes first."""
    every_s = approval.requirement.get("remind_every_s")
    looks = [] if approval.expires_at is None else [approval.expires_at]
    if every_s:
        last = approval.reminded_at or approval.opened_at
        # After an outage once, and not for each reminder that was missed.
        looks.append(max(last + timedelta(seconds=every_s), now))
    return min(looks, default=None)


def _is_reminder(approval: Approval) -> bool:
    if not approval.requirement.get("remind_every_s") or approval.requirement.get("parked"):
        return False
    return approval.expires_at is None or approval.expires_at > clock.now()


def _remind(run: Run, operation: Operation, approval: Approval) -> None:
    """Record that people were reminded, and look again at the next reminder."""
    approval.reminded_at = now = clock.now()
    approval.save(update_fields=["reminded_at"])
    operation.expires_at = next_look(approval, now)
    operation.save(update_fields=["expires_at"])
    append_event(
        run,
        "approval_reminded",
        CLOCK,
        "nobody has decided yet",
        approval=str(approval.pk),
        of=effective.who(approval.requirement),
    )


def _park(run: Run, operation: Operation, approval: Approval) -> None:
    """Leave it open without a time limit; the engine moves the run to attention (`Operation.parked`)."""
    operation.parked = f"nobody decided on {approval.title} in time"
    if approval.requirement.get("parked"):
        return
    approval.requirement = {**approval.requirement, "parked": True}
    approval.expires_at = None
    approval.save(update_fields=["requirement", "expires_at"])
    append_event(run, "approval_parked", CLOCK, "nobody decided in time", approval=str(approval.pk))


def register() -> None:
    waits.register(ApprovalWait())
