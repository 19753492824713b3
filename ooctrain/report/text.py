"""Plans in a terminal: tables, bars, lanes.

Rows, plans and timelines become renderables of rich, which leaves out colour where the terminal has
none. A lane is a picture one line high: it is cut into as many pieces as the terminal has columns,
and the height of each piece shows how busy the stream was. Read next: `svg.py` for the same with
more space.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ooctrain.report.layer_costs import LayerRow, total_row
from ooctrain.report.stream_names import streams_of
from ooctrain.sched.ledger import Stream
from ooctrain.sched.schedule import Plan
from ooctrain.sched.timeline import Timeline, hidden_us
from ooctrain.units import format_bytes, format_percent, format_us

# Tables, all of one kind: bold titles, no lines, words to the left. A reader who has learnt to read
# one can read all.


def plain_table(*titles: str, left: Collection[str] = (), no_wrap: bool = False) -> Table:
    """A table without rows.

    Args:
        left: titles of the columns that hold words; all others are numbers, and end at the right.
        no_wrap: whether a cell stays on one line, however wide it is.
    """
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=no_wrap)
    return table


def or_dash(value: float | None, form: str = "") -> str:
    """A number in a form of `format`; "-" where there is none."""
    return "-" if value is None else format(value, form)


BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = " .:-=+*#@"
LANE_COLOURS: Mapping[Stream, str] = MappingProxyType(
    {"C": "cyan", "D": "magenta", "H": "green", "N": "blue"}
)
LABEL_WIDTH = 10


def search_rows(plan: Plan) -> list[tuple[str, str]]:
    """In which form of the step a search found the plan, if it was not the step itself; and what to
    do about it if it ran out of time.
    """
    rows = [
        ("split", f"calls of more than {format_bytes(int(name.partition(':')[2]))}, by {name}")
        for name in plan.rewrites
        if name.startswith("narrow:")
    ]
    if plan.notes.get("cut_short"):
        rows.append(
            (
                "search",
                "cut short by --time-limit: another run may end with another plan",
            )
        )
    return rows + program_rows(plan)


#: What ends the search of a program, in words.
_ENDS = MappingProxyType(
    {
        "optimal": "its optimum", "nodes": "its number of nodes", "time": "--time-limit",
        "rounded": "the optimum of its relaxation",
    }
)  # fmt: skip


def program_rows(plan: Plan) -> list[tuple[str, str]]:
    """How far a plan is from what a program has proved (`checkmate`)."""
    notes, rows = plan.notes, list[tuple[str, str]]()
    if "gap" in notes and notes.get("ended") in _ENDS:
        computes, bound = (format_us(notes[name]) for name in ("objective_us", "bound_us"))
        said = f"computes for {computes}, bound of its program {bound}, gap {notes['gap']:.1%}"
        rows.append(("program", f"{said}; ended by {_ENDS[notes['ended']]}"))
    elif notes.get("ended") == "infeasible" and "groups" in notes:
        rows.append(("program", f"no list of its kind fits, {notes['groups']} groups"))
    return rows


def tiling_rows(plan: Plan) -> list[tuple[str, str]]:
    """How a planner has tiled the step, and why so, if it has; and where a tiling that was
    requested for has fewer tiles.
    """
    notes = plan.notes
    remarks = [("note", remark) for remark in notes.get("remarks", ())]
    if not notes.get("tiling"):
        return remarks
    kept, least = (format_bytes(notes[name]) for name in ("kept_bytes", "least_bytes"))
    return [
        *remarks,
        ("tiling", notes["tiling"]),
        ("", f"{notes['work_over_untiled']:.2f} times the untiled computing, {kept} of kept rows"),
        ("", f"least budget of this tiling {least}; {notes['why']}"),
        ("", "gradients of weights are summed tile by tile: in-core's up to rounding"),
    ]


def timeline_rows(timeline: Timeline) -> list[tuple[str, str]]:
    """The sums of a step, each with the share of the time that it takes."""
    whole = timeline.makespan_us
    out, back = (share(timeline.busy_us(stream), whole) for stream in ("D", "H"))
    return [
        ("step", format_us(whole)),
        ("compute", f"{format_us(timeline.compute_us)} ({share(timeline.compute_us, whole)})"),
        ("recomputed", format_us(timeline.recompute_us)),
        ("stalled", f"{format_us(timeline.stall_us)} ({share(timeline.stall_us, whole)})"),
        ("swapped out", f"{format_bytes(timeline.bytes_out)}, {out} busy"),
        ("swapped in", f"{format_bytes(timeline.bytes_in)}, {back} busy"),
        ("peak", format_bytes(timeline.peak_bytes)),
        ("host peak", format_bytes(timeline.host_peak_bytes)),
        *_network_rows(timeline),
    ]


def _network_rows(timeline: Timeline) -> list[tuple[str, str]]:
    """What ranks sent each other; nothing where a step has no messages."""
    sent = [event for event in timeline.events if event.stream == "N"]
    if not sent:
        return []
    busy_us = timeline.busy_us("N")
    busy = f"{format_us(busy_us)} busy, {share(hidden_us(timeline), busy_us)} of it hidden"
    return [("network", f"{len(sent)} messages, {busy}")]


def layer_table(rows: Sequence[LayerRow], width: int | None = None) -> Table:
    """What each layer costs, in bytes of the whole step, and the sums.

    Args:
        width: of the console. Columns for which it has no room are left out, the least important
            first, and named below; None: all columns.
    """
    titles = ["layer", "output", "parameters", "activations", "gradients", "state", "workspace"]
    cells = [_cells(row) for row in (*rows, total_row(rows))]
    shown = list(range(len(titles)))
    left_out: list[str] = []
    for title in ("workspace", "state", "output", "parameters"):
        longest = [max(len(row[column]) for row in (titles, *cells)) for column in shown]
        if width is None or sum(longest) + 2 * (len(shown) - 1) <= width:
            break
        shown.remove(titles.index(title))
        left_out.append(title)
    table = plain_table(*(titles[column] for column in shown), left=("layer", "output"))
    table.columns[0].overflow = "fold"
    for row in cells[:-1]:
        table.add_row(*(row[column] for column in shown))
    table.add_section()
    table.add_row(*(cells[-1][column] for column in shown), style="bold")
    if left_out:
        table.caption = f"too narrow for: {', '.join(left_out)}"
        table.caption_justify = "left"
    return table


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values, aligned; a value that is wider than the console goes on below
    itself."""

    pairs: tuple[tuple[str, str], ...]
    least: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        indent = max([self.least, *(len(name) for name, _ in self.pairs)]) + 2
        room = max(1, options.max_width - indent)
        for name, value in self.pairs:
            rows = Text(value, style="default").wrap(console, room) if value else [Text("")]
            for row, label in zip(rows, [name, *[""] * len(rows)], strict=False):
                row.rstrip()
                yield Text(f"{label:{indent}}", style="dim").append_text(row)


