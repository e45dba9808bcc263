"""Trace: a Python traceback with the author's frames in front and the library's frames folded."""

import re
from collections.abc import Iterator
from itertools import groupby

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from agentops.console.hostile import plain, visible

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<name>.*))?$')
_LIBRARY = re.compile(r"(/site-packages/|/lib/python\d|^<frozen |/runs/engine/)")
LIMIT = 40_000
"""Characters of one traceback shown; the middle of a longer one is left out and said so."""


def trace_html(text: str) -> SafeString:
    """Return the traceback `text` as HTML; any other text comes back line by line, as it is."""
    if len(text) > LIMIT:
        cut = len(text) - LIMIT
        text = f"{text[: LIMIT // 2]}\n… {cut:,} characters left out …\n{text[-LIMIT // 2 :]}"
    parts: list[SafeString] = []
    for library, group in groupby(_blocks(text.rstrip("\n").split("\n")), key=lambda block: block[0]):
        blocks = [lines for _, lines in group]
        body = mark_safe("".join(_block(lines) for lines in blocks))
        if library:
            word = "1 frame" if len(blocks) == 1 else f"{len(blocks)} frames"
            body = format_html(
                "<details><summary>{} of the engine and libraries</summary>{}</details>", word, body
            )
        parts.append(body)
    return mark_safe("".join(parts))


def _blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Group lines into frames (header and what is indented below it) and single lines; say which are library."""
    block: list[str] = []
    library = False
    for line in lines:
        frame = _FRAME.match(line)
        if block and not frame and line.startswith("    "):
            block.append(line)
            continue
        if block:
            yield library, block
            block = []
        if frame:
            block, library = [line], bool(_LIBRARY.search(frame["file"]))
        else:
            yield False, [line]
    if block:
        yield library, block


def _block(lines: list[str]) -> SafeString:
    frame = _FRAME.match(lines[0])
    if frame is None:
        kind = "dim" if lines[0].startswith("Traceback ") else "row"
        return format_html('<div class="{}">{}</div>', kind, visible(lines[0]) or "\u00a0")
    where = format_html("  <b>{}:{}</b>", visible(_short_path(frame["file"])), frame["line"])
    name = format_html(", in {}", visible(frame["name"])) if frame["name"] else ""
    rest = mark_safe("".join(format_html("<div>{}</div>", visible(line)) for line in lines[1:]))
    return format_html('<div title="{}">{}{}</div>{}', plain(frame["file"]), where, name, rest)


def _short_path(path: str) -> str:
    """Return the last two names of `path`: enough to find the file, free of the machine's folders."""
    return "/".join(path.split("/")[-2:])
