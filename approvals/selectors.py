"""What pages read about approvals."""

import uuid
from collections.abc import Sequence

from django.contrib.auth.models import AbstractBaseUser, PermissionsMixin
from django.db.models import (
    Count,
    Exists,
    OuterRef,
    Prefetch,
    QuerySet,
    Subquery,
)
from django.db.models.functions import Coalesce

from approvals.models import Approval, ApprovalVersion, Vote
from approvals.policies import deciders
from approvals.services import check_may_decide
from runs import access
from runs.clock import Now
from runs.errors import NotAllowed
from runs.lifecycle import Actor

VIEW, DECIDE = "approvals.view_approval", "approvals.decide_approval"


def mine(user: AbstractBaseUser) -> QuerySet[Approval]:
    """Open approvals that this person may decide and has not voted on."""
    if not access.may(user, DECIDE):
        return Approval.objects.none()
    voted = Vote.objects.filter(approval=OuterRef("pk"), version=OuterRef("version"), voter_id=user.pk)
    asked = Approval.objects.filter(deciders.asks(user), state=Approval.State.OPEN).exclude(Exists(voted))
    return access.visible(user, _visible(user, asked), DECIDE, through="run__")


def _visible(user: AbstractBaseUser, rows: QuerySet[Approval]) -> QuerySet[Approval]:
    return access.visible(user, rows, VIEW, through="run__")


def not_mine(user: AbstractBaseUser) -> QuerySet[Approval]:
    """Open approvals that are not in this person's inbox: not theirs to decide, or voted on."""
    found = Approval.objects.filter(state=Approval.State.OPEN).exclude(pk__in=mine(user).values("pk"))
    return _visible(user, found)


def decided(user: AbstractBaseUser) -> QuerySet[Approval]:
    """Approvals that are no longer open, those opened last first."""
    return _rows(_visible(user, Approval.objects.exclude(state=Approval.State.OPEN))).order_by("-id")


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


def one(approval_id: uuid.UUID, user: AbstractBaseUser | None = None) -> Approval:
    """An approval with its run, operation and versions (newest first).

    Raises Approval.DoesNotExist, also where it is not the user's to see.
    """
    return (_full() if user is None else _visible(user, _full())).get(pk=approval_id)


def several(user: AbstractBaseUser, ids: Sequence[uuid.UUID]) -> list[Approval]:
    """Those of these approvals that this person may see, with their runs."""
    return list(_visible(user, Approval.objects.filter(pk__in=ids)).select_related("run"))


def _full() -> QuerySet[Approval]:
    found = Approval.objects.annotate(read_at=Now()).select_related("run", "operation")
    return found.prefetch_related(Prefetch("versions", ApprovalVersion.objects.order_by("-version")))


def why_not_decide(user: AbstractBaseUser, approval: Approval) -> str:
    """Why this person may not decide, as a sentence; empty if they may. The state of the request is another question."""
    assert isinstance(user, PermissionsMixin)
    if not access.may(user, DECIDE, approval.run):
        return "your account does not have the permission to decide"
    try:
        check_may_decide(Actor.of(user), approval)
    except NotAllowed as refusal:
        return str(refusal)
    return ""
