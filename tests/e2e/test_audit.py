"""The audit in a real browser: a story, and every page accessible, narrow enough and within the policy."""

import json

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from agentops.look.samples import HOSTILE
from runs import codec, lifecycle, services
from runs.models import AuditEvent
from runs.services import chain
from runs.states import Status
from tests import factories
from tests.e2e.accessibility import small_targets, violations

LONG = "a-word-that-nobody-broke-" * 12


@pytest.fixture
def paths(mara: User) -> list[str]:
    """Pages with ordinary, long and hostile contents; the chain of one run, and then that of the audit, is broken."""
    mara.groups.add(Group.objects.get(name="admins"))
    run = factories.run(Status.WAITING, subject=codec.clean_text(HOSTILE[1]), workflow=LONG)
    lifecycle.append_event(run, "retried", lifecycle.Actor(LONG, mara), LONG, step=LONG)
    services.set_limits(factories.admin("ada"), "step", "parcel/pack", max_attempts=8, reason=LONG)
    changed = AuditEvent.objects.latest("id")
    chain.check_chain(factories.admin("bea"))
    with connection.cursor() as cursor:
        for table in ("runs_event", "runs_audit_event"):
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER append_only")
        cursor.execute("UPDATE runs_event SET reason = 'x' WHERE run_id = %s AND seq = 1", [run.pk])
        cursor.execute("UPDATE runs_audit_event SET actor = 'eve' WHERE id = %s", [changed.pk])
        for table in ("runs_event", "runs_audit_event"):
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER append_only")
    chain.check_chain(factories.admin("cleo"))
    sound = factories.run()
    return [
        "/audit/",
        "/audit/?what=limits&person=nobody",
        "/audit/?run=x",
        "/audit/export/?what=limits",
        "/audit/chain/",
        f"/audit/changes/{changed.pk}/",
        f"/audit/runs/{run.pk}/2/",
        f"/audit/runs/{run.pk}/",
        f"/audit/runs/{sound.pk}/",
    ]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_every_page_is_accessible_and_fits(
    width: int, theme: str, signed_in: Page, live_server: LiveServer, paths: list[str], complaints: list[str]
) -> None:
    signed_in.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    signed_in.set_viewport_size({"width": width, "height": 900})
    for path in paths:
        signed_in.goto(live_server.url + path)
        assert violations(signed_in) == [], path
        assert signed_in.evaluate("document.documentElement.scrollWidth") == width, path
        assert width > 400 or small_targets(signed_in) == [], path
    assert complaints == []


def test_an_auditor_finds_who_raised_a_limit_takes_it_away_as_a_file_and_checks_the_chain(
    mara: User, signed_in: Page, live_server: LiveServer
) -> None:
    mara.groups.add(Group.objects.get(name="admins"))
    services.set_limits(factories.admin("ada"), "tool", "book_courier", max_attempts=8, reason="it is slow")
    for number in range(3):
        lifecycle.append_event(
            factories.run(), "retried", lifecycle.Actor("sam", mara), str(number), step="pack"
        )
    page = signed_in
    page.goto(f"{live_server.url}/")
    page.get_by_role("navigation", name="Main", exact=True).get_by_role("link", name="Audit").click()
    expect(page.locator(".acts li")).to_have_count(4)
    page.locator("summary", has_text="What").first.click()
    page.get_by_role("link", name="Limits and pauses").click()
    expect(page.locator(".acts li")).to_have_count(1)
    page.locator(".acts .whole").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("ada changed the limits of book_courier")
    expect(page.locator("main")).to_contain_text("the default to 8 attempts")
    page.go_back()
    page.get_by_role("link", name="Export…").click()
    page.get_by_label("Format").select_option("jsonl")
    page.get_by_label("Reason").fill("for the yearly audit")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export the audit").click()
    lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert [line["reason"] for line in lines] == ["it is slow"]
    page.goto(f"{live_server.url}/audit/chain/")
    page.get_by_role("button", name="Check the chain now").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("The chain is sound")
    expect(page.locator("main")).to_contain_text("up to entry 2")
