"""Effective limits: what the code says, overridden by rows of `runs_policy`.

Decisions about a failed try read the database (`load`); a worker's claims use a snapshot that a NOTIFY or a beat renews.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from runs.models import Policy
from runs.workflow import Retry, Step, Tool

#: NOTIFY channel: a limit changed.
POLICY_CHANNEL = "agentops_policy"


@dataclass(frozen=True)
class Limits:
    """Seconds throughout."""

    max_attempts: int
    backoff_base: float
    backoff_max: float
    timeout: float
    crash_limit: int

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


def of_code(retry: Retry, timeout: float, crash_limit: int = 3) -> Limits:
    return Limits(retry.max_attempts, retry.base, retry.maximum, timeout, crash_limit)


def for_step(step: Step, overrides: Overrides) -> Limits:
    """A step's limits: code < workflow override < step override."""
    limits = of_code(step.retry, step.timeout, step.workflow.crash_limit)
    limits = limits.overridden(overrides.get(("workflow", step.workflow.name)))
    return limits.overridden(overrides.get(("step", f"{step.workflow.name}/{step.name}")))


def for_tool(tool: Tool, overrides: Overrides) -> Limits:
    """A tool's limits: code < tool override."""
    return of_code(tool.retry, tool.timeout).overridden(overrides.get(("tool", tool.name)))


def paused_workflows(overrides: Overrides) -> list[str]:
    return sorted(name for (scope, name), p in overrides.items() if scope == "workflow" and p.paused)
