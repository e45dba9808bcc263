"""Waterfall: when what happened, one SVG lane a row, placed in per cent by the server.

The time axis is cut into stretches. Where nothing worked for more than `FOLD_AFTER` seconds (a person thinking, a
webhook on its way) the stretch is folded to a grey band of fixed width that says how long it was; the rest shares the
remaining width in proportion to time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.utils import timezone

from agentops.console.badges import OK
from agentops.console.times import duration

FOLD_AFTER = 60.0
"""Seconds without work after which a stretch is folded."""
MARGIN = 1.0
"""Seconds kept unfolded on both sides of work, so that bars do not touch a band."""
BAND = 12.0
"""Width of a folded band, in per cent of the lane."""
BANDS = 40.0
"""Width that all bands may take together, in per cent."""
THINNEST = 0.5
"""Width of the shortest bar, in per cent."""
STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Distances between ticks, in seconds."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row: an attempt, a wait or an operation.

    `end` is None while it goes on. `worked` is True for time that something worked (solid), False for time that was
    waited or whose outcome is unknown (dashed). `tone` is a class of badges.py; `level` 0 is a step, 1 what it did.
    `word` says the status for people who do not see the colour; `note` stands beside the name. `details` is HTML that
    opens below the row (class `attempt`), `opened` from the start; `href` leads elsewhere instead; `key` becomes the row's id.
    With `act` it is something that a person did at `start`: a mark and its time, with `said` below, in that person's words.
    """

    name: str
    icon: str
    tone: str
    start: datetime
    end: datetime | None
    worked: bool = True
    level: int = 0
    note: str = ""
    word: str = ""
    href: str = ""
    details: str = ""
    opened: bool = False
    key: str = ""
    act: bool = False
    said: str = ""

    @property
    def css(self) -> str:
        """Class of the row: what a step did is only coloured where it did not simply succeed."""
        if self.act:
            return f"act {self.tone}"
        if not self.level:
            return f"step {self.tone}"
        return "op" if self.tone == OK else f"op {self.tone}"


@dataclass(frozen=True, slots=True)
class Row:
    """A lane with its place: `x` and `width` in per cent, `took` in words."""

    lane: Lane
    x: str
    width: str
    took: str


@dataclass(frozen=True, slots=True)
class Tick:
    x: str
    label: str
    minor: bool


@dataclass(frozen=True, slots=True)
class Band:
    x: str
    width: str
    middle: str
    label: str


@dataclass(slots=True)
class Waterfall:
    """What the template draws."""

    rows: list[Row] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)

    @property
    def folded(self) -> bool:
        return bool(self.bands)


@dataclass(frozen=True, slots=True)
class _Stretch:
    start: float
    end: float
    x: float
    width: float
    folded: bool


def waterfall(lanes: Sequence[Lane], *, now: datetime, fold: bool = True) -> Waterfall:
    """Place `lanes` (in the order given) on one time axis that ends at the last end, or at `now`."""
    if not lanes:
        return Waterfall()
    zero = min(lane.start for lane in lanes)
    spans = [_span(lane, zero, now) for lane in lanes]
    last = max(0.001, *(end for _, end in spans))
    stretches = _stretches(_busy(lanes, spans), last, fold)

    def place(second: float) -> float:
        for stretch in stretches:
            if second <= stretch.end:
                break
        share = (second - stretch.start) / (stretch.end - stretch.start)
        return stretch.x + stretch.width * min(max(share, 0.0), 1.0)

    rows = []
    for lane, (start, end) in zip(lanes, spans, strict=True):
        x = place(start)
        width = max(place(end) - x, THINNEST)
        x = min(x, 100 - width)
        took = (
            f"{timezone.localtime(lane.start):%H:%M:%S}"
            if lane.act
            else duration(end - start) + ("" if lane.end else " so far")
        )
        rows.append(Row(lane, _percent(x), _percent(width), took))
    return Waterfall(rows, list(_ticks(stretches, zero)), [_band(s) for s in stretches if s.folded])


def _span(lane: Lane, zero: datetime, now: datetime) -> tuple[float, float]:
    start = (lane.start - zero).total_seconds()
    return start, max(start, ((lane.end or now) - zero).total_seconds())


def _busy(lanes: Sequence[Lane], spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the merged stretches in which something worked or waited only briefly, in seconds."""
    kept: list[tuple[float, float]] = []
    for lane, (start, end) in zip(lanes, spans, strict=True):
        if lane.worked or end - start <= FOLD_AFTER:
            kept.append((start - MARGIN, end + MARGIN))
        else:
            kept.append((start - MARGIN, start + MARGIN))
            if lane.end:
                kept.append((end - MARGIN, end + MARGIN))
    merged: list[tuple[float, float]] = []
    for start, end in sorted(kept):
        if merged and start - merged[-1][1] <= FOLD_AFTER:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _stretches(busy: Iterable[tuple[float, float]], last: float, fold: bool) -> list[_Stretch]:
    edges: list[tuple[float, float, bool]] = []
    at = 0.0
    for start, end in busy if fold else [(0.0, last)]:
        start, end = max(start, at), min(end, last)
        if start - at > FOLD_AFTER:
            edges.append((at, start, True))
            at = start
        if end > at:
            edges.append((at, end, False))
            at = end
    if last > at:
        edges.append((at, last, last - at > FOLD_AFTER))
    folds = sum(folded for *_, folded in edges)
    band = min(BAND, BANDS / folds) if folds else 0.0
    open_seconds = sum(end - start for start, end, folded in edges if not folded)
    if not open_seconds:
        band = 100.0 / folds
    x, stretches = 0.0, []
    for start, end, folded in edges:
        width = band if folded else (100.0 - band * folds) * (end - start) / open_seconds
        stretches.append(_Stretch(start, end, x, width, folded))
        x += width
    return stretches


def _ticks(stretches: Iterable[_Stretch], zero: datetime) -> Iterable[Tick]:
    for stretch in stretches:
        if stretch.folded:
            continue
        begin = timezone.localtime(zero + timedelta(seconds=stretch.start))
        if stretch.width >= 9:
            yield Tick(_percent(stretch.x), f"{begin:%H:%M:%S}", False)
        seconds = stretch.end - stretch.start
        # A label needs about 8 % of the lane; the first stands after the clock time.
        step = next((s for s in STEPS if stretch.width * s / seconds >= 8), None)
        if step is None:
            continue
        for number in range(1, int(seconds / step) + 1):
            x = stretch.x + stretch.width * number * step / seconds
            if stretch.x + 10 <= x <= stretch.x + stretch.width - 5:
                yield Tick(_percent(x), f"+{_short(number * step)}", True)


def _short(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds // 60}:{seconds % 60:02d}"
    return (
        f"{seconds // 3600} h" if seconds % 3600 == 0 else f"{seconds // 3600}:{seconds % 3600 // 60:02d} h"
    )


def _band(stretch: _Stretch) -> Band:
    middle = stretch.x + stretch.width / 2
    label = duration(stretch.end - stretch.start) if stretch.width >= 7 else ""
    return Band(_percent(stretch.x), _percent(stretch.width), _percent(middle), label)


def _percent(value: float) -> str:
    return f"{value:.2f}%"
