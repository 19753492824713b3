"""The frame of a chart: the positions of values in the picture, its title, legend and axes.

Values and names become pixels and parts of an SVG. A plot is as wide as the picture less two
margins, so the position of a value follows from the ends of its axis alone. Read next: `shapes.py`,
of which it is made; `charts.py`, which draws on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from ooctrain.report.shapes import AXIS, COLOURS, WIDTH, box, legend_row, legend_rows, line, words

LEFT, RIGHT = 150, 36
TITLE_HEIGHT, LEGEND_HEIGHT, PLOT_HEIGHT = 30, 20, 300


@dataclass(frozen=True, slots=True)
class Plot:
    """Where the values of two axes lie in the picture.

    Args:
        bottom: of the plot, in pixels.
        x_low, x_high: values at its left and right border.
        y_low: value at its bottom.
        y_extent: from there to its top.
        scale: of the x axis.
        y_scale: of the y axis.
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


def head(
    title: str, legend: Sequence[str], colours: Sequence[str] = COLOURS
) -> tuple[list[str], int]:
    """Title and legend; and where the rest begins."""
    parts = [f'<text x="{LEFT}" y="20" font-weight="600">{escape(title)}</text>']
    if not legend:
        return parts, TITLE_HEIGHT
    entries = [(name, colours[kind % len(colours)]) for kind, name in enumerate(legend)]
    rows = legend_rows(WIDTH - LEFT - RIGHT, entries)
    for number, row in enumerate(rows):
        parts += legend_row(LEFT, 41 + LEGEND_HEIGHT * number, row)
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
