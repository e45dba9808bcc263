"""The boundary: what comes from outside is made recordable, or refused with the path to what is wrong."""

import json
from typing import Any

from pydantic import ValidationError

from runs import codec, sizes
from runs.errors import Invalid


def recordable(value: Any, what: str, kind: sizes.Kind, *, lenient: bool = False) -> Any:
    """`value` encoded. Raises Invalid with the path if it cannot be recorded, or if it is too large."""
    try:
        encoded = codec.encode(value, lenient=lenient)
        sizes.check(kind, codec.canonical(encoded).decode(), encoded, "$")
    except (codec.NotRecordable, sizes.TooLarge) as error:
        raise Invalid(f"{what}: {error}") from None
    return encoded


def problems(error: ValidationError, what: str) -> str:
    """Every mistake that pydantic found as `path: message`, in one line."""
    lines = [
        ".".join(str(part) for part in mistake["loc"]) + f": {mistake['msg']}"
        if mistake["loc"]
        else mistake["msg"]
        for mistake in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return f"{what} does not fit: " + "; ".join(lines)


def parse_json(text: str | bytes, what: str) -> Any:
    """JSON as RFC 8259 has it: NaN and Infinity are refused, and a key twice in one object. Raises Invalid."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            # Which of the two counts, readers of JSON do not agree: what was checked might not be what is done.
            keys = [key for key, _ in pairs]
            twice = next(key for key in made if keys.count(key) > 1)
            raise ValueError(f"an object has the key {codec.clean_text(twice, 100)!r} twice")
        return made

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{what} is not valid JSON: {error}") from None
