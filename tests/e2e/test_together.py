"""An operator who decides on like requests with one verdict, by keyboard."""

from decimal import Decimal

from django.contrib.auth.models import Group, User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from approvals import services
from approvals.models import Approval, Vote
from runs.models import Event
from tests import factories
from tests.e2e.accessibility import violations
from tests.e2e.test_inbox import press


def test_an_operator_decides_on_five_refunds_at_once_and_one_of_them_had_changed(
    signed_in: Page, live_server: LiveServer, mara: User, complaints: list[str]
) -> None:
    page = signed_in
    mara.groups.add(Group.objects.get(name="operators"))
    refunds = [
        factories.approval(title=f"Refund {n}", arguments={"order": "1042", "amount": Decimal(f"{n}.50")})
        for n in range(5)
    ]
    factories.approval(name="print_label", title="Print a label", arguments={"order": "7"})

    # One key takes all that are alike, and so does a link above the list.
    page.goto(f"{live_server.url}/approvals/")
    press(page, "t")
    expect(page.locator(".together :checked")).to_have_count(5)
    page.go_back()
    page.get_by_role("link", name="All 5 × book_courier").click()
    expect(page.locator(".together :checked")).to_have_count(5)

    # Mara chooses them one by one; what is chosen stays chosen while she goes on.
    page.goto(f"{live_server.url}/approvals/")
    for n in range(6):
        expect(page.locator("#what")).to_have_text(f"Refund {n}" if n < 5 else "Print a label")
        press(page, "x")
        expect(page.locator(".tick-bar")).to_contain_text("together")
        expect(page.locator(".inbox-list :checked")).to_have_count(n + 1)
        if n < 5:
            press(page, "j")
    assert violations(page) == []
    press(page, "d")

    expect(page.locator("#what")).to_have_text("Decide on 5 × book_courier together")
    expect(page.locator("#left-out ~ ul, section:has(#left-out) li")).to_contain_text("print_label")
    expect(page.locator(".together :checked")).to_have_count(5)
    assert violations(page) == []

    # The last one is not like the others to her, and the fourth is edited while she reads.
    page.get_by_label("Refund 4, order 1042").uncheck()
    services.edit(
        factories.operator("ann"), refunds[3].pk, version=1, arguments={"order": "1042", "amount": "99.00"}
    )
    press(page, "r")
    page.keyboard.type("paid already")
    press(page, "Escape")
    press(page, "a")
    expect(page.get_by_role("button", name="Approve each ticked book_courier")).to_be_focused()
    press(page, "Enter")

    expect(page.locator("[data-result]")).to_contain_text(
        "3 approved. Not decided: 1 changed since you looked."
    )
    expect(page.locator(".together-results")).to_contain_text("Refund 3")
    assert violations(page) == []
    expect(page.locator("#what")).to_have_text("2 × book_courier are left to decide")
    page.reload()
    expect(page.locator("[data-result]")).to_contain_text("3 approved.")
    states = list(Approval.objects.filter(name="book_courier").order_by("id").values_list("state", flat=True))
    assert states == ["approved", "approved", "approved", "open", "open"]
    assert set(Vote.objects.values_list("voter_name", "reason")) == {("mara.okafor", "paid already")}
    assert Event.objects.filter(kind="approval_decided").count() == 3
    page.goto(f"{live_server.url}/approvals/")
    expect(page.locator(".inbox-list :checked")).to_have_count(0)
    assert complaints == []
