"""Pages that belong to no app: errors, the choice of theme, and the parts on show while developing."""

import sys
from typing import Any, cast

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, InternalError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render, resolve_url
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from agentops.console import polling
from agentops.console.hostile import plain
from agentops.context import THEMES, console, counts_for
from agentops.front import front
from runs import access
from runs.errors import VerbError
from runs.forms import MOST_TYPED
from runs.sizes import readable

YEAR_S = 365 * 24 * 3600


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """The front page, for whoever may see runs; others are led to the first page that they may see."""
    user = cast(User, request.user)
    if not access.may(user, "runs.view_run"):
        lines = console(request)["navigation"] + console(request)["administration"]
        return redirect(lines[0].url) if lines else render(request, "nothing.html")
    shown = front(user, counts_for(request, user).by_view["requests:list"][0])
    template = "home.html#front" if polling.is_poll(request) else "home.html"
    context = {"front": shown, "now": timezone.now(), "ptag": polling.tag(shown.seen, user.pk)}
    return polling.fragment(request, template, context)


@require_POST
@login_not_required
def choose_theme(request: HttpRequest) -> HttpResponse:
    """Remember light, dark or the system's choice in a cookie; the page comes back as chosen."""
    theme = request.POST.get("theme", "")
    response = HttpResponseRedirect(_safe(request, request.POST.get("next", "")))
    if theme in THEMES:
        response.set_cookie("theme", theme, max_age=YEAR_S, samesite="Lax", secure=request.is_secure())
    return response


def _safe(request: HttpRequest, address: str) -> str:
    """Return `address` if it leads to this site, else the home page."""
    allowed = url_has_allowed_host_and_scheme(
        address, {request.get_host()}, require_https=request.is_secure()
    )
    return address if allowed else resolve_url("home")


# --- errors ------------------------------------------------------------------------------------------------------


def _error(request: HttpRequest, status: int, title: str, sentence: str, **context: Any) -> HttpResponse:
    """Answer a page; to htmx one sentence, which console.js puts into the status line."""
    if request.headers.get("HX-Request") == "true":
        return HttpResponse(plain(sentence), status=status, content_type="text/plain; charset=utf-8")
    layout = "base.html" if _signed_in(request) else "plain.html"
    context |= {"layout": layout, "status": status, "title": title, "sentence": sentence}
    return render(request, "error.html", context, status=status)


def _signed_in(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)  # absent when the request failed before authentication
    return user is not None and user.is_authenticated


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        # Refused before it was read: there is no form to show again.
        return _error(
            request,
            413,
            "Too large to send",
            f"A form takes at most {readable(MOST_TYPED)} of text, and this was more. Nothing was done.",
            advice="Go back: your browser may still hold what you typed. Keep what is larger elsewhere and refer to it.",
        )
    return _error(
        request, 400, "Bad request", "The server did not understand this request. Nothing was done."
    )


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    said = str(exception) or "Your account does not have the permission for this. Nothing was done."
    return _error(
        request,
        403,
        "Not allowed",
        said,
        advice="Whoever manages people here can see what your account may do, and give it more.",
    )


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer a form that does not prove that it came from this site; mostly it only stood open too long."""
    sentence = "This form was opened before you last signed in, so it was refused. Nothing was done."
    return _error(
        request, 403, "Form out of date", sentence, advice="Go back, reload the page and send it again."
    )


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    # What exists is nobody's business who has not signed in.
    if request.resolver_match is None and not _signed_in(request):
        return redirect_to_login(request.get_full_path())
    sentence = "There is nothing at this address, or it is no longer kept."
    return _error(request, 404, "Not found", sentence)


TITLES = {
    400: "Not acceptable",
    403: "Not allowed",
    404: "Not found",
    409: "This had changed",
    503: "Not now",
}


def refused(request: HttpRequest, error: VerbError, *, back: str = "") -> HttpResponse:
    """Answer a verb that was refused; `back` leads to the fresh view."""
    sentence = str(error)
    return _error(
        request, error.status, TITLES[error.status], f"{sentence[:1].upper()}{sentence[1:]}.", back=back
    )


def server_error(request: HttpRequest) -> HttpResponse:
    """What nobody expected: 500, or 503 where the database does not answer, which passes. Called while it is handled."""
    error = sys.exception()
    # read_only_sql_transaction: a standby before its promotion, or a server that is being moved.
    read_only = isinstance(error, InternalError) and getattr(error.__cause__, "sqlstate", None) == "25006"
    away = isinstance(error, (OperationalError, InterfaceError))
    # Neither database nor session may be trusted here: no request context.
    page = render_to_string("500.html", {"away": away, "read_only": read_only})
    return HttpResponse(page, status=503 if away or read_only else 500)
