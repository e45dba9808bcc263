"""The one hook between a true value and what is stored for people to read.

A recorded value is `display` (redacted) plus `sealed` (encrypted, only where redaction changed it). No redaction rules exist
yet, so `display` is the value and `sealed` is empty; every write of a payload already comes through here. A large display
value is stored apart (`runs.blobs`), a sealed one never is: no digest of what it hides is made.
"""

from typing import Any

from runs import blobs


def redact(encoded: Any) -> Any:
    """What people may see of an encoded value; the value itself, not a copy, where that is all of it."""
    return encoded


def seal(encoded: Any) -> bytes:
    """An encoded value as only `unseal` reads it. Raises ValueError without a key."""
    raise ValueError("no key to seal this value is configured")


def unseal(sealed: bytes | memoryview) -> Any:
    """Inverse of `seal`. Raises ValueError if no key can open it."""
    raise ValueError("this value is sealed and no key to open it is configured")


def split(encoded: Any) -> tuple[Any, bytes | None]:
    """Return (display, sealed) of an encoded value; `sealed` is None where display says it all."""
    display = redact(encoded)
    return display, None if display is encoded else seal(encoded)


def true_value(display: Any, sealed: bytes | memoryview | None) -> Any:
    """The encoded value that `split` was given; read with Django's connection if it is stored apart.

    Raises ValueError if it is sealed and no key can open it, BlobDamaged if it cannot be read.
    """
    if sealed is not None:
        return unseal(sealed)
    return blobs.whole([display])[0] if blobs.is_marker(display) else display
