"""docs/states.md, made from the state chart (`manage.py states`); a test holds file and chart together."""

from collections.abc import Iterable, Sequence

from runs.models.operation import WAIT_KINDS, Kind
from runs.states import (
    CLAIMABLE,
    CLOCK,
    TERMINAL,
    TRANSITIONS,
    AttentionKind,
    FailureKind,
    Hold,
    Outcome,
    Status,
    mermaid,
)

#: Events that a person causes: the permission, and the groups that have it after migration.
PERMISSIONS = {
    "cancel": ("runs.cancel_run", "support, admins"),
    "resolve_doubt": ("runs.resolve_doubt", "operators, support, admins"),
    "force_resume": ("runs.force_resume_run", "support, admins"),
    "retry": ("runs.retry_run", "support, admins"),
    "retry_now": ("runs.retry_run", "support, admins"),
    "skip": ("runs.skip_step", "support, admins"),
    "edit_state": ("runs.edit_state", "support, admins"),
    "kill": ("runs.kill_run", "admins"),
    "fork": ("runs.fork_run", "support, admins"),
}

STATUSES = {
    Status.QUEUED: "due, or to be due at its wake time",
    Status.RUNNING: "a worker executes it; its wake time is the deadline of the attempt",
    Status.WAITING: "waits are open; its wake time is the first of their time limits",
    Status.RETRYING: "a try failed; its wake time ends the back-off",
    Status.ATTENTION: "only a person can move it on, or the outcome that the person was asked for",
    Status.CANCELLING: "effects are being undone, in reverse order, by `running` attempts in between",
    Status.FAILED: "ended without a result; a person may let it go on in place",
    Status.CANCELLED: "ended as asked; what could be undone is undone",
    Status.COMPLETED: "ended with a result",
}

WAITS = {
    Kind.APPROVAL: (
        "people decide on an exact payload",
        "the vote that decides",
        "as the policy says: reject, fail, approve",
    ),
    Kind.SIGNAL: ("an event from outside", "a signal of its name, early ones too", "`WaitExpired` is raised"),
    Kind.TIMER: ("a moment", "nothing else", "it is the answer"),
    Kind.CHILD: ("another run", "the end of that run", "`WaitExpired` is raised"),
}

ATTENTION = {
    AttentionKind.IN_DOUBT: "an answer: it happened, or it did not; or the outcome itself arrives",
    AttentionKind.DIVERGED: "force-resume with code that follows the record, or cancel",
    AttentionKind.COMPENSATION: "force-resume, which tries the compensation again",
    AttentionKind.UNDECIDED: "a decision on what is still open",
}

FAILURES = {
    FailureKind.EXHAUSTED: "the retry limit of the step or of a tool is reached: the dead letter",
    FailureKind.CRASHED: "it killed its worker too often while it ran alone in it",
    FailureKind.NOT_RETRYABLE: "an error that no retry can help",
    FailureKind.DECLARED: "the workflow returned `Fail`",
    FailureKind.DEADLINE: "the run's deadline passed",
}

HOLDS = {
    Hold.PAUSED: "lifted by resuming the workflow, the queue or everything",
    Hold.NO_CAPABLE_WORKER: "lifted by a worker that registers with the workflow, version and step",
    Hold.CONCURRENCY: "lifted when one of those ends that are executed under the limit, or the limit is raised",
    Hold.RATE: "lifted by time, a few at a moment as the limit allows",
}

OUTCOMES = {
    Outcome.SUCCEEDED: "a transition was carried out",
    Outcome.SUSPENDED: "it waits or backs off; a re-execution of the same visit follows",
    Outcome.FAILED: "the body raised; spends a retry",
    Outcome.TIMED_OUT: "it took too long; spends a retry",
    Outcome.CRASHED: "its worker died; counted apart from retries",
    Outcome.STOPPED: "its worker was stopped; spends nothing",
    Outcome.FENCED: "closed without executing the body, or taken away; spends nothing",
    Outcome.CANCELLED: "the cancel was carried out; spends nothing",
    Outcome.SKIPPED: "a person let the run go on at another step; nothing was executed",
    Outcome.EDITED: "a person changed the state; nothing was executed",
    Outcome.FORKED: "the run begins here, with the state of another run at this visit; nothing was executed",
}

HEAD = """\
# States of a run

Made by `uv run manage.py states > docs/states.md` from `TRANSITIONS` in `runs/states.py`; do not edit. The same table makes
the trigger `state_chart` and the CHECK constraints of `runs_run`, and a test refuses every move that is not in it.
"""


def document() -> str:
    """The whole page, with a line break at its end."""
    parts = [
        HEAD,
        f"```mermaid\n{mermaid()}\n```\n",
        "## Statuses\n",
        _table(("status", "claimable", "final", "meaning"), _statuses()),
        "## Transitions\n",
        _table(("event", "from", "to", "caused by", "meaning"), _transitions()),
        "A person needs the permission; the groups are those of a fresh installation, and a site may cut them otherwise.\n",
        _table(
            ("event", "permission", "groups"),
            [(f"`{event}`", f"`{name}`", groups) for event, (name, groups) in PERMISSIONS.items()],
        ),
        "## What a waiting run waits for\n",
        _table(
            ("kind", "for", "settled by", "when its time limit passes"),
            [(f"`{kind.value}`", *WAITS[kind]) for kind in WAIT_KINDS],
        ),
        "## What a run in attention needs\n",
        _table(("kind", "title", "moved on by"), _choices(AttentionKind, ATTENTION)),
        "## Why a run failed\n",
        _table(("kind", "title", "meaning"), _choices(FailureKind, FAILURES)),
        "## Why a due run is not offered to workers\n",
        _table(("hold", "title", "end"), _choices(Hold, HOLDS)),
        "## How an attempt ended\n",
        _table(("outcome", "title", "meaning"), _choices(Outcome, OUTCOMES)),
    ]
    return "\n".join(parts)


def _statuses() -> list[Sequence[str]]:
    return [
        (f"`{s.value}`", "yes" if s in CLAIMABLE else "", "yes" if s in TERMINAL else "", STATUSES[s])
        for s in Status
    ]


def _transitions() -> list[Sequence[str]]:
    return [
        (
            f"`{t.event}`",
            ", ".join(f"`{s.value}`" for s in t.sources),
            ", ".join(f"`{s.value}`" for s in t.targets) or "the same",
            "the clock" if t.by == CLOCK else f"a {t.by}",
            t.meaning,
        )
        for t in TRANSITIONS
    ]


def _choices[C: (AttentionKind, FailureKind, Hold, Outcome)](
    kinds: Iterable[C], meanings: dict[C, str]
) -> list[Sequence[str]]:
    return [(f"`{kind.value}`", str(kind.label), meanings[kind]) for kind in kinds]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
