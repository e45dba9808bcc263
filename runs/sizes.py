"""How large a recorded value may be: bytes of its canonical JSON, one limit for each kind of payload."""

from typing import Any, Literal, get_args

from django.conf import settings

from runs import codec

Kind = Literal["input", "state", "arguments", "answer", "message", "signal", "result", "log"]
KINDS: tuple[str, ...] = get_args(Kind)


class TooLarge(ValueError):
    """The message names the path to what is large, both sizes, and what to do."""


def limit(kind: Kind) -> int:
    """Bytes that a payload of this kind may have: AGENTOPS_PAYLOAD_LIMITS, else AGENTOPS_PAYLOAD_LIMIT."""
    chosen: int = settings.AGENTOPS_PAYLOAD_LIMITS.get(kind, settings.AGENTOPS_PAYLOAD_LIMIT)
    return chosen


def bytes_of(text: str, at_most: int) -> int:
    """UTF-8 bytes of a text; counted only where they could be more than `at_most`, else 0."""
    return len(text.encode()) if len(text) * 4 > at_most else 0


def check(kind: Kind, text: str, encoded: Any, path: str) -> None:
    """Raises TooLarge if `text`, the JSON of `encoded`, has more bytes than allowed. `path` is what leads to the value."""
    allowed = limit(kind)
    size = bytes_of(text, allowed)
    if size > allowed:
        where, there = heaviest(encoded, path)
        whole = "" if where == path else f" ({readable(size)} in all)"
        raise TooLarge(
            f"{where} is {readable(there)} of {readable(allowed)} of JSON{whole}: "
            "keep it elsewhere and record a reference to it"
        )


def heaviest(encoded: Any, path: str) -> tuple[str, int]:
    """The path to the innermost value that holds more than half of all bytes, and how many it has."""
    size = len(codec.canonical(encoded))
    while True:
        if isinstance(encoded, dict) and codec.TAG not in encoded:
            inside = [(f"{path}.{key}", value) for key, value in encoded.items()]
        elif isinstance(encoded, list):
            inside = [(f"{path}[{index}]", value) for index, value in enumerate(encoded)]
        else:
            return path, size
        sized = [(len(codec.canonical(value)), where, value) for where, value in inside]
        largest = max(sized, key=lambda one: one[0], default=None)
        if largest is None or largest[0] <= size // 2:
            return path, size
        size, path, encoded = largest


def readable(count: int) -> str:
    """Bytes as people read them, in decimal units: "5.0 MB", "812 bytes"; never rounded up to what they are not."""
    for unit, one in (("MB", 1_000_000), ("KB", 1_000)):
        if count >= one:
            return f"{count // (one // 10) / 10:,.1f} {unit}"
    return f"{count} bytes"
