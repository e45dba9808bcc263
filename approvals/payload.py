"""A payload as its fields: what people read, how two versions differ, and what an edit form offers.

The fields come from the payload's JSON Schema. Where that says nothing (a question without a schema, a field beyond it),
the value itself tells what it is. Everything here is hostile text until a template has shown it with `|visible`.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from runs import codec

#: Texts longer than this get an area of several lines.
ONE_LINE = 80
#: Characters of one field that a page shows; a payload may have 5 MB.
SHOWN = 10_000
#: Words beyond which two texts are shown whole instead of word by word: comparing takes quadratic time.
COMPARED_WORDS = 2_000
#: Below this likeness (0–1) a change is easier to read as two whole texts.
ALIKE = 0.4


class Kind(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    JSON = "json"


@dataclass(frozen=True)
class Field:
    """One field of a payload. `key` is None where the payload is no object and so is one field itself."""

    key: str | None
    label: str
    kind: Kind
    value: Any
    """Encoded; None as well where the field is not there (`present`)."""
    present: bool = True
    required: bool = True
    nullable: bool = False
    read_only: bool = False
    description: str = ""
    choices: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        return text_of(self.value)

    @property
    def many_lines(self) -> bool:
        return self.kind == Kind.JSON or len(self.text) > ONE_LINE or "\n" in self.text


def fields(schema: Mapping[str, Any], payload: Any, order: Sequence[str] = ()) -> list[Field]:
    """The fields of an encoded payload: those named by `order` first, then as the schema has them; fixed ones last.

    PostgreSQL keeps the order of a schema's lists, such as `required`, but not that of its properties.
    """
    if not isinstance(payload, dict) or codec.TAG in payload:
        return [_field(None, "Payload", schema, schema, payload, True, True)]
    properties = schema.get("properties")
    known: dict[str, Any] = properties if isinstance(properties, dict) else {}
    listed = schema.get("required", [] if known else [*payload])
    required = [key for key in listed if isinstance(key, str)] if isinstance(listed, list) else []
    keys = dict.fromkeys(
        key for key in [*order, *required, *known, *payload] if key in known or key in payload
    )
    made = [
        _field(
            key,
            _label(key, known.get(key)),
            known.get(key, {}),
            schema,
            payload.get(key),
            key in payload,
            key in required,
        )
        for key in keys
    ]
    return sorted(made, key=lambda field: field.read_only)


def _label(key: str, part: Any) -> str:
    title = part.get("title") if isinstance(part, dict) else None
    words = str(title or key).replace("_", " ").strip() or key
    return words[:1].upper() + (words[1:].lower() if title and words.istitle() else words[1:])


def _field(
    key: str | None, label: str, part: Any, root: Mapping[str, Any], value: Any, present: bool, required: bool
) -> Field:
    options, nullable = _options(part, root)
    description = part.get("description", "") if isinstance(part, dict) else ""
    return Field(
        key=key,
        label=label,
        kind=_kind(options, value),
        value=value,
        present=present,
        required=required,
        nullable=nullable,
        read_only=any(
            option.get("readOnly") is True for option in [part, *options] if isinstance(option, dict)
        ),
        description=str(description),
        choices=_choices(options),
    )


def _options(part: Any, root: Mapping[str, Any], depth: int = 0) -> tuple[list[dict[str, Any]], bool]:
    """What a field may be, with references followed and alternatives laid out; and whether it may be null."""
    if not isinstance(part, dict) or depth > 8:
        return [], False
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        targets = root.get("$defs")
        target = targets.get(reference.removeprefix("#/$defs/")) if isinstance(targets, dict) else None
        return _options(target, root, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(part.get(word), list):
            found = [_options(option, root, depth + 1) for option in part[word]]
            return [option for options, _ in found for option in options], any(null for _, null in found)
    kinds = part.get("type")
    if isinstance(kinds, list):
        return [{**part, "type": kind} for kind in kinds if kind != "null"], "null" in kinds
    return ([], True) if kinds == "null" else ([part], False)


def _choices(options: list[dict[str, Any]]) -> tuple[Any, ...]:
    if len(options) != 1:
        return ()
    only = options[0]
    return (
        tuple(only["enum"])
        if isinstance(only.get("enum"), list)
        else (only["const"],)
        if "const" in only
        else ()
    )


def _kind(options: list[dict[str, Any]], value: Any) -> Kind:
    if _choices(options):
        return Kind.CHOICE
    types = {str(option.get("type")) for option in options}
    if types == {"number", "string"}:
        return Kind.DECIMAL  # how pydantic writes Decimal
    kind = _BY_TYPE.get(types.pop()) if len(types) == 1 else None
    if kind is None:
        return _kind_of_value(value)
    return Kind.DECIMAL if kind == Kind.NUMBER and _tag(value) == "decimal" else kind


_BY_TYPE = {
    "string": Kind.TEXT,
    "integer": Kind.INTEGER,
    "number": Kind.NUMBER,
    "boolean": Kind.BOOLEAN,
    "object": Kind.JSON,
    "array": Kind.JSON,
}


def _kind_of_value(value: Any) -> Kind:
    match value:
        case bool():
            return Kind.BOOLEAN
        case int():
            return Kind.INTEGER
        case float():
            return Kind.NUMBER
        case str():
            return Kind.TEXT
    match _tag(value):
        case "decimal":
            return Kind.DECIMAL
        case "datetime" | "date" | "uuid":
            return Kind.TEXT
    return Kind.JSON


def _tag(value: Any) -> str:
    return str(value.get(codec.TAG, "")) if isinstance(value, dict) else ""


# --- reading -----------------------------------------------------------------------------------------------------------


def text_of(encoded: Any) -> str:
    """A value in words: yes and no, none, text as it is, and JSON for what has parts."""
    match codec.plain(encoded):
        case None:
            return "none"
        case bool(value):
            return "yes" if value else "no"
        case str(value):
            return value
        case dict() | list() as value:
            short = json.dumps(value, ensure_ascii=False)
            return short if len(short) <= ONE_LINE else json.dumps(value, indent=2, ensure_ascii=False)
        case value:
            return str(value)


@dataclass(frozen=True)
class Row:
    """A field of one version beside an earlier one: `parts` are (same, del or ins; text)."""

    label: str
    parts: tuple[tuple[str, str], ...]
    change: str
    """Edited, Added, Removed, or nothing."""
    is_json: bool
    cut: int = 0
    """Characters that are not in `parts`."""


def rows(schema: Mapping[str, Any], payload: Any, before: Any = None, order: Sequence[str] = ()) -> list[Row]:
    """Each field of `payload`; with `before`, an earlier version, what became of it."""
    made = fields(schema, payload, order)
    if before is None:
        return [_bounded(_row(field, field)) for field in made if field.present]
    earlier = {field.key: field for field in fields(schema, before)}
    lines = [_row(field, earlier.pop(field.key, None)) for field in made]
    gone = [_row(None, field) for field in earlier.values() if field.present]
    return [_bounded(line) for line in [*lines, *gone] if line.parts]


def _bounded(row: Row) -> Row:
    left, kept = SHOWN, []
    for what, text in row.parts:
        kept.append((what, text[:left]))
        left -= len(kept[-1][1])
    cut = sum(len(text) for _, text in row.parts) - (SHOWN - left)
    return replace(row, parts=tuple(kept), cut=cut) if cut else row


def _row(now: Field | None, was: Field | None) -> Row:
    label = (now or was or _NOWHERE).label
    new = now.text if now and now.present else None
    old = was.text if was and was.present else None
    is_json = (now or was or _NOWHERE).kind == Kind.JSON
    if new == old:
        return Row(label, (("same", new),) if new is not None else (), "", is_json)
    if new is None or old is None:
        part = ("ins", new) if new is not None else ("del", old or "")
        return Row(label, (part,), "Added" if old is None else "Removed", is_json)
    return Row(label, tuple(_differences(old, new)), "Edited", is_json)


_NOWHERE = Field(None, "Payload", Kind.JSON, None)


def _differences(old: str, new: str) -> Iterator[tuple[str, str]]:
    """The two texts word by word, or whole where they have little in common."""
    before, after = re.findall(r"\s+|\S+", old), re.findall(r"\s+|\S+", new)
    if len(before) < 4 or len(after) < 4 or max(len(before), len(after)) > COMPARED_WORDS:
        yield from (("del", old), ("ins", new))
        return
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < ALIKE:
        yield from (("del", old), ("ins", new))
        return
    for what, a, b, c, d in matcher.get_opcodes():
        if what == "equal":
            yield "same", "".join(before[a:b])
            continue
        if b > a:
            yield "del", "".join(before[a:b])
        if d > c:
            yield "ins", "".join(after[c:d])
