"""Change limits and pause workflows; both act at once on runs in flight."""

from collections.abc import Iterable
from copy import copy
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import F, Q, QuerySet

from runs import clock, lifecycle, policies, registry
from runs.clock import Now
from runs.errors import Invalid, Stale
from runs.lifecycle import Actor
from runs.models import AuditEvent, Operation, Policy, Run
from runs.models.operation import OpStatus
from runs.services import retention
from runs.services.verb import Consequence, permit, verb
from runs.states import Hold, Status
from runs.workflow import WORKFLOWS

LIMITS = ("max_attempts", "backoff_base_s", "backoff_max_s", "timeout_s", "crash_limit", "retention_days")
#: Rows moved in one transaction when many runs are made due.
BATCH = 500


def set_limits(
    actor: Actor,
    scope: str,
    name: str,
    *,
    seen_revision: int | None = None,
    reason: str = "",
    **values: int | float | None,
) -> Policy:
    """Override limits of a step (`workflow/step`), a workflow or a tool; None gives a limit back to the wider scope.

    Runs in back-off that have already used up a lowered limit become due, and end as exhausted.

    Args:
        seen_revision: revision of the row on the page, 0 for none; None: the caller has no page.
        values: any of LIMITS; seconds where the name ends in `_s`.

    Raises NotAllowed, Invalid (unknown name or limit, value out of range), Stale.
    """
    if unknown := values.keys() - set(LIMITS):
        raise Invalid(f"there is no limit {', '.join(sorted(unknown))}; known: {', '.join(LIMITS)}")
    policy = _write(actor, "limits_changed", scope, name, seen_revision, reason, values)
    _wake_exhausted(scope, name)
    return policy


