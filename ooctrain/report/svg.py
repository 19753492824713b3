"""Timelines as one standalone SVG picture: three lanes and, in the same scale, the memory below.

In: `Timeline`s, simulated or measured. Out: SVG text without scripts or fonts of its own. The one
idea: the lanes C, D and H show what overlaps, the curve shows what it costs in memory, and both
share the time axis, so a stall and the full device that causes it stand under each other. Read
next: `text.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from ooctrain.sched.timeline import Timeline
from ooctrain.units import format_bytes, format_us

WIDTH, LEFT, RIGHT = 960, 96, 16
LANE_HEIGHT, LANE_GAP, CURVE_HEIGHT = 20, 6, 84
LANES = (("C", "compute"), ("D", "swap out"), ("H", "swap in"))
FORWARD, BACKWARD, UPDATE, OUT, IN = "#3b6fb6", "#c05a2b", "#7a7a7a", "#8a6fb0", "#3f8f5f"
STYLE = "font-family:system-ui,sans-serif;font-size:12px;fill:#222"


def timelines_svg(
    rows: Mapping[str, Timeline],
    *,
    budget_bytes: int | None = None,
    phases: Mapping[str, str] | None = None,
) -> str:
    """Draws timelines under each other in one time scale.

    Args:
        rows: {title: timeline}, drawn from top to bottom.
        budget_bytes: drawn as a dashed line over each memory curve.
        phases: {call name: phase}, which colours the compute lane; None: all alike.

    Returns:
        The text of an SVG file.
    """
    end_us = max((t.makespan_us for t in rows.values()), default=1.0) or 1.0
    top_bytes = max([budget_bytes or 0, *(t.peak_bytes for t in rows.values())]) or 1
    parts, y = [], 8
    for title, timeline in rows.items():
        part, height = _one_timeline(
            title, timeline, end_us, top_bytes, budget_bytes, phases or {}, y
        )
        parts.append(part)
        y += height
    parts.append(_axis(end_us, y))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 24}" '
        f'viewBox="0 0 {WIDTH} {y + 24}" style="background:#fff;{STYLE}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _one_timeline(
    title: str, timeline: Timeline, end_us: float, top_bytes: int, budget_bytes: int | None,
    phases: Mapping[str, str], y: int,
) -> tuple[str, int]:  # fmt: skip
    summary = (
        f"{format_us(timeline.makespan_us)}, peak {format_bytes(timeline.peak_bytes)}, "
        f"out {format_bytes(timeline.bytes_out)}, in {format_bytes(timeline.bytes_in)}"
    )
    parts = [
        f'<text x="{LEFT}" y="{y + 12}"><tspan font-weight="600">{escape(title)}</tspan>  '
        f"{summary}</text>"
    ]
    lane_y = y + 20
    for stream, label in LANES:
        parts.append(f'<text x="{LEFT - 8}" y="{lane_y + 14}" text-anchor="end">{label}</text>')
        parts.append(_box(LEFT, lane_y, WIDTH - LEFT - RIGHT, LANE_HEIGHT, "#f3f3f3"))
        for event in timeline.events:
            if event.stream == stream:
                x = _x(event.start_us, end_us)
                width = max(0.5, _x(event.end_us, end_us) - x)
                tip = f"{event.name}: {format_us(event.end_us - event.start_us)}"
                parts.append(
                    _box(
                        x, lane_y, width, LANE_HEIGHT, _colour(stream, phases.get(event.name)), tip
                    )
                )
        lane_y += LANE_HEIGHT + LANE_GAP
    parts.append(_curve(timeline, end_us, top_bytes, budget_bytes, lane_y))
    return "\n".join(parts), lane_y - y + CURVE_HEIGHT + 20


def _curve(
    timeline: Timeline, end_us: float, top_bytes: int, budget_bytes: int | None, y: int
) -> str:
    bottom = y + CURVE_HEIGHT

    def height(size_bytes: float) -> float:
        return bottom - size_bytes / top_bytes * (CURVE_HEIGHT - 10)

    points: list[tuple[float, float]] = []
    for time_us, size_bytes in timeline.ledger:
        x = _x(time_us, end_us)
        if points:
            points.append((x, points[-1][1]))
        points.append((x, height(size_bytes)))
    if points:
        points.append((_x(timeline.makespan_us, end_us), points[-1][1]))
    path = " ".join(f"{x:.1f},{py:.1f}" for x, py in points)
    first, last = (points[0][0], points[-1][0]) if points else (LEFT, LEFT)
    parts = [
        f'<text x="{LEFT - 8}" y="{bottom - 30}" text-anchor="end">memory</text>',
        f'<polygon points="{first:.1f},{bottom} {path} {last:.1f},{bottom}" fill="#d9e4f2"/>',
        f'<polyline points="{path}" fill="none" stroke="{FORWARD}" stroke-width="1.2"/>',
    ]
    if budget_bytes:
        line = height(budget_bytes)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{line:.1f}" y2="{line:.1f}" '
            f'stroke="#b00020" stroke-dasharray="5 4"/>'
            f'<text x="{WIDTH - RIGHT}" y="{line - 3:.1f}" text-anchor="end" fill="#b00020">'
            f"budget {format_bytes(budget_bytes)}</text>"
        )
    return "\n".join(parts)


def _axis(end_us: float, y: int) -> str:
    marks = [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#888"/>']
    for tick in _ticks(end_us):
        x = _x(tick, end_us)
        marks.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}" stroke="#888"/>')
        marks.append(
            f'<text x="{x:.1f}" y="{y + 17}" text-anchor="middle">{format_us(tick)}</text>'
        )
    return "\n".join(marks)


def _ticks(end_us: float) -> Sequence[float]:
    """Five to ten round times from 0 to the end."""
    step = 10.0 ** len(str(int(end_us)))
    for divisor in (2, 2.5, 2):
        while end_us / step < 4:
            step /= divisor
    return [i * step for i in range(int(end_us / step) + 1)]


def _colour(stream: str, phase: str | None) -> str:
    if stream == "D":
        return OUT
    if stream == "H":
        return IN
    return {"backward": BACKWARD, "update": UPDATE}.get(phase or "", FORWARD)


def _x(time_us: float, end_us: float) -> float:
    return LEFT + time_us / end_us * (WIDTH - LEFT - RIGHT)


def _box(x: float, y: float, width: float, height: float, colour: str, tip: str = "") -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    place = f'x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height}"'
    return f'<rect {place} fill="{colour}">{title}</rect>'
