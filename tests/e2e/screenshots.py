"""Take a picture of every page at 1280 and 390 px, light and dark, into screenshots/.

    uv run python -m tests.e2e.screenshots --url http://127.0.0.1:8000 --user mara --password … [--only look,inbox]

The pages are those of a running console (`manage.py demo`, for instance): what its navigation links to, the first thing on
each of these pages, runs in several states with the pages of their verbs and one that had gone stale, and with AGENTOPS_DEBUG
the parts. Anything the browser complains about (a script error, something that the Content-Security-Policy refused, horizontal
scrolling) is printed, and the command then exits 1.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.e2e.browser import LAUNCH

FOLDER = Path(__file__).resolve().parents[2] / "screenshots"
WIDTHS = {"1280": (1280, 900), "390": (390, 844)}
THEMES = ("light", "dark")
#: Name of a picture: the page of the navigation that leads there, and its link.
FIRSTS = {
    "approval": ("inbox", "main a.item:not([href*='/items/'])"),
    "item": ("inbox", "main a.item[href*='/items/']"),
    "run": ("runs", "main .runs .subject a"),
    "failure": ("failures", "main th[scope=row] a"),
    "bulk": ("bulks", "main th[scope=row] a, main .name a"),
    "limit": ("limits", "main nav a[href*='workflow/']"),
    "policy": ("policies", "main th[scope=row] a"),
    "person": ("people", "main th[scope=row] a"),
    "drain": ("workers", "main .act a"),
    "start-workflow": ("runs", "main .page-head a.primary"),
    "audit-entry": ("audit", "main .acts a.whole"),
    "audit-chain": ("audit", "main .page-head p a"),
    "audit-export": ("audit", "main .page-head a.btn"),
}
#: Runs whose page and verbs are pictured, and where the first of them stands.
OF_RUNS = {
    "failed": "/runs/?status=failed",
    "attention": "/runs/?status=attention",
    "waiting": "/runs/?status=waiting",
    "completed": "/runs/?status=completed",
}
#: Pages that a run's page leads to.
OF_A_RUN = {
    "attempt": "main .attempt a[href*='/attempts/']",
    "operation": "main .ops th a",
    "subject": "main .facts a[href*='subject=']",
    "compare": "main .facts a[href$='/compare/']",
}
FIXED = {
    "parts": "/look/",
    "bulk-new": "/bulk/new/",
    "bulk-preview": "/bulk/new/?verb=retry",
    "subject": "/runs/subjects/",
    "views": "/views/?page=runs:list&query=status%3Dfailed",
    "no-such-run": "/runs/?q=nothing+like+this",
    "password": "/password/",
    "error-403": "/look/error/403/",
    "error-404": "/look/error/404/",
    "error-409": "/look/error/409/",
    "error-500": "/look/error/500/",
}


def main() -> int:
    """Take the pictures; return the exit status."""
    arguments = _arguments()
    only = {name for name in arguments.only.split(",") if name}
    arguments.into.mkdir(exist_ok=True)
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        pages: dict[str, str] = {}
        for width in WIDTHS:
            for theme in THEMES:
                page = _page(browser, width, theme, complaints)
                if not only or "sign-in" in only:
                    _take(page, arguments, "sign-in", "/sign-in/", width, theme, complaints)
                _sign_in(page, arguments.url, arguments.user, arguments.password)
                pages = pages or {**dict(_linked(page, arguments.url)), **FIXED}
                for name, path in pages.items():
                    if not only or name in only:
                        _take(page, arguments, name, path, width, theme, complaints)
                page.context.close()
        browser.close()
    for complaint in dict.fromkeys(complaints):
        print(complaint, file=sys.stderr)
    print(f"{len(list(arguments.into.glob('*.png')))} pictures in {arguments.into}")
    return 1 if complaints else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the console answers")
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--only", default="", help="names of pages, separated by commas")
    parser.add_argument("--into", type=Path, default=FOLDER, help="where the pictures go")
    return parser.parse_args()


def _page(browser: Browser, width: str, theme: str, complaints: list[str]) -> Page:
    w, h = WIDTHS[width]
    context = browser.new_context(
        viewport={"width": w, "height": h},
        color_scheme="dark" if theme == "dark" else "light",
        has_touch=w < 600,
        is_mobile=w < 600,
        reduced_motion="reduce",
    )
    page = context.new_page()

    def complain(message: ConsoleMessage) -> None:
        # A page that answers 4xx on purpose is reported by the browser as well.
        if (
            message.type in ("error", "warning")
            and "status of 4" not in message.text
            and "status of 5" not in message.text
        ):
            complaints.append(f"{page.url}: {message.text}")

    page.on("console", complain)
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    return page


def _sign_in(page: Page, url: str, user: str, password: str) -> None:
    page.goto(urljoin(url, "/sign-in/"))
    page.get_by_label("User name").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda address: "/sign-in/" not in address)


def _linked(page: Page, url: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of what the navigation links to, of the first thing on each, and of runs with their verbs."""
    links = {
        link.inner_text().strip().split("\n")[0].lower(): link.get_attribute("href") or "/"
        for link in page.locator(".app > .nav a.nav-link[href]").all()
        if link.is_visible()
    }
    yield from links.items()
    for name, (listed, selector) in FIRSTS.items():
        if listed in links:
            page.goto(urljoin(url, links[listed]))
            first = page.locator(selector).first
            if first.count():
                yield name, first.get_attribute("href") or "/"
    for kind, path in OF_RUNS.items():
        page.goto(urljoin(url, path))
        first = page.locator("main .runs .subject a").first
        if not first.count():
            continue
        run = first.get_attribute("href") or "/"
        yield f"run-{kind}", run
        page.goto(urljoin(url, run))
        for part, selector in OF_A_RUN.items():
            link = page.locator(selector).first
            if link.count():
                yield f"run-{kind}-{part}", link.get_attribute("href") or "/"
        for verb in page.locator("main .run-head .btns a[href]").all():
            path = verb.get_attribute("href") or "/"
            yield f"run-{kind}-{path.strip('/').rpartition('/')[2]}", path
            if path.endswith("/retry/"):
                yield f"run-{kind}-stale", path


def _send_stale(page: Page) -> None:
    """Send the form of a verb as a page would that had stood open while the run changed: it is refused, nothing is done."""
    page.get_by_label("Reason").fill("The printer is back")
    page.evaluate("document.querySelector('main [name=seen_version]').value = 0")
    page.locator("main form button[type=submit]").first.click()


def _take(
    page: Page,
    arguments: argparse.Namespace,
    name: str,
    path: str,
    width: str,
    theme: str,
    complaints: list[str],
) -> None:
    page.goto(urljoin(arguments.url, path))
    if name.endswith("-stale"):
        _send_stale(page)
    page.wait_for_load_state("networkidle")
    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        complaints.append(f"{page.url} at {width} px scrolls sideways")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=arguments.into / f"{name}-{width}-{theme}.png", full_page=True)


if __name__ == "__main__":
    sys.exit(main())
