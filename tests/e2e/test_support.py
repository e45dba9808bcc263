"""What a person from support does with a failed run, against real workers and a real web server."""

import json
import re
from pathlib import Path

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import Group, User
from playwright.sync_api import Page, expect

from runs.models import Event, Run
from runs.states import Status
from tests.e2e.accessibility import violations
from tests.e2e.conftest import PASSWORD
from tests.harness.processes import Processes


def person(name: str, group: str) -> User:
    """Somebody who can sign in to a server with real settings, whose hasher is not the tests' cheap one."""
    password = PBKDF2PasswordHasher().encode(PASSWORD, "salt of a story", iterations=1000)
    made = User.objects.create(username=name, password=password)
    made.groups.add(Group.objects.get(name=group))
    return made


def sign_in(page: Page, url: str, who: User) -> None:
    page.goto(f"{url}/")
    page.get_by_label("User name").fill(who.username)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def test_support_reads_why_a_run_failed_retries_it_with_a_reason_and_sees_it_complete(
    page: Page, processes: Processes, tmp_path: Path, complaints: list[str]
) -> None:
    # The label printer is off, so an order fails.
    printer = tmp_path / "printer"
    shop = {"AGENTOPS_APPS": "tests.e2e.shop", "LABEL_PRINTER": str(printer)}
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"order": "1042"}))
    processes.worker(processes=1, env=shop)
    processes.run("start", "print_label", "--input", str(order), env=shop)
    processes.wait_until(lambda: Run.objects.filter(status=Status.FAILED).exists(), 20, "the order fails")

    # Tomás from support signs in. The first page says that something fails, and leads to the run.
    _, url = processes.web(env=shop)
    sign_in(page, url, person("tomas", "support"))
    page.get_by_role("region", name="Fails").get_by_role("link", name="ConnectionError").click()
    page.get_by_role("link", name="order 1042", exact=True).click()

    # He reads why: in a sentence first, then in the attempt that ended it.
    expect(page.locator(".because")).to_contain_text(
        "Failed: gave up after 2 of 2 attempts: ConnectionError: the label printer is offline."
    )
    expect(page.locator(".because")).to_contain_text("Nothing happens until somebody retries it.")
    expect(page.locator(".attempt:visible .trace")).to_contain_text("the label printer is offline")
    assert violations(page) == []

    # Somebody switches the printer on. He looks at what a retry would do, and does it.
    printer.touch()
    page.get_by_role("link", name="Retry").click()
    expect(page.get_by_role("heading", name="Retry in place")).to_be_visible()
    expect(page.locator(".outcomes")).to_contain_text("step print_it")
    assert violations(page) == []
    page.get_by_label("Reason").fill("The printer is on again")
    page.get_by_role("button", name="Retry step print_it").click()
    expect(page.locator("[data-result]")).to_have_text("The run goes on at step print_it.")
    assert page.locator("[data-result]").evaluate("element => element === document.activeElement")

    # The page renews itself until the run is complete, and then asks no more.
    expect(page.locator(".run-title .status")).to_have_text("Completed", timeout=15_000)
    expect(page.locator("#run")).not_to_have_attribute("hx-trigger", re.compile(""))
    page.get_by_role("link", name="State").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("1042 Main Street")

    # What he did is on record, with his name and his reason.
    page.get_by_role("link", name=re.compile("Events")).click()
    expect(page.locator("#record")).to_contain_text("Retried: The printer is on again")
    event = Event.objects.get(kind="retried")
    assert (event.actor, event.reason) == ("tomas", "The printer is on again")
    assert complaints == []


def test_opened_parts_stay_open_while_the_page_of_a_run_renews_itself(
    page: Page, processes: Processes, tmp_path: Path
) -> None:
    printer = tmp_path / "printer"
    shop = {"AGENTOPS_APPS": "tests.e2e.shop", "LABEL_PRINTER": str(printer)}
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"order": "7"}))
    processes.run("start", "print_label", "--input", str(order), env=shop)
    _, url = processes.web(env=shop)
    sign_in(page, url, person("mara", "admins"))
    page.get_by_role("link", name="Runs", exact=True).first.click()
    page.get_by_role("link", name="order 7").click()
    expect(page.locator(".because")).to_contain_text("no live worker looks at queue default")
    page.get_by_text("What it refers to").click()
    printer.touch()
    processes.worker(processes=1, env=shop)
    expect(page.locator(".run-title .status")).to_have_text("Completed", timeout=20_000)
    expect(page.locator("#event-1 details").first).to_have_attribute("open", "")
