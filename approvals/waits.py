"""Approval as a kind of wait: what the engine calls when a run needs people to decide."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db import connection
from django.urls import NoReverseMatch, reverse

from approvals import policies
from approvals.models import Approval, ApprovalVersion, Vote
from runs import clock, codec, redaction, waits
from runs.clock import Now
from runs.lifecycle import CLOCK, append_event
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus

State = Approval.State


class ApprovalWait:
    name: str = Kind.APPROVAL

    def required(self, policy: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with these (decoded) arguments needs an approval under the policy."""
        return policies.required(policy, arguments)

    def open(self, run: Run, operation: Operation, options: Mapping[str, Any]) -> None:
        """Write the request and its first version, its requirement frozen; sets the operation's time limit.

        `options`: title, why, schema, policy, arguments (true, encoded), subject. The agent's words are hostile text.
        """
        encoded = options["arguments"]
        display, sealed = redaction.split(encoded)
        requirement = policies.named(options.get("policy", "")).requirement(run)
        limit_s = requirement["time_limit_s"]
        limits = [operation.expires_at] if operation.expires_at is not None else []
        limits += [] if limit_s is None else [clock.now() + timedelta(seconds=limit_s)]
        operation.expires_at = min(
            limits, default=None
        )  # the author's `timeout=` or the policy's, whichever comes first
        operation.save(update_fields=["expires_at"])
        approval = Approval.objects.create(
            id=operation.pk,  # so that an operation leads to its approval without a query
            run=run,
            operation=operation,
            subject=codec.clean_text(options.get("subject", ""), 200),
            name=operation.name,
            title=codec.clean_text(options.get("title", "") or operation.name, 500),
            why=codec.clean_text(options.get("why", ""), 10_000),
            schema=options.get("schema") or {},
            policy=options.get("policy", ""),
            requirement=requirement,
            payload=display,
            digest=codec.keyed_digest(encoded),
            expires_at=operation.expires_at,
        )
        ApprovalVersion.objects.create(
            approval=approval,
            version=1,
            payload=display,
            payload_sealed=sealed,
            digest=approval.digest,
            by="agent",
        )

    def look(self, run: Run, operation: Operation) -> bool:
        """False: whoever decides settles the operation in the same transaction, so an open one is undecided."""
        return False

    def expire(self, run: Run, operation: Operation) -> None:
        """The time limit passed: ask further people, or record that nobody decided."""
        approval = Approval.objects.select_for_update().get(operation=operation)
        requirement = approval.requirement
        if requirement["escalation"]:
            _escalate(run, operation, approval)
        elif requirement["on_expiry"] == "approve":
            decide(
                run,
                operation,
                approval,
                State.APPROVED,
                CLOCK.name,
                "nobody objected in time, and the policy says yes",
            )
        else:
            decide(run, operation, approval, State.EXPIRED, CLOCK.name, "nobody decided in time")

    def close(self, operation: Operation) -> None:
        Approval.objects.filter(operation=operation, state=State.OPEN).update(
            state=State.VOID, decided_at=Now(), reason="the run ended or was cancelled"
        )

    def describe(self, operation: Operation) -> waits.Description:
        return waits.Description(
            f"approval of {operation.name}",
            url=_url(operation),
        )

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
    approval.expires_at = operation.expires_at = clock.now() + timedelta(seconds=escalation["time_limit_s"])
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


def register() -> None:
    waits.register(ApprovalWait())
