"""Show hostile text as what it is.

Agents, customers and providers write what they like. HTML escaping alone does not make it harmless: bidi
controls reorder the line so that a reader approves something else than what is sent (CVE-2021-42574), tag
characters smuggle instructions nobody sees, and a lone surrogate cannot be encoded at all. Each of them is
replaced by a marker that names the code point.
"""

import re

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, apart from tab and line feed
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # invisible fillers, Arabic letter mark
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # zero width, bidi, invisible operators
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"  # lone surrogates, noncharacters
    "\U000e0000-\U000e0fff"  # tag characters
    "]"
)
"""U+200C and U+200D stay: Persian, Indic scripts and emoji families need them."""


#: Characters of one text that a page shows: a line of a megabyte would make it unreadable, and a hundred of them a hundredfold.
LONGEST = 20_000


def cut(text: str, most: int = LONGEST) -> str:
    """Return `text`, of one with more than `most` characters the beginning and how much is left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… [{len(text) - most:,} more characters]"


def _code_point(match: re.Match[str]) -> str:
    return f"U+{ord(match[0]):04X}"


def _markup(match: re.Match[str]) -> str:
    return f'<span class="ctl">{_code_point(match)}</span>'


def plain(text: str) -> str:
    """Return `text` with every deceiving character written as [U+XXXX]; for titles and attributes."""
    return _INVISIBLE.sub(lambda match: f"[{_code_point(match)}]", _one_newline(text))


def visible(text: str) -> SafeString:
    """Return `text` escaped for HTML, with every deceiving character as a visible marker."""
    return mark_safe(_INVISIBLE.sub(_markup, escape(_one_newline(text))))


def isolated(text: str) -> SafeString:
    """Like `visible`, and kept from reordering its neighbours on the line (right-to-left names)."""
    return mark_safe(f"<bdi>{visible(text)}</bdi>")


def _one_newline(text: str) -> str:
    return text.replace("\r\n", "\n")
