"""What every response carries, and who is let in. The Content-Security-Policy itself is settings.SECURE_CSP."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.cache import patch_vary_headers

from agentops import sign_ins, views
from runs.errors import Asked, NotFresh, VerbError

PERMISSIONS_POLICY = ", ".join(
    f"{feature}=()"
    for feature in (
        "accelerometer",
        "browsing-topics",
        "camera",
        "display-capture",
        "geolocation",
        "gyroscope",
        "magnetometer",
        "microphone",
        "midi",
        "payment",
        "publickey-credentials-get",
        "screen-wake-lock",
        "usb",
    )
)


class PageHeaders:
    """Keep pages out of caches, other origins out of pages, and device features off; the outermost of all."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        response.headers.setdefault("Permissions-Policy", PERMISSIONS_POLICY)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        # Django's own middleware sets these, except where it refuses the request itself: an unknown host name.
        response.headers.setdefault("Cross-Origin-Opener-Policy", settings.SECURE_CROSS_ORIGIN_OPENER_POLICY)
        response.headers.setdefault("Referrer-Policy", settings.SECURE_REFERRER_POLICY)
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        if not (request.path.startswith(settings.STATIC_URL) and response.status_code in (200, 206, 304)):
            # What is no static file shows somebody's data.
            response.headers.setdefault("Cache-Control", "no-store")
            # The same address answers a page or a fragment.
            patch_vary_headers(response, ("HX-Request", "Cookie"))
        return response


class Refusals:
    """Answer a verb's refusal that its view did not answer better (with the fresh view, for instance)."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        if isinstance(exception, NotFresh):
            return sign_ins.ask_again(request, exception)
        if isinstance(exception, Asked):
            sentence = str(exception)
            messages.info(request, f"{sentence[:1].upper()}{sentence[1:]}.")
            return redirect(exception.url)
        return views.refused(request, exception) if isinstance(exception, VerbError) else None


class SignInRequired(LoginRequiredMiddleware):
    """Show an anonymous visitor the sign-in page and nothing else."""

    def process_view(
        self,
        request: HttpRequest,
        view_func: Callable[..., Any],
        view_args: tuple[Any, ...],
        view_kwargs: dict[str, Any],
    ) -> HttpResponseBase | None:
        refusal = super().process_view(request, view_func, view_args, view_kwargs)
        # A redirect would put the sign-in page into the region that polls, and half-typed text with it.
        if refusal is not None and request.headers.get("HX-Request") == "true":
            return HttpResponse("You are signed out.", status=401, content_type="text/plain; charset=utf-8")
        return refusal
