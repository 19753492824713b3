"""Tiles of rows of a graph that forks or joins, each of which computes its halo again.

The given calls of a trace run tile by tile. A tile is a share of the rows of everything that others
read: of the segment's output forward, of the gradient of its input and of the sums of weight
gradients backward. From there the rows that each call has to write follow from the last call to the
first; where several calls read a tensor, the union of their rows is made: listing 4, on row rules,
so that backward calls take part like forward ones. Backward, the paper's gather, therefore has a
double halo: gradients of the rows that the tile's own gradient gathers, and forward values of the
rows that those read. In exchange each gradient row is made by one call from all its terms, and has
the untiled bits; only weight gradients are sums over tiles.

Source: paper 003, sections 4.2 and 4.3, listing 4, figure 7. Departure: rows alone are cut; chains
are cut in columns too (`weave.py`). Read next: `banded_calls.py`, which finds the calls, and
`bands.py`, which computes no halo twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ooctrain.errors import ConfigError
from ooctrain.layers.regions import Insert
from ooctrain.rewrite.tile.band_rows import BandPass, BandRows, Part
from ooctrain.rewrite.tile.banded_calls import BandedCalls, banded_calls
from ooctrain.rewrite.tile.carried_totals import add_part
from ooctrain.rewrite.tile.halo import row_axis, start_of
from ooctrain.rewrite.tile.on_rows import OnRows
from ooctrain.rewrite.tile.writer import TileCall, TraceWriter, Value, positions, zeros
from ooctrain.step.op import Op
from ooctrain.step.rows import Read, RowPlace, Span
from ooctrain.step.trace import Call, Phase, Trace


@dataclass(slots=True)
class _Demand:
    """What one tile has to compute.

    Args:
        rows: {variable: its rows that are read}.
        runs: {call: rows that it runs over}.
    """

    rows: dict[int, Span] = field(default_factory=dict)
    runs: dict[int, Span] = field(default_factory=dict)

    def add(self, v: int, rows: Span) -> None:
        """Of what several read, the union."""
        known = self.rows.get(v, rows)
        self.rows[v] = Span(min(known.lo, rows.lo), max(known.hi, rows.hi))


def graph_calls(trace: Trace, first: str, last: str) -> BandedCalls:
    """All calls on ways from what `first` reads to `last`, and backward through them.

    Raises:
        ConfigError: one has no row rule, or waits for all rows of another one, as a norm does.
    """
    calls = banded_calls(trace, 1, first, last)
    _check_no_barrier(calls)
    return calls


def weave_graph(trace: Trace, calls: BandedCalls, tiles: int) -> Trace:
    """The trace with these calls replaced by those of their tiles.

    Cost: O(calls of the trace + tiles * these calls).
    """
    writer = TraceWriter(trace)
    weaver = _GraphWeaver(trace, calls, writer, min(tiles, _rows(trace, calls.forward[0].ins[0])))
    writer.copy(calls.before)
    forward = weaver.run("forward")
    writer.write(forward.steps)
    writer.copy(calls.between)
    backward = weaver.run("backward")
    writer.write(backward.steps, wanted=backward.results.values())
    writer.copy(calls.after)
    return writer.finish()


def rows_computed(
    trace: Trace, calls: BandedCalls, tiles: int
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """How many times its rows each call computes: {call: forward}, and what backward runs."""
    weaver = _GraphWeaver(trace, calls, TraceWriter(trace), tiles)
    found: list[dict[int, float]] = []
    for phase in ("forward", "backward"):
        total: dict[int, float] = {}
        for tile in range(tiles):
            for call, rows in weaver.demand(phase, tile).runs.items():
                share = rows.extent / weaver.rows_of(trace.calls[call])
                total[call] = total.get(call, 0.0) + share
        found.append(total)
    return found[0], found[1]


def _check_no_barrier(calls: BandedCalls) -> None:
    sums = {v for c in calls.forward if calls.rules[c.id].reduces for v in c.outs}
    waits = [call for call in calls.forward if not sums.isdisjoint((*call.ins, *call.outs))]
    totals = {v for c in calls.backward if calls.rules[c.id].reduces for v in c.outs}
    waits += [call for call in calls.backward if not totals.isdisjoint(call.ins)]
    if waits:
        raise ConfigError(
            f"{waits[0].name!r} needs all rows of an image at once, and no tile that computes its "
            "halo again has them",
            code="OOC-113",
            fix="bands:16 in place of tile:16x1: bands wait for each other; or freeze the norm",
        )


def _rows(trace: Trace, v: int) -> int:
    shape = trace.variables[v].shape
    return shape[row_axis(shape)]


class _GraphWeaver:
    """Makes the steps of the tiles, image after image; `stored` inner tensors are whole."""

    def __init__(self, trace: Trace, calls: BandedCalls, writer: TraceWriter, tiles: int) -> None:
        self.trace, self.calls, self.writer, self.tiles = trace, calls, writer, tiles
        inside = (*calls.forward, *calls.backward)
        ids = {call.id for call in inside}
        self.inner = {v for call in inside for v in call.outs}
        others = {v for v in self.inner if not ids.issuperset(trace.readers[v])}
        self.handed_out = self.inner & (others | set(trace.outputs.values()))
        self.stored = {v for c in calls.forward for v in c.outs if v in self.handed_out}
        self.images = trace.variables[calls.forward[0].ins[0]].shape[0]

    def run(self, phase: Phase) -> BandPass:
        """All tiles of a pass; backward begins with the forward calls that it reads from."""
        run, backward = BandPass(phase), phase == "backward"
        rows = BandRows(
            self.trace, self.writer, self.inner - (self.stored if backward else set()), self.images
        )
        for image in range(self.images):
            for tile in range(self.tiles):
                run.begin(tile, image)
                runs = self.demand(phase, tile).runs
                for call in self._of(phase):
                    if call.id in runs:
                        run.mark = ".again" if backward and call.phase == "forward" else ""
                        self._write(run, rows, call, image, runs[call.id])
        for v, value in run.results.items():
            self.writer.becomes(v, value)
        return run

    def _of(self, phase: Phase) -> Sequence[Call]:
        forward = self.calls.forward
        return forward if phase == "forward" else (*forward, *self.calls.backward)

    def demand(self, phase: Phase, tile: int) -> _Demand:
        """Which rows the calls of a pass run over for one tile, from the last call to the first."""
        found = _Demand()
        for call in reversed(self._of(phase)):
            outs = [v for v in call.outs if phase == "forward" or v not in self.stored]
            if self.calls.rules[call.id].reduces:
                rows = self._share(self.rows_of(call), tile)
                reads = self._reads(call, rows)
                if not rows.extent or any(read and not read.inside.extent for read in reads):
                    continue  # nothing but padding adds nothing
            else:
                for v in self.handed_out.intersection(outs):
                    if (own := self._share(_rows(self.trace, v), tile)).extent:
                        found.add(v, own)
                asked = [found.rows[v] for v in outs if v in found.rows]
                if not asked:
                    continue
                rows = Span(min(a.lo for a in asked), max(a.hi for a in asked))
                rows, reads = self._that_read(call, rows)
            found.runs[call.id] = rows
            for v, read in zip(call.ins, reads, strict=True):
                if read is not None:
                    found.add(v, read.inside)
        return found

    def _share(self, extent: int, tile: int) -> Span:
        """Rows of a tile, in the same place of each tensor; none in some tiles of short ones."""
        return Span(extent * tile // self.tiles, extent * (tile + 1) // self.tiles)

    def rows_of(self, call: Call) -> int:
        """Over how many rows a call runs untiled: of its output, or of the last that it sums."""
        rule = self.calls.rules[call.id]
        if not rule.reduces:
            return _rows(self.trace, call.outs[0])
        images = [v for v, read in zip(call.ins, rule.reads, strict=True) if read is not None]
        return _rows(self.trace, images[-1])

    def _reads(self, call: Call, rows: Span) -> list[Read | None]:
        return [
            None if read is None else read.read(rows, _rows(self.trace, v))
            for read, v in zip(self.calls.rules[call.id].reads, call.ins, strict=True)
        ]

    def _that_read(self, call: Call, rows: Span) -> tuple[Span, list[Read | None]]:
        """These rows, and if they read nothing but padding, more around them, so that something is
        read: no kernel runs on zero rows.
        """
        most = self.rows_of(call)
        while any(read and read.inside.extent < 1 for read in self._reads(call, rows)):
            if (rows.lo, rows.hi) == (0, most):
                raise ConfigError(
                    f"{call.name!r} reads nothing but padding", code="OOC-113",
                    fix="end the segment before it",
                )  # fmt: skip
            rows = Span(max(rows.lo - 1, 0), min(rows.hi + 1, most))
        return rows, self._reads(call, rows)

    def _write(self, run: BandPass, rows: BandRows, call: Call, image: int, span: Span) -> None:
        """The call of a tile, on views of what it reads."""
        rule, reads = self.calls.rules[call.id], self._reads(call, span)
        above, below = (reads[0].pad_lo, reads[0].pad_hi) if reads[0] else (0, 0)
        full = self.trace.variables[call.outs[0]].shape
        op: Op = rule.cut(RowPlace(image, span, above, below, full))
        sources = [
            rows.source(run, v, image, read.inside)[0] if read else (self.writer.value_of(v), None)
            for v, read in zip(call.ins, reads, strict=True)
        ]
        for i in rule.of_image:
            sources[i] = rows.of_image(run, call.ins[i], image), None
        values, views = (tuple(side) for side in zip(*sources, strict=True))
        reuse = positions(call)
        if any(views):
            op, reuse = OnRows(op, views), {}
        specs = op.infer(*(value.spec for value in values))
        if not rule.reduces and specs[0].shape[-2] != span.extent:
            raise ConfigError(
                f"the row rule of {call.name!r} is wrong: what it reads for rows {span} gives "
                f"{specs[0].shape[-2]} rows",
                code="OOC-113",
                fix="its row_rule; of an operation of your own: window, with_padding",
            )
        label = rows.label(image, span)
        outs = tuple(
            rows.value(v, run.mark + label, spec) for v, spec in zip(call.outs, specs, strict=True)
        )
        step = TileCall(f"{call.name}{run.mark}{label}", op, values, outs, run.phase, reuse)
        run.steps.append(step)
        for v, value in zip(call.outs, outs, strict=True):
            if rule.reduces:
                add_part(run, self.writer, v, value, None if rule.adds_images else image)
            elif not (run.mark and v in self.stored):
                run.parts[v] = [Part(span, value)]
                self._hand_out(run, v, image, Part(span, value), label)

    def _hand_out(self, run: BandPass, v: int, image: int, part: Part, label: str) -> None:
        """Puts the rows of a tile into the whole where a call outside reads that."""
        if v not in self.handed_out:
            return
        if v not in run.wholes:
            run.wholes[v], steps = zeros(self.writer.value_of(v))
            run.steps += steps
        whole = run.wholes[v]
        name = self.trace.variables[v].name
        run.wholes[v] = Value(f"{name}{label.replace('[', '[with ', 1)}", whole.spec, whole.kind)
        op = Insert(start_of(whole.spec.shape, image, part.rows.lo))
        ins, outs = (whole, part.value), (run.wholes[v],)
        run.steps.append(TileCall(f"{name}.insert{label}", op, ins, outs, run.phase, {0: 0}))


def is_graph(trace: Trace, calls: Iterable[Call]) -> bool:
    """Whether some call reads an image that another one than the one before it has written."""
    for one, other in pairwise(calls):
        readers = [r for r in trace.readers[one.outs[0]] if trace.calls[r].phase != "backward"]
        if readers != [other.id] or other.ins[0] != one.outs[0]:
            return True
    return False
