"""The frame in a real browser: what the one script adds, under the strict policy."""

import re

from django.test import Client
from playwright.sync_api import Page, Response, expect
from pytest_django.live_server_helper import LiveServer

from tests.e2e.accessibility import small_targets


def _answers(page: Page) -> list[int]:
    """Collect the status of every poll from now on."""
    seen: list[int] = []

    def note(response: Response) -> None:
        if response.url.endswith("/look/tick/"):
            seen.append(response.status)

    page.on("response", note)
    return seen


def _parts(page: Page, live_server: LiveServer) -> None:
    page.goto(f"{live_server.url}/look/")
    expect(page.locator(".nav-foot [data-live-switch]")).to_be_visible()


def test_the_policy_refuses_nothing_that_the_pages_need(
    signed_in: Page, live_server: LiveServer, complaints: list[str]
) -> None:
    for path in ("/look/", "/password/", "/look/error/409/", "/look/error/500/"):
        signed_in.goto(live_server.url + path)
        signed_in.wait_for_load_state("networkidle")
    assert complaints == []


def test_no_page_scrolls_sideways(signed_in: Page, live_server: LiveServer) -> None:
    for path in ("/look/", "/password/", "/look/error/409/"):
        signed_in.goto(live_server.url + path)
        for width in (1280, 1000, 390, 320):
            signed_in.set_viewport_size({"width": width, "height": 800})
            assert signed_in.evaluate("document.documentElement.scrollWidth") == width, (path, width)


def test_a_poll_leaves_half_typed_text_focus_and_opened_parts_alone(
    signed_in: Page, live_server: LiveServer
) -> None:
    _parts(signed_in, live_server)
    signed_in.locator("#tick summary").click()
    signed_in.locator("#kept").fill("half typed")
    # Another state than the server's, so that the next answer is a whole fragment and not 304.
    signed_in.evaluate("document.getElementById('tick')._htmx.ptag = 'older'")
    with signed_in.expect_response(lambda r: r.url.endswith("/look/tick/") and r.status == 200):
        pass
    signed_in.wait_for_function("document.getElementById('tick')._htmx.ptag !== 'older'")
    assert signed_in.locator("#kept").input_value() == "half typed"
    assert signed_in.locator("#kept").evaluate("element => element === document.activeElement")
    expect(signed_in.locator("#tick details p")).to_be_visible()


def test_paused_asks_for_nothing_and_live_asks_at_once(signed_in: Page, live_server: LiveServer) -> None:
    _parts(signed_in, live_server)
    switch = signed_in.locator(".nav-foot [data-live-switch]")
    switch.click()
    expect(switch).to_have_text("Paused")
    expect(switch).to_have_attribute("aria-pressed", "false")
    answers = _answers(signed_in)
    signed_in.evaluate("htmx.trigger('#tick', 'every', {}, false)")
    signed_in.reload()
    expect(signed_in.locator(".nav-foot [data-live-switch]")).to_have_text("Paused")
    assert answers == []
    with signed_in.expect_response(lambda r: r.url.endswith("/look/tick/")):
        signed_in.locator(".nav-foot [data-live-switch]").click()


def test_a_hidden_tab_asks_for_nothing(signed_in: Page, live_server: LiveServer) -> None:
    _parts(signed_in, live_server)
    signed_in.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    answers = _answers(signed_in)
    signed_in.evaluate("htmx.trigger('#tick', 'every', {}, false)")
    signed_in.evaluate("fetch('/password/')")
    assert answers == []


def test_a_page_that_polls_nothing_has_no_live_switch(signed_in: Page, live_server: LiveServer) -> None:
    signed_in.goto(f"{live_server.url}/password/")
    expect(signed_in.locator(".nav-foot [data-live-switch]")).to_be_hidden()


def test_a_session_that_ended_is_said_and_the_page_stays(signed_in: Page, live_server: LiveServer) -> None:
    _parts(signed_in, live_server)
    signed_in.locator("#kept").fill("half typed")
    signed_in.context.clear_cookies()
    status = signed_in.get_by_role("status")
    expect(status).to_contain_text("You are signed out")
    assert signed_in.locator("#kept").input_value() == "half typed"
    status.get_by_role("link", name="Sign in").click()
    assert signed_in.url.endswith("/sign-in/?next=%2Flook%2F")


