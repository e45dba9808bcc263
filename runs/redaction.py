"""The one hook between a true value and what is stored for people to read.

A recorded value is `display` (redacted) plus `sealed` (encrypted, only where redaction changed it). No redaction rules exist
yet, so `display` is the value and `sealed` is empty; every write of a payload already comes through here.
"""

from typing import Any


def split(encoded: Any) -> tuple[Any, bytes | None]:
    """Return (display, sealed) of an encoded value; `sealed` is None where display says it all."""
    return encoded, None


def true_value(display: Any, sealed: bytes | memoryview | None) -> Any:
    """The encoded value that `split` was given. Raises ValueError if it is sealed and no key can open it."""
    if sealed is None:
        return display
    raise ValueError("this value is sealed and no key to open it is configured")
