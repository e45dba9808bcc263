"""Pages on limits: what acts, and the verbs that change it."""

from collections.abc import Mapping
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agentops.console.polling import is_poll
from runs import clock, limit_page, policies, services
from runs.errors import Invalid, Stale
from runs.lifecycle import Actor
from runs.limit_page import KINDS, Kind, LimitPage, Scopes
from runs.models import Policy
from runs.services.verb import Consequence

may_view = permission_required("runs.view_policy", raise_exception=True)
may_change = permission_required("runs.change_limits", raise_exception=True)


class ReasonForm(forms.Form):
    """What pausing and resuming ask for."""

    seen_revision = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    reason = forms.CharField(max_length=500, help_text="Written to the history with your name.")


class LimitForm(ReasonForm):
    """A new value for one limit; none gives it back to the wider scope."""

    limit = forms.ChoiceField(choices=[(column, column) for column in KINDS], widget=forms.HiddenInput)

    def __init__(self, kind: Kind, data: Any = None, **initial: Any) -> None:
        super().__init__(data, initial={"limit": kind.column} | initial, label_suffix="")
        make = forms.IntegerField if kind.whole else forms.FloatField
        mode = "numeric" if kind.whole else "decimal"
        self.fields["value"] = make(
            required=False,
            label="New limit",
            min_value=cast(int, kind.least),
            max_value=cast(int, kind.most),
            widget=forms.TextInput({"inputmode": mode, "autocomplete": "off"}),
        )


@require_safe
@may_view
def limits(request: HttpRequest) -> HttpResponse:
    """What is overridden now, and the newest changes; `scope` leads to one scope (the picker of narrow screens)."""
    if chosen := request.GET.get("scope"):
        scope, _, name = chosen.partition(":")
        return redirect(_url(_page_or_404(request, scope, name)))
    every = policies.load()
    context = {
        "scopes": Scopes.of(every),
        "overrides": limit_page.overrides(every),
        "paused": [policy for _, policy in sorted(every.items()) if policy.paused],
        "with_history": request.user.has_perm("runs.view_auditevent"),
        "history": limit_page.history() if request.user.has_perm("runs.view_auditevent") else [],
        "now": clock.now(),
    }
    return render(request, "runs/limits.html", context)


