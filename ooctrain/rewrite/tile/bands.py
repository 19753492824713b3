"""One pass over rows: bands that keep their halos, or tiles that compute them again.

The given calls of a trace run image after image and part after part of its rows. For each call of a
part two facts are known before: over which rows it runs, and which rows these read (its row rule).
From that the pass makes views of what the call reads, the operation of the part, and the place of
its result. What others read of the results becomes whole again, part by part.

Bands are one setting: their rows follow from frontiers (`frontier.py`), so that each row belongs to
one band, and what a band reads above its own rows was made by the bands before. Of each tensor only
the few rows that the next band needs are kept: they are cut out at once so that the rest can be
freed, and the next band's own rows are written directly after them. Backward, bands go in
descending order. A gradient row is gathered from all rows that it contributed to, which exist by
then, so no halo is added up and each row is written once. Sums over rows go on from band to band. A
call that reads such a sum, as a norm does, waits for all bands; such calls are a level of their own
(`carried_totals.py`). With `again`, a band's forward calls run once more in backward, from the kept
rows. Without it, backward reads what forward made, and the planner decides what to keep, to swap or
to run again. Tensors between bands then fall into blocks, so that they need never be whole
(`read_blocks`).

Tiles of rows are the other setting: their rows follow from what others read (`graph_tiles.py`), so
neighbours compute some rows twice; nothing is kept, and each tile sums for itself.

Source: bands are ours, docs/tiling.md; tiles are paper 003's. Read next: `band_rows.py`,
`carried_totals.py`; the law is `tests/properties/test_bands.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from ooctrain.errors import ConfigError
from ooctrain.layers.combine import Constant
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.layers.regions import Insert
from ooctrain.rewrite.tile.band_rows import BandPass, BandRows, Part, Source
from ooctrain.rewrite.tile.banded_calls import BandedCalls, row_count
from ooctrain.rewrite.tile.carried_totals import (
    Level,
    add_part,
    carry,
    crossing,
    finish_level,
    leading_to,
    levels_of,
)
from ooctrain.rewrite.tile.frontier import Frontier
from ooctrain.rewrite.tile.graph_tiles import RowTiles
from ooctrain.rewrite.tile.halo import row_axis, start_of, with_rows
from ooctrain.rewrite.tile.on_rows import OnRows, View
from ooctrain.rewrite.tile.writer import TileCall, TraceWriter, alive, onto, positions, zeros
from ooctrain.step.blocks import block_name, block_of
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, Spec
from ooctrain.step.rows import AnyRead, RowPlace, Span
from ooctrain.step.trace import ITEM_BYTES, Call, Phase, Trace, Variable

PHASES: tuple[Phase, ...] = ("forward", "backward")
#: {tensor: how calls read its rows, and over which rows they run}
Readers = dict[int, list[tuple[AnyRead, Frontier]]]


def weave_tiles(trace: Trace, calls: BandedCalls, tiles: int) -> Trace:
    """The trace with these calls replaced by those of tiles of rows that compute their halos again.

    Args:
        calls: of `graph_calls`.
        tiles: of each image; fewer where it has fewer rows.

    Cost: O(calls of the trace + tiles * these calls).
    """
    most = trace.variables[calls.forward[0].ins[0]].shape[2]
    return _woven(trace, calls, RowTiles(trace, calls, min(tiles, most)), again=True)


def weave_bands(trace: Trace, calls: BandedCalls, again: bool) -> Trace:
    """The trace with these calls replaced by those of bands that keep their halos.

    Args:
        again: write each band's forward calls into the backward pass once more.

    Cost: O(calls of the trace + bands * these calls).
    """
    return read_blocks(_woven(trace, calls, None, again))


def _woven(trace: Trace, calls: BandedCalls, tiles: RowTiles | None, again: bool) -> Trace:
    writer = TraceWriter(trace)
    weaver = _RowWeaver(trace, calls, writer, tiles, again)
    writer.copy(calls.before)
    forward = weaver.forward()
    writer.write(forward.steps)
    writer.copy(calls.between)
    backward = weaver.backward(forward)
    writer.write(backward.steps, wanted=backward.results.values())
    writer.copy(calls.after)
    return writer.finish()


def handed_over_bytes(trace: Trace, calls: BandedCalls, again: bool) -> int:
    """What the step that `weave_bands` writes has to hold between the passes at least: what bands
    make forward and read backward. All images have bands of the same sizes, so those of the first
    one suffice, and nothing else is made.

    Cost: O(bands of an image * these calls).
    """
    images = trace.variables[calls.forward[0].ins[0]].shape[0]
    weaver = _RowWeaver(trace, calls, TraceWriter(trace), None, again, images=1)
    forward = weaver.forward()
    backward = weaver.backward(forward)
    bands = [part for row in forward.made[0].values() for part in row]
    kept = [part for row in forward.kept.values() for part in row.values()]
    made = {value for step in forward.steps for value in step.outs}
    made &= {part.value for part in (*bands, *kept)}
    steps = alive(backward.steps, set(backward.results.values()))
    read = {value for step in steps for value in step.ins}
    return images * sum(value.spec.nbytes for value in made & read)


class _RowWeaver:
    """Makes the steps of bands, or of tiles of rows, pass by pass; number image * T + t is band t
    of an image.

    Args:
        tiles: the rows of tiles that compute their halos again; None: bands that keep them.
        again: write each band's forward calls into the backward pass once more.
        images: number of images, from the first one on, whose bands are made; None: all.
    """

    def __init__(
        self, trace: Trace, calls: BandedCalls, writer: TraceWriter, tiles: RowTiles | None,
        again: bool, images: int | None = None,
    ) -> None:  # fmt: skip
        self.trace, self.calls, self.writer, self.again = trace, calls, writer, again
        self.keeps, self.bands = tiles is None, calls.bands if tiles is None else tiles.tiles
        #: {phase: for each band of an image over which rows calls run}
        self.runs = {
            phase: [(tiles or calls).of(phase, t) for t in range(self.bands)] for phase in PHASES
        }
        #: forward results that backward reads whole
        self.whole = frozenset[int]() if tiles is None else tiles.stored
        self.levels = levels_of(calls.forward, calls.rules)
        #: sums, and forward tensors that exist in all bands before backward
        self.waiting = crossing(self.levels)
        for call in calls.forward:
            if calls.rules[call.id].reduces:
                self.waiting.update(call.outs)
        all_images = trace.variables[calls.forward[0].ins[0]].shape[0]
        self.numbers = range((images or all_images) * self.bands)
        self.rows = BandRows(trace, writer, calls.results, all_images)

    def _readers(self, calls: Iterable[Call]) -> Readers:
        """For each tensor how these calls read its rows, and over which rows they run."""
        found: Readers = {}
        for call in calls:
            for read, v in zip(self.calls.rules[call.id].reads, call.ins, strict=True):
                if read is not None:
                    found.setdefault(v, []).append((read, self.calls.rows[call.id]))
        return found

    # The two passes

    def forward(self) -> BandPass:
        """All bands in ascending order."""
        run = BandPass("forward")
        for level in self.levels:
            readers = self._readers(level)
            for band in self.numbers:
                run.begin(band, band // self.bands)
                for call in level:
                    self._run_call(run, call, band)
                    self._keep(run, call, band, readers)
            finish_level(run, level, self.writer)
        self._hand_over(run)
        return run

    def backward(self, forward: BandPass) -> BandPass:
        """All bands, in descending order if they keep rows; with `again` each begins with its
        forward calls.
        """
        run = BandPass("backward", whole=self.whole)
        for level in levels_of(self.calls.backward, self.calls.rules):
            readers = self._readers(level)
            for band in reversed(self.numbers) if self.keeps else self.numbers:
                run.begin(band, band // self.bands)
                if self.keeps:
                    self._read_forward(run, forward, band)
                if self.again:
                    self._run_again(run, band, level, readers)
                for call in level:
                    of = call.forward_of
                    self._run_call(
                        run, call, band, None if of is None else forward.by_call.get((of, band))
                    )
                    self._keep(run, call, band, readers)
            run.kept.clear()
            finish_level(run, level, self.writer)
        self._hand_over(run)
        return run

    def _read_forward(self, run: BandPass, forward: BandPass, band: int) -> None:
        """What forward made and left, and what it kept for this band."""
        made = forward.made.get(band // self.bands, {}).items()
        run.parts |= {v: list(p) for v, p in made if v in self.waiting or not self.again}
        for v, part in forward.kept.get(band, {}).items():
            run.parts[v] = [*run.parts.get(v, []), part]

    def _run_again(self, run: BandPass, band: int, level: Level, readers: Readers) -> None:
        """The forward calls of a band once more, as far as this level reads what they compute: from
        the rows that were kept for it, and from tensors that wait in bands.
        """
        run.mark = f".again{run.level or ''}"
        read = (v for call in level for v in call.ins)
        for call in leading_to(self.calls.forward, read, self.waiting | self.whole):
            self._run_call(run, call, band)
            self._keep(run, call, band, readers)
        run.mark = ""

    # One call in one band

    def _run_call(self, run: BandPass, call: Call, band: int, of: TileCall | None = None) -> None:
        rule, (image, t) = self.calls.rules[call.id], divmod(band, self.bands)
        rows = self.runs[run.phase][t].get(call.id)
        if rows is None or not rows.extent:
            return
        reads = self.calls.reads(self.trace, call, rows)
        if any(read is not None and not read.inside.extent for read in reads):
            self._read_padding(run, call, image, rows)
            return
        spans = [None if read is None else read.inside for read in reads]
        carries = self.keeps and bool(call.op.carries)
        sources = self._sources(run, call, image, spans, in_pieces=not carries)
        if carries:
            label = self.rows.label(image, rows)
            step = carry(run, self.trace, call, (image, rows.lo), label, sources)
        else:
            above, below = (0, 0) if reads[0] is None else (reads[0].pad_lo, reads[0].pad_hi)
            full = self.trace.variables[call.outs[0]].shape
            op = rule.cut(RowPlace(image, rows, above, below, full))
            step = self._step(run, call, op, image, rows, sources)
        step.of = of
        run.by_call[call.id, band] = step

    def _read_padding(self, run: BandPass, call: Call, image: int, rows: Span) -> None:
        """A call whose rows read nothing: their gradient is zero, and adds nothing to a sum."""
        if run.phase == "forward":
            raise ConfigError(
                f"rows {rows} of {call.name!r} read nothing but padding: no kernel runs on "
                "zero rows",
                code="OOC-113",
                fix="end the segment before it",
            )
        if not self.calls.rules[call.id].reduces:
            self._write_zeros(run, call, image, rows)

    def _sources(
        self, run: BandPass, call: Call, image: int, spans: Sequence[Span | None], *,
        in_pieces: bool,
    ) -> list[list[Source]]:  # fmt: skip
        """Values that hold what a call reads; `spans` are rows of images, None the whole input."""
        rule = self.calls.rules[call.id]
        images = [v for v, span in zip(call.ins, spans, strict=True) if span is not None]
        written = () if rule.reduces else call.outs
        in_pieces = in_pieces and self.rows.in_whole_groups([*images, *written])
        found: list[list[Source]] = [
            [(self.writer.value_of(v), None)]
            if span is None
            else self.rows.source(run, v, image, span, in_pieces)
            for v, span in zip(call.ins, spans, strict=True)
        ]
        for i in rule.of_image:
            found[i] = [(self.rows.of_image(run, call.ins[i], image), None)]
        return found

    def _step(
        self,
        run: BandPass,
        call: Call,
        op: Op,
        image: int,
        rows: Span,
        sources: Sequence[Sequence[Source]],
    ) -> TileCall:
        """The call of a band, on views of what it reads, its result next to rows that were kept."""
        reduces = self.calls.rules[call.id].reduces
        around = [] if reduces else self._neighbouring(run, call.outs[0], rows)
        above = [part for part in around if part.rows.hi == rows.lo]
        below = [part for part in around if part.rows.lo == rows.hi]
        values = [value for source in sources for value, _ in source]
        views = tuple(view for source in sources for _, view in source)
        counts = tuple(map(len, sources)) if len(values) > len(sources) else ()
        reuse = positions(call)
        if around or any(views) or counts:
            op, reuse = OnRows(op, views, bool(above), bool(below), counts), {}
            values += [part.value for part in (*above, *below)]
        specs = op.infer(*(value.spec for value in values))
        held = [rows] * len(specs)
        for part in around:
            held[0] = Span(min(held[0].lo, part.rows.lo), max(held[0].hi, part.rows.hi))
        if not reduces and any(h.extent != s.shape[-2] for h, s in zip(held, specs, strict=True)):
            raise ConfigError(
                f"the row rule of {call.name!r} is wrong: what it reads for rows {rows} gives "
                f"{specs[0].shape[-2] - held[0].extent + rows.extent} rows",
                code="OOC-113",
                fix="its row_rule; of an operation of your own: window, with_padding",
            )
        outs = tuple(
            self.rows.value(v, run.mark + self.rows.label(image, span), spec)
            for v, span, spec in zip(call.outs, held, specs, strict=True)
        )
        name = f"{call.name}{run.mark}{self.rows.label(image, rows)}"
        step = TileCall(name, op, tuple(values), outs, run.phase, reuse)
        run.steps.append(step)
        for part in around:
            run.parts[call.outs[0]].remove(part)
        for v, span, value in zip(call.outs, held, outs, strict=True):
            if reduces:
                added = self.calls.rules[call.id].adds_images
                add_part(run, self.writer, v, value, None if added else image)
            else:
                self._made(run, v, image, Part(span, value))
        return step

    def _neighbouring(self, run: BandPass, v: int, rows: Span) -> list[Part]:
        """Kept rows of a tensor that end or begin where the band's own rows do.

        None of what is computed again though it is there, for another output of its call.
        """
        if (run.phase == "forward" and not self.again) or (run.mark and v in self.waiting):
            return []
        parts = run.parts.get(v, [])
        return [part for part in parts if part.rows.hi == rows.lo or part.rows.lo == rows.hi]

    def _write_zeros(self, run: BandPass, call: Call, image: int, rows: Span) -> None:
        """The gradient of rows that no window lies over."""
        v, label = call.outs[0], self.rows.label(image, rows)
        out = self.rows.value(v, label, self.rows.spec(v, rows))
        run.write(f"{call.name}.fill{label}", Constant(0.0, out.spec.shape), (), out)
        self._made(run, v, image, Part(rows, out))

    def _made(self, run: BandPass, v: int, image: int, part: Part) -> None:
        """Notes a band of a tensor; puts it into the whole where a call outside reads that."""
        if v in run.whole:
            return  # computed again though it is there, for another output of its call
        run.parts[v] = [*run.parts.get(v, []), part]
        run.made.setdefault(image, {}).setdefault(v, []).append(part)
        if v not in self.calls.handed_out or run.mark:
            return
        if part.value.spec.shape == self.trace.variables[v].shape:
            run.wholes[v] = part.value
            return
        if v not in run.wholes:
            run.wholes[v], steps = zeros(self.writer.value_of(v))
            run.steps += steps
        whole, label = run.wholes[v], self.rows.label(image, part.rows)
        op = Insert(start_of(whole.spec.shape, image, part.rows.lo))
        op.infer(whole.spec, part.value.spec)  # raises ShapeError: rows beyond the whole
        name, new = self.trace.variables[v].name, label.replace("[", "[with ", 1)
        call = f"{name}.insert{label}"
        run.steps.append(onto(whole, f"{name}{new}", call, op, part.value, run.phase))
        run.wholes[v] = run.steps[-1].outs[0]

    def _hand_over(self, run: BandPass) -> None:
        for v, value in run.results.items():
            self.writer.becomes(v, value)

    def _keep(self, run: BandPass, call: Call, band: int, readers: Readers) -> None:
        """Keeps the rows made so far of what a call writes that the next band reads: forward those
        above its own, backward, from the last row up, those below.
        """
        image, t = divmod(band, self.bands)
        forward = run.phase == "forward"
        if not self.keeps or self.calls.rules[call.id].reduces or (forward and t + 1 == self.bands):
            return
        for v in call.outs:
            extent, read_by = row_count(self.trace, v), readers.get(v, [])
            if forward:
                made = self.calls.frontiers[v][t + 1]
                firsts = [
                    read.first(rows[t + 1], extent)
                    for read, rows in read_by if rows[t + 1] < rows[-1]
                ]  # fmt: skip
                self.rows.keep(run, v, image, Span(min(firsts, default=made), made), band + 1)
            else:
                made = self.calls.frontiers[v][t]
                stops = [read.stop(rows[t], extent) for read, rows in read_by]
                self.rows.keep(run, v, image, Span(made, max(stops, default=made)), band - 1)


# Blocks: tensors between bands, inputs and results, as variables of one band each. A call that
# reads rows of a whole tensor can read the same rows from the blocks of which it is made, or from
# an input that is cut into blocks (`on_rows.py`). When no reader of the whole is left, it is not
# put together. So an image, and the values computed from it, may be larger than the device, and a
# planner moves block after block with its ordinary instructions. A reader without a row rule keeps
# its whole.


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows [lo, hi) of an image, and the variable that holds them."""

    variable: int
    image: int
    lo: int
    hi: int


