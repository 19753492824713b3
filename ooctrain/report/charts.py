"""Three kinds of picture as standalone SVG: strips of pieces, areas over two axes, curves.

Most pictures of memory are one of three. Strips show what lies where: lifetimes on a list, blocks
in an arena, rows of an image. Areas show what lies where and when: time across, addresses up.
Curves show how something grows, over linear or doubling steps. Each is drawn from plain numbers
with names, as SVG text without scripts or fonts of its own. Read next: `svg.py`, which draws
timelines; `shapes.py`, of which all are made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal
from xml.sax.saxutils import escape

from ooctrain.report import shapes
from ooctrain.report.shapes import (
    AXIS,
    COLOURS,
    WIDTH,
    Entry,
    box,
    legend_row,
    legend_rows,
    line,
    words,
)

LEFT, RIGHT = 150, 36
TITLE_HEIGHT, LEGEND_HEIGHT, PLOT_HEIGHT = 30, 20, 300


Spot = tuple[float, float]  # in the picture
Axes = tuple[str, str]  # what x and y count

ROW_HEIGHT, ROW_GAP = 22, 6
#: Of a curve's point; and how much wider it is drawn for each point that covers it.
POINT_RADIUS, RING_WIDTH = 4.0, 1.5
#: Of dashed curves, in their order.
DASHES = (shapes.DASHES, "2 3", "12 3 2 3", "12 4")


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
        kind: its colour and mark, by number, where they must be the same in several pictures; None:
            its place among the curves.
        label: written at its last point, so that it can be told from others without its colour.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    dashed: bool = False
    kind: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Look:
    """How a curve is drawn: its colour, and what it is told by without one.

    Args:
        mark: of its points, by number; None: it is a line alone.
        dash: of its line; "" for none.
    """

    colour: str
    mark: int | None
    dash: str

    @property
    def attributes(self) -> str:
        """Of the element that is its line."""
        dash = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return f'stroke="{self.colour}" stroke-width="2"{dash}'

    def sign(self, x: float, y: float) -> str:
        """It in a legend, before words whose line is at y."""
        drawn = f'<line x1="{x:.1f}" y1="{y - 4:.1f}" x2="{x + 14:.1f}" y2="{y - 4:.1f}" '
        drawn += f"{self.attributes}/>"
        if self.mark is None:
            return drawn
        return drawn + shapes.mark(self.mark, x + 7, y - 4, POINT_RADIUS, self.colour)


def _looks(curves: Sequence[Curve]) -> list[_Look]:
    """One for each curve; limits and bounds differ in their dashes."""
    dashes = cycle(DASHES)
    looks = []
    for order, curve in enumerate(curves):
        kind = order if curve.kind is None else curve.kind
        colour = shapes.CURVE_COLOURS[kind % len(shapes.CURVE_COLOURS)]
        looks.append(_Look(colour, None, next(dashes)) if curve.dashed else _Look(colour, kind, ""))
    return looks


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
        return LEFT + value / extent * (shapes.WIDTH - LEFT - RIGHT)

    parts, y = head(title, legend)
    for name, pieces in rows:
        parts.append(shapes.words(LEFT - 8, y + 15, name, "end"))
        parts.append(shapes.box(LEFT, y, shapes.WIDTH - LEFT - RIGHT, ROW_HEIGHT, shapes.EMPTY))
        parts += [_piece(piece, place(piece.lo), place(piece.hi), y) for piece in pieces]
        y += ROW_HEIGHT + ROW_GAP
    parts += x_axis_parts(shapes.round_ticks(0, extent), place, y, axis, number or short)
    return shapes.document(parts, y + 44)


def curves_svg(
    title: str, curves: Sequence[Curve], *, axes: Axes,
    doubling: bool | Literal["both"] = False, y_low: float = 0.0,
    x_number: Callable[[float], str] | None = None,
    y_number: Callable[[float], str] | None = None,
) -> str:  # fmt: skip
    """Curves over one axis.

    Args:
        title: above all.
        curves: drawn in order.
        axes: what x and y count.
        doubling: equal distances along x are equal factors; a tick at each point of the first
            curve. "both": so are those along y, as a roofline needs.
        y_low: where the y axis begins; with "both" the lowest point.
        x_number, y_number: print numbers of the axes.
    """
    xs = [x for curve in curves for x, _ in curve.points]
    highest = max((y for c in curves for _, y in c.points if y is not None), default=1.0) or 1.0
    if doubling == "both":
        y_low = min(y for curve in curves for _, y in curve.points if y is not None)
    top = max(highest, y_low * 1.01)  # so that a curve which nowhere leaves the axis can be drawn
    looks = _looks(curves)
    entries = [(curve.name, look) for curve, look in zip(curves, looks, strict=True)]
    parts, y = _headed(title, entries, lambda x, at, look: look.sign(x, at))
    scale: Callable[[float], float] = math.log if doubling else float
    y_scale: Callable[[float], float] = math.log if doubling == "both" else float
    plot = Plot(y + PLOT_HEIGHT, min(xs), max(xs), y_low, 1.05 * (top - y_low), scale, y_scale)
    parts += plot.frame("#fafafa", axes[1])
    y_ticks = shapes.factor_ticks if doubling == "both" else shapes.round_ticks
    for tick in y_ticks(y_low, top):
        height = plot.height(tick)
        parts.append(shapes.line((LEFT, height), (shapes.WIDTH - RIGHT, height), "#ddd"))
        parts.append(shapes.words(LEFT - 8, height + 4, (y_number or short)(tick), "end"))
    parts += _drawn(curves, looks, plot)
    ticks = [x for x, _ in curves[0].points] if doubling else shapes.round_ticks(min(xs), max(xs))
    parts += x_axis_parts(ticks, plot.place, plot.bottom, axes[0], x_number or short)
    return shapes.document(parts, plot.bottom + 44)


def areas_svg(
    title: str, areas: Sequence[Area], *, axes: Axes, legend: Sequence[str] = (),
    limits: Sequence[tuple[str, float]] = (), y_top: float | None = None,
    y_number: Callable[[float], str] | None = None, square: bool = False,
) -> str:  # fmt: skip
    """Rectangles over two axes that begin at 0: which block has which addresses, when.

    Args:
        title: above all.
        areas: drawn in order.
        axes: what x and y count.
        legend: what the kinds mean, in order.
        limits: (name, y) of dashed lines.
        y_top: end of the y axis, so that pictures can be compared; None: the highest area or limit.
        y_number: prints numbers of the y axis.
        square: whether a unit is as long on the x axis as on the y axis, as in an image.
    """
    right = max((area.x_hi for area in areas), default=1.0) or 1.0
    highest = max([area.y_hi for area in areas] + [y for _, y in limits], default=1.0)
    top = 1.05 * (y_top or highest or 1.0)
    if square:
        right = top * (shapes.WIDTH - LEFT - RIGHT) / PLOT_HEIGHT
    parts, y = head(title, legend)
    plot = Plot(y + PLOT_HEIGHT, 0.0, right, 0.0, top)
    parts += plot.frame(shapes.EMPTY, axes[1])
    parts += [
        shapes.words(LEFT - 8, plot.height(tick) + 4, (y_number or short)(tick), "end")
        for tick in shapes.round_ticks(0, top)
    ]
    parts += [_area(area, plot) for area in areas]
    parts += [
        shapes.limit(LEFT, shapes.WIDTH - RIGHT, plot.height(value), name) for name, value in limits
    ]
    parts += x_axis_parts(shapes.round_ticks(0, right), plot.place, plot.bottom, axes[0], short)
    return shapes.document(parts, plot.bottom + 44)


def stacked_svg(pictures: Sequence[str]) -> str:
    """Pictures under each other, as one."""
    parts, y = [], 0
    for picture in pictures:
        parts.append(picture.replace("<svg ", f'<svg y="{y}" ', 1))
        y += _extent(picture, "height")
    return shapes.document(
        parts, y, max((_extent(p, "width") for p in pictures), default=shapes.WIDTH)
    )


def side_by_side_svg(pictures: Sequence[str]) -> str:
    """Pictures next to each other, as one."""
    parts, x = [], 0
    for picture in pictures:
        parts.append(picture.replace("<svg ", f'<svg x="{x}" ', 1))
        x += _extent(picture, "width")
    return shapes.document(parts, max((_extent(p, "height") for p in pictures), default=0), x)


def _extent(picture: str, side: str) -> int:
    """Pixels of a picture's "width" or "height"."""
    return int(re.search(rf' {side}="(\d+)"', picture)[1])  # type: ignore[index]


