"""A redaction for tests: whatever stands under `secret` is hidden, and sealed readably."""

import json
from typing import Any

import pytest

from runs import codec, redaction

MASK = "⟦hidden⟧"


def redact(encoded: Any) -> Any:
    if isinstance(encoded, dict):
        made = {k: MASK if k == "secret" else redact(v) for k, v in encoded.items()}
        return encoded if all(made[k] is encoded[k] for k in encoded) else made
    if isinstance(encoded, list):
        shown = [redact(v) for v in encoded]
        return encoded if all(a is b for a, b in zip(shown, encoded, strict=True)) else shown
    return encoded


def seal(encoded: Any) -> bytes:
    return b"sealed" + codec.canonical(encoded)


def unseal(sealed: bytes | memoryview) -> Any:
    assert bytes(sealed).startswith(b"sealed")
    return json.loads(bytes(sealed)[6:])


@pytest.fixture
def hiding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "redact", redact)
    monkeypatch.setattr(redaction, "seal", seal)
    monkeypatch.setattr(redaction, "unseal", unseal)
