"""Approval policies: what is asked of people before something happens.

Those declared in code (`approvals.policies.declared`) are overridden by data (`approvals_policy`), for a tool, for a policy of
the code, for a workflow, or for a verb. A policy made of data has rules; the first whose expression holds says what is asked, and
if none does, nobody is asked.

What a policy asks for is resolved and frozen when an approval opens (`requirement`): a later change of the policy does not
change what people were told.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Self

from django.db.models import Q
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from agentops.console import times
from approvals.models import Policy, PolicyRevision
from approvals.policies import declared
from approvals.policies.expressions import EvaluationError, Expression, ExpressionError, compile_expression
from runs.models import Run

MINUTE_S, HOUR_S, DAY_S, YEAR_S = 60, 3600, 86_400, 31_536_000
REMIND_AT_LEAST_S = 15 * MINUTE_S
MOST_RULES = 10


# --- made of data --------------------------------------------------------------------------------------------------------


Name = Annotated[str, StringConstraints(min_length=1, max_length=150)]


class Person(BaseModel):
    """A user who may decide, beside the groups."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int
    name: Name


class Rule(BaseModel):
    """What is asked where `when` holds; an empty one always holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    when: str = ""
    groups: tuple[Name, ...] = ()
    users: tuple[Person, ...] = ()
    votes: int = Field(default=1, ge=1, le=10)
    exclude_starter: bool = True
    fresh_minutes: int | None = Field(default=None, ge=1, le=1440)
    """Who decides must have signed in no longer ago than this."""
    time_limit_s: int | None = Field(default=DAY_S, ge=MINUTE_S, le=YEAR_S)
    remind_every_s: int | None = Field(default=None, ge=REMIND_AT_LEAST_S, le=YEAR_S)
    escalate_to: tuple[Name, ...] = ()
    escalate_for_s: int = Field(default=DAY_S, ge=MINUTE_S, le=YEAR_S)
    on_expiry: declared.OnExpiry = "reject"
    sentence: Annotated[str, StringConstraints(strip_whitespace=True, max_length=500)] = ""
    """Why silence means yes, in words that people see while they could still object."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.groups and not self.users:
            raise ValueError("say who decides: a group, or people")
        if not self.groups and self.votes > len(self.users):
            raise ValueError(f"{self.votes} votes cannot come from {len(self.users)} people")
        if self.on_expiry == "approve" and not self.sentence:
            raise ValueError("silence means yes only where a sentence says so: write it")
        if self.escalate_to and self.time_limit_s is None:
            raise ValueError("without a time limit nothing is ever escalated")
        if self.on_expiry == "approve" and self.time_limit_s is None:
            raise ValueError("without a time limit silence never means yes")
        try:
            _compiled(self.when)
        except ExpressionError as error:
            raise ValueError(f"when: {error}") from None
        return self

    @cached_property
    def expression(self) -> Expression | None:
        return _compiled(self.when)

    def requirement(self, excluded: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """What is asked of people, as JSON that no later change of the policy touches."""
        escalation = {"groups": list(self.escalate_to), "time_limit_s": self.escalate_for_s}
        return {
            "groups": list(self.groups),
            "users": [person.model_dump() for person in self.users],
            "votes": self.votes,
            "excluded": excluded,
            "fresh_minutes": self.fresh_minutes,
            "time_limit_s": self.time_limit_s,
            "remind_every_s": self.remind_every_s,
            "on_expiry": self.on_expiry,
            "sentence": self.sentence if self.on_expiry == "approve" else "",
            "escalation": escalation if self.escalate_to else None,
        } | more


@lru_cache(maxsize=256)
def _compiled(source: str) -> Expression | None:
    return compile_expression(source) if source.strip() else None


@dataclass(frozen=True)
class Match:
    """The rule that asks, counted from 1, and why its expression could not be decided ("" where it could)."""

    rule: Rule
    number: int
    problem: str = ""


def match(rules: Iterable[Rule], payload: Any, *, lenient: bool = False) -> Match | None:
    """The first rule that holds for this (decoded) payload. What cannot be decided holds: people are asked then.

    `lenient`: a rule that reads fields which the payload does not have is about other payloads, and does not hold.
    """
    for number, rule in enumerate(rules, start=1):
        if rule.expression is None:
            return Match(rule, number)
        if lenient and not _has_fields(rule.expression, payload):
            continue
        try:
            if rule.expression.holds(payload):
                return Match(rule, number)
        except EvaluationError as error:
            return Match(rule, number, str(error))
    return None


def _has_fields(expression: Expression, payload: Any) -> bool:
    return isinstance(payload, Mapping) and all(
        field.partition(".")[0] in payload for field in expression.fields
    )


def rules_of(row: Policy | PolicyRevision) -> list[Rule]:
    return [Rule.model_validate(rule) for rule in row.rules]


# --- which policy acts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What is about to happen: the policy that the code names for it ("" for none), and the tool and workflow it belongs to."""

    policy: str = ""
    tool: str = ""
    """Empty for a question, which calls no tool."""
    workflow: str = ""


def _governing(call: Call, active: Iterable[Policy] | None) -> list[Policy]:
    """Active policies made of data that are about this call, the narrowest first: tool, policy, workflow.

    One query, none where the caller has read all that are `active`.
    """
    about = [(Policy.Scope.POLICY.value, call.policy)]
    if call.tool:
        about.insert(0, (Policy.Scope.TOOL.value, call.tool))
        about.append((Policy.Scope.WORKFLOW.value, call.workflow))
    if active is None:
        wanted = Q()
        for scope, name in about:
            wanted |= Q(scope=scope, name=name)
        active = Policy.objects.filter(wanted, active=True)
    by_thing = {(row.scope, row.name): row for row in active}
    return [by_thing[thing] for thing in about if thing in by_thing]


def _decide(
    call: Call, payload: Any, active: Iterable[Policy] | None = None
) -> tuple[Policy | None, Match | None]:
    """The policy made of data that has the last word on this call and its rule that holds; (None, None): the code's has it.

    One of a tool or of a named policy replaces the code's. One of a workflow adds to it: what it does not catch is under the
    policy of its code.
    """
    for row in _governing(call, active):
        of_workflow = row.scope == Policy.Scope.WORKFLOW
        found = match(rules_of(row), payload, lenient=of_workflow)
        if found is not None or not of_workflow:
            return row, found
    return None, None


def required(call: Call, payload: Any) -> bool:
    """Whether a call with these (decoded) arguments needs an approval."""
    row, found = _decide(call, payload)
    if row is not None:
        return found is not None
    if not call.policy:
        return False
    when = declared.named(call.policy).when
    return when is None or bool(when(payload))


def requirement(call: Call, payload: Any, run: Run, active: Iterable[Policy] | None = None) -> dict[str, Any]:
    """What is asked of people for this payload now, frozen. Somebody has asked already, so somebody decides in any case."""
    row, found = _decide(call, payload, active)
    if row is None:
        return declared.named(call.policy).requirement(run)
    if found is None:
        # A question that no rule is about; or the policy has changed since the call was found to need an approval.
        rules = rules_of(row)
        found = Match(rules[-1], len(rules))
    excluded = [declared.starter(run)] if found.rule.exclude_starter else []
    return found.rule.requirement(excluded, policy=reference(row, found), problem=found.problem)


def reference(row: Policy, found: Match) -> dict[str, Any]:
    """Which rule asked, for a requirement."""
    return {"scope": row.scope, "name": row.name, "revision": row.revision, "rule": found.number}


def of_verb(verb: str) -> Policy | None:
    """The policy that guards a verb, if one does. One query."""
    return Policy.objects.filter(scope=Policy.Scope.VERB, name=verb, active=True).first()


class Guarded:
    """Tools and workflows that a policy made of data guards, as this process knows them; as fresh as a worker's limits."""

    def __init__(self) -> None:
        self._names: frozenset[tuple[str, str]] = frozenset()

    def refresh(self) -> None:
        guarding = Policy.objects.filter(active=True, scope__in=[Policy.Scope.TOOL, Policy.Scope.WORKFLOW])
        self._names = frozenset(guarding.values_list("scope", "name"))

    def holds(self, tool: str, workflow: str) -> bool:
        return bool(self._names) and (("tool", tool) in self._names or ("workflow", workflow) in self._names)


guarded = Guarded()


# --- in words ------------------------------------------------------------------------------------------------------------


def who(requirement: Mapping[str, Any]) -> str:
    """Who decides: "operators or admins or olga"."""
    people = [str(person["name"]) for person in requirement.get("users", ())]
    return " or ".join([*requirement["groups"], *people])


def afterwards(requirement: Mapping[str, Any]) -> str:
    """What follows when the time limit passes and nothing (more) is escalated."""
    sentence = requirement.get("sentence")
    return {
        "reject": "then it counts as not approved",
        "fail": "then the step fails",
        "park": "then the run needs attention and this stays open",
        "approve": f"then it counts as approved: “{sentence}”" if sentence else "then it counts as approved",
    }[requirement["on_expiry"]]


def in_words(requirement: Mapping[str, Any], *, of_verb: bool = False) -> list[str]:
    """What a requirement asks for, in sentences without their full stop."""
    votes = requirement["votes"]
    said = [f"{'One vote' if votes == 1 else f'{votes} different people'} of {who(requirement)}"]
    if requirement["excluded"]:
        said[0] += ", never whoever asks for it" if of_verb else ", never whoever started the run"
    if requirement.get("fresh_minutes"):
        said.append(f"Signed in within the last {times.duration(requirement['fresh_minutes'] * 60)}")
    limit_s, every_s = requirement["time_limit_s"], requirement.get("remind_every_s")
    if every_s:
        said.append(f"Reminded every {times.duration(every_s)}")
    if limit_s is None:
        return [*said, "No time limit"]
    ends = f"Within {times.duration(limit_s)}"
    if requirement["escalation"]:
        longer = times.duration(requirement["escalation"]["time_limit_s"])
        ends += f", then {' and '.join(requirement['escalation']['groups'])} as well for {longer} more"
    return [*said, f"{ends}, {'then nothing is done' if of_verb else afterwards(requirement)}"]
