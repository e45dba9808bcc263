"""Why a run is not moving: one sentence that follows “waiting because …”, when it next will, and of which kind the reason is.

Nothing of it is stored. `of_all` tells the reasons of the runs that a page shows; `filter_by` finds the runs that have a reason.
"""

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, models
from django.db.models import Exists, IntegerField, OuterRef, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now as StatementTime

from runs import access, clock, content, policies, registry, waits
from runs.models import Attempt, Operation, Run, Worker
from runs.models.operation import WAIT_KINDS, OpStatus
from runs.states import CLAIMABLE, AttentionKind, Hold, Status
from runs.workflow import Retry

#: Child runs of one wait that are counted, while they have not ended.
GOING_ON = 1000


class Reason(models.TextChoices):
    """Why an unfinished run is not moving. Those of a hold, a wait and of attention have the names that these have elsewhere."""

    LATER = "later", "Begins later"
    DUE = "due", "Due, waits for a free worker"
    NO_WORKER = "no_worker", "Due, no worker looks"
    LEASE = "lease", "A worker has it"
    LOST = "lost", "Its worker is lost"
    BACK_OFF = "back_off", "Back-off"
    APPROVAL = "approval", "Approval"
    SIGNAL = "signal", "Signal"
    TIMER = "timer", "Timer"
    CHILD = "child", "Child runs"
    PAUSED = "paused", "Paused"
    NO_CAPABLE_WORKER = "no_capable_worker", "No capable worker"
    CONCURRENCY = "concurrency", "Concurrency limit"
    RATE = "rate", "Rate limit"
    IN_DOUBT = "in_doubt", "An effect is in doubt"
    DIVERGED = "diverged", "The code diverged"
    COMPENSATION = "compensation", "Undoing failed"
    UNDECIDED = "undecided", "Nobody decided in time"
    CANCELLING = "cancelling", "Its effects are undone"


@dataclass(frozen=True)
class Why:
    """Why an unfinished run is not moving, and when a worker next looks at it by itself (None: when somebody acts)."""

    sentence: str
    """Follows “waiting because”; of a running run, what its worker does. Empty for a finished run."""
    kind: Reason | None = None
    next_at: datetime | None = None
    until: datetime | None = None
    """How long this reason lasts at most, where it ends by itself: a back-off, a timer, the time limit of a wait."""
    url: str = ""
    """Where it can be settled, if a page for that is known."""
    beat_at: datetime | None = field(default=None, repr=False, compare=False)
    """Last sign of life of the worker that has the run."""

    def __str__(self) -> str:
        told = [self.sentence]
        if self.until is not None:
            told.append(f"until {_moment(self.until)}")
        if self.beat_at is not None:
            told.append(f"last beat {_moment(self.beat_at)}")
        if self.next_at is not None and self.next_at != self.until:
            told.append(f"next look at {_moment(self.next_at)}")
        return "; ".join(told)


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def why_not_moving(run: Run) -> str:
    """One sentence with the next wake time; empty for a finished run."""
    return str(why(run))


def why(run: Run, user: access.Person | None = None) -> Why:
    return of_all([run], user)[run.pk]


def of_all(
    some: Sequence[Run], user: access.Person | None = None, *, overrides: policies.Overrides | None = None
) -> dict[uuid.UUID, Why]:
    """The reason of each run, as the user may be told it: at most six queries, however many runs; none where all have ended.

    `overrides` that have just been read save one.
    """
    if all(run.is_terminal for run in some):
        return {run.pk: Why("") for run in some}
    facts = Facts.gather(some, user, overrides=overrides)
    return {run.pk: facts.why(run) for run in some}


def with_children(operations: QuerySet[Operation], user: access.Person | None = None) -> QuerySet[Operation]:
    """`operations` with `going_on`: of an open wait for child runs, how many have not ended, up to GOING_ON + 1; else None.

    UNTOLD for somebody who sees a part of the runs: others are not told of, not even by their number.
    """
    if user is not None and access.condition(user) is not None:
        return operations.annotate(going_on=models.Value(waits.UNTOLD))
    counted = RawSQL(
        "CASE WHEN runs_operation.status = 'open' AND runs_operation.kind = 'child' THEN (SELECT count(*) FROM ("
        "SELECT FROM runs_run c WHERE c.parent_operation_id = runs_operation.id AND c.finished_at IS NULL LIMIT %s) AS some_of"
        ") END",
        [GOING_ON + 1],
        output_field=IntegerField(),
    )
    return operations.annotate(going_on=counted)


