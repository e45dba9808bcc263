"""Pages on limits: what acts, and the verbs that change it."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agentops.console import times
from agentops.console.polling import is_poll
from runs import access, clock, policies, services
from runs.errors import Invalid, NotAllowed, Stale
from runs.lifecycle import Actor
from runs.models import AuditEvent, Policy
from runs.models.policy import YEAR_S
from runs.pages import limit_page
from runs.pages.limit_page import KINDS, Kind, LimitPage, Scopes
from runs.services import limits as limit_services
from runs.services.limit_previews import LimitPreview
from runs.workflow import Rate

may_view = access.required("runs.view_policy")
may_change = access.required("runs.change_limits")

#: How long a limit may act for, in minutes; 0: until somebody changes it.
LENGTHS = (
    (0, "I change it back"),
    (15, "for 15 minutes"),
    (60, "for an hour"),
    (240, "for 4 hours"),
    (1440, "for a day"),
    (10_080, "for a week"),
)
#: Periods of a rate, in seconds.
PERIODS = ((1, "per second"), (60, "per minute"), (3600, "per hour"), (86_400, "per day"))


class ReasonForm(forms.Form):
    """What pausing and resuming ask for."""

    seen_revision = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    reason = forms.CharField(max_length=500, help_text="Written to the history with your name.")


def _length(now: datetime) -> forms.TypedChoiceField:
    """For how long: each choice says until when, too."""

    def told(minutes: int, words: str) -> str:
        return (
            f"{words}, until {times.moment(now + timedelta(minutes=minutes), now)}"
            if minutes >= 60
            else words
        )

    return forms.TypedChoiceField(
        required=False,
        label="Until",
        choices=[(minutes, told(minutes, words)) for minutes, words in LENGTHS],
        coerce=int,
        empty_value=None,
    )


class PauseForm(ReasonForm):
    """A pause: for how long, and why."""

    def __init__(self, now: datetime, data: Any = None, **initial: Any) -> None:
        super().__init__(data, initial=initial, label_suffix="")
        self.fields["minutes"] = _length(now)
        self.fields["minutes"].widget.choices = [
            (0, "somebody resumes it"),
            *self.fields["minutes"].widget.choices[1:],
        ]
        self.order_fields(["seen_revision", "minutes", "reason"])


class LimitForm(ReasonForm):
    """A new value for one limit; none gives it back to the wider scope."""

    limit = forms.ChoiceField(choices=[(column, column) for column in KINDS], widget=forms.HiddenInput)

    def __init__(self, kind: Kind, now: datetime, data: Any = None, **initial: Any) -> None:
        super().__init__(data, initial={"limit": kind.column, "period": 60} | initial, label_suffix="")
        self.kind = kind
        make = forms.IntegerField if kind.whole else forms.FloatField
        mode = "numeric" if kind.whole else "decimal"
        self.fields["value"] = make(
            required=False,
            label="New limit",
            min_value=cast(int, kind.least),
            max_value=cast(int, kind.most),
            widget=forms.TextInput({"inputmode": mode, "autocomplete": "off"}),
        )
        if kind.column == "rate_count":
            chosen = _seconds((data or {}).get("period") or self.initial["period"])
            self.initial["period"] = chosen
            self.fields["period"] = forms.TypedChoiceField(
                label="Period", choices=_periods(chosen), coerce=float, required=False, empty_value=None
            )
        if kind.column != "retention_days":
            self.fields["minutes"] = _length(now)

    @property
    def values(self) -> dict[str, Any]:
        """Columns and their new values."""
        value = self.cleaned_data["value"]
        if self.kind.column != "rate_count":
            return {self.kind.column: value}
        period = self.cleaned_data.get("period") or 60.0
        return {"rate_count": value, "rate_period_s": period if value is not None else None}


def _seconds(typed: Any) -> float:
    """A period as typed into an address or a form; a minute where it is none."""
    try:
        seconds = float(typed)
    except ValueError:
        return 60.0
    return seconds if 0 < seconds <= YEAR_S else 60.0


def _periods(chosen: float) -> list[tuple[float, str]]:
    """The usual periods, and an unusual one that acts now."""
    known = [(float(one), words) for one, words in PERIODS]
    return known if chosen in dict(known) else [*known, (chosen, f"per {chosen:g} s")]


# --- looking -------------------------------------------------------------------------------------------------------------


@require_safe
@may_view
def limits(request: HttpRequest) -> HttpResponse:
    """What is overridden now, and the newest changes; `scope` leads to one scope (the picker of narrow screens)."""
    if chosen := request.GET.get("scope"):
        scope, _, name = chosen.partition(":")
        return redirect(_url(_page_or_404(request, scope, name)))
    every = policies.load()
    theirs = limit_page.seen_by(request.user, every)
    with_history = access.everywhere(request.user, "runs.view_auditevent")
    context = {
        "scopes": Scopes.of(every, limit_services.queues(every)).theirs(request.user),
        "standing": limit_page.standing(request.user, every),
        "overrides": limit_page.overrides(theirs),
        "acting": limit_page.acting(theirs),
        "with_history": with_history,
        "history": limit_page.history() if with_history else [],
        "may_change": access.everywhere(request.user, "runs.change_limits"),
        "everything_paused": any(one.scope == Policy.Scope.EVERYTHING for one in policies.pauses(theirs)),
        "now": clock.now(),
    }
    return render(request, "runs/limits.html", context)


@require_safe
@may_view
def limit(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """The limits of one scope; `change` opens the form for one of them, `value` previews it."""
    page = _page_or_404(request, scope, name)
    kind = KINDS.get(request.GET.get("change", ""))
    row = next((row for row in page.rows if row.kind == kind), None)
    if kind is None or row is None or not _may_change(request, page):
        return _show(request, page)
    typed = _standing(row.value) | request.GET.dict()
    more = {"editing": kind} | _typed(page, kind, typed)
    if is_poll(request):
        return render(request, "runs/limit.html#preview", more | {"now": page.moment})
    return _show(request, page, **more)


# --- changing ------------------------------------------------------------------------------------------------------------


@require_POST
@may_change
def set_limit(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """Override one limit, or give it back; `preview` only counts what that would do, and keeps what is typed out of addresses."""
    page = _page_or_404(request, scope, name)
    kind = KINDS.get(request.POST.get("limit", ""))
    if kind is None or kind not in [row.kind for row in page.rows]:
        raise Invalid(f"there is no limit {request.POST.get('limit', '')}")
    if "preview" in request.POST:
        return _show(request, page, editing=kind, **_typed(page, kind, request.POST))
    now = page.moment
    form = LimitForm(kind, now, request.POST)
    if not form.is_valid():
        return _show(request, page, 422, editing=kind, form=form)
    minutes, seen = form.cleaned_data.get("minutes") or 0, form.cleaned_data["seen_revision"]
    until = now + timedelta(minutes=minutes) if minutes else None
    try:
        services.set_limits(
            _actor(request),
            scope,
            name,
            seen_revision=seen,
            reason=form.cleaned_data["reason"],
            until=until,
            **form.values,
        )
    except Stale as error:
        fresh = _page_or_404(request, scope, name)
        if _done_before(request, fresh, form.values):
            return _tell(
                request, fresh, f"{page.label(kind)} of {page.title} was already set.", changed=False
            )
        more = _typed(fresh, kind, request.POST)
        return _show(request, fresh, error.status, refusal=str(error), editing=kind, **more)
    except Invalid as error:
        form.add_error("value", str(error))
        return _show(request, page, 422, editing=kind, form=form)
    value = kind.of_columns(form.values)
    told = kind.text(value) if value is not None else "what the code or the workflow says"
    length = f" until {times.moment(until, now)}, then what it was before" if until else ""
    return _tell(request, page, f"{page.label(kind)} of {page.title} is now {told}{length}.")


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def pause(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """Let no worker begin anything of a workflow, of a queue, or at all."""
    page = _page_or_404(request, scope, name)
    return _pause_or_resume(request, page, pausing=True)


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def resume(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """Lift a pause."""
    page = _page_or_404(request, scope, name)
    return _pause_or_resume(request, page, pausing=False)


def _pause_or_resume(request: HttpRequest, page: LimitPage, *, pausing: bool) -> HttpResponse:
    if not page.pausable:
        raise Http404
    word, said = ("Pause", "paused") if pausing else ("Resume", "resumed")
    what = limit_page.opening(page.scope, page.name)
    if (page.pause is not None) == pausing:
        return _tell(request, page, f"{what} was already {said}.", changed=False)
    preview = (services.preview_pause if pausing else services.preview_resume)(page.scope, page.name)
    now = page.moment

    def form(data: Any = None, **initial: Any) -> ReasonForm:
        return (
            PauseForm(now, data, **initial) if pausing else ReasonForm(data, initial=initial, label_suffix="")
        )

    def change(given: Mapping[str, Any]) -> None:
        common = {"seen_revision": given["seen_revision"], "reason": given["reason"]}
        if not pausing:
            services.resume_scope(_actor(request), page.scope, page.name, **common)
            return
        until = now + timedelta(minutes=given["minutes"]) if given.get("minutes") else None
        services.pause_scope(_actor(request), page.scope, page.name, until=until, **common)

    asked = _Asked(
        f"{word} {page.title}",
        preview.sentence,
        reverse(f"runs:{word.lower()}", args=[page.scope, page.name]),
    )
    return _confirm(request, page, asked, form, change, f"{what} is {said}.")


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def end_temporary(request: HttpRequest, limit: str, scope: str, name: str) -> HttpResponse:
    """End a temporary limit before its time."""
    page = _page_or_404(request, scope, name)
    row = next((row for row in page.rows if row.kind.column == limit), None)
    if row is None:
        raise Http404
    if row.temporary is None:
        return _tell(
            request, page, f"{row.label} of {page.title} is no temporary one any more.", changed=False
        )
    before = dict(row.temporary.before)
    preview = services.preview_set_limits(scope, name, **before)
    asked = _Asked(
        f"End the temporary {row.label.lower()} of {page.title}",
        f"{row.override} until {times.moment(row.temporary.until, page.moment)} becomes {row.under} now. {preview.sentence}",
        reverse("runs:end_temporary", args=[limit, scope, name]),
        preview,
    )
    return _confirm(
        request,
        page,
        asked,
        _reason_form,
        lambda given: services.end_temporary_limit(_actor(request), scope, name, limit, **given),
        f"{row.label} of {page.title} is {row.under} again.",
    )


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def revert(request: HttpRequest, change: uuid.UUID) -> HttpResponse:
    """Make what a change of limits replaced act again, by a change of its own."""
    event = AuditEvent.objects.filter(pk=change, kind__in=limit_services.REVERTIBLE).first()
    if event is None:
        raise Http404
    scope, _, name = event.target.partition(" ")
    page = _page_or_404(request, scope, name)
    back = limit_services.reversal(event)
    preview = services.preview_set_limits(scope, name, **back.values) if back.values else None
    told = limit_page.Change(event, tuple(limit_page.told_back(page, back)))
    sentence = "; ".join(f"{label} becomes {said}" for label, said in told.said) or "Nothing changes by this"
    asked = _Asked(
        f"Revert the change of {page.title}",
        f"{sentence[:1].upper()}{sentence[1:]}, as before {event.actor} changed it."
        + (f" {preview.sentence}" if preview else ""),
        reverse("runs:revert", args=[change]),
        preview,
    )
    return _confirm(
        request,
        page,
        asked,
        _reason_form,
        lambda given: services.revert_limits(_actor(request), str(change), **given),
        f"The limits of {page.title} are what they were before that change.",
    )


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def sort_waiting(request: HttpRequest, workflow: str) -> HttpResponse:
    """Give a workflow's priority to its waiting runs."""
    page = _page_or_404(request, Policy.Scope.WORKFLOW, workflow)
    preview = services.preview_sort_waiting(workflow)
    asked = _Asked(
        f"Sort the waiting runs of {page.title}",
        preview.sentence,
        reverse("runs:sort_waiting", args=[workflow]),
        preview,
    )
    return _confirm(
        request,
        page,
        asked,
        _reason_form,
        lambda given: services.sort_waiting(_actor(request), workflow, **given),
        f"The waiting runs of {page.title} are sorted by its priority.",
    )


