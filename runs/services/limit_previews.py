"""What a change of limits would do to runs, for the person who is about to press the button. Nothing here writes.

Counts stop at COUNT_LIMIT + 1: nobody decides otherwise for two thousand runs than for one.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet

from runs import clock, policies, registry
from runs.models import Operation, Policy, Run
from runs.models.operation import OpStatus
from runs.policies import Limits
from runs.services import limits, retention
from runs.services.verb import Consequence
from runs.states import FailureKind, Status

#: Rows that a count looks at, at most.
COUNT_LIMIT = 1000
#: Dead letters, newest first, among which those of one tool are looked for.
NEWEST = 2000


@dataclass(frozen=True)
class Effect:
    """So many runs, and what becomes of them."""

    count: int
    text: str
    url: str = ""
    """Where these runs are."""
    link: str = ""

    @property
    def number(self) -> str:
        return counted(self.count)


@dataclass(frozen=True)
class LimitPreview:
    """What a change would do: a title, a sentence, and how many runs it does what to."""

    sentence: str
    title: str = "What it changes"
    effects: tuple[Effect, ...] = ()


def counted(number: int) -> str:
    return f"{COUNT_LIMIT:,}+" if number > COUNT_LIMIT else f"{number:,}"


def _count(found: QuerySet[Any]) -> int:
    return found.order_by()[: COUNT_LIMIT + 1].count()


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{counted(number)} runs"


def preview_set_limits(
    scope: str, name: str, *, acting: policies.Overrides | None = None, **values: int | float | None
) -> LimitPreview:
    """What these limits would do now. Raises Invalid for a name that no code declares.

    `acting`: what acts now, where the caller has just read it.
    """
    before = policies.load() if acting is None else acting
    limits.check_name(scope, name, before)
    overrides = dict(before)
    changed = copy(before.get((scope, name), Policy(scope=scope, name=name)))
    for field, value in values.items():
        setattr(changed, field, value)
    overrides[scope, name] = changed
    if "retention_days" in values:
        return _retention(name, overrides)
    if "priority" in values:
        return _priority(name, overrides)
    if "concurrency" in values or "rate_count" in values:
        return _places(scope, name, before, overrides, "concurrency" in values)
    return _retries(scope, name, before, overrides)


# --- retries -----------------------------------------------------------------------------------------------------------


def _retries(scope: str, name: str, before: policies.Overrides, after: policies.Overrides) -> LimitPreview:
    total, ended, saved = _in_backoff(scope, name, before, after)
    old, new = _limits_of(scope, name, before), _limits_of(scope, name, after)
    more = min((new[key].max_attempts - old[key].max_attempts for key in old), default=0)
    letters, link = _dead_letters(scope, name, before, after)
    gain = f"in back-off get {more} more attempts" if more > 1 else "in back-off get one more attempt"
    effects = [
        Effect(total - ended, gain if more > 0 else "in back-off go on under the new limits"),
        Effect(ended, "in back-off have used up the new limit and end now, as exhausted"),
    ]
    if saved or more > 0:
        effects.insert(1, Effect(saved, "of these are on their last attempt, and go on instead of failing"))
    if link:
        effects.append(Effect(letters, "could be retried; they stay where they are", link, "dead letters"))
    if not total:
        sentence = "No run ends by this: none is in back-off now."
    elif not ended:
        sentence = f"No run ends by this; {counted(total)} in back-off go on under the new limits."
    else:
        sentence = (
            f"{counted(ended)} of {counted(total)} runs in back-off have used up the new limit and end now"
            " as exhausted."
        )
    waiting = (
        f"Changes {counted(total)} waiting run{'' if total == 1 else 's'}"
        if total
        else "Changes no waiting run"
    )
    return LimitPreview(sentence, waiting, tuple(effects))


def _limits_of(scope: str, name: str, overrides: policies.Overrides) -> dict[tuple[int, str], Limits]:
    """By version and step what holds there; by (0, "") of a tool."""
    if scope == Policy.Scope.TOOL:
        return {(0, ""): policies.for_tool(registry.tool(name), overrides)}
    workflow, _, step = name.partition("/")
    return {
        (version, one): policies.for_step(registry.step(workflow, version, one), overrides)
        for version, one in limits.steps(workflow, step)
    }


def _in_backoff(
    scope: str, name: str, before: policies.Overrides, after: policies.Overrides
) -> tuple[int, int, int]:
    """Runs in back-off here: all, those that have used up the new limit, and those that the new one saves. One query."""
    old, new = _limits_of(scope, name, before), _limits_of(scope, name, after)
    spent: list[tuple[tuple[int, str], int]]
    waiting = limits.retrying(scope, name)
    if scope == Policy.Scope.TOOL:
        tries = limits.tried(name).filter(run__in=waiting.values("pk")).values_list("tries", flat=True)
        spent = [((0, ""), tried) for tried in tries[: COUNT_LIMIT + 1]]
    else:
        rows = waiting.values_list("version", "step", "failures")[: COUNT_LIMIT + 1]
        spent = [((version, step), failures) for version, step, failures in rows]
    known = [(old[key], new[key], failures) for key, failures in spent if key in old]
    ended = sum(failures >= after.max_attempts for _, after, failures in known)
    saved = sum(
        before.max_attempts - 1 <= failures < after.max_attempts - 1 for before, after, failures in known
    )
    return len(spent), ended, saved


def _dead_letters(
    scope: str, name: str, before: policies.Overrides, after: policies.Overrides
) -> tuple[int, str]:
    """How many runs here gave up at their limit, and where they can be retried; ("", no link) where no limit is raised."""
    old, new = _limits_of(scope, name, before), _limits_of(scope, name, after)
    if not any(new[key].max_attempts > old[key].max_attempts for key in old):
        return 0, ""
    letters = Run.objects.filter(status=Status.FAILED, failure_kind=FailureKind.EXHAUSTED)
    chosen = {"verb": "retry", "failure_kind": str(FailureKind.EXHAUSTED)}
    if scope == Policy.Scope.TOOL:
        # Index run_dead_letter gives the newest; index of a run's operations says whether it was this tool.
        newest = Run.objects.filter(status=Status.FAILED).exclude(failure_kind=FailureKind.DECLARED)
        of_tool = Operation.objects.filter(run_id=OuterRef("pk"), name=name, status=OpStatus.FAILED)
        ids = list(newest.order_by("-id").values_list("pk", flat=True)[:NEWEST])
        letters = letters.filter(Exists(of_tool), pk__in=ids)
        chosen["tool"] = name
    else:
        workflow, _, step = name.partition("/")
        narrowed = {"workflow": workflow} | ({"step": step} if step else {})
        letters = letters.filter(**narrowed)  # index run_by_workflow_status
        chosen |= narrowed
    return _count(letters), f"/bulk/new?{urlencode(chosen)}"


# --- places ------------------------------------------------------------------------------------------------------------


def under_way(key: str) -> tuple[int, int]:
    """How many runs or calls are under way in a scope, of live leases, and how many runs its limit holds. One query.

    Indexes run_held_by_worker, limited_call_by_key and run_held_by_limit.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT coalesce(sum(held), 0) FROM agentops_under_limit(ARRAY[%s], %s)),"
            " (SELECT count(*) FROM (SELECT FROM runs_run WHERE held_by IN ('concurrency', 'rate') AND held_key = %s"
            " LIMIT %s) AS parked)",
            [key, settings.AGENTOPS_LEASE_SECONDS, key, COUNT_LIMIT + 1],
        )
        now, parked = cursor.fetchone()
    return int(now), int(parked)


