"""The verbs on a run: each has a page that says what it would do, and does it when that page's form is sent."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from runs import clock, selectors, services
from runs.errors import Conflict, Invalid, StateMismatch
from runs.forms import RetryForm, SignalForm, VerbForm, with_seen
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.services.verb import Consequence, require
from runs.views import page
from runs.views.acting import actor

#: Source of signals that people send from the console.
CONSOLE = "console"


@dataclass(frozen=True)
class Sheet:
    """The page of one verb. `preview` raises StateMismatch where the verb would be refused."""

    title: str
    button: str
    preview: Callable[[Run], Consequence]
    note: str = ""
    danger: bool = False
    bare: bool = False
    """It touches no effect: the preview is its sentence alone."""


def found(run_id: uuid.UUID) -> Run:
    try:
        return Run.objects.get(pk=run_id)
    except Run.DoesNotExist:
        raise Http404 from None


def sheet(
    request: HttpRequest, run: Run, of: Sheet, form: VerbForm, *, refusal: str = "", status: int = 200
) -> HttpResponse:
    """The page of a verb for the run as it is; without the form where the verb does not apply."""
    consequence, why_not = None, ""
    try:
        consequence = of.preview(run)
    except StateMismatch as error:
        why_not = str(error)
    return render(
        request,
        "runs/verb.html",
        {
            **page.head(request, run, selectors.why(run)),
            "sheet": of,
            "consequence": consequence,
            "why_not": why_not,
            "refusal": refusal,
            "form": form,
            "action": request.path,
            "close": reverse("runs:run", args=[run.pk]),
            "now": clock.now(),
        },
        status=status,
    )


def carry_out(
    request: HttpRequest,
    run: Run,
    of: Sheet,
    form: VerbForm,
    verb: Callable[..., Any],
    fresh: Callable[[Run, dict[str, Any]], VerbForm],
) -> HttpResponse:
    """Send the form to the verb: redirect to the run with what was done, or show the page again with why not.

    After a refusal over the run's state (409) the page shows the run as it is now, with what was typed.
    """
    if not form.is_valid():
        return sheet(request, run, of, form, status=422)
    try:
        sentence = verb(**form.arguments())
    except (StateMismatch, Conflict) as error:
        typed = {name: form.data.get(name, "") for name in form.fields if name != "seen_version"}
        now = found(run.pk)
        return sheet(request, now, of, fresh(now, typed), refusal=str(error), status=error.status)
    except Invalid as error:
        form.add_error(None, str(error))
        return sheet(request, run, of, form, status=422)
    messages.success(request, sentence)
    return redirect("runs:run", run.pk)


# --- retry -----------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@permission_required("runs.retry_run", raise_exception=True)
def retry(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Let a failed run go on where it failed."""
    run, by = found(run_id), actor(request)
    of = Sheet(
        "Retry in place",
        f"Retry step {run.step}",
        _preview_retry,
        "in the same visit; what is recorded holds",
    )
    if request.method == "GET":
        return sheet(request, run, of, _retry_form(run, {}))
    form = RetryForm(request.POST, deadline_passed=_deadline_passed(run))
    return carry_out(
        request, run, of, form, lambda **given: services.retry(by, run_id, **given).sentence, _retry_form
    )


def _preview_retry(run: Run) -> Consequence:
    require(run, "retry")
    preview = services.preview_retry(run)
    # The verb speaks of operations; the body around them runs again in any case.
    return replace(preview, again=(f"step {run.step}, given the answers that are recorded", *preview.again))


def _deadline_passed(run: Run) -> bool:
    return run.deadline_at is not None and run.deadline_at <= clock.now()


def _retry_form(run: Run, typed: dict[str, Any]) -> VerbForm:
    return RetryForm(initial=with_seen(run, **typed), deadline_passed=_deadline_passed(run))


# --- cancel ----------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@permission_required("runs.cancel_run", raise_exception=True)
def cancel(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Ask for the run's end."""
    run, by = found(run_id), actor(request)
    of = Sheet("Cancel", "Cancel the run", _preview_cancel, danger=True)
    if request.method == "GET":
        return sheet(request, run, of, _plain_form(run, {}))
    return carry_out(
        request,
        run,
        of,
        VerbForm(request.POST),
        lambda **given: services.cancel(by, run_id, **given).sentence,
        _plain_form,
    )


def _preview_cancel(run: Run) -> Consequence:
    if run.is_terminal:
        raise StateMismatch(
            f"this run is {run.get_status_display().lower()}: there is nothing left to cancel"
        )
    if run.cancel_requested_at is not None:
        raise StateMismatch(f"{run.cancel_requested_by} has already asked for the cancel")
    return services.preview_cancel(run)


def _plain_form(run: Run, typed: dict[str, Any]) -> VerbForm:
    return VerbForm(initial=with_seen(run, **typed))


# --- force-resume ----------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@permission_required("runs.force_resume_run", raise_exception=True)
def force_resume(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Let a worker look at the run now, whatever it waits for."""
    run, by = found(run_id), actor(request)
    of = Sheet("Force resume", "Force the run to resume", services.preview_force_resume)
    if request.method == "GET":
        return sheet(request, run, of, _plain_form(run, {}))
    return carry_out(
        request,
        run,
        of,
        VerbForm(request.POST),
        lambda **given: services.force_resume(by, run_id, **given).sentence,
        _plain_form,
    )


# --- signal ----------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@permission_required("runs.signal_run", raise_exception=True)
def signal(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Send the run a signal, as a provider would."""
    run, by = found(run_id), actor(request)
    asked = request.POST.get("name") or _waited_for(run)
    of = Sheet(
        "Send a signal",
        "Send the signal",
        lambda run: services.preview_signal(run, asked or "this signal"),
        bare=True,
    )
    if request.method == "GET":
        return sheet(request, run, of, _signal_form(run, {"name": asked}))

    def send(**given: Any) -> str:
        return services.receive_signal(by, run_id=run_id, source=CONSOLE, **given).sentence

    form = SignalForm(request.POST)
    return carry_out(request, run, of, form, lambda **given: f"The signal was {send(**given)}.", _signal_form)


def _waited_for(run: Run) -> str:
    """Name of the signal that the run waits for, if it waits for one."""
    waits = Operation.objects.filter(run_id=run.pk, kind=Kind.SIGNAL, status=OpStatus.OPEN)
    return waits.order_by("started_at").values_list("name", flat=True).first() or ""


def _signal_form(run: Run, typed: dict[str, Any]) -> VerbForm:
    # The page brings the id along, so that a form that is sent twice is one signal.
    return SignalForm(initial=with_seen(run, **{"external_id": str(new_id()), **typed}))