def facts(pairs: Sequence[tuple[str, str]], least: int = 0) -> Facts:
    """Names with their values, a line each.

    Args:
        least: columns that names take at least, where others follow below.
    """
    return Facts(tuple(pairs), least)


def flowing(fields: Sequence[str], columns: int) -> str:
    """Fields side by side, in as many lines as they need; all but the first line are indented."""
    lines = [fields[0]]
    for field in fields[1:]:
        if len(lines[-1]) + 2 + len(field) <= columns:
            lines[-1] += f"  {field}"
        else:
            lines.append(f"    {field}")
    return "\n".join(lines)


def lanes(timeline: Timeline, width: int, blocks: str = BLOCKS) -> Group:
    """The streams and the device memory over the time of a step.

    Args:
        timeline: simulated or measured.
        width: columns, labels included.
        blocks: characters from empty to full.
    """
    columns = max(10, width - LABEL_WIDTH)
    lines: list[RenderableType] = []
    for stream, title in streams_of(timeline).items():
        shares = busy_shares(timeline, stream, columns)
        lines.append(_lane(title, LANE_COLOURS[stream], shares, blocks))
    held = held_shares(timeline, columns)
    lines.append(_lane("memory", "yellow", held, blocks))
    scale = f"0{format_us(timeline.makespan_us):>{columns - 1}}"
    lines.append(Text(" " * LABEL_WIDTH + scale, style="dim"))
    return Group(*lines)