def limits_of(scope: str, name: str, overrides: policies.Overrides) -> Limits:
    """The limits of a scope as a whole. Raises UnknownWorkflow."""
    workflow, _, step = name.partition("/")
    match scope:
        case Policy.Scope.TOOL:
            return policies.for_tool(registry.tool(name), overrides)
        case Policy.Scope.STEP:
            return policies.for_step(registry.workflow(workflow).steps[step], overrides)
        case Policy.Scope.WORKFLOW:
            return policies.for_workflow(registry.workflow(name), overrides)
    return Limits(0, 0, 0, 0, 0).overridden(overrides.get((scope, name)))


def _places(
    scope: str, name: str, before: policies.Overrides, after: policies.Overrides, concurrency: bool
) -> LimitPreview:
    key = f"{scope} {name}"
    now, parked = under_way(key)
    new = limits_of(scope, name, after)
    what = "calls" if scope == Policy.Scope.TOOL else "runs"
    effects = [Effect(now, f"{what} under way now, to go on to the end")]
    if not concurrency:
        rate = new.rate
        told = f"At most {rate_text(rate)} begin." if rate else "They begin as fast as they come."
        effects.append(Effect(parked, "held by the limit now, to go on as the new one allows"))
        return LimitPreview(told, _held_title(parked), tuple(effects))
    if new.concurrency is None:
        effects.append(Effect(parked, "held by it, to become due now"))
        return LimitPreview(
            "Any number at once.", f"Frees {_runs(parked)}" if parked else "Frees no run", tuple(effects)
        )
    room = max(0, new.concurrency - now)
    effects.append(Effect(min(parked, room), "held by it, to become due now"))
    effects.append(Effect(max(0, parked - room), "held until one ends"))
    if now > new.concurrency:
        sentence = f"{now - new.concurrency} more are under way than it allows: nothing new begins until they have ended."
    else:
        sentence = f"{room} more can begin at once."
    return LimitPreview(sentence, _held_title(parked), tuple(effects))