# --- which runs have this reason? ----------------------------------------------------------------------------------------


def filter_by(runs: QuerySet[Run], kind: Reason | str) -> QuerySet[Run]:
    """Those of `runs` that are not moving for this reason; none for what is no reason.

    One that waits for two things is found by either. Each way begins at an index: `run_by_status`, `run_parked`, `run_due`, or
    `operation_open_by_kind`, which is in the order of runs, so that a page of them reads no more than it shows.
    """
    if kind not in Reason.values:
        return runs.none()
    kind = Reason(kind)
    if kind in Hold.values:
        return runs.filter(held_by=kind.value)
    if kind in AttentionKind.values:
        return runs.filter(status=Status.ATTENTION, attention_kind=kind.value)
    match kind:
        case Reason.LEASE | Reason.LOST:
            # Leases are on the server's clock, which no test moves.
            alive = Worker.objects.filter(
                pk=OuterRef("worker_id"), closed_at__isnull=True, beat_until__gt=StatementTime()
            )
            has_one = Exists(alive) if kind == Reason.LEASE else ~Exists(alive)
            return runs.filter(has_one, status=Status.RUNNING)
        case Reason.DUE | Reason.NO_WORKER:
            # `sort_at` is never after `wake_at`: the first condition is that of the index.
            due = runs.filter(sort_at__lte=clock.Now(), wake_at__lte=clock.Now(), status__in=CLAIMABLE)
            served = RawSQL(_SERVED, [], output_field=models.BooleanField())
            return due.filter(served if kind == Reason.DUE else ~Q(served))
    at_rest = runs.filter(Q(wake_at__isnull=True) | Q(wake_at__gt=clock.Now()), held_by="")
    match kind:
        case Reason.LATER:
            return at_rest.filter(status=Status.QUEUED)
        case Reason.BACK_OFF:
            return at_rest.filter(status=Status.RETRYING)
        case Reason.CANCELLING:
            return at_rest.filter(status=Status.CANCELLING)
    opened = Operation.objects.filter(status=OpStatus.OPEN, kind=kind.value)
    return at_rest.filter(status=Status.WAITING, pk__in=opened.values("run_id"))


_SERVED = (
    "runs_run.queue IN (SELECT unnest(queues) FROM runs_worker"
    " WHERE closed_at IS NULL AND NOT draining AND beat_until > statement_timestamp())"
)


# --- the sentence --------------------------------------------------------------------------------------------------------

# Leases are on the server's clock. Workers are read once for what holds a run, what serves its queue and what could execute it.
_AROUND = """
SELECT agentops_now(),
    (SELECT jsonb_agg(jsonb_build_object('id', id, 'host', host, 'pid', pid, 'beat_at', beat_at, 'closed',
        closed_at IS NOT NULL, 'live', closed_at IS NULL AND beat_until > statement_timestamp()))
     FROM runs_worker WHERE id = ANY (%(holders)s::uuid[])),
    (SELECT jsonb_agg(DISTINCT queue) FROM runs_worker, unnest(queues) AS queue
     WHERE closed_at IS NULL AND NOT draining AND beat_until > statement_timestamp()),
    (SELECT jsonb_agg(DISTINCT jsonb_build_array(capability, code_version)) FROM runs_worker, unnest(capabilities) AS capability
     WHERE closed_at IS NULL AND NOT draining AND beat_until > statement_timestamp()
     AND split_part(capability, '@', 1) = ANY (%(workflows)s::text[])),
    (SELECT jsonb_object_agg(r.id, last.error) FROM unnest(%(retrying)s::uuid[]) AS r (id), LATERAL (
        SELECT error FROM runs_attempt WHERE run_id = r.id ORDER BY step_seq DESC, attempt_no DESC LIMIT 1) AS last)
"""


@dataclass(frozen=True)
class Holder:
    """A worker that has a run."""

    name: str
    beat_at: datetime
    closed: bool
    live: bool


