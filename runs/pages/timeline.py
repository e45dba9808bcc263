"""The timeline of a run: its attempts, what they did and what the run waited for, as lanes of the waterfall."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from django.utils.safestring import SafeString

from agentops.console import badges
from agentops.console.badges import ATTENTION, BAD, IDLE, OK, OPERATION_KINDS, RETRY, RUN, WAIT, badge
from agentops.console.waterfall import Lane
from runs.models import Attempt, Operation, Run
from runs.models.operation import WAIT_KINDS, Kind, OpStatus
from runs.pages.acts import Act
from runs.registry import COMPENSATE
from runs.states import Outcome, Status

#: A wait for a free worker that is shorter is not worth a line.
NOTABLE = timedelta(seconds=1)

#: What a suspended attempt did last, by the kind of the wait that it opened.
ASKED = {
    Kind.APPROVAL: "asked for approval",
    Kind.SIGNAL: "waits for a signal",
    Kind.TIMER: "sleeps",
    Kind.CHILD: "waits for child runs",
}

Key = tuple[int, int]


def in_doubt(run: Run, operation: Operation) -> bool:
    """An effect is recorded as started, and nobody is executing it any more: whether it happened is unknown."""
    if operation.status != OpStatus.PENDING:
        return False
    executed_now = run.status == Status.RUNNING and operation.intent_epoch == run.epoch
    return not executed_now or operation.call_ended_at is not None


def shown_status(run: Run, operation: Operation) -> tuple[str, str]:
    """Kind and status under which an operation has its badge; `operation` is from `selectors.in_brief`."""
    if operation.kind != Kind.APPROVAL:
        return "operation", "in_doubt" if in_doubt(run, operation) else operation.status
    match operation.status:
        case OpStatus.OPEN:
            return "approval", "open"
        case OpStatus.CLOSED:
            return "approval", "void"
        case OpStatus.DONE:
            verdict = getattr(operation, "verdict", "")
            return "approval", verdict if verdict in badges.BADGES["approval"] else "approved"
    return "approval", "expired"


def lanes(
    run: Run,
    attempts: Sequence[Attempt],
    operations: Sequence[Operation],
    *,
    newest: bool,
    details: Callable[[Attempt], SafeString],
    acts: Sequence[Act] = (),
    link: Callable[[Operation], str] = lambda operation: "",
    now_at: str = "",
) -> list[Lane]:
    """The lanes of a page of attempts, oldest first, each attempt followed by what it did.

    `attempts` come newest first; `newest` says that nothing came after them, so that what goes on now follows. `details`
    makes what opens below an attempt. `acts`, oldest first, stand before the first attempt that began after them. `link` leads
    to the page of an operation, `now_at` to that of the attempt that goes on.
    """
    told: list[Lane] = []
    left = list(acts)
    # A reader of a failed run wants to know why: what ended it is open.
    ended_it = attempts[0] if attempts and newest and run.status == Status.FAILED else None
    by_attempt: dict[Key, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_attempt[operation.step_seq, operation.attempt_no].append(operation)
    in_order = list(reversed(attempts))
    if in_order and (in_order[0].step_seq, in_order[0].attempt_no) == (1, 1):
        told += _queued(run, in_order[0].started_at)
    for index, attempt in enumerate(in_order):
        while left and left[0].at <= attempt.started_at:
            told.append(_act(left.pop(0)))
        done = by_attempt.pop((attempt.step_seq, attempt.attempt_no), [])
        told.append(_attempt(attempt, done, details(attempt), opened=attempt is ended_it))
        told += [_operation(run, operation, attempt.ended_at, link) for operation in done]
        following = in_order[index + 1] if index + 1 < len(in_order) else None
        told += _pause(run, attempt, following, newest)
    now = _now(run, in_order[-1] if in_order else None, by_attempt, link, now_at) if newest else []
    for lane in now:
        while left and left[0].at <= lane.start:
            told.append(_act(left.pop(0)))
        told.append(lane)
    return told + [_act(one) for one in left]


def _act(act: Act) -> Lane:
    return Lane(
        f"{act.who} {act.did}",
        act.icon,
        act.tone,
        act.at,
        act.at,
        href=act.url,
        key=act.key,
        act=True,
        said=act.reason,
    )


def _queued(run: Run, until: datetime) -> list[Lane]:
    if until - run.created_at < NOTABLE:
        return []
    return [Lane("queued", "s-queued", IDLE, run.created_at, until, worked=False)]


def step_name(step: str) -> str:
    """A step's name for people; compensations have a cursor of their own."""
    return "compensations" if step == COMPENSATE else step


