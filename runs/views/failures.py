"""Pages on failures: the groups, one group with its runs, what people say of it, and a failed run beside a good one."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_safe

from agentops.console.filters import Choice, Filter, link
from agentops.console.numbers import number_of
from agentops.console.paging import page
from agentops.console.polling import fragment, is_poll, tag
from agentops.console.sparkline import Sparkline, sparkline
from runs import access, clock, content, registry
from runs.diagnosis import comparison, failures
from runs.diagnosis.failures import Trend
from runs.errors import Invalid, StateMismatch
from runs.models import FailureGroup, Run
from runs.selectors import PAYLOADS, counted
from runs.services import failures as services
from runs.services.failures import CHANGES, word
from runs.services.verb import Consequence
from runs.states import UNFINISHED, Status
from runs.views import page as run_page
from runs.views.acting import actor
from runs.workflow import WORKFLOWS

Sort, State = FailureGroup.Sort, FailureGroup.State

#: The list's filter by when a group last failed.
SEEN = {
    "day": ("last 24 hours", timedelta(days=1)),
    "week": ("last 7 days", timedelta(days=7)),
    "fortnight": ("last 14 days", timedelta(days=14)),
}
#: Tab of the list that is no state.
UNHANDLED = "unhandled"
#: Colour of a trend: failures that somebody still has to look at stand out.
TONES = {State.OPEN: "is-bad"}


# --- the list ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One group of the list."""

    group: FailureGroup
    runs: int
    """Still failed, up to COUNT_LIMIT + 1."""
    trend: Sparkline | None
    tone: str
    message: str
    new: bool


@require_safe
@access.required("runs.view_run")
def failure_groups(request: HttpRequest) -> HttpResponse:
    """Groups of failures, those that failed last on top; the region with them is polled."""
    query = request.GET
    sort = Sort.ATTENTION if query.get("what") == Sort.ATTENTION else Sort.FAILURE
    state = query.get("state", "")
    narrowed = _narrowed(failures.groups(request.user, sort), query)
    told = failures.overview(request.user, narrowed, sort)
    chosen = narrowed.filter(state=state) if state in State else narrowed.exclude(state=State.HANDLED)
    if state == "any":
        chosen = narrowed
    shown, following, now = failures.page(chosen, failures.Place.parse(query.get("before", "")))
    lines = _lines(request, shown, now) if shown else []
    context: dict[str, Any] = {
        "lines": lines,
        "told": told,
        "sort": sort,
        "tabs": _tabs(query, told, state if state in State else UNHANDLED),
        "handled_tab": state == State.HANDLED,
        "chips": _chips(query),
        "narrowed": any(query.get(name) for name in ("workflow", "version", "seen")),
        "unnarrowed": link(query, workflow=None, version=None, seen=None),
        "first": link(query) if query.get("before") else "",
        "following": _page_link(query, following),
        "now": now,
        "ptag": tag(
            told, [(line.group.pk, line.group.revision, line.group.last_at, line.runs) for line in lines]
        ),
    }
    return fragment(
        request, "runs/failures.html#groups" if is_poll(request) else "runs/failures.html", context
    )


def _narrowed(groups: QuerySet[FailureGroup], query: QueryDict) -> QuerySet[FailureGroup]:
    if workflow := query.get("workflow", "").replace("\x00", ""):
        groups = groups.filter(workflow=workflow)
    if (version := number_of(query.get("version"))) is not None:
        groups = groups.filter(version=version)
    if (seen := query.get("seen", "")) in SEEN:
        groups = groups.filter(last_at__gte=clock.Now() - SEEN[seen][1])
    return groups


def _lines(request: HttpRequest, shown: list[FailureGroup], now: datetime) -> list[Line]:
    numbers = failures.still(request.user, shown)
    trends = failures.trends((one.pk for one in shown), now)
    return [
        Line(
            one,
            numbers[one.pk],
            _days(trends[one.pk]) if failures.seen_whole(request.user, one) else None,
            TONES.get(State(one.state), "is-idle"),
            one.message if failures.may_read(request.user, one) else "",
            now - one.first_at < failures.NEW,
        )
        for one in shown
    ]


def _days(trend: Trend) -> Sparkline:
    return sparkline(
        trend.days, f"{sum(trend.hours):,} in 24 hours, {sum(trend.days):,} in {failures.DAYS} days"
    )


