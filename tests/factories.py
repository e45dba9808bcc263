"""Builders of rows for tests; every test makes users, runs, operations and approvals through these.

The workflow `parcel` and its tools are declared here, so that verbs find their types; nothing executes them.
"""

import hashlib
import itertools
import uuid
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from pydantic import BaseModel

from approvals.models import Approval, PolicyRevision, Request, RequestVote, Vote
from approvals.models import Policy as ApprovalPolicy
from runs import clock, codec, lifecycle, waits
from runs.engine.execution import record_attempt
from runs.lifecycle import Actor
from runs.models import Attempt, Evidence, Operation, Run, Worker
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.states import AttentionKind, FailureKind, Outcome, Status
from runs.workflow import Complete, Retry, Workflow, tool

_numbers = itertools.count(1)


class Parcel(BaseModel):
    order: str
    amount: Decimal = Decimal("10.00")


class Receipt(BaseModel):
    id: str
    amount: Decimal


parcel = Workflow("parcel", input=Parcel, subject=lambda given: f"order {given.order}")


@parcel.step(start=True, retry=Retry(max_attempts=5))
def pack(ctx: Any) -> Complete:
    return Complete()


@parcel.step
def ship(ctx: Any) -> Complete:
    return Complete()


@tool
def cancel_courier(result: Receipt) -> None: ...


@tool(
    effect=True,
    in_doubt="ask",
    compensate=cancel_courier,
    settle=timedelta(seconds=60),
    from_reference=lambda reference: Receipt(id=reference, amount=Decimal(0)),
)
def book_courier(order: str, amount: Decimal) -> Receipt:
    raise NotImplementedError


@tool(effect=True, in_doubt="ask")
def print_label(order: str) -> str:
    raise NotImplementedError


# --- people ------------------------------------------------------------------------------------------------------------


def user(name: str = "", *groups: str, **fields: Any) -> User:
    """A person in these groups, which migrations have made."""
    made = User.objects.create_user(name or f"person{next(_numbers)}", password="secret", **fields)
    made.groups.set(Group.objects.get(name=group) for group in groups)
    return made


def actor(name: str = "", *groups: str, **fields: Any) -> Actor:
    return Actor.of(user(name, *groups, **fields))


def operator(name: str = "") -> Actor:
    return actor(name, "operators")


def support(name: str = "") -> Actor:
    return actor(name, "support")


def admin(name: str = "") -> Actor:
    return actor(name, "admins")


def stranger(name: str = "") -> Actor:
    """Somebody with a sign-in and no permission."""
    return actor(name)


SYSTEM = Actor("system")


# --- runs --------------------------------------------------------------------------------------------------------------