def test_a_server_that_is_gone_is_said_and_taken_back_when_it_answers(
    signed_in: Page, live_server: LiveServer
) -> None:
    _parts(signed_in, live_server)
    signed_in.route("**/look/tick/", lambda route: route.abort())
    switch = signed_in.locator(".nav-foot [data-live-switch]")
    expect(signed_in.get_by_role("status")).to_contain_text("cannot be reached")
    expect(switch).to_have_text("Not live")
    signed_in.unroute("**/look/tick/")
    expect(signed_in.get_by_role("status")).to_be_empty()
    expect(switch).to_have_text("Live")


def test_copy_puts_the_whole_id_into_the_clipboard(signed_in: Page, live_server: LiveServer) -> None:
    signed_in.context.grant_permissions(["clipboard-read", "clipboard-write"])
    _parts(signed_in, live_server)
    signed_in.get_by_role("button", name="Copy 0198f1a7").click()
    expect(signed_in.get_by_role("status")).to_contain_text("Copied")
    assert signed_in.evaluate("navigator.clipboard.readText()") == "0198f1a7-11c0-7d2b-8f63-0b9e44d1c2f5"


def test_the_theme_changes_without_a_reload_and_stays(signed_in: Page, live_server: LiveServer) -> None:
    signed_in.goto(f"{live_server.url}/password/")
    signed_in.locator(".nav-foot summary").click()
    signed_in.locator(".nav-foot").get_by_role("button", name="Dark").click()
    expect(signed_in.locator("html")).to_have_attribute("data-theme", "dark")
    signed_in.reload()
    expect(signed_in.locator("html")).to_have_attribute("data-theme", "dark")


def test_escape_closes_a_menu_and_gives_the_focus_back(signed_in: Page, live_server: LiveServer) -> None:
    signed_in.goto(f"{live_server.url}/password/")
    menu = signed_in.locator(".nav-foot summary")
    menu.click()
    signed_in.keyboard.press("Escape")
    expect(signed_in.locator(".nav-foot details")).not_to_have_attribute("open", re.compile(""))
    assert menu.evaluate("element => element === document.activeElement")


def test_after_a_verb_the_result_has_the_focus(signed_in: Page, live_server: LiveServer) -> None:
    _parts(signed_in, live_server)
    form = signed_in.locator(".consequence form")
    form.get_by_label("Reason").fill("provider says it is fixed")
    form.get_by_role("button", name="Retry step act").click()
    result = signed_in.locator("[data-result]").first
    expect(result).to_contain_text("provider says it is fixed")
    assert result.evaluate("element => element === document.activeElement")


def test_a_form_is_sent_once_however_often_one_presses(signed_in: Page, live_server: LiveServer) -> None:
    _parts(signed_in, live_server)
    sent: list[str] = []
    signed_in.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    signed_in.locator(".consequence form").get_by_label("Reason").fill("once")
    with signed_in.expect_navigation():
        signed_in.evaluate(
            "() => { const b = document.querySelector('.consequence form button'); b.click(); b.click(); b.click(); }"
        )
    assert len(sent) == 1


def test_the_browser_says_times_like_the_server(
    signed_in: Page, live_server: LiveServer, mara: object
) -> None:
    client = Client()
    client.cookies["sessionid"] = next(
        str(cookie["value"]) for cookie in signed_in.context.cookies() if cookie["name"] == "sessionid"
    )
    pattern = re.compile(r'<time datetime="([^"]+)"[^>]*data-renew="auto"[^>]*>([^<]*)</time>')
    said = pattern.findall(client.get("/look/").content.decode())
    assert len(said) > 8
    signed_in.goto(f"{live_server.url}/look/")
    for iso, words in said:
        if words.endswith(("s ago", "now")):
            continue  # the seconds go on meanwhile
        shown = signed_in.evaluate(
            """([iso, words]) => {
              const time = document.querySelector("time[data-renew]");
              time.dateTime = iso; time.textContent = ""; document.dispatchEvent(new Event("visibilitychange"));
              return time.textContent;
            }""",
            [iso, words],
        )
        # A minute may end between the two.
        assert re.sub(r"\d+ min", "N min", shown) == re.sub(r"\d+ min", "N min", words)


def test_everything_that_can_be_pressed_is_at_least_24_pixels(
    signed_in: Page, live_server: LiveServer
) -> None:
    signed_in.set_viewport_size({"width": 390, "height": 844})
    signed_in.goto(f"{live_server.url}/look/")
    assert small_targets(signed_in) == []