@dataclass(frozen=True)
class Facts:
    """What the sentences need, read at once."""

    now: datetime
    overrides: policies.Overrides
    waits: Mapping[uuid.UUID, Sequence[tuple[Operation, waits.Description]]]
    retries: Mapping[uuid.UUID, Operation]
    errors: Mapping[uuid.UUID, str]
    """Of the last attempt of a run that backs off."""
    holders: Mapping[uuid.UUID, Holder]
    served: frozenset[str]
    """Queues that a live worker looks at."""
    capabilities: frozenset[tuple[str, str]]
    """What live workers have of the workflows whose runs are held for want of one, each with what they call their code."""

    @classmethod
    def gather(
        cls,
        some: Sequence[Run],
        user: access.Person | None = None,
        *,
        now: datetime | None = None,
        attempts: Sequence[Attempt] | None = None,
        operations: Iterable[Operation] | None = None,
        overrides: policies.Overrides | None = None,
    ) -> "Facts":
        """What is known already saves a query each: `now`, where no run is due, held for want of a worker or running;
        `attempts` (the last one of each run); `operations`; `overrides`.
        """
        unfinished = [run for run in some if not run.is_terminal]
        retrying = [run.pk for run in unfinished if run.status == Status.RETRYING]
        standing = [
            run.pk
            for run in unfinished
            if run.status in (Status.WAITING, Status.RETRYING) and not run.held_by and not _is_due(run, now)
        ]
        opened, retries = _operations(standing, operations, user)
        lacking = {run.workflow for run in unfinished if run.held_by == Hold.NO_CAPABLE_WORKER}
        holders = [run.worker_id for run in unfinished if run.worker_id]
        workers = queues = capabilities = errors = None
        asked = retrying if attempts is None else []
        if now is None or holders or lacking or asked or any(_is_due(run, now) for run in unfinished):
            with connection.cursor() as cursor:
                given: dict[str, Any] = {"holders": holders, "workflows": sorted(lacking), "retrying": asked}
                cursor.execute(_AROUND, given)
                now, workers, queues, capabilities, errors = cursor.fetchone()
        last = {uuid.UUID(run_id): error for run_id, error in json.loads(errors or "{}").items()}
        # As the runs themselves are shown.
        hidden = {run.pk: run for run in unfinished if content.is_hidden(run)}
        last = {key: content.words(key not in hidden, error) for key, error in last.items()}
        retries = {
            key: content.like(hidden[key], [one])[0] if key in hidden else one for key, one in retries.items()
        }
        return cls(
            now=now,
            overrides=policies.load() if overrides is None else overrides,
            waits=opened,
            retries=retries,
            errors=last if attempts is None else {one.run_id: one.error for one in attempts},
            holders={uuid.UUID(one["id"]): _holder(one) for one in _list(workers)},
            served=frozenset(_list(queues)),
            capabilities=frozenset((name, code) for name, code in _list(capabilities)),
        )

    def why(self, run: Run) -> Why:
        return _why(run, self)


def _is_due(run: Run, now: datetime | None) -> bool:
    return now is not None and run.wake_at is not None and run.wake_at <= now


def _list(found: str | None) -> list[Any]:
    given: list[Any] = json.loads(found) if found else []
    return given


def _holder(found: Mapping[str, Any]) -> Holder:
    name = f"{found['id'][:13]} ({found['host']}, process {found['pid']})"
    return Holder(name, datetime.fromisoformat(found["beat_at"]), found["closed"], found["live"])


def _operations(
    run_ids: Sequence[uuid.UUID], operations: Iterable[Operation] | None, user: access.Person | None
) -> tuple[Mapping[uuid.UUID, Sequence[tuple[Operation, waits.Description]]], Mapping[uuid.UUID, Operation]]:
    """Of these runs: the open waits with what they look like, and what a tool tries again."""
    if not run_ids:
        return {}, {}
    if operations is None:
        chosen = Operation.objects.filter(run_id__in=run_ids, status__in=[OpStatus.OPEN, OpStatus.RETRY])
        payloads = ("request", "approved", "response", "result")
        operations = with_children(chosen.defer(*payloads), user).order_by("started_at")
    found = list(operations)
    still_open = [one for one in found if one.status == OpStatus.OPEN]
    described = waits.describe_all(still_open)
    opened: dict[uuid.UUID, list[tuple[Operation, waits.Description]]] = defaultdict(list)
    for one in still_open:
        opened[one.run_id].append((one, described[one.pk]))
    return opened, {one.run_id: one for one in found if one.status == OpStatus.RETRY}


