"""Limits as people read them: what the code says beside what the database overrides, and who changed what."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.http import HttpRequest

from runs import access, clock, policies, registry
from runs.models import AuditEvent, Policy, Run
from runs.models.policy import ALL, CENTURY_DAYS, MILLION, YEAR_S
from runs.policies import Limits, Temporary
from runs.services import limits
from runs.services.limit_previews import limits_of, rate_text, under_way
from runs.services.limits import LIMITS_OF, PAUSABLE, known_names
from runs.workflow import Rate

#: Lines of history that a page shows.
HISTORY = 20
KINDS_OF_CHANGE = (
    "limits_changed",
    "limits_cleared",
    "limits_reverted",
    "limits_ended",
    "waiting_sorted",
    *(f"{scope}_{verb}" for scope in ("workflow", "queue", "everything") for verb in ("paused", "resumed")),
)


@dataclass(frozen=True)
class Kind:
    """One sort of limit: its column in `runs_policy`, its field in `Limits`, and how people call it."""

    column: str
    field: str
    label: str
    unit: str
    one: str
    whole: bool
    least: float
    most: float
    none: str = "none"
    """What it means that there is none."""

    @property
    def columns(self) -> tuple[str, ...]:
        return policies.TOGETHER.get(self.column, (self.column,))

    def of_policy(self, policy: Policy | None) -> Any:
        """What a row says; None where it says nothing."""
        if policy is None:
            return None
        return policies.rate_of(policy) if self.column == "rate_count" else getattr(policy, self.column)

    def of_columns(self, values: dict[str, Any]) -> Any:
        """The same from the columns of a change."""
        if self.column != "rate_count":
            return values.get(self.column)
        count, period = values.get("rate_count"), values.get("rate_period_s")
        return None if count is None or period is None else Rate(count, timedelta(seconds=period))

    def text(self, value: Any) -> str:
        """A value with its unit; "none" for None."""
        if value is None:
            return self.none
        if isinstance(value, Rate):
            return rate_text(value)
        if self.column == "retention_days" and not value:
            return "for ever"
        if self.column == "priority":
            return f"{value:g}"
        return f"{value:g} {self.one if value == 1 else self.unit}"


KINDS = {
    kind.column: kind
    for kind in (
        Kind("max_attempts", "max_attempts", "Retry limit", "attempts", "attempt", True, 1, 1000),
        Kind("backoff_base_s", "backoff_base", "First back-off", "s", "s", False, 0, YEAR_S),
        Kind("backoff_max_s", "backoff_max", "Longest back-off", "s", "s", False, 0, YEAR_S),
        Kind("timeout_s", "timeout", "Time-out", "s", "s", False, 0.001, YEAR_S),
        Kind("crash_limit", "crash_limit", "Crash limit", "crashes", "crash", True, 1, 1000),
        Kind(
            "concurrency", "concurrency", "Concurrency", "at once", "at once", True, 1, MILLION, "unlimited"
        ),
        Kind("rate_count", "rate", "Rate limit", "", "", True, 1, MILLION, "unlimited"),
        Kind("priority", "priority", "Priority of new runs", "", "", True, 0, 9),
        Kind("retention_days", "retention_days", "Retention", "days", "day", True, 1, CENTURY_DAYS),
    )
}


@dataclass(frozen=True)
class Row:
    """One limit of one scope."""

    kind: Kind
    label: str
    default: str
    override: str
    wider: str
    """The override of the wider scope, where that one acts."""
    changed_by: str
    changed_at: datetime | None
    value: Any
    temporary: Temporary | None = None
    under: str = ""
    """What acts again when the temporary limit is over."""


@dataclass(frozen=True)
class Change:
    """One line of history: what became of each limit, in words."""

    event: AuditEvent
    said: tuple[tuple[str, str], ...]

    @property
    def scope(self) -> str:
        return self.event.target.partition(" ")[0]

    @property
    def name(self) -> str:
        return self.event.target.partition(" ")[2]

    @property
    def title(self) -> str:
        return title(self.scope, self.name)

    @property
    def verb(self) -> str:
        """How the line begins: set, reverted, paused, resumed, ended, sorted."""
        return {"limits_changed": "set", "limits_cleared": "set"}.get(
            self.event.kind, self.event.kind.rpartition("_")[2]
        )

    @property
    def can_revert(self) -> bool:
        return self.event.kind in limits.REVERTIBLE and bool(self.said)


def title(scope: str, name: str) -> str:
    """A scope in words: "refund_request, step act"."""
    match scope:
        case Policy.Scope.STEP:
            workflow, _, step = name.partition("/")
            return f"{workflow}, step {step}"
        case Policy.Scope.QUEUE:
            return f"queue {name}"
        case Policy.Scope.EVERYTHING:
            return "everything"
    return name


def opening(scope: str, name: str) -> str:
    """The same as the beginning of a sentence."""
    told = title(scope, name)
    return told[:1].upper() + told[1:] if scope in (Policy.Scope.QUEUE, Policy.Scope.EVERYTHING) else told


@dataclass
class LimitPage:
    """The limits of one workflow, step, tool or queue, or of everything. Raises KeyError at once where there is none such."""

    scope: str
    name: str
    with_history: bool

    def __post_init__(self) -> None:
        self.overrides = policies.load()
        self.moment = clock.now()
        self.queues = limits.queues(self.overrides)
        known = {*known_names(), *((str(Policy.Scope.QUEUE), queue) for queue in self.queues)}
        if (self.scope, self.name) not in known:
            raise KeyError(self.name)

    @property
    def title(self) -> str:
        return title(self.scope, self.name)

    @property
    def key(self) -> str:
        return f"{self.scope} {self.name}"

    @property
    def workflow(self) -> str:
        """Of a workflow or a step; empty for all else."""
        return self.name.partition("/")[0] if self.scope in (Policy.Scope.WORKFLOW, Policy.Scope.STEP) else ""

    @property
    def policy(self) -> Policy | None:
        return self.overrides.get((self.scope, self.name))

    @property
    def seen_revision(self) -> int:
        return self.policy.revision if self.policy else 0

    @property
    def pausable(self) -> bool:
        return self.scope in PAUSABLE

    @property
    def pause(self) -> Policy | None:
        """The pause of this scope itself."""
        return self.policy if self.policy is not None and self.policy.paused else None

    @cached_property
    def rows(self) -> list[Row]:
        columns = LIMITS_OF[self.scope]
        return [self._row(kind) for column, kind in KINDS.items() if column in columns]

    def label(self, kind: Kind) -> str:
        """The limit by the name that people know it by here: a tool's time-out is that of one operation."""
        if kind.column != "timeout_s":
            return kind.label
        return "Operation time-out" if self.scope == Policy.Scope.TOOL else "Attempt time-out"

    @property
    def overridden(self) -> int:
        return sum(row.value is not None for row in self.rows)

    @cached_property
    def temporaries(self) -> dict[str, Temporary]:
        """What acts for a while in this scope, by limit."""
        told = policies.temporaries(self.policy) if self.policy else []
        return {one.column: one for one in told if one.until > self.moment}

    @cached_property
    def now(self) -> tuple[int, int]:
        """How many runs or calls are under way in this scope, and how many its limits hold."""
        return under_way(self.key)

    def _row(self, kind: Kind) -> Row:
        value = kind.of_policy(self.policy)
        wider = (
            self.overrides.get((Policy.Scope.WORKFLOW, self.workflow))
            if self.scope == Policy.Scope.STEP and kind.field not in ("concurrency", "rate")
            else None
        )
        from_wider = kind.of_policy(wider) if value is None else None
        temporary = self.temporaries.get(kind.column)
        by, at = self._last_change(kind) if value is not None else ("", None)
        under = ""
        if temporary is not None:
            by, at = temporary.set_by, temporary.set_at
            before = kind.of_policy(policies.stored(self.policy))
            under = kind.text(before) if before is not None else "the default"
        return Row(
            kind,
            self.label(kind),
            _range(kind, self._of_code),
            kind.text(value) if value is not None else "",
            kind.text(from_wider) if from_wider is not None else "",
            by,
            at,
            value,
            temporary,
            under,
        )

    @cached_property
    def _of_code(self) -> list[Limits]:
        if self.scope != Policy.Scope.WORKFLOW:
            return [limits_of(self.scope, self.name, {})]
        steps = registry.workflow(self.name).steps.values()
        whole = limits_of(self.scope, self.name, {})
        return [
            Limits(
                step.max_attempts,
                step.backoff_base,
                step.backoff_max,
                step.timeout,
                whole.crash_limit,
                whole.retention_days,
                whole.concurrency,
                whole.rate,
                whole.priority,
            )
            for step in (policies.for_step(step, {}) for step in steps)
        ]

    def _last_change(self, kind: Kind) -> tuple[str, datetime | None]:
        for change in self.history:
            if kind.column in (change.event.new or {}):
                return change.event.actor, change.event.at
        return (self.policy.changed_by, self.policy.changed_at) if self.policy else ("", None)

    @cached_property
    def history(self) -> list[Change]:
        return history(self.key) if self.with_history else []

    @cached_property
    def scopes(self) -> "Scopes":
        return Scopes.of(self.overrides, self.queues)


