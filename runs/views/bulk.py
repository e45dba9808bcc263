"""Pages of bulks: the list, a new one, one with its progress and its runs, and the verbs on it."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from agentops.console.filters import Choice, Filter, link
from agentops.console.paging import page
from agentops.console.polling import fragment, is_poll, tag
from runs import access, clock
from runs.bulk import reading, selection
from runs.bulk.forms import BulkForm, FilterForm, PaceForm
from runs.errors import Conflict, Invalid, NotAllowed, StateMismatch
from runs.models import Bulk
from runs.models.run import new_id
from runs.services import bulk as verbs
from runs.services.bulk_verbs import VERBS
from runs.services.bulk_work import LOOKS, ROOM, usable
from runs.views.acting import actor


@require_safe
@access.required("runs.view_run")
def bulks(request: HttpRequest) -> HttpResponse:
    """All bulks of all people, newest first; the region with them is polled."""
    query = request.GET
    rows = reading.visible(request.user, Bulk.objects.order_by("-id"))
    if (status := query.get("status", "")) in Bulk.Status:
        rows = rows.filter(status=status)
    listed = page(rows, query)
    statuses = [Choice(one.value, one.label) for one in Bulk.Status]
    context: dict[str, Any] = {
        "bulks": [(made, reading.title(made), reading.shares(made)) for made in listed.rows],
        "page": listed,
        "chips": [Filter("status", "Status", statuses, status)],
        "narrowed": bool(status),
        "may_make": may_make(request),
        "now": clock.now(),
        "ptag": tag(
            [(made.pk, made.revision, made.handled, made.looked, made.total) for made in listed.rows]
        ),
    }
    template = "runs/bulks.html#bulks" if is_poll(request) else "runs/bulks.html"
    return fragment(request, template, context)


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.bulk")
def new(request: HttpRequest) -> HttpResponse:
    """Choose by a filter, which is the address; then say why, and have it counted."""
    if request.method != "POST":
        given = request.GET.copy()
        given.setdefault("verb", Bulk.Verb.RETRY)
        return _new(
            request, FilterForm(given), BulkForm(initial={"bulk_id": new_id()}, verb=str(given["verb"]))
        )
    chosen, form = FilterForm(request.POST), BulkForm(request.POST, verb=request.POST.get("verb", ""))
    if not (form.is_valid() & chosen.is_valid()):
        return _new(request, chosen, form, status=422)
    try:
        done = verbs.create_bulk(
            actor(request), chosen.cleaned_data["verb"], chosen.chosen, **form.cleaned_data
        )
    except (Invalid, Conflict) as error:
        form.add_error(None, str(error))
        return _new(request, chosen, form, status=error.status)
    messages.success(request, done.sentence)
    return redirect("runs:bulk", done.bulk.pk)


def _new(request: HttpRequest, chosen: FilterForm, form: BulkForm, *, status: int = 200) -> HttpResponse:
    who, preview = actor(request), None
    if chosen.is_valid():
        verb = chosen.cleaned_data["verb"]
        verbs.permit_part(who, verb)
        preview = selection.preview(chosen.chosen, verb, usable(verb, who), request.user)
    context = {
        "chosen": chosen,
        "form": form,
        "preview": preview,
        "verb": VERBS[chosen.cleaned_data["verb"]] if preview else None,
        "words": chosen.chosen.words() if preview else [],
        "among": selection.COUNTED_AMONG,
        "looks": LOOKS,
        "now": clock.now(),
    }
    return render(request, "runs/bulk_new.html", context, status=status)


@require_safe
@access.required("runs.view_run")
def one(request: HttpRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """One bulk: what is true of it, its numbers, its runs."""
    return _show(request, _found(request, bulk_id))


# --- verbs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sheet:
    """The page of one verb on a bulk; it opens in place."""

    url: str
    name: str
    title: str
    button: str
    sentence: str
    asks: tuple[str, ...] = ()
    danger: bool = False
    guarded: bool = True


def _sheet(made: Bulk, name: str) -> Sheet:
    left = reading.runs(made.left)
    are_left = f"{left} {reading.are(made.left)} left"
    past, url = VERBS[made.verb].past, reverse(f"runs:bulk_{name}", args=[made.pk])
    match name:
        case "start":
            first = reading.runs(min(made.canary, made.left))
            said = "The first ones go, the oldest runs; then it waits until somebody has looked at what became of them."
            return Sheet(url, name, "Start", f"Start with {first}", said, ("canary", "rate"))
        case "continue":
            took = reading.duration(made.left, made.rate)
            said = f"The other {left} go, which takes {took} at {made.rate:,} a minute. Runs that others start go first."
            return Sheet(url, name, "Go on", f"Go on with {left}", said, ("rate",))
        case "pause":
            said = f"No further run is touched until somebody resumes it; {are_left}. What is {past} goes on."
            return Sheet(url, name, "Pause", "Pause the bulk", said, guarded=False)
        case "resume":
            said = f"It goes on with {left}, and acts with your permissions from now on."
            return Sheet(url, name, "Resume", "Resume the bulk", said, ("rate",))
    said = f"It ends for good: {are_left} as they are. What is {past} stays so and goes on."
    return Sheet(url, "stop", "Stop", "Stop the bulk", said, danger=True, guarded=False)


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.bulk")
def start(request: HttpRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Let the first runs go."""
    return _carry_out(request, bulk_id, "start", verbs.start_bulk)


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.bulk")
def go_on(request: HttpRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Go on with the rest, after the first runs."""
    return _carry_out(request, bulk_id, "continue", verbs.continue_bulk)


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.bulk")
def pause(request: HttpRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Touch no further run for now."""
    return _carry_out(request, bulk_id, "pause", verbs.pause_bulk)


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.bulk")
def resume(request: HttpRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Lift a pause."""
    return _carry_out(request, bulk_id, "resume", verbs.resume_bulk)


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.bulk")
def stop(request: HttpRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """End it for good."""
    return _carry_out(request, bulk_id, "stop", verbs.stop_bulk)


def _carry_out(
    request: HttpRequest, bulk_id: uuid.UUID, name: str, verb: Callable[..., verbs.BulkDone]
) -> HttpResponse:
    """Show the verb's form in place, or send it to the verb; after a 409 the fresh bulk, with what was typed."""
    made, who = _found(request, bulk_id), actor(request)
    try:
        verbs.permit_on(who, made)
    except NotAllowed as error:
        raise PermissionDenied(str(error)) from None
    sheet = _sheet(made, name)
    if request.method != "POST":
        return _show(request, made, sheet=sheet, form=_pace(made, sheet))
    form = PaceForm(request.POST, only=sheet.asks)
    if not form.is_valid():
        return _show(request, made, 422, sheet=sheet, form=form)
    try:
        done = verb(who, bulk_id, **form.arguments(guarded=sheet.guarded))
    except StateMismatch as error:
        fresh = _found(request, bulk_id)
        typed = {name: value for name, value in request.POST.dict().items() if name in form.fields}
        return _show(
            request,
            fresh,
            error.status,
            refusal=str(error),
            sheet=_sheet(fresh, name),
            form=_pace(fresh, sheet, **typed),
        )
    (messages.success if done.changed else messages.info)(request, done.sentence)
    return redirect("runs:bulk", bulk_id)


def _pace(made: Bulk, sheet: Sheet, **typed: str) -> PaceForm:
    initial: dict[str, Any] = {"canary": made.canary, "rate": made.rate} | typed
    return PaceForm(initial=initial | {"seen_revision": made.revision}, only=sheet.asks)


# --- shared -------------------------------------------------------------------------------------------------------------

#: Verbs that apply in a status, the one that people wait for first.
OFFERED: dict[str, tuple[str, ...]] = {
    Bulk.Status.COUNTING: ("pause", "stop"),
    Bulk.Status.READY: ("start", "stop"),
    Bulk.Status.CANARY: ("pause", "stop"),
    Bulk.Status.REVIEW: ("continue", "stop"),
    Bulk.Status.RUNNING: ("pause", "stop"),
    Bulk.Status.PAUSED: ("resume", "stop"),
}
#: Verbs that are the next thing to do: their form stands on the page without being asked for.
NEXT: dict[str, str] = {Bulk.Status.READY: "start", Bulk.Status.REVIEW: "continue"}
#: Statuses in which it changes by itself.
AT_WORK = (Bulk.Status.COUNTING, Bulk.Status.CANARY, Bulk.Status.RUNNING)


def may_make(request: HttpRequest) -> bool:
    return access.may(request.user, "runs.bulk")


def _found(request: HttpRequest, bulk_id: uuid.UUID) -> Bulk:
    found = reading.visible(request.user, Bulk.objects.filter(pk=bulk_id)).first()
    if found is None:
        raise Http404
    return found


def _show(
    request: HttpRequest,
    made: Bulk,
    status: int = 200,
    *,
    sheet: Sheet | None = None,
    form: PaceForm | None = None,
    refusal: str = "",
) -> HttpResponse:
    query: QueryDict = request.GET
    viewer = cast(User, request.user)
    offered = OFFERED.get(made.status, ()) if reading.may_act(viewer, made) else ()
    if sheet is not None and sheet.name not in offered:
        # It applied when the page was loaded; the refusal says what is true now.
        sheet = form = None
    if sheet is None and (name := NEXT.get(made.status, "")) in offered:
        sheet = _sheet(made, name)
        form = _pace(made, sheet)
    dry = Bulk.Status.COUNTING in (made.status, made.paused_from) or made.status == Bulk.Status.READY
    shown, live = reading.items(made, query, viewer), reading.workers_live()
    context: dict[str, Any] = {
        "bulk": made,
        "title": reading.title(made),
        "headline": reading.headline(made, workers=live),
        "facts": reading.chosen_by(made),
        "shares": reading.shares(made),
        "reasons": reading.reasons(made, query) if dry else [],
        "dry": dry,
        "segments": reading.segments(made, query),
        "items": shown,
        "look": query.get("look", ""),
        "without_look": link(query, look=None),
        "offered": [_sheet(made, name) for name in offered],
        "sheet": sheet,
        "form": form,
        "refusal": refusal,
        "every": _every(made),
        "room": ROOM,
        "now": clock.now(),
        "ptag": tag(
            (
                made.revision,
                made.said,
                made.total,
                made.looked,
                made.handled,
                made.completed,
                made.failed,
                live,
            ),
            [
                (line.item.state, line.item.ended, line.run and (line.run.status, line.run.event_seq))
                for line in shown.lines
            ],
        ),
    }
    if is_poll(request):
        return fragment(request, "runs/bulk.html#bulk", context)
    return render(request, "runs/bulk.html", context, status=status)


def _every(made: Bulk) -> str:
    """How often the page is renewed; "" once nothing changes any more."""
    if made.status in AT_WORK:
        return "2s"
    return "10s" if made.under_way or not made.is_over else ""
