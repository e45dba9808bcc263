"""Pages that show the parts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET, require_http_methods
from django_htmx.http import ptag

from agentops import views
from agentops.console.badges import BADGES, OPERATION_KINDS
from agentops.console.paging import Page
from agentops.console.waterfall import waterfall
from agentops.look import samples
from agentops.templatetags import console
from runs.errors import NotAllowed, Stale


class ReasonForm(forms.Form):
    """The fields of a verb."""

    seen_version = forms.IntegerField(widget=forms.HiddenInput, initial=7)
    reason = forms.CharField(max_length=500, help_text="Written to the run's history with your name.")
    attempts = forms.IntegerField(min_value=1, max_value=100, initial=8)
    although = forms.BooleanField(required=False, label="Run although refund is in doubt")


@require_GET
def parts(request: HttpRequest) -> HttpResponse:
    """Every part in every state."""
    now = timezone.now()
    lanes = samples.lanes(now)
    lanes[10] = replace(lanes[10], details=_attempt())
    wrong = ReasonForm({"reason": "", "attempts": "1000", "seen_version": 7})
    wrong.add_error(None, "The run had changed meanwhile.")
    context: dict[str, Any] = {
        "now": now,
        "badges": [(kind, list(table.items())) for kind, table in BADGES.items()],
        "operation_kinds": list(OPERATION_KINDS),
        "moments": [
            now + timedelta(seconds=seconds)
            for seconds in (
                -0.2,
                -12,
                -260,
                -7000,
                -30 * 3600,
                -20 * 86400,
                -500 * 86400,
                2290,
                20 * 3600,
                9 * 86400,
            )
        ],
        "durations": (0.0004, 0.8, 59.97, 2280, 6480, 86400, 3600 * 51),
        "late": now - timedelta(minutes=38),
        "identity": "0198f1a7-11c0-7d2b-8f63-0b9e44d1c2f5",
        "payload": samples.PAYLOAD,
        "before": {"order": {"id": 1039}, "plan": None, "ticket": 5498},
        "after": {
            "order": {"id": 1039},
            "plan": {"action": "refund", "amount": "92.00"},
            "note": samples.HOSTILE[1],
        },
        "traceback": samples.TRACEBACK,
        "hostile": samples.HOSTILE,
        "fall": waterfall(lanes, now=now),
        "consequence": samples.CONSEQUENCE,
        "form": ReasonForm(),
        "wrong": wrong,
        "action": reverse("look:form"),
        "close": reverse("look:parts"),
        "chips": samples.chips(request.GET.get("status", ""), request.GET.get("workflow", "")),
        "middle": Page([], "?after=1", "?before=2"),
        "first": Page([], "", "?before=2"),
        "counts": (0, 5, 1000, 4321),
        "ptag": _minute(request),
    }
    return render(request, "look/parts.html", context)


def _attempt() -> SafeString:
    error = format_html(
        '<p class="error"><b>ProviderTimeout</b>: {}</p>', "no answer from paybridge within 30 s"
    )
    return format_html('<div class="attempt">{}{}</div>', error, console.traceback(samples.TRACEBACK))


def _minute(request: HttpRequest) -> str:
    return f"{timezone.now():%H%M}"


@require_GET
@ptag(_minute)
def tick(request: HttpRequest) -> HttpResponse:
    """A region that polls and changes once a minute; every other poll is answered 304."""
    return render(request, "look/parts.html#tick", {"now": timezone.now(), "ptag": _minute(request)})


@require_http_methods(["POST"])
def form(request: HttpRequest) -> HttpResponse:
    """Take the form of a verb as the verbs do: 422 with the form, or a result on the page one came from."""
    sent = ReasonForm(request.POST)
    if not sent.is_valid():
        return render(request, "look/form.html", {"form": sent, "action": request.path}, status=422)
    messages.success(request, f"Done, because “{sent.cleaned_data['reason']}”.")
    return redirect("look:parts")


@require_GET
def error(request: HttpRequest, status: int) -> HttpResponse:
    """The page of one error."""
    match status:
        case 400:
            raise SuspiciousOperation("shown on purpose")
        case 403:
            raise PermissionDenied
        case 409:
            error = Stale("this run has changed since the page was loaded; it is now completed")
            return views.refused(request, error, back=reverse("look:parts"))
        case 410:
            raise NotAllowed("k.ito does not have the permission “retry run”")
        case 419:
            return views.csrf_failure(request)
        case 500:
            return views.server_error(request)
    raise Http404
