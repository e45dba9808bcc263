"""The state chart of a run, as data.

`TRANSITIONS` is the only place that says which status may follow which, what causes it and who may cause it. The CHECK
constraints and the trigger of the table `runs_run`, the picture in `docs/states.md` and the test matrix are made from it.
"""

from dataclasses import dataclass

from django.db import models


class Status(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    WAITING = "waiting", "Waiting"
    RETRYING = "retrying", "Retrying"
    ATTENTION = "attention", "Attention"
    CANCELLING = "cancelling", "Cancelling"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    COMPLETED = "completed", "Completed"


TERMINAL = frozenset({Status.FAILED, Status.CANCELLED, Status.COMPLETED})
UNFINISHED = tuple(s for s in Status if s not in TERMINAL)
#: A worker may claim a run in one of these once its wake time has come.
CLAIMABLE = (Status.QUEUED, Status.WAITING, Status.RETRYING, Status.CANCELLING)


class FailureKind(models.TextChoices):
    EXHAUSTED = "exhausted", "Retries exhausted"
    CRASHED = "crashed", "Killed its worker too often"
    NOT_RETRYABLE = "not_retryable", "Not retryable"
    DECLARED = "declared", "Declared by the workflow"
    DEADLINE = "deadline", "Deadline passed"


class AttentionKind(models.TextChoices):
    IN_DOUBT = "in_doubt", "An effect is in doubt"
    DIVERGED = "diverged", "The code diverged from its record"
    COMPENSATION = "compensation", "A compensation failed"
    UNDECIDED = "undecided", "Nobody decided in time"


class Hold(models.TextChoices):
    """Why a due run is parked and not offered to workers."""

    PAUSED = "paused", "Paused"
    NO_CAPABLE_WORKER = "no_capable_worker", "No capable worker"
    CONCURRENCY = "concurrency", "Concurrency limit reached"
    RATE = "rate", "Rate limit reached"


class Outcome(models.TextChoices):
    """How an attempt ended. Only `failed` and `timed_out` spend retries."""

    SUCCEEDED = "succeeded", "Succeeded"
    SUSPENDED = "suspended", "Suspended"
    FAILED = "failed", "Failed"
    TIMED_OUT = "timed_out", "Timed out"
    CRASHED = "crashed", "Crashed"
    STOPPED = "stopped", "Stopped"
    FENCED = "fenced", "Fenced"
    CANCELLED = "cancelled", "Cancelled"
    #: Rows that a person's verb writes into a visit; no worker executed anything.
    SKIPPED = "skipped", "Skipped"
    EDITED = "edited", "State edited"
    FORKED = "forked", "Forked"


#: What an attempt's row tells of a person's verb and not of an execution.
BY_PEOPLE = frozenset({Outcome.SKIPPED, Outcome.EDITED, Outcome.FORKED})

WORKER, PERSON, CLOCK = "worker", "person", "clock"

Q, RUN, WAIT, RETRY, ATT, CANC = (
    Status.QUEUED,
    Status.RUNNING,
    Status.WAITING,
    Status.RETRYING,
    Status.ATTENTION,
    Status.CANCELLING,
)


@dataclass(frozen=True)
class Transition:
    """`event` in any of `sources` may lead to any of `targets`; `by` causes it. Without targets the status stays."""

    event: str
    by: str
    sources: tuple[Status, ...]
    targets: tuple[Status, ...]
    meaning: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition("claim", WORKER, CLAIMABLE, (RUN,), "a worker takes the due run under a new epoch"),
    Transition("goto", WORKER, (RUN,), (RUN,), "a checkpoint moves the cursor, same epoch"),
    Transition("suspend", WORKER, (RUN,), (WAIT,), "the body opened a wait"),
    Transition("back_off", WORKER, (RUN,), (RETRY,), "a try failed, another follows later"),
    Transition("ask_person", WORKER, (RUN,), (ATT,), "in doubt, diverged or compensation failed"),
    Transition("complete", WORKER, (RUN,), (Status.COMPLETED,), "the body returned Complete"),
    Transition("fail", WORKER, (RUN,), (Status.FAILED,), "Fail, exhausted or not retryable"),
    Transition(
        "cancel_seen", WORKER, (RUN,), (Status.CANCELLED, CANC, ATT), "the worker saw cancel_requested"
    ),
    Transition("hand_back", WORKER, (RUN,), (Q, CANC), "a worker stopped gracefully or does not execute it"),
    Transition(
        "take_over",
        WORKER,
        (RUN,),
        (Q, RETRY, CANC, ATT, Status.FAILED, Status.CANCELLED),
        "its worker died or it overran",
    ),
    Transition("deadline", CLOCK, (RUN,), (Status.FAILED, ATT), "the run's deadline passed"),
    Transition("outcome", WORKER, (ATT,), (Q, CANC), "the outcome somebody was asked about arrived"),
    Transition("cancel", PERSON, (Q, WAIT, RETRY, ATT), (Status.CANCELLED, CANC), "nothing is in doubt"),
    Transition("resolve_doubt", PERSON, (ATT,), (Q, CANC), "a person said whether it happened"),
    Transition("force_resume", PERSON, (RUN, ATT), (Q, CANC, ATT, Status.FAILED), "a person moved it on"),
    Transition("retry", PERSON, (Status.FAILED,), (Q,), "a failed run goes on in place"),
    Transition("retry_now", PERSON, (RETRY,), (), "its back-off ends now"),
    Transition(
        "skip",
        PERSON,
        (Q, WAIT, RETRY, ATT, Status.FAILED),
        (Q,),
        "it goes on at another step, this one is left",
    ),
    Transition("edit_state", PERSON, (WAIT, RETRY, ATT, Status.FAILED), (), "its state is another one"),
    Transition("kill", PERSON, UNFINISHED, (Status.CANCELLED,), "it ends at once, and nothing is undone"),
    Transition("fork", PERSON, (ATT, *sorted(TERMINAL)), (), "a new run begins at one of its visits"),
)


def allowed_pairs() -> frozenset[tuple[str, str]]:
    """Every (old status, new status) with old ≠ new that some event may cause."""
    return frozenset(
        (str(source.value), str(target.value))
        for t in TRANSITIONS
        for source in t.sources
        for target in t.targets
        if source != target
    )


def sources_of(event: str) -> tuple[Status, ...]:
    """Statuses in which `event` is legal. Raises KeyError for an unknown event."""
    for t in TRANSITIONS:
        if t.event == event:
            return t.sources
    raise KeyError(event)


def mermaid() -> str:
    """The chart as a Mermaid state diagram; `docs/states.md` holds exactly this text."""
    lines = ["stateDiagram-v2", "    [*] --> queued: start"]
    for t in TRANSITIONS:
        lines += [
            f"    {source.value} --> {target.value}: {t.event}"
            for source in t.sources
            for target in t.targets
        ]
    lines += [f"    {s.value} --> [*]" for s in Status if s in (Status.CANCELLED, Status.COMPLETED)]
    return "\n".join(lines)
