"""Pages of approvals: what waits for me, one request, and the two verbs on it."""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.db.models import prefetch_related_objects
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agentops.console import paging, polling
from approvals import selectors, services
from approvals.decision import Decision, Group, Item, by_urgency, marks
from approvals.forms import EditForm, VerdictForm
from approvals.models import Approval, ApprovalVersion
from runs import clock, codec
from runs.errors import Invalid, NotAllowed, StateMismatch
from runs.lifecycle import Actor
from runs.services.verb import Done

#: Rows of a list; a person who has more waiting decides the oldest deadlines first.
ROWS = 100

may_view = permission_required("approvals.view_approval", raise_exception=True)
may_see_payload = permission_required("runs.view_payload", raise_exception=True)


# --- lists -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """The list at the left: `show` says which one, `pages` lead through what has been decided."""

    show: str
    groups: list[Group]
    count: int
    selected: uuid.UUID | None
    ptag: str
    pages: paging.Page[Approval] | None = None

    @property
    def more(self) -> bool:
        return self.count > ROWS

    @property
    def items(self) -> list[Item]:
        return [item for group in self.groups for item in group.items]

    def beside(self, offset: int) -> Item | None:
        """The item before (-1) or after (1) the selected one."""
        at = next((n for n, item in enumerate(self.items) if item.approval.pk == self.selected), None)
        wanted = at + offset if at is not None else min(0, offset - 1)
        return self.items[wanted] if 0 <= wanted < len(self.items) else None

    @property
    def previous(self) -> Item | None:
        return self.beside(-1)

    @property
    def next(self) -> Item | None:
        return self.beside(1)


SHOWN = ("mine", "others", "decided")


def _listing(request: HttpRequest, now: datetime, selected: uuid.UUID | None = None) -> Listing:
    user, show, pages = _user(request), request.GET.get("show", ""), None
    if show not in SHOWN:
        show = "mine" if user.has_perm("approvals.decide_approval") else "others"
    if show == "decided":
        pages = paging.page(selectors.decided(), request.GET)
        rows = pages.rows
        groups = [Group("Decided", [Item(row) for row in rows])] if rows else []
    elif show == "others":
        rows = list(selectors.others(user)[: ROWS + 1])
        groups = by_urgency(marks(user, rows[:ROWS]), now)
    else:
        rows = list(selectors.inbox(user)[: ROWS + 1])
        groups = by_urgency([Item(row) for row in rows[:ROWS]], now)
    shown = [
        (item.approval.pk, item.approval.version, item.look.word, item.mark, group.title)
        for group in groups
        for item in group.items
    ]
    return Listing(show, groups, len(rows), selected, polling.tag(show, shown), pages)


@require_safe
@may_view
def inbox(request: HttpRequest) -> HttpResponse:
    """What waits for this person, and beside it the first request of that."""
    now = clock.now()
    listing = _listing(request, now)
    context: dict[str, Any] = {"listing": listing, "now": now, "alone": True}
    if listing.items:
        first = listing.items[0].approval.pk
        context["listing"] = replace(listing, selected=first)
        context |= _decision_context(request, selectors.one(first), now)
    return render(request, "approvals/inbox.html", context)


@require_safe
@may_view
def poll_list(request: HttpRequest) -> HttpResponse:
    """The list alone, for polling; `selected` is the request that is open beside it."""
    now = clock.now()
    listing = _listing(request, now, _uuid(request.GET.get("selected", "")))
    context = {"listing": listing, "ptag": listing.ptag, "now": now}
    return polling.fragment(request, "approvals/list.html", context)


# --- one request -------------------------------------------------------------------------------------------------------


