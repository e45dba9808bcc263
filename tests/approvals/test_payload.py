"""Payloads as fields, and how two versions differ."""

from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from approvals.payload import SHOWN, Kind, fields, rows
from runs import codec


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    x: int = 0


class Given(BaseModel):
    title: str = Field(title="Title of it", description="What it is called")
    amount: Decimal
    share: float = 0.5
    count: int | None = None
    sure: bool = True
    colour: Colour = Colour.RED
    inner: Inner = Inner()
    tags: list[str] = []
    run: str = Field(default="r", json_schema_extra={"readOnly": True})


SCHEMA = Given.model_json_schema()


def test_pydantics_schema_tells_the_kind_of_each_field() -> None:
    payload = codec.encode(Given(title="a", amount=Decimal("1.50")))
    found = {field.key: field for field in fields(SCHEMA, payload, list(Given.model_fields))}
    assert {key: field.kind for key, field in found.items()} == {
        "title": Kind.TEXT,
        "amount": Kind.DECIMAL,
        "share": Kind.NUMBER,
        "count": Kind.INTEGER,
        "sure": Kind.BOOLEAN,
        "colour": Kind.CHOICE,
        "inner": Kind.JSON,
        "tags": Kind.JSON,
        "run": Kind.TEXT,
    }
    assert list(found) == list(Given.model_fields)
    assert found["colour"].choices == ("red", "blue")
    assert found["count"].nullable and not found["title"].nullable
    assert found["title"].required and not found["share"].required
    assert found["run"].read_only
    assert (found["title"].label, found["title"].description) == ("Title of it", "What it is called")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("a", Kind.TEXT, "a"),
        (3, Kind.INTEGER, "3"),
        (0.5, Kind.NUMBER, "0.5"),
        (True, Kind.BOOLEAN, "yes"),
        (None, Kind.JSON, "none"),
        (Decimal("1.50"), Kind.DECIMAL, "1.50"),
        (["a", 1], Kind.JSON, '["a", 1]'),
    ],
)
def test_without_a_schema_the_value_tells(value: Any, kind: Kind, text: str) -> None:
    (field,) = fields({}, codec.encode({"x": value}))
    assert (field.kind, field.text) == (kind, text)


def test_a_change_is_shown_word_by_word_where_texts_are_alike() -> None:
    before = {"note": "You get your full payment back within 5 days."}
    after = {"note": "You get the price of the lamp back within 5 days."}
    (row,) = rows({}, after, before)
    assert row.change == "Edited"
    assert row.parts[0] == ("same", "You get ")
    assert "".join(text for what, text in row.parts if what != "ins") == before["note"]
    assert "".join(text for what, text in row.parts if what != "del") == after["note"]


def test_fields_that_come_and_go_are_marked() -> None:
    found = rows({}, {"a": 1, "b": 2}, {"a": 1, "c": 3})
    assert [(row.label, row.change) for row in found] == [("A", ""), ("B", "Added"), ("C", "Removed")]


def test_a_long_value_is_cut_and_says_so() -> None:
    (row,) = rows({}, {"a": "x" * (SHOWN + 5)})
    assert (len(row.parts[0][1]), row.cut) == (SHOWN, 5)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


words = st.sampled_from(
    ["type", "enum", "const", "anyOf", "$ref", "title", "readOnly", "description", "required"]
)
parts = st.dictionaries(words, json_values | st.just("#/$defs/x") | st.just("array"), max_size=4)
schemas = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(st.sampled_from("abc"), parts | json_values, max_size=3) | json_values,
        "required": json_values | st.just(["a"]),
        "$defs": json_values | st.just({"x": {"$ref": "#/$defs/x"}}),
        "title": json_values,
    },
)
payloads = st.dictionaries(st.sampled_from("abcd"), json_values, max_size=4) | json_values


@given(schema=schemas, before=payloads, after=payloads)
def test_any_schema_and_payload_make_rows(schema: Any, before: Any, after: Any) -> None:
    """A schema of a question comes from a workflow's author and is not checked when it is asked."""
    old, new = (codec.encode(value, lenient=True) for value in (before, after))
    rows(schema, new, old)
    rows(schema, new)
