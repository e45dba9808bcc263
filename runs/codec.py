"""JSON at the boundary: what may be recorded, in which canonical form, and what people see of it.

Recorded values are JSON with a few tagged types. What PostgreSQL's jsonb or JSON itself cannot hold is refused with the path
to it (`NotRecordable`) when a workflow hands it over, and replaced by a visible marker when it comes from outside (a
provider's answer, an error message), so that a failure row can always be written.
"""

import dataclasses
import hashlib
import hmac
import json
import math
import re
import uuid
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from django.conf import settings
from pydantic import BaseModel

#: Marks a tagged value. A plain dict that holds this key itself is escaped, so that data stays data.
TAG = "$agentops"
MAX_DEPTH = 200
LARGEST_INTEGER = 10**4300
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class NotRecordable(ValueError):
    """This value cannot be recorded; the message names the path to it and why."""


def _tag(kind: str, value: Any) -> dict[str, Any]:
    return {TAG: kind, "v": value}


def encode(value: Any, *, path: str = "$", lenient: bool = False) -> Any:
    """Return `value` as plain JSON, with datetimes, dates, timedeltas, Decimals and UUIDs as tagged values.

    Whatever comes out is the same after it was stored as jsonb and read again, so that its digest holds.

    With `lenient`, what cannot be held becomes a visible marker instead of an error.

    Raises:
        NotRecordable: NaN, infinity, NUL, lone surrogates, sets, bytes, non-text keys, too deep, or an unknown type.
    """
    return _encode(value, path, lenient, 0)