def _why(run: Run, facts: Facts) -> Why:
    if run.is_terminal:
        return Why("")
    if run.status == Status.RUNNING:
        return _why_running(run, facts)
    if run.status == Status.ATTENTION:
        return Why(_attention(run), Reason(run.attention_kind))
    if run.held_by:
        return Why(_held(run, facts), Reason(run.held_by))
    if _is_due(run, facts.now):
        return _due(run, facts)
    match run.status:
        case Status.WAITING:
            return _why_waiting(run, facts)
        case Status.RETRYING:
            return Why(_retrying(run, facts), Reason.BACK_OFF, run.wake_at, run.wake_at)
        case Status.CANCELLING:
            undone = f"its effects are being undone: cancelled by {run.cancel_requested_by}"
            return Why(undone, Reason.CANCELLING, run.wake_at)
    return Why(f"step {run.step} is to begin later", Reason.LATER, run.wake_at, run.wake_at)


def _due(run: Run, facts: Facts) -> Why:
    """Due, and yet no worker has it."""
    if run.queue not in facts.served:
        alone = f"it is due, but no live worker looks at queue {run.queue}; start one"
        return Why(alone, Reason.NO_WORKER, run.wake_at)
    if run.status == Status.WAITING:
        told = "its answer has arrived or its time is up, and the next free worker takes it"
    else:
        told = "it is due, and the next free worker takes it"
    return Why(told, Reason.DUE, run.wake_at)


def _held(run: Run, facts: Facts) -> str:
    match run.held_by:
        case Hold.PAUSED:
            return _paused(run, facts)
        case Hold.CONCURRENCY:
            return f"the concurrency limit of {_limited(run)} is reached; it goes on when a place is free"
        case Hold.RATE:
            return f"the rate limit of {_limited(run)} is reached; it goes on when that allows more"
        case Hold.NO_CAPABLE_WORKER:
            return (
                f"no live worker can execute step {run.step} of {run.workflow} version {run.version}"
                f" ({_known(run, facts)}); it goes on when one starts"
            )
    raise ValueError(f"no sentence for the hold {run.held_by}")


def _paused(run: Run, facts: Facts) -> str:
    """By whom and why; the widest pause that acts is named, as lifting a narrower one would not help."""
    scopes = (
        ("everything", "all", "everything"),
        ("queue", run.queue, f"queue {run.queue}"),
        ("workflow", run.workflow, f"workflow {run.workflow}"),
    )
    for scope, name, what in scopes:
        policy = facts.overrides.get((scope, name))
        if policy is not None and policy.paused:
            by = f" by {policy.changed_by}" if policy.changed_by else ""
            why = f" ({policy.pause_reason})" if policy.pause_reason else ""
            return f"{what} is paused{by}{why}; it goes on when somebody resumes it"
    return f"workflow {run.workflow} was paused; a worker makes it due again"


def _limited(run: Run) -> str:
    """The scope whose limit holds the run: “tool refund”, “everything”."""
    return "everything" if run.held_key == "everything all" else run.held_key


def _known(run: Run, facts: Facts) -> str:
    """What live workers have instead of the step that they lack."""
    prefix = f"{run.workflow}@"
    theirs = [(name, code) for name, code in facts.capabilities if name.startswith(prefix)]
    have = {name.removeprefix(prefix).partition("/")[0] for name, _ in theirs}
    if not have:
        return f"none has any step of {run.workflow}"
    codes = ", ".join(sorted({code for _, code in theirs if code}))
    said = f", in code {codes}" if codes else ""
    if str(run.version) in have:
        others = f"other steps of version {run.version}"
        more = have - {str(run.version)}
        return f"known workers have {others}" + (f" and version {_versions(more)}" if more else "") + said
    return f"known workers have version {_versions(have)}{said}"


def _versions(some: Iterable[str]) -> str:
    return ", ".join(sorted(some, key=lambda one: (len(one), one)))


