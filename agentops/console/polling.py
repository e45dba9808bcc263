"""Polled regions: a fragment with a tag of what it shows; a poll that knows the tag is answered 304.

django_htmx's decorator computes the tag before the view runs, which would read the same rows twice.
"""

import hashlib
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import render


def tag(*versions: object) -> str:
    """A short tag of data versions; no relative time may go in, or an idle page would never answer 304."""
    return hashlib.sha256(repr(versions).encode(errors="backslashreplace")).hexdigest()[:16]


def is_poll(request: HttpRequest) -> bool:
    """Whether htmx asks, and so for the region alone."""
    return request.headers.get("HX-Request") == "true"


def unchanged(request: HttpRequest, ptag: str) -> HttpResponse | None:
    """304 where the browser already shows the state `ptag`, else None."""
    if is_poll(request) and request.headers.get("HX-PTag") == ptag:
        return HttpResponseNotModified()
    return None


def fragment(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """Answer `template` with `context`, whose "ptag" says what it shows; 304 where the browser shows just that."""
    response = unchanged(request, context["ptag"]) or render(request, template, context)
    response.headers["HX-PTag"] = context["ptag"]
    return response
