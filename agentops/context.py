"""What every page of the console needs besides its own data."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

THEMES = ("system", "light", "dark")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the navigation: `view` is the name of its URL, `permission` says who sees it."""

    view: str
    label: str
    icon: str
    permission: str = ""
    administer: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """An entry as one person sees it on one page."""

    entry: Entry
    url: str
    current: bool


NAVIGATION = (
    Entry("approvals:inbox", "Inbox", "inbox", "approvals.view_approval"),
    Entry("runs:list", "Runs", "runs", "runs.view_run"),
    Entry("runs:limits", "Limits", "limits", "runs.view_policy", administer=True),
    Entry("runs:workers", "Workers", "workers", "runs.view_worker", administer=True),
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
        for entry in NAVIGATION:
            url = _url(entry.view)
            if url and (not entry.permission or user.has_perm(entry.permission)):
                lines.append(Line(entry, url, request.path.startswith(url)))
    return {
        "navigation": [line for line in lines if not line.entry.administer],
        "administration": [line for line in lines if line.entry.administer],
        "search_url": _url("runs:list"),
        "theme": theme_of(request),
        "themes": (("system", "System", "screen"), ("light", "Light", "sun"), ("dark", "Dark", "moon")),
        "zone": settings.TIME_ZONE,
        "server_now": timezone.now(),
    }


def _url(name: str) -> str:
    """Return the address of a page, or "" where the app that has it is not installed."""
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""