def worker(*, beats: bool = True, reaped: bool = False, **fields: Any) -> Worker:
    """A worker's row: beating; or its lease over; or closed and reaped."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now = cursor.fetchone()[0]
    until = now + timedelta(hours=1) if beats and not reaped else now - timedelta(hours=1)
    ended = {"closed_at": now, "reaped_at": now} if reaped else {}
    return Worker.objects.create(
        **{
            "id": new_id(),
            "host": "host",
            "pid": 1,
            "queues": ["default"],
            "capabilities": ["parcel@1/pack", "parcel@1/ship"],
            "slots": 4,
            "started_at": now - timedelta(hours=2),
            "beat_at": now,
            "beat_until": until,
        }
        | ended
        | fields
    )


def run(status: Status = Status.QUEUED, *, held_by: str = "", **fields: Any) -> Run:
    """A run of `parcel` in a status, with the columns that the status demands."""
    now = clock.now()
    due = {"wake_at": now, "sort_at": now}
    by_status: Mapping[Status, dict[str, Any]] = {
        Status.WAITING: {},
        Status.RETRYING: {
            "wake_at": now + timedelta(minutes=5),
            "sort_at": now + timedelta(minutes=5),
            "failures": 1,
        },
        Status.ATTENTION: {
            "attention_kind": AttentionKind.DIVERGED,
            "reason": "another operation is recorded",
        },
        Status.FAILED: {
            "failure_kind": FailureKind.EXHAUSTED,
            "reason": "gave up",
            "finished_at": now,
            "failures": 5,
        },
        Status.CANCELLED: {"finished_at": now},
        Status.COMPLETED: {"finished_at": now},
        Status.CANCELLING: {
            **due,
            "compensating": True,
            "cancel_requested_at": now,
            "cancel_requested_by": "somebody",
        },
    }
    defaults = dict(by_status.get(status, due))
    if status == Status.RUNNING:
        defaults = {
            "wake_at": now + timedelta(minutes=1),
            "epoch": 1,
            "attempt_no": 1,
            "attempt_started_at": now,
        }
        fields.setdefault("worker_id", None)
        fields["worker_id"] = fields["worker_id"] or worker().pk
    if held_by:
        defaults |= {"wake_at": None, "sort_at": None}
    encoded = codec.encode(Parcel(order="1042"))
    made = Run.objects.create(
        **{
            "workflow": "parcel",
            "version": 1,
            "started_by_name": "factory",
            "subject": "order 1042",
            "input": encoded,
            "input_digest": codec.digest(encoded),
            "step": "pack",
            "status": status,
            "held_by": held_by,
        }
        | defaults
        | fields
    )
    lifecycle.append_event(made, "started", SYSTEM)
    made.refresh_from_db()
    return made


def fingerprint(of: Run) -> uuid.UUID:
    """That of a run which has one."""
    assert of.fingerprint is not None
    return of.fingerprint


def failed(
    error_type: str = "ValueError",
    error: str = "no such order",
    *,
    kind: FailureKind = FailureKind.EXHAUSTED,
    traceback: str = "",
    **fields: Any,
) -> Run:
    """A run that has failed as the engine lets it fail: with its attempt, its event and its failure group."""
    made = run(Status.RUNNING, **fields)
    with transaction.atomic():
        locked = lifecycle.lock_run(made.pk)
        record_attempt(locked, Outcome.FAILED, error_type=error_type, error=error, traceback=traceback)
        lifecycle.end(locked, Status.FAILED, SYSTEM, reason=f"{error_type}: {error}", kind=kind)
    made.refresh_from_db()
    return made


def operation(
    of: Run, kind: Kind = Kind.EFFECT, status: OpStatus = OpStatus.DONE, **fields: Any
) -> Operation:
    """An operation of the run's present visit, with the columns that the status demands."""
    now, number = clock.now(), next(_numbers)
    final = status in (OpStatus.DONE, OpStatus.FAILED, OpStatus.CLOSED)
    defaults: dict[str, Any] = {
        "step_seq": of.step_seq,
        "position": str(number),
        "ordinal": number,
        "attempt_no": max(of.attempt_no, 1),
        "name": "book_courier",
        "args_digest": "0" * 64,
        "request": {},
        "started_at": now,
        "finished_at": now if final else None,
    }
    if kind == Kind.EFFECT:
        defaults |= {
            "provider_key": uuid.uuid4(),
            "intent_epoch": 1,
            "intent_at": now,
            "intent_worker_id": None,
        }
        if status == OpStatus.PENDING and not fields.get("intent_worker_id"):
            fields["intent_worker_id"] = worker().pk
    return Operation.objects.create(run=of, kind=kind, status=status, **(defaults | fields))


def doubt(**fields: Any) -> Operation:
    """An effect in doubt, and its run in attention over it."""
    of = run(
        Status.ATTENTION,
        attention_kind=AttentionKind.IN_DOUBT,
        reason="nobody knows whether book_courier happened",
    )
    return operation(of, Kind.EFFECT, OpStatus.PENDING, **fields)


def evidence(of: Operation, **fields: Any) -> Evidence:
    """A file that somebody gave with an answer."""
    given = {
        "name": "ledger.txt",
        "body": b"seen",
        "sha256": hashlib.sha256(b"seen").hexdigest(),
        "actor": "ada",
    }
    return Evidence.objects.create(run_id=of.run_id, operation=of, **(given | fields))


