"""Any sequence of states comes back exactly, at every checkpoint, from patches and snapshots."""

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, example, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from runs import blobs, codec, history, redaction
from tests.runs.payloads.hiding import MASK

RUN = uuid.uuid4()


class Rows:
    """What a run's checkpoints write, and the two queries that read it back."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int, str, bytes | None]] = []
        self.blobs: dict[str, bytes] = {}

    def read(self, statement: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        if statement == blobs.READ:
            return [(key, self.blobs[key]) for key in parameters["keys"] if key in self.blobs]
        until = (parameters["seq"], parameters["attempt"])
        found = [row for row in reversed(self.kept) if row[:2] <= until][: parameters["limit"]]
        return [(seq, attempt, json.loads(after), sealed) for seq, attempt, after, sealed in found]

    def write(self, kept: history.Kept, seq: int) -> None:
        self.kept.append((seq, 1, kept.after, kept.after_sealed))
        if kept.blob is not None:
            self.blobs[kept.blob.key] = kept.blob.body

    def state(self, seq: int) -> history.Restored:
        back = history.restored(RUN, seq, 1, open_seal=True, read=self.read)
        assert back is not None
        return back


class InPostgreSQL(Rows):
    """What jsonb makes of them."""

    def write(self, kept: history.Kept, seq: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT (%s::jsonb)::text", [kept.after])
            after: str = cursor.fetchone()[0]
        super().write(dataclasses.replace(kept, after=after), seq)


def recorded(states: Sequence[dict[str, Any]], made: Callable[[], Rows] = Rows) -> tuple[Rows, history.Large]:
    """Each state as the checkpoint of one visit."""
    rows, large = made(), None
    for seq, state in enumerate(states, start=1):
        if large is None:
            first = history.begin(codec.encode(state))
            assert first is not None
            large, parts = first, first.true
        else:
            now = large.parts_now(state)
            assert now is not None
            parts = now
        kept = history.keep(large, parts, history.joined(parts), seq, 1)
        rows.write(kept, seq)
        large = kept.large
    assert large is not None
    return rows, large


def check_each(states: Sequence[dict[str, Any]], made: Callable[[], Rows] = Rows) -> None:
    rows, large = recorded(states, made)
    for seq, state in enumerate(states, start=1):
        encoded, back = codec.encode(state), rows.state(seq)
        assert codec.canonical(back.true) == codec.canonical(encoded)
        assert codec.canonical(back.shown) == codec.canonical(redaction.redact(encoded))
    # What the next step gets is what a worker gets that reads it back.
    _, opened = history.opened(
        RUN, {codec.TAG: history.POINTER, "v": {"seq": len(states), "attempt": 1}}, None, rows.read
    )
    assert opened is not None
    assert repr(opened.fresh()) == repr(large.fresh()) == repr(codec.decode(codec.encode(states[-1])))
    assert (opened.patches, opened.patched) == (large.patches, large.patched)


KEYS = st.sampled_from(["a", "b", "c", "secret", "é", "", "a.b"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, -0.0, 1.0, 1e16, 1e-7, 10**30])
    | st.text("ab\u2028\U0001f600'\"\\", max_size=6)
    | st.sampled_from(
        [Decimal("1.50"), datetime(2026, 3, 29, 2, 30, tzinfo=UTC), "x" * 700, "x" * 350 + "y" + "x" * 350]
    )
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
#: Most states share most of the one before: that is what patches are about.
STEPS = st.lists(
    st.tuples(KEYS, VALUES) | st.tuples(KEYS, st.just(...)) | st.tuples(st.just("grow"), VALUES),
    min_size=1,
    max_size=12,
)


def walked(first: dict[str, Any], steps: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    states = [{"documents": [{"n": n, "body": "word " * 30} for n in range(8)], **first}]
    for key, value in steps:
        state = codec.decode(codec.encode(states[-1]))
        if value is ...:
            state.pop(key, None)
        elif key == "grow":
            state["documents"].insert(len(state["documents"]) // 2, value)
            state["documents"][0]["body"] += "more"
        else:
            state[key] = value
            state["documents"][-1][key] = value
        states.append(state)
    return states


@limits(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), STEPS)
def test_every_checkpoint_restores_exactly(first, steps):
    check_each(walked(first, steps))


@pytest.mark.django_db
@limits(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=4), STEPS)
def test_every_checkpoint_restores_exactly_from_postgresql(first, steps):
    check_each(walked(first, steps), InPostgreSQL)


@limits(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=4), STEPS)
@example({"a": {"secret": 1}}, [("a", ...), ("secret", "x" * 700), ("secret", MASK), ("secret", ...)])
def test_every_checkpoint_restores_exactly_what_people_may_see_and_what_is_true(hiding, first, steps):
    check_each(walked(first, steps))


@pytest.mark.long
@limits(max_examples=3000, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), STEPS)
def test_every_checkpoint_of_three_thousand_histories_restores_exactly(first, steps):
    check_each(walked(first, steps))


def test_numbers_that_python_takes_for_equal_are_not():
    check_each(
        [
            {"a": [1, 0, "x" * 300]},
            {"a": [True, 0, "x" * 300]},
            {"a": [1.0, False, "x" * 300]},
            {"a": [1, 0.0, "x" * 300]},
        ]
    )


def test_a_text_that_repeats_itself_grows_and_shrinks_by_what_is_new():
    states = [{"text": "ab" * n, "list": [0] * n} for n in (400, 401, 399, 400, 900, 10)]
    check_each(states)
    rows, _ = recorded(states[:4])
    assert all(len(after) < 200 for _, _, after, _ in rows.kept[1:])


def test_what_is_hidden_appears_in_nothing_that_people_see(hiding):
    states = [{"card": {"secret": "4111"}, "i": i, "rest": "x" * 900} for i in range(4)]
    states += [{"card": {"secret": f"4111-{i}"}, "rest": "x" * 900} for i in range(4)]
    rows, _ = recorded(states)
    assert not any("4111" in after for _, _, after, _ in rows.kept)
    assert not any(b"4111" in blobs.unpack(key, body) for key, body in rows.blobs.items())
    assert rows.state(8).true["card"] == {"secret": "4111-3"}


def test_history_grows_with_what_changes():
    state: dict[str, Any] = {"documents": [{"n": n, "body": f"{n} " * 500} for n in range(60)], "log": []}
    size = len(codec.canonical(state))
    states = []
    for step in range(60):
        state = codec.decode(codec.encode(state))
        state["documents"][step]["body"] += " read"
        state["log"].append({"step": step})
        states.append(state)
    rows, _ = recorded(states)
    kept = sum(len(after) for _, _, after, _ in rows.kept) + sum(map(len, rows.blobs.values()))
    assert kept < size / 4
    assert rows.state(60).true == states[-1]


def test_a_snapshot_comes_when_patches_have_half_the_size_of_the_state():
    states = [{"text": "x" * 1000 + str(i), "other": f"{i}" * 40, "rest": "y" * 1000} for i in range(40)]
    rows, _ = recorded(states)
    snapshots = [seq for seq, _, after, _ in rows.kept if not history.is_patch(json.loads(after))]
    assert snapshots[0] == 1
    assert 2 <= len(snapshots) <= 10
    # Between two of them patches never come to more than half of the state.
    for one, following in zip(snapshots, [*snapshots[1:], len(states) + 1], strict=True):
        between = sum(len(after) for seq, _, after, _ in rows.kept if one < seq < following)
        assert between < len(codec.canonical(states[0]))


@pytest.mark.parametrize(
    "made",
    [
        [[["gone", "deeper"], 1]],
        [[["list"], 5, 1, []]],
        [[["list"], -1, 1, []]],
        [[["list", 9], 1]],
        [[["text", 0], 1]],
        [[["missing"]]],
        [[["missing"], 0, 1, []]],
        [[]],
    ],
)
def test_a_patch_that_does_not_fit_is_an_error_and_nothing_else(made):
    with pytest.raises(history.HistoryDamaged):
        history.apply({"list": [1, 2], "text": "abc"}, made)
    with pytest.raises(history.HistoryDamaged):
        history.told({"list": [1, 2], "text": "abc"}, made)


def test_people_are_told_what_changed_by_its_path():
    old = {"documents": [{"body": "x" * 300}, {"n": 1}], "gone": 1, "log": ["a" * 250]}
    new = {
        "documents": [{"body": "x" * 150 + "new" + "x" * 150}, {"n": True, "m": 2}],
        "log": ["a" * 250, "b"],
    }
    made = history.changes(old, new)
    before, after = history.told(codec.decode(codec.encode(old)), made)
    assert before == {"gone": 1}
    assert after == {"documents[0].body[150:150]": "new", "documents[1].m": 2, "log[1:1]": ["b"]}
    assert history.told({"a": [1, 2, 3]}, [[["a"], 0, 2, []], [["b"], 1]]) == ({"a[0:2]": [1, 2]}, {"b": 1})


def test_a_changed_row_is_noticed():
    states = [{"n": n, "rest": "x" * 900} for n in range(3)]
    rows, _ = recorded(states)
    seq, attempt, after, sealed = rows.kept[1]
    rows.kept[1] = (seq, attempt, after.replace('["n"],1', '["n"],7'), sealed)
    with pytest.raises(history.HistoryDamaged, match="visit 2"):
        rows.state(2)
    assert rows.state(3).true["n"] == 2, "a later value does not depend on it"


def test_a_missing_snapshot_is_named():
    rows, _ = recorded([{"n": n, "rest": "x" * 900} for n in range(3)])
    key = next(iter(rows.blobs))
    rows.blobs.clear()
    with pytest.raises(blobs.BlobDamaged, match=key):
        rows.state(3)
    del rows.kept[0]
    with pytest.raises(history.HistoryDamaged, match="snapshot before visit 2"):
        rows.state(3)


def test_a_state_with_the_key_of_a_tag_is_never_patched():
    assert history.begin(codec.encode({codec.TAG: "patch", "v": {"changes": []}})) is None
