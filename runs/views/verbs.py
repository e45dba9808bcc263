"""The verbs on a run: each has a page that says what it would do, and does it when that page's form is sent."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from runs import access, clock, content, services
from runs.errors import Conflict, Invalid, StateMismatch
from runs.forms import RetryForm, SignalForm, VerbForm, with_seen
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.pages import limit_page, reasons
from runs.services.force_resume import owner_of
from runs.services.verb import Consequence, Line, require
from runs.states import Status
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
    facts: Sequence[tuple[str, str]] = ()
    """What a person should know before, as label and value."""


def sheet(
    request: HttpRequest,
    run: Run,
    of: Sheet,
    form: VerbForm,
    *,
    refusal: str = "",
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    """The page of a verb for the run as it is; without the form where the verb does not apply."""
    consequence, why_not = None, ""
    try:
        consequence = of.preview(run)
    except (StateMismatch, Invalid) as error:
        why_not = str(error)
    moment = clock.now()
    # Why it stands may be told with what failed: as this person may see the run.
    shown = content.shown(request.user, run)
    facts = reasons.Facts.gather([shown], request.user, now=moment, overrides=limit_page.read_for(request))
    return render(
        request,
        "runs/verb.html",
        {
            **page.head(request, run, facts.why(shown)),
            "sheet": of,
            "consequence": consequence,
            "why_not": why_not,
            "refusal": refusal,
            "form": form,
            "confirmed": confirmed(request),
            "action": request.path,
            "close": reverse("runs:run", args=[run.pk]),
            "now": moment,
            **more,
        },
        status=status,
    )


def confirmed(request: HttpRequest) -> set[uuid.UUID]:
    """The operations that a person has ticked: each is to happen again."""
    found = set()
    for text in request.POST.getlist("confirm"):
        try:
            found.add(uuid.UUID(text))
        except ValueError:
            continue  # made by hand; what is missing is asked for
    return found


def seen_plan(request: HttpRequest) -> str | None:
    """The digest of the preview that the person saw; None where the form was sent without a page."""
    return request.POST.get("seen_plan") or None


def carry_out(
    request: HttpRequest,
    run: Run,
    of: Sheet,
    form: VerbForm,
    verb: Callable[..., Any],
    fresh: Callable[[Run, dict[str, Any]], VerbForm],
    *,
    leads_to: Callable[[Any], str] | None = None,
    **more: Any,
) -> HttpResponse:
    """Send the form to the verb: redirect to the run with what was done, or show the page again with why not.

    After a refusal over the run's state (409) the page shows the run as it is now, with what was typed. `verb` returns the
    sentence, or something that `leads_to` takes to the address of another page and that has the sentence.
    """
    if not form.is_valid():
        return sheet(request, run, of, form, status=422, **more)
    try:
        done = verb(**form.arguments())
    except (StateMismatch, Conflict) as error:
        typed = {name: form.data.get(name, "") for name in form.fields if name != "seen_version"}
        now = Run.objects.get(pk=run.pk)
        return sheet(request, now, of, fresh(now, typed), refusal=str(error), status=error.status, **more)
    except Invalid as error:
        form.add_error(None, str(error))
        return sheet(request, run, of, form, status=422, **more)
    messages.success(request, done if isinstance(done, str) else done.sentence)
    return redirect(leads_to(done)) if leads_to else redirect("runs:run", run.pk)


# --- retry -----------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@access.required("runs.retry_run")
def retry(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Let a failed run go on where it failed."""
    run, by = access.run_or_404(request.user, run_id, "runs.retry_run"), actor(request)
    now = run.status == Status.RETRYING
    of = Sheet(
        "Retry now" if now else "Retry in place",
        f"Retry step {run.step} now" if now else f"Retry step {run.step}",
        lambda run: _preview_retry(content.shown(request.user, run)),
        "in the same visit; what is recorded holds",
    )
    if request.method == "GET":
        return sheet(request, run, of, _retry_form(run, {}))
    form = RetryForm(request.POST, deadline_passed=_deadline_passed(run))
    return carry_out(
        request,
        run,
        of,
        form,
        lambda **given: services.retry(by, run_id, seen_plan=seen_plan(request), **given).sentence,
        _retry_form,
    )