def _attempt(
    attempt: Attempt, done: Sequence[Operation], details: SafeString, *, opened: bool = False
) -> Lane:
    look = badge("attempt", attempt.outcome)
    notes = [f"try {attempt.attempt_no}"] if attempt.attempt_no > 1 else []
    if attempt.outcome == Outcome.SUSPENDED:
        waits = [ASKED[Kind(one.kind)] for one in done if one.kind in WAIT_KINDS]
        notes += waits[-1:] or ["suspended"]
    elif attempt.outcome != Outcome.SUCCEEDED:
        notes.append(look.word.lower())
    return Lane(
        step_name(attempt.step),
        look.icon,
        look.tone,
        attempt.started_at,
        attempt.ended_at,
        note=", ".join(notes),
        word=look.word.lower(),
        details=details,
        opened=opened,
        key=f"attempt-{attempt.step_seq}-{attempt.attempt_no}",
    )


def _operation(
    run: Run, operation: Operation, attempt_ended: datetime | None, link: Callable[[Operation], str]
) -> Lane:
    waits = operation.kind in WAIT_KINDS
    doubt = in_doubt(run, operation)
    end = operation.finished_at
    if end is None and not waits:
        end = operation.call_ended_at or attempt_ended
    look = badge(*shown_status(run, operation))
    plain = operation.status in (OpStatus.DONE, OpStatus.CLOSED) and operation.kind != Kind.APPROVAL
    return Lane(
        operation.name or str(operation.kind),
        OPERATION_KINDS[operation.kind] if plain else look.icon,
        (WAIT if waits else OK) if operation.status == OpStatus.DONE and plain else look.tone,
        max(operation.started_at, operation.intent_at or operation.started_at),
        end,
        worked=not (waits or doubt),
        level=1,
        note=_note(operation, doubt),
        word="" if plain else look.word.lower(),
        href=link(operation),
        key=f"lane-{operation.pk}",
    )


def _note(operation: Operation, doubt: bool) -> str:
    notes = ["answer not kept"] if operation.forgotten else []
    if doubt:
        notes.append(f"{operation.kind}, in doubt")
    elif operation.status in (OpStatus.FAILED, OpStatus.RETRY, OpStatus.CLOSED):
        notes.append(str(OpStatus(operation.status).label).lower())
    elif operation.kind in WAIT_KINDS:
        verdict = getattr(operation, "verdict", "")
        notes.append(f"{operation.kind}, {verdict}" if verdict else str(operation.kind))
    if operation.tries > 1:
        notes.append(f"{operation.tries} tries")
    return ", ".join(notes)


def _pause(run: Run, attempt: Attempt, following: Attempt | None, newest: bool) -> list[Lane]:
    """The time between a try that did not succeed and the next one of the same visit."""
    if attempt.retry_at is None and attempt.outcome not in (
        Outcome.FAILED,
        Outcome.TIMED_OUT,
        Outcome.CRASHED,
    ):
        return []
    if following is not None:
        until = following.started_at if following.step_seq == attempt.step_seq else None
    elif newest and run.status == Status.RETRYING:
        return [Lane("back-off", "s-retrying", RETRY, attempt.ended_at, None, worked=False, level=1)]
    else:
        until = run.attempt_started_at if newest and run.step_seq == attempt.step_seq else attempt.retry_at
    if until is None or until <= attempt.ended_at:
        return []
    return [Lane("until the next try", "s-retrying", RETRY, attempt.ended_at, until, worked=False, level=1)]


def _now(
    run: Run,
    last: Attempt | None,
    rest: dict[Key, list[Operation]],
    link: Callable[[Operation], str],
    now_at: str,
) -> list[Lane]:
    """What goes on at this moment, and operations whose attempt has not ended yet."""
    told: list[Lane] = []
    since = last.ended_at if last else run.created_at
    if run.status == Status.RUNNING and run.attempt_started_at:
        note = f"try {run.attempt_no}" if run.attempt_no > 1 else ""
        told.append(
            Lane(
                step_name(run.step),
                "s-running",
                RUN,
                run.attempt_started_at,
                None,
                note=note,
                word="running",
                href=now_at,
                key=f"attempt-{run.step_seq}-{run.attempt_no}",
            )
        )
    for operations in rest.values():
        told += [_operation(run, operation, None, link) for operation in operations]
    if run.status in (Status.QUEUED, Status.CANCELLING):
        told.append(Lane("waits for a worker", "s-queued", IDLE, since, None, worked=False))
    elif run.status == Status.ATTENTION:
        told.append(Lane("waits for a person", "user", ATTENTION, since, None, worked=False, level=1))
    elif run.status == Status.FAILED and last is None and run.finished_at:
        told.append(Lane("failed", "s-failed", BAD, since, run.finished_at, worked=False))
    return told
