"""Change limits and pause what must stand still; both act at once on runs in flight.

Whatever is changed here goes through `_write`: permission, guard against a stale page, row, audit event, word to the workers.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import F, Q, QuerySet

from runs import clock, lifecycle, policies, registry
from runs.clock import Now
from runs.errors import Invalid, NotFound, Stale
from runs.lifecycle import Actor
from runs.models import AuditEvent, Operation, Policy, Run, Worker
from runs.models.operation import OpStatus
from runs.models.policy import ALL, YEAR_S
from runs.policies import TOGETHER, Temporary
from runs.services import guards
from runs.services.verb import permit, verb
from runs.states import Hold, Status
from runs.workflow import WORKFLOWS

_ENGINE = ("max_attempts", "backoff_base_s", "backoff_max_s", "timeout_s")
_ACTING = ("concurrency", "rate_count", "rate_period_s")
#: The limits that each scope has; `rate_count` and `rate_period_s` are one limit together.
LIMITS_OF: Mapping[str, tuple[str, ...]] = {
    Policy.Scope.STEP: (*_ENGINE, "crash_limit", *_ACTING),
    Policy.Scope.WORKFLOW: (*_ENGINE, "crash_limit", "retention_days", *_ACTING, "priority"),
    Policy.Scope.TOOL: (*_ENGINE, *_ACTING),
    Policy.Scope.QUEUE: _ACTING,
    Policy.Scope.EVERYTHING: _ACTING,
}
LIMITS = LIMITS_OF[Policy.Scope.WORKFLOW]
#: Scopes that can be paused.
PAUSABLE = (Policy.Scope.WORKFLOW, Policy.Scope.QUEUE, Policy.Scope.EVERYTHING)
#: Rows moved in one transaction when many runs are made due.
BATCH = 500
#: A temporary limit acts for at least a minute (a slip of the hand would be over before anybody read of it).
SHORTEST = timedelta(minutes=1)


@guards.guarded("change_limits")
def set_limits(
    actor: Actor,
    scope: str,
    name: str,
    *,
    seen_revision: int | None = None,
    reason: str = "",
    until: datetime | None = None,
    **values: int | float | None,
) -> Policy:
    """Override limits of a scope (`workflow/step`, a workflow, a tool, a queue, `all`); None gives a limit back to the wider one.

    Runs in back-off that have already used up a lowered limit become due, and end as exhausted; runs that a raised limit held
    become due.

    Args:
        seen_revision: revision of the row on the page, 0 for none; None: the caller has no page.
        until: the limits act until then, and what acted before acts again by itself. None: until somebody changes them.
        values: any of LIMITS_OF the scope; seconds where the name ends in `_s`. A rate is its count and its period.

    Raises NotAllowed, Invalid (unknown name or limit, value out of range), Stale.
    """
    if unknown := values.keys() - set(LIMITS_OF.get(scope, LIMITS)):
        known = ", ".join(LIMITS_OF.get(scope, LIMITS))
        raise Invalid(f"there is no limit {', '.join(sorted(unknown))}; known: {known}")
    if ("rate_count" in values) != ("rate_period_s" in values):
        raise Invalid("a rate is a number and a period: say both, or neither")
    if until is None:
        change = Change(dict(values), dict.fromkeys(limits_in(values)))
    else:
        change = Change({}, _temporary(actor, values, until, reason))
    policy = _write(actor, "limits_changed", scope, name, seen_revision, reason, change)
    _act(scope, name)
    return policy


@guards.guarded("change_limits")
def clear_limits(
    actor: Actor, scope: str, name: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Give every limit of a scope back to the wider scope, in the end the code. Raises as `set_limits`."""
    columns = LIMITS_OF.get(scope, LIMITS)
    change = Change(dict.fromkeys(columns), dict.fromkeys(limits_in(columns)))
    policy = _write(actor, "limits_cleared", scope, name, seen_revision, reason, change)
    _act(scope, name)
    return policy