def _hours(trend: Trend) -> Sparkline:
    return sparkline(trend.hours, f"{trend.hours[-1]:,} in this hour, {sum(trend.hours):,} in 24 hours")


@dataclass(frozen=True)
class Tab:
    label: str
    url: str
    number: int
    current: bool


def _tabs(query: QueryDict, told: failures.Overview, current: str) -> list[Tab]:
    tabs = [Tab("Unhandled", link(query, state=None), told.unhandled, current == UNHANDLED)]
    return tabs + [
        Tab(state.label, link(query, state=state.value), told.by_state[state], current == state)
        for state in State
    ]


def _chips(query: QueryDict) -> list[Filter]:
    declared = registry.workflows()
    chips = [
        Filter(
            "what",
            "What",
            [Choice("", "failed runs"), Choice(Sort.ATTENTION, "runs in attention")],
            query.get("what", ""),
        ),
        Filter(
            "seen", "Seen", [Choice(name, label) for name, (label, _) in SEEN.items()], query.get("seen", "")
        ),
        Filter(
            "workflow",
            "Workflow",
            [Choice(one.name, one.name) for one in declared],
            query.get("workflow", ""),
        ),
    ]
    if workflow := query.get("workflow", ""):
        versions = sorted(WORKFLOWS.get(workflow, {}), reverse=True)
        chips.append(
            Filter("version", "Version", [Choice(str(v), str(v)) for v in versions], query.get("version", ""))
        )
    return chips


def _page_link(query: QueryDict, following: failures.Place | None) -> str:
    if following is None:
        return ""
    fresh = query.copy()
    fresh["before"] = str(following)
    return f"?{fresh.urlencode()}"


# --- one group -----------------------------------------------------------------------------------------------------------

#: Runs on one page of a group.
RUNS = 20
#: What the runs of a group are doing now, by the tab that shows them; each by its index (`run_by_fingerprint`).
STANDING: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "failed": ("Still failed", (Status.FAILED,)),
    "attention": ("Attention", (Status.ATTENTION,)),
    "under_way": ("Under way", tuple(s for s in UNFINISHED if s != Status.ATTENTION)),
    "completed": ("Completed since", (Status.COMPLETED,)),
    "cancelled": ("Cancelled", (Status.CANCELLED,)),
}


@require_safe
@access.required("runs.view_run")
def failure_group(request: HttpRequest, fingerprint: uuid.UUID) -> HttpResponse:
    """One group: a sample, its runs, versions, trend, and what people say of it."""
    return _show(request, _found(request, fingerprint))


@dataclass(frozen=True)
class Found:
    """A group, and those of the same error in other versions, itself among them."""

    group: FailureGroup
    versions: list[FailureGroup]
    now: datetime


def _found(request: HttpRequest, fingerprint: uuid.UUID) -> Found:
    try:
        versions, now = failures.siblings(request.user, fingerprint)
    except FailureGroup.DoesNotExist:
        raise Http404 from None
    return Found(next(one for one in versions if one.pk == fingerprint), versions, now)


