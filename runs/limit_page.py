"""Limits as people read them: what the code says beside what the database overrides, and who changed what."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from runs import policies, registry
from runs.models import AuditEvent, Policy
from runs.models.policy import CENTURY_DAYS, YEAR_S
from runs.policies import Limits
from runs.services.limits import LIMITS, known_names

#: Lines of history that a page shows.
HISTORY = 20
KINDS_OF_CHANGE = ("limits_changed", "limits_cleared", "workflow_paused", "workflow_resumed")


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

    def text(self, value: float | None) -> str:
        """A value with its unit; "none" for None."""
        if value is None:
            return "none"
        if self.column == "retention_days" and not value:
            return "for ever"
        return f"{value:g} {self.one if value == 1 else self.unit}"


KINDS = {
    kind.column: kind
    for kind in (
        Kind("max_attempts", "max_attempts", "Retry limit", "attempts", "attempt", True, 1, 1000),
        Kind("backoff_base_s", "backoff_base", "First back-off", "s", "s", False, 0, YEAR_S),
        Kind("backoff_max_s", "backoff_max", "Longest back-off", "s", "s", False, 0, YEAR_S),
        Kind("timeout_s", "timeout", "Time-out", "s", "s", False, 0.001, YEAR_S),
        Kind("crash_limit", "crash_limit", "Crash limit", "crashes", "crash", True, 1, 1000),
        Kind("retention_days", "retention_days", "Retention", "days", "day", True, 1, CENTURY_DAYS),
    )
}


#: Scopes that a limit does not have.
NOT_OF = {
    "crash_limit": {Policy.Scope.TOOL},
    "retention_days": {Policy.Scope.TOOL, Policy.Scope.STEP},
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
    value: float | None


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


def title(scope: str, name: str) -> str:
    """A scope in words: "refund_request, step act"."""
    if scope != Policy.Scope.STEP:
        return name
    workflow, _, step = name.partition("/")
    return f"{workflow}, step {step}"


@dataclass
class LimitPage:
    """The limits of one workflow, step or tool. Raises KeyError at once where no code declares it."""

    scope: str
    name: str
    with_history: bool

    def __post_init__(self) -> None:
        if (self.scope, self.name) not in set(known_names()):
            raise KeyError(self.name)
        self.overrides = policies.load()

    @property
    def title(self) -> str:
        return title(self.scope, self.name)

    @property
    def workflow(self) -> str:
        """Name of the workflow; "" for a tool."""
        return "" if self.scope == Policy.Scope.TOOL else self.name.partition("/")[0]

    @property
    def policy(self) -> Policy | None:
        return self.overrides.get((self.scope, self.name))

    @property
    def seen_revision(self) -> int:
        return self.policy.revision if self.policy else 0

    @property
    def pause(self) -> Policy | None:
        """The policy that pauses the workflow, if one does."""
        found = self.overrides.get((Policy.Scope.WORKFLOW, self.workflow))
        return found if found and found.paused else None

    @cached_property
    def rows(self) -> list[Row]:
        return [self._row(kind) for kind in KINDS.values() if self.scope not in NOT_OF.get(kind.column, ())]

    def label(self, kind: Kind) -> str:
        """What the limit is called here: a time-out is one of an attempt, or of an operation."""
        if kind.column != "timeout_s":
            return kind.label
        return "Operation time-out" if self.scope == Policy.Scope.TOOL else "Attempt time-out"

    @property
    def overridden(self) -> int:
        return sum(row.value is not None for row in self.rows)

    def _row(self, kind: Kind) -> Row:
        value = getattr(self.policy, kind.column) if self.policy else None
        wider = (
            self.overrides.get((Policy.Scope.WORKFLOW, self.workflow))
            if self.scope == Policy.Scope.STEP
            else None
        )
        from_wider = getattr(wider, kind.column) if wider and value is None else None
        by, at = self._last_change(kind) if value is not None else ("", None)
        return Row(
            kind,
            self.label(kind),
            _range(kind, self._of_code),
            kind.text(value) if value is not None else "",
            kind.text(from_wider) if from_wider is not None else "",
            by,
            at,
            value,
        )

    @cached_property
    def _of_code(self) -> list[Limits]:
        match self.scope:
            case Policy.Scope.TOOL:
                return [policies.for_tool(registry.tool(self.name), {})]
            case Policy.Scope.STEP:
                step = self.name.partition("/")[2]
                return [policies.for_step(registry.workflow(self.workflow).steps[step], {})]
        return [policies.for_step(step, {}) for step in registry.workflow(self.name).steps.values()]

    def _last_change(self, kind: Kind) -> tuple[str, datetime | None]:
        for change in self.history:
            if kind.column in (change.event.new or {}):
                return change.event.actor, change.event.at
        return (self.policy.changed_by, self.policy.changed_at) if self.policy else ("", None)

    @cached_property
    def history(self) -> list[Change]:
        return history(f"{self.scope} {self.name}") if self.with_history else []

    @cached_property
    def scopes(self) -> "Scopes":
        return Scopes.of(self.overrides)


def _range(kind: Kind, limits: Iterable[Limits]) -> str:
    values = sorted({getattr(one, kind.field) for one in limits})
    if not values:
        return "none"
    if len(values) == 1:
        return kind.text(values[0])
    return f"{values[0]:g} to {kind.text(values[-1])}, by step"


@dataclass(frozen=True)
class Scope:
    """A line of the navigation beside the limits; `overridden` counts its overrides."""

    scope: str
    name: str
    label: str
    overridden: int


@dataclass(frozen=True)
class Scopes:
    workflows: list[tuple[Scope, list[Scope]]]
    tools: list[Scope]

    @property
    def total(self) -> int:
        return len(self.tools) + sum(1 + len(steps) for _, steps in self.workflows)

    @classmethod
    def of(cls, overrides: policies.Overrides) -> "Scopes":
        def line(scope: str, name: str, label: str) -> Scope:
            return Scope(scope, name, label, _overridden(overrides.get((scope, name))))

        return cls(
            [
                (
                    line(Policy.Scope.WORKFLOW, workflow.name, workflow.name),
                    [line(Policy.Scope.STEP, f"{workflow.name}/{step}", step) for step in workflow.steps],
                )
                for workflow in registry.workflows()
            ],
            [line(Policy.Scope.TOOL, tool.name, tool.name) for tool in registry.tools()],
        )


def _overridden(policy: Policy | None) -> int:
    return sum(getattr(policy, column) is not None for column in LIMITS) if policy else 0


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
            (kind.label, kind.text(getattr(policy, kind.column)))
            for kind in KINDS.values()
            if getattr(policy, kind.column) is not None
        ]
        if said:
            found.append(Override(policy, title(scope, name), said))
    return found


def history(target: str = "") -> list[Change]:
    """The newest changes, of one scope or of all. One query."""
    found = AuditEvent.objects.filter(kind__in=KINDS_OF_CHANGE).order_by("-id")
    if target:
        found = found.filter(target=target)
    return [Change(event, tuple(_said(event))) for event in found[:HISTORY]]


def _said(event: AuditEvent) -> Iterable[tuple[str, str]]:
    """(limit, "5 attempts to 8 attempts") of everything that the event changed."""
    old: dict[str, Any] = event.old or {}
    new: dict[str, Any] = event.new or {}
    if event.kind in ("workflow_paused", "workflow_resumed"):
        return
    for column, kind in KINDS.items():
        if column in new and old.get(column) != new[column]:
            yield (
                kind.label.lower(),
                f"{_or_default(kind, old.get(column))} to {_or_default(kind, new[column])}",
            )


def _or_default(kind: Kind, value: float | None) -> str:
    return "the default" if value is None else kind.text(value)
