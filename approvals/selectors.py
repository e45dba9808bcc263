"""What pages read about approvals."""

import uuid

from django.contrib.auth.models import AbstractBaseUser, PermissionsMixin
from django.db.models import Exists, F, OuterRef, Prefetch, QuerySet

from approvals.models import Approval, ApprovalVersion, Vote
from approvals.services import check_may_decide, groups_of
from runs.errors import NotAllowed
from runs.lifecycle import Actor


def inbox(user: AbstractBaseUser) -> QuerySet[Approval]:
    """Open approvals that this person may decide and has not voted on, oldest deadline first, those without one last."""
    assert isinstance(user, PermissionsMixin)
    if not user.has_perm("approvals.decide_approval"):
        return Approval.objects.none()
    voted = Vote.objects.filter(approval=OuterRef("pk"), version=OuterRef("version"), voter_id=user.pk)
    return (
        Approval.objects.filter(
            state=Approval.State.OPEN, requirement__groups__has_any_keys=sorted(groups_of(user))
        )
        .exclude(requirement__excluded__contains=[{"id": user.pk}])
        .exclude(requirement__excluded__contains=[{"name": user.get_username()}])
        .exclude(Exists(voted))
        .select_related("run")
        .defer("run__input", "run__state", "run__result")
        .order_by(F("expires_at").asc(nulls_last=True), "id")
    )


def inbox_count(user: AbstractBaseUser, limit: int = 100) -> int:
    """Length of the inbox, counted up to `limit` + 1."""
    return inbox(user).values("pk")[: limit + 1].count()


def one(approval_id: uuid.UUID) -> Approval:
    """An approval with its run, operation, versions (newest first) and votes (oldest first). Raises Approval.DoesNotExist."""
    return _full().get(pk=approval_id)


def of_run(run_id: uuid.UUID) -> list[Approval]:
    """Approvals of a run in the order in which they were opened, with versions and votes."""
    return list(_full().filter(run_id=run_id).order_by("id"))


def _full() -> QuerySet[Approval]:
    return Approval.objects.select_related("run", "operation").prefetch_related(
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
