"""Policies in the browser: two people approve what one of them has changed, and a verb needs four eyes."""

import re
from typing import cast

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.urls import reverse
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from approvals.models import Approval, Request, Vote
from runs.lifecycle import Actor
from runs.models import Run
from runs.services import start
from runs.states import Status
from tests import factories
from tests.e2e.accessibility import violations
from tests.e2e.conftest import sign_in
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import quick, running_worker
from tests.runs.engine.flows import world

__all__ = ["quick"]


@pytest.fixture
def desk(browser: Browser, live_server: LiveServer, transactional_db: None):
    """Opens a browser of one's own in which somebody is signed in."""
    contexts = []

    def sit(actor: Actor, width: int = 1280) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, base_url=live_server.url)
        sign_in(context, live_server.url, cast(User, actor.user))
        contexts.append(context)
        return context.new_page()

    yield sit
    for context in contexts:
        context.close()


@pytest.mark.usefixtures("quick")
def test_two_people_approve_what_one_of_them_has_changed_and_the_starter_is_refused(desk) -> None:
    world.__init__()  # type: ignore[misc]
    ada, olga, bert, cora = (
        factories.admin("ada"),
        *(factories.operator(name) for name in ("olga", "bert", "cora")),
    )

    # The admin asks for two people, by data.
    page = desk(ada)
    page.goto(reverse("policies:list"))
    page.get_by_role("link", name="pay_approved", exact=True).click()
    page.get_by_role("link", name="Set a policy").click()
    page.get_by_label("When", exact=True).fill("amount >> 10")
    page.get_by_label("Different people who must approve").fill("2")
    page.get_by_label("Reason").fill("four eyes on money")
    page.get_by_role("button", name="Let these rules act").click()
    expect(page.locator("[data-result]")).to_contain_text("at character 9")
    page.get_by_label("When", exact=True).fill("amount > 10")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("2 different people of admins or operators")
    assert violations(page) == []
    page.get_by_role("button", name="Let these rules act").click()
    expect(page.locator("[data-result]")).to_contain_text("The policy acts now")
    assert violations(page) == []

    with running_worker():
        run = start(olga, "t_guarded", {"n": 20, "text": ""}).run
        wait_until(lambda: Approval.objects.filter(run=run).exists(), 15, "the agent asks")
        url = reverse("approvals:approval", args=[Approval.objects.get(run=run).pk])

        # Whoever started it is refused.
        page = desk(olga)
        page.goto(url)
        expect(page.locator("#decide")).to_contain_text("you started this run")
        expect(page.get_by_role("button", name=re.compile("Approve"))).to_have_count(0)

        first, second = desk(bert), desk(cora)
        first.goto(url)
        first.get_by_role("button", name=re.compile("^Approve")).click()
        expect(first.locator("[data-result]")).to_contain_text("1 more needed")

        # An edit in between: the first vote is void, and both vote anew.
        second.goto(reverse("approvals:edit", args=[Approval.objects.get(run=run).pk]))
        second.get_by_label("Amount").fill("15")
        second.get_by_role("button", name="Make version 2").click()
        expect(second.locator("[data-result]")).to_contain_text("earlier votes are void")
        second.goto(url)
        second.get_by_role("button", name=re.compile("^Approve")).click()
        expect(second.locator("[data-result]")).to_contain_text("1 more needed")
        assert world.seen == []
        first.goto(url)
        expect(first.locator("#decision")).to_contain_text("Void since the edit")
        first.get_by_role("button", name=re.compile("^Approve")).click()
        wait_until(lambda: Run.objects.get(pk=run.pk).status == Status.COMPLETED, 15, "the run completes")
    assert world.seen == [15]
    assert list(Vote.objects.order_by("at").values_list("voter_name", "version")) == [
        ("bert", 1),
        ("cora", 2),
        ("bert", 2),
    ]


def test_a_run_is_forced_on_once_a_second_person_has_signed_in_again_and_agreed(desk) -> None:
    sam, ada, bea = factories.support("sam"), factories.admin("ada"), factories.admin("bea")
    run = factories.run(Status.WAITING)

    page = desk(bea, 390)
    page.goto(reverse("policies:edit", args=["verb", "force_resume"]))
    page.get_by_label("Signed in within").fill("10")
    page.get_by_label("Reason").fill("four eyes")
    page.get_by_role("button", name="Let these rules act").click()
    expect(page.locator("[data-result]")).to_contain_text("The policy acts now")
    assert violations(page) == []

    asks = desk(sam)
    asks.goto(reverse("runs:force_resume", args=[run.pk]))
    asks.get_by_label("Reason").fill("the provider wrote a mail instead")
    asks.get_by_role("button", name=re.compile("Force|Resume", re.IGNORECASE)).last.click()
    expect(asks.locator("[data-result]")).to_contain_text("Nothing was done yet")
    made = Request.objects.get()

    # Her session is old: the password first, then the decision, with what she typed.
    decides = desk(ada, 390)
    for session in Session.objects.all():
        store = session.get_decoded() | {"signed_in_at": "2020-01-01T00:00:00+00:00"}
        Session.objects.filter(pk=session.pk).update(session_data=Session.objects.encode(store))
    decides.goto(reverse("requests:request", args=[made.pk]))
    assert violations(decides) == []
    decides.get_by_label("Reason").fill("seen in their mail")
    decides.get_by_role("button", name="Approve this").click()
    expect(decides.get_by_role("heading", name="Sign in again")).to_be_visible()
    assert violations(decides) == []
    decides.get_by_label("Password").fill("secret")
    decides.get_by_role("button", name="Sign in again").click()
    expect(decides.get_by_label("Reason")).to_have_value("seen in their mail")
    decides.get_by_role("button", name="Approve this").click()
    expect(decides.locator("[data-result]")).to_contain_text("carried out")
    run.refresh_from_db()
    assert run.wake_at is not None

    # A tab that stood open meanwhile changes nothing.
    asks.get_by_role("button", name="Withdraw this request").click()
    expect(asks.locator("[data-result]")).to_contain_text("Nothing was done: this request is over")