def _held_title(parked: int) -> str:
    if not parked:
        return "Changes no run that is held"
    return f"Changes {_runs(parked)} that {'is' if parked == 1 else 'are'} held"


def rate_text(rate: Any) -> str:
    """A rate in words: "10 per minute"."""
    seconds = rate.per.total_seconds()
    names = {1: "second", 60: "minute", 3600: "hour", 86_400: "day"}
    return f"{rate.count:,} per {names.get(seconds, f'{seconds:g} s')}"


# --- priority, retention, pauses -----------------------------------------------------------------------------------------


def _priority(workflow: str, overrides: Mapping[tuple[str, str], Policy]) -> LimitPreview:
    priority = limits.priority_of(workflow, overrides)
    other = _count(limits.unsorted(workflow, priority))
    return LimitPreview(
        f"New runs begin with priority {priority}, {_head_start(priority)}.",
        "Changes no waiting run",
        (Effect(other, "waiting with another priority, to keep it until somebody sorts them anew"),),
    )


def _head_start(priority: int) -> str:
    if not priority:
        return "without a head start"
    return f"a head start of {priority} minute{'' if priority == 1 else 's'}"


def preview_sort_waiting(workflow: str) -> LimitPreview:
    """What `sort_waiting` would do now. Raises Invalid."""
    priority = limits.priority_of(workflow, policies.load())
    other = _count(limits.unsorted(workflow, priority))
    return LimitPreview(
        f"{counted(other)} waiting runs get priority {priority}, {_head_start(priority)}, and their place by it.",
        f"Changes {_runs(other)}",
    )


def _retention(workflow: str, overrides: policies.Overrides) -> LimitPreview:
    rule = retention.rule_of(workflow, overrides)
    count = retention.over_age(rule, clock.now()).count()
    if not count:
        return LimitPreview("No finished run is that old: nothing is deleted now.")
    runs = "1 finished run is" if count == 1 else f"{count} finished runs are"
    return LimitPreview(f"{runs} older than that and will be deleted, with their records, within minutes.")


def preview_pause(scope: str, name: str) -> Consequence:
    """What `pause_scope` would do now."""
    found = _in_scope(scope, name)
    running = _count(found.filter(status=Status.RUNNING))
    begins = "Nothing" if scope == Policy.Scope.EVERYTHING else f"Nothing of {name}"
    attempts = "1 running attempt goes" if running == 1 else f"{counted(running)} running attempts go"
    return Consequence(f"{begins} begins any more; {attempts} on to the end. Signals and decisions are kept.")


def preview_resume(scope: str, name: str) -> Consequence:
    """What `resume_scope` would do now."""
    return Consequence(f"{counted(_count(limits.parked_by_pause(scope, name)))} parked runs become due now.")


def _in_scope(scope: str, name: str) -> QuerySet[Run]:
    match scope:
        case Policy.Scope.WORKFLOW:
            return Run.objects.filter(workflow=name)
        case Policy.Scope.QUEUE:
            return Run.objects.filter(queue=name)
    return Run.objects.all()


def preview_pause_workflow(workflow: str) -> Consequence:
    """What `pause_workflow` would do now."""
    return preview_pause(Policy.Scope.WORKFLOW, workflow)


def preview_resume_workflow(workflow: str) -> Consequence:
    """What `resume_workflow` would do now."""
    return preview_resume(Policy.Scope.WORKFLOW, workflow)
