"""A support agent and a group of failures, in a real browser."""

import pytest
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from runs.models import Attempt, FailureGroup, Run
from runs.states import Outcome, Status
from tests import factories
from tests.e2e.accessibility import violations

PARTED = "there the good run ended it as succeeded; this one ended it as failed"
LONG = "a-word-that-is-much-longer-than-any-telephone-is-wide-" * 4


def attempt(run: Run, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    Attempt.objects.create(
        run_id=run.pk,
        step_seq=1,
        attempt_no=1,
        epoch=1,
        step=run.step,
        outcome=outcome,
        started_at=run.created_at,
        ended_at=run.created_at,
    )


@pytest.fixture
def run(transactional_db: None) -> Run:
    attempt(factories.run(Status.COMPLETED, subject="order 1041"))
    factories.failed("KeyError", f"no order 7 {LONG}", version=2)
    return factories.failed(
        "KeyError", f"no order 8 {LONG}", subject="order 1042", traceback=f"Traceback:\n{LONG}"
    )


def test_an_agent_finds_where_a_failure_parted_from_a_good_run_and_takes_it_over(
    signed_in: Page, live_server: LiveServer, run: Run, complaints: list[str]
) -> None:
    page = signed_in
    page.goto(live_server.url)
    page.get_by_role("link", name="Failures").first.click()
    expect(page.get_by_text("2 failed runs in 2 groups that are not handled; all are open.")).to_be_visible()
    page.get_by_role("row", name="version 1").get_by_role("link").focus()
    page.keyboard.press("Enter")
    # The sentence comes by itself; without scripts there is a link in its place.
    expect(page.get_by_text(PARTED)).to_be_visible()
    page.get_by_role("link", name="Acknowledge the group").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Reason").fill("I look at it")
    page.keyboard.press("Enter")
    expect(page.locator("main .note.is-ok")).to_be_focused()
    expect(page.get_by_text("“I look at it”")).to_be_visible()
    assert FailureGroup.objects.get(version=1).state == "acknowledged"
    assert complaints == []


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_the_pages_are_readable_by_everybody_on_every_width(
    signed_in: Page, live_server: LiveServer, run: Run, complaints: list[str], width: int, theme: str
) -> None:
    page = signed_in
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    group = f"/failures/{run.fingerprint}/"
    for path in ("/failures/", "/failures/?state=handled", group, f"{group}fix/", f"/runs/{run.pk}/compare/"):
        page.goto(live_server.url + path)
        if path == group:
            expect(page.get_by_text(PARTED)).to_be_visible()
        assert violations(page) == [], path
        wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert not wide, f"{path} scrolls sideways"
    assert complaints == []