def _encode(value: Any, path: str, lenient: bool, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return _integer(value, path, lenient)
    if kind is str:
        if _UNSTORABLE.search(value):
            if not lenient:
                what = "NUL" if "\x00" in value else "a lone surrogate"
                raise NotRecordable(f"{path} holds {what}, which PostgreSQL cannot store")
            return _UNSTORABLE.sub(lambda m: f"⟦U+{ord(m[0]):04X}⟧", value)
        return value
    if kind is float:
        if math.isfinite(value):
            return _tag("float", repr(value)) if _changes_in_jsonb(value) else value
        if lenient:
            return f"⟦{value}⟧"
        raise NotRecordable(f"{path} is {value}, which JSON cannot hold")
    if depth > MAX_DEPTH:
        if lenient:
            return "⟦too deep⟧"
        raise NotRecordable(f"{path} is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, BaseModel):
        return _encode(value.model_dump(mode="python"), path, lenient, depth + 1)
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                if not lenient:
                    raise NotRecordable(f"{path} has the key {key!r}; keys must be text")
                key = str(key)
            clean = _encode(key, path, lenient, depth + 1)
            out[clean] = _encode(item, f"{path}.{key}", lenient, depth + 1)
        return _tag("dict", out) if TAG in out else out
    if isinstance(value, list | tuple):
        return [_encode(item, f"{path}[{i}]", lenient, depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Enum):
        return _encode(value.value, path, lenient, depth + 1)
    if isinstance(value, str):
        return _encode(str(value), path, lenient, depth)
    if isinstance(value, int):
        return _integer(int(value), path, lenient)
    if isinstance(value, float):
        return _encode(float(value), path, lenient, depth)
    if isinstance(value, datetime):
        return _tag("datetime", value.isoformat())
    if isinstance(value, date):
        return _tag("date", value.isoformat())
    if isinstance(value, timedelta):
        # Not total_seconds(): as a float it loses microseconds of long spans.
        return _tag("timedelta", str(Decimal(value // timedelta(microseconds=1)).scaleb(-6)))
    if isinstance(value, Decimal):
        if not value.is_finite():
            if not lenient:
                raise NotRecordable(f"{path} is {value}, which JSON cannot hold")
            return f"⟦{value}⟧"
        # 1e99999999 is short to write, and a hundred megabytes as soon as anything formats it.
        if max(abs(value.adjusted()), len(value.as_tuple().digits)) > 4300:
            if not lenient:
                raise NotRecordable(f"{path} is a number of more than 4300 digits")
            return "⟦a number of more than 4300 digits⟧"
        return _tag("decimal", str(value))
    if isinstance(value, uuid.UUID):
        return _tag("uuid", str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _encode(fields, path, lenient, depth + 1)
    if lenient:
        return f"⟦{kind.__name__}⟧"
    raise NotRecordable(
        f"{path} is a {kind.__name__}, which cannot be recorded; use text, numbers, lists, dicts, datetimes, Decimals, "
        "UUIDs or pydantic models"
    )


def _integer(value: int, path: str, lenient: bool) -> Any:
    """`value` if Python turns it to text and back (sys.set_int_max_str_digits) and jsonb holds it: 4300 digits."""
    if abs(value) < LARGEST_INTEGER:
        return value
    if lenient:
        return "⟦an integer of more than 4300 digits⟧"
    raise NotRecordable(f"{path} is an integer of more than 4300 digits")


def _changes_in_jsonb(value: float) -> bool:
    """jsonb holds decimals: it writes out 1e16 as an integer and has no minus zero, so that digests would differ."""
    return abs(value) >= 1e16 or (value == 0 and math.copysign(1, value) < 0)


_DECODERS: dict[str, Any] = {
    "dict": lambda v: {key: decode(v[key]) for key in sorted(v)},
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "float": float,
    "timedelta": lambda v: timedelta(microseconds=int(Decimal(v).scaleb(6))),
    "decimal": Decimal,
    "uuid": uuid.UUID,
}


def decode(value: Any) -> Any:
    """Inverse of `encode`. Raises KeyError for a tag that this version does not know.

    Keys come in sorted order: jsonb has an order of its own, and what a step makes of an answer (the text of a prompt, say)
    must be the same when the answer is new and when it was recorded.
    """
    if isinstance(value, dict):
        kind = value.get(TAG)
        if kind is not None:
            return _DECODERS[kind](value["v"])
        return {key: decode(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value


def canonical(encoded: Any) -> bytes:
    """The one text of an encoded value: sorted keys, no spaces, UTF-8. Digests are made from it."""
    return json.dumps(
        encoded, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(encoded: Any) -> str:
    """sha256 of the canonical form, hex."""
    return hashlib.sha256(canonical(encoded)).hexdigest()


def digest_instead(encoded: Any, run: uuid.UUID, origin: uuid.UUID) -> str:
    """The digest that the value would have if it named the run `origin` wherever it names `run`."""
    return hashlib.sha256(named_instead(canonical(encoded), run, origin)).hexdigest()


def named_instead(text: bytes, run: uuid.UUID, origin: uuid.UUID) -> bytes:
    """The text with one run's id in the place of another's, also within longer words."""
    return text.replace(str(run).encode(), str(origin).encode()).replace(
        run.hex.encode(), origin.hex.encode()
    )


def keyed_digest(encoded: Any) -> str:
    """HMAC-sha256 of the canonical form under the project's secret key, hex.

    Votes bind to it: whoever can write to the database but does not hold the key cannot make another payload look approved.
    """
    return _keyed(encoded, settings.SECRET_KEY)


def is_keyed_digest(encoded: Any, claimed: str) -> bool:
    """Whether `claimed` is the keyed digest under the present key, or an earlier one that still verifies what it signed."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return any(hmac.compare_digest(_keyed(encoded, key), claimed) for key in keys)


def _keyed(encoded: Any, secret: str) -> str:
    key = hashlib.sha256(b"agentops approval digest" + secret.encode()).digest()
    return hmac.new(key, canonical(encoded), hashlib.sha256).hexdigest()


def plain(encoded: Any) -> Any:
    """An encoded value as people read it: tags resolved to text."""
    if isinstance(encoded, dict):
        if TAG in encoded:
            inner = encoded["v"]
            if encoded[TAG] == "dict":  # data that holds the key of a tag itself: not a tag, whatever it says
                return {key: plain(item) for key, item in inner.items()}
            return float(inner) if encoded[TAG] == "float" else str(inner)
        return {key: plain(item) for key, item in encoded.items()}
    if isinstance(encoded, list):
        return [plain(item) for item in encoded]
    return encoded


def clean_text(text: str, limit: int = 100_000) -> str:
    """`text` as PostgreSQL can store it, cut to `limit` characters with a visible mark."""
    clean: str = _encode(text, "$", True, 0)
    return clean if len(clean) <= limit else clean[:limit] + f"… ⟦{len(clean) - limit} more characters⟧"


def error_text(error: BaseException, limit: int = 10_000) -> str:
    """What an error says, defensively: one that cannot be printed must not hide itself."""
    try:
        text = str(error)
    except Exception as inner:
        text = f"(its text could not be made: {type(inner).__name__})"
    return clean_text(text or type(error).__name__, limit)
