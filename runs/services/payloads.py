"""The boundary: what comes from outside is made recordable, or refused with the path to what is wrong."""

import json
from typing import Any

from django.conf import settings
from pydantic import ValidationError

from runs import codec
from runs.errors import Invalid


def recordable(value: Any, what: str, *, lenient: bool = False) -> Any:
    """`value` encoded. Raises Invalid with the path if it cannot be recorded, or if it is too large."""
    try:
        encoded = codec.encode(value, lenient=lenient)
    except codec.NotRecordable as error:
        raise Invalid(f"{what}: {error}") from None
    size = len(codec.canonical(encoded))
    if size > settings.AGENTOPS_PAYLOAD_LIMIT:
        raise Invalid(f"{what} is {size:,} bytes; at most {settings.AGENTOPS_PAYLOAD_LIMIT:,} are accepted")
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
    """JSON as RFC 8259 has it: NaN and Infinity are refused. Raises Invalid."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{what} is not valid JSON: {error}") from None