def _drawn(curves: Sequence[Curve], looks: Sequence[_Look], plot: Plot) -> Iterator[str]:
    """Points and lines of curves, one after the other; limits and bounds are lines alone."""
    spots: list[list[Spot]] = [
        [] if curve.dashed else
        [(plot.place(x), plot.height(y)) for x, y in curve.points if y is not None]
        for curve in curves
    ]  # fmt: skip
    for number, (curve, look) in enumerate(zip(curves, looks, strict=True)):
        if look.mark is not None:
            yield from _points(curve, look.mark, look.colour, spots[number], spots[number + 1 :])
        yield from _lines(curve, look, plot)
        if curve.label and spots[number]:
            yield _label(curve.label, spots[number][-1], plot)


def _label(text: str, spot: Spot, plot: Plot) -> str:
    """Words below a point, to its left in the right half; of a lowest point to its right."""
    x, y = spot
    if y + 18 > plot.bottom:
        return shapes.words(x + 30, y - 4, text, "start")
    if x > (LEFT + shapes.WIDTH - RIGHT) / 2 + 1:
        return shapes.words(x - 8, y + 18, text, "end")
    return shapes.words(x + 12, y + 18, text, "start")


def _area(area: Area, plot: Plot) -> str:
    x, wide = plot.place(area.x_lo), plot.place(area.x_hi) - plot.place(area.x_lo)
    y, tall = plot.height(area.y_hi), plot.height(area.y_lo) - plot.height(area.y_hi)
    return shapes.box(x, y, max(wide, 0.5), max(tall - 0.4, 0.4), colour_of(area.kind), area.text)


