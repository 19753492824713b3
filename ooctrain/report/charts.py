"""Three kinds of picture as standalone SVG: strips of pieces, areas over two axes, and curves.

In: plain numbers with names. Out: SVG text without scripts or fonts of its own. The one idea: most
pictures of memory are one of three: who lies where (strips: lifetimes on a list, blocks in an
arena, rows of an image), who lies where and when (areas: time across, addresses up), and how
something grows (curves, over linear or doubling steps). Colours are chosen so that neighbours
differ in lightness too, for readers who see few colours. Read next: `svg.py`, which draws
timelines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 960, 150, 36
ROW_HEIGHT, ROW_GAP, TITLE_HEIGHT = 22, 6, 30
PLOT_HEIGHT = 300
STYLE = "font-family:system-ui,sans-serif;font-size:12px;fill:#222"
#: Kinds of pieces, and curves in their order.
COLOURS = ("#3b6fb6", "#c05a2b", "#3f8f5f", "#8a6fb0", "#b8860b", "#7a7a7a")
EMPTY = "#f3f3f3"
_LETTER_WIDTH = 6.6
_MOST_TICKS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a strip.

    Args:
        lo, hi: on the axis.
        text: written into it where there is room; shown where the pointer rests.
        kind: its colour, by number.
    """

    lo: float
    hi: float
    text: str = ""
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle over two axes.

    Args:
        x_lo, x_hi, y_lo, y_hi: its borders.
        text: shown where the pointer rests.
        kind: its colour, by number.
    """

    x_lo: float
    x_hi: float
    y_lo: float
    y_hi: float
    text: str = ""
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Curve:
    """Points that belong together.

    Args:
        name: for the legend.
        points: (x, y), x increasing; a y of None leaves a gap.
        dashed: for limits and bounds.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    dashed: bool = False


def strips_svg(
    title: str, rows: Sequence[tuple[str, Sequence[Piece]]], *, extent: float,
    axis: str = "", legend: Sequence[str] = (), number: Callable[[float], str] | None = None,
) -> str:  # fmt: skip
    """Rows of pieces on one axis from 0 to `extent`.

    Args:
        title: above all.
        rows: (name, pieces), from top to bottom; what no piece covers is drawn empty.
        axis: what the axis counts.
        legend: what the kinds mean, in order.
        number: prints a number of the axis.
    """

    def place(value: float) -> float:
        return LEFT + value / extent * (WIDTH - LEFT - RIGHT)

    parts, y = _head(title, legend)
    for name, pieces in rows:
        parts.append(_text(LEFT - 8, y + 15, name, "end"))
        parts.append(_box(LEFT, y, WIDTH - LEFT - RIGHT, ROW_HEIGHT, EMPTY))
        parts += [_piece(piece, place(piece.lo), place(piece.hi), y) for piece in pieces]
        y += ROW_HEIGHT + ROW_GAP
    parts += _x_axis(round_ticks(0, extent), place, y, axis, number or _short)
    return _document(parts, y + 44)


def curves_svg(
    title: str, curves: Sequence[Curve], *, x_axis: str, y_axis: str, doubling: bool = False,
    y_low: float = 0.0, x_number: Callable[[float], str] | None = None,
    y_number: Callable[[float], str] | None = None,
) -> str:  # fmt: skip
    """Curves over one axis.

    Args:
        title: above all.
        curves: drawn in order, in the order of `COLOURS`.
        x_axis, y_axis: what they count.
        doubling: equal distances along x are equal factors; a tick at each point of the first
            curve.
        y_low: where the y axis begins.
        x_number, y_number: print numbers of the axes.
    """
    xs = [x for curve in curves for x, _ in curve.points]
    top = max((y for c in curves for _, y in c.points if y is not None), default=1.0) or 1.0
    low, high = min(xs), max(xs)
    scale: Callable[[float], float] = math.log if doubling else float
    span = scale(high) - scale(low) or 1.0
    parts, y = _head(title, [curve.name for curve in curves])
    bottom = y + PLOT_HEIGHT

    def place(value: float) -> float:
        return LEFT + (scale(value) - scale(low)) / span * (WIDTH - LEFT - RIGHT)

    top = max(top, y_low * 1.01)  # so that a curve which nowhere leaves the axis can be drawn

    def height(value: float) -> float:
        return bottom - (value - y_low) / (1.05 * (top - y_low)) * PLOT_HEIGHT

    parts.append(_box(LEFT, y, WIDTH - LEFT - RIGHT, PLOT_HEIGHT, "#fafafa"))
    parts.append(_text(LEFT, y - 4, y_axis, "start"))
    for tick in round_ticks(y_low, top):
        parts.append(_line(LEFT, height(tick), WIDTH - RIGHT, height(tick), "#ddd"))
        parts.append(_text(LEFT - 8, height(tick) + 4, (y_number or _short)(tick), "end"))
    for place_in_order, curve in enumerate(curves):
        parts += _curve(curve, COLOURS[place_in_order % len(COLOURS)], place, height)
    ticks = [x for x, _ in curves[0].points] if doubling else round_ticks(low, high)
    parts += _x_axis(ticks, place, bottom, x_axis, x_number or _short)
    return _document(parts, bottom + 44)