# --- shared ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """A verb that asks for a reason, in place on the page of its scope."""

    verb: str
    sentence: str
    action: str
    preview: LimitPreview | None = None


def _reason_form(data: Any = None, **initial: Any) -> ReasonForm:
    return ReasonForm(data, initial=initial, label_suffix="")


def _confirm(
    request: HttpRequest,
    page: LimitPage,
    asked: _Asked,
    form: Callable[..., ReasonForm],
    change: Callable[[Mapping[str, Any]], Any],
    done: str,
) -> HttpResponse:
    """Show the consequence and the form, and carry the change out when it is sent."""
    if request.method != "POST":
        return _show(request, page, asked=asked, form=form(seen_revision=page.seen_revision))
    sent = form(request.POST)
    if not sent.is_valid():
        return _show(request, page, 422, asked=asked, form=sent)
    try:
        change(sent.cleaned_data)
    except Stale as error:
        fresh = _page_or_404(request, page.scope, page.name)
        again = form(**sent.cleaned_data | {"seen_revision": fresh.seen_revision})
        return _show(request, fresh, error.status, refusal=str(error), asked=asked, form=again)
    return _tell(request, page, done)


def _actor(request: HttpRequest) -> Actor:
    return Actor.of(cast(User, request.user))


def _page_or_404(request: HttpRequest, scope: str, name: str) -> LimitPage:
    if not limit_page.may_see(request.user, scope, name):
        raise Http404
    try:
        return LimitPage(scope, name, access.everywhere(request.user, "runs.view_auditevent"))
    except KeyError:
        raise Http404 from None


