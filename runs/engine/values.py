"""Arguments and answers as they are recorded, and what is read back from a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError

from runs import codec, sizes
from runs.engine.execution import Record, dumps
from runs.errors import InvalidInput, ToolFailed
from runs.workflow import Tool

log = structlog.get_logger(__name__)


def encode_arguments(tool: Tool, given: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Validated Python arguments and their encoded form. Raises InvalidInput naming the path."""
    try:
        model = tool.arguments.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInput(f"arguments of {tool.name}: {first_error(error)}") from error
    python = {name: getattr(model, name) for name in tool.arguments.model_fields}
    encoded = codec.encode(python, path=tool.name)
    check_size("arguments", encoded, f"arguments of {tool.name}")
    return python, encoded


def arguments_of(tool: Tool, encoded: Any) -> dict[str, Any]:
    """Python arguments from their encoded form, as people approved them."""
    model = tool.arguments.model_validate(codec.decode(encoded))
    return {name: getattr(model, name) for name in tool.arguments.model_fields}


def first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or "value"
    return f"{path}: {first['msg']}"


def check_size(kind: sizes.Kind, encoded: Any, what: str) -> str:
    """An encoded value as JSON text. Raises InvalidInput, naming the path, when that has more bytes than can be recorded."""
    text = dumps(encoded)
    try:
        sizes.check(kind, text, encoded, what)
    except sizes.TooLarge as error:
        raise InvalidInput(str(error)) from None
    return text


def record_answer(value: Any, what: str, kind: sizes.Kind = "answer") -> Any:
    """An answer as it is recorded: sanitised, never refused, a marker where it is too large."""
    try:
        encoded = codec.encode(value, lenient=True)
    except Exception as error:
        # An object with code of its own may do anything; that the call was answered must be recorded all the same.
        log.warning("answer.unreadable", what=what, error=codec.error_text(error, 500))
        return f"⟦{type(value).__name__}, which cannot be recorded⟧"
    size = sizes.bytes_of(dumps(encoded), sizes.limit(kind))
    if size > sizes.limit(kind):
        log.warning("answer.too_large", what=what, bytes=size)
        return f"⟦{size:,} bytes, more than can be recorded⟧"
    return encoded


def parse(adapter: TypeAdapter[Any], name: str, value: Any) -> Any:
    """A recorded answer as its declared type. A parsing error never re-sends: the record stays."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ToolFailed(
            name, "InvalidAnswer", f"the answer is not what was declared: {first_error(error)}"
        ) from error


def failed(record: Record) -> ToolFailed:
    return ToolFailed(record.name, record.error_type, record.error)