def clear_limits(
    actor: Actor, scope: str, name: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Give every limit of a scope back to the wider scope, in the end the code. Raises as `set_limits`."""
    policy = _write(actor, "limits_cleared", scope, name, seen_revision, reason, dict.fromkeys(LIMITS))
    _wake_exhausted(scope, name)
    return policy


def pause_workflow(
    actor: Actor, workflow: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Let no worker begin anything of this workflow; running attempts go on to their end.

    Raises as `set_limits`.
    """
    values = {"paused": True, "pause_reason": reason}
    return _write(actor, "workflow_paused", Policy.Scope.WORKFLOW, workflow, seen_revision, reason, values)


def resume_workflow(
    actor: Actor, workflow: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Lift the pause and make the runs due that it parked, in batches. Raises as `set_limits`."""
    values = {"paused": False, "pause_reason": ""}
    policy = _write(actor, "workflow_resumed", Policy.Scope.WORKFLOW, workflow, seen_revision, reason, values)
    rearm(Run.objects.filter(held_by=Hold.PAUSED, workflow=workflow))
    return policy


@verb
def _write(
    actor: Actor,
    kind: str,
    scope: str,
    name: str,
    seen_revision: int | None,
    reason: str,
    values: dict[str, Any],
) -> Policy:
    """Insert or change the row, with an audit event of old and new, and tell the workers."""
    permit(actor, "runs.change_limits")
    _check_name(scope, name)
    policy = Policy.objects.select_for_update().filter(scope=scope, name=name).first()
    policy = policy or Policy(scope=scope, name=name, revision=0)
    if seen_revision is not None and seen_revision != policy.revision:
        raise Stale(f"these limits were changed by {policy.changed_by} since the page was loaded")
    old = {field: getattr(policy, field) for field in values}
    for field, value in values.items():
        setattr(policy, field, value)
    policy.revision += 1
    policy.changed_by, policy.changed_at = actor.name, Now()
    _save(policy)
    AuditEvent.objects.create(
        kind=kind,
        target=f"{scope} {name}",
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason,
        old=old,
        new=values,
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [policies.POLICY_CHANNEL, f"{scope} {name}"])
    policy.refresh_from_db()
    return policy


def _save(policy: Policy) -> None:
    try:
        policy.full_clean(exclude=["changed_at", *(["id"] if policy.pk is None else [])])
        with transaction.atomic():
            policy.save()
    except ValidationError as error:
        raise Invalid("; ".join(error.messages)) from None
    except IntegrityError:
        raise Stale("these limits were set by somebody else at the same moment") from None


def _check_name(scope: str, name: str) -> None:
    """Raise Invalid unless the code declares what the limits are for."""
    try:
        match scope:
            case Policy.Scope.WORKFLOW:
                registry.workflow(name)
            case Policy.Scope.STEP:
                workflow, _, step = name.partition("/")
                if not _steps(workflow, step):
                    raise Invalid(f"workflow {workflow!r} has no step {step!r}")
            case Policy.Scope.TOOL:
                registry.tool(name)
            case _:
                raise Invalid(f"there is no scope {scope!r}; known: {', '.join(Policy.Scope.values)}")
    except registry.UnknownWorkflow as error:
        raise Invalid(str(error)) from None


def _steps(workflow: str, only: str = "") -> set[tuple[int, str]]:
    """(version, step) of every version of a workflow. Raises UnknownWorkflow."""
    registry.workflow(workflow)
    versions = WORKFLOWS[workflow]
    return {
        (v, name) for v, declared in versions.items() for name in declared[-1].steps if only in ("", name)
    }


def _exhausted(scope: str, name: str, overrides: policies.Overrides) -> QuerySet[Run]:
    """Runs in back-off at this scope that have reached their limit under these overrides."""
    retrying = _retrying(scope, name)
    if scope == Policy.Scope.TOOL:
        limit = policies.for_tool(registry.tool(name), overrides).max_attempts
        return retrying.filter(pk__in=_tried(name).filter(tries__gte=limit).values("run_id"))
    workflow, _, step = name.partition("/")
    spent = Q(pk__in=[])
    for version, step_name in _steps(workflow, step):
        limit = policies.for_step(registry.step(workflow, version, step_name), overrides).max_attempts
        spent |= Q(version=version, step=step_name, failures__gte=limit)
    return retrying.filter(spent)


def _retrying(scope: str, name: str) -> QuerySet[Run]:
    retrying = Run.objects.filter(status=Status.RETRYING, wake_at__gt=Now())
    if scope == Policy.Scope.TOOL:
        return retrying.filter(pk__in=_tried(name).values("run_id"))
    workflow, _, step = name.partition("/")
    return retrying.filter(workflow=workflow, **({"step": step} if step else {}))


def _tried(tool: str) -> QuerySet[Operation]:
    return Operation.objects.filter(name=tool, status=OpStatus.RETRY)


def _wake_exhausted(scope: str, name: str) -> None:
    rearm(_exhausted(scope, name, policies.load()))


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


def preview_set_limits(scope: str, name: str, **values: int | float | None) -> Consequence:
    """How many runs in back-off these limits would end now. Raises Invalid for a name that no code declares."""
    _check_name(scope, name)
    overrides = dict(policies.load())
    changed = copy(overrides.get((scope, name), Policy(scope=scope, name=name)))
    for field, value in values.items():
        setattr(changed, field, value)
    overrides[scope, name] = changed
    if "retention_days" in values:
        return _preview_retention(name, overrides)
    total, ended = _retrying(scope, name).count(), _exhausted(scope, name, overrides).count()
    if not total:
        return Consequence("No run ends by this: none is in back-off now.")
    if not ended:
        return Consequence(f"No run ends by this; {total} in back-off go on under the new limits.")
    return Consequence(
        f"{ended} of {total} runs in back-off have used up the new limit and end now as exhausted."
    )


def _preview_retention(workflow: str, overrides: policies.Overrides) -> Consequence:
    rule = retention.rule_of(workflow, overrides)
    count = retention.over_age(rule, clock.now()).count()
    if not count:
        return Consequence("No finished run is that old: nothing is deleted now.")
    runs = "1 finished run is" if count == 1 else f"{count} finished runs are"
    return Consequence(f"{runs} older than that and will be deleted, with their records, within minutes.")


def preview_pause_workflow(workflow: str) -> Consequence:
    """What `pause_workflow` would do now."""
    running = Run.objects.filter(workflow=workflow, status=Status.RUNNING).count()
    return Consequence(
        f"Nothing of {workflow} begins any more; {running} running attempts go on to their end. Signals and decisions are kept."
    )


def preview_resume_workflow(workflow: str) -> Consequence:
    """What `resume_workflow` would do now."""
    parked = Run.objects.filter(workflow=workflow, held_by=Hold.PAUSED).count()
    return Consequence(f"{parked} parked runs become due now.")


def known_names() -> Iterable[tuple[str, str]]:
    """Every (scope, name) that limits can be set for."""
    for workflow in registry.workflows():
        yield Policy.Scope.WORKFLOW, workflow.name
        for step in workflow.steps:
            yield Policy.Scope.STEP, f"{workflow.name}/{step}"
    for tool in registry.tools():
        yield Policy.Scope.TOOL, tool.name
