"""Approval policies declared in code and named by tools and questions,

    policy("refunds", groups=["operators"], votes=1, time_limit=timedelta(hours=24),
           when=lambda arguments: arguments["amount"] > 100)

and overridden by data (`approvals.policies.effective`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from runs.models import Run

OnExpiry = Literal["reject", "fail", "park", "approve"]


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
    sentence: str = ""

    def requirement(self, run: Run) -> dict[str, Any]:
        """What is asked of people for this run, as JSON that no later change of the policy touches."""
        escalation = self.escalation and {
            "groups": list(self.escalation.groups),
            "time_limit_s": self.escalation.time_limit.total_seconds(),
        }
        return {
            "groups": list(self.groups),
            "votes": self.votes,
            "excluded": [starter(run)] if self.exclude_starter else [],
            "time_limit_s": self.time_limit.total_seconds() if self.time_limit else None,
            "on_expiry": self.on_expiry,
            "sentence": self.sentence,
            "escalation": escalation,
        }


def starter(run: Run) -> dict[str, Any]:
    """Whoever started the run, as a requirement excludes them."""
    return {"id": run.started_by_id, "name": run.started_by_name}


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
    sentence: str = "",
) -> ApprovalPolicy:
    """Declare a policy.

    Args:
        groups: whoever is in one of these, and has the permission to decide, may decide.
        votes: how many different people must approve; one rejection decides.
        exclude_starter: whoever started the run may not decide.
        time_limit: how long people have; None: for ever.
        on_expiry: "reject" (the agent is told that nobody decided), "fail" (`WaitExpired` is raised), "park" (the run needs
            attention, and the request stays open), or "approve".
        escalate_to: groups that may decide as well once the time limit has passed, for `escalate_for` longer.
        when: called with the arguments; False means that this call needs no approval.
        sentence: why silence means yes, where it does; people read it while they can still object.

    Raises ValueError for fewer than one vote, no group, a time limit that is not positive, or an "approve" without its sentence.
    """
    if votes < 1 or not groups:
        raise ValueError(f"approval policy {name!r} needs at least one vote and one group")
    if time_limit is not None and time_limit <= timedelta():
        raise ValueError(f"approval policy {name!r} needs a positive time limit, or None")
    if on_expiry == "approve" and not sentence.strip():
        raise ValueError(f"approval policy {name!r} lets silence mean yes: say why in its sentence")
    escalation = Escalation(tuple(escalate_to), escalate_for) if escalate_to else None
    made = ApprovalPolicy(
        name, tuple(groups), votes, exclude_starter, time_limit, on_expiry, escalation, when, sentence
    )
    _POLICIES[name] = made
    return made


def named(name: str) -> ApprovalPolicy:
    """The code's policy of this name; one that nobody declared asks for one vote of operators or admins within 24 hours."""
    return _POLICIES.get(name) or ApprovalPolicy(name)


def names() -> list[str]:
    """Names of the policies that the code declares, sorted."""
    return sorted(_POLICIES)
