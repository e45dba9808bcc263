"""Effective limits: what the code says, overridden by rows of `runs_policy`.

Decisions about a failed try read the database (`load`); a worker's claims use a snapshot that a NOTIFY or a beat renews.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.conf import settings

from runs.models import Policy
from runs.workflow import Retry, Step, Tool, Workflow

#: NOTIFY channel: a limit changed.
POLICY_CHANNEL = "agentops_policy"


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
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def backoff(self, failures: int) -> timedelta:
        """Full jitter (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), floor of 10 ms.

        `failures` counts from 1.
        """
        ceiling = min(self.backoff_max, self.backoff_base * 2 ** min(failures - 1, 30))
        return timedelta(seconds=max(0.01, random.uniform(0, ceiling)))


Overrides = Mapping[tuple[str, str], Policy]


def load() -> Overrides:
    """Every override by (scope, name), one query."""
    return {(p.scope, p.name): p for p in Policy.objects.all()}


def of_code(retry: Retry, timeout: float, crash_limit: int = 3, retention_days: int = 0) -> Limits:
    return Limits(retry.max_attempts, retry.base, retry.maximum, timeout, crash_limit, retention_days)


def retention_of_code(workflow: Workflow | None) -> int:
    """Days that finished runs are kept: what the workflow declares, else the site's setting; 0: for ever."""
    if workflow is None or workflow.retention is None:
        days: int = settings.AGENTOPS_RETENTION_DAYS
        return days
    return max(1, math.ceil(workflow.retention / timedelta(days=1)))


def for_step(step: Step, overrides: Overrides) -> Limits:
    """A step's limits: code < workflow override < step override."""
    workflow = step.workflow
    limits = of_code(step.retry, step.timeout, workflow.crash_limit, retention_of_code(workflow))
    limits = limits.overridden(overrides.get(("workflow", workflow.name)))
    return limits.overridden(overrides.get(("step", f"{workflow.name}/{step.name}")))


def for_tool(tool: Tool, overrides: Overrides) -> Limits:
    """A tool's limits: code < tool override."""
    return of_code(tool.retry, tool.timeout).overridden(overrides.get(("tool", tool.name)))


def paused_workflows(overrides: Overrides) -> list[str]:
    return sorted(name for (scope, name), p in overrides.items() if scope == "workflow" and p.paused)