def _range(kind: Kind, of: Iterable[Limits]) -> str:
    found = {getattr(one, kind.field) for one in of}
    if len(found) <= 1:
        return kind.text(next(iter(found), None))
    values = sorted(found)
    return f"{values[0]:g} to {kind.text(values[-1])}, by step"


@dataclass(frozen=True)
class Scope:
    """A line of the navigation beside the limits; `overridden` counts its overrides."""

    scope: str
    name: str
    label: str
    overridden: int
    paused: bool = False


@dataclass(frozen=True)
class Scopes:
    everything: Scope
    workflows: list[tuple[Scope, list[Scope]]]
    tools: list[Scope]
    queues: list[Scope]

    def theirs(self, user: access.Person) -> "Scopes":
        """Without the workflows whose limits this person may not see."""
        return replace(
            self,
            workflows=[
                (workflow, steps)
                for workflow, steps in self.workflows
                if may_see(user, workflow.scope, workflow.name)
            ],
        )

    @property
    def total(self) -> int:
        return 1 + len(self.queues) + len(self.tools) + sum(1 + len(steps) for _, steps in self.workflows)

    @classmethod
    def of(cls, overrides: policies.Overrides, queues: Sequence[str]) -> "Scopes":
        def line(scope: str, name: str, label: str) -> Scope:
            policy = overrides.get((scope, name))
            return Scope(scope, name, label, _overridden(policy), policy is not None and policy.paused)

        return cls(
            line(Policy.Scope.EVERYTHING, ALL, "Everything"),
            [
                (
                    line(Policy.Scope.WORKFLOW, workflow.name, workflow.name),
                    [line(Policy.Scope.STEP, f"{workflow.name}/{step}", step) for step in workflow.steps],
                )
                for workflow in registry.workflows()
            ],
            [line(Policy.Scope.TOOL, tool.name, tool.name) for tool in registry.tools()],
            [line(Policy.Scope.QUEUE, queue, queue) for queue in queues],
        )