@dataclass(slots=True)
class Whole:
    """A tensor that can do without being whole.

    Args:
        variable: variable that holds it.
        blocks: its blocks, ascending.
        makers: calls that put it together; an input has none.
    """

    variable: int
    blocks: list[RowBlock]
    makers: list[int] = field(default_factory=list)


def read_blocks(trace: Trace) -> Trace:
    """The trace with blocks in place of wholes that only calls on rows read, or the caller.

    Cost: O(calls + blocks).
    """
    extended, inputs = _cut_inputs(trace)
    found = [*inputs, *_put_together(trace)]
    wholes = {whole.variable: whole for whole in found if _all_read_rows(trace, whole)}
    if not wholes:
        return trace
    blocks = {b.variable for whole in wholes.values() for b in whole.blocks}
    makers = {maker for whole in wholes.values() for maker in whole.makers}
    calls = [
        _reading_blocks(extended, _sparing(call, blocks), wholes)
        for call in trace.calls
        if call.id not in makers
    ]
    cut = {b.variable for whole in inputs if whole.variable in wholes for b in whole.blocks}
    gone = set(extended.initial) - set(trace.initial) - cut | wholes.keys()
    outputs: dict[str, int] = {}
    for name, v in trace.outputs.items():
        if v in wholes:
            several = trace.variables[v].shape[0] > 1
            outputs |= {
                block_name(name, b.image if several else None, b.lo, b.hi): b.variable
                for b in wholes[v].blocks
            }
        else:
            outputs[name] = v
    extended = replace(extended, outputs=MappingProxyType(outputs))
    return extended.with_calls(calls, gone=gone)


