"""Pages of runs in a real browser: readable by everybody, on every width, under the strict policy."""

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from agentops.models import SavedView
from runs import clock
from runs.models import Attempt, LogLine, Message
from runs.models.operation import Kind, OpStatus
from runs.states import Outcome, Status
from tests import factories
from tests.e2e.accessibility import violations
from tests.runs.engine.family import silently_ended

LONG = "a-word-that-is-much-longer-than-any-telephone-is-wide-" * 4


@pytest.fixture
def addresses(transactional_db: None) -> dict[str, str]:
    """Pages of runs that have one of everything, long words among them."""
    now = clock.now()
    run = factories.run(
        Status.FAILED, subject=f"order 1042 {LONG}", reason=f"ValueError: {LONG}", start_key=LONG
    )
    for number in (1, 2):
        Attempt.objects.create(
            run_id=run.pk,
            step_seq=1,
            attempt_no=number,
            epoch=number,
            step="pack",
            outcome=Outcome.FAILED,
            started_at=now - timedelta(seconds=30 - 10 * number),
            ended_at=now - timedelta(seconds=28 - 10 * number),
            error_type="ValueError",
            error=LONG,
            traceback=f'Traceback:\n  File "shop/tools.py", line 3, in pack\n    {LONG}\nValueError: {LONG}',
            state_after={"text": LONG},
        )
    common = {"run_id": run.pk, "step_seq": 1, "attempt_no": 1}
    Message.objects.create(**common, position="1", role="customer", content=LONG, digest="")
    LogLine.objects.create(**common, position="1", text=LONG, data={"text": LONG})
    effect = factories.operation(run, name="book_courier", provider_ref=LONG, request={"text": LONG})
    factories.operation(run, Kind.QUERY, OpStatus.FAILED, name="find_address", error=LONG, error_type="Error")
    doubt = factories.doubt(intent_worker_id=factories.worker(reaped=True).pk)
    waiting, home = factories.signal_wait().run, f"/runs/{run.pk}/"
    factories.run(Status.RUNNING)
    factories.approval()
    return {
        "list": "/runs/",
        "nothing found": f"/runs/?q={LONG}",
        "messages": f"{home}?part=messages",
        "log": f"{home}?part=logs",
        "state": f"{home}?part=values",
        "events": f"{home}?part=events",
        "attempt": f"{home}attempts/1/1/",
        "operation": f"{home}operations/{effect.pk}/",
        "retry": f"{home}retry/",
        "not to be cancelled": f"{home}cancel/",
        "in doubt": f"/runs/{doubt.run_id}/",
        "answer": f"/runs/{doubt.run_id}/operations/{doubt.pk}/answer/",
        "cancel": f"/runs/{waiting.pk}/cancel/",
        "signal": f"/runs/{waiting.pk}/signal/",
        "start": "/runs/start/",
        "start a workflow": "/runs/start/access_request/",
        "gone": f"/workers/{factories.worker(beats=False).pk}/gone/",
        "no run": f"/runs/{uuid.uuid4()}/",
    }


def test_pages_of_runs_break_no_rule_of_accessibility(
    signed_in: Page, live_server: LiveServer, addresses: dict[str, str], complaints: list[str]
) -> None:
    found = {}
    for name, path in addresses.items():
        for scheme, width in (("light", 1280), ("dark", 390)):
            # Without motion, or the colours would be measured on their way from one scheme to the other.
            dark = scheme == "dark"
            signed_in.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
            signed_in.set_viewport_size({"width": width, "height": 900})
            if not dark:
                signed_in.goto(live_server.url + path)
            found[name, scheme] = violations(signed_in)
    assert {name: broken for name, broken in found.items() if broken} == {}
    assert complaints == []


def test_pages_of_runs_do_not_scroll_sideways(
    signed_in: Page, live_server: LiveServer, addresses: dict[str, str]
) -> None:
    wide = []
    for name, path in addresses.items():
        signed_in.goto(live_server.url + path)
        for width in (1280, 390, 320):
            signed_in.set_viewport_size({"width": width, "height": 800})
            if signed_in.evaluate("document.documentElement.scrollWidth") > width:
                wide.append((name, width))
    assert wide == []


def test_menus_open_within_the_page(signed_in: Page, live_server: LiveServer, mara: User) -> None:
    factories.failed("KeyError", "no order 7")
    SavedView.objects.create(user=mara, page="runs:list", name=LONG[:60], query="status=failed")
    signed_in.set_viewport_size({"width": 320, "height": 800})
    outside = []
    for path in ("/runs/?status=failed", "/failures/", "/approvals/"):
        signed_in.goto(live_server.url + path)
        for menu in signed_in.locator("details.menu > summary").filter(visible=True).all():
            menu.click()
            box = signed_in.locator("details.menu[open] > .pop").bounding_box()
            if box is None or box["x"] < 0 or box["x"] + box["width"] > 320:
                outside.append((path, menu.inner_text(), box))
            signed_in.keyboard.press("Escape")
    assert outside == []


def test_the_list_renews_itself(signed_in: Page, live_server: LiveServer) -> None:
    signed_in.goto(f"{live_server.url}/runs/")
    expect(signed_in.get_by_text("No runs yet")).to_be_visible()
    factories.run(Status.ATTENTION)
    signed_in.evaluate("htmx.trigger('#runs', 'every', {}, false)")
    expect(signed_in.get_by_role("link", name="1 in attention")).to_be_visible()
    expect(signed_in.get_by_role("link", name="order 1042")).to_be_visible()


def test_an_old_success_is_taken_away_when_the_run_fails_again(
    signed_in: Page, live_server: LiveServer
) -> None:
    run = factories.run(Status.FAILED)
    signed_in.goto(f"{live_server.url}/runs/{run.pk}/retry/")
    signed_in.get_by_label("Reason").fill("the printer is back")
    signed_in.get_by_role("button", name="Retry").click()
    result = signed_in.locator("main .note.is-ok")
    expect(result).to_contain_text("The run goes on at step pack.")
    silently_ended(run, Status.FAILED)
    signed_in.evaluate("htmx.trigger('#run', 'every', {}, false)")
    expect(signed_in.locator(".run-title")).to_contain_text("Failed")
    expect(result).to_have_count(0)