@guards.guarded("change_limits")
def end_temporary_limit(
    actor: Actor, scope: str, name: str, limit: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """End a temporary limit before its time. Raises as `set_limits`, and Invalid where none acts."""
    policy = _write(actor, "limits_changed", scope, name, seen_revision, reason, Change({}, {limit: None}))
    _act(scope, name)
    return policy


@guards.guarded("change_limits")
def revert_limits(
    actor: Actor, change_id: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Make what one change of limits found act again: a new change with the values that it replaced.

    Of a temporary limit whose time is over meanwhile, nothing comes back. Raises as `set_limits`, NotFound, and Invalid where
    the change was no change of limits.
    """
    event = AuditEvent.objects.filter(pk=change_id, kind__in=REVERTIBLE).first()
    if event is None:
        raise NotFound("there is no such change of limits")
    scope, _, name = event.target.partition(" ")
    change = reversal(event)
    policy = _write(actor, "limits_reverted", scope, name, seen_revision, reason, change, of=str(event.pk))
    _act(scope, name)
    return policy


@guards.guarded("change_limits")
def pause_workflow(
    actor: Actor, workflow: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Let no worker begin anything of this workflow; running attempts go on to their end.

    Raises as `set_limits`.
    """
    return _pause(actor, Policy.Scope.WORKFLOW, workflow, seen_revision, reason, None)


@guards.guarded("change_limits")
def resume_workflow(
    actor: Actor, workflow: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Lift the pause and make the runs due that it parked, in batches. Raises as `set_limits`."""
    return _resume(actor, Policy.Scope.WORKFLOW, workflow, seen_revision, reason)


@guards.guarded("change_limits")
def pause_scope(
    actor: Actor,
    scope: str,
    name: str,
    *,
    seen_revision: int | None = None,
    reason: str = "",
    until: datetime | None = None,
) -> Policy:
    """Let no worker begin anything of a workflow, of a queue, or at all; until a time, or until somebody resumes it.

    Running attempts go on to their end, signals and decisions are kept. Raises as `set_limits`.
    """
    return _pause(actor, scope, name, seen_revision, reason, until)


@guards.guarded("change_limits")
def resume_scope(
    actor: Actor, scope: str, name: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Lift a pause; see `resume_workflow`. Raises as `set_limits`."""
    return _resume(actor, scope, name, seen_revision, reason)


@guards.guarded("change_limits")
def sort_waiting(actor: Actor, workflow: str, *, seen_revision: int | None = None, reason: str = "") -> int:
    """Give the workflow's priority to its runs that are not executed now, and so their place in the order. How many changed.

    New runs have it anyway. Raises as `set_limits`.
    """
    scope = Policy.Scope.WORKFLOW
    _write(actor, "waiting_sorted", scope, workflow, seen_revision, reason, Change({}, {}))
    priority = priority_of(workflow, policies.load())
    moved = 0
    while batch := _sort_batch(unsorted(workflow, priority), priority):
        moved += batch
    return moved


# --- the one entry -------------------------------------------------------------------------------------------------------


class Change:
    """New values of columns, and new temporary limits by limit (None ends one)."""

    def __init__(self, values: dict[str, Any], temporary: dict[str, Any]) -> None:
        self.values, self.temporary = values, temporary


#: Kinds of audit events that a revert can undo.
REVERTIBLE = ("limits_changed", "limits_cleared", "limits_reverted")


def reversal(event: AuditEvent) -> Change:
    """What takes a change back."""
    old: dict[str, Any] = dict(event.old or {})
    before = old.pop("temporary", {})
    now = clock.now()
    over = {
        limit
        for limit, told in before.items()
        if told is not None and datetime.fromisoformat(told["until"]) <= now
    }
    temporary = {limit: None if limit in over else told for limit, told in before.items()}
    return Change({column: old[column] for column in old if column in LIMITS}, temporary)


def limits_in(columns: Iterable[str]) -> list[str]:
    """The limits that these columns belong to; of those that are one limit together, its first column is its name."""
    second = {column for together in TOGETHER.values() for column in together[1:]}
    return [column for column in columns if column not in second]


def _temporary(
    actor: Actor, values: Mapping[str, Any], until: datetime, reason: str
) -> dict[str, dict[str, Any]]:
    """By limit, what the row says of it until then. Raises Invalid."""
    now = clock.now()
    if until.tzinfo is None:
        raise Invalid(f"the time {until.isoformat()} has no time zone")
    if not now + SHORTEST <= until <= now + timedelta(seconds=YEAR_S):
        raise Invalid("a temporary limit acts for a minute at least and a year at most")
    if "retention_days" in values:
        raise Invalid("what retention deletes does not come back: it cannot be changed for a while only")
    told = {"until": until.isoformat(), "at": now.isoformat(), "by": actor.name, "reason": reason}
    return {
        limit: told | {"values": {column: values[column] for column in TOGETHER.get(limit, (limit,))}}
        for limit in limits_in(values)
    }


@verb
def _write(
    actor: Actor,
    kind: str,
    scope: str,
    name: str,
    seen_revision: int | None,
    reason: str,
    change: Change,
    **more: Any,
) -> Policy:
    """Insert or change the row, with an audit event of old and new, and tell the workers."""
    permit_limits(actor, scope, name)
    check_name(scope, name)
    policy = Policy.objects.select_for_update().filter(scope=scope, name=name).first()
    policy = policy or Policy(scope=scope, name=name, revision=0, temporary={})
    if seen_revision is not None and seen_revision != policy.revision:
        raise Stale(f"these limits were changed by {policy.changed_by} since the page was loaded")
    old: dict[str, Any] = {column: getattr(policy, column) for column in change.values}
    new: dict[str, Any] = dict(change.values)
    touched = {
        limit: told
        for limit, told in change.temporary.items()
        if told is not None or limit in policy.temporary
    }
    if touched:
        old["temporary"] = {limit: policy.temporary.get(limit) for limit in touched}
        new["temporary"] = touched
    for column, value in change.values.items():
        setattr(policy, column, value)
    temporary = policy.temporary | touched
    policy.temporary = {limit: told for limit, told in temporary.items() if told is not None}
    policy.revision += 1
    policy.changed_by, policy.changed_at = actor.name, Now()
    _save(policy)
    _audit(actor, kind, policy, reason, old, new | more)
    policy.refresh_from_db()
    return policy


def permit_limits(actor: Actor, scope: str, name: str) -> None:
    """Raise NotAllowed unless the actor may change limits here: for everything, or for the workflow that it is about."""
    workflow = name.partition("/")[0] if scope in (Policy.Scope.WORKFLOW, Policy.Scope.STEP) else ""
    permit(actor, "runs.change_limits", run=Run(workflow=workflow) if workflow else None)


def _audit(
    actor: Actor, kind: str, policy: Policy, reason: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    AuditEvent.objects.create(
        kind=kind,
        target=str(policy),
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason,
        old=old,
        new=new,
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [policies.POLICY_CHANNEL, str(policy)])


def _save(policy: Policy) -> None:
    try:
        exclude = ["changed_at", *(["id"] if policy.pk is None else [])]
        policy.full_clean(exclude=exclude)
        # What acts for a while must be a limit as good as any: the columns' rules are asked about it.
        for one in policies.temporaries(policy):
            trial = copy(policy)
            for column, value in one.values.items():
                setattr(trial, column, value)
            trial.full_clean(exclude=exclude)
        with transaction.atomic():
            policy.save()
    except ValidationError as error:
        raise Invalid("; ".join(error.messages)) from None
    except IntegrityError:
        raise Stale("these limits were set by somebody else at the same moment") from None


def check_name(scope: str, name: str, overrides: policies.Overrides | None = None) -> None:
    """Raise Invalid unless there is something that the limits are for."""
    try:
        match scope:
            case Policy.Scope.WORKFLOW:
                registry.workflow(name)
            case Policy.Scope.STEP:
                workflow, _, step = name.partition("/")
                if not steps(workflow, step):
                    raise Invalid(f"workflow {workflow!r} has no step {step!r}")
            case Policy.Scope.TOOL:
                registry.tool(name)
            case Policy.Scope.QUEUE:
                if name not in queues(policies.load() if overrides is None else overrides):
                    raise Invalid(f"no workflow starts in queue {name!r}, and no worker looks at it")
            case Policy.Scope.EVERYTHING:
                if name != ALL:
                    raise Invalid(f"everything is named {ALL!r}")
            case _:
                raise Invalid(f"there is no scope {scope!r}; known: {', '.join(Policy.Scope.values)}")
    except registry.UnknownWorkflow as error:
        raise Invalid(str(error)) from None


def queues(overrides: policies.Overrides) -> list[str]:
    """Queues that a workflow starts in, that a live worker looks at, or that a policy speaks of. One query."""
    known = {workflow.queue for workflow in registry.workflows()} | {"default"}
    for looked_at in Worker.objects.filter(closed_at__isnull=True).values_list("queues", flat=True):
        known |= set(looked_at)
    return sorted(known | {name for scope, name in overrides if scope == Policy.Scope.QUEUE})


def steps(workflow: str, only: str = "") -> set[tuple[int, str]]:
    """(version, step) of every version of a workflow. Raises UnknownWorkflow."""
    registry.workflow(workflow)
    versions = WORKFLOWS[workflow]
    return {
        (v, name) for v, declared in versions.items() for name in declared[-1].steps if only in ("", name)
    }


# --- pauses ------------------------------------------------------------------------------------------------------------


def _pause(
    actor: Actor, scope: str, name: str, seen_revision: int | None, reason: str, until: datetime | None
) -> Policy:
    if scope not in PAUSABLE:
        raise Invalid("only a workflow, a queue or everything can be paused")
    values = {"paused": True, "pause_reason": reason}
    if until is None:
        change = Change(values, {"paused": None})
    else:
        told = _temporary(actor, {"paused": True}, until, reason)["paused"]
        change = Change({}, {"paused": told | {"values": values}})
    return _write(actor, f"{_word(scope)}_paused", scope, name, seen_revision, reason, change)


def _resume(actor: Actor, scope: str, name: str, seen_revision: int | None, reason: str) -> Policy:
    change = Change({"paused": False, "pause_reason": ""}, {"paused": None})
    policy = _write(actor, f"{_word(scope)}_resumed", scope, name, seen_revision, reason, change)
    _lift_pause(scope, name)
    return policy


def _word(scope: str) -> str:
    return str(scope) if scope in Policy.Scope.values else "unknown"


def parked_by_pause(scope: str, name: str) -> QuerySet[Run]:
    """Runs that a pause of this scope parked. Index run_parked."""
    parked = Run.objects.filter(held_by=Hold.PAUSED)
    match scope:
        case Policy.Scope.WORKFLOW:
            return parked.filter(workflow=name)
        case Policy.Scope.QUEUE:
            return parked.filter(queue=name)
    return parked


def _lift_pause(scope: str, name: str) -> None:
    """Make due what nothing else keeps paused."""
    parked, overrides = parked_by_pause(scope, name), policies.load()
    still = policies.pauses(overrides)
    if any(policy.scope == Policy.Scope.EVERYTHING for policy in still):
        return
    parked = parked.exclude(workflow__in=[p.name for p in still if p.scope == Policy.Scope.WORKFLOW])
    rearm(parked.exclude(queue__in=[p.name for p in still if p.scope == Policy.Scope.QUEUE]))


# --- what a change does to runs ------------------------------------------------------------------------------------------


def _act(scope: str, name: str) -> None:
    """Let changed limits act on runs that stand still because of them."""
    if scope not in (Policy.Scope.QUEUE, Policy.Scope.EVERYTHING):
        rearm(exhausted(scope, name, policies.load()))
    _rearm_limited(f"{scope} {name}")


def _rearm_limited(key: str) -> None:
    from runs.engine import limited  # which imports the verbs' neighbours

    while verb(limited.rearm)([key]) >= limited.BATCH:
        pass


def exhausted(scope: str, name: str, overrides: policies.Overrides) -> QuerySet[Run]:
    """Runs in back-off at this scope that have reached their limit under these overrides."""
    waiting = retrying(scope, name)
    if scope == Policy.Scope.TOOL:
        limit = policies.for_tool(registry.tool(name), overrides).max_attempts
        return waiting.filter(pk__in=tried(name).filter(tries__gte=limit).values("run_id"))
    workflow, _, step = name.partition("/")
    spent = Q(pk__in=[])
    for version, step_name in steps(workflow, step):
        limit = policies.for_step(registry.step(workflow, version, step_name), overrides).max_attempts
        spent |= Q(version=version, step=step_name, failures__gte=limit)
    return waiting.filter(spent)


def retrying(scope: str, name: str) -> QuerySet[Run]:
    """Runs in back-off at this scope. Indexes run_by_status and run_by_workflow_status."""
    waiting = Run.objects.filter(status=Status.RETRYING, wake_at__gt=Now())
    if scope == Policy.Scope.TOOL:
        return waiting.filter(pk__in=tried(name).values("run_id"))
    workflow, _, step = name.partition("/")
    return waiting.filter(workflow=workflow, **({"step": step} if step else {}))


def tried(tool: str) -> QuerySet[Operation]:
    return Operation.objects.filter(name=tool, status=OpStatus.RETRY)


def rearm(parked: QuerySet[Run]) -> int:
    """Make these runs due, a transaction for each batch; being due must take them out of `parked`. Returns how many."""
    moved = 0
    while batch := _rearm_batch(parked):
        moved += batch
    return moved


@verb
def _rearm_batch(parked: QuerySet[Run]) -> int:
    chosen = list(parked.order_by("pk").select_for_update(no_key=True).values_list("pk", "queue")[:BATCH])
    # A run that moved on while its lock was awaited is not in the answer: PostgreSQL looks at the row again.
    Run.objects.filter(pk__in=[primary_key for primary_key, _ in chosen]).update(
        wake_at=Now(), sort_at=Now() - F("priority") * timedelta(minutes=1), held_by=""
    )
    for queue in {queue for _, queue in chosen}:
        lifecycle.notify_due(queue)
    return len(chosen)


def priority_of(workflow: str, overrides: policies.Overrides) -> int:
    """Of new runs of the workflow that are given none. Raises Invalid for a workflow that no code declares."""
    try:
        return policies.for_workflow(registry.workflow(workflow), overrides).priority
    except registry.UnknownWorkflow as error:
        raise Invalid(str(error)) from None


def unsorted(workflow: str, priority: int) -> QuerySet[Run]:
    """Unfinished runs that no worker has, with another priority. Index run_by_workflow_status."""
    idle = [Status.QUEUED, Status.WAITING, Status.RETRYING, Status.CANCELLING, Status.ATTENTION]
    return Run.objects.filter(workflow=workflow, status__in=idle).exclude(priority=priority)


@verb
def _sort_batch(found: QuerySet[Run], priority: int) -> int:
    chosen = list(found.order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True)[:BATCH])
    moved = (F("priority") - priority) * timedelta(minutes=1)
    Run.objects.filter(pk__in=chosen).update(
        priority=priority, sort_at=F("sort_at") + moved, held_sort=F("held_sort") + moved
    )
    return len(chosen)


# --- time ----------------------------------------------------------------------------------------------------------------


def over(now: datetime) -> list[Temporary]:
    """Temporary limits whose time is over, and of which the history does not say so yet. They do not act any more."""
    rows = Policy.objects.exclude(temporary={})
    return [one for row in rows for one in policies.temporaries(row) if one.until <= now]


def end_temporary() -> int:
    """Write into the history which temporary limits are over, and let what acts again act on runs. How many ended.

    They stopped acting at their time, whoever read them; each worker's sweep calls this.
    """
    ended = {(one.scope, one.name) for one in over(clock.now())}
    done = 0
    for scope, name in sorted(ended):
        limits = _end(scope, name)
        done += len(limits)
        if "paused" in limits:
            _lift_pause(scope, name)
        if limits:
            _act(scope, name)
    return done


@verb
def _end(scope: str, name: str) -> list[str]:
    """The limits that have ended now; none where another sweep was faster."""
    policy = Policy.objects.select_for_update(skip_locked=True).filter(scope=scope, name=name).first()
    now = clock.now()
    ended = [one for one in policies.temporaries(policy) if one.until <= now] if policy else []
    if policy is None or not ended:
        return []
    limits = [one.column for one in ended]
    old = {"temporary": {limit: policy.temporary[limit] for limit in limits}}
    policy.temporary = {limit: told for limit, told in policy.temporary.items() if limit not in limits}
    policy.revision += 1
    policy.save(update_fields=["temporary", "revision"])
    reason = f"its time was over: it was set until {min(one.until for one in ended):%Y-%m-%d %H:%M:%S %Z}"
    _audit(lifecycle.CLOCK, "limits_ended", policy, reason, old, {"temporary": dict.fromkeys(limits)})
    return limits


def known_names() -> Iterable[tuple[str, str]]:
    """Every (scope, name) that the code declares limits for, and everything."""
    yield Policy.Scope.EVERYTHING, ALL
    for workflow in registry.workflows():
        yield Policy.Scope.WORKFLOW, workflow.name
        for step in workflow.steps:
            yield Policy.Scope.STEP, f"{workflow.name}/{step}"
    for tool in registry.tools():
        yield Policy.Scope.TOOL, tool.name
