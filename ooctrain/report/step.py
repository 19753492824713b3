"""One step in full, as SVG: its three lanes, and below them the parts of its memory.

The memory curve of a `Record` is drawn as a stack: the parameters at the bottom, the values that a
planner can move above them, and the budget as a line over all. The call at which most memory is
held is named, since a smaller step must begin there. The SVG text has no scripts or fonts of its
own. Read next: `svg.py`, which draws several timelines under each other; `page.py`, the page around
this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from ooctrain.report import shapes
from ooctrain.report.holdings import GROUPS, Holding, group_curves
from ooctrain.report.record import Record
from ooctrain.report.svg import LEFT, PHASES, RIGHT, lane_boxes, time_axis, x_of
from ooctrain.report.waits import Peak, peak_of
from ooctrain.units import GIB, KIB, MIB, format_bytes

#: Paler than the lanes, and each lighter or darker than its neighbour.
GROUP_COLOURS: Mapping[str, str] = MappingProxyType(
    dict(zip(GROUPS, ("#b9b9b9", "#a9c3e6", "#e9b796", "#efe0a1"), strict=True))
)
CURVE_HEIGHT, LEGEND_HEIGHT, HEADROOM = 240, 26, 1.2
PEAK_COLOUR = "#222"
Height = Callable[[float], float]  # bytes to pixels


def step_svg(record: Record) -> str:
    """Draws a step with its memory, whole."""
    timeline = record.timeline
    end_us = timeline.makespan_us or 1.0
    phases = {call: phase for call, phase in (record.phases or {}).items() if phase in PHASES}
    shown = set(phases.values())
    lane_legend = [(name, colour) for name, colour in PHASES.items() if name in shown]
    parts = shapes.legend_row(LEFT, 20, lane_legend)
    lanes, y = lane_boxes(timeline, end_us, phases, LEGEND_HEIGHT + 8)
    parts += lanes
    if record.holdings:
        parts += shapes.legend_row(LEFT, y + 20, [*GROUP_COLOURS.items()])
        y += LEGEND_HEIGHT
    parts += _memory(record, end_us, y + 8)
    y += 8 + CURVE_HEIGHT
    parts += [time_axis(end_us, y), shapes.words(LEFT - 8, y + 17, "time", "end")]
    return shapes.document(parts, y + 24)


def _memory(record: Record, end_us: float, y: int) -> list[str]:
    """The stack of memory in a plot of `CURVE_HEIGHT` pixels from y on."""
    peak, bottom = peak_of(record.timeline), y + CURVE_HEIGHT
    top_bytes = HEADROOM * (max(record.budget_bytes or 0, peak.size_bytes) or 1)

    def height(size_bytes: float) -> float:
        return bottom - size_bytes / top_bytes * CURVE_HEIGHT

    parts = []
    for tick_bytes in _round_bytes(top_bytes):
        y_tick = height(tick_bytes)
        parts.append(shapes.line((LEFT, y_tick), (shapes.WIDTH - RIGHT, y_tick), "#e4e4e4"))
        label = format_bytes(round(tick_bytes)) if tick_bytes else "0"
        parts.append(shapes.words(LEFT - 8, y_tick + 4, label, "end"))
    parts += _stack(record.holdings, end_us, height)
    parts.append(_outline(record.timeline.ledger, end_us, height))
    if record.budget_bytes:
        name = f"budget {format_bytes(record.budget_bytes)}"
        parts.append(shapes.limit(LEFT, shapes.WIDTH - RIGHT, height(record.budget_bytes), name))
    return [*parts, *_peak_mark(peak, x_of(peak.time_us, end_us), height(peak.size_bytes), bottom)]


def _stack(found: Sequence[Holding], end_us: float, height: Height) -> list[str]:
    """A surface for each group, each on top of those before it."""
    if not found:
        return []
    times, curves = group_curves(found)
    spots = [x_of(time, end_us) for time in times]
    parts, floor = [], [0] * len(times)
    for group, curve in curves.items():
        ceiling = [low + own for low, own in zip(floor, curve, strict=True)]
        if any(curve):
            upper = shapes.thinned(_stairs(spots, [height(value) for value in ceiling]))
            lower = shapes.thinned(_stairs(spots, [height(value) for value in floor]))
            path = " ".join(f"{x:.1f},{py:.1f}" for x, py in [*upper, *reversed(lower)])
            tip = f"{group}, at most {format_bytes(max(curve))}"
            parts.append(
                f'<polygon points="{path}" fill="{GROUP_COLOURS[group]}"><title>{tip}</title>'
                "</polygon>"
            )
        floor = ceiling
    return parts


def _outline(ledger: Sequence[tuple[float, int]], end_us: float, height: Height) -> str:
    spots = [x_of(time, end_us) for time, _ in ledger] + [x_of(end_us, end_us)]
    levels = [height(held) for _, held in ledger] + [height(ledger[-1][1]) if ledger else 0.0]
    path = " ".join(f"{x:.1f},{py:.1f}" for x, py in shapes.thinned(_stairs(spots, levels)))
    return f'<polyline points="{path}" fill="none" stroke="#555" stroke-width="0.8"/>'


def _stairs(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Corners of a line that keeps its height until the next x."""
    corners = [(xs[0], ys[0])] if xs else []
    for (_, before), (x, after) in pairwise(zip(xs, ys, strict=True)):
        corners += [(x, before), (x, after)]
    return corners


def _peak_mark(peak: Peak, x: float, y: float, bottom: float) -> list[str]:
    """A dot where most is held, and above it, and above the budget's name, how much and where."""
    anchor = "start" if x < shapes.WIDTH / 2 else "end"
    label = f"most at one moment: {format_bytes(peak.size_bytes)}, {peak.call}"
    return [
        shapes.line((x, y), (x, bottom), PEAK_COLOUR, dashed=True),
        shapes.box(x - 3, y - 3, 6, 6, PEAK_COLOUR, label),
        shapes.words(x, y - 20, label, anchor),
    ]


def _round_bytes(top_bytes: float) -> list[float]:
    """Round numbers of the largest unit that fits, up to `top_bytes`."""
    unit = next((unit for unit in (GIB, MIB, KIB) if top_bytes >= unit), 1)
    return [tick * unit for tick in shapes.round_ticks(0, top_bytes / unit)]
