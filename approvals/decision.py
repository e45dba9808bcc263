"""One approval as one person sees it, and a list of them in groups by how soon; what the templates show, computed here."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.contrib.auth.models import AbstractBaseUser

from agentops.console import polling, times
from approvals import selectors, services
from approvals.background import Background, Stakes, Voted, background, stakes
from approvals.inbox.listing import Entry, badge_of, title_of_approval
from approvals.inbox.worklist import Line
from approvals.models import Approval, ApprovalVersion
from approvals.payload import Row, rows
from approvals.policies import effective
from runs import access, codec, content
from runs.services.verb import Consequence
from runs.workflow import Tool

State = Approval.State


@dataclass(frozen=True)
class Ballot:
    """A vote, and whether it still counts."""

    vote: Voted
    void: bool


@dataclass
class Decision:
    """An approval with what surrounds it, for the person who looks at it.

    `seen` is (version, state) of the page that polls: if the request has moved on since, nothing may be pressed there.
    """

    approval: Approval
    user: AbstractBaseUser
    now: datetime
    base: int | None = None
    seen: tuple[int, str] | None = None
    line: Line = field(kw_only=True)
    """How the inbox knows it."""

    def __post_init__(self) -> None:
        self.approval = content.shown(self.user, self.approval, self.approval.run)

    @property
    def title(self) -> str:
        return title_of_approval(self.approval)

    # --- state ---

    @cached_property
    def tag(self) -> str:
        approval = self.approval
        return polling.tag(
            approval.pk,
            approval.version,
            approval.state,
            approval.expires_at,
            approval.consumed_at,
            [vote.pk for vote in self.background.votes],
            self.line.shown_of_handling,
            self.background.comments[-1:] and self.background.comments[-1].pk,
            [(one.number, one.outcome) for one in self.background.questions],
            approval.run.status,
            self.seen_now if self.seen is None else self.seen,
            self.base,
            self.user.pk,
        )

    @property
    def seen_now(self) -> tuple[int, str]:
        return self.approval.version, self.approval.state

    @property
    def seen_text(self) -> str:
        version, state = self.seen or self.seen_now
        return f"{version}.{state}"

    @property
    def changed(self) -> str:
        """What happened since the page was loaded, as a sentence; "" for nothing."""
        if self.seen is None or self.seen == self.seen_now:
            return ""
        if not self.is_open:
            return f"{self.outcome} while you were reading."
        by = self.current.by if self.current else "somebody"
        return f"{by} made version {self.approval.version} of it while you were reading."

    @property
    def is_open(self) -> bool:
        return self.approval.state == State.OPEN

    @property
    def is_late(self) -> bool:
        return self.is_open and self.approval.expires_at is not None and self.approval.expires_at < self.now

    @property
    def said(self) -> str:
        """What the person who decided gave as a reason."""
        approval = self.approval
        by_person = approval.state in (State.APPROVED, State.REJECTED) and approval.decided_by != "clock"
        return approval.reason if by_person else ""

    @property
    def polls(self) -> bool:
        """Whether anything can still change: it is open, or approved and not yet taken over by the run."""
        return self.is_open or self.may_reopen

    @property
    def badge(self) -> str:
        return badge_of(self.approval)

    # --- what surrounds it ---

    @cached_property
    def background(self) -> Background:
        return background(self.approval, self.user, payloads=self.sees_payload)

    @cached_property
    def stakes(self) -> Stakes:
        return stakes(self.approval.schema, self.approval.payload, field_order(self.tool))

    @property
    def entry(self) -> Entry:
        return Entry(self.line, self.user)

    @property
    def progress(self) -> str:
        """ ", 1 of 2 votes" beside the word of an open request."""
        return f", {len(self.in_favour)} of {votes_text(self.needed)}" if self.is_open else ""

    @property
    def outcome(self) -> str:
        """What became of it, as the beginning of a sentence."""
        approval = self.approval
        match approval.state:
            case State.APPROVED | State.REJECTED if approval.decided_by == "clock":
                return f"{approval.get_state_display()} by the time limit"
            case State.APPROVED | State.REJECTED:
                return f"{approval.get_state_display()} by {approval.decided_by.replace(', ', ' and ')}"
            case State.EXPIRED:
                return "Expired, nobody decided in time"
            case State.VOID:
                return f"Void: {approval.reason or 'its run goes on without it'}"
        return "Open"

    @property
    def after_outcome(self) -> str:
        """Whether the run knows; "" while it is open."""
        match self.approval.state:
            case State.APPROVED if self.approval.consumed_at:
                return "The run has taken the decision over."
            case State.APPROVED if self.may_reopen:
                return "The run has not taken it over yet."
            case State.REJECTED:
                return f"The agent is told the reason{f'; {self.approval.name} does not run' if self.tool else ''}."
        return ""

    # --- what is asked ---

    @cached_property
    def tool(self) -> Tool | None:
        return services.tool_of(self.approval)

    @property
    def is_call(self) -> bool:
        """Whether a tool is to be called. (A template would call the tool itself.)"""
        return self.tool is not None

    @property
    def object(self) -> str:
        """What a button approves: the tool, or the request itself."""
        return self.approval.name if self.tool else "this"

    @property
    def does(self) -> str:
        """First sentence of the tool's documentation; "" for a question."""
        text = (self.tool.fn.__doc__ or "") if self.tool else ""
        first = " ".join(text.split()).partition(". ")[0]
        return first.removesuffix(".")

    @property
    def undone(self) -> tuple[str, str]:
        """Can it be undone? The answer, and what it means."""
        if self.tool is None:
            return "Only an answer", "the agent goes on with it"
        if not self.tool.effect:
            return "Nothing to undo", "it only reads"
        if self.tool.compensate:
            return "Yes", f"a cancel runs {self.tool.compensate.name}"
        return "No", "final once done"

    @property
    def needed(self) -> int:
        return int(self.approval.requirement["votes"])

    @property
    def groups(self) -> str:
        return effective.who(self.approval.requirement)

    @property
    def excluded(self) -> str:
        return ", ".join(str(person["name"]) for person in self.approval.requirement["excluded"])

    @property
    def afterwards(self) -> str:
        """What follows if nobody decides in time."""
        return afterwards(self.approval)

    # --- versions ---

    @cached_property
    def versions(self) -> list[ApprovalVersion]:
        """Newest first."""
        return content.shown_all(self.user, self.approval.versions.all(), self.approval.run)

    @property
    def current(self) -> ApprovalVersion | None:
        return self.versions[0] if self.versions else None

    @cached_property
    def compared(self) -> ApprovalVersion | None:
        """The version that the present one is shown beside: the one asked for, else the one before."""
        earlier = [version for version in self.versions if version.version < self.approval.version]
        chosen = next((version for version in earlier if version.version == self.base), None)
        return chosen or (earlier[0] if earlier else None)

    @property
    def plain_payload(self) -> Any:
        return codec.plain(self.approval.payload)

    @cached_property
    def rows(self) -> list[Row]:
        before = self.compared.payload if self.compared else None
        return rows(self.approval.schema, self.approval.payload, before, field_order(self.tool))

    # --- votes ---

    @cached_property
    def ballots(self) -> list[Ballot]:
        return [
            Ballot(vote, (vote.version, vote.digest) != (self.approval.version, self.approval.digest))
            for vote in self.background.votes
        ]

    @cached_property
    def in_favour(self) -> list[Voted]:
        return [
            ballot.vote for ballot in self.ballots if not ballot.void and ballot.vote.verdict == "approve"
        ]

    @property
    def void_votes(self) -> int:
        return sum(ballot.void for ballot in self.ballots)

    @cached_property
    def mine(self) -> Voted | None:
        """My vote on the present version."""
        return next((b.vote for b in self.ballots if not b.void and b.vote.voter_id == self.user.pk), None)

    # --- what I may do ---

    @cached_property
    def why_not(self) -> str:
        """Why I may not decide; "" if I may."""
        return selectors.why_not_decide(self.user, self.approval)

    @cached_property
    def sees_payload(self) -> bool:
        return access.may_see_payloads(self.user, self.approval.run)

    @property
    def may_vote(self) -> bool:
        return self.is_open and not self.why_not and self.mine is None and self.sees_payload

    @property
    def may_edit(self) -> bool:
        return (self.is_open or self.may_reopen) and not self.why_not and self.sees_payload

    @property
    def may_reopen(self) -> bool:
        approval = self.approval
        return (
            approval.state == State.APPROVED and approval.consumed_at is None and not approval.run.is_terminal
        )

    @cached_property
    def consequence(self) -> Consequence:
        return services.preview_decide(self.approval, len(self.in_favour))

    @cached_property
    def edit_consequence(self) -> Consequence:
        return services.preview_edit(self.approval)


def field_order(tool: Tool | None) -> list[str]:
    """Names of a tool's arguments as its author wrote them."""
    return list(tool.arguments.model_fields) if tool else []


def votes_text(number: int) -> str:
    return "1 vote" if number == 1 else f"{number} votes"


def afterwards(approval: Approval) -> str:
    """What follows if nobody decides in time; "" where there is no time limit."""
    requirement: dict[str, Any] = approval.requirement
    if approval.expires_at is None:
        return ""
    if requirement["escalation"]:
        more = times.duration(requirement["escalation"]["time_limit_s"])
        return f"then {' and '.join(requirement['escalation']['groups'])} may decide as well, for {more} more"
    return effective.afterwards(requirement)
