"""Why was the customer of order 1042 charged, and was it once? Against a real provider, worker and web server."""

import json
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from agentops.sandbox.client import SandboxLedger
from runs.models import Operation, Run
from runs.states import Status
from tests.e2e.accessibility import violations
from tests.e2e.test_support import person, sign_in
from tests.harness.processes import Processes


def test_support_finds_why_the_customer_of_order_1042_was_charged_and_proves_that_it_was_once(
    page: Page, processes: Processes, tmp_path: Path, complaints: list[str]
) -> None:
    # The provider loses the first request, and carries the second out without an answer.
    provider = processes.sandbox()
    shop = {"AGENTOPS_APPS": "tests.e2e.shop", "AGENTOPS_SANDBOX_URL": provider.url}
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"order": "1042"}))
    with SandboxLedger(provider.url) as ledger:
        ledger.script("POST /charges", "close_before", "close_after")
        processes.manage("start", "checkout", "--input", str(order), env=shop)
        processes.manage("worker", "--processes", "1", env=shop)
        _, url = processes.web(env=shop)
        processes.wait_until(
            lambda: Run.objects.filter(status=Status.COMPLETED).exists(), 20, "it is charged"
        )
        charged = Operation.objects.get(name="charge_customer")
        (entry,) = ledger.entries(kind="charge", order_id="1042")
        requests = ledger.requests(endpoint="POST /charges", key=str(charged.provider_key))

    # The customer calls: “you charged me twice”. Tomás searches for the order, wherever he is.
    sign_in(page, url, person("tomas", "support"))
    page.wait_for_url(lambda address: "/sign-in/" not in address)
    page.keyboard.press("/")
    expect(page.locator(".nav [data-search]")).to_be_focused()
    page.keyboard.type("order 1042")
    page.keyboard.press("Enter")

    # What was done for it, by all runs, stands on one page, in a sentence.
    page.get_by_role("link", name="What was done for order 1042").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("order 1042")
    expect(page.locator(".verdicts")).to_contain_text(f"charge_customer ran once: key {charged.provider_key}")
    expect(page.locator(".run-head .because")).to_contain_text("Nothing is in doubt.")
    assert violations(page) == []

    # Why: the run, what the customer said, and the charge on its time axis.
    page.get_by_role("region", name="Runs").get_by_role("link", name="checkout").click()
    expect(page.locator(".run-title .status")).to_have_text("Completed")
    expect(page.locator("#record")).to_contain_text("I take order 1042.")
    assert violations(page) == []
    page.locator(".fall").get_by_role("link", name="charge_customer").click()

    # Once: the operation says so first, then shows its key, what the provider calls it, and each time that it was sent.
    said = page.locator(".run-head .because")
    expect(said).to_contain_text(
        re.compile(r"Charged customer €184\.50 once, at \d\d:\d\d:\d\d; provider reference ch_")
    )
    expect(said).to_contain_text(entry.answer["id"])
    expect(said).to_contain_text("Sent twice; neither got an answer. The provider was asked, and has it.")
    expect(page.locator(".facts")).to_contain_text(str(charged.provider_key))
    sends = page.locator(".sends li")
    expect(sends).to_have_count(3)
    expect(sends.nth(0)).to_contain_text("It got no answer")
    expect(sends.nth(1)).to_contain_text("It got no answer")
    expect(sends.nth(2)).to_contain_text(f"The provider was asked, and has it as {entry.answer['id']}")
    assert violations(page) == []

    # The provider's own ledger: two requests under this key, one charge.
    assert (len(requests), entry.key) == (2, str(charged.provider_key))

    # The attempt that lost its answer has an address of its own, and the run as evidence is one file.
    sends.nth(0).get_by_role("link", name="try 1").click()
    expect(page).to_have_url(re.compile(r"/attempts/1/1/$"))
    expect(page.get_by_role("region", name="What it did")).to_contain_text("charge_customer")
    assert violations(page) == []
    page.locator(".crumbs").get_by_role("link", name=str(charged.run_id)[:13]).click()
    with page.expect_download() as taken:
        page.get_by_role("button", name="Export support bundle").click()
    bundle = json.loads(Path(taken.value.path()).read_text())
    (told,) = (one for one in bundle["operations"] if one["name"] == "charge_customer")
    assert (told["provider_ref"], len(told["earlier_sends"])) == (entry.answer["id"], 1)
    assert complaints == []
