"""What every page carries, and what no page contains."""

import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

ROOT = Path(__file__).resolve().parents[2]
CSP = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "font-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
PAGES = [
    "/look/",
    "/password/",
    "/password/done/",
    *(f"/look/error/{n}/" for n in (400, 403, 404, 409, 419, 500)),
]
INLINE = re.compile(
    r"""\sstyle\s*=|\son\w+\s*=|<style|<script(?![^>]*\ssrc=)|javascript:|hx-on|hx-vals='js:""", re.I
)


@pytest.mark.parametrize("path", ["/sign-in/", *PAGES])
def test_every_page_carries_the_strict_policy_and_is_kept_out_of_caches(path: str, signed_in: Client) -> None:
    response = Client().get(path) if path == "/sign-in/" else signed_in.get(path)
    policy = dict(part.strip().split(" ", 1) for part in response["Content-Security-Policy"].split(";"))
    assert policy == CSP
    assert "no-store" in response["Cache-Control"]
    assert response["Referrer-Policy"] == "same-origin"
    assert response["Cross-Origin-Opener-Policy"] == "same-origin"
    assert response["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "camera=()" in response["Permissions-Policy"]
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["X-Frame-Options"] == "DENY"


def _without_text(html: str) -> str:
    """Drop what stands between tags: hostile samples are shown there, escaped."""
    return "".join(re.findall(r"<[^>]*>", html))


@pytest.mark.parametrize("path", ["/sign-in/", *PAGES])
def test_no_page_has_an_inline_style_or_script(path: str, signed_in: Client) -> None:
    response = Client().get(path) if path == "/sign-in/" else signed_in.get(path)
    tags = re.sub(
        r'(?:title|data-copy|aria-label|value)="[^"]*"', "", _without_text(response.content.decode())
    )
    assert not INLINE.search(tags), INLINE.search(tags)


def test_no_template_has_an_inline_style_or_script() -> None:
    for path in (ROOT / "templates").rglob("*.html"):
        assert not INLINE.search(path.read_text()), path


@pytest.mark.parametrize("path", [p for p in PAGES if p != "/look/error/500/"])
def test_a_page_has_one_main_one_heading_and_one_empty_status(path: str, signed_in: Client) -> None:
    html = signed_in.get(path).content.decode()
    assert len(re.findall(r"<main\b", html)) == 1
    assert len(re.findall(r"<h1\b", html)) == 1
    assert re.findall(r'<[^>]*role="status"[^>]*>[^<]*<', html) == [
        '<div class="report" id="status" role="status"><'
    ]
    ids = re.findall(r'\sid="([^"]+)"', html)
    repeated = {name for name in ids if ids.count(name) > 1}
    # The look page shows one form twice, refused and fresh.
    assert not {name for name in repeated if not name.startswith("id_")}


def test_the_vendored_script_is_the_published_one() -> None:
    import hashlib

    found = finders.find("agentops/htmx.js")
    assert isinstance(found, str)
    text = Path(found).read_text()
    head, _, rest = text.partition("/* htmx.min.js */\n")
    htmx, _, rest = rest.partition("\n/* hx-ptag.min.js */\n")
    ptag = rest.removesuffix("\n/* end */\n")
    assert re.findall(r"sha256 ([0-9a-f]{64})", head) == [
        hashlib.sha256(part.encode()).hexdigest() for part in (htmx, ptag)
    ]
    assert "4.0.1" in head
