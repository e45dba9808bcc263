"""The growth figures as a picture: milliseconds over rows, drawn as SVG without any library."""

import math
from xml.sax.saxutils import escape

from agentops.benchmark.figures import Figures
from agentops.benchmark.works.growth import LINES

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 56, 24, 44, 84
COLOURS = {"list": "#2f6f9f", "search": "#b4690e", "run": "#7a4fa3", "claim": "#2e7d4f"}
WANTED_MS = 100.0


def growth_svg(figures: Figures, about: str) -> str:
    """The chart; `about` says where and when it was measured. Raises ValueError where there are no such figures."""
    points = {
        line: sorted(
            (int(key.split(".")[1]), value)
            for key, value in figures.items()
            if key.startswith("growth.") and key.endswith(f".{line}_p95_ms")
        )
        for line in LINES
    }
    rows = sorted({row for line in points.values() for row, _ in line})
    if not rows:
        raise ValueError("there are no figures of growth to draw")
    top = _round_up(max([WANTED_MS, *(ms for line in points.values() for _, ms in line)]))
    first, last = math.log10(rows[0]), math.log10(rows[-1])

    def x(row: float) -> float:
        return LEFT + (math.log10(row) - first) / ((last - first) or 1) * (WIDTH - LEFT - RIGHT)

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - ms / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif"'
        ' font-size="12">',
        f"<title>95th percentile in milliseconds over rows: {escape(about)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(
            LEFT, 22, "95th percentile (ms) of the slowest page of each kind, and of claims", weight="bold"
        ),
    ]
    for tick in range(5):
        ms = top / 4 * tick
        parts += [
            _line(LEFT, y(ms), WIDTH - RIGHT, y(ms), "#ddd"),
            _text(LEFT - 8, y(ms) + 4, f"{ms:g}", "end"),
        ]
    parts.append(_line(LEFT, y(WANTED_MS), WIDTH - RIGHT, y(WANTED_MS), "#c33", dash=True))
    parts += [_text(x(row), HEIGHT - BOTTOM + 18, f"{row:,} runs", _anchor(row, rows)) for row in rows]
    for number, (line, said) in enumerate(LINES.items()):
        drawn = " ".join(f"{x(row):.1f},{y(ms):.1f}" for row, ms in points[line])
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{COLOURS[line]}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(row):.1f}" cy="{y(ms):.1f}" r="3.5" fill="{COLOURS[line]}"><title>{ms:g} ms</title></circle>'
            for row, ms in points[line]
        ]
        at = LEFT + number % 2 * 330
        level = HEIGHT - 44 + number // 2 * 18
        ends = ", ".join(f"{ms:g}" for _, ms in points[line])
        parts += [
            f'<rect x="{at}" y="{level - 9}" width="10" height="10" fill="{COLOURS[line]}"/>',
            _text(at + 16, level, f"{said}: {ends}"),
        ]
    parts += [_text(LEFT, HEIGHT - 6, about, colour="#666"), "</svg>"]
    return "\n".join(parts) + "\n"


def _anchor(row: int, rows: list[int]) -> str:
    return "start" if row == rows[0] else "end" if row == rows[-1] else "middle"


def _round_up(value: float) -> float:
    step = math.pow(10, math.floor(math.log10(value)))
    return math.ceil(value / step) * step


def _text(
    x: float, y: float, text: str, anchor: str = "start", *, weight: str = "normal", colour: str = "#222"
) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: bool = False) -> str:
    style = ' stroke-dasharray="5 4"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{style}/>'