# Which wholes there are


def _put_together(trace: Trace) -> list[Whole]:
    """Tensors that are filled and then get block after block."""
    found: dict[int, Whole] = {}  # the version with the blocks so far: what it is made of
    for call in trace.calls:
        if isinstance(call.op, Constant) and len(trace.variables[call.outs[0]].shape) == 4:
            found[call.outs[0]] = Whole(call.outs[0], [], [call.id])
        elif isinstance(call.op, Insert) and call.ins[0] in found:
            _, c, h, w = trace.variables[call.ins[1]].shape
            image, channel, row, column = call.op.start
            _, channels, _, width = trace.variables[call.outs[0]].shape
            alone = len(trace.readers[call.ins[0]]) == 1
            if alone and (channel, column, c, w) == (0, 0, channels, width):
                whole = found[call.outs[0]] = found.pop(call.ins[0])
                whole.variable = call.outs[0]
                whole.blocks.append(RowBlock(call.ins[1], image, row, row + h))
                whole.makers.append(call.id)
    complete = []
    for v, whole in found.items():
        n, _, h, _ = trace.variables[v].shape
        whole.blocks.sort(key=lambda block: (block.image, block.lo))
        if whole.blocks and sum(b.hi - b.lo for b in whole.blocks) == n * h:
            complete.append(whole)
    return complete


