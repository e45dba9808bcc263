"""Pages of the audit: the list of what people and policies did, one entry, and the export."""

import uuid
from datetime import date, datetime, time, timedelta
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from agentops.console.filters import Choice, Filter, link
from runs import access, clock, registry
from runs.models import AuditLink, Event, Run
from runs.pages import audit, audit_words
from runs.pages.audit_search import Chosen, Place
from runs.services import audit_export, chain
from runs.views.acting import actor

#: The filter by period: what it is called, and how long ago it begins.
PERIODS = {
    "day": ("last 24 hours", timedelta(days=1)),
    "week": ("last 7 days", timedelta(days=7)),
    "month": ("last 30 days", timedelta(days=30)),
}
#: Events whose numbers are beyond this are not there: the column is an integer.
MOST = 2**31


class FilterForm(forms.Form):
    """What the address of the list says; each field may be empty."""

    person = forms.CharField(
        required=False, max_length=200, label="Person", help_text="The name as it stands in the list."
    )
    subject = forms.CharField(
        required=False, max_length=1000, label="Subject", help_text="In full, such as “order 1042”."
    )
    workflow = forms.CharField(required=False, max_length=1000, label="Workflow")
    policy = forms.CharField(
        required=False,
        max_length=1000,
        label="Policy",
        help_text="Of limits or approvals: “tool refund”, “workflow shop”.",
    )
    run = forms.UUIDField(required=False, label="Run", help_text="Its id in full.")
    since = forms.DateField(required=False, label="From", widget=forms.DateInput({"type": "date"}))
    until = forms.DateField(required=False, label="Until and with", widget=forms.DateInput({"type": "date"}))
    what = forms.ChoiceField(
        required=False, choices=[("", "")] + [(name, one.label) for name, one in audit_words.FAMILIES.items()]
    )
    verb = forms.SlugField(required=False, max_length=60)
    period = forms.ChoiceField(
        required=False, choices=[("", "")] + [(name, label) for name, (label, _) in PERIODS.items()]
    )
    target = forms.CharField(required=False, max_length=2000, strip=False)

    @property
    def typed(self) -> list[forms.BoundField]:
        """The fields of the form; the others are chips."""
        return [self[name] for name in ("person", "workflow", "subject", "policy", "run", "since", "until")]

    @property
    def chips(self) -> list[forms.BoundField]:
        return [self[name] for name in ("what", "verb", "period", "target")]

    @property
    def kept(self) -> list[tuple[str, str]]:
        """What the form hands on."""
        return [(bound.name, str(bound.value())) for bound in self.chips if bound.value()]

    def chosen(self) -> Chosen:
        """For a form that is valid."""
        given = self.cleaned_data
        since = _midnight(given["since"])
        if given["period"]:
            begin = clock.now() - PERIODS[given["period"]][1]
            since = begin if since is None else max(since, begin)
        # Nothing is later than the last day that there is.
        until = _midnight(given["until"]) if given["until"] != date.max else None
        return Chosen(
            person=given["person"],
            what=given["verb"] or given["what"],
            run=given["run"],
            workflow=given["workflow"],
            subject=given["subject"],
            policy=given["policy"],
            target=given["target"],
            since=since,
            until=until + timedelta(days=1) if until else None,
        )


def _midnight(day: Any) -> datetime | None:
    return datetime.combine(day, time.min, timezone.get_current_timezone()) if day else None


@require_safe
@access.required("runs.view_auditevent")
def entries(request: HttpRequest) -> HttpResponse:
    """What people did, and policies in their place, newest first."""
    query, form = request.GET, FilterForm(request.GET)
    if form.is_valid():
        chosen = form.chosen()
        before, after = (Place.parse(query.get(name, "")) for name in ("before", "after"))
        listed, counted = audit.page_and_count(request.user, chosen, before, after=after)
    else:
        listed, counted = audit.Listed([], None, None), audit.Counted(0, more=False)
    context: dict[str, Any] = {
        "form": form,
        "listed": listed,
        "counted": counted,
        "chips": _chips(request, counted),
        "narrowed": any(value for name, value in query.items() if name in form.fields),
        "unfiltered": request.path,
        "first": link(query) if listed.newer or query.get("before") else "",
        "newer": link(query, after=str(listed.newer)) if listed.newer else "",
        "older": link(query, before=str(listed.following)) if listed.following else "",
        "check": chain.latest_over(),
        "export": f"{reverse('audit:export')}{link(query)}"
        if access.may(request.user, "runs.export_audit")
        else "",
        "now": clock.now(),
    }
    return render(request, "audit/list.html", context, status=200 if form.is_valid() else 422)