#: Workers close an attempt at its limit, and others do two seconds later; what stands longer is stuck.
OVERDUE = timedelta(seconds=10)


def _why_running(run: Run, facts: Facts) -> Why:
    holder = facts.holders.get(run.worker_id) if run.worker_id else None
    if holder is None or holder.closed:
        name = holder.name if holder else str(run.worker_id)[:13]
        return Why(f"its worker {name} has ended; another one takes the run over", Reason.LOST)
    if not holder.live:
        lost = f"its worker {holder.name} gives no sign of life; another one takes the run over"
        return Why(lost, Reason.LOST, beat_at=holder.beat_at)
    cancel = (
        f", then ends: cancelled by {run.cancel_requested_by}"
        if run.cancel_requested_at and not run.compensating
        else ""
    )
    doing = (
        "undoes its effects" if run.compensating else f"executes step {run.step}, attempt {run.attempt_no}"
    )
    late = ", overdue: nobody has ended it at its limit" if _is_overdue(run, facts.now) else ""
    told = f"worker {holder.name} {doing}{cancel}{late}"
    return Why(told, Reason.LEASE, run.wake_at, beat_at=holder.beat_at)


def _is_overdue(run: Run, now: datetime) -> bool:
    return run.wake_at is not None and run.wake_at < now - OVERDUE


#: What a person reads who may not see the reason of a run in attention.
_ATTENTION = {
    AttentionKind.IN_DOUBT: "nobody knows whether an effect happened",
    AttentionKind.UNDECIDED: "nobody decided in time",
    AttentionKind.DIVERGED: "it did something else than was recorded",
    AttentionKind.COMPENSATION: "an effect could not be undone",
}


def _attention(run: Run) -> str:
    cancel = f"; it was cancelled by {run.cancel_requested_by}" if run.cancel_requested_at else ""
    reason = run.reason
    if content.is_hidden(run):
        reason = _ATTENTION[AttentionKind(run.attention_kind)]
    match run.attention_kind:
        case AttentionKind.IN_DOUBT:
            return f"{reason}; somebody has to say whether it did{cancel}"
        case AttentionKind.UNDECIDED:
            return f"{reason}; it is still open, and goes on when somebody decides{cancel}"
        case AttentionKind.DIVERGED:
            return f"{reason}; somebody has to put its code right and force it on, or cancel it{cancel}"
    return f"{reason}; somebody has to look, then force it on{cancel}"


def _why_waiting(run: Run, facts: Facts) -> Why:
    found = facts.waits.get(run.pk, ())
    if not found:
        return Why("its answer has arrived, and the next free worker takes it", Reason.DUE, run.wake_at)
    ends = [one.expires_at for one, _ in found if one.expires_at is not None]
    return Why(
        " and ".join(description.sentence for _, description in found),
        Reason(min((one.kind for one, _ in found), key=WAIT_KINDS.index)),
        next_at=run.wake_at,
        until=min(ends, default=None),
        url=next((description.url for _, description in found if description.url), ""),
    )


def _retrying(run: Run, facts: Facts) -> str:
    operation, told = facts.retries.get(run.pk), facts.errors.get(run.pk)
    if operation is not None and operation.tries:
        limit = limit_of_tool(operation.name, facts.overrides)
        return f"{operation.name} failed {operation.tries} of {limit} times ({_short(operation.error)}) and backs off"
    error = f" ({_short(told)})" if told else ""
    if run.failures:
        limit = limit_of_step(run, facts.overrides)
        return f"step {run.step} failed {run.failures} of {limit} times{error} and backs off"
    return f"step {run.step} is tried again{error} and backs off"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:159] + "…"


def limit_of_tool(name: str, overrides: policies.Overrides) -> int:
    """Tries that a call of this tool may spend now."""
    try:
        return policies.for_tool(registry.tool(name), overrides).max_attempts
    except registry.UnknownWorkflow:
        return Retry().max_attempts


def limit_of_step(run: Run, overrides: policies.Overrides) -> int:
    """Tries that the run's present step may spend now."""
    try:
        return policies.for_step(registry.step(run.workflow, run.version, run.step), overrides).max_attempts
    except registry.UnknownWorkflow:
        return Retry().max_attempts
