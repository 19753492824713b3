"""What every picture is made of: boxes, lines, words, a legend, round numbers on an axis.

Positions in pixels become SVG elements as text; `document` makes a standalone file of them, without
scripts or fonts of its own. All pictures share one width, one set of colours and one way to write,
so a reader learns them once. Neighbouring colours differ in lightness too, and curves in the marks
at their points or in their dashes, for readers who see few colours. Read next: `charts.py`,
`svg.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any
from xml.sax.saxutils import escape

Point = tuple[float, float]  # (x, y) in pixels
Entry = tuple[str, Any]  # a name of a legend, and what its sign is drawn of: a colour, say
WIDTH = 960
STYLE = "font-family:system-ui,sans-serif;font-size:12px;fill:#222"
#: Kinds of pieces, and curves in their order; then those of curves where there are more.
COLOURS = ("#3b6fb6", "#c05a2b", "#3f8f5f", "#8a6fb0", "#b8860b", "#7a7a7a")
CURVE_COLOURS = (*COLOURS, "#17becf", "#6b2d5c", "#d98cb3")
EMPTY, AXIS, LIMIT = "#f3f3f3", "#888", "#b00020"
#: Corners of the marks of curves, in their order, around (0, 0); the first is a circle.
MARKS: Sequence[Sequence[Point]] = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
    ((0, -1.4), (1.1, 0), (0, 1.4), (-1.1, 0)),
    ((0, 1.3), (1.2, -0.9), (-1.2, -0.9)),
    ((-0.4, -1.3), (0.4, -1.3), (0.4, -0.4), (1.3, -0.4), (1.3, 0.4), (0.4, 0.4), (0.4, 1.3),
     (-0.4, 1.3), (-0.4, 0.4), (-1.3, 0.4), (-1.3, -0.4), (-0.4, -0.4)),
    ((-1.1, -1.1), (1.1, -1.1), (-1.1, 1.1), (1.1, 1.1)),
    ((-1.3, 0), (-0.4, -0.5), (0, -1.4), (0.4, -0.5), (1.3, 0), (0.4, 0.5), (0, 1.4), (-0.4, 0.5)),
    ((-1.3, -1.2), (0.9, 0), (-1.3, 1.2)),
)  # fmt: skip
LETTER_WIDTH = 6.6
DASHES = "6 4"
_MOST_TICKS = 8
#: A line of more points is thinned.
MOST_POINTS = 8000


def document(parts: Iterable[str], height: float, width: float = WIDTH) -> str:
    """A standalone picture of these elements."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="background:#fff;{STYLE}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def box(x: float, y: float, width: float, height: float, colour: str, tip: str = "") -> str:
    """A filled rectangle; `tip` is shown where the pointer rests."""
    place = f'x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" fill="{colour}"'
    return f"<rect {place}>{f'<title>{escape(tip)}</title>' if tip else ''}</rect>"


def line(start: Point, end: Point, colour: str, *, dashed: bool = False) -> str:
    """A straight line, one pixel wide."""
    (x1, y1), (x2, y2) = start, end
    dash = f' stroke-dasharray="{DASHES}"' if dashed else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"{dash}/>'


def mark(kind: int, x: float, y: float, radius: float, colour: str, tip: str = "") -> str:
    """The mark of a curve's points, by number; `tip` is shown where the pointer rests."""
    title = f"<title>{escape(tip)}</title>" if tip else ""
    corners = MARKS[kind % len(MARKS)]
    if not corners:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">{title}</circle>'
    ends = " ".join(f"{x + radius * right:.1f},{y + radius * down:.1f}" for right, down in corners)
    return f'<polygon points="{ends}" fill="{colour}">{title}</polygon>'


def words(x: float, y: float, text: str, anchor: str) -> str:
    """A line of text; `anchor` says which part of it is at x: "start", "middle" or "end"."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def limit(left: float, right: float, y: float, name: str) -> str:
    """A dashed line across a plot, and its name above the right end, readable over anything."""
    halo = "paint-order:stroke;stroke:#fff;stroke-width:3px"
    name = (
        f'<text x="{right:.1f}" y="{y - 4:.1f}" text-anchor="end" fill="{LIMIT}" '
        f'style="{halo}">{escape(name)}</text>'
    )
    return line((left, y), (right, y), LIMIT, dashed=True) + name


def swatch(x: float, y: float, colour: str) -> str:
    """The sign of a colour in a legend, before words whose line is at y."""
    return box(x, y - 10, 12, 12, colour)


def legend_row(
    x: float, y: float, entries: Sequence[Entry],
    sign: Callable[[float, float, Any], str] = swatch,
) -> list[str]:  # fmt: skip
    """Names behind their signs, after each other, from x to the right.

    Args:
        sign: draws one, 12 pixels wide; by default signs are colours.
    """
    parts = []
    for name, shown in entries:
        parts += [sign(x, y, shown), words(x + 17, y, name, "start")]
        x += _legend_width(name)
    return parts


def legend_rows(width: float, entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    """Entries in as many rows as a width takes; one that is wider has a row of its own."""
    rows: list[list[Entry]] = [[]]
    taken = 0.0
    for name, shown in entries:
        if rows[-1] and taken + _legend_width(name) > width:
            rows.append([])
            taken = 0.0
        rows[-1].append((name, shown))
        taken += _legend_width(name)
    return [*rows]


def _legend_width(name: str) -> float:
    return 17 + LETTER_WIDTH * len(name) + 18


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """A line from left to right; of very many points those that a reader can distinguish: the
    first, the highest, the lowest and the last of each pixel column.
    """
    if len(points) <= MOST_POINTS:
        return points
    kept: list[Point] = []
    for _, column in groupby(points, key=lambda point: int(point[0])):
        inside = list(enumerate(column))
        ends = {inside[0], inside[-1]}
        ends |= {min(inside, key=lambda pair: pair[1][1]), max(inside, key=lambda pair: pair[1][1])}
        kept += [point for _, point in sorted(ends)]
    return kept


def round_ticks(low: float, high: float) -> list[float]:
    """Up to eight round numbers within [low, high]."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9) / _MOST_TICKS))
    factors = (1, 2, 2.5, 5, 10, 20, 50)
    step = next(step * f for f in factors if (high - low) / (step * f) <= _MOST_TICKS)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def factor_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within [low, high], for an axis of equal factors."""
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]
