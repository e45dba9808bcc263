"""Pages of requests: verbs that others approve first."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.db.models import prefetch_related_objects
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from agentops import sign_ins
from agentops.console import paging
from approvals.inbox.worklist import TARGETS
from approvals.models import ItemKind, Request, RequestVote, Vote
from approvals.policies import effective
from approvals.requests import four_eyes
from runs import access, clock, codec, content
from runs.errors import Invalid, NotAllowed, StateMismatch
from runs.lifecycle import Actor
from runs.models import Run
from runs.selectors import PAYLOADS

may_view = access.required("approvals.view_request")

#: Open requests that a page shows.
ROWS = 100


class VoteForm(forms.Form):
    """Approve or reject what the page showed."""

    digest = forms.CharField(max_length=64, widget=forms.HiddenInput)
    verdict = forms.ChoiceField(choices=Vote.Verdict)
    reason = forms.CharField(required=False, max_length=2_000)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("verdict") == Vote.Verdict.REJECT and not cleaned.get("reason"):
            self.add_error("reason", "Say why you reject it: whoever asked for it will read this.")
        return cleaned


@dataclass
class Shown:
    """A request as one person sees it."""

    request: Request
    user: User
    now: datetime
    run: Run | None
    """The run that it is about; None for limits, and where retention has deleted it."""

    def __post_init__(self) -> None:
        if not self.sees_arguments:
            self.request = content.shown(self.user, self.request, self.run)

    @property
    def state(self) -> str:
        """Which badge it has: an open one whose time is over has expired, though nobody has written that down."""
        return "expired" if four_eyes.is_over(self.request, self.now) else str(self.request.state)

    @property
    def is_open(self) -> bool:
        return self.state == Request.State.OPEN

    @property
    def target(self) -> datetime:
        """When somebody should have decided: its time limit, else the same time as for an approval without one."""
        return self.request.expires_at or self.request.opened_at + TARGETS[ItemKind.APPROVAL]

    @property
    def is_late(self) -> bool:
        return self.is_open and self.target <= self.now

    @cached_property
    def requirement(self) -> dict[str, Any]:
        return four_eyes.current_requirement(self.request, self.now)

    @property
    def who(self) -> str:
        return effective.who(self.requirement)

    @property
    def never(self) -> str:
        return " or ".join(str(person["name"]) for person in self.requirement["excluded"])

    @property
    def escalated(self) -> bool:
        return bool(self.requirement["groups"] != self.request.requirement["groups"])

    @cached_property
    def ballots(self) -> list[RequestVote]:
        ballots = RequestVote.objects.filter(request_id=self.request.pk).order_by("at", "id")
        return list(ballots) if self.sees_arguments else content.shown_all(self.user, ballots, self.run)

    @cached_property
    def mine(self) -> RequestVote | None:
        return next((ballot for ballot in self.ballots if ballot.voter_id == self.user.pk), None)

    @property
    def is_own(self) -> bool:
        return self.request.requester_id == self.user.pk

    @cached_property
    def why_not(self) -> str:
        return four_eyes.why_not_decide(self.user, self.request, self.now)

    @property
    def may_vote(self) -> bool:
        return self.is_open and not self.why_not and self.mine is None and self.sees_arguments

    @cached_property
    def sees_arguments(self) -> bool:
        """The result that somebody gives for an effect is content; what a limit would be is not."""
        if self.request.run_id is None:
            return True
        if self.run is None:
            return access.everywhere(self.user, "runs.view_payload")
        return access.may_see_payloads(self.user, self.run)

    @property
    def arguments(self) -> Any:
        shown = codec.plain(self.request.arguments)
        return {key: value for key, value in shown.items() if not key.startswith("seen_") and key != "reason"}

    @property
    def after(self) -> str:
        """What approving would do."""
        missing = self.request.votes - self.request.in_favour
        if missing > 1:
            return f"Approving is vote {self.request.in_favour + 1} of {self.request.votes}; nothing is done yet."
        return (
            f"Approving carries it out at once, as {self.request.requester_name}; it is refused if what it was asked"
            " for has changed since."
        )


@require_safe
@may_view
def index(request: HttpRequest) -> HttpResponse:
    """What waits for this person, what waits for others, and what is over."""
    user, now = _user(request), clock.now()
    mine = _shown_all(four_eyes.open_for(user)[: ROWS + 1], user, now)
    others = _shown_all(four_eyes.open_others(user)[: ROWS + 1], user, now)
    over = four_eyes.visible(user, Request.objects.exclude(state=Request.State.OPEN))
    pages = paging.page(over, request.GET)
    context = {
        "mine": _by_target(mine[:ROWS]),
        "late": sum(shown.is_late for shown in mine[:ROWS]),
        "others": _by_target(others[:ROWS]),
        "more": len(mine) > ROWS or len(others) > ROWS,
        "over": _shown_all(pages.rows, user, now),
        "pages": pages,
        "now": now,
    }
    return render(request, "policies/requests.html", context)


@require_safe
@may_view
def one(request: HttpRequest, request_id: uuid.UUID) -> HttpResponse:
    """What somebody wants to do, and the form to decide on it."""
    return _page(request, request_id, typed=sign_ins.typed_before(request))


@require_POST
@may_view
def decide(request: HttpRequest, request_id: uuid.UUID) -> HttpResponse:
    """Approve or reject it."""
    shown = _shown(request, request_id)
    if shown.why_not:
        raise NotAllowed(shown.why_not)
    if not shown.sees_arguments:
        raise NotAllowed("you cannot decide on what you may not see")
    form = VoteForm(request.POST)
    if not form.is_valid():
        return _page(request, request_id, 422, typed=request.POST, errors=form.errors.get("reason", []))
    try:
        done = four_eyes.vote(
            Actor.of(_user(request)),
            request_id,
            signed_in_at=sign_ins.signed_in_at(request),
            **form.cleaned_data,
        )
    except StateMismatch as error:
        return _page(request, request_id, error.status, typed=request.POST, refusal=str(error))
    except Invalid as error:
        return _page(request, request_id, 422, typed=request.POST, errors=[str(error)])
    return _done(request, done)


@require_POST
@may_view
def withdraw(request: HttpRequest, request_id: uuid.UUID) -> HttpResponse:
    """Take one's own request back."""
    _shown(request, request_id)
    try:
        done = four_eyes.withdraw(
            Actor.of(_user(request)), request_id, reason=request.POST.get("reason", "")[:2_000]
        )
    except StateMismatch as error:
        return _page(request, request_id, error.status, refusal=str(error))
    return _done(request, done)