def _show(request: HttpRequest, found: Found, status: int = 200, **more: Any) -> HttpResponse:
    user, group = request.user, found.group
    names = list(STANDING)
    counts = counted(
        *(failures.runs_of(user, group.pk, *STANDING[name][1]) for name in names),
        *(failures.runs_of(user, one.pk, failures.standing(one.sort)) for one in found.versions),
    )
    numbers = dict(zip(names, counts[: len(names)], strict=True))
    stands = "attention" if group.sort == Sort.ATTENTION else "failed"
    usual = stands if numbers[stands] else next((name for name in names if numbers[name]), stands)
    standing = request.GET.get("runs", "")
    standing = standing if standing in STANDING else usual
    listed = page(failures.runs_of(user, group.pk, *STANDING[standing][1]), request.GET, size=RUNS)
    read = failures.may_read(user, group)
    sample = listed.rows[0] if listed.rows else None
    error = failures.last_error(sample) if sample else None
    trend = failures.trends([group.pk], found.now)[group.pk] if failures.seen_whole(user, group) else None
    live = failures.Live.of(group)
    context: dict[str, Any] = {
        "group": group,
        "message": group.message if read else "",
        "may_read": read,
        "may_handle": access.may(user, "runs.handle_failures", Run(workflow=group.workflow)),
        "verbs": _verbs(group),
        "number": numbers[stands],
        "numbers": numbers,
        "tabs": [
            Tab(label, link(request.GET, runs=name), numbers[name], name == standing)
            for name, (label, _) in STANDING.items()
            if numbers[name] or name in (standing, "completed")
        ],
        "listed": listed,
        "sample": sample,
        "error": error if sample and access.may_see_payloads(user, sample) else None,
        "failed_in": getattr(error, "code", None),
        "live": live,
        "undelivered": group.state == State.FIXED and group.fixed_in and not live.has(group.fixed_in),
        "days": _days(trend) if trend else None,
        "hours": _hours(trend) if trend else None,
        "tone": TONES.get(State(group.state), "is-idle"),
        "versions": [
            (one, number, one.pk == group.pk)
            for one, number in zip(found.versions, counts[len(names) :], strict=True)
            if len(found.versions) > 1
        ],
        "history": content.shown_all(user, failures.history(group), Run(workflow=group.workflow)),
        "bulk": _bulk(request, group) if numbers["failed"] else "",
        "now": found.now,
    }
    return render(request, "runs/failure.html", context | more, status=status)


def _bulk(request: HttpRequest, group: FailureGroup) -> str:
    """Where all its failed runs can be retried at once; "" for who may not."""
    if not access.may(request.user, "runs.bulk"):
        return ""
    query = {"verb": "retry", "status": Status.FAILED.value, "fingerprint": str(group.pk)}
    return f"{reverse('runs:bulk_new')}?{urlencode(query)}"


# --- what people say of it -----------------------------------------------------------------------------------------------


class FailureForm(forms.Form):
    """What every change of a group asks for."""

    seen_revision = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    reason = forms.CharField(
        max_length=500, label="Reason", help_text="Written to the group's history with your name."
    )


class FixForm(FailureForm):
    field_order = ("version", "reason")
    version = forms.IntegerField(
        min_value=1,
        max_value=2**31 - 1,
        label="Fixed in version",
        help_text="Of the workflow. A failure of this or a later version opens the group again.",
        widget=forms.TextInput({"inputmode": "numeric", "autocomplete": "off"}),
    )


class NoteForm(forms.Form):
    reason = forms.CharField(
        max_length=2000,
        label="Note",
        help_text="Written to the group's history with your name; nobody can change it later.",
        widget=forms.Textarea({"rows": 3}),
    )


@dataclass(frozen=True)
class Sheet:
    """One thing that people may say of a group."""

    title: str
    button: str
    done: str
    form: type[forms.Form]
    service: Callable[..., FailureGroup]


SHEETS: Mapping[str, Sheet] = {
    "acknowledge": Sheet(
        "Acknowledge the group",
        "Acknowledge the group",
        "You look after this group now.",
        FailureForm,
        services.acknowledge_failure,
    ),
    "fix": Sheet(
        "Mark as fixed",
        "Mark as fixed",
        "The group is fixed in version {version}.",
        FixForm,
        services.fix_failure,
    ),
    "handle": Sheet(
        "Mark as handled", "Mark as handled", "The group is handled.", FailureForm, services.handle_failure
    ),
    "reopen": Sheet(
        "Open the group again",
        "Open the group again",
        "The group is open again.",
        FailureForm,
        services.reopen_failure,
    ),
    "note": Sheet("Write a note", "Write the note", "The note is written.", NoteForm, services.note_failure),
}


