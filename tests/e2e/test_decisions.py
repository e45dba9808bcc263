"""Stories of people at the console, while a real worker executes runs and the sandbox is the world."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect

from agentops.sandbox.client import SandboxLedger
from approvals.models import Approval
from runs import clock, services
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.states import Status
from tests import factories
from tests.e2e.conftest import PASSWORD
from tests.harness.processes import Child, Processes

WITHIN_S = 30.0
WITHIN_MS = WITHIN_S * 1000


def person(name: str, group: str) -> User:
    """Somebody whose password the console's own settings can check (those of the tests hash more cheaply)."""
    made = factories.user(name, group)
    made.password = PBKDF2PasswordHasher().encode(PASSWORD, "salt", iterations=1000)
    made.save()
    return made


@dataclass
class World:
    """A sandbox, a console that gets its webhooks, and workers when a story wants them."""

    processes: Processes
    browser: Browser
    surroundings: dict[str, str]
    url: str
    ledger: SandboxLedger

    def start_worker(self) -> Child:
        return self.processes.worker(env=self.surroundings)

    def until(self, condition: Callable[[], bool], why: str) -> None:
        self.processes.wait_until(condition, WITHIN_S, why)

    def signed_in(self, user: User) -> Page:
        page = self.browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.set_default_timeout(WITHIN_MS)
        page.goto(f"{self.url}/sign-in/")
        page.get_by_label("User name").fill(user.username)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda address: "/sign-in/" not in address)
        return page


@pytest.fixture
def world(processes: Processes, browser: Browser) -> Iterator[World]:
    sandbox = processes.sandbox("--settle-delay", "0.2")
    host, _, port = sandbox.smtp.rpartition(":")
    surroundings = {
        "AGENTOPS_SANDBOX_URL": sandbox.url,
        "AGENTOPS_SMTP_HOST": host,
        "AGENTOPS_SMTP_PORT": port,
        "AGENTOPS_POLL_SECONDS": "0.1",
    }
    _, url = processes.web(env=surroundings)
    with SandboxLedger(sandbox.url) as ledger:
        ledger.send_webhooks_to(f"{url}/webhooks/sandbox")
        yield World(processes, browser, surroundings, url, ledger)
    for context in browser.contexts:
        context.close()


@pytest.mark.django_db(transaction=True)
def test_one_operator_edits_the_amount_another_approves_and_exactly_that_is_paid(world: World) -> None:
    olga, bert = person("olga", "operators"), person("bert", "operators")
    world.start_worker()
    message = "The lamp arrived broken. Please refund 180 EUR."
    run = services.start(Actor("mail"), "refund_request", {"order_id": "5000", "message": message}).run
    world.until(
        lambda: Approval.objects.filter(run=run, state="open").exists(), "the agent asks for approval"
    )
    asked = Approval.objects.get(run=run)

    first = world.signed_in(olga)
    first.goto(f"{world.url}/approvals/")
    first.locator("main a.item").first.click()
    expect(first.locator("h1.headline")).to_contain_text(asked.title)
    expect(first.locator("#decision")).to_contain_text("the agent's words, not checked")

    # Bert has the same request open while Olga edits it, and is typing.
    second = world.signed_in(bert)
    second.goto(f"{world.url}/approvals/{asked.pk}/")
    second.locator("#reason").fill("half typed")

    first.get_by_role("link", name="Edit, then approve").click()
    first.get_by_label("Amount").fill("101.50")
    first.get_by_label("Why you change it").fill("the shade is fine")
    first.get_by_role("button", name="Make version 2").click()
    expect(first.locator("[data-result]")).to_contain_text("Version 2 is up for decision")
    expect(first.locator("ins", has_text="101.50")).to_be_visible()

    # His page tells him, has no button for what he has not read, and leaves what he typed.
    expect(second.locator("#decide")).to_contain_text("olga made version 2", timeout=WITHIN_MS)
    expect(second.get_by_role("button", name="Approve")).to_have_count(0)
    expect(second.locator("#reason")).to_have_value("half typed")
    second.get_by_role("link", name="Decide on version 2").click()
    second.get_by_role("button", name="Approve refund").click()
    expect(second.locator("[data-result]")).to_contain_text("approved")
    expect(second.locator("#decision")).to_contain_text(
        "The run has taken the decision over.", timeout=WITHIN_MS
    )

    world.until(lambda: Run.objects.get(pk=run.pk).status == Status.COMPLETED, "the run completes")
    (entry,) = world.ledger.entries(kind="refund")
    assert Decimal(str(entry.answer["amount"])) == Decimal("101.50")
    expect(first.locator("#decision")).to_contain_text("Approved by bert", timeout=WITHIN_MS)


@pytest.mark.django_db(transaction=True)
def test_an_admin_raises_a_limit_and_a_run_in_back_off_gets_more_tries(world: World) -> None:
    ada = person("ada", "admins")
    hour = 3600.0
    services.set_limits(
        Actor.of(ada), "tool", "fetch_figures", max_attempts=2, backoff_base_s=hour, backoff_max_s=hour
    )
    worker = world.start_worker()
    run = services.start(Actor("schedule"), "flaky_report", {"ending": "provider_down"}).run
    world.until(lambda: Run.objects.get(pk=run.pk).status == Status.RETRYING, "the run stands in back-off")

    page = world.signed_in(ada)
    page.goto(f"{world.url}/limits/")
    page.get_by_role("navigation", name="Scope").get_by_role("link", name="fetch_figures").click()
    page.get_by_role("link", name="Change Retry limit").click()
    page.get_by_label("New limit").fill("1")
    expect(page.locator("#preview")).to_contain_text("1 of 1 runs in back-off")
    page.get_by_label("New limit").fill("4")
    expect(page.locator("#preview")).to_contain_text("No run ends by this")
    page.get_by_label("Reason").fill("the provider says noon")
    page.get_by_role("button", name="Set the retry limit").click()
    expect(page.locator("[data-result]")).to_contain_text("Retry limit of fetch_figures is now 4 attempts.")
    expect(page.locator(".history")).to_contain_text("2 attempts to 4 attempts")

    # The back-off is over, and none follows: what was the last try but for her is one of four.
    page.get_by_role("link", name="Change First back-off").click()
    page.get_by_label("New limit").fill("0")
    page.get_by_label("Reason").fill("no need to wait")
    page.get_by_role("button", name="Set the first back-off").click()
    now = clock.now()
    Run.objects.filter(pk=run.pk, status=Status.RETRYING).update(wake_at=now, sort_at=now)
    world.until(lambda: Run.objects.get(pk=run.pk).status == Status.FAILED, "the tries are used up")
    assert Operation.objects.get(run=run, name="fetch_figures").tries == 4
    assert worker.returncode is None
