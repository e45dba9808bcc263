"""The page of a subject: what was done for “order 1042”, and by which runs."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from agentops.console.filters import link
from runs import access
from runs.pages import subjects

#: Effects and runs on one page.
EFFECTS, RUNS = 50, 20


@require_safe
@access.required("runs.view_run")
def subject(request: HttpRequest) -> HttpResponse:
    """One subject; without one, a form that asks for it."""
    # PostgreSQL refuses NUL as a parameter, and no row holds one.
    wanted = request.GET.get("subject", "").replace("\0", "").strip()
    if not wanted:
        return render(request, "runs/subject.html", {"told": None})
    told = subjects.told(request.user, wanted)
    effects, effects_after = _page(
        told.effects, request.GET.get("effects_after", ""), EFFECTS, lambda one: one.operation.pk
    )
    runs, runs_after = _page(told.runs, request.GET.get("after", ""), RUNS, lambda one: one.pk)
    readable = [one for one in effects if access.may_see_payloads(request.user, one.run)]
    subjects.summarize(readable)
    context: dict[str, Any] = {
        "told": told,
        "now": told.now,
        "effects": effects,
        "runs": runs,
        "more_effects": link(request.GET, effects_after=str(effects_after)) if effects_after else "",
        "more_runs": link(request.GET, after=str(runs_after)) if runs_after else "",
        "whole": link(request.GET, effects_after=None),
        "cut": request.GET.get("effects_after") or request.GET.get("after"),
        "all_readable": len(readable) == len(effects),
    }
    return render(request, "runs/subject.html", context)


def _page[T](
    rows: Sequence[T], after: str, size: int, key: Callable[[T], uuid.UUID]
) -> tuple[Sequence[T], uuid.UUID | None]:
    """The rows behind the one with this key, and the key behind which the next page begins."""
    begin = next((place + 1 for place, row in enumerate(rows) if str(key(row)) == after), 0)
    shown = rows[begin : begin + size]
    return shown, key(shown[-1]) if begin + size < len(rows) else None