def _verbs(group: FailureGroup) -> list[tuple[str, str]]:
    """Name and title of what may be said of the group as it is; what helps most first."""
    return [
        (name, sheet.title)
        for name, sheet in SHEETS.items()
        if name == "note" or group.state in CHANGES[name].sources
    ]


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.handle_failures")
def change_failure(request: HttpRequest, fingerprint: uuid.UUID, what: str) -> HttpResponse:
    """Say something of a group: its page with the form open, which says what would follow."""
    sheet, found = SHEETS.get(what), _found(request, fingerprint)
    if not access.may(request.user, "runs.handle_failures", Run(workflow=found.group.workflow)):
        raise PermissionDenied
    if sheet is None:
        raise Http404
    if request.method != "POST":
        return _sheet(request, found, what, sheet.form(initial=_initial(found.group)))
    form = sheet.form(request.POST)
    if not form.is_valid():
        return _sheet(request, found, what, form, 422)
    try:
        sheet.service(actor(request), fingerprint, **form.cleaned_data)
    except StateMismatch as error:
        fresh = _found(request, fingerprint)
        typed = {name: form.data.get(name, "") for name in form.fields if name != "seen_revision"}
        kept = sheet.form(initial=_initial(fresh.group) | typed)
        return _sheet(request, fresh, what, kept, error.status, refusal=str(error))
    except Invalid as error:
        form.add_error(None, str(error))
        return _sheet(request, found, what, form, 422)
    messages.success(request, sheet.done.format(**form.cleaned_data))
    return redirect("runs:failure", fingerprint)


def _initial(group: FailureGroup) -> dict[str, Any]:
    newest = max(WORKFLOWS.get(group.workflow, {}), default=0)
    return {"seen_revision": group.revision, "version": max(newest, group.version)}


def _sheet(
    request: HttpRequest,
    found: Found,
    what: str,
    form: forms.Form,
    status: int = 200,
    *,
    refusal: str = "",
) -> HttpResponse:
    """The group's page with one form open; without it where the group's state does not allow that any more."""
    group = found.group
    applies = what == "note" or group.state in CHANGES[what].sources
    why_not = "" if applies or refusal else f"This group is {word(group)}, which does not allow this"
    return _show(
        request,
        found,
        status,
        what=what,
        sheet=SHEETS[what] if applies else None,
        form=form,
        refusal=refusal,
        why_not=why_not,
        consequence=_consequence(request, group, what) if applies else None,
    )


def _consequence(request: HttpRequest, group: FailureGroup, what: str) -> Consequence:
    (number,) = failures.still(request.user, [group]).values()
    left = "No run of it is failed now."
    if number:
        runs = (
            "1 run of it stays"
            if number == 1
            else f"{min(number, 1000):,}{'+' if number > 1000 else ''} runs of it stay"
        )
        left = f"{runs} as {'it is' if number == 1 else 'they are'}; retry them with “Retry all”."
    match what:
        case "acknowledge":
            return Consequence("Everybody sees that you look after it. It stays among what is not handled.")
        case "fix":
            return Consequence(f"A failure of the fixed version or a later one opens the group again. {left}")
        case "handle":
            return Consequence(f"The group leaves the list; any further failure opens it again. {left}")
        case "reopen":
            return Consequence("The group stands among the open ones again, with everybody's notes.")
    return Consequence("The note stands in the history of the group, for everybody who sees it.")


# --- a failed run beside a good one --------------------------------------------------------------------------------------


@require_safe
@access.required("runs.view_run")
def compare(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Where a run parted from the last good one of its workflow, or from the run that `with` names.

    To htmx the sentence alone.
    """
    visible = access.visible(request.user, Run.objects.defer(*PAYLOADS))
    run = get_object_or_404(visible, pk=run_id)
    good, unknown = _good(request, run)
    made = comparison.compare(run, good) if good else None
    read = access.may_see_payloads(request.user, run) and (
        good is None or access.may_see_payloads(request.user, good)
    )
    context: dict[str, Any] = {
        "run": run,
        "good": good,
        "made": made,
        "unknown": unknown,
        "asked": request.GET.get("with", "").strip(),
        "may_read": read,
    }
    if is_poll(request):
        return render(request, "runs/compare.html#sentence", context | {"apart": True})
    if made and made.parted and read:
        context["content"] = comparison.content(made)
    return render(
        request,
        "runs/compare.html",
        context | run_page.head(request, run) | {"now": clock.now()},
    )


def _good(request: HttpRequest, run: Run) -> tuple[Run | None, bool]:
    """The run to compare with, and whether one was asked for that is not there."""
    asked = request.GET.get("with", "").strip()
    if not asked:
        return comparison.last_good(request.user, run), False
    try:
        key = uuid.UUID(asked)
    except ValueError:
        return None, True
    others = Run.objects.filter(workflow=run.workflow).exclude(pk=run.pk).defer(*PAYLOADS)
    found = access.visible(request.user, others).filter(pk=key).first()
    return found, found is None
