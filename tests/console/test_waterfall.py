"""Waterfall: bars in order, waits folded, nothing outside the lane."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.console.waterfall import Lane, Waterfall, waterfall
from agentops.look import samples

ZERO = datetime(2026, 11, 29, 9, 14, 2, tzinfo=UTC)


def _lane(start: float, end: float | None, *, worked: bool = True) -> Lane:
    stop = None if end is None else ZERO + timedelta(seconds=end)
    return Lane("step", "s-completed", "is-ok", ZERO + timedelta(seconds=start), stop, worked)


def _edges(fall: Waterfall) -> list[tuple[float, float]]:
    return [(float(row.x[:-1]), float(row.x[:-1]) + float(row.width[:-1])) for row in fall.rows]


def test_nothing_has_no_rows() -> None:
    assert waterfall([], now=ZERO).rows == []


def test_work_side_by_side_shares_the_width_in_proportion() -> None:
    fall = waterfall([_lane(0, 10), _lane(10, 20)], now=ZERO)
    assert _edges(fall) == [(0.0, 50.0), (50.0, 100.0)]
    assert not fall.folded


def test_a_long_wait_is_folded_and_says_how_long_it_was() -> None:
    fall = waterfall([_lane(0, 10), _lane(10, 6500, worked=False), _lane(6500, 6510)], now=ZERO)
    assert [band.label for band in fall.bands] == ["1 h 48 min"]
    assert float(fall.bands[0].width[:-1]) == pytest.approx(12)
    assert fall.rows[0].took == "10.0 s"
    assert fall.rows[1].took == "1 h 48 min"


def test_long_work_is_never_folded() -> None:
    assert not waterfall([_lane(0, 3600)], now=ZERO).folded


def test_a_true_scale_folds_nothing() -> None:
    assert not waterfall([_lane(0, 1), _lane(1, 9000, worked=False)], now=ZERO, fold=False).folded


def test_what_goes_on_ends_now_and_says_so() -> None:
    fall = waterfall([_lane(0, 1), _lane(1, None, worked=False)], now=ZERO + timedelta(minutes=38))
    assert fall.rows[1].took == "38 min so far"
    assert _edges(fall)[1][1] == pytest.approx(100, abs=0.02)


def test_the_sample_run_folds_its_two_waits() -> None:
    fall = waterfall(samples.lanes(ZERO), now=ZERO)
    assert [band.label for band in fall.bands] == ["1 h 48 min", "38 min"]


_spans = st.lists(
    st.tuples(st.floats(0, 1e7), st.one_of(st.none(), st.floats(0, 1e6)), st.booleans()),
    min_size=1,
    max_size=30,
)


@given(_spans)
def test_every_bar_is_inside_the_lane_and_bars_keep_their_order(
    spans: list[tuple[float, float | None, bool]],
) -> None:
    lanes = [
        _lane(start, None if length is None else start + length, worked=worked)
        for start, length, worked in spans
    ]
    fall = waterfall(lanes, now=ZERO + timedelta(seconds=2e7))
    for left, right in _edges(fall):
        assert -0.01 <= left <= 100
        assert right <= 100.02
    by_start = sorted(zip((lane.start for lane in lanes), _edges(fall), strict=True))
    for (_, (left, _)), (_, (later, _)) in pairwise(by_start):
        assert left <= later + 0.51  # the thinnest bar may be moved left by its own width