@require_safe
@may_view
def limit(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """The limits of one workflow, step or tool; `change` opens the form for one of them, `value` previews it."""
    page = _page_or_404(request, scope, name)
    kind = KINDS.get(request.GET.get("change", ""))
    if kind is None or not request.user.has_perm("runs.change_limits"):
        return _show(request, page)
    row = next(row for row in page.rows if row.kind == kind)
    typed = {"value": "" if row.value is None else f"{row.value:g}"} | request.GET.dict()
    more = {"editing": kind} | _typed(page, kind, typed)
    if is_poll(request):
        return render(request, "runs/limit.html#preview", more | {"now": clock.now()})
    return _show(request, page, **more)


@require_POST
@may_change
def set_limit(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """Override one limit, or give it back; `preview` only counts what that would do, and keeps what is typed out of addresses."""
    page = _page_or_404(request, scope, name)
    kind = KINDS.get(request.POST.get("limit", ""))
    if kind is None:
        raise Invalid(f"there is no limit {request.POST.get('limit', '')}")
    if "preview" in request.POST:
        return _show(request, page, editing=kind, **_typed(page, kind, request.POST))
    form = LimitForm(kind, request.POST)
    if not form.is_valid():
        return _show(request, page, 422, editing=kind, form=form)
    value, seen = form.cleaned_data["value"], form.cleaned_data["seen_revision"]
    try:
        services.set_limits(
            _actor(request),
            scope,
            name,
            seen_revision=seen,
            reason=form.cleaned_data["reason"],
            **{kind.column: value},
        )
    except Stale as error:
        fresh = _page_or_404(request, scope, name)
        if _done_before(request, fresh, kind.column, value):
            return _tell(
                request, fresh, f"{page.label(kind)} of {page.title} was already set.", changed=False
            )
        again = LimitForm(
            kind,
            seen_revision=fresh.seen_revision,
            value=request.POST["value"],
            reason=request.POST["reason"],
        )
        more = {"editing": kind, "form": again, "preview": _preview(fresh, kind, request.POST["value"])}
        return _show(request, fresh, error.status, refusal=str(error), **more)
    except Invalid as error:
        form.add_error("value", str(error))
        return _show(request, page, 422, editing=kind, form=form)
    now = kind.text(value) if value is not None else "what the code or the workflow says"
    return _tell(request, page, f"{page.label(kind)} of {page.title} is now {now}.")


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def pause(request: HttpRequest, workflow: str) -> HttpResponse:
    """Let no worker begin anything of a workflow."""
    return _pause_or_resume(request, workflow, pausing=True)


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def resume(request: HttpRequest, workflow: str) -> HttpResponse:
    """Lift a pause."""
    return _pause_or_resume(request, workflow, pausing=False)


def _pause_or_resume(request: HttpRequest, workflow: str, *, pausing: bool) -> HttpResponse:
    verb, preview = (
        (services.pause_workflow, services.preview_pause_workflow)
        if pausing
        else (services.resume_workflow, services.preview_resume_workflow)
    )
    page = _page_or_404(request, Policy.Scope.WORKFLOW, workflow)
    more: dict[str, Any] = {"pausing": pausing, "resuming": not pausing, "preview": preview(workflow)}
    said = "paused" if pausing else "resumed"
    if (page.pause is not None) == pausing:
        return _tell(request, page, f"{workflow} was already {said}.", changed=False)
    if request.method != "POST":
        form = ReasonForm(initial={"seen_revision": page.seen_revision}, label_suffix="")
        return _show(request, page, form=form, **more)
    form = ReasonForm(request.POST, label_suffix="")
    if not form.is_valid():
        return _show(request, page, 422, form=form, **more)
    try:
        verb(_actor(request), workflow, **form.cleaned_data)
    except Stale as error:
        fresh = _page_or_404(request, Policy.Scope.WORKFLOW, workflow)
        kept = {"seen_revision": fresh.seen_revision, "reason": form.cleaned_data["reason"]}
        again = ReasonForm(initial=kept, label_suffix="")
        return _show(request, fresh, error.status, refusal=str(error), form=again, **more)
    return _tell(request, page, f"{workflow} is {said}.")


# --- shared ------------------------------------------------------------------------------------------------------------


def _actor(request: HttpRequest) -> Actor:
    return Actor.of(cast(User, request.user))


def _page_or_404(request: HttpRequest, scope: str, name: str) -> LimitPage:
    try:
        return LimitPage(scope, name, request.user.has_perm("runs.view_auditevent"))
    except KeyError:
        raise Http404 from None


def _url(page: LimitPage) -> str:
    return reverse("runs:limit", args=[page.scope, page.name])


def _show(request: HttpRequest, page: LimitPage, status: int = 200, **more: Any) -> HttpResponse:
    context = {
        "page": page,
        "scopes": page.scopes,
        "may_change": request.user.has_perm("runs.change_limits"),
        "now": clock.now(),
    } | more
    return render(request, "runs/limit.html", context, status=status)


def _typed(page: LimitPage, kind: Kind, typed: Mapping[str, str]) -> dict[str, Any]:
    """The form with what is typed into it, not checked yet, and what that would do."""
    value = typed.get("value", "")
    form = LimitForm(kind, seen_revision=page.seen_revision, value=value, reason=typed.get("reason", ""))
    return {"form": form, "preview": _preview(page, kind, value)}


def _preview(page: LimitPage, kind: Kind, typed: str) -> Consequence | None:
    """What the typed value would do; None while it is no value."""
    field = LimitForm(kind).fields["value"]
    try:
        value = field.clean(typed)
    except forms.ValidationError:
        return None
    return services.preview_set_limits(page.scope, page.name, **{kind.column: value})


def _done_before(request: HttpRequest, page: LimitPage, column: str, value: float | None) -> bool:
    """Whether the same person has just set the same value: a double click."""
    policy = page.policy
    return (
        policy is not None and policy.changed_by == _actor(request).name and getattr(policy, column) == value
    )


def _tell(
    request: HttpRequest, page: LimitPage, sentence: str, *, changed: bool = True
) -> HttpResponseRedirect:
    (messages.success if changed else messages.info)(request, sentence)
    return HttpResponseRedirect(_url(page))
