"""An operator at the inbox, who does not touch the mouse."""

from collections import Counter

from django.contrib.auth.models import Group, User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from approvals.models import Approval, Item, Question, ReadMark
from tests import factories


def press(page: Page, key: str) -> None:
    page.wait_for_load_state()  # before that nobody listens to keys
    page.keyboard.press(key)


def test_an_operator_clears_an_inbox_of_twenty_by_keyboard_alone(
    signed_in: Page, live_server: LiveServer, mara: User, complaints: list[str]
) -> None:
    page = signed_in
    mara.groups.add(Group.objects.get(name="operators"))
    for number in range(20):
        factories.approval(title=f"Refund {number:02}")
    page.goto(f"{live_server.url}/approvals/")
    expect(page).to_have_title("(20) Inbox · agentops")
    press(page, "?")
    expect(page.locator("#keys")).to_be_visible()
    press(page, "Escape")
    expect(page.locator("#keys")).to_be_hidden()
    press(page, "j")
    expect(page.locator("#what")).to_have_text("Refund 01")
    press(page, "k")
    expect(page.locator("#what")).to_have_text("Refund 00")
    expect(page.locator(".position")).to_have_text("1 of 20")
    press(page, "c")
    expect(page.get_by_role("button", name="Release")).to_be_visible()
    assert Item.objects.get().claimed_by_name == mara.username

    # A key is a letter where somebody writes; Enter alone decides nothing there.
    page.locator("#reason").focus()
    page.keyboard.type("arjck")
    expect(page.locator("#reason")).to_have_value("arjck")
    press(page, "Enter")
    expect(page.locator("[data-result]").first).to_be_visible()
    assert Approval.objects.filter(state="open").count() == 20

    page.goto(f"{live_server.url}/approvals/")
    press(page, "b")
    page.keyboard.type("why so much?")
    press(page, "Enter")
    expect(page.locator("[data-result]")).to_contain_text("Your question is recorded")
    assert Question.objects.get().text == "why so much?"

    for number in range(20):
        expect(page.locator("#what")).to_have_text(f"Refund {number:02}")
        if number % 4 == 3:
            press(page, "r")
            page.keyboard.type("paid already")
            press(page, "Enter")
            expect(page.locator("[data-result]")).to_contain_text("rejected")
        else:
            press(page, "a")
            expect(page.get_by_role("button", name="Approve book_courier")).to_be_focused()
            press(page, "Enter")
            expect(page.locator("[data-result]")).to_contain_text("approved")
        if number < 19:
            press(page, "j")
    assert Counter(Approval.objects.values_list("state", flat=True)) == {"approved": 15, "rejected": 5}
    expect(page).to_have_title("Refund 19 · Inbox · agentops")
    assert ReadMark.objects.filter(user=mara).count() == 20
    assert complaints == []
