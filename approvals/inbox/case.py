"""An item that is no approval, as one person sees it: what happened, what it holds up, and which verbs would move it on."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.contrib.auth.models import AbstractBaseUser, PermissionsMixin
from django.urls import reverse

from agentops.console import polling
from approvals.inbox import handling, listing, worklist
from approvals.inbox.listing import Entry
from approvals.inbox.worklist import Line
from approvals.models import Comment, ItemKind
from runs.models import Attempt, Operation
from runs.models.operation import OpStatus
from runs.states import FailureKind

#: Comments that a page shows, the newest.
COMMENTS = 50


@dataclass(frozen=True)
class Act:
    """A verb that would move it on: a link to its own page."""

    label: str
    url: str
    key: str = ""


def comments(kind: ItemKind, item_id: uuid.UUID) -> list[Comment]:
    """What people said about an item, oldest first, the newest COMMENTS of it."""
    newest = Comment.objects.filter(item_id=item_id, kind=kind).order_by("-id")[:COMMENTS]
    return list(newest)[::-1]


@dataclass
class Case:
    """A run in doubt, stuck or dead. `line` is how the inbox knows it."""

    line: Line
    user: AbstractBaseUser
    now: datetime

    @property
    def entry(self) -> Entry:
        return Entry(self.line, self.user)

    @property
    def kind(self) -> ItemKind:
        return self.line.kind

    @property
    def title(self) -> str:
        return listing.title_of(self.line)

    @property
    def is_open(self) -> bool:
        return worklist.waits(self.line)

    @property
    def is_late(self) -> bool:
        return self.is_open and self.line.target <= self.now

    @property
    def badge(self) -> tuple[str, str]:
        """Kind and status of the table of badges: of the run as it is now."""
        return "run", self.line.status

    @property
    def meaning(self) -> str:
        """What it means that it stands here, in plain words."""
        match self.kind:
            case ItemKind.DOUBT:
                return (
                    "was sent, and whoever sent it was gone before the answer came. Nothing is sent again before a person"
                    " has said whether it happened."
                )
            case ItemKind.STUCK if self.line.attention_kind == "compensation":
                return "is being cancelled, and one of the effects to undo could not be undone. It does nothing more by itself."
            case ItemKind.STUCK:
                return (
                    "came, on its way again, to something else than it had recorded. So that no effect happens twice, it does"
                    " nothing more by itself."
                )
        return _DEAD.get(self.line.failure_kind, "failed. It does nothing more by itself.")

    @cached_property
    def doubtful(self) -> Operation | None:
        """The effect that is in doubt: the first of them."""
        if self.kind != ItemKind.DOUBT:
            return None
        found = Operation.objects.filter(run_id=self.line.run_id, status=OpStatus.PENDING)
        return found.order_by("started_at").first()

    @cached_property
    def last(self) -> Attempt | None:
        """The attempt that ended last with an error."""
        failed = Attempt.objects.filter(run_id=self.line.run_id).exclude(error="")
        return failed.order_by("-step_seq", "-attempt_no").first()

    @cached_property
    def comments(self) -> list[Comment]:
        return comments(self.kind, self.line.item)

    @cached_property
    def may_act(self) -> bool:
        return handling.may_act(self.user, self.kind, None)

    @property
    def may_handle(self) -> bool:
        assert isinstance(self.user, PermissionsMixin)
        return self.user.has_perm("approvals.handle_item")

    @property
    def run_url(self) -> str:
        return reverse("runs:run", args=[self.line.run_id])

    @cached_property
    def acts(self) -> list[Act]:
        """What this person may do about it, what helps most in front."""
        if not self.is_open:
            return []
        run_id, found = self.line.run_id, []
        assert isinstance(self.user, PermissionsMixin)

        def offer(permission: str, label: str, view: str, key: str, *more: object) -> None:
            if self.user.has_perm(permission):  # type: ignore[attr-defined]
                found.append(Act(label, reverse(view, args=[run_id, *more]), key))

        match self.kind:
            case ItemKind.DOUBT if self.doubtful is not None:
                label = f"Say whether {self.doubtful.name} happened"
                offer("runs.resolve_doubt", label, "runs:answer_doubt", "a", self.doubtful.pk)
            case ItemKind.STUCK:
                offer("runs.force_resume_run", "Force the run on", "runs:force_resume", "a")
                offer("runs.cancel_run", "Cancel the run", "runs:cancel", "r")
            case ItemKind.DEAD:
                offer("runs.retry_run", f"Retry step {self.line.step}", "runs:retry", "a")
        return found

    @cached_property
    def tag(self) -> str:
        line, last = self.line, self.last
        return polling.tag(
            self.entry.shown,
            line.status,
            line.reason,
            line.version,
            self.is_open,
            [comment.pk for comment in self.comments],
            self.doubtful and self.doubtful.pk,
            last and (last.step_seq, last.attempt_no),
            self.user.pk,
        )


_DEAD = {
    FailureKind.EXHAUSTED.value: "failed, and failed again at each retry that its limit allows. It does nothing more by itself.",
    FailureKind.CRASHED.value: "ended the process of its worker, also when it ran alone. It does nothing more by itself.",
    FailureKind.NOT_RETRYABLE.value: "failed with an error that no retry would cure. It does nothing more by itself.",
    FailureKind.DEADLINE.value: "was not done when its deadline came. It does nothing more by itself.",
}
