"""What axe-core finds on a page (WCAG 2.2 AA and its good practices)."""

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page: Page) -> list[str]:
    """Return one line for each rule that `page` breaks, with the first place where it does."""
    found = Axe().run(page, options={"runOnly": RULES}).response["violations"]
    return [f"{rule['id']} ({len(rule['nodes'])}): {rule['nodes'][0]['html'][:200]}" for rule in found]
