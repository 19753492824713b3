"""Four moving pictures of memory, each drawn from what really happened.

`window_film` slides paper 000's window over a step and shows what its list has on the device;
`bands_film` lets the frontier recede through the layers of a banded trace; `mapping_film` shows
which chunks of memory stand behind the blocks of an allocation log; `arena_film` lets an arena fill
with blocks, and with holes. Schedules, traces and logs come in, a `Film` goes out. Read next:
`docs/draw.py`, which writes the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooctrain.alloc.replay import BlockLife
from ooctrain.report import shapes
from ooctrain.report.shapes import COLOURS, EMPTY, box, words
from ooctrain.sched.schedule import Free, Run, Schedule, SwapIn, SwapOut
from ooctrain.step.blocks import block_of
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes

LEFT, TOP, CELL = 96, 74, 20
ON, GOES, COMES, WINDOW = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[4]
LOST = "#f6c9c4"


def window_spans(trace: Trace, most_bytes: int) -> list[tuple[int, int]]:
    """For each call the calls [first, last) whose values are in the window: from the call on, as
    long as the values that they touch stay below this many bytes, each counted once.
    """
    spans = []
    for call in trace.calls:
        seen: set[int] = set()
        last = call.id
        while last < len(trace.calls):
            more = seen | set(trace.calls[last].touched())
            if last > call.id and sum(trace.variables[v].nbytes for v in more) > most_bytes:
                break
            seen, last = more, last + 1
        spans.append((call.id, last))
    return spans


def on_device(trace: Trace, schedule: Schedule) -> list[tuple[set[int], set[int], set[int]]]:
    """For each call, while it runs: the values on the device, those on their way out, and those
    that came in since the call before.
    """
    present = {variable for variable, _, _ in schedule.start_device}
    going: set[int] = set()
    coming: set[int] = set()
    columns: list[tuple[set[int], set[int], set[int]]] = []
    for step in schedule.instructions:
        if isinstance(step, SwapIn):
            coming.add(step.var)
        elif isinstance(step, SwapOut):
            going.add(step.var)
        elif isinstance(step, Free):
            present.discard(step.var)
            coming.discard(step.var)
            going.discard(step.var)
        elif isinstance(step, Run):
            present |= coming | set(trace.calls[step.call].outs)
            columns.append((set(present), set(going), set(coming)))
            coming = set()
    return columns


def window_film(trace: Trace, schedule: Schedule, window_bytes: int) -> Film:
    """The window over a step whose calls run once, in order: a column for each call, a row for each
    value, a frame for each call.
    """
    columns, spans = on_device(trace, schedule), window_spans(trace, window_bytes)
    calls, names = len(trace.calls), {v.id: v.name for v in trace.variables}
    order = dict.fromkeys(v for call in trace.calls for v in (*call.ins, *call.outs))
    row = {v: place for place, v in enumerate(order)}  # in the order of their first use
    bottom = TOP + CELL * len(row)
    pitch = (shapes.WIDTH - LEFT - 16) / calls

    def x(call: float) -> float:
        return LEFT + pitch * call

    legend = [("on the device", ON), ("copied out", GOES), ("copied in", COMES), ("window", WINDOW)]
    ground = [
        _title(f"A window of {window_bytes} bytes slides over the step; what it has on the device"),
        *shapes.legend_row(LEFT, 42, legend),
        box(LEFT, TOP, pitch * calls, bottom - TOP, EMPTY),
        *[words(x(c.id + 0.5), bottom + 16, c.name, "middle") for c in trace.calls],
        *[words(LEFT - 8, TOP + CELL * at + 15, names[v], "end") for v, at in row.items()],
    ]
    layers = []
    for call, (present, going, coming) in enumerate(columns):
        cells = []
        for v in sorted(present):
            colour = GOES if v in going else COMES if v in coming else ON
            tip = f"{names[v]} at {trace.calls[call].name}"
            cells.append(
                box(x(call) + 1, TOP + CELL * row[v] + 1, pitch - 2, CELL - 2, colour, tip)
            )
        layers.append(Layer(cells, call))
    for call, (first, last) in enumerate(spans):
        frame = (
            f'<rect x="{x(first):.1f}" y="{TOP - 4}" width="{pitch * (last - first):.1f}" '
            f'height="{bottom - TOP + 8}" fill="none" stroke="{WINDOW}" stroke-width="3"/>'
        )
        held = sum(trace.variables[v].nbytes for v in columns[call][0])
        caption = f"{trace.calls[call].name}: {held} bytes claimed on the device"
        layers.append(Layer([frame, words(x(0), TOP - 10, caption, "start")], call, call + 1))
    return Film(ground, layers, calls, calls - 4, bottom + 30)


def bands_film(trace: Trace, tensors: Sequence[str], rows: int) -> Film:
    """The calls of a banded trace, one after the other: a strip for each tensor, a colour for each
    band. Each border lies higher in every layer: the frontier recedes.
    """
    pitch, gap, left = 30, 12, 130
    scale = (shapes.WIDTH - left - 16) / rows
    place = {name: TOP + (pitch + gap) * order for order, name in enumerate(tensors)}
    ground = [_title("Bands go down the image, through all layers; no row is computed twice")]
    for name, y in place.items():
        ground += [words(left - 8, y + 20, name, "end"), box(left, y, scale * rows, pitch, EMPTY)]
    layers: list[Layer] = []
    bands: dict[str, int] = {}

    def strip(name: str) -> tuple[float, str]:
        block = block_of(name)
        assert block is not None
        width = scale * (block.hi - block.lo)
        band = bands.setdefault(name, sum(block_name(b) == block.tensor for b in bands))
        text = f"{block.tensor} rows {block.lo} to {block.hi - 1}"
        part = box(
            left + scale * block.lo + 1, place[block.tensor], width - 2, pitch,
            COLOURS[band % len(COLOURS)], text,
        )  # fmt: skip
        return left + scale * block.lo, part

    def block_name(name: str) -> str:
        found = block_of(name)
        return found.tensor if found else name

    def known(variables: Sequence[int]) -> list[str]:
        found = (trace.variables[v].name for v in variables)
        return [name for name in found if block_of(name) and block_name(name) in place]

    first = [v.name for v in trace.variables if v.kind == "input"]
    layers.append(Layer([strip(name)[1] for name in first if block_name(name) in place], 0))
    frame = 0
    for call in trace.calls:
        made = known(call.outs)
        if call.phase != "forward" or not made:
            continue
        frame += 1
        layers.append(Layer([strip(name)[1] for name in made], frame))
        reads = [
            f'<rect x="{strip(name)[0]:.1f}" y="{place[block_name(name)] - 3}" '
            f'width="{scale * (b.hi - b.lo):.1f}" height="{pitch + 6}" fill="none" '
            f'stroke="#222" stroke-width="2"/>'
            for name in known(call.ins)
            if (b := block_of(name))
        ]
        caption = words(left, TOP - 14, f"{call.name} reads the framed rows", "start")
        layers.append(Layer([*reads, caption], frame, frame + 1))
    bottom = TOP + (pitch + gap) * len(tensors)
    ground += [
        words(left + scale * row, bottom + 8, str(row), "middle") for row in range(0, rows + 1, 8)
    ]
    ground.append(words(left + scale * rows / 2, bottom + 26, "row", "middle"))
    return Film(ground, layers, frame + 1, frame, bottom + 40)


def mapping_film(lives: Sequence[BlockLife], chunk_bytes: int, chunks: int, requests: int) -> Film:
    """Memory in chunks below, blocks above, and which chunks stand behind which block; a frame for
    each claim and release.
    """
    pitch, left, low = min(40.0, (shapes.WIDTH - 120) / chunks), 96, 330
    tags = list(dict.fromkeys(life.tag for life in lives))
    ground = [
        _title(
            f"Addresses in a row, memory in chunks of {format_bytes(chunk_bytes)} from anywhere"
        ),
        words(left - 8, low + 20, "memory", "end"),
        *[box(left + pitch * n + 1, low, pitch - 2, 30, EMPTY) for n in range(chunks)],
        *[words(left + pitch * (n + 0.5), low + 46, str(n), "middle") for n in range(chunks)],
    ]
    blocks: dict[tuple[str, int], list[int]] = {}
    ends: dict[tuple[str, int], int] = {}
    for life in lives:
        key = (life.tag, life.begin)
        numbers = range(life.lo // chunk_bytes, -(-life.hi // chunk_bytes))
        blocks.setdefault(key, []).extend(numbers)
        ends[key] = life.end
    layers, lanes = [], _lanes([(begin, ends[tag, begin]) for tag, begin in blocks])
    for (key, held), lane in zip(blocks.items(), lanes, strict=True):
        tag, begin = key
        colour, y = COLOURS[tags.index(tag) % len(COLOURS)], 60 + 44 * (lane % 6)
        x = left + 24.0 + (lane // 6) * 300
        parts = [words(x - 6, y + 16, tag, "end")]
        for place, number in enumerate(held):
            here, there = x + 18 * place, left + pitch * (number + 0.5)
            parts.append(
                f'<line x1="{here + 8:.1f}" y1="{y + 22}" x2="{there:.1f}" y2="{low}" '
                f'stroke="{colour}" stroke-opacity="0.6"/>'
            )
            parts.append(box(here, y, 16, 22, colour, f"{tag}: chunk {number}"))
            parts.append(box(left + pitch * number + 1, low, pitch - 2, 30, colour, tag))
        layers.append(Layer(parts, begin, min(ends[key], requests)))
    live = [sum(b <= t < e for b, e in ((k[1], ends[k]) for k in blocks)) for t in range(requests)]
    return Film(ground, layers, requests, live.index(max(live)), low + 60)


def arena_film(
    lives: Sequence[BlockLife], arena_bytes: int, requests: int, needed_bytes: int
) -> Film:
    """Addresses up, requests to the right: blocks appear as they are requested; what is left white
    between them is a hole while others lie above.
    """
    tall, left, top = 300, 96, 60
    right = shapes.WIDTH - 16
    across, up = (right - left) / requests, tall / arena_bytes

    def y(size: float) -> float:
        return top + tall - up * size

    ground = [
        _title("Blocks come and go; holes stay between them"),
        box(left, top, right - left, tall, EMPTY),
        words(left - 8, y(arena_bytes) + 4, format_bytes(arena_bytes), "end"),
        words(left - 8, y(0) + 4, "0", "end"),
        words((left + right) / 2, top + tall + 20, "requests", "middle"),
    ]
    layers = []
    tags = list(dict.fromkeys(life.tag for life in lives))
    for life in lives:
        colour = COLOURS[tags.index(life.tag) % len(COLOURS)]
        x, width = left + across * life.begin, across * (life.end - life.begin)
        text = f"{life.tag}: {format_bytes(life.hi - life.lo)} at {format_bytes(life.lo)}"
        part = box(x, y(life.hi), width - 1, up * (life.hi - life.lo) - 1, colour, text)
        layers.append(Layer([part], life.begin))
    for now in range(requests):
        x = left + across * (now + 1)
        cover = box(x, top, max(right - x, 0), tall, EMPTY)
        held = [(life.lo, life.hi) for life in lives if life.begin <= now < life.end]
        free = max((hi for _, hi in held), default=0) - sum(hi - lo for lo, hi in held)
        caption = f"request {now + 1}: {format_bytes(free)} in holes below the highest block"
        if now + 1 == requests:
            caption = f"the blocks take {format_bytes(arena_bytes)}; the list needs "
            caption += format_bytes(needed_bytes)
        layers.append(
            Layer([cover, words(left, top - 10, caption, "start")], now, None if now + 1 == requests
                  else now + 1)
        )  # fmt: skip
    layers.append(Layer([shapes.limit(left, right, y(needed_bytes), "what the list needs")], 0))
    return Film(ground, layers, requests, requests - 1, top + tall + 34)


def _title(text: str) -> str:
    return f'<text x="{LEFT}" y="20" font-weight="600">{text}</text>'


def _lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """The first row that is free for each span, in order of their beginnings."""
    free: list[int] = []
    lanes = []
    for begin, end in spans:
        lane = next((n for n, until in enumerate(free) if until <= begin), len(free))
        if lane == len(free):
            free.append(end)
        free[lane] = end
        lanes.append(lane)
    return lanes


# Pictures that move: layers of an SVG that are shown from one frame to another, over and over. The
# file moves by CSS alone, so it needs no script and moves in an `<img>` too. A reader who prefers
# less motion, and a printer, get one frame that stands still and says the most: it is what is
# drawn, and motion is added only `@media screen and (prefers-reduced-motion: no-preference)`.

MOVING = "@media screen and (prefers-reduced-motion: no-preference)"
#: How many times the last frame is repeated at the end, to be looked at.
_PAUSE = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """Elements that are seen in the frames [first, last).

    Args:
        parts: SVG elements.
        first, last: frames; None: to the end.
    """

    parts: Sequence[str]
    first: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Film:
    """What a moving picture is made of.

    Args:
        ground: elements that are always seen.
        layers: the others, drawn in order over the ground.
        frames: how many there are.
        still: the frame for print and for readers who prefer less motion.
        height: in pixels.
    """

    ground: Sequence[str]
    layers: Sequence[Layer]
    frames: int
    still: int
    height: float


def moving_svg(film: Film, *, frame_s: float = 0.5) -> str:
    """A film as the text of one SVG file.

    Args:
        film: what is seen, and when.
        frame_s: seconds that a frame lasts.
    """
    spans = sorted({_span(layer, film) for layer in film.layers})
    parts = [_style(spans, film, frame_s), *film.ground]
    for layer in film.layers:
        first, last = _span(layer, film)
        body = "\n".join(layer.parts)
        parts.append(f'<g class="f{first}-{last}">\n{body}\n</g>')
    return shapes.document(parts, film.height)


def _span(layer: Layer, film: Film) -> tuple[int, int]:
    return layer.first, film.frames if layer.last is None else layer.last


def _style(spans: Sequence[tuple[int, int]], film: Film, frame_s: float) -> str:
    """The classes: what stands still first, then the motion, in a media query of its own."""
    whole = film.frames + _PAUSE
    hidden = [f".f{a}-{b}" for a, b in spans if not a <= film.still < b]
    lines = [f"{', '.join(hidden)} {{opacity: 0}}"] if hidden else []
    lines.append(f"{MOVING} {{")
    for first, last in spans:
        end = whole if last == film.frames else last
        steps = {0.0: 0, 100 * first / whole: 1, 100 * end / whole: 0 if end < whole else 1}
        frames = " ".join(f"{at:.4g}% {{opacity: {shown}}}" for at, shown in sorted(steps.items()))
        name = f"f{first}-{last}"
        lines.append(
            f".{name} {{animation: {name} {whole * frame_s:g}s step-end infinite}} "
            f"@keyframes {name} {{{frames}}}"
        )
    lines.append("}")
    return "<style>\n" + "\n".join(lines) + "\n</style>"