def _points(
    curve: Curve, kind: int, colour: str, spots: Sequence[Spot], later: Sequence[Sequence[Spot]]
) -> Iterator[str]:
    """Marks; one that later curves cover is drawn as a ring around theirs."""
    known = [(x, y) for x, y in curve.points if y is not None]
    for (x, y), spot in zip(known, spots, strict=True):
        covered = sum(any(math.dist(spot, other) < POINT_RADIUS for other in c) for c in later)
        tip = f"{curve.name}: {short(x)}, {short(y)}"
        yield shapes.mark(kind, *spot, POINT_RADIUS + covered * RING_WIDTH, colour, tip)


def _lines(curve: Curve, look: _Look, plot: Plot) -> list[str]:
    """Lines from point to point, interrupted by gaps."""
    parts, run = [], list[str]()
    for x, y in [*curve.points, (0.0, None)]:
        if y is not None:
            run.append(f"{plot.place(x):.1f},{plot.height(y):.1f}")
        elif run:
            parts.append(f'<polyline points="{" ".join(run)}" fill="none" {look.attributes}/>')
            run = []
    return parts


def _piece(piece: Piece, left: float, right: float, y: float) -> str:
    width = max(0.8, right - left - 1)
    colour = colour_of(piece.kind)
    shown = piece.text if len(piece.text) * shapes.LETTER_WIDTH < width - 6 else ""
    label = (
        f'<text x="{left + width / 2:.1f}" y="{y + 15}" text-anchor="middle" '
        f'style="fill:#fff;font-size:11px">{escape(shown)}</text>'
        if shown
        else ""
    )
    return shapes.box(left, y, width, ROW_HEIGHT, colour, piece.text) + label


# The frame: title, legend, axes, and where a value lies. A plot is as wide as the picture less two
# margins, so the position of a value follows from the ends of its axis alone.


@dataclass(frozen=True, slots=True)
class Plot:
    """Where the values of two axes lie in the picture.

    Args:
        bottom: bottom of the plot, in pixels.
        x_low, x_high: values at its left and right border.
        y_low: value at its bottom.
        y_extent: from there to its top.
        scale: scale of the x axis.
        y_scale: scale of the y axis.
    """

    bottom: float
    x_low: float
    x_high: float
    y_low: float
    y_extent: float
    scale: Callable[[float], float] = float
    y_scale: Callable[[float], float] = float

    def place(self, x: float) -> float:
        """Pixels from the left."""
        low = self.scale(self.x_low)
        extent = self.scale(self.x_high) - low or 1.0
        return LEFT + (self.scale(x) - low) / extent * (WIDTH - LEFT - RIGHT)

    def height(self, y: float) -> float:
        """Pixels from the picture's top."""
        above = self.y_scale(y) - self.y_scale(self.y_low)
        extent = self.y_scale(self.y_low + self.y_extent) - self.y_scale(self.y_low)
        return self.bottom - above / extent * PLOT_HEIGHT

    def frame(self, colour: str, y_axis: str) -> list[str]:
        """The ground, and what the y axis counts."""
        top = self.bottom - PLOT_HEIGHT
        return [
            box(LEFT, top, WIDTH - LEFT - RIGHT, PLOT_HEIGHT, colour),
            words(LEFT, top - 4, y_axis, "start"),
        ]


def head(title: str, legend: Sequence[str]) -> tuple[list[str], int]:
    """Title and legend; and where the rest begins."""
    entries = [(name, colour_of(kind)) for kind, name in enumerate(legend)]
    return _headed(title, entries, shapes.swatch)


def _headed(
    title: str, entries: Sequence[Entry], sign: Callable[[float, float, Any], str]
) -> tuple[list[str], int]:
    parts = [f'<text x="{LEFT}" y="20" font-weight="600">{escape(title)}</text>']
    if not entries:
        return parts, TITLE_HEIGHT
    rows = legend_rows(WIDTH - LEFT - RIGHT, entries)
    for number, row in enumerate(rows):
        parts += legend_row(LEFT, 41 + LEGEND_HEIGHT * number, row, sign)
    return parts, TITLE_HEIGHT + 38 + LEGEND_HEIGHT * (len(rows) - 1)


def x_axis_parts(
    ticks: Sequence[float], place: Callable[[float], float], y: float, axis: str,
    number: Callable[[float], str],
) -> list[str]:  # fmt: skip
    """A line with ticks, their numbers, and what they count."""
    parts = [line((LEFT, y), (WIDTH - RIGHT, y), AXIS)]
    for tick in ticks:
        parts.append(line((place(tick), y), (place(tick), y + 4), AXIS))
        parts.append(words(place(tick), y + 17, number(tick), "middle"))
    parts.append(words((LEFT + WIDTH - RIGHT) / 2, y + 34, axis, "middle"))
    return parts


def colour_of(kind: int) -> str:
    """Of a kind, by number."""
    return COLOURS[kind % len(COLOURS)]


def short(value: float) -> str:
    """A number as it stands at an axis."""
    return f"{value:,.10g}"
