"""Every address of the site, found by walking through its patterns, against what must hold for each of them."""

import re

import pytest
from django.http.response import HttpResponseBase
from django.test import Client

from tests.security.world import PLACES, World

pytestmark = pytest.mark.django_db

#: Proves itself by a signature; no cookie of a browser opens it.
SIGNED = {"runs:webhook"}
#: Where an anonymous visitor is let in.
OPEN = {"login", "first_sign_in", "theme"} | SIGNED
#: Nothing that a spreadsheet would open as a table: the one export, of the audit, answers a form; see test_export.py.
KINDS = {"text/html; charset=utf-8", "application/json", "application/json; charset=utf-8"}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def has_the_headers(response: HttpResponseBase) -> bool:
    """Whether an answer is kept out of caches and frames and may load nothing from elsewhere."""
    policy = response["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy and "*" not in policy
    assert "no-store" in response["Cache-Control"]
    assert "camera=()" in response["Permissions-Policy"]
    assert {name: response[name] for name in HEADERS} == HEADERS
    return True


def test_a_form_from_another_site_is_refused_wherever_it_is_sent(console: Client, everything: World) -> None:
    console.handler.enforce_csrf_checks = True
    answered = {name: console.post(url, {}).status_code for name, url in everything.pages().items()}
    assert {name for name, status in answered.items() if status != 403} == SIGNED
    exempt = {name for name, place in PLACES.items() if getattr(place.view, "csrf_exempt", False)}
    assert exempt == SIGNED


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://testserver.evil.example"])
def test_a_token_does_not_help_a_form_of_another_origin(
    origin: str, console: Client, everything: World
) -> None:
    console.handler.enforce_csrf_checks = True
    html = console.get("/password/").content.decode()
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', html)
    assert found is not None
    form = {"csrfmiddlewaretoken": found[1], "theme": "dark"}
    assert console.post("/theme/", form, headers={"Origin": origin}).status_code == 403
    assert console.post("/theme/", form, headers={"Origin": "http://testserver"}).status_code == 302


def test_nobody_is_let_in_without_a_sign_in(everything: World) -> None:
    for name, url in everything.pages().items():
        for response in (Client().get(url), Client().post(url, {})):
            if name in OPEN:
                assert response.status_code in (200, 302, 401, 405, 422), name
            else:
                assert (response.status_code, response["Location"][:14]) == (302, "/sign-in/?next"), name


def test_every_page_has_the_headers_and_is_html_or_json(console: Client, everything: World) -> None:
    for name, url in everything.pages().items():
        response = console.get(url)
        assert response.status_code in (200, 302, 404, 405), name
        assert has_the_headers(response), name
        if name == "runs:evidence":
            # Whatever somebody gave: only ever a download.
            assert response["Content-Type"] == "application/octet-stream"
            assert response["Content-Disposition"].startswith("attachment")
        elif response.content:
            assert response["Content-Type"] in KINDS, name
        polled = console.get(url, headers={"HX-Request": "true"})
        assert has_the_headers(polled), name


def test_only_four_addresses_answer_405_to_a_get(console: Client, everything: World) -> None:
    """Whatever a link, a mail scanner or a prefetch opens changes nothing: what acts takes POST alone or shows a form first."""
    before = {name: url for name, url in everything.pages().items() if name != "logout"}
    closed = {name for name, url in before.items() if console.get(url).status_code == 405}
    assert closed >= {"theme", "runs:webhook", "approvals:decide", "runs:set_limit"}


NASTY = {
    "quotes": "';DROP TABLE runs_run;--\"\\%_",
    "nul": "a\x00b",
    "a huge number": "9" * 4500,
    "a negative number": "-1",
    "an infinite number": "1e9999",
    "a path and a template": "../../etc/passwd{{7*7}}",
    "no text": "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
}
KEYS = (
    *("q", "status", "workflow", "subject", "before", "after", "part", "show", "selected", "seen", "base"),
    *("change", "value", "scope", "next", "order", "sort", "o", "page", "limit", "id__in", "status__regex"),
    *("id", "person", "run", "since", "until", "what", "verb", "period", "policy", "target"),
)


@pytest.mark.parametrize("what", NASTY)
def test_no_query_string_breaks_a_page_or_reaches_the_database_as_code(
    what: str, console: Client, everything: World
) -> None:
    for name, url in everything.pages().items():
        response = console.get(url, dict.fromkeys(KEYS, NASTY[what]))
        assert response.status_code < 500, name


@pytest.mark.parametrize("what", NASTY)
def test_no_form_field_breaks_a_page(what: str, console: Client, everything: World) -> None:
    fields = [
        *(
            "reason",
            "seen_version",
            "seen_revision",
            "name",
            "payload",
            "external_id",
            "reference",
            "verdict",
        ),
        *("digest", "version", "limit", "value", "answer", "theme", "subject", "start_key", "next"),
        *("input-order", "input-amount", "result-id", "result-amount", "payload-0", "payload-1", "looked"),
        *("item", "seen", "to", "minutes", "token", "text"),
        *("username", "password", "old_password", "new_password1", "new_password2", "extend_deadline_to"),
    ]
    for name, url in everything.pages().items():
        if name in ("logout", "runs:webhook"):
            continue
        response = console.post(url, dict.fromkeys(fields, NASTY[what]))
        assert response.status_code < 500, name
