"""A browser against a live server: skipped with one sentence where chromium is missing, failed in CI."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import BrowserContext, ConsoleMessage, Page
from pytest_django.live_server_helper import LiveServer

from tests.e2e.browser import CHROMIUM, LAUNCH

PASSWORD = "brass-lamp-without-plug"


def _drives_a_browser(item: pytest.Item) -> bool:
    return item.path.is_relative_to(Path(__file__).parent)


#: So that in parallel processes no long one begins when all others have ended.
LONGEST_FIRST = (
    "test_bulk.py",
    "test_people_pages.py",
    "test_decisions.py",
    "test_inbox.py",
    "test_runs.py",
    "test_accessibility.py",
    "test_support.py",
    "test_policies.py",
    "test_audit.py",
)


def _turn(item: pytest.Item) -> int:
    """The place of a file among those that drive a browser."""
    return LONGEST_FIRST.index(item.path.name) if item.path.name in LONGEST_FIRST else len(LONGEST_FIRST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Last, because Playwright's event loop goes on running in this thread: asyncio.run() would fail in later tests.
    items.sort(key=lambda item: (1, _turn(item)) if _drives_a_browser(item) else (0, 0))
    for item in filter(_drives_a_browser, items):
        item.add_marker("e2e")
        if not CHROMIUM.exists() and os.environ.get("CI") != "true":
            item.add_marker(pytest.mark.skip(reason=f"{CHROMIUM} is missing: apt-get install chromium"))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    return {**browser_type_launch_args, **LAUNCH}


@pytest.fixture(scope="session")
def base_url() -> None:
    """Tests write addresses out. (The plugin's own fixture is of a kind that pytest 9 warns about.)"""


@pytest.fixture(scope="session", autouse=True)
def _queries_beside_an_event_loop() -> Iterator[None]:
    """Playwright's event loop runs in this thread; Django would refuse the fixtures' queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


@pytest.fixture
def complaints(context: BrowserContext) -> list[str]:
    """What the browser complained about: script errors, and whatever the Content-Security-Policy refused."""
    found: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not re.search("status of [45]", message.text):
            found.append(message.text)

    context.on("console", note)
    context.on("weberror", lambda error: found.append(str(error.error)))
    return found


@pytest.fixture
def mara(transactional_db: None) -> User:
    """A person with every permission."""
    return User.objects.create_superuser(
        "mara.okafor", password=PASSWORD, first_name="Mara", last_name="Okafor"
    )


def sign_in(context: BrowserContext, url: str, user: User) -> None:
    """Let a browser be signed in at `url`. Stories on a server of its own (test_support.py) go through the form."""
    client = Client()
    client.force_login(user)
    context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": url}])


@pytest.fixture
def signed_in(page: Page, live_server: LiveServer, mara: User, complaints: list[str]) -> Page:
    """An empty page of a browser in which Mara is signed in."""
    sign_in(page.context, live_server.url, mara)
    return page
