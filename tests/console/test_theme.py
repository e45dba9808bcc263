"""The choice of theme works without a script and survives."""

import pytest
from django.test import Client


def test_the_chosen_theme_is_on_the_page(signed_in: Client) -> None:
    response = signed_in.post("/theme/", {"theme": "dark", "next": "/password/"})
    assert response["Location"] == "/password/"
    assert 'data-theme="dark"' in signed_in.get("/password/").content.decode()


def test_the_sign_in_page_has_the_theme_too(db: None) -> None:
    client = Client()
    client.cookies["theme"] = "dark"
    assert '<html lang="en" data-theme="dark">' in client.get("/sign-in/").content.decode()


@pytest.mark.parametrize("theme", ["", "pink", '"><script>'])
def test_an_unknown_theme_is_ignored(theme: str, signed_in: Client) -> None:
    assert "theme" not in signed_in.post("/theme/", {"theme": theme}).cookies
    signed_in.cookies["theme"] = theme
    assert "data-theme=" not in signed_in.get("/password/").content.decode().replace("data-theme-choice", "")


def test_next_never_leads_to_another_site(signed_in: Client) -> None:
    assert signed_in.post("/theme/", {"theme": "dark", "next": "https://evil.example/"})["Location"] == "/"
