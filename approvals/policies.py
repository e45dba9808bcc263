"""Approval policies, declared in code and named by tools and questions.

    policy("refunds", groups=["operators"], votes=1, time_limit=timedelta(hours=24),
           when=lambda arguments: arguments["amount"] > 100)

What a policy asks for is resolved and frozen when an approval opens (`requirement`): a later change of the policy does not
change what people were told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from runs.models import Run

OnExpiry = Literal["reject", "fail", "approve"]


@dataclass(frozen=True)
class Escalation:
    """What happens at the first expiry: these groups may decide as well, for this much longer."""

    groups: tuple[str, ...]
    time_limit: timedelta


@dataclass(frozen=True)
class ApprovalPolicy:
    name: str
    groups: tuple[str, ...] = ("operators", "admins")
    votes: int = 1
    exclude_starter: bool = False
    time_limit: timedelta | None = timedelta(hours=24)
    on_expiry: OnExpiry = "reject"
    escalation: Escalation | None = None
    when: Callable[[Mapping[str, Any]], bool] | None = None

    def requirement(self, run: Run) -> dict[str, Any]:
        """What is asked of people for this run, as JSON that no later change of the policy touches."""
        excluded = []
        if self.exclude_starter:
            excluded.append({"id": run.started_by_id, "name": run.started_by_name})
        escalation = self.escalation and {
            "groups": list(self.escalation.groups),
            "time_limit_s": self.escalation.time_limit.total_seconds(),
        }
        return {
            "groups": list(self.groups),
            "votes": self.votes,
            "excluded": excluded,
            "time_limit_s": self.time_limit.total_seconds() if self.time_limit else None,
            "on_expiry": self.on_expiry,
            "escalation": escalation,
        }


_POLICIES: dict[str, ApprovalPolicy] = {}


def policy(
    name: str,
    *,
    groups: Sequence[str] = ("operators", "admins"),
    votes: int = 1,
    exclude_starter: bool = False,
    time_limit: timedelta | None = timedelta(hours=24),
    on_expiry: OnExpiry = "reject",
    escalate_to: Sequence[str] = (),
    escalate_for: timedelta = timedelta(hours=24),
    when: Callable[[Mapping[str, Any]], bool] | None = None,
) -> ApprovalPolicy:
    """Declare a policy.

    Args:
        groups: whoever is in one of these, and has the permission to decide, may decide.
        votes: how many different people must approve; one rejection decides.
        exclude_starter: whoever started the run may not decide.
        time_limit: how long people have; None: for ever.
        on_expiry: "reject" (the agent is told that nobody decided), "fail" (`WaitExpired` is raised), or "approve".
        escalate_to: groups that may decide as well once the time limit has passed, for `escalate_for` longer.
        when: called with the arguments; False means that this call needs no approval.

    Raises ValueError for fewer than one vote, no group, or a time limit that is not positive.
    """
    if votes < 1 or not groups:
        raise ValueError(f"approval policy {name!r} needs at least one vote and one group")
    if time_limit is not None and time_limit <= timedelta():
        raise ValueError(f"approval policy {name!r} needs a positive time limit, or None")
    escalation = Escalation(tuple(escalate_to), escalate_for) if escalate_to else None
    made = ApprovalPolicy(
        name, tuple(groups), votes, exclude_starter, time_limit, on_expiry, escalation, when
    )
    _POLICIES[name] = made
    return made


def named(name: str) -> ApprovalPolicy:
    """The policy of this name; one that nobody declared asks for one vote of operators or admins within 24 hours."""
    return _POLICIES.get(name) or ApprovalPolicy(name)


def required(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call with these (decoded) arguments needs an approval under the policy."""
    when = named(name).when
    return when is None or bool(when(arguments))
