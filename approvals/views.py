"""Pages of approvals: what waits for me, one request, and the two verbs on it."""

import uuid
from datetime import datetime
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import prefetch_related_objects
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agentops import sign_ins
from agentops.console import polling
from agentops.console.numbers import number_of
from approvals import asking, selectors, services
from approvals.decision import Decision
from approvals.forms import AskForm, EditForm, VerdictForm
from approvals.inbox.case import Case
from approvals.inbox.listing import Entry, Listing, address, as_sentence, key_of, key_of_approval, read
from approvals.inbox.worklist import Line, line
from approvals.models import Approval, ApprovalVersion, ItemKind
from runs import access, clock, codec
from runs.errors import Invalid, NotAllowed, StateMismatch
from runs.lifecycle import Actor
from runs.models.run import new_id
from runs.services.verb import Done

may_view = access.required("approvals.view_approval")
may_see_payload = access.required("runs.view_payload")


# --- lists -------------------------------------------------------------------------------------------------------------


@require_safe
@may_view
def inbox(request: HttpRequest) -> HttpResponse:
    """What waits for this person, and beside it the first request of that."""
    listing = Listing(user_of(request), request.GET)
    first = listing.entries[0].line if listing.entries else None
    found = _one(request, first.item) if first is not None and first.kind == ItemKind.APPROVAL else None
    now: datetime = clock.now() if found is None else found.read_at  # type: ignore[attr-defined]
    listing.now = now
    context: dict[str, Any] = {"listing": listing, "now": now, "alone": True}
    if first is not None:
        listing.selected = key_of(first)
    if first is not None and found is not None:
        context |= _decision_context(request, found, now, first)
    elif first is not None:
        case = Case(first, user_of(request), now)
        context |= {"case": case} | handling_context(request, first)
    return render(request, "approvals/inbox.html", context)


@require_safe
@may_view
def poll_list(request: HttpRequest) -> HttpResponse:
    """The list alone, for polling; `selected` is the item that is open beside it."""
    now, user = clock.now(), user_of(request)
    kind, _, item = request.GET.get("selected", "").partition(".")
    which = uuid_of(item)
    known = None if which is None or kind not in ItemKind.values else line(user, ItemKind(kind), which)
    listing = Listing(user, request.GET, now, None if known is None else key_of(known))
    context = {"listing": listing, "ptag": listing.tag, "now": now}
    return polling.fragment(request, "approvals/list.html", context)


# --- one request -------------------------------------------------------------------------------------------------------