def areas_svg(
    title: str, areas: Sequence[Area], *, x_axis: str, y_axis: str, legend: Sequence[str] = (),
    limits: Sequence[tuple[str, float]] = (), y_top: float | None = None,
    y_number: Callable[[float], str] | None = None,
) -> str:  # fmt: skip
    """Rectangles over two axes that begin at 0: who has which addresses, and when.

    Args:
        title: above all.
        areas: drawn in order.
        x_axis, y_axis: what they count.
        legend: what the kinds mean, in order.
        limits: (name, y) of dashed lines.
        y_top: end of the y axis, so that pictures can be compared; None: the highest area or limit.
        y_number: prints numbers of the y axis.
    """
    right = max((area.x_hi for area in areas), default=1.0) or 1.0
    highest = max([area.y_hi for area in areas] + [y for _, y in limits], default=1.0)
    top = 1.05 * (y_top or highest or 1.0)
    parts, y = _head(title, legend)
    bottom = y + PLOT_HEIGHT

    def place(value: float) -> float:
        return LEFT + value / right * (WIDTH - LEFT - RIGHT)

    def height(value: float) -> float:
        return bottom - value / top * PLOT_HEIGHT

    parts.append(_box(LEFT, y, WIDTH - LEFT - RIGHT, PLOT_HEIGHT, EMPTY))
    parts.append(_text(LEFT, y - 4, y_axis, "start"))
    parts += [
        _text(LEFT - 8, height(tick) + 4, (y_number or _short)(tick), "end")
        for tick in round_ticks(0, top)
    ]
    for area in areas:
        x, wide = place(area.x_lo), place(area.x_hi) - place(area.x_lo)
        low, tall = height(area.y_hi), height(area.y_lo) - height(area.y_hi)
        colour = COLOURS[area.kind % len(COLOURS)]
        parts.append(_box(x, low, max(wide, 0.5), max(tall - 0.4, 0.4), colour, area.text))
    for name, value in limits:
        parts.append(_line(LEFT, height(value), WIDTH - RIGHT, height(value), "#b00020"))
        parts.append(_text(WIDTH - RIGHT, height(value) - 4, name, "end"))
    parts += _x_axis(round_ticks(0, right), place, bottom, x_axis, _short)
    return _document(parts, bottom + 44)


def stacked_svg(pictures: Sequence[str]) -> str:
    """Pictures of this file under each other, as one."""
    parts, y = [], 0
    for picture in pictures:
        parts.append(picture.replace("<svg ", f'<svg y="{y}" ', 1))
        y += int(re.search(r'height="(\d+)"', picture)[1])  # type: ignore[index]
    return _document(parts, y)


def round_ticks(low: float, high: float) -> list[float]:
    """Up to eight round numbers within [low, high]."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9) / _MOST_TICKS))
    factors = (1, 2, 2.5, 5, 10, 20, 50)
    step = next(step * f for f in factors if (high - low) / (step * f) <= _MOST_TICKS)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _curve(
    curve: Curve, colour: str, place: Callable[[float], float], height: Callable[[float], float]
) -> list[str]:
    parts, run = [], list[str]()
    dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
    for x, y in [*curve.points, (0.0, None)]:
        if y is not None:
            run.append(f"{place(x):.1f},{height(y):.1f}")
            tip = f"<title>{escape(curve.name)}: {_short(x)}, {_short(y)}</title>"
            if not curve.dashed:
                parts.append(
                    f'<circle cx="{place(x):.1f}" cy="{height(y):.1f}" r="3.5" '
                    f'fill="{colour}">{tip}</circle>'
                )
        elif run:
            parts.append(
                f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" '
                f'stroke-width="2"{dash}/>'
            )
            run = []
    return parts


def _piece(piece: Piece, left: float, right: float, y: float) -> str:
    width = max(0.8, right - left - 1)
    colour = COLOURS[piece.kind % len(COLOURS)]
    shown = piece.text if len(piece.text) * _LETTER_WIDTH < width - 6 else ""
    label = (
        f'<text x="{left + width / 2:.1f}" y="{y + 15}" text-anchor="middle" '
        f'style="fill:#fff;font-size:11px">{escape(shown)}</text>'
        if shown
        else ""
    )
    return _box(left, y, width, ROW_HEIGHT, colour, piece.text) + label


def _head(title: str, legend: Sequence[str]) -> tuple[list[str], int]:
    """Title and legend; and where the rest begins."""
    parts = [f'<text x="{LEFT}" y="20" font-weight="600">{escape(title)}</text>']
    if not legend:
        return parts, TITLE_HEIGHT
    x = float(LEFT)
    for kind, name in enumerate(legend):
        parts.append(_box(x, 31, 12, 12, COLOURS[kind % len(COLOURS)]))
        parts.append(_text(x + 17, 41, name, "start"))
        x += 17 + _LETTER_WIDTH * len(name) + 18
    return parts, TITLE_HEIGHT + 38


def _x_axis(
    ticks: Sequence[float], place: Callable[[float], float], y: float, axis: str,
    number: Callable[[float], str],
) -> list[str]:  # fmt: skip
    parts = [_line(LEFT, y, WIDTH - RIGHT, y, "#888")]
    for tick in ticks:
        parts.append(_line(place(tick), y, place(tick), y + 4, "#888"))
        parts.append(_text(place(tick), y + 17, number(tick), "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, y + 34, axis, "middle"))
    return parts


def _document(parts: Sequence[str], height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" style="background:#fff;{STYLE}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _box(x: float, y: float, width: float, height: float, colour: str, tip: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"'
    return f"<rect {place}>{f'<title>{escape(tip)}</title>' if tip else ''}</rect>"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    return f"{value:,.10g}"
