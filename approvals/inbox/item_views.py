"""Items of the inbox that are no approvals, and what people do about items of any kind."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agentops.console import polling
from approvals import views
from approvals.inbox import handling, worklist
from approvals.inbox.case import Case
from approvals.inbox.listing import Listing, address, as_sentence, key_of, read, url_of
from approvals.models import ItemKind
from runs import access, clock
from runs.errors import Invalid, StateMismatch
from runs.lifecycle import Actor
from runs.services.verb import Done

may_view = access.required("approvals.view_approval", "runs.view_run")
may_handle = access.required("approvals.handle_item")


# --- the page of an item ---------------------------------------------------------------------------------------------------


@require_safe
@may_view
def item(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """What happened, what it holds up, and what would move it on. An approval has a page of its own."""
    if kind == ItemKind.APPROVAL:
        return redirect(url_of(ItemKind.APPROVAL, item_id) + address(read(request.GET)))
    return _page(request, _kind(kind), item_id)


@require_safe
@may_view
def poll_item(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """The item alone, for polling."""
    if kind == ItemKind.APPROVAL:
        raise Http404
    case = _case(request, _kind(kind), item_id)
    context = {"case": case, "ptag": case.tag, "now": case.now} | views.handling_context(request, case.line)
    return polling.fragment(request, "approvals/item.html", context)


@require_safe
@may_view
def shortcuts(request: HttpRequest) -> HttpResponse:
    """The keys of the inbox, for whoever has no script to show them in place."""
    return render(request, "approvals/shortcuts.html")


def _kind(text: str) -> ItemKind:
    try:
        return ItemKind(text)
    except ValueError:
        raise Http404 from None


def _case(request: HttpRequest, kind: ItemKind, item_id: uuid.UUID) -> Case:
    found = worklist.line(views.user_of(request), kind, item_id)
    if found is None:
        raise Http404
    return Case(found, views.user_of(request), found.looked_at)


def _page(
    request: HttpRequest, kind: ItemKind, item_id: uuid.UUID, status: int = 200, **more: Any
) -> HttpResponse:
    case = _case(request, kind, item_id)
    listing = Listing(views.user_of(request), request.GET, case.now, key_of(case.line))
    context: dict[str, Any] = {"case": case, "listing": listing, "now": case.now}
    context |= views.handling_context(request, case.line) | more
    return render(request, "approvals/inbox.html", context, status=status)


# --- verbs ---------------------------------------------------------------------------------------------------------------


class SeenForm(forms.Form):
    """The item as the page showed it."""

    seen = forms.IntegerField(min_value=0, widget=forms.HiddenInput)


class AssignForm(SeenForm):
    to = forms.IntegerField(min_value=1)
    reason = forms.CharField(required=False, max_length=2_000)


class SnoozeForm(SeenForm):
    minutes = forms.ChoiceField(choices=views.SNOOZES)


class CommentForm(forms.Form):
    token = forms.UUIDField(widget=forms.HiddenInput)
    text = forms.CharField(max_length=handling.COMMENT_LENGTH)


@require_POST
@may_handle
def claim(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """Say that one looks after it."""
    return _carry_out(request, kind, item_id, SeenForm(request.POST), handling.claim)


@require_POST
@may_handle
def release(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """Give it back."""
    return _carry_out(request, kind, item_id, SeenForm(request.POST), handling.release)


@require_http_methods(["GET", "HEAD", "POST"])
@may_view
@may_handle
def assign(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """Hand it to somebody: a form with those who may act on it."""
    if request.method != "POST":
        return _again(request, _kind(kind), item_id, "", 200, asks="assign")
    return _carry_out(request, kind, item_id, AssignForm(request.POST), handling.assign)


@require_POST
@may_handle
def snooze(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """Put it away for a while."""
    form = SnoozeForm(request.POST)

    def until(actor: Actor, of: ItemKind, which: uuid.UUID, *, minutes: str, seen: int) -> Done:
        # To the minute, so that the same form sent twice asks for the same moment.
        end = (clock.now() + timedelta(minutes=int(minutes))).replace(second=0, microsecond=0)
        return handling.snooze(actor, of, which, until=end, seen=seen)

    return _carry_out(request, kind, item_id, form, until)


@require_POST
@may_handle
def wake(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """End a snooze."""
    return _carry_out(request, kind, item_id, SeenForm(request.POST), handling.wake)


@require_POST
@may_handle
def comment(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """Say something to the others who look after it."""
    return _carry_out(request, kind, item_id, CommentForm(request.POST), handling.comment)


@require_POST
@may_view
def read_mark(request: HttpRequest, kind: str, item_id: uuid.UUID) -> HttpResponse:
    """Note that this person has it before them. Sent by the page itself, or by its button."""
    user = views.user_of(request)
    found = worklist.line(user, _kind(kind), item_id)
    if found is None:
        raise Http404
    handling.mark_read(user, found.kind, item_id, found.run_id)
    if polling.is_poll(request):
        return HttpResponse(status=204)
    return redirect(url_of(found.kind, item_id) + address(read(request.GET)))


def _carry_out(
    request: HttpRequest, kind: str, item_id: uuid.UUID, form: forms.Form, verb: Callable[..., Done]
) -> HttpResponse:
    """Send the form to the verb; then the item again, with what was done or why nothing was."""
    of = _kind(kind)
    if worklist.line(views.user_of(request), of, item_id) is None:
        raise Http404
    if not form.is_valid():
        first = next(iter(form.errors.items()))
        sentence = "Choose a person." if first[0] == "to" else "Say something." if first[0] == "text" else ""
        return _again(request, of, item_id, sentence or "The form was not complete.", 422)
    try:
        done = verb(Actor.of(views.user_of(request)), of, item_id, **form.cleaned_data)
    except (StateMismatch, Invalid) as error:
        return _again(request, of, item_id, str(error), 422 if isinstance(error, Invalid) else error.status)
    (messages.success if done.changed else messages.info)(request, done.sentence)
    return redirect(url_of(of, item_id) + address(read(request.GET)))


def _again(
    request: HttpRequest, kind: ItemKind, item_id: uuid.UUID, sentence: str, status: int, **more: Any
) -> HttpResponse:
    typed = {"refusal": as_sentence(sentence), "typed_comment": request.POST.get("text", "")} | more
    if more.get("asks") == "assign":
        found = worklist.line(views.user_of(request), kind, item_id)
        if found is None:
            raise Http404
        typed["people"] = handling.people_who_may(kind, found.run, found.approval)
    if kind == ItemKind.APPROVAL:
        return views.page(request, item_id, status=status, **typed)
    return _page(request, kind, item_id, status, **typed)