def _preview_retry(run: Run) -> Consequence:
    if run.status != Status.RETRYING:
        require(run, "retry")
    preview = services.preview_retry(run)
    # The verb speaks of operations; the body around them runs again in any case.
    return replace(
        preview, again=(Line(f"step {run.step}", why="given the answers that are recorded"), *preview.again)
    )


def _deadline_passed(run: Run) -> bool:
    late = run.deadline_at is not None and run.deadline_at <= clock.now()
    return late and run.status != Status.RETRYING


def _retry_form(run: Run, typed: dict[str, Any]) -> VerbForm:
    return RetryForm(initial=with_seen(run, **typed), deadline_passed=_deadline_passed(run))


# --- cancel ----------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@access.required("runs.cancel_run")
def cancel(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Ask for the run's end."""
    run, by = access.run_or_404(request.user, run_id, "runs.cancel_run"), actor(request)
    of = Sheet("Cancel", "Cancel the run", _preview_cancel, danger=True)
    told: dict[str, Any] = {"progress": services.cancel_progress(run)}
    if request.method == "GET":
        return sheet(request, run, of, _plain_form(run, {}), **told)
    return carry_out(
        request,
        run,
        of,
        VerbForm(request.POST),
        lambda **given: services.cancel(by, run_id, seen_plan=seen_plan(request), **given).sentence,
        _plain_form,
        **told,
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
@access.required("runs.force_resume_run")
def force_resume(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Let a worker look at the run now, whatever it waits for."""
    run, by = access.run_or_404(request.user, run_id, "runs.force_resume_run"), actor(request)
    of = Sheet(
        "Force resume", "Force the run to resume", services.preview_force_resume, facts=_facts_of_owner(run)
    )
    if request.method == "GET":
        return sheet(request, run, of, _plain_form(run, {}))
    return carry_out(
        request,
        run,
        of,
        VerbForm(request.POST),
        lambda **given: services.force_resume(by, run_id, seen_plan=seen_plan(request), **given).sentence,
        _plain_form,
    )


def _facts_of_owner(run: Run) -> Sequence[tuple[str, str]]:
    """Whether the worker that has the run may still act, which is what a person must know before taking it away."""
    if run.status != Status.RUNNING or run.worker_id is None:
        return ()
    owner = owner_of(run)
    may_act = (
        "no: its process has ended"
        if owner.reaped
        else "yes"
        if not owner.dead
        else "nobody knows: it is silent"
    )
    return (
        ("Worker", str(run.worker_id)[:13]),
        ("May it still be running?", may_act),
        ("Its lease", "over" if owner.dead else "good"),
        ("Time of the attempt", "over" if owner.overdue else "not over"),
        (
            "Epoch",
            f"{run.epoch} now, {run.epoch + 1} with the next claim: what the old worker writes is refused then",
        ),
    )


# --- kill ------------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@access.required("runs.kill_run")
def kill(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """End the run at once, whatever it is doing."""
    run, by = access.run_or_404(request.user, run_id, "runs.kill_run"), actor(request)
    of = Sheet(
        "Kill",
        "Kill the run",
        services.preview_kill,
        "for a run that a cancel does not end in time",
        danger=True,
    )
    if request.method == "GET":
        return sheet(request, run, of, _plain_form(run, {}))
    return carry_out(
        request,
        run,
        of,
        VerbForm(request.POST),
        lambda **given: services.kill(by, run_id, seen_plan=seen_plan(request), **given).sentence,
        _plain_form,
    )


# --- signal ----------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@access.required("runs.signal_run")
def signal(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Send the run a signal, as a provider would."""
    run, by = access.run_or_404(request.user, run_id, "runs.signal_run"), actor(request)
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
