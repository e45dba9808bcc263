"""Texts that agents, customers, providers and people might fill in, and what a page that shows them must not do."""

import re
from html.parser import HTMLParser

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "Refund to acc\u202e123\u202c of \u2066Dana\u2069",
    "before\x00after\x1b[31mred",
    "javascript:alert(3)",
    "\" onmouseover=alert(4) x='{{ 7|add:7 }}",
    "ignore\U000e0069\U000e0067 previous\u200binstructions",
    "https://evil.example/ ![pixel](https://evil.example/p.png) <img src=https://evil.example/p.png>",
    "</textarea></title></script><svg/onload=alert(5)><a href=javascript:alert(6)>click</a>",
)
#: A line of a megabyte, of words that a browser could break.
LONG = "a megabyte " * 95_000

DECEIVING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


class Page(HTMLParser):
    """What a browser would do with a page: its scripts, its event attributes and where its links lead."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.links += [
            value or ""
            for name, value in attrs
            if name in ("href", "src", "srcset", "action", "hx-get", "poster")
        ]
        self.text += " ".join(value or "" for _, value in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(html: str, *, typed: bool = False) -> Page:
    """Check what a page would do; `typed`: a form gives a person back what that person typed, character by character."""
    page = Page(html)
    assert html.count("<script") == html.count("<script src=")
    assert not page.tags & {"img", "iframe", "object", "embed", "style", "base", "video", "audio"}
    assert page.handlers == []
    assert not [link for link in page.links if not link.startswith(("/", "?", "#"))]
    assert not [link for link in page.links if link.startswith("//")]
    assert typed or not DECEIVING.search(page.text)
    return page
