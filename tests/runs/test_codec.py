"""What may be recorded, that it comes back from PostgreSQL as it was, and what people see of it."""

import dataclasses
import enum
import json
import math
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, example, given
from hypothesis import settings as limits
from hypothesis import strategies as st
from pydantic import BaseModel
from pytest_django import Settings

from agentops.console.jsonview import json_html
from runs import codec
from runs.codec import (
    TAG,
    NotRecordable,
    canonical,
    clean_text,
    decode,
    digest,
    encode,
    is_keyed_digest,
    keyed_digest,
    plain,
)


def stored(encoded: Any) -> Any:
    """An encoded value as PostgreSQL gives it back."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT (%s::jsonb)::text", [json.dumps(encoded, ensure_ascii=False, allow_nan=False)])
        return json.loads(cursor.fetchone()[0])


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    """A text that is not exactly `str`."""


class Many(float):
    """A number that is not exactly `float`, as NumPy's are."""


class Receipt(BaseModel):
    id: str
    amount: Decimal
    at: datetime | None = None


@dataclasses.dataclass
class Place:
    lat: float
    names: tuple[str, ...]


NOON = datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=UTC)


# --- there and back ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        0.1,
        "",
        "Zoë 🂡 \u2028 \x7f",
        [],
        {},
        [None, False, 0, "", [], {}],
        {"b": 1, "a": {"c": [1, 2, {"d": None}]}},
        NOON,
        NOON.replace(tzinfo=None),
        NOON.replace(tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        date(2026, 2, 28),
        timedelta(),
        timedelta(hours=6),
        timedelta(microseconds=1),
        timedelta.min,
        timedelta.max,
        Decimal("10.00"),
        Decimal("0.1") + Decimal("0.2"),
        Decimal("1E+400"),
        Decimal("-0"),
        uuid.UUID(int=7),
        2**53 + 1,
        2**63,
        -(10**4299),
        5e-324,
        1.7976931348623157e308,
        1e16,
        9007199254740993.0,
        12345678901234567.0,
        -1e22,
        1e-7,
        -0.0,
        {"when": [NOON, {"much": Decimal("1.10")}]},
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, int) or abs(value) < 10**30 else "huge",
)
@pytest.mark.django_db
def test_a_value_comes_back_from_the_database_as_it_was(value: Any):
    encoded = encode(value)
    again = stored(encoded)
    assert canonical(again) == canonical(encoded), "its digest holds"
    back = decode(again)
    assert back == value
    assert type(back) is type(value)
    assert same(back, value), "also the sign of zero and the digits of a Decimal"


def test_models_dataclasses_enums_and_tuples_are_recorded_by_what_they_hold():
    assert decode(encode(Receipt(id="r", amount=Decimal("1.50"), at=NOON))) == {
        "id": "r",
        "amount": Decimal("1.50"),
        "at": NOON,
    }
    assert encode(Place(1.5, ("a", "b"))) == {"lat": 1.5, "names": ["a", "b"]}
    assert encode([Colour.RED, Level.HIGH, Word("w"), Many(0.5)]) == ["red", 3, "w", 0.5]
    assert [type(x) for x in encode([Level.HIGH, Word("w"), Many(0.5)])] == [int, str, float]


# --- data that looks like a tag ------------------------------------------------------------------------------------------

LOOK_ALIKES: list[Any] = [
    {TAG: "decimal", "v": "1"},
    {TAG: "datetime", "v": "not a time"},
    {TAG: "dict", "v": {"a": 1}},
    {TAG: "unknown"},
    {TAG: None},
    {TAG: {TAG: {TAG: "uuid"}}},
    {TAG: "dict", "v": {TAG: "dict", "v": {TAG: "timedelta", "v": "1"}}},
    {"deep": [{TAG: [NOON]}]},
    {TAG: "float", "v": "1e400", "more": 1},
]


@pytest.mark.parametrize("value", LOOK_ALIKES, ids=str)
def test_data_that_holds_the_key_of_a_tag_stays_data(value: Any):
    assert decode(encode(value)) == value
    assert decode(json.loads(canonical(encode(value)))) == value