@require_safe
@may_view
def approval(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """What the agent wants to do, and the form to decide on it."""
    return page(request, approval_id)


@require_safe
@may_view
def poll_approval(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """The decision alone, for polling; `seen` is what the page was loaded with."""
    version, _, state = request.GET.get("seen", "").partition(".")
    number = number_of(version)
    seen = None if number is None else (number, state)
    context = _decision_context(request, _one(request, approval_id), clock.now(), seen=seen)
    context["ptag"] = context["decision"].tag
    return polling.fragment(request, "approvals/decision.html", context)


@require_safe
@may_view
@may_see_payload
def version(request: HttpRequest, approval_id: uuid.UUID, number: int) -> HttpResponse:
    """One version's whole payload, as JSON."""
    _check_reads(request, _one(request, approval_id))
    found = get_object_or_404(ApprovalVersion, approval_id=approval_id, version=number)
    return JsonResponse(codec.plain(found.payload), safe=False, json_dumps_params={"indent": 2})


@require_POST
@may_view
def decide(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """Approve or reject the version that was shown."""
    found = _to_decide(request, approval_id)
    form = VerdictForm(request.POST)
    if not form.is_valid():
        if form.data.get("version") != str(found.version):
            return _refused(request, approval_id, CHANGED, 409, verdict=form)
        return _refused(request, approval_id, _only_hidden(form), 422, verdict=form)
    try:
        at = sign_ins.signed_in_at(request)
        done = services.decide(Actor.of(user_of(request)), approval_id, signed_in_at=at, **form.cleaned_data)
    except StateMismatch as error:
        return _refused(request, approval_id, str(error), error.status, verdict=form)
    return _done(request, approval_id, done)


@require_http_methods(["GET", "HEAD", "POST"])
@may_view
@may_see_payload
def edit(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """The payload as a form; sending it makes a new version, `look` only shows what that would change."""
    found = _to_decide(request, approval_id)
    _check_reads(request, found)
    if request.method != "POST":
        return page(request, approval_id, found, edit=EditForm(found))
    form = EditForm(found, request.POST)
    if form.data.get("version") != str(found.version):
        return _refused(request, approval_id, CHANGED, 409)
    if not form.is_valid():
        return page(request, approval_id, found, 422, edit=form)
    if "look" in request.POST:
        return page(request, approval_id, found, edit=form, changes=form.changes)
    given = {name: form.cleaned_data[name] for name in ("version", "arguments", "reason")}
    try:
        done = services.edit(Actor.of(user_of(request)), approval_id, **given)
    except Invalid as error:
        form.add_error(None, as_sentence(str(error)))
        return page(request, approval_id, found, 422, edit=form)
    except StateMismatch as error:
        return _refused(request, approval_id, str(error), error.status)
    return _done(request, approval_id, done)


@require_POST
@may_view
def ask(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """Ask the agent about the version that was shown; the request stays open."""
    _to_decide(request, approval_id)
    form = AskForm(request.POST)
    if not form.is_valid():
        why = "Write what you want to know: the agent reads it." if "reason" in form.errors else CHANGED
        return _refused(request, approval_id, why, 422, verdict=form)
    given = {name: form.cleaned_data[name] for name in ("version", "digest", "token")}
    try:
        done = asking.ask(Actor.of(user_of(request)), approval_id, text=form.cleaned_data["reason"], **given)
    except (StateMismatch, Invalid) as error:
        status = 422 if isinstance(error, Invalid) else error.status
        return _refused(request, approval_id, str(error), status, verdict=form)
    return _done(request, approval_id, done)


CHANGED = "this request has changed since the page was loaded: read the new version and decide on that"


def _to_decide(request: HttpRequest, approval_id: uuid.UUID) -> Approval:
    """The approval. Raises NotAllowed before anything about it is said to somebody who may not decide on it."""
    found = _one(request, approval_id)
    if why := selectors.why_not_decide(user_of(request), found):
        raise NotAllowed(why)
    return found


# --- shared ------------------------------------------------------------------------------------------------------------


def user_of(request: HttpRequest) -> User:
    """Who asks, with the groups that every row of a list is compared with."""
    user = cast(User, request.user)
    prefetch_related_objects([user], "groups")
    return user


def uuid_of(text: str) -> uuid.UUID | None:
    """An id as an address holds it; None for what is none."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _one(request: HttpRequest, approval_id: uuid.UUID) -> Approval:
    try:
        return selectors.one(approval_id, user_of(request))
    except Approval.DoesNotExist:
        raise Http404 from None


def _check_reads(request: HttpRequest, found: Approval) -> None:
    """Raise PermissionDenied for somebody who may not see what is asked for."""
    if not access.may_see_payloads(request.user, found.run):
        raise PermissionDenied


def _decision_context(
    request: HttpRequest,
    found: Approval,
    now: datetime,
    known: Line | None = None,
    *,
    seen: tuple[int, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    user = user_of(request)
    known = known or line(user, ItemKind.APPROVAL, found.pk)
    assert known is not None, "its approval is there"
    compared = number_of(request.GET.get("base", ""))
    decision = Decision(found, user, now, base=compared, seen=seen, line=known)
    # What was typed before the password was asked for again.
    reason = sign_ins.typed_before(request).get("reason", "")
    verdict = VerdictForm(initial={"version": found.version, "digest": found.digest, "reason": reason})
    context = {"decision": decision, "verdict": verdict, "now": now}
    return context | handling_context(request, known) | more


#: Values of the snooze form: minutes from now.
SNOOZES = (
    ("30", "30 minutes"),
    ("120", "2 hours"),
    ("480", "8 hours"),
    ("1440", "a day"),
    ("4320", "3 days"),
)


def handling_context(request: HttpRequest, known: Line) -> dict[str, Any]:
    """What the bar over an item needs: who has it, and the forms to hand it on, put it away or say something."""
    return {
        "handled": Entry(known, user_of(request)),
        "may_handle": access.may(request.user, "approvals.handle_item", known.run),
        "query": address(read(request.GET)),
        "comment_token": new_id(),
        "snoozes": SNOOZES,
    }


def page(
    request: HttpRequest,
    approval_id: uuid.UUID,
    found: Approval | None = None,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    found = found or _one(request, approval_id)
    now: datetime = found.read_at  # type: ignore[attr-defined]
    listing = Listing(user_of(request), request.GET, now, key_of_approval(found))
    context = _decision_context(request, found, now, listing.selected_line, **more)
    context["listing"] = listing
    return render(request, "approvals/inbox.html", context, status=status)


def _refused(
    request: HttpRequest,
    approval_id: uuid.UUID,
    sentence: str,
    status: int,
    *,
    verdict: VerdictForm | AskForm | None = None,
) -> HttpResponse:
    """The request as it is now, with why nothing was done; what was typed as a reason stays."""
    found = _one(request, approval_id)
    fresh = VerdictForm(
        initial={
            "version": found.version,
            "digest": found.digest,
            "reason": verdict.data.get("reason", "") if verdict else "",
        }
    )
    errors = list(verdict.errors.get("reason", [])) if verdict and status == 422 else []
    more = {"verdict": fresh, "reason_errors": errors, "refusal": as_sentence(sentence)}
    return page(request, approval_id, found, status, **more)


def _only_hidden(form: VerdictForm) -> str:
    """What to say of a form that lost its hidden fields or its verdict: no person did that."""
    return "" if list(form.errors) == ["reason"] else "the form was not complete"


def _done(request: HttpRequest, approval_id: uuid.UUID, done: Done) -> HttpResponse:
    tell = messages.success if done.changed else messages.info
    tell(request, done.sentence)
    return redirect(reverse("approvals:approval", args=[approval_id]))
