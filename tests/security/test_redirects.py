"""No link of ours leads a person elsewhere, and no request says which host this is."""

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from tests.security.conftest import PASSWORD
from tests.security.test_crawl import has_the_headers
from tests.security.world import World

pytestmark = pytest.mark.django_db

ELSEWHERE = (
    "https://evil.example/",
    "//evil.example/",
    "///evil.example/",
    "/\\evil.example/",
    "\\\\evil.example/",
    "https:evil.example",
    "http:///evil.example",
    "javascript:alert(1)",
    "data:text/html,x",
    "\x09//evil.example/",
    " //evil.example/",
    "/\x0d\x0aLocation: https://evil.example/",
    "https://testserver@evil.example/",
    "//testserver.evil.example/",
)


def stays_here(location: str) -> bool:
    return location.startswith("/") and location[1:2] not in ("/", "\\") and "\r" not in location


@pytest.mark.parametrize("address", ELSEWHERE)
def test_next_leads_to_this_site_alone(address: str, mara: User) -> None:
    form = {"username": "mara.okafor", "password": PASSWORD, "next": address}
    signed_in = Client()
    for response in (
        signed_in.post("/sign-in/", form),
        signed_in.get("/sign-in/", {"next": address}),
        signed_in.post("/theme/", {"theme": "dark", "next": address}),
        signed_in.post("/sign-out/", {"next": address}),
    ):
        assert response.status_code == 302
        assert stays_here(response["Location"]), response["Location"]


@pytest.mark.parametrize(
    "path", ["//evil.example/", "//evil.example/..", "/%5Cevil.example/", "//evil.example/runs"]
)
def test_an_address_with_two_slashes_leads_nowhere_else(path: str, console: Client) -> None:
    for client in (Client(), console):
        response = client.get(path)
        if response.status_code in (301, 302):
            assert stays_here(response["Location"]), response["Location"]
        else:
            # The test client takes what follows the two slashes for a host: that address is then the front page.
            assert response.status_code in (200, 404)


def test_the_referrer_is_used_for_nothing(console: Client, everything: World) -> None:
    for name, url in everything.pages().items():
        if name == "logout":
            continue
        for response in (
            console.get(url, headers={"Referer": "https://evil.example/canary"}),
            console.post(url, {}, headers={"Referer": "https://evil.example/canary"}),
        ):
            assert b"evil.example" not in response.content, name
            assert "evil.example" not in response.get("Location", ""), name


@pytest.mark.parametrize(
    "host", ["evil.example", "testserver.evil.example", "evil.example:80", "a b", "testserver@evil"]
)
def test_another_host_name_is_refused_with_every_header_in_place(host: str, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]
    for encrypted in (False, True):
        # With the redirect to HTTPS, Django's outermost middleware is the one that refuses.
        settings.SECURE_SSL_REDIRECT = encrypted
        response = Client().get("/sign-in/", headers={"Host": host})
        assert response.status_code == 400
        assert has_the_headers(response)
        assert host.encode() not in response.content


def test_a_forwarded_host_is_not_believed(console: Client) -> None:
    told = {
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "Forwarded": "host=evil.example",
    }
    for path in ("/", "/runs", "/sign-in/"):
        response = console.get(path, headers=told)
        assert b"evil.example" not in response.content
        assert "evil.example" not in response.get("Location", "")


def test_plain_http_is_led_to_https_on_the_same_host(settings: Settings) -> None:
    settings.SECURE_SSL_REDIRECT = True
    response = Client().get("/runs/?q=x")
    assert (response.status_code, response["Location"]) == (301, "https://testserver/runs/?q=x")