def _by_target(rows: Iterable[Shown]) -> list[Shown]:
    """As the inbox has its items: whatever somebody should have decided first comes first, with a time limit or without."""
    return sorted(rows, key=lambda shown: (shown.target, shown.request.pk))


def _user(request: HttpRequest) -> User:
    user = cast(User, request.user)
    prefetch_related_objects([user], "groups")
    return user


def _shown(request: HttpRequest, request_id: uuid.UUID) -> Shown:
    user = _user(request)
    found = four_eyes.visible(user, Request.objects.filter(pk=request_id)).first()
    if found is None:
        raise Http404
    return _shown_all([found], user, clock.now())[0]


def _shown_all(rows: Iterable[Request], user: User, now: datetime) -> list[Shown]:
    """Each with its run. One query."""
    found = list(rows)
    runs = Run.objects.defer(*PAYLOADS).in_bulk([one.run_id for one in found if one.run_id is not None])
    return [Shown(one, user, now, runs.get(one.run_id) if one.run_id else None) for one in found]


def _page(
    request: HttpRequest, request_id: uuid.UUID, status: int = 200, *, typed: Any = None, **more: Any
) -> HttpResponse:
    shown = _shown(request, request_id)
    reason = (typed or {}).get("reason", "")
    context = {"shown": shown, "one": shown.request, "reason": reason, "now": shown.now} | more
    return render(request, "policies/request.html", context, status=status)


def _done(request: HttpRequest, done: four_eyes.Outcome) -> HttpResponse:
    (messages.success if done.changed else messages.info)(request, done.sentence)
    return redirect(reverse("requests:request", args=[done.request.pk]))
