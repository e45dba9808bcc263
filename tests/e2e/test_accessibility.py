"""The frame and its parts break no rule of WCAG 2.2 AA that a program can check, in either theme and width."""

import pytest
from playwright.sync_api import Page
from pytest_django.live_server_helper import LiveServer

from tests.e2e.accessibility import violations

PATHS = ("/look/", "/password/", "/look/error/409/", "/look/error/500/")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(width: int, theme: str, signed_in: Page, live_server: LiveServer) -> None:
    signed_in.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    signed_in.set_viewport_size({"width": width, "height": 900})
    for path in PATHS:
        signed_in.goto(live_server.url + path)
        assert violations(signed_in) == [], path


def test_axe_finds_nothing_on_the_sign_in_page(
    page: Page, live_server: LiveServer, transactional_db: None
) -> None:
    page.goto(f"{live_server.url}/sign-in/")
    assert violations(page) == []
    page.get_by_label("User name").fill("no.such.person")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    assert violations(page) == []