def busy_shares(timeline: Timeline, stream: Stream, columns: int) -> list[float]:
    """For each of `columns` equal pieces of the step the share in which a stream works."""
    piece = timeline.makespan_us / columns or 1.0
    shares = [0.0] * columns
    for event in timeline.events:
        if event.stream != stream or event.end_us <= event.start_us:
            continue
        first = min(int(event.start_us / piece), columns - 1)
        last = min(int(event.end_us / piece), columns - 1)
        for column in range(first, last + 1):
            inside = min(event.end_us, (column + 1) * piece) - max(event.start_us, column * piece)
            shares[column] += max(0.0, inside) / piece
    return [min(1.0, share) for share in shares]


def held_shares(timeline: Timeline, columns: int) -> list[float]:
    """For each piece of the step the largest share of the peak that is held."""
    piece = timeline.makespan_us / columns or 1.0
    shares = [0.0] * columns
    steps = [*timeline.ledger, (timeline.makespan_us, 0)]
    for (start, held), (end, _) in pairwise(steps):
        first, last = (min(int(time / piece), columns - 1) for time in (start, end))
        for column in range(first, last + 1):
            shares[column] = max(shares[column], min(1.0, held / (timeline.peak_bytes or 1)))
    return shares


def memory_bar(parts: Mapping[str, int], budget_bytes: int, width: int = 32) -> Text:
    """Parts of a budget as one stacked bar.

    Args:
        parts: {colour: bytes}, drawn from left to right.
        budget_bytes: the whole bar.
        width: columns.
    """
    bar, used = Text(), 0
    for colour, size in parts.items():
        end = min(width, round(width * (used + size) / (budget_bytes or 1)))
        start = min(width, round(width * used / (budget_bytes or 1)))
        bar.append("█" * (end - start), style=colour)
        used += size
    return bar.append("░" * (width - len(bar)), style="dim")


def spark(values: Sequence[float], columns: int, blocks: str = BLOCKS) -> str:
    """The last values as heights between their least and their largest."""
    last = values[-columns:]
    least, span = min(last, default=0.0), (max(last, default=0.0) - min(last, default=0.0)) or 1.0
    steps = len(blocks) - 2
    return "".join(blocks[1 + round((value - least) / span * steps)] for value in last)


def placement(allocator: str, reserved_bytes: int, alive_bytes: int) -> str:
    """What an allocator makes of a plan, and how far that is from the least that any could.

    Args:
        reserved_bytes: the highest byte it uses, its holes included.
        alive_bytes: the most that lives at one time: no placement needs less.
    """
    reserves, least = f"{allocator} reserves {format_bytes(reserved_bytes)}", "the minimum possible"
    if reserved_bytes <= alive_bytes:
        return f"{reserves}, {least}"
    over = 100 * (reserved_bytes / alive_bytes - 1) if alive_bytes else 0.0
    return f"{reserves}, {over:.1f} % above {least} ({format_bytes(alive_bytes)})"


def share(part: float, whole: float) -> str:
    """A part as a percentage of a whole."""
    return format_percent(part / whole) if whole else "-"


def _cells(row: LayerRow) -> list[str]:
    sizes = (
        row.parameter_bytes,
        row.activation_bytes,
        row.gradient_bytes,
        row.state_bytes,
        row.workspace_bytes,
    )
    shape = " x ".join(map(str, row.shape))
    return [row.name, shape, *(format_bytes(size) if size else "-" for size in sizes)]


def _lane(title: str, colour: str, shares: Sequence[float], blocks: str) -> Text:
    line = Text(f"{title:{LABEL_WIDTH}}", style="dim")
    for value in shares:
        height = 0 if value <= 0 else max(1, round(value * (len(blocks) - 1)))
        line.append(blocks[height], style=colour)
    return line
