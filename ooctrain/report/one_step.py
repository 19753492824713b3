"""One small step whole: its streams, its ledger and its addresses over one time axis.

A plan of a few calls and its timeline come in. Each piece of work carries its name; below the lanes
stands the ledger, and below that the address of every value while it is on the device. A value is
claimed when the instruction that makes or fetches it begins, and released when what its `free`
waits for has ended, so the boxes at one moment add up to the ledger. Read next: `svg.py`, which
draws steps of any size; `docs/one_page.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ooctrain.report import shapes
from ooctrain.report.stream_names import streams_of
from ooctrain.report.svg import BACKWARD, FORWARD, IN, LEFT, OUT, RIGHT, time_axis, x_of
from ooctrain.sched.ledger import walk
from ooctrain.sched.schedule import Free, Plan, Run, SwapIn
from ooctrain.sched.timeline import Timeline, instruction_times_us

LANE, GAP, CURVE, SLOT = 22, 5, 100, 22
COLOURS = {"D": OUT, "H": IN}
_WHITE = "fill:#fff;font-size:11px"


@dataclass(frozen=True, slots=True)
class ValueStay:
    """A value on the device.

    Args:
        name: name of the value.
        begin_us, end_us: from its claim to its release.
        size_bytes: what it claims.
    """

    name: str
    begin_us: float
    end_us: float
    size_bytes: int


def stays(plan: Plan, timeline: Timeline) -> list[ValueStay]:
    """Every stay of a value on the device, in the order of their claims in the list.

    The plan must move whole values, and begin with an empty device.
    """
    times = instruction_times_us(timeline)
    open_stays: dict[int, int] = {}
    found: list[ValueStay] = []
    for row in walk(plan.trace, plan.schedule):
        step = row.instruction
        if isinstance(step, Run | SwapIn):
            claimed = (step.var,) if isinstance(step, SwapIn) else plan.trace.calls[step.call].outs
            for v in claimed:
                open_stays[v] = len(found)
                variable = plan.trace.variables[v]
                found.append(ValueStay(variable.name, times[row.index][0], 0.0, variable.nbytes))
        elif isinstance(step, Free):
            place = open_stays.pop(step.var)
            stay = found[place]
            end_us = max((times[i][1] for i in row.waits if i in times), default=stay.begin_us)
            found[place] = ValueStay(stay.name, stay.begin_us, end_us, stay.size_bytes)
    return found


def step_svg(plan: Plan, timeline: Timeline, offsets: Sequence[int]) -> str:
    """The picture.

    Args:
        plan: plan of a small step.
        timeline: timeline of that plan.
        offsets: the address of each of `stays(plan, timeline)`.
    """
    end_us = timeline.makespan_us
    phases = {call.name: call.phase for call in plan.trace.calls}
    parts, y = [], 6
    for stream, label in streams_of(timeline).items():
        parts += _ground(label, y, LANE)
        for event in timeline.events:
            if event.stream == stream and event.end_us > event.start_us:
                backward = phases.get(event.name) == "backward"
                colour = COLOURS.get(stream, BACKWARD if backward else FORWARD)
                x = x_of(event.start_us, end_us)
                width = x_of(event.end_us, end_us) - x
                parts += _named(event.name, (x, y, width, LANE), colour)
        y += LANE + GAP
    top = max(size for _, size in timeline.ledger)
    parts += _ledger(timeline, top, y + 10)
    y += CURVE + 26
    rows = sorted({size for stay in stays(plan, timeline) for size in (stay.size_bytes,)})
    per_byte = SLOT / rows[0]
    bottom = y + top * per_byte
    parts += _ground("address", y, bottom - y)
    parts.append(shapes.words(LEFT - 8, bottom, "0", "end"))
    for stay, offset in zip(stays(plan, timeline), offsets, strict=True):
        x, width = x_of(stay.begin_us, end_us), x_of(stay.end_us, end_us)
        place = bottom - (offset + stay.size_bytes) * per_byte
        colour = BACKWARD if stay.name.startswith("y") else FORWARD
        tall = stay.size_bytes * per_byte - 2
        parts += _named(f"{stay.name} @{offset}", (x, place, width - x, tall), colour)
    parts.append(time_axis(end_us, round(bottom) + 4))
    return shapes.document(parts, bottom + 30)


def _ground(label: str, y: float, height: float) -> list[str]:
    return [
        shapes.words(LEFT - 8, y + 15, label, "end"),
        shapes.box(LEFT, y, shapes.WIDTH - LEFT - RIGHT, height, shapes.EMPTY),
    ]


def _named(name: str, place: tuple[float, float, float, float], colour: str) -> list[str]:
    """A box with its name in it, where there is room."""
    x, y, width, height = place
    parts = [shapes.box(x, y, max(width - 1, 0.5), height, colour, name)]
    shown = next((w for w in (name, name.split()[0]) if len(w) * 6.2 < width - 2), "")
    if shown:
        parts.append(
            f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" text-anchor="middle" '
            f'style="{_WHITE}">{shown}</text>'
        )
    return parts


def _ledger(timeline: Timeline, top: int, y: float) -> list[str]:
    """The ledger as steps, with the number of bytes where it changes."""
    bottom, end_us = y + CURVE, timeline.makespan_us
    parts = _ground("ledger", y, CURVE)
    rises = [*timeline.ledger, (end_us, 0)]
    for (start, size), (end, _) in pairwise(rises):
        if end > start:
            tall = size / top * (CURVE - 14)
            x, wide = x_of(start, end_us), x_of(end, end_us) - x_of(start, end_us)
            parts.append(shapes.box(x, bottom - tall, wide, tall, "#b9cce6", f"{size} bytes"))
            if wide > 24:
                parts.append(shapes.words(x + wide / 2, bottom - tall - 2, str(size), "middle"))
    parts.append(shapes.words(LEFT - 8, bottom, "bytes", "end"))
    return parts