@require_safe
@may_view
def approval(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """What the agent wants to do, and the form to decide on it."""
    return _page(request, approval_id)


@require_safe
@may_view
def poll_approval(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """The decision alone, for polling; `seen` is what the page was loaded with."""
    version, _, state = request.GET.get("seen", "").partition(".")
    number = _number(version)
    seen = None if number is None else (number, state)
    context = _decision_context(request, _one(approval_id), clock.now(), seen=seen)
    context["ptag"] = context["decision"].tag
    return polling.fragment(request, "approvals/decision.html", context)


@require_safe
@may_view
@may_see_payload
def version(request: HttpRequest, approval_id: uuid.UUID, number: int) -> HttpResponse:
    """One version's whole payload, as JSON."""
    found = get_object_or_404(ApprovalVersion, approval_id=approval_id, version=number)
    return JsonResponse(codec.plain(found.payload), safe=False, json_dumps_params={"indent": 2})


@require_POST
def decide(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """Approve or reject the version that was shown."""
    found = _to_decide(request, approval_id)
    form = VerdictForm(request.POST)
    if not form.is_valid():
        if form.data.get("version") != str(found.version):
            return _refused(request, approval_id, CHANGED, 409, verdict=form)
        return _refused(request, approval_id, _only_hidden(form), 422, verdict=form)
    try:
        done = services.decide(Actor.of(_user(request)), approval_id, **form.cleaned_data)
    except StateMismatch as error:
        return _refused(request, approval_id, str(error), error.status, verdict=form)
    return _done(request, approval_id, done)


@require_http_methods(["GET", "HEAD", "POST"])
@may_view
@may_see_payload
def edit(request: HttpRequest, approval_id: uuid.UUID) -> HttpResponse:
    """The payload as a form; sending it makes a new version."""
    found = _to_decide(request, approval_id)
    if request.method != "POST":
        return _page(request, approval_id, found, edit=EditForm(found))
    form = EditForm(found, request.POST)
    if form.data.get("version") != str(found.version):
        return _refused(request, approval_id, CHANGED, 409)
    if not form.is_valid():
        return _page(request, approval_id, found, 422, edit=form)
    given = {name: form.cleaned_data[name] for name in ("version", "arguments", "reason")}
    try:
        done = services.edit(Actor.of(_user(request)), approval_id, **given)
    except Invalid as error:
        form.add_error(None, _sentence(str(error)))
        return _page(request, approval_id, found, 422, edit=form)
    except StateMismatch as error:
        return _refused(request, approval_id, str(error), error.status)
    return _done(request, approval_id, done)


CHANGED = "this request has changed since the page was loaded: read the new version and decide on that"


def _to_decide(request: HttpRequest, approval_id: uuid.UUID) -> Approval:
    """The approval. Raises NotAllowed before anything about it is said to somebody who may not decide on it."""
    found = _one(approval_id)
    if why := selectors.why_not_decide(_user(request), found):
        raise NotAllowed(why)
    return found


# --- shared ------------------------------------------------------------------------------------------------------------


def _user(request: HttpRequest) -> User:
    """Who asks, with the groups that every row of a list is compared with."""
    user = cast(User, request.user)
    prefetch_related_objects([user], "groups")
    return user


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _number(text: str) -> int | None:
    """A version's number as an address holds it; None for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _one(approval_id: uuid.UUID) -> Approval:
    try:
        return selectors.one(approval_id)
    except Approval.DoesNotExist:
        raise Http404 from None


def _decision_context(
    request: HttpRequest, found: Approval, now: datetime, *, seen: tuple[int, str] | None = None, **more: Any
) -> dict[str, Any]:
    compared = _number(request.GET.get("base", ""))
    decision = Decision(found, _user(request), now, base=compared, seen=seen)
    verdict = VerdictForm(initial={"version": found.version, "digest": found.digest})
    return {"decision": decision, "verdict": verdict, "now": now} | more


def _page(
    request: HttpRequest,
    approval_id: uuid.UUID,
    found: Approval | None = None,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    now = clock.now()
    context = _decision_context(request, found or _one(approval_id), now, **more)
    context["listing"] = _listing(request, now, approval_id)
    return render(request, "approvals/inbox.html", context, status=status)


def _refused(
    request: HttpRequest,
    approval_id: uuid.UUID,
    sentence: str,
    status: int,
    *,
    verdict: VerdictForm | None = None,
) -> HttpResponse:
    """The request as it is now, with why nothing was done; what was typed as a reason stays."""
    found = _one(approval_id)
    fresh = VerdictForm(
        initial={
            "version": found.version,
            "digest": found.digest,
            "reason": verdict.data.get("reason", "") if verdict else "",
        }
    )
    errors = list(verdict.errors.get("reason", [])) if verdict and status == 422 else []
    more = {"verdict": fresh, "reason_errors": errors, "refusal": _sentence(sentence)}
    return _page(request, approval_id, found, status, **more)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _only_hidden(form: VerdictForm) -> str:
    """What to say of a form that lost its hidden fields or its verdict: no person did that."""
    return "" if list(form.errors) == ["reason"] else "the form was not complete"


def _done(request: HttpRequest, approval_id: uuid.UUID, done: Done) -> HttpResponse:
    tell = messages.success if done.changed else messages.info
    tell(request, done.sentence)
    return redirect(reverse("approvals:approval", args=[approval_id]))
