"""What pages read about approvals."""

import uuid
from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser, PermissionsMixin
from django.db.models import (
    Count,
    Exists,
    F,
    OuterRef,
    Prefetch,
    QuerySet,
    Subquery,
    Value,
)
from django.db.models.functions import Coalesce

from approvals.models import Approval, ApprovalVersion, Vote
from approvals.policies import deciders
from approvals.requests import four_eyes
from approvals.services import check_may_decide
from runs.clock import Now
from runs.diagnosis.failures import open_groups
from runs.errors import NotAllowed
from runs.lifecycle import Actor
from runs.models import Run
from runs.states import Status


def inbox(user: AbstractBaseUser) -> QuerySet[Approval]:
    """Open approvals that this person may decide and has not voted on, oldest deadline first, those without one last."""
    return _rows(mine(user)).order_by(F("expires_at").asc(nulls_last=True), "id")


def mine(user: AbstractBaseUser) -> QuerySet[Approval]:
    """Open approvals that this person may decide and has not voted on."""
    assert isinstance(user, PermissionsMixin)
    if not user.has_perm("approvals.decide_approval"):
        return Approval.objects.none()
    voted = Vote.objects.filter(approval=OuterRef("pk"), version=OuterRef("version"), voter_id=user.pk)
    return Approval.objects.filter(deciders.asks(user), state=Approval.State.OPEN).exclude(Exists(voted))


def not_mine(user: AbstractBaseUser) -> QuerySet[Approval]:
    """Open approvals that are not in this person's inbox: not theirs to decide, or voted on."""
    return Approval.objects.filter(state=Approval.State.OPEN).exclude(pk__in=mine(user).values("pk"))


def decided() -> QuerySet[Approval]:
    """Approvals that are no longer open, those opened last first."""
    return _rows(Approval.objects.exclude(state=Approval.State.OPEN)).order_by("-id")


def _rows(found: QuerySet[Approval]) -> QuerySet[Approval]:
    """Rows of a list: `in_favour` counts the votes for the present version; of the run, its name and subject alone."""
    votes = Vote.objects.filter(
        approval=OuterRef("pk"), version=OuterRef("version"), verdict=Vote.Verdict.APPROVE
    )
    counted = votes.order_by().values("approval").annotate(n=Count("*")).values("n")
    return (
        found.annotate(in_favour=Coalesce(Subquery(counted), 0))
        .select_related("run")
        .only(
            *(
                field.attname
                for field in Approval._meta.concrete_fields
                if field.name not in ("schema", "why", "payload")
            ),
            "run__workflow",
            "run__subject",
        )
    )


def inbox_count(user: AbstractBaseUser, limit: int = 100) -> int:
    """Length of the inbox, counted up to `limit` + 1."""
    return mine(user).values("pk")[: limit + 1].count()


#: The navigation counts up to this: "99+".
NAVIGATION_LIMIT = 99


@dataclass(frozen=True)
class Waiting:
    """What waits for one person, each counted up to NAVIGATION_LIMIT + 1."""

    approvals: int
    """Length of the inbox."""
    attention: int
    """Runs that only a person can move on."""
    failures: int
    """Groups of failures that nobody has looked at yet."""
    requests: int = 0
    """Guarded verbs that others want to use and this person may decide on."""


def waiting(user: AbstractBaseUser) -> Waiting:
    """What waits for this person. One query."""
    limit = NAVIGATION_LIMIT + 1
    asked = mine(user).annotate(what=Value("approval")).values_list("what", flat=True)
    stuck = Run.objects.filter(status=Status.ATTENTION).annotate(what=Value("run"))
    broken = open_groups(user).order_by().annotate(what=Value("failure"))
    guarded = four_eyes.open_for(user).order_by().annotate(what=Value("request"))
    others = [rows.values_list("what", flat=True)[:limit] for rows in (stuck, broken, guarded)]
    found = list(asked[:limit].union(*others, all=True))
    return Waiting(
        found.count("approval"), found.count("run"), found.count("failure"), found.count("request")
    )


def one(approval_id: uuid.UUID) -> Approval:
    """An approval with its run, operation, versions (newest first) and votes (oldest first). Raises Approval.DoesNotExist."""
    return _full().get(pk=approval_id)


def of_run(run_id: uuid.UUID) -> list[Approval]:
    """Approvals of a run in the order in which they were opened, with versions and votes."""
    return list(_full().filter(run_id=run_id).order_by("id"))


def _full() -> QuerySet[Approval]:
    found = Approval.objects.annotate(read_at=Now()).select_related("run", "operation")
    return found.prefetch_related(
        Prefetch("versions", ApprovalVersion.objects.order_by("-version")),
        Prefetch("votes", Vote.objects.order_by("at", "id")),
    )


def why_not_decide(user: AbstractBaseUser, approval: Approval) -> str:
    """Why this person may not decide, as a sentence; empty if they may. The state of the request is another question."""
    assert isinstance(user, PermissionsMixin)
    if not user.has_perm("approvals.decide_approval"):
        return "your account does not have the permission to decide"
    try:
        check_may_decide(Actor.of(user), approval)
    except NotAllowed as refusal:
        return str(refusal)
    return ""
