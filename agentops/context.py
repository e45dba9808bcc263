"""What every page of the console needs besides its own data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from approvals.inbox import navigation
from runs import access
from runs.pages import limit_page

THEMES = ("system", "light", "dark")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the navigation: `view` is the name of its URL, `permission` says who sees it."""

    view: str
    label: str
    icon: str
    permission: str = ""
    administer: bool = False


class Counts:
    """What waits for a person, by the page that shows it. Counted once, when a page shows it: polled parts of one do not."""

    def __init__(self, user: User | AnonymousUser) -> None:
        self._user = user

    @cached_property
    def by_view(self) -> Mapping[str, tuple[int, str]]:
        """Number and what it means."""
        if not isinstance(self._user, User):
            return {}
        waiting = navigation.waiting(self._user)
        return {
            "approvals:inbox": (waiting.inbox, "Things in the inbox that you may act on"),
            "runs:list": (waiting.attention, "Runs that need attention"),
            "runs:failures": (waiting.failures, "Open groups of failures"),
            "requests:list": (waiting.requests, "Open requests that you may decide"),
        }


def counts_for(request: HttpRequest, user: User | AnonymousUser) -> Counts:
    """The counts of a page, the same for its view and for its navigation."""
    kept: Counts | None = getattr(request, "_agentops_counts", None)
    if kept is None:
        kept = request._agentops_counts = Counts(user)  # type: ignore[attr-defined]
    return kept


@dataclass(frozen=True, slots=True)
class Line:
    """An entry as one person sees it on one page."""

    entry: Entry
    url: str
    current: bool
    counts: Counts = field(repr=False, compare=False)

    @property
    def most(self) -> int:
        """So far it is counted."""
        return navigation.LIMIT

    @property
    def count(self) -> int:
        return self.counts.by_view.get(self.entry.view, (0, ""))[0]

    @property
    def count_title(self) -> str:
        return self.counts.by_view.get(self.entry.view, (0, ""))[1]


NAVIGATION = (
    Entry("home", "Overview", "home", "runs.view_run"),
    Entry("approvals:inbox", "Inbox", "inbox", "approvals.view_approval"),
    Entry("requests:list", "Requests", "a-open", "approvals.view_request"),
    Entry("runs:list", "Runs", "runs", "runs.view_run"),
    Entry("runs:failures", "Failures", "s-failed", "runs.view_run"),
    Entry("runs:bulks", "Bulks", "bulk", "runs.view_run"),
    Entry("runs:limits", "Limits", "limits", "runs.view_policy", administer=True),
    Entry("runs:workers", "Workers", "workers", "runs.view_worker", administer=True),
    Entry("policies:list", "Policies", "a-approved", "approvals.view_policy", administer=True),
    Entry("audit:list", "Audit", "audit", "runs.view_auditevent", administer=True),
    Entry("people:list", "People", "people", "runs.manage_people", administer=True),
)


def theme_of(request: HttpRequest) -> str:
    """Return the theme the person chose: "system", "light" or "dark"."""
    chosen = request.COOKIES.get("theme", "")
    return chosen if chosen in THEMES else "system"


def console(request: HttpRequest) -> dict[str, Any]:
    """Navigation, theme and clock; the views' own context wins."""
    user = getattr(request, "user", None)
    lines: list[Line] = []
    if user is not None and user.is_authenticated:
        counts = counts_for(request, user)
        for entry in NAVIGATION:
            url = _url(entry.view)
            if url and (not entry.permission or access.may(user, entry.permission)):
                current = request.path == url if entry.view == "home" else request.path.startswith(url)
                lines.append(Line(entry, url, current, counts))
    return {
        "navigation": [line for line in lines if not line.entry.administer],
        "administration": [line for line in lines if line.entry.administer],
        "search_url": next((line.url for line in lines if line.entry.view == "runs:list"), ""),
        # Asked for by whole pages alone: a part that is polled does not show it.
        "standing": lambda: _standing(request),
        "theme": theme_of(request),
        "themes": (("system", "System", "screen"), ("light", "Light", "sun"), ("dark", "Dark", "moon")),
        "zone": settings.TIME_ZONE,
        "server_now": timezone.now(),
    }


def _standing(request: HttpRequest) -> list[limit_page.Standing]:
    """Pauses that hold now; nobody who is not signed in hears of them."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return []
    return limit_page.standing(user, limit_page.read_for(request))


def _url(name: str) -> str:
    """Return the address of a page, or "" where the app that has it is not installed."""
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""
