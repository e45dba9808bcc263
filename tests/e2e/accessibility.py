"""What axe-core finds on a page (WCAG 2.2 AA and its good practices), and what is too small to be pressed."""

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page

AXE: str = Axe().axe_script
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page: Page) -> list[str]:
    """Return one line for each rule that `page` breaks, with the first place where it does."""
    page.evaluate(AXE)
    # Only the lines leave the browser: whatever the rules found in order is many times as much as the page.
    found: list[str] = page.evaluate(
        """(rules) => axe.run({runOnly: rules, resultTypes: ["violations"]}).then(({violations}) => violations.map(
          ({id, nodes}) => `${id} (${nodes.length}): ${nodes[0].html.slice(0, 200)}`))""",
        RULES,
    )
    return found


def small_targets(page: Page) -> list[str]:
    """Return what can be pressed and is less than 24 px wide or high (WCAG 2.2, 2.5.8), one line each.

    A box to tick is pressed through its label. What keyboard and pointer cannot reach is no target.
    """
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("button, summary, input:not([type=hidden]), select, nav a, a.btn, .act a")]
          .filter((e) => e.checkVisibility() && !e.matches("[tabindex='-1'][aria-hidden=true]"))
          .map((e) => [e, (e.closest("label") || e).getBoundingClientRect()])
          .filter(([, box]) => box.height < 23.5 || box.width < 23.5).map(([e]) => e.outerHTML.slice(0, 80))"""
    )
    return found
