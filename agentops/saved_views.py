"""Saved views: filters of a list under a name, each person's own."""

from dataclasses import dataclass
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from agentops.console.hostile import plain
from agentops.models import SavedView

#: Lists that keep views, and what people call them.
LISTS = {
    "runs:list": "runs",
    "runs:failures": "failures",
    "runs:bulks": "bulks",
    "approvals:inbox": "the inbox",
    "audit:list": "the audit",
    "people:list": "people",
}
MOST = 50
#: Where a page of a list begins is no part of a view.
PLACES = ("before", "after")


class SaveForm(forms.Form):
    """A name for the filters of a list."""

    page = forms.CharField(max_length=100, widget=forms.HiddenInput)
    query = forms.CharField(max_length=2000, widget=forms.HiddenInput)
    name = forms.CharField(max_length=60, label="Name of this view")


@dataclass(frozen=True)
class Choice:
    """A saved view as a link."""

    view: SavedView
    url: str
    current: bool


def choices(request: HttpRequest, page: str) -> dict[str, Any]:
    """What the menu of saved views on a list shows. One query."""
    return _choices(request, page, _normal(request.GET.urlencode()))


def _choices(request: HttpRequest, page: str, here: str) -> dict[str, Any]:
    found = SavedView.objects.filter(user=cast(User, request.user), page=page).order_by("name")[:MOST]
    views = [Choice(one, f"{reverse(page)}?{one.query}", one.query == here) for one in found]
    return {
        "views": views,
        "page": page,
        "query": here,
        "unsaved": bool(here) and not any(one.current for one in views),
    }


def _normal(query: str) -> str:
    """A query string without its place and in one order, so that the same filters are the same text."""
    parts = QueryDict(query.replace("%00", ""))
    kept = QueryDict(mutable=True)
    for name in sorted(parts):
        if name not in PLACES:
            kept.setlist(name, [value for value in parts.getlist(name) if value])
    return kept.urlencode()


@require_safe
def listed(request: HttpRequest) -> HttpResponse:
    """One's own views of a list on a page of their own, for a list that has no room for the menu; `query` are its filters."""
    page = request.GET.get("page", "runs:list")
    if page not in LISTS:
        raise Http404
    here = _normal(request.GET.get("query", ""))
    back = f"{reverse(page)}?{here}" if here else reverse(page)
    context = _choices(request, page, here) | {"name": LISTS[page], "back": back}
    return render(request, "saved_views.html", context)


@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """Keep the filters under a name; one of that name is replaced."""
    form = SaveForm(request.POST)
    user = cast(User, request.user)
    if form.is_valid():
        given = form.cleaned_data
        query = _normal(given["query"])
        mine = SavedView.objects.filter(user=user, page=given["page"])
        if given["page"] not in LISTS:
            form.add_error(None, "Views are kept for lists only.")
        elif not query:
            form.add_error(None, "There is no filter to save: choose one first.")
        elif mine.exclude(name=given["name"]).count() >= MOST:
            form.add_error(None, f"You have {MOST} views of this list already: delete one first.")
        else:
            mine.update_or_create(
                name=given["name"],
                defaults={"query": query},
                create_defaults={"query": query, "user": user, "page": given["page"]},
            )
            messages.success(request, f"Saved as “{plain(given['name'])}”.")
            return redirect(f"{reverse(given['page'])}?{query}")
    return render(
        request,
        "saved_view.html",
        {"form": form, "action": request.path, "close": reverse("home")},
        status=422,
    )


@require_POST
def delete(request: HttpRequest, view_id: int) -> HttpResponse:
    """Forget one of one's own views."""
    view = get_object_or_404(SavedView, pk=view_id, user=cast(User, request.user))
    view.delete()
    messages.success(request, f"“{plain(view.name)}” is deleted.")
    return redirect(view.page) if view.page in LISTS else redirect("home")
