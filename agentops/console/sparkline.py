"""Sparkline: a trend as one row of bars, without axes; the sentence beside it says the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

#: Height of the drawing and of the tallest bar, in its own units; a bar that stands for something is never lower than LEAST.
HEIGHT, TALLEST, LEAST = 24.0, 22.0, 1.6
#: What an empty bar is drawn as, so that the row of bars has no holes.
BASE = 1.5
#: Share of a bar's place that it fills.
FILLED = 0.68


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: where it begins and how wide it is, in per cent of the drawing; how high it stands, and from where down."""

    x: str
    width: str
    y: str
    height: str
    empty: bool


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The bars, and what they show in words."""

    bars: Sequence[Bar]
    label: str


def sparkline(numbers: Sequence[int], label: str) -> Sparkline:
    """Bars of `numbers`, the oldest first; the highest is TALLEST."""
    most = max(numbers, default=0)
    step = 100 / len(numbers) if numbers else 0
    bars = []
    for place, number in enumerate(numbers):
        height = max(LEAST, TALLEST * number / most) if number else BASE
        bars.append(
            Bar(
                f"{place * step:.2f}",
                f"{step * FILLED:.2f}",
                f"{HEIGHT - height:.1f}",
                f"{height:.1f}",
                not number,
            )
        )
    return Sparkline(bars, label)