def _overridden(policy: Policy | None) -> int:
    return sum(kind.of_policy(policy) is not None for kind in KINDS.values())


@dataclass(frozen=True)
class Override:
    """A scope that differs from its code, for the overview."""

    policy: Policy
    title: str
    said: list[tuple[str, str]]


def overrides(every: policies.Overrides) -> list[Override]:
    """What is overridden now, by name; a pause alone is no override."""
    found = []
    for (scope, name), policy in sorted(every.items(), key=lambda item: item[0][1]):
        said = [
            (kind.label, kind.text(kind.of_policy(policy)))
            for kind in KINDS.values()
            if kind.of_policy(policy) is not None
        ]
        if said:
            found.append(Override(policy, title(scope, name), said))
    return found


def may_see(user: access.Person, scope: str, name: str) -> bool:
    """Whether a person may see these limits: what is for one workflow alone by who may see that one, the rest by everybody
    who may see limits, as it acts on the runs of all.
    """
    workflow = name.partition("/")[0] if scope in (Policy.Scope.WORKFLOW, Policy.Scope.STEP) else ""
    return access.may(user, "runs.view_policy", Run(workflow=workflow) if workflow else None)


def seen_by(user: access.Person, every: policies.Overrides) -> policies.Overrides:
    """Those of the overrides that a person may see."""
    if access.everywhere(user, "runs.view_policy"):
        return every
    return {key: policy for key, policy in every.items() if may_see(user, *key)}


# --- on every page -----------------------------------------------------------------------------------------------------


def keep_for(request: HttpRequest, overrides: policies.Overrides) -> None:
    """What a view has read of the limits that act serves the banners of its page as well."""
    request._agentops_policies = overrides  # type: ignore[attr-defined]


def read_for(request: HttpRequest) -> policies.Overrides:
    """What acts, read once for a page: its pauses and its temporary limits are of one moment."""
    kept: policies.Overrides | None = getattr(request, "_agentops_policies", None)
    if kept is None:
        kept = policies.load()
        keep_for(request, kept)
    return kept


@dataclass(frozen=True)
class Standing:
    """A pause as its banner tells it."""

    scope: str
    name: str
    by: str
    at: datetime | None
    reason: str
    until: datetime | None
    may_resume: bool

    @property
    def title(self) -> str:
        return opening(self.scope, self.name)


def standing(user: access.Person, overrides: policies.Overrides) -> list[Standing]:
    """What is paused now, the widest first; for whoever may see limits."""
    return [_standing(policy, user) for policy in policies.pauses(seen_by(user, overrides))]