def _cut_inputs(trace: Trace) -> tuple[Trace, list[Whole]]:
    """Inputs that can be cut, and the trace with the variables that their blocks would be.

    The rows that the first call on them reads, band by band, say where: forward a band then reads
    the end of the block before, which is still there, and its own one; backward likewise.
    """
    variables, wholes = list(trace.variables), []
    for v in trace.initial:
        old = trace.variables[v]
        if old.kind != "input" or len(old.shape) not in (3, 4) or not trace.readers[v]:
            continue
        if block_of(old.name) is not None:  # cut by the segment before
            continue
        first = trace.calls[trace.readers[v][0]]
        views = [
            (call, view)
            for call in (trace.calls[reader] for reader in trace.readers[v])
            if call.name.partition("[")[0] == first.name.partition("[")[0]
            for view in _views(call, v)
        ]
        borders = {(view[0], view[2 if first.phase == "forward" else 1]) for _, view in views}
        n, h = old.shape[0], old.shape[row_axis(old.shape)]
        whole = Whole(v, [])
        for image in range(n):
            rows = sorted({0, h, *(row for at, row in borders if at == image)})
            for lo, hi in pairwise(rows):
                name = block_name(old.name, image if n > 1 else None, lo, hi)
                shape = with_rows(old.shape, hi - lo)
                size = math.prod(shape) * ITEM_BYTES[old.dtype]
                whole.blocks.append(RowBlock(len(variables), image, lo, hi))
                variables.append(Variable(len(variables), name, shape, old.dtype, size, "input"))
        wholes.append(whole)
    return replace(trace, variables=tuple(variables)), wholes


