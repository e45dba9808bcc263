"""Effective limits: what the code says, overridden by rows of `runs_policy`, for a while or until somebody changes it back.

Decisions about a failed try read the database (`load`); a worker's claims use a snapshot that a NOTIFY or a beat renews.
Concurrency and rates are read again under the limit's lock, where a place is given away (`runs.engine.limited`).
"""

import math
import random
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.conf import settings

from runs.clock import Now
from runs.models import Policy
from runs.models.policy import ALL
from runs.workflow import WORKFLOWS, Rate, Retry, Step, Tool, Workflow

#: NOTIFY channel: a limit changed.
POLICY_CHANNEL = "agentops_policy"

#: Columns of a policy that are one limit together, by the first of them.
TOGETHER = {"rate_count": ("rate_count", "rate_period_s")}


@dataclass(frozen=True)
class Limits:
    """Seconds, unless it says otherwise."""

    max_attempts: int
    backoff_base: float
    backoff_max: float
    timeout: float
    crash_limit: int
    retention_days: int = 0
    """Of a workflow, in days: finished runs are deleted after this long; 0: never."""
    concurrency: int | None = None
    """How many at once, in this scope; None: any number."""
    rate: Rate | None = None
    priority: int = 0

    def overridden(self, row: Policy | None) -> "Limits":
        """These limits with what `row` says in place; its empty columns leave them as they are."""
        if row is None:
            return self
        given: dict[str, Any] = {
            "max_attempts": row.max_attempts,
            "backoff_base": row.backoff_base_s,
            "backoff_max": row.backoff_max_s,
            "timeout": row.timeout_s,
            "crash_limit": row.crash_limit,
            "retention_days": row.retention_days,
            "concurrency": row.concurrency,
            "rate": rate_of(row),
            "priority": row.priority,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    @property
    def limited(self) -> bool:
        """Whether a place is needed to begin."""
        return self.concurrency is not None or self.rate is not None

    def backoff(self, failures: int) -> timedelta:
        """Full jitter (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), floor of 10 ms.

        `failures` counts from 1.
        """
        ceiling = min(self.backoff_max, self.backoff_base * 2 ** min(failures - 1, 30))
        return timedelta(seconds=max(0.01, random.uniform(0, ceiling)))


Overrides = Mapping[tuple[str, str], Policy]


def load() -> Overrides:
    """Every override that acts now, by (scope, name): temporary ones in place of what they cover. One query."""
    return {(p.scope, p.name): acting(p, p.read_at) for p in Policy.objects.annotate(read_at=Now())}


@dataclass(frozen=True)
class Temporary:
    """A limit that acts until a time."""

    scope: str
    name: str
    column: str
    values: Mapping[str, Any]
    until: datetime
    set_at: datetime
    set_by: str
    reason: str
    before: Mapping[str, Any]
    """What the policy's columns say, and what acts again afterwards; None: the wider scope, in the end the code."""


def temporaries(policy: Policy) -> list[Temporary]:
    """What the row says for a while, whether or not that time is over."""
    stored = getattr(policy, "stored", policy)
    return [
        Temporary(
            policy.scope,
            policy.name,
            column,
            told["values"],
            datetime.fromisoformat(told["until"]),
            datetime.fromisoformat(told["at"]),
            told["by"],
            told["reason"],
            {name: getattr(stored, name) for name in told["values"]},
        )
        for column, told in sorted(policy.temporary.items())
    ]


def acting(policy: Policy, now: datetime) -> Policy:
    """The row as it acts at `now`; as it is stored it stands in its attribute `stored` where that differs.

    What `until` says is decided here, whoever reads: a temporary limit ends with no process running.
    """
    live = [one for one in temporaries(policy) if one.until > now] if policy.temporary else []
    if not live:
        return policy
    changed = copy(policy)
    changed.stored = policy  # type: ignore[attr-defined]
    for one in live:
        for name, value in one.values.items():
            setattr(changed, name, value)
    return changed


def stored(policy: Policy | None) -> Policy | None:
    """The row without what acts for a while."""
    found: Policy | None = getattr(policy, "stored", policy)
    return found


def rate_of(policy: Policy | None) -> Rate | None:
    if policy is None or policy.rate_count is None or policy.rate_period_s is None:
        return None
    return Rate(policy.rate_count, timedelta(seconds=policy.rate_period_s))


def of_code(retry: Retry, timeout: float, crash_limit: int = 3, retention_days: int = 0) -> Limits:
    return Limits(retry.max_attempts, retry.base, retry.maximum, timeout, crash_limit, retention_days)


def retention_of_code(workflow: Workflow | None) -> int:
    """Days that finished runs are kept: what the workflow declares, else the site's setting; 0: for ever."""
    if workflow is None or workflow.retention is None:
        days: int = settings.AGENTOPS_RETENTION_DAYS
        return days
    return max(1, math.ceil(workflow.retention / timedelta(days=1)))


def for_step(step: Step, overrides: Overrides) -> Limits:
    """A step's limits: code < workflow override < step override. Concurrency and rate are those of the step alone."""
    workflow = step.workflow
    limits = of_code(step.retry, step.timeout, workflow.crash_limit, retention_of_code(workflow))
    limits = limits.overridden(overrides.get(("workflow", workflow.name)))
    if (limits.concurrency, limits.rate) != (step.concurrency, step.rate):
        limits = replace(limits, concurrency=step.concurrency, rate=step.rate)
    return limits.overridden(overrides.get(("step", f"{workflow.name}/{step.name}")))


def for_workflow(workflow: Workflow, overrides: Overrides) -> Limits:
    """What a workflow limits as a whole (concurrency, rate, priority), and what holds for a step of it that says nothing."""
    limits = of_code(Retry(), 60.0, workflow.crash_limit, retention_of_code(workflow))
    limits = replace(limits, concurrency=workflow.concurrency, rate=workflow.rate, priority=workflow.priority)
    return limits.overridden(overrides.get(("workflow", workflow.name)))


def for_tool(tool: Tool, overrides: Overrides) -> Limits:
    """A tool's limits: code < tool override."""
    declared = of_code(tool.retry, tool.timeout)
    if tool.concurrency is not None or tool.rate is not None:
        declared = replace(declared, concurrency=tool.concurrency, rate=tool.rate)
    return declared.overridden(overrides.get(("tool", tool.name)))


# --- pauses ------------------------------------------------------------------------------------------------------------


def pauses(overrides: Overrides) -> list[Policy]:
    """What is paused, the widest first."""
    order = {Policy.Scope.EVERYTHING: 0, Policy.Scope.QUEUE: 1}
    found = [policy for policy in overrides.values() if policy.paused]
    return sorted(found, key=lambda p: (order.get(Policy.Scope(p.scope), 2), p.name))


def paused_workflows(overrides: Overrides) -> list[str]:
    return sorted(name for (scope, name), p in overrides.items() if scope == "workflow" and p.paused)


def paused_in(queue: str, overrides: Overrides) -> list[str]:
    """Workflows of which nothing begins in this queue."""
    for key in (("everything", ALL), ("queue", queue)):
        policy = overrides.get(key)
        if policy is not None and policy.paused:
            return sorted(WORKFLOWS)
    return paused_workflows(overrides)


# --- limits that a claim or a call must keep ---------------------------------------------------------------------------


def keys_of(workflow: str, step: str, queue: str) -> tuple[str, str, str, str]:
    """Keys of the limits that a run at this step is under, the widest first."""
    return (f"everything {ALL}", f"queue {queue}", f"workflow {workflow}", f"step {workflow}/{step}")


@dataclass(frozen=True)
class Kept:
    """Which scopes have a limit that a claim or a call must keep; empty where nothing is limited."""

    overrides: Overrides
    declared: Mapping[str, Mapping[str, float]]

    @cached_property
    def concurrent(self) -> frozenset[str]:
        """Keys with a limit of concurrency."""
        of_code = {key for key, told in self.declared.items() if "concurrency" in told}
        return frozenset(of_code | {str(p) for p in self.overrides.values() if p.concurrency is not None})

    @cached_property
    def rated(self) -> frozenset[str]:
        """Keys with a rate limit."""
        of_code = {key for key, told in self.declared.items() if "rate" in told}
        return frozenset(of_code | {str(p) for p in self.overrides.values() if p.rate_count is not None})

    @cached_property
    def of_runs(self) -> frozenset[str]:
        """Keys that a claim must keep: all but those of tools."""
        return frozenset(key for key in self.concurrent | self.rated if not key.startswith("tool "))

    def asks_anew(self, workflow: str, step: str, queue: str) -> bool:
        """Whether a run that a worker has may begin this step only through a claim."""
        if not self.of_runs:
            return False
        keys = keys_of(workflow, step, queue)
        return keys[-1] in self.concurrent or not self.rated.isdisjoint(keys)

    def held_at(self, workflow: str, step: str, queue: str) -> list[str]:
        """Keys under which a run at this step takes a place."""
        return (
            [key for key in keys_of(workflow, step, queue) if key in self.concurrent] if self.of_runs else []
        )