def _standing(policy: Policy, user: access.Person) -> Standing:
    run = Run(workflow=policy.name) if policy.scope == Policy.Scope.WORKFLOW else None
    everywhere = access.everywhere(user, "runs.change_limits")
    may_resume = everywhere or (run is not None and access.may(user, "runs.change_limits", run))
    for one in policies.temporaries(policy):
        if one.column == "paused" and policies.stored(policy) is not policy:
            return Standing(
                policy.scope, policy.name, one.set_by, one.set_at, one.reason, one.until, may_resume
            )
    return Standing(
        policy.scope,
        policy.name,
        policy.changed_by,
        policy.changed_at,
        policy.pause_reason,
        None,
        may_resume,
    )


# --- what acts for a while -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Acting:
    """A temporary limit that acts now, as a banner tells it."""

    one: Temporary
    kind: Kind
    now: str
    before: str
    left: float
    """Seconds."""

    @property
    def title(self) -> str:
        return title(self.one.scope, self.one.name)

    @property
    def label(self) -> str:
        return self.kind.label.lower()


def acting(every: policies.Overrides, run: Run | None = None) -> list[Acting]:
    """Temporary limits that act now, those that end first in front; of one run, those of its scopes.

    `every` was read just now: what it holds acts. Of a run: its step, its workflow, its queue, and everything.
    """
    wanted = None if run is None else set(policies.keys_of(run.workflow, run.step, run.queue))
    found = []
    for policy in every.values():
        if policies.stored(policy) is policy or (wanted is not None and str(policy) not in wanted):
            continue
        now = policy.read_at  # type: ignore[attr-defined]
        for one in policies.temporaries(policy):
            kind = KINDS.get(one.column)
            if kind is None or one.until <= now:
                continue
            before = kind.of_policy(policies.stored(policy))
            told = kind.text(before) if before is not None else "the default"
            left = (one.until - now).total_seconds()
            found.append(Acting(one, kind, kind.text(kind.of_policy(policy)), told, left))
    return sorted(found, key=lambda acting: acting.one.until)


# --- history -------------------------------------------------------------------------------------------------------------


def history(target: str = "") -> list[Change]:
    """The newest changes, of one scope or of all. One query."""
    found = AuditEvent.objects.filter(kind__in=KINDS_OF_CHANGE).order_by("-id")
    if target:
        found = found.filter(target=target)
    return [change(event) for event in found[:HISTORY]]


def change(event: AuditEvent) -> Change:
    """One line of history; `event` is of one of KINDS_OF_CHANGE."""
    return Change(event, tuple(_said(event)))


def told(event: AuditEvent) -> tuple[tuple[str, str], ...]:
    """What an event of the audit changed, limit by limit; nothing for one that is no change of limits."""
    return tuple(_said(event)) if event.kind in KINDS_OF_CHANGE else ()


def _said(event: AuditEvent) -> Iterable[tuple[str, str]]:
    """(limit, "5 attempts to 8 attempts") of everything that the event changed."""
    old: dict[str, Any] = dict(event.old or {})
    new: dict[str, Any] = dict(event.new or {})
    was, now = old.pop("temporary", {}), new.pop("temporary", {})
    for column, kind in KINDS.items():
        if column in new and any(old.get(one) != new.get(one) for one in kind.columns):
            yield (
                kind.label.lower(),
                f"{_or_default(kind, kind.of_columns(old))} to {_or_default(kind, kind.of_columns(new))}",
            )
        if column not in now:
            continue
        if now[column] is None:
            told = kind.of_columns(was[column]["values"]) if was.get(column) else None
            yield (kind.label.lower(), f"{_or_default(kind, told)} for a while, ended")
        else:
            until = datetime.fromisoformat(now[column]["until"])
            told = _or_default(kind, kind.of_columns(now[column]["values"]))
            yield (kind.label.lower(), f"{told} until {until:%d %b %H:%M %Z}")


def _or_default(kind: Kind, value: Any) -> str:
    return "the default" if value is None else kind.text(value)


def told_back(page: LimitPage, back: limits.Change) -> Iterable[tuple[str, str]]:
    """What a revert would make of each limit, in words."""
    for column, kind in KINDS.items():
        if column in back.temporary:
            told = back.temporary[column]
            if told is not None:
                until = datetime.fromisoformat(told["until"])
                yield (
                    page.label(kind).lower(),
                    f"{kind.text(kind.of_columns(told['values']))} until {until:%d %b %H:%M %Z}",
                )
                continue
        if column in back.values:
            yield page.label(kind).lower(), _or_default(kind, kind.of_columns(back.values))
        elif column in back.temporary:
            yield page.label(kind).lower(), _or_default(kind, kind.of_policy(policies.stored(page.policy)))
