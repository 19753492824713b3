"""What a notebook shows of a trace, list, plan, timeline or arena: a few facts and a picture.

The last expression of a cell is shown by its `_repr_html_`, where a page can hold HTML, and by its
`_repr_svg_` elsewhere. A step of a thousand calls has more boxes than a screen has columns. So
boxes that would be narrower than a pixel are drawn as one, and the picture of any step stays small
enough for a notebook. The pictures are those of `svg.py`, `charts.py` and `arena.py`. Read next:
`../step/shown.py`, through which a notebook's question comes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import islice

from ooctrain.alloc.arena_map import ArenaSnapshot, arena_text
from ooctrain.report.arena import arena_svg
from ooctrain.report.charts import Area, Piece, areas_svg, strips_svg
from ooctrain.report.svg import timelines_svg
from ooctrain.report.text import timeline_rows
from ooctrain.sched.budget import live_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.instructions import describe_instruction
from ooctrain.sched.schedule import Free, Plan, Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline, TimelineEvent
from ooctrain.step.presets import machine as find_machine
from ooctrain.step.trace import PHASES, Trace
from ooctrain.units import GIB, KIB, MIB, format_bytes, format_us

#: Columns of a picture: what is narrower is drawn as part of its neighbour.
COLUMNS = 800
MOST_LINES = 24
UNITS = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
Facts = Sequence[tuple[str, str]]
LANES: Mapping[str, tuple[type, ...]] = {
    "run": (Run,), "swap out": (SwapOut,), "swap in": (SwapIn,), "free": (Free,)
}  # fmt: skip
_PAGE = '<div style="font:13px/1.5 system-ui,sans-serif;overflow-x:auto;max-width:980px">'
_LIST = '<pre style="font-size:12px;line-height:1.35;overflow-x:auto">'


def drawn(thing: object, form: str) -> str:
    """A thing as "html" or as "svg"."""
    return html_of(thing) if form == "html" else svg_of(thing)


def html_of(thing: object) -> str:
    """Facts, the picture and, of a list, its first lines."""
    match thing:
        case Plan():
            rows, lines = _facts_of_plan(thing), _lines(thing.schedule, thing.trace)
        case Schedule():
            rows, lines = [("list", repr(thing))], _lines(thing, None)
        case Timeline():
            rows, lines = timeline_rows(thing), ""
        case Trace():
            rows, lines = _facts_of_trace(thing), ""
        case ArenaSnapshot():
            rows, lines = [("arena", arena_text(thing).partition("\n")[2])], ""
        case _:
            return f"<pre>{escape(repr(thing))}</pre>"
    cells = "".join(f"<tr><td>{escape(n)}</td><td>{escape(text)}</td></tr>" for n, text in rows)
    return f"{_PAGE}<table>{cells}</table>{svg_of(thing)}{lines}</div>"


def svg_of(thing: object) -> str:
    """The picture alone; "" of what has none."""
    match thing:
        case Plan():
            return _plan_svg(thing)
        case Schedule():
            return _list_svg(thing)
        case Timeline():
            return timelines_svg({"step": _in_columns(thing, {})[0]})
        case Trace():
            return _trace_svg(thing)
        case ArenaSnapshot():
            return arena_svg({str(thing["allocator"]): thing})
    return ""


def _facts_of_plan(plan: Plan) -> Facts:
    bound = plan.lower_bound
    rows = [
        ("planner", str(plan.notes.get("planner", "-"))),
        ("step", format_us(plan.makespan_us)),
        ("bound", f"{format_us(bound.makespan_us)} ({bound.kind})" if bound else "-"),
        ("peak", f"{format_bytes(plan.peak_bytes)} on the device, "
         f"{format_bytes(plan.host_peak_bytes)} on the host"),
        ("rewrites", ", ".join(plan.rewrites) or "none"),
    ]  # fmt: skip
    return [*rows, ("list", repr(plan.schedule))]


def _facts_of_trace(trace: Trace) -> Facts:
    phases = [(phase, sum(call.phase == phase for call in trace.calls)) for phase in PHASES]
    return [
        ("calls", ", ".join(f"{count} {phase}" for phase, count in phases if count)),
        ("variables", str(len(trace.variables))),
        ("in-core peak", format_bytes(trace_peak_bytes(trace))),
        ("least budget", f"{format_bytes(trace_minimum_bytes(trace))}, for whole calls"),
    ]


def _lines(schedule: Schedule, trace: Trace | None) -> str:
    """The first instructions, behind a line that unfolds them."""
    shown = [describe_instruction(one, trace) for one in islice(schedule, MOST_LINES)]
    rest = len(schedule) - len(shown)
    text = "\n".join([*shown, *([f"... {rest} more"] if rest else [])])
    title = f"the first {len(shown)} instructions" if rest else "the list"
    return f"<details><summary>{title}</summary>{_LIST}{escape(text)}</pre></details>"


def _plan_svg(plan: Plan) -> str:
    """The step on this machine, which need not be the one that it was planned for."""
    machine = find_machine(None)
    phases: Mapping[str, str] = {call.name: call.phase for call in plan.trace.calls}
    timeline, phases = _in_columns(simulate(plan.schedule, plan.trace, machine), phases)
    title = f"{plan.notes.get('planner', 'plan')} on {machine.name}"
    return timelines_svg({title: timeline}, phases=phases)


def _list_svg(schedule: Schedule) -> str:
    """Where in the list each kind of instruction stands."""
    rows = []
    for kind, (lane, types) in enumerate(LANES.items()):
        places = [i for i, one in enumerate(schedule) if isinstance(one, types)]
        runs = _joined(places, max(1, len(schedule) // COLUMNS))
        rows.append((lane, [_piece(schedule, lo, hi, kind) for lo, hi in runs]))
    return strips_svg("The list", rows, extent=max(1, len(schedule)), axis="place in the list")


def _piece(schedule: Schedule, lo: int, hi: int, kind: int) -> Piece:
    first = describe_instruction(schedule.instructions[lo])
    return Piece(lo, hi, first if hi == lo + 1 else f"{first} ... until {hi}", kind)


def _joined(places: Iterable[int], gap: int) -> list[tuple[int, int]]:
    """[lo, hi) of places in a row, those less than `gap` apart taken together."""
    found: list[tuple[int, int]] = []
    for place in places:
        if gap > 1 and found and place - found[-1][1] < gap:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found


def _trace_svg(trace: Trace) -> str:
    """What each call needs where nothing leaves the device; several calls a column where there are
    more than columns."""
    held = live_bytes(trace)
    wide = -(-len(held) // COLUMNS) or 1
    most_bytes = max(held, default=0)
    unit, size = next((pair for pair in UNITS if most_bytes >= pair[1]), ("bytes", 1))
    areas = []
    for lo in range(0, len(held), wide):
        most = max(range(lo, min(lo + wide, len(held))), key=lambda call: held[call])
        call = trace.calls[most]
        text = f"{call.name}: {format_bytes(held[most])}"
        kind = PHASES.index(call.phase)
        areas.append(Area(lo, lo + wide, 0, held[most] / size, text, kind))
    least = trace_minimum_bytes(trace)
    limits = [(f"least budget {format_bytes(least)}", least / size)]
    return areas_svg(
        "Memory of the step in-core", areas, axes=("call", f"{unit} held"), legend=PHASES,
        limits=limits,
    )  # fmt: skip


def _in_columns(
    timeline: Timeline, phases: Mapping[str, str]
) -> tuple[Timeline, Mapping[str, str]]:
    """A timeline with at most a box for each column and stream, and the phases of these boxes."""
    column_us = timeline.makespan_us / COLUMNS
    drawn: list[TimelineEvent] = []
    counts: list[int] = []
    last: dict[str, int] = {}  # {stream: its last box}
    for event in timeline.events:
        box = last.get(event.stream)
        if box is not None and event.end_us - drawn[box].start_us < column_us:
            drawn[box] = replace(drawn[box], end_us=event.end_us)
            counts[box] += 1
        else:
            last[event.stream] = len(drawn)
            drawn.append(event)
            counts.append(0)
    named = dict(phases)
    for box, (event, more) in enumerate(zip(drawn, counts, strict=True)):
        if more:
            drawn[box] = replace(event, name=f"{event.name} and {more} more")
            named[drawn[box].name] = phases.get(event.name, "")
    ledger = _highest(timeline.ledger, column_us)
    return replace(timeline, events=tuple(drawn), ledger=ledger), named


def _highest(
    ledger: Sequence[tuple[float, int]], column_us: float
) -> tuple[tuple[float, int], ...]:
    """For each column the highest step of a curve, and the last one."""
    if len(ledger) <= 2 * COLUMNS:
        return tuple(ledger)
    found: dict[int, list[tuple[float, int]]] = {}
    for time_us, held in ledger:
        column = int(time_us / column_us)
        highest, _ = found.get(column, [(time_us, held)] * 2)
        found[column] = [max(highest, (time_us, held), key=lambda step: step[1]), (time_us, held)]
    return tuple(dict.fromkeys(step for steps in found.values() for step in steps))
