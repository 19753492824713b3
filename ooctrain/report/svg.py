"""Timelines as one standalone SVG picture: three lanes and, in the same scale, the memory below.

The lanes C, D and H of a `Timeline`, simulated or measured, show what overlaps, and the curve shows
what it costs in memory. Both share the time axis, so a stall stands directly above the full device
that causes it. The SVG text has no scripts or fonts of its own. Read next: `text.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

from ooctrain.report import shapes
from ooctrain.report.stream_names import streams_of
from ooctrain.sched.timeline import Timeline, TimelineEvent
from ooctrain.units import format_bytes, format_us

LEFT, RIGHT = 96, 16
LANE_HEIGHT, LANE_GAP, CURVE_HEIGHT, LEGEND_HEIGHT = 20, 6, 84, 26
FORWARD, BACKWARD, IN, OUT = shapes.COLOURS[:4]
NETWORK = shapes.COLOURS[4]
LAYER = "#d8d8d8"
#: A lane of more boxes leaves out those that could not be distinguished from their neighbours.
MOST_BOXES = 4000
#: Steps with fewer bytes are worked out by hand.
_BY_HAND = 10_000
#: Of the compute lane; the loss is drawn as a forward call.
PHASES = {"forward": FORWARD, "backward": BACKWARD, "update": shapes.COLOURS[5]}


@dataclass(frozen=True, slots=True)
class _Scale:
    """What the timelines of one picture share."""

    end_us: float
    top_bytes: int
    budget_bytes: int | None
    layers: bool


def timelines_svg(
    rows: Mapping[str, Timeline],
    *,
    budget_bytes: int | None = None,
    phases: Mapping[str, str] | None = None,
    layers: bool = False,
) -> str:
    """Draws timelines under each other in one time scale.

    Args:
        rows: {title: timeline}, drawn from top to bottom.
        budget_bytes: drawn as a dashed line over each memory curve.
        phases: {call name: phase}, which colours the compute lane, so that a forward call that
            runs again is seen among the backward ones; None: all alike.
        layers: a lane more has the names of the layers, the first parts of the calls' names, and
            a dashed line shows where the calls of phase "loss" begin.

    Returns:
        The text of an SVG file.
    """
    end_us = max((t.makespan_us for t in rows.values()), default=1.0) or 1.0
    top_bytes = max([budget_bytes or 0, *(t.peak_bytes for t in rows.values())]) or 1
    scale, parts, y = _Scale(end_us, top_bytes, budget_bytes, layers), [], 8
    if phases:
        shown = set(phases.values())
        entries = [entry for entry in PHASES.items() if entry[0] in shown]
        parts += shapes.legend_row(LEFT, y + 12, entries)
        y += LEGEND_HEIGHT
    for title, timeline in rows.items():
        part, height = _one_timeline(title, timeline, scale, phases or {}, y)
        parts.append(part)
        y += height
    parts.append(time_axis(end_us, y))
    return shapes.document(parts, y + 24)


def _one_timeline(
    title: str, timeline: Timeline, scale: _Scale, phases: Mapping[str, str], y: int
) -> tuple[str, int]:
    peak, out, back = (
        _bytes(size, scale.top_bytes)
        for size in (timeline.peak_bytes, timeline.bytes_out, timeline.bytes_in)
    )
    summary = f"{format_us(timeline.makespan_us)}, peak {peak}, out {out}, in {back}"
    parts = [
        f'<text x="{LEFT}" y="{y + 12}"><tspan font-weight="600">{escape(title)}</tspan>  '
        f"{summary}</text>"
    ]
    lanes_y = y + 20
    if scale.layers:
        parts += layer_names(timeline, scale.end_us, phases, lanes_y)
        lanes_y += LANE_HEIGHT + LANE_GAP
    lanes, curve_y = lane_boxes(timeline, scale.end_us, phases, lanes_y)
    parts += [*lanes, _curve(timeline, scale, curve_y)]
    if scale.layers:
        parts += _loss_line(timeline, scale.end_us, phases, (lanes_y, curve_y + CURVE_HEIGHT))
    return "\n".join(parts), curve_y - y + CURVE_HEIGHT + 20


def lane_boxes(
    timeline: Timeline, end_us: float, phases: Mapping[str, str], y: int
) -> tuple[list[str], int]:
    """The lanes of a timeline from y on, and where they end."""
    parts = []
    for stream, label in streams_of(timeline).items():
        parts.append(shapes.words(LEFT - 8, y + 14, label, "end"))
        parts.append(shapes.box(LEFT, y, shapes.WIDTH - LEFT - RIGHT, LANE_HEIGHT, shapes.EMPTY))
        for event in _visible([e for e in timeline.events if e.stream == stream], end_us):
            x = x_of(event.start_us, end_us)
            width = max(0.5, x_of(event.end_us, end_us) - x)
            tip = f"{event.name}: {format_us(event.end_us - event.start_us)}"
            colour = _colour(stream, phases.get(event.name))
            parts.append(shapes.box(x, y, width, LANE_HEIGHT, colour, tip))
        y += LANE_HEIGHT + LANE_GAP
    return parts, y


def layer_names(timeline: Timeline, end_us: float, phases: Mapping[str, str], y: int) -> list[str]:
    """A lane of the layers that compute, side by side; each has its name where it fits. An
    update has the optimizer's name; it stands among the calls of its layer."""
    parts = [shapes.words(LEFT - 8, y + 14, "layer", "end")]
    calls = (e for e in timeline.events if e.stream == "C" and phases.get(e.name) != "update")
    for name, found in groupby(calls, key=lambda event: event.name.partition(".")[0]):
        first, *others = found
        last = others[-1] if others else first
        x, end = x_of(first.start_us, end_us), x_of(last.end_us, end_us)
        parts.append(shapes.box(x, y, max(0.5, end - x - 1), LANE_HEIGHT, LAYER, name))
        if shapes.LETTER_WIDTH * len(name) + 4 < end - x:
            parts.append(shapes.words((x + end) / 2, y + 14, name, "middle"))
    return parts