# Who reads them


def _all_read_rows(trace: Trace, whole: Whole) -> bool:
    """Whether blocks do for all its readers: each reads rows of it, as its device can."""
    readers = [trace.calls[reader] for reader in trace.readers[whole.variable]]
    handed_out = whole.variable in trace.outputs.values()
    return bool(readers or handed_out) and all(
        len(_views(call, whole.variable)) == call.ins.count(whole.variable)
        and all(_can_read(trace, call, whole, view) for view in _views(call, whole.variable))
        for call in readers
    )


def _views(call: Call, variable: int) -> list[View]:
    """The rows of a variable that a call reads, once for each time that it reads some."""
    if not isinstance(call.op, OnRows):
        return []
    pairs = zip(call.op.views, call.ins, strict=False)
    return [view for view, v in pairs if v == variable and view is not None]


def _can_read(trace: Trace, call: Call, whole: Whole, view: View) -> bool:
    """A GPU's kernels begin at whole groups of four elements."""
    if trace.device == "cpu":
        return True
    images = [trace.variables[v].shape for v in (whole.variable, *call.outs)]
    rows = [math.prod(with_rows(shape, 1)) for shape in images if len(shape) in (3, 4)]
    pieces = _pieces(whole, view)
    inside = len(pieces) == 1 and pieces[0][1] is None
    return inside or all(elements % 4 == 0 for elements in rows)