def _may_change(request: HttpRequest, page: LimitPage) -> bool:
    """Whether the person may change these limits; the verb asks again."""
    try:
        limit_services.permit_limits(_actor(request), page.scope, page.name)
    except NotAllowed:
        return False
    return True


def _url(page: LimitPage) -> str:
    return reverse("runs:limit", args=[page.scope, page.name])


def _show(request: HttpRequest, page: LimitPage, status: int = 200, **more: Any) -> HttpResponse:
    context = {
        "page": page,
        "scopes": page.scopes.theirs(request.user),
        "acting": limit_page.acting(limit_page.seen_by(request.user, page.overrides)),
        "standing": limit_page.standing(request.user, page.overrides),
        "may_change": _may_change(request, page),
        "now": page.moment,
    } | more
    return render(request, "runs/limit.html", context, status=status)


def _standing(value: Any) -> dict[str, str]:
    """What a form shows of a limit as it is."""
    if isinstance(value, Rate):
        return {"value": f"{value.count}", "period": f"{value.per.total_seconds():g}"}
    return {"value": "" if value is None else f"{value:g}"}


def _typed(page: LimitPage, kind: Kind, typed: Mapping[str, str]) -> dict[str, Any]:
    """The form with what is typed into it, not checked yet, and what that would do."""
    kept = {name: typed[name] for name in ("value", "reason", "minutes", "period") if typed.get(name)}
    form = LimitForm(
        kind, page.moment, **{"seen_revision": page.seen_revision, "value": "", "reason": ""} | kept
    )
    return {"form": form, "preview": _preview(page, kind, typed)}


def _preview(page: LimitPage, kind: Kind, typed: Mapping[str, str]) -> LimitPreview | None:
    """What the typed value would do; None while it is no value."""
    given = {name: typed[name] for name in ("value", "period") if name in typed}
    form = LimitForm(kind, page.moment, given | {"limit": kind.column, "seen_revision": "0", "reason": "-"})
    if "value" in form.errors or "period" in form.errors:
        return None
    return services.preview_set_limits(page.scope, page.name, acting=page.overrides, **form.values)


def _done_before(request: HttpRequest, page: LimitPage, values: Mapping[str, Any]) -> bool:
    """Whether the same person has just set the same value: a double click."""
    policy = page.policy
    return (
        policy is not None
        and policy.changed_by == _actor(request).name
        and all(getattr(policy, column) == value for column, value in values.items())
    )


def _tell(
    request: HttpRequest, page: LimitPage, sentence: str, *, changed: bool = True
) -> HttpResponseRedirect:
    (messages.success if changed else messages.info)(request, sentence)
    return HttpResponseRedirect(_url(page))
