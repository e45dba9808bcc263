"""StatusBadge: word, icon and class of every status a page can show.

Shape says what a thing is (circle = run, step or attempt, square = approval, diamond = operation), the class
gives the colour, and the word is always there, so that no meaning hangs on colour alone. A status without a
line here is a mistake of the page (`UnknownStatus`), not a grey blank.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Badge:
    """How one status looks: `word` for people, `icon` of the sprite, CSS `tone`."""

    word: str
    icon: str
    tone: str


class UnknownStatus(LookupError):
    """No badge is defined for this kind and status."""


IDLE, RUN, WAIT, RETRY, ATTENTION, BAD, OK = (
    "is-idle",
    "is-run",
    "is-wait",
    "is-retry",
    "is-att",
    "is-bad",
    "is-ok",
)

BADGES: dict[str, dict[str, Badge]] = {
    "run": {
        "queued": Badge("Queued", "s-queued", IDLE),
        "running": Badge("Running", "s-running", RUN),
        "waiting": Badge("Waiting", "s-waiting", WAIT),
        "retrying": Badge("Retrying", "s-retrying", RETRY),
        "attention": Badge("Attention", "s-attention", ATTENTION),
        "cancelling": Badge("Cancelling", "s-cancelling", RETRY),
        "failed": Badge("Failed", "s-failed", BAD),
        "cancelled": Badge("Cancelled", "s-cancelled", IDLE),
        "completed": Badge("Completed", "s-completed", OK),
    },
    "attempt": {
        "succeeded": Badge("Succeeded", "s-completed", OK),
        "suspended": Badge("Suspended", "s-waiting", WAIT),
        "failed": Badge("Failed", "s-failed", BAD),
        "timed_out": Badge("Timed out", "s-timed-out", BAD),
        "crashed": Badge("Crashed", "s-crashed", BAD),
        "stopped": Badge("Stopped", "s-stopped", IDLE),
        "fenced": Badge("Fenced", "s-fenced", IDLE),
        "cancelled": Badge("Cancelled", "s-cancelled", IDLE),
        "skipped": Badge("Skipped", "right", IDLE),
        "edited": Badge("State edited", "a-edited", IDLE),
        "forked": Badge("Forked", "k-child", IDLE),
    },
    "operation": {
        "pending": Badge("Pending", "o-pending", RUN),
        "open": Badge("Open", "o-open", WAIT),
        "retry": Badge("Retrying", "o-retry", RETRY),
        "done": Badge("Done", "o-done", OK),
        "failed": Badge("Failed", "o-failed", BAD),
        "closed": Badge("Closed", "o-closed", IDLE),
        "in_doubt": Badge("In doubt", "o-doubt", ATTENTION),
    },
    "approval": {
        "open": Badge("Open", "a-open", WAIT),
        "approved": Badge("Approved", "a-approved", OK),
        "approved_edited": Badge("Approved edited", "a-edited", OK),
        "rejected": Badge("Rejected", "a-rejected", BAD),
        "asked_back": Badge("Asked back", "a-asked", WAIT),
        "escalated": Badge("Escalated", "a-escalated", WAIT),
        "reminded": Badge("Reminded", "a-expired", WAIT),
        "expired": Badge("Expired", "a-expired", IDLE),
        "void": Badge("Void", "a-void", IDLE),
    },
    "failure": {
        "open": Badge("Open", "s-failed", BAD),
        "acknowledged": Badge("Acknowledged", "user", IDLE),
        "fixed": Badge("Fixed", "fix", RUN),
        "handled": Badge("Handled", "s-completed", OK),
    },
    "request": {
        "open": Badge("Open", "a-open", WAIT),
        "done": Badge("Carried out", "a-approved", OK),
        "refused": Badge("Approved, not done", "a-void", BAD),
        "rejected": Badge("Rejected", "a-rejected", BAD),
        "withdrawn": Badge("Withdrawn", "a-void", IDLE),
        "expired": Badge("Expired", "a-expired", IDLE),
    },
    "bulk": {
        "counting": Badge("Counting", "s-queued", RUN),
        "ready": Badge("Ready", "o-open", WAIT),
        "canary": Badge("First runs", "k-step", RUN),
        "review": Badge("To be looked at", "s-attention", ATTENTION),
        "running": Badge("Running", "s-running", RUN),
        "paused": Badge("Paused", "s-stopped", RETRY),
        "stopped": Badge("Stopped", "s-cancelled", IDLE),
        "done": Badge("Done", "s-completed", OK),
    },
    "bulk_item": {
        "waiting": Badge("Left", "s-queued", IDLE),
        "out": Badge("Not eligible", "s-cancelled", IDLE),
        "done": Badge("Done", "s-completed", OK),
        "refused": Badge("Refused", "s-failed", BAD),
        "skipped": Badge("Skipped", "o-closed", RETRY),
    },
    "chain": {
        "checking": Badge("Under way", "s-running", RUN),
        "sound": Badge("Sound", "s-completed", OK),
        "broken": Badge("Broken", "s-failed", BAD),
    },
    "worker": {
        "live": Badge("Live", "s-running", OK),
        "draining": Badge("Draining", "s-stopped", RETRY),
        "recycling": Badge("Recycling", "s-retrying", RETRY),
        "lost": Badge("Lost", "s-crashed", BAD),
        "ended": Badge("Ended", "s-cancelled", IDLE),
    },
}

OPERATION_KINDS: dict[str, str] = {
    "effect": "k-effect",
    "query": "k-query",
    "model": "k-model",
    "approval": "a-open",
    "signal": "k-event",
    "timer": "k-timer",
    "child": "k-child",
}
"""Icon of each kind of operation; the word beside it is the kind itself."""


def badge(kind: str, status: str) -> Badge:
    """Return how `status` of `kind` looks; raise `UnknownStatus` where the table has no line for it."""
    try:
        return BADGES[kind][status]
    except KeyError as missing:
        raise UnknownStatus(f"no badge for {kind} {status!r}") from missing
