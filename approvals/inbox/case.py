"""An item that is no approval, as one person sees it: what happened, what it holds up, and which verbs would move it on."""

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection
from django.urls import reverse

from agentops.console import polling
from approvals.background import Said, decoded
from approvals.inbox import handling, listing, worklist
from approvals.inbox.listing import Entry
from approvals.inbox.worklist import Line
from approvals.models import ItemKind
from runs import access, content
from runs.states import FailureKind

#: Comments that a page shows, the newest.
COMMENTS = 50


@dataclass(frozen=True)
class Act:
    """A verb that would move it on: a link to its own page."""

    label: str
    url: str
    key: str = ""


@dataclass(frozen=True)
class Doubtful:
    """An effect that was sent and whose answer never came."""

    pk: uuid.UUID
    name: str
    intent_at: datetime
    provider_key: str


@dataclass(frozen=True)
class Failure:
    """An attempt that ended with an error."""

    step: str
    step_seq: int
    attempt_no: int
    error_type: str
    error: str
    ended_at: datetime


@dataclass
class History:
    """What led to an item, and what people said about it."""

    doubtful: Doubtful | None = None
    last: Failure | None = None
    comments: list[Said] = field(default_factory=list)
    """Oldest first, the newest COMMENTS of them."""


#: operation_pending, the primary key of attempts, comment_by_item: one round trip for what would be three.
_HISTORY = """
(SELECT 'doubtful', jsonb_build_object('pk', id, 'name', name, 'intent_at', intent_at, 'provider_key', provider_key)
    FROM runs_operation WHERE run_id = %(run)s AND status = 'pending' ORDER BY started_at LIMIT 1)
UNION ALL
(SELECT 'last', jsonb_build_object('step', step, 'step_seq', step_seq, 'attempt_no', attempt_no, 'error_type', error_type,
        'error', left(error, 5000), 'ended_at', ended_at)
    FROM runs_attempt WHERE run_id = %(run)s AND error <> '' AND outcome <> 'suspended'
    ORDER BY step_seq DESC, attempt_no DESC LIMIT 1)
UNION ALL
(SELECT 'comment', jsonb_build_object('pk', id, 'by', by, 'text', text, 'at', at)
    FROM approvals_comment WHERE item_id = %(item)s AND kind = %(kind)s ORDER BY id DESC LIMIT %(comments)s)
"""


def history(line: Line, *, seen: bool) -> History:
    """What led to an item, and what people said about it; without content for whoever may not see it. One query."""
    found = History()
    given: dict[str, Any] = {
        "run": line.run_id,
        "item": line.item,
        "kind": str(line.kind),
        "comments": COMMENTS,
    }
    with connection.cursor() as cursor:
        cursor.execute(_HISTORY, given)
        for what, text in cursor.fetchall():
            data = decoded(text)
            for name in ("text", "error"):
                if name in data:
                    data[name] = content.words(seen, data[name])
            match what:
                case "doubtful":
                    found.doubtful = Doubtful(**data | {"pk": uuid.UUID(data["pk"])})
                case "last":
                    found.last = Failure(**data)
                case "comment":
                    found.comments.insert(0, Said(**data))
    return found


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
        """Kind and status of the table of badges: that of the effect while it is in doubt, else of the run as it is now."""
        if self.is_open and self.kind == ItemKind.DOUBT:
            return "operation", "in_doubt"
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
    def history(self) -> History:
        return history(self.line, seen=self.sees_content)

    @property
    def doubtful(self) -> Doubtful | None:
        """The effect that is in doubt: the first of them."""
        return self.history.doubtful if self.kind == ItemKind.DOUBT else None

    @property
    def last(self) -> Failure | None:
        """The attempt that ended last with an error."""
        return self.history.last

    @property
    def error_is_told(self) -> bool:
        """Whether the run's reason says already what its last error says."""
        return self.last is not None and self.last.error in self.line.reason

    @property
    def comments(self) -> list[Said]:
        return self.history.comments

    @cached_property
    def sees_content(self) -> bool:
        """Whether this person may read what errors say; their types are no content."""
        return access.may_see_payloads(self.user, self.line.run)

    @cached_property
    def may_act(self) -> bool:
        return handling.may_act(self.user, self.kind, self.line.run, None)

    @property
    def may_handle(self) -> bool:
        return access.may(self.user, "approvals.handle_item", self.line.run)

    @property
    def run_url(self) -> str:
        return reverse("runs:run", args=[self.line.run_id])

    @cached_property
    def acts(self) -> list[Act]:
        """What this person may do about it, what helps most in front."""
        if not self.is_open:
            return []
        run_id, found = self.line.run_id, []

        def offer(permission: str, label: str, view: str, key: str, *more: object) -> None:
            if access.may(self.user, permission, self.line.run):
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
            self.sees_content,
            self.user.pk,
        )


_DEAD = {
    FailureKind.EXHAUSTED.value: "failed, and failed again at each retry that its limit allows. It does nothing more by itself.",
    FailureKind.CRASHED.value: "ended the process of its worker, also when it ran alone. It does nothing more by itself.",
    FailureKind.NOT_RETRYABLE.value: "failed with an error that no retry would cure. It does nothing more by itself.",
    FailureKind.DEADLINE.value: "was not done when its deadline came. It does nothing more by itself.",
}
