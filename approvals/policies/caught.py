"""“Which of the last 100 would this have caught?”: an expression tried on what people may see of recent calls.

It reads the display form of payloads, and only of runs whose payloads this person may see: an expression would else answer
questions about what they may not read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection
from django.db.models import QuerySet

from approvals.models import Approval, Policy, Request
from approvals.policies.effective import Rule, match
from approvals.policies.expressions import EvaluationError, Expression
from approvals.requests import four_eyes
from runs import access, blobs, codec, registry
from runs.models import AuditEvent, Operation, Run
from runs.pages.limit_page import KINDS_OF_CHANGE

NEWEST = 100
#: Effects are looked for among so many of the newest rows: an index on their names would be paid for by each of them.
WINDOW = 20_000

Scope = Policy.Scope


@dataclass(frozen=True)
class Case:
    """One call, and whether it would have been asked about; `payload` is decoded."""

    at: datetime
    name: str
    run: Run | None
    payload: Any
    url: str
    asked: bool
    """Whether people were asked at the time."""
    caught: bool = False
    rule: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Trial:
    cases: list[Case]
    hidden: int
    """Calls whose payload this person may not see."""

    @property
    def caught(self) -> int:
        return sum(case.caught for case in self.cases)

    @property
    def asked(self) -> int:
        return sum(case.asked for case in self.cases)

    @property
    def undecided(self) -> int:
        return sum(bool(case.problem) for case in self.cases)

    @property
    def sentence(self) -> str:
        count = len(self.cases)
        if not count:
            return "There is no recorded call that you may see to try it on."
        of = "the only call" if count == 1 else f"{self.caught} of the last {count} calls"
        told = f"It would have caught {of if self.caught or count > 1 else 'none of 1 call'}"
        return f"{told}; people were asked about {self.asked} at the time."


def try_rules(user: AbstractBaseUser, scope: str, name: str, rules: Iterable[Rule]) -> Trial:
    """Which of the newest calls the first matching rule would have asked about. What cannot be decided is asked about."""
    rules = list(rules)
    cases, hidden = newest(user, scope, name)
    tried = []
    for case in cases:
        found = match(rules, case.payload, lenient=scope == Scope.WORKFLOW)
        tried.append(
            _with(case, found is not None, found.number if found else 0, found.problem if found else "")
        )
    return Trial(tried, hidden)


def try_expression(user: AbstractBaseUser, scope: str, name: str, expression: Expression | None) -> Trial:
    """The same for one expression; an empty one catches everything."""
    cases, hidden = newest(user, scope, name)
    tried = []
    for case in cases:
        try:
            holds = expression is None or expression.holds(case.payload)
            tried.append(_with(case, holds, 1 if holds else 0, ""))
        except EvaluationError as error:
            tried.append(_with(case, True, 1, str(error)))
    return Trial(tried, hidden)


def _with(case: Case, caught: bool, rule: int, problem: str) -> Case:
    return Case(case.at, case.name, case.run, case.payload, case.url, case.asked, caught, rule, problem)


def newest(user: AbstractBaseUser, scope: str, name: str) -> tuple[list[Case], int]:
    """The newest calls that a policy here is about, newest first, and how many of them this person may not see."""
    if scope == Scope.VERB:
        return _of_verb(user, name), 0
    asked = _approvals(scope, name)
    effects = _effects(scope, name)
    # An effect that people were asked about is one call.
    gated = {(one.operation.run_id, one.operation.step_seq, one.operation.position) for one in asked}
    alone = [one for one in effects if (one.run_id, one.step_seq, f"{one.position}/approval") not in gated]
    both: list[Approval | Operation] = [*asked, *alone]
    found = sorted(both, key=lambda row: row.pk, reverse=True)[:NEWEST]
    shown = [
        row
        for row in found
        if access.may_see_payloads(user, row.run) and access.may(user, "runs.view_run", row.run)
    ]
    payloads = blobs.whole([row.payload if isinstance(row, Approval) else row.request for row in shown])
    cases = [_case(row, codec.decode(payload)) for row, payload in zip(shown, payloads, strict=True)]
    return cases, len(found) - len(shown)


def _case(row: Approval | Operation, payload: Any) -> Case:
    if isinstance(row, Approval):
        return Case(row.opened_at, row.name, row.run, payload, f"/approvals/{row.pk}/", True)
    return Case(row.started_at, row.name, row.run, payload, f"/runs/{row.run_id}/operations/{row.pk}/", False)


def _tools(scope: str, name: str) -> list[str]:
    if scope == Scope.TOOL:
        return [name]
    return [tool.name for tool in registry.tools() if tool.approval == name] if scope == Scope.POLICY else []


def _approvals(scope: str, name: str) -> list[Approval]:
    """Index approval_by_name; for questions and workflows the newest rows are looked through, by primary key."""
    rows = Approval.objects.select_related("run", "operation").order_by("-id")
    if scope == Scope.TOOL:
        return list(rows.filter(name=name)[:NEWEST])
    about = "a.policy = %s" if scope == Scope.POLICY else "r.workflow = %s"
    ids = _window("approvals_approval", about, [name])
    return list(rows.filter(pk__in=ids))


def _effects(scope: str, name: str) -> list[Operation]:
    if scope == Scope.WORKFLOW:
        ids = _window("runs_operation", "a.kind = 'effect' AND r.workflow = %s", [name])
    else:
        ids = _window("runs_operation", "a.kind = 'effect' AND a.name = ANY(%s)", [_tools(scope, name)])
    return list(Operation.objects.filter(pk__in=ids).select_related("run").order_by("-id"))


def _window(table: str, condition: str, parameters: list[Any]) -> list[Any]:
    """Ids among the newest WINDOW rows of a table that fulfil the condition, by primary key from its newest end."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT a.id FROM (SELECT * FROM {table} ORDER BY id DESC LIMIT {WINDOW}) AS a"  # noqa: S608 (no input)
            f" JOIN runs_run r ON r.id = a.run_id WHERE {condition} ORDER BY a.id DESC LIMIT {NEWEST}",
            parameters,
        )
        return [found for (found,) in cursor.fetchall()]