@pytest.mark.parametrize("value", LOOK_ALIKES, ids=str)
def test_data_that_holds_the_key_of_a_tag_is_shown_as_data(value: Any):
    shown = plain(encode(value))
    assert TAG in json.dumps(shown, default=str)
    assert set(shown) == set(value)


def test_two_values_that_look_alike_have_two_digests():
    tagged, data = encode(Decimal("1")), encode({TAG: "decimal", "v": "1"})
    assert tagged != data
    assert digest(tagged) != digest(data)


def test_a_tag_of_newer_code_is_an_error_and_not_data():
    with pytest.raises(KeyError):
        decode({TAG: "complex", "v": "1+2j"})


# --- what is refused -----------------------------------------------------------------------------------------------------

REFUSED = [
    ({"a": {"b": "x\x00y"}}, "$.a.b holds NUL, which PostgreSQL cannot store"),
    ({"a": ["\ud83d"]}, "$.a[0] holds a lone surrogate, which PostgreSQL cannot store"),
    ({"a": math.nan}, "$.a is nan, which JSON cannot hold"),
    ([1, [math.inf]], "$[1][0] is inf, which JSON cannot hold"),
    ([-math.inf], "$[0] is -inf, which JSON cannot hold"),
    ({"a": Many("nan")}, "$.a is nan, which JSON cannot hold"),
    ({"a": Decimal("NaN")}, "$.a is NaN, which JSON cannot hold"),
    ({"a": Decimal("sNaN")}, "$.a is sNaN, which JSON cannot hold"),
    ({"a": Decimal("-Infinity")}, "$.a is -Infinity, which JSON cannot hold"),
    ({"a": {1, 2}}, "$.a is a set, which cannot be recorded"),
    ({"a": frozenset()}, "$.a is a frozenset, which cannot be recorded"),
    ({"a": [b"bytes"]}, "$.a[0] is a bytes, which cannot be recorded"),
    ({"a": bytearray(1)}, "$.a is a bytearray, which cannot be recorded"),
    ({"a": object()}, "$.a is a object, which cannot be recorded"),
    ({"a": 1j}, "$.a is a complex, which cannot be recorded"),
    ({"a": Place}, "$.a is a type, which cannot be recorded"),
    ({"a": {1: "x"}}, "$.a has the key 1; keys must be text"),
    ({"a": {None: "x"}}, "$.a has the key None; keys must be text"),
    ({"a": {"k\x00": 1}}, "holds NUL"),
    ({"a": 10**4300}, "$.a is an integer of more than 4300 digits"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_recorded_is_refused_with_the_path_to_it(value: Any, message: str):
    with pytest.raises(NotRecordable) as refused:
        encode(value)
    assert message in str(refused.value)


@pytest.mark.django_db
@pytest.mark.parametrize("value", [value for value, _ in REFUSED], ids=[message for _, message in REFUSED])
def test_what_comes_from_outside_is_kept_with_a_visible_marker_instead(value: Any):
    encoded = encode(value, lenient=True)
    assert stored(encoded) == encoded
    assert "⟦" in json.dumps(encoded, ensure_ascii=False) or list(encoded["a"]) in (["1"], ["None"])
    decode(encoded)


def test_a_marker_says_what_was_there():
    given_ = {"a": "x\x00y", "b": math.nan, "c": "\udc80", "d": {1}, "e": Decimal("Infinity"), "f": 10**5000}
    assert encode(given_, lenient=True) == {
        "a": "x⟦U+0000⟧y",
        "b": "⟦nan⟧",
        "c": "⟦U+DC80⟧",
        "d": "⟦set⟧",
        "e": "⟦Infinity⟧",
        "f": "⟦an integer of more than 4300 digits⟧",
    }


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.django_db
def test_nesting_is_limited_to_what_every_reader_can_follow():
    deep = nested(codec.MAX_DEPTH)
    assert decode(stored(encode(deep))) == deep
    plain(encode(deep))
    with pytest.raises(NotRecordable, match="nested more than 200 levels deep"):
        encode(nested(codec.MAX_DEPTH + 5))
    assert "too deep" in canonical(encode(nested(10_000), lenient=True)).decode()


def test_a_value_that_holds_itself_is_too_deep():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotRecordable, match="nested"):
        encode(loop)
    encode(loop, lenient=True)


def test_the_deepest_value_with_tags_at_every_level_can_be_read_again():
    value: Any = "end"
    for _ in range(codec.MAX_DEPTH // 2):
        value = {TAG: [value]}
    assert decode(encode(value)) == value
    plain(encode(value))


# --- texts ---------------------------------------------------------------------------------------------------------------


def test_a_text_from_outside_is_cut_with_a_visible_mark():
    assert clean_text("a" * 12, 10) == "a" * 10 + "… ⟦2 more characters⟧"
    assert clean_text("\x00") == "⟦U+0000⟧"
    assert clean_text("ok", 10) == "ok"


# --- what people see -----------------------------------------------------------------------------------------------------


def test_people_read_tagged_values_as_text():
    value = {
        "at": NOON,
        "amount": Decimal("1.50"),
        "wait": timedelta(hours=6),
        "big": 1e300,
        "id": uuid.UUID(int=1),
    }
    assert plain(encode(value)) == {
        "at": "2026-11-29T12:00:00.123456+00:00",
        "amount": "1.50",
        "wait": "21600.000000",
        "big": 1e300,
        "id": "00000000-0000-0000-0000-000000000001",
    }


@pytest.mark.django_db
@pytest.mark.parametrize("number", [2**53 + 1, -(2**63), 2**64 - 1, 10**30 + 7, 12345678901234567890])
def test_large_integers_are_exact_in_the_database_and_in_the_browser(number: int):
    """JavaScript would round them: the page holds them as text."""
    assert decode(stored(encode({"n": number}))) == {"n": number}
    assert str(number) in json_html(plain(encode({"n": number})))


# --- digests -------------------------------------------------------------------------------------------------------------


def test_a_digest_depends_on_the_value_and_not_on_the_order_of_its_keys():
    assert digest(encode({"a": 1, "b": [NOON]})) == digest(encode({"b": [NOON], "a": 1}))
    assert digest(encode({"a": 1})) != digest(encode({"a": True}))
    assert digest(encode([1])) != digest(encode(["1"]))
    assert digest(encode(Decimal("1.0"))) != digest(encode(Decimal("1.00")))


def test_a_keyed_digest_cannot_be_made_without_the_key_and_earlier_keys_still_verify(settings: Settings):
    settings.SECRET_KEY = "first"
    first = keyed_digest({"a": 1})
    settings.SECRET_KEY = "second"
    assert keyed_digest({"a": 1}) != first
    assert not is_keyed_digest({"a": 1}, first)
    settings.SECRET_KEY_FALLBACKS = ["zeroth", "first"]
    assert is_keyed_digest({"a": 1}, first)
    assert is_keyed_digest({"a": 1}, keyed_digest({"a": 1}))
    assert not is_keyed_digest({"a": 2}, first)
    assert not is_keyed_digest({"a": 1}, "")


# --- everything else -----------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
zones = st.none() | st.just(UTC) | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
)
keys = texts | st.sampled_from([TAG, "v"])
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=20)


def same(a: Any, b: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) and str(a) == str(b)


@given(values)
@example({TAG: {TAG: [Decimal("-0.0"), -0.0]}})
@limits(max_examples=300, deadline=None)
def test_any_recordable_value_survives_its_canonical_form(value: Any):
    encoded = encode(value)
    assert same(decode(json.loads(canonical(encoded))), value)
    plain(encoded)


@pytest.mark.django_db
@given(values)
@example([1e16, 1.5e300, -0.0, 1e-300, 5e-324])
@limits(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_recordable_value_survives_postgresql_with_its_digest(value: Any):
    encoded = encode(value)
    again = stored(encoded)
    assert digest(again) == digest(encoded)
    assert same(decode(again), value)


anything = st.recursive(
    leaves | st.floats() | st.text(st.characters()) | st.binary() | st.decimals() | st.sets(st.integers()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=20,
)


@pytest.mark.django_db
@given(anything)
@limits(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_from_outside_can_be_stored(value: Any):
    encoded = encode(value, lenient=True)
    assert digest(stored(encoded)) == digest(encoded)
    decode(encoded)
    plain(encoded)