def _loss_line(
    timeline: Timeline, end_us: float, phases: Mapping[str, str], span: tuple[int, int]
) -> list[str]:
    """Where the loss is computed, through lanes and curve, with its name below the curve's top."""
    loss = [e.start_us for e in timeline.events if phases.get(e.name) == "loss"]
    if not loss:
        return []
    (top, bottom), x = span, x_of(loss[0], end_us)
    return [
        shapes.line((x, top), (x, bottom), "#222", dashed=True),
        shapes.words(x - 4, bottom - 6, "loss", "end"),
    ]


def _visible(events: Sequence[TimelineEvent], end_us: float) -> Iterator[TimelineEvent]:
    """The events of a lane; of very many, those that begin half a pixel behind the last one, or are
    wider than that."""
    drawn = -1.0
    for event in events:
        x = x_of(event.start_us, end_us)
        wide = x_of(event.end_us, end_us) - x >= 0.5
        if len(events) <= MOST_BOXES or wide or x - drawn >= 0.5:
            drawn = x
            yield event


def _curve(timeline: Timeline, scale: _Scale, y: int) -> str:
    bottom, end_us, top_bytes = y + CURVE_HEIGHT, scale.end_us, scale.top_bytes

    def height(size_bytes: float) -> float:
        return bottom - size_bytes / top_bytes * (CURVE_HEIGHT - 10)

    points: list[tuple[float, float]] = []
    for time_us, size_bytes in timeline.ledger:
        x = x_of(time_us, end_us)
        if points:
            points.append((x, points[-1][1]))
        points.append((x, height(size_bytes)))
    if points:
        points.append((x_of(timeline.makespan_us, end_us), points[-1][1]))
    path = " ".join(f"{x:.1f},{py:.1f}" for x, py in points)
    first, last = (points[0][0], points[-1][0]) if points else (LEFT, LEFT)
    parts = [
        shapes.words(LEFT - 8, height(top_bytes) + 4, _bytes(top_bytes, top_bytes), "end"),
        shapes.words(LEFT - 8, bottom - 30, "memory", "end"),
        shapes.words(LEFT - 8, bottom, "0", "end"),
        f'<polygon points="{first:.1f},{bottom} {path} {last:.1f},{bottom}" fill="#d9e4f2"/>',
        f'<polyline points="{path}" fill="none" stroke="{FORWARD}" stroke-width="1.2"/>',
    ]
    if scale.budget_bytes:
        name = f"budget {_bytes(scale.budget_bytes, top_bytes)}"
        parts.append(shapes.limit(LEFT, shapes.WIDTH - RIGHT, height(scale.budget_bytes), name))
    return "\n".join(parts)


def _bytes(size_bytes: int, top_bytes: int) -> str:
    """Bytes as the text around a picture says them: to the byte where a step is worked by hand."""
    return f"{size_bytes:,} bytes" if top_bytes < _BY_HAND else format_bytes(size_bytes)


def time_axis(end_us: float, y: int) -> str:
    """The axis below lanes that end at `end_us`, with round times."""
    marks = [shapes.line((LEFT, y), (shapes.WIDTH - RIGHT, y), shapes.AXIS)]
    for tick in shapes.round_ticks(0, end_us):
        x = x_of(tick, end_us)
        marks.append(shapes.line((x, y), (x, y + 4), shapes.AXIS))
        marks.append(shapes.words(x, y + 17, format_us(tick) if tick else "0", "middle"))
    return "\n".join(marks)


def _colour(stream: str, phase: str | None) -> str:
    if stream == "D":
        return OUT
    if stream == "H":
        return IN
    if stream == "N":
        return NETWORK
    return PHASES.get(phase or "", FORWARD)


def x_of(time_us: float, end_us: float) -> float:
    """Where a moment is drawn, in pixels."""
    return LEFT + time_us / end_us * (shapes.WIDTH - LEFT - RIGHT)