def _chips(request: HttpRequest, counted: audit.Counted) -> list[Filter]:
    query = request.GET
    what = query.get("what", "")
    chips = [
        Filter("what", "What", [Choice(name, one.label) for name, one in audit_words.FAMILIES.items()], what)
    ]
    kinds = audit_words.FAMILIES[what].kinds if what in audit_words.FAMILIES else {}
    if verb := query.get("verb", ""):
        kinds = {verb: audit_words.name_of(verb), **kinds}
    if kinds:
        chips.append(Filter("verb", "Verb", [Choice(kind, name) for kind, name in kinds.items()], verb))
    names = dict.fromkeys([*counted.names, *([query["person"]] if query.get("person") else [])])
    chips.append(Filter("person", "By", [Choice(name, name) for name in names], query.get("person", "")))
    workflows = [one.name for one in registry.workflows()]
    chips.append(
        Filter("workflow", "Workflow", [Choice(name, name) for name in workflows], query.get("workflow", ""))
    )
    chips.append(
        Filter(
            "period",
            "When",
            [Choice(name, label) for name, (label, _) in PERIODS.items()],
            query.get("period", ""),
        )
    )
    for name, label in (
        ("subject", "Subject"),
        ("policy", "Policy"),
        ("run", "Run"),
        ("target", "On"),
        ("since", "From"),
        ("until", "Until"),
    ):
        if value := query.get(name, ""):
            told = (
                audit_words.target(value).text if name == "target" else value[:13] if name == "run" else value
            )
            chips.append(Filter(name, label, [Choice(value, told)], value))
    return chips


# --- one entry -----------------------------------------------------------------------------------------------------------


@require_safe
@access.required("runs.view_auditevent")
def change(request: HttpRequest, change: uuid.UUID) -> HttpResponse:
    """One thing that was changed outside a run."""
    entry = audit.entry_of_change(request.user, change)
    if entry is None:
        raise Http404
    linked = AuditLink.objects.filter(event_id=change).first()
    # Its digest is also that of every entry before it, whatever run those are about.
    whole = all(access.everywhere(request.user, one) for one in ("runs.view_run", "runs.view_payload"))
    return _entry(request, entry, linked.seq if linked else None, linked.head if linked and whole else b"")


@require_safe
@access.required("runs.view_auditevent")
def event(request: HttpRequest, run_id: uuid.UUID, number: int) -> HttpResponse:
    """One event of a run."""
    run = access.run_or_404(request.user, run_id, rows=Run.objects.only("workflow", "subject"))
    entry = audit.entry_of_event(request.user, run, number) if number < MOST else None
    if entry is None:
        raise Http404
    head = Event.objects.values_list("head", flat=True).get(run_id=run_id, seq=number)
    seen = access.may_see_payloads(request.user, run)
    return _entry(request, entry, number, head if seen else b"")


def _entry(
    request: HttpRequest, entry: audit.Entry, number: int | None, head: bytes | memoryview
) -> HttpResponse:
    """`head`: the digest in the chain, empty for whom it would confirm a guess of what is hidden from them."""
    context = {
        "entry": entry,
        "on": None if entry.run else audit_words.target(entry.target, entry.after),
        "number": number,
        "head": bytes(head).hex(),
        "before": entry.before or {},
        "after": entry.after or {},
        "now": clock.now(),
    }
    return render(request, "audit/entry.html", context)


# --- export --------------------------------------------------------------------------------------------------------------

#: Ending and media type of each format, and what people call it.
FILES = {
    "csv": ("csv", "text/csv; charset=utf-8", "CSV, for a spreadsheet"),
    "jsonl": ("jsonl", "application/jsonl", "JSON Lines, for a program"),
}


class ExportForm(forms.Form):
    format = forms.ChoiceField(
        label="Format", choices=[(name, label) for name, (_, _, label) in FILES.items()]
    )
    reason = forms.CharField(
        required=False, max_length=500, label="Reason", help_text="Written to the audit with your name."
    )


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.view_auditevent", "runs.export_audit")
def export(request: HttpRequest) -> HttpResponseBase:
    """Say what would be in the file, and send it."""
    filtered, form = FilterForm(request.GET), ExportForm(request.POST or None)
    if request.method == "POST" and filtered.is_valid() and form.is_valid():
        wanted = form.cleaned_data["format"]
        ending, media, _ = FILES[wanted]
        pieces = audit_export.export_audit(
            actor(request), filtered.chosen(), wanted, reason=form.cleaned_data["reason"]
        )
        answer = StreamingHttpResponse(pieces, content_type=media)
        answer.headers["Content-Disposition"] = (
            f'attachment; filename="audit-{clock.now():%Y%m%dT%H%M%S}.{ending}"'
        )
        return answer
    query = request.GET
    context = {
        "form": form if request.method == "POST" else ExportForm(),
        "filtered": filtered,
        "counted": audit.count(request.user, filtered.chosen()) if filtered.is_valid() else None,
        "chosen": [
            (chip.label, chip.word) for chip in _chips(request, audit.Counted(0, more=False)) if chip.value
        ],
        "action": request.get_full_path(),
        "close": f"{reverse('audit:list')}{link(query)}",
        "now": clock.now(),
    }
    refused = request.method == "POST" or not filtered.is_valid()
    return render(request, "audit/export.html", context, status=422 if refused else 200)