#: What a change of limits is called as an action, by the last word of its kind in the history of administration.
ACTIONS = {
    "changed": "set",
    "cleared": "clear",
    "reverted": "revert",
    "ended": "end",
    "sorted": "sort",
    "paused": "pause",
    "resumed": "resume",
}


def _of_verb(user: AbstractBaseUser, name: str) -> list[Case]:
    """Requests for the verb; for limits, the newest changes. Runs' histories are not searched for the others."""
    cases = [
        Case(one.opened_at, one.title, None, codec.decode(one.facts), f"/requests/{one.pk}/", True)
        for one in _requests(user, name)[:NEWEST]
    ]
    if name == "change_limits" and access.everywhere(user, "runs.view_auditevent"):
        changes = AuditEvent.objects.filter(kind__in=KINDS_OF_CHANGE).order_by("-id")[:NEWEST]
        cases += [_of_change(event) for event in changes]
    return sorted(cases, key=lambda case: case.at, reverse=True)[:NEWEST]


def _requests(user: AbstractBaseUser, name: str) -> QuerySet[Request]:
    """Requests for the verb whose run this person may see, and what is in it, newest first."""
    found = Request.objects.filter(verb=name)
    for permission in ("approvals.view_request", "runs.view_payload"):
        found = four_eyes.visible(user, found, permission)
    return found.order_by("-id")


def _of_change(event: AuditEvent) -> Case:
    scope, _, name = event.target.partition(" ")
    action = ACTIONS[event.kind.rpartition("_")[2]]
    facts = {"action": action, "scope": scope, "name": name} | (event.new or {})
    return Case(event.at, f"{action.capitalize()}, {event.target}", None, facts, "", False)
