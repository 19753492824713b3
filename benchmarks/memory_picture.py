"""One picture of `bench_memory.py`: a panel for each network, memory to the right, time up.

Each contestant is a point, each kind of contestant a curve with the same colour and marks in all
panels; of torch's layouts the one that is faster in-core is drawn. Panels stand two in a row, each
with axes of its own that begin at 0. Read next: `bench_memory.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

from ooctrain.report.shapes import (
    AXIS,
    COLOURS,
    EMPTY,
    WIDTH,
    box,
    document,
    legend_row,
    line,
    mark,
    round_ticks,
    words,
)

Point = tuple[float, float]
#: Kinds in the order of their colours.
KINDS = (
    "ours", "torch", "torch, checkpoints", "torch, micro-batches (not exact)",
    "torch, saved to disk", "ours with the disk", "torch, compiled",
)  # fmt: skip
COLOURS_OF_KINDS = (*COLOURS, "#b00020")
HEAD, PANEL_HEIGHT, PLOT_HEIGHT, LEFT, RIGHT = 74, 292, 210, 52, 16
PANEL_WIDTH = WIDTH // 2


def kind_of(name: str) -> str:
    """The kind of a contestant, by its name."""
    if name.startswith("ours"):
        return KINDS[5] if "disk" in name else KINDS[0]
    for word, kind in (("checkpoint", 2), ("micro", 3), ("disk", 4), ("compiled", 6)):
        if word in name:
            return KINDS[kind]
    return KINDS[1]


def curves_of(found: dict[str, Any]) -> dict[str, list[tuple[Point, str]]]:
    """{kind: points from left to right, each with the contestant's name}."""
    ran = {row["name"]: row for row in found["rows"] if "error" not in row}
    in_core = [name for name in ("torch NHWC", "torch NCHW") if name in ran]
    layout = min(in_core, key=lambda name: ran[name]["step_s"], default="torch NHWC")
    curves: dict[str, list[tuple[Point, str]]] = {}
    for name, row in ran.items():
        if name.split(", ")[0] in ("ours", layout) or "compiled" in name:
            point = (row["growth_mib"], row["step_s"])
            curves.setdefault(kind_of(name), []).append((point, name))
    return {kind: sorted(curves[kind]) for kind in KINDS if kind in curves}


def panels_svg(results: Sequence[dict[str, Any]]) -> str:
    """All networks."""
    kinds = [kind for kind in KINDS if any(kind in curves_of(found) for found in results)]
    entries = [(kind, KINDS.index(kind)) for kind in kinds]
    parts = ['<text x="12" y="20" font-weight="600">Memory and time of a training step</text>']
    for y, row in ((41, entries[:4]), (61, entries[4:])):
        parts += legend_row(12, y, row, lambda x, at, number: _mark(number, (x + 6, at - 4)))
    for number, found in enumerate(results):
        left, top = number % 2 * PANEL_WIDTH, HEAD + number // 2 * PANEL_HEIGHT
        parts += _panel(found, left, top)
    return document(parts, HEAD + -(-len(results) // 2) * PANEL_HEIGHT)


def _panel(found: dict[str, Any], left: float, top: float) -> Iterator[str]:
    curves = curves_of(found)
    points = [point for curve in curves.values() for point, _ in curve] or [(1.0, 1.0)]
    right, high = 1.05 * max(x for x, _ in points), 1.08 * max(y for _, y in points)
    x_low, width, bottom = left + LEFT, PANEL_WIDTH - LEFT - RIGHT, top + 24 + PLOT_HEIGHT

    def spot(point: Point) -> Point:
        return x_low + point[0] / right * width, bottom - point[1] / high * PLOT_HEIGHT

    title = f"{found['network']}, batch {found['batch']}, {found['image']} px"
    yield f'<text x="{x_low}" y="{top + 14}" font-weight="600">{escape(title)}</text>'
    yield words(left + PANEL_WIDTH - RIGHT, top + 14, "seconds a step", "end")
    yield box(x_low, bottom - PLOT_HEIGHT, width, PLOT_HEIGHT, EMPTY)
    for tick in round_ticks(0, high):
        _, y = spot((0, tick))
        yield line((x_low, y), (x_low + width, y), "#ddd")
        yield words(x_low - 6, y + 4, f"{tick:g}", "end")
    for tick in round_ticks(0, right):
        x, _ = spot((tick, 0))
        yield line((x, bottom), (x, bottom + 4), AXIS)
        yield words(x, bottom + 17, f"{tick:,.0f}", "middle")
    yield words(x_low + width / 2, bottom + 34, "growth of the process, MiB", "middle")
    for kind, curve in curves.items():
        colour = COLOURS_OF_KINDS[KINDS.index(kind)]
        ends = " ".join("{:.1f},{:.1f}".format(*spot(point)) for point, _ in curve)
        yield f'<polyline points="{ends}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for point, name in curve:
            tip = f"{name}: {point[0]:.0f} MiB, {point[1]:.2f} s"
            yield _mark(KINDS.index(kind), spot(point), tip)


def _mark(number: int, spot: Point, tip: str = "") -> str:
    return mark(number, *spot, 4, COLOURS_OF_KINDS[number], tip)