def signal_wait(of: Run | None = None, name: str = "paid", correlation: str = "", **fields: Any) -> Operation:
    """A wait for a signal, open; and its run, waiting."""
    of = of or run(Status.WAITING)
    return operation(of, Kind.SIGNAL, OpStatus.OPEN, name=name, correlation=correlation, **fields)


def approval(
    of: Run | None = None,
    *,
    policy: str = "",
    arguments: Any = None,
    name: str = "book_courier",
    **options: Any,
) -> Approval:
    """An open approval as the engine opens it, and its run, waiting."""
    of = of or run(Status.WAITING)
    wait = operation(of, Kind.APPROVAL, OpStatus.OPEN, name=name)
    given = {"order": "1042", "amount": Decimal("10.00")} if arguments is None else arguments
    waits.kind("approval").open(
        of,
        wait,
        {"title": "Book a courier for order 1042", "policy": policy, "arguments": codec.encode(given)}
        | options,
    )
    Run.objects.filter(pk=of.pk, status=Status.WAITING).update(
        wake_at=wait.expires_at, sort_at=wait.expires_at
    )
    return Approval.objects.get(operation=wait)


def vote(of: Approval, *, voter: User | None = None, **fields: Any) -> Vote:
    """A vote for the present version."""
    voter = voter or user("", "operators")
    return Vote.objects.create(
        **{
            "approval": of,
            "version": of.version,
            "digest": of.digest,
            "verdict": "approve",
            "voter": voter,
            "voter_name": voter.username,
        }
        | fields
    )


def attempt(of: Run, **fields: Any) -> Attempt:
    """A failed attempt of the run's present visit."""
    now = clock.now()
    return Attempt.objects.create(
        **{
            "run_id": of.pk,
            "step_seq": of.step_seq,
            "attempt_no": 1,
            "epoch": 1,
            "step": of.step,
            "outcome": Outcome.FAILED,
            "started_at": now,
            "ended_at": now,
        }
        | fields
    )


# --- policies made of data, and verbs that others approve first --------------------------------------------------------------


def approval_policy(
    scope: str = "tool", name: str = "book_courier", *, by: User | None = None, **fields: Any
) -> PolicyRevision:
    """A policy made of data with one rule, and its first revision."""
    rules = [{"groups": ["operators"], "when": "amount > 100"}]
    made = ApprovalPolicy.objects.create(**({"scope": scope, "name": name, "rules": rules} | fields))
    return PolicyRevision.objects.create(
        policy=made,
        revision=made.revision,
        active=made.active,
        rules=made.rules,
        by="ada",
        by_user=by or user("", "admins"),
        reason="four eyes",
    )


def request(of: Run | None = None, *, requester: User | None = None, **fields: Any) -> Request:
    """An open request to force a run on, as the guard of the verb makes it."""
    of, requester = of or run(Status.WAITING), requester or user("", "support")
    requirement = {
        "groups": ["admins"],
        "users": [],
        "votes": 1,
        "excluded": [{"id": requester.pk, "name": requester.username, "as": "requester"}],
        "time_limit_s": 3600,
        "on_expiry": "reject",
        "escalation": None,
    }
    encoded = codec.encode({"run_id": of.pk, "reason": "stuck"})
    return Request.objects.create(
        **{
            "verb": "force_resume",
            "function": "force_resume",
            "target": f"run {of.pk}",
            "run_id": of.pk,
            "title": "Force on order 1042",
            "arguments": encoded,
            "digest": codec.keyed_digest(encoded),
            "sent_digest": codec.digest(encoded),
            "facts": {},
            "reason": "stuck",
            "requirement": requirement,
            "votes": 1,
            "requester": requester,
            "requester_name": requester.username,
            "expires_at": clock.now() + timedelta(hours=1),
        }
        | fields
    )


def request_vote(of: Request | None = None, *, voter: User | None = None, **fields: Any) -> RequestVote:
    of, voter = of or request(), voter or user("", "admins")
    return RequestVote.objects.create(
        **{
            "request": of,
            "requester_id": of.requester_id,
            "digest": of.digest,
            "verdict": "approve",
            "voter": voter,
            "voter_name": voter.username,
        }
        | fields
    )
