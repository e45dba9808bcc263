"""Many runs at once, against real workers and a real web server: stopped half-way, and after a limit was raised."""

import re
from pathlib import Path
from typing import Any

from django.db.models import Count
from playwright.sync_api import Page, expect

from runs import codec
from runs.models import Bulk, BulkItem, Event, Run
from runs.states import Status
from tests import factories
from tests.chaos.conftest import QUICK
from tests.e2e.accessibility import violations
from tests.e2e.shop.workflows import Order
from tests.e2e.test_support import person, sign_in
from tests.harness.processes import Processes


def dead_letters(number: int, **fields: Any) -> None:
    """Orders whose label could not be printed."""
    for order in range(number):
        given = codec.encode(Order(order=str(order)))
        what = {"workflow": "print_label", "step": "print_it", "subject": f"order {order}", "input": given}
        state = {"address": f"{order} Main Street"}
        factories.run(Status.FAILED, state=state, input_digest=codec.digest(given), **what, **fields)


def times_retried() -> set[int]:
    """How often runs were retried: {1} where each was just once."""
    retried = Event.objects.filter(kind="retried").values("run_id").annotate(times=Count("seq"))
    return {row["times"] for row in retried}


def test_a_bulk_retry_is_stopped_half_way_its_worker_is_killed_and_every_run_is_retried_once(
    page: Page, processes: Processes, tmp_path: Path, complaints: list[str]
) -> None:
    printer = tmp_path / "printer"
    shop = QUICK | {"AGENTOPS_APPS": "tests.e2e.shop", "LABEL_PRINTER": str(printer)}
    dead_letters(30)
    printer.touch()
    worker = processes.worker(processes=1, env=shop)
    _, url = processes.web(env=shop)
    sign_in(page, url, person("tomas", "support"))

    # Tomás chooses what the broken printer left behind, and has it looked at before anything happens.
    page.get_by_role("link", name="Bulks").click()
    page.get_by_role("link", name="New bulk").first.click()
    page.get_by_label("Workflow").fill("print_label")
    page.get_by_role("button", name="Show what matches").click()
    expect(page.get_by_role("heading", name="Retry 30 runs")).to_be_visible()
    assert violations(page) == []
    page.get_by_label("Name").fill("Printer outage")
    page.get_by_label("Reason").fill("It prints again")
    page.get_by_role("button", name="Make the dry run").click()
    expect(page.locator(".because")).to_contain_text(
        "All 30 runs can be retried. Nothing has been done", timeout=10_000
    )
    assert violations(page) == []

    # Five go first. He looks at what became of them, and lets the others go.
    page.get_by_label("Rate").fill("600")
    page.get_by_role("button", name="Start with 5 runs").click()
    expect(page.locator(".because")).to_contain_text("The first 5 runs are done: 5 completed", timeout=15_000)
    page.get_by_role("button", name="Go on with 25 runs").click()

    # Half-way, somebody kills the workers with kill -9, and he stops to see what that did.
    made = Bulk.objects.get()
    processes.wait_until(lambda: Bulk.objects.get(pk=made.pk).done >= 12, 15, "12 runs are retried")
    worker.kill()
    page.get_by_role("link", name="Pause…").click()
    page.get_by_role("button", name="Pause the bulk").click()
    expect(page.locator("[data-result]")).to_have_text("It is paused: no further run is touched.")
    expect(page.locator(".because")).to_contain_text("Paused by tomas.")
    made.refresh_from_db()
    assert 12 <= made.done < 30
    assert BulkItem.objects.filter(bulk=made, state="done").count() == made.done
    assert Event.objects.filter(kind="retried").count() == made.done

    # New workers do nothing until he says so; then each of the others goes, and none of the first ones again.
    processes.worker(processes=1, env=shop)
    page.get_by_role("link", name="Resume…").click()
    page.get_by_label("Rate").fill("1200")
    page.get_by_role("button", name="Resume the bulk").click()
    expect(page.locator(".because")).to_contain_text(
        "All is done: 30 of 30 runs were retried", timeout=20_000
    )
    expect(page.locator(".because")).to_contain_text("30 completed", timeout=20_000)
    assert times_retried() == {1}
    assert set(Run.objects.values_list("status", flat=True)) == {Status.COMPLETED}
    assert complaints == []


def test_an_admin_raises_a_limit_and_fifty_dead_letters_recover(
    page: Page, processes: Processes, tmp_path: Path, complaints: list[str]
) -> None:
    printer = tmp_path / "printer"
    shop = QUICK | {"AGENTOPS_APPS": "tests.e2e.shop", "LABEL_PRINTER": str(printer)}
    dead_letters(50, reason="gave up after 2 of 2 attempts: ConnectionError: the label printer is offline")
    printer.touch()
    processes.worker(processes=1, env=shop)
    _, url = processes.web(env=shop)
    sign_in(page, url, person("ada", "admins"))

    # Two attempts were too few. Before she sets more, the page says whom that would help.
    page.goto(f"{url}/limits/step/print_label/print_it/?change=max_attempts")
    page.get_by_label("New limit").fill("8")
    page.get_by_label("Reason").fill("The printer takes longer to restart")
    expect(page.locator("#preview")).to_contain_text("dead letters could be retried")
    page.get_by_role("button", name="Set the retry limit").click()
    expect(page.locator("[data-result]").first).to_contain_text("is now 8 attempts")

    # What has failed does not come back by itself: a link leads to a bulk of just these.
    page.goto(f"{url}/limits/step/print_label/print_it/?change=max_attempts&value=9")
    page.get_by_role("link", name="dead letters").click()
    expect(page.get_by_role("heading", name="Retry 50 runs")).to_be_visible()
    page.get_by_label("Name").fill("Slow printer")
    page.get_by_label("Reason").fill("Eight attempts are enough")
    page.get_by_role("button", name="Make the dry run").click()
    expect(page.locator(".because")).to_contain_text("All 50 runs can be retried", timeout=10_000)
    page.get_by_label("Rate").fill("3000")
    page.get_by_role("button", name="Start with 5 runs").click()
    page.get_by_role("button", name="Go on with 45 runs").click(timeout=15_000)
    expect(page.locator(".because")).to_contain_text(re.compile("50 completed"), timeout=20_000)
    assert set(Run.objects.values_list("status", flat=True)) == {Status.COMPLETED}
    assert times_retried() == {1}
    assert complaints == []
