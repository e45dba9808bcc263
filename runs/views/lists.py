"""The list of runs, with what needs people on top."""

import hashlib
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from agentops.console.filters import Choice, Filter, link
from agentops.console.paging import page
from agentops.console.polling import is_poll, unchanged
from runs import access, content, policies, registry, selectors
from runs.bulk import selection
from runs.models import Run
from runs.pages import limit_page, reasons
from runs.states import Status

#: A value of the filter that is no status: failed runs that no workflow asked to fail.
DEAD = "dead_letter"
#: What narrows the list, apart from a search.
FILTERS = ("status", "reason", "workflow", "subject")


@dataclass(frozen=True)
class Line:
    """One run of the list and why it stands where it stands."""

    run: Run
    why: reasons.Why


@require_safe
@access.required("runs.view_run")
def runs(request: HttpRequest) -> HttpResponse:
    """Runs, newest first, by status, workflow and search; the region with them is polled."""
    query = _storable(request.GET)
    counts, needs = selectors.overview(request.user, workflow=query.get("workflow", ""))
    listed = page(_chosen(request.user, query), query)
    overrides = policies.load()
    rows = content.shown_all(request.user, listed.rows)
    told = reasons.of_all(rows, request.user, overrides=overrides)
    lines = [Line(run, told[run.pk]) for run in rows]
    tag = _tag(counts, needs, lines)
    context: dict[str, Any] = {
        "lines": lines,
        "page": listed,
        "needs": needs,
        "count_limit": selectors.COUNT_LIMIT,
        "chips": _chips(query, counts, needs),
        "search": query.get("q", ""),
        "about": _about(lines) if query.get("q") else "",
        "hidden": [(name, query[name]) for name in FILTERS if query.get(name)],
        "narrowed": any(query.get(name) for name in (*FILTERS, "q")),
        "without_search": link(query, q=None),
        "bulk": selection.address({name: str(query[name]) for name in query})
        if access.may(request.user, "runs.bulk")
        else "",
        # A search reads many rows: it is made when somebody asks for it, not every ten seconds.
        "polled": not query.get("q"),
        "now": timezone.now(),
        "ptag": tag,
        "standing": lambda: limit_page.standing(request.user, overrides),
    }
    template = "runs/list.html#runs" if is_poll(request) else "runs/list.html"
    response = unchanged(request, tag) or render(request, template, context)
    response.headers["HX-PTag"] = tag
    return response


def _about(lines: list[Line]) -> str:
    """The subject of all these runs; empty where they have several, or none."""
    subjects = {line.run.subject for line in lines}
    return subjects.pop() if len(subjects) == 1 else ""


def _storable(query: QueryDict) -> QueryDict:
    """`query` without NUL, which PostgreSQL refuses as a parameter and no row holds."""
    return QueryDict(query.urlencode().replace("%00", ""))


def _chosen(user: access.Person, query: QueryDict) -> Any:
    status, workflow = query.get("status", ""), query.get("workflow", "")
    narrowing = {"subject": query.get("subject", ""), "search": query.get("q", "").strip()}
    if status == DEAD:
        found = selectors.dead_letters(user, workflow=workflow, **narrowing)
    else:
        found = selectors.runs(
            user, status=status if status in Status else "", workflow=workflow, **narrowing
        )
    return reasons.filter_by(found, reason) if (reason := query.get("reason", "")) else found


def _chips(query: QueryDict, counts: dict[str, int], needs: selectors.Needs) -> list[Filter]:
    statuses = [Choice(status.value, status.label, counts[status]) for status in Status]
    dead = None if query.get("workflow") else needs.dead_letters
    after_failed = [choice.value for choice in statuses].index(Status.FAILED) + 1
    statuses.insert(after_failed, Choice(DEAD, "Dead letter", dead))
    workflows = [Choice(workflow.name, workflow.name) for workflow in registry.workflows()]
    why = [Choice(value, label) for value, label in reasons.Reason.choices]
    chips = [
        Filter("status", "Status", statuses, query.get("status", "")),
        Filter("reason", "Waiting because", why, query.get("reason", "")),
        Filter("workflow", "Workflow", workflows, query.get("workflow", "")),
    ]
    if subject := query.get("subject", ""):
        chips.append(Filter("subject", "Subject", [Choice(subject, subject)], subject))
    return chips


def _tag(counts: dict[str, int], needs: selectors.Needs, lines: list[Line]) -> str:
    """What the region shows, without the moments that the browser renews by itself."""
    shown = [(one.run.pk, one.run.status, one.run.step, one.run.event_seq, one.why) for one in lines]
    return hashlib.sha256(repr((sorted(counts.items()), needs, shown)).encode()).hexdigest()[:20]