def _pieces(whole: Whole, view: View) -> list[tuple[int, View | None]]:
    """Blocks in which the rows of a view lie, and which rows of each; None: all."""
    image, lo, hi = view
    found: list[tuple[int, View | None]] = []
    first = bisect_right(whole.blocks, (image, lo), key=lambda block: (block.image, block.hi))
    for place in range(first, len(whole.blocks)):
        block = whole.blocks[place]
        if (block.image, block.lo) >= (image, hi):
            break
        a, b = max(lo, block.lo), min(hi, block.hi)
        every = (a, b) == (block.lo, block.hi)
        found.append((block.variable, None if every else (0, a - block.lo, b - block.lo)))
    return found


def _sparing(call: Call, blocks: set[int]) -> Call:
    """A call that takes over no block's storage: blocks are read for longer than before."""
    if not blocks.intersection(call.reuse.values()):
        return call
    reuse = {out: v for out, v in call.reuse.items() if v not in blocks}
    return replace(call, reuse=MappingProxyType(reuse))


def _reading_blocks(trace: Trace, call: Call, wholes: Mapping[int, Whole]) -> Call:
    """A call that reads rows of blocks where it read rows of wholes."""
    if not wholes.keys() & set(call.ins):
        return call
    assert isinstance(call.op, OnRows), call.name
    values: list[int] = []
    views: list[View | None] = []
    counts: list[int] = []
    start = 0
    for count in call.op.pieces or (1,) * len(call.op.views):
        before = len(values)
        for i in range(start, start + count):
            v, view = call.ins[i], call.op.views[i]
            read = _pieces(wholes[v], view) if v in wholes and view is not None else [(v, view)]
            values += [piece for piece, _ in read]
            views += [rows for _, rows in read]
        counts.append(len(values) - before)
        start += count
    apart = tuple(counts) if len(values) > len(counts) else ()
    op: Op = replace(call.op, views=tuple(views), pieces=apart)
    if not (any(views) or apart or call.op.above or call.op.below):
        op = call.op.op
    ins = (*values, *call.ins[len(call.op.views) :])
    scratch = _workspace(trace, op, specs_of(trace, ins), specs_of(trace, call.outs))
    return replace(call, op=op, ins=ins, workspace_bytes=scratch)


def _workspace(trace: Trace, op: Op, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
    return TABLES[trace.device].workspace_bytes(op, ins, outs, trace.threads or 1)
