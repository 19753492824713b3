"""Row bands that compute no row twice: kept rows forward, gathered gradient rows backward.

In: a trace and the calls of it that run in bands. Out: an ordinary trace. The one idea: image after
image, band after band, each call runs over the rows that its frontier gives it. What it reads above
them was made by the bands before; of each tensor the few rows that the next band needs are kept,
cut out at once so that the rest may go, and the next band's own rows are written right beside them.
Backward all comes in descending order: a gradient row is gathered from all rows that it went to,
which are there by then, so no halo is added up and each row is written once. Weight gradients sum
each band's own rows. With `again`, a band's forward calls run once more in backward, from the kept
rows; without, backward reads what forward made, and the planner decides what to keep, to swap, to
run again. Source: ours; docs/tiling.md. Read next: `tests/properties/test_bands.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ooctrain.layers.combine import Concat, Constant
from ooctrain.layers.regions import Insert, Slice
from ooctrain.rewrite.tile.banded_calls import BandedCalls
from ooctrain.rewrite.tile.frontier import Frontier
from ooctrain.rewrite.tile.halo import Span
from ooctrain.rewrite.tile.on_rows import OnRows, View
from ooctrain.rewrite.tile.row_rules import RowPlace, RowsRead
from ooctrain.rewrite.tile.steps import TileCall, Value, add_up, zeros
from ooctrain.rewrite.tile.writer import TraceWriter, positions
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Call, Phase, Trace


def weave_bands(trace: Trace, calls: BandedCalls, again: bool) -> Trace:
    """The trace with these calls replaced by those of their bands.

    Args:
        again: write each band's forward calls into the backward pass once more.

    Cost: O(calls of the trace + bands * these calls).
    """
    writer = TraceWriter(trace)
    weaver = _BandWeaver(trace, calls, writer, again)
    writer.copy(calls.before)
    forward = weaver.forward()
    writer.write(forward.steps)
    writer.copy(calls.between)
    backward = weaver.backward(forward)
    writer.write(backward.steps, wanted=backward.results.values())
    writer.copy(calls.after)
    return writer.finish()


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one image of a tensor, and the value that holds them, from its first row on.

    Args:
        image: of the value; only a tensor that exists as a whole has more than image 0.
    """

    rows: Span
    value: Value
    image: int = 0


@dataclass(slots=True)
class _Pass:
    """What one pass over the bands has made so far.

    Args:
        phase: of its calls.
        mark: part of the names of what is made once more.
        steps: its calls.
        parts: {tensor: rows of it that the band at work can read}.
        kept: {band: {tensor: its rows that this band gets from those that ran before}}.
        made: {(tensor, image): all its bands}.
        wholes: {tensor: the whole that its bands go into}, where somebody outside reads it.
        totals: {gradient: its sum over the bands so far}.
        by_call: {(call, band): its step}.
    """

    phase: Phase
    mark: str = ""
    steps: list[TileCall] = field(default_factory=list)
    parts: dict[int, list[_Part]] = field(default_factory=dict)
    kept: dict[int, dict[int, _Part]] = field(default_factory=dict)
    made: dict[tuple[int, int], list[_Part]] = field(default_factory=dict)
    wholes: dict[int, Value] = field(default_factory=dict)
    totals: dict[int, Value] = field(default_factory=dict)
    by_call: dict[tuple[int, int], TileCall] = field(default_factory=dict)

    @property
    def results(self) -> dict[int, Value]:
        """What others read of it."""
        return self.wholes | self.totals

    def begin(self, band: int) -> None:
        """A band that has nothing yet but what was kept for it."""
        self.parts = {v: [part] for v, part in self.kept.get(band, {}).items()}

    def write(self, name: str, op: Op, ins: tuple[Value, ...], out: Value) -> Value:
        """Adds a step with one output."""
        self.steps.append(TileCall(name, op, ins, (out,), self.phase))
        return out


class _BandWeaver:
    """Makes the steps of the bands, pass by pass; band number image * T + t is band t of an
    image.
    """

    def __init__(self, trace: Trace, calls: BandedCalls, writer: TraceWriter, again: bool) -> None:
        self.trace, self.calls, self.writer, self.again = trace, calls, writer, again
        inside = (*calls.forward, *calls.backward)
        ids = {call.id for call in inside}
        self.inner = {v for call in inside for v in call.outs}
        self.handed_out = set(trace.outputs.values()) | {
            v for v in self.inner if not ids.issuperset(trace.readers[v])
        }
        self.forward_readers = self._readers(calls.forward)
        self.backward_readers = self._readers(calls.backward)
        self.images = trace.variables[calls.forward[0].ins[0]].shape[0]
        self.numbers = range(self.images * calls.bands)

    def _readers(self, calls: Iterable[Call]) -> dict[int, list[tuple[RowsRead, Frontier]]]:
        """For each tensor how these calls read its rows, and over which rows they run."""
        found: dict[int, list[tuple[RowsRead, Frontier]]] = {}
        for call in calls:
            for read, v in zip(self.calls.rules[call.id].reads, call.ins, strict=True):
                if read is not None:
                    found.setdefault(v, []).append((read, self.calls.rows[call.id]))
        return found

    # The two passes

    def forward(self) -> _Pass:
        """All bands in ascending order."""
        run = _Pass("forward")
        for band in self.numbers:
            run.begin(band)
            for call in self.calls.forward:
                self._run_call(run, call, band)
                for v in call.outs:
                    self._keep_for_next(run, v, band)
        self._hand_over(run)
        return run

    def backward(self, forward: _Pass) -> _Pass:
        """All bands in descending order; with `again` each begins with its forward calls."""
        run = _Pass("backward")
        for band in reversed(self.numbers):
            run.begin(band)
            if self.again:
                self._run_again(run, forward, band)
            else:
                image = band // self.calls.bands
                run.parts |= {v: parts for (v, n), parts in forward.made.items() if n == image}
            for call in self.calls.backward:
                assert call.forward_of is not None
                self._run_call(run, call, band, forward.by_call.get((call.forward_of, band)))
                if not self.calls.rules[call.id].reduces:
                    self._keep_for_band_before(run, call.outs[0], band)
        self._hand_over(run)
        return run

    def _run_again(self, run: _Pass, forward: _Pass, band: int) -> None:
        """The forward calls of a band once more, from the rows that were kept for it."""
        once_more = _Pass("backward", ".again", run.steps, run.parts, run.kept)
        for v, part in forward.kept.get(band, {}).items():
            run.parts[v] = [*run.parts.get(v, []), part]
        for call in self.calls.forward:
            self._run_call(once_more, call, band)
            for v in call.outs:
                self._keep_for_band_before(once_more, v, band)

    # One call in one band

    def _run_call(self, run: _Pass, call: Call, band: int, of: TileCall | None = None) -> None:
        rule, frontier = self.calls.rules[call.id], self.calls.rows[call.id]
        image, t = divmod(band, self.calls.bands)
        rows = Span(frontier[t], frontier[t + 1])
        if not rows.extent:
            return
        reads = [
            None if read is None else read.read(rows, self._extent(v))
            for read, v in zip(rule.reads, call.ins, strict=True)
        ]
        if any(read is not None and not read.inside.extent for read in reads):
            if not rule.reduces:
                self._write_zeros(run, call, image, rows)
            return
        above, below = (0, 0) if reads[0] is None else (reads[0].pad_lo, reads[0].pad_hi)
        full = self.trace.variables[call.outs[0]].shape
        op = rule.cut(call.op, RowPlace(image, rows, above, below, full))
        sources = [
            None if read is None else self._source(run, v, image, read.inside)
            for v, read in zip(call.ins, reads, strict=True)
        ]
        step = self._step(run, call, op, image, rows, sources)
        step.of = of
        run.by_call[call.id, band] = step

    def _step(
        self,
        run: _Pass,
        call: Call,
        op: Op,
        image: int,
        rows: Span,
        sources: Sequence[tuple[Value, View | None] | None],
    ) -> TileCall:
        """The call of a band, on views of what it reads, its result beside rows that were kept."""
        reduces = self.calls.rules[call.id].reduces
        beside = [] if reduces else self._beside(run, call.outs[0], rows)
        above = [part for part in beside if part.rows.hi == rows.lo]
        below = [part for part in beside if part.rows.lo == rows.hi]
        values = [
            self.writer.value_of(v) if source is None else source[0]
            for v, source in zip(call.ins, sources, strict=True)
        ]
        views = tuple(None if source is None else source[1] for source in sources)
        reuse = positions(call)
        if beside or any(views):
            op, reuse = OnRows(op, views, bool(above), bool(below)), {}
            values += [part.value for part in (*above, *below)]
        specs = op.infer(*(value.spec for value in values))
        held = [rows] * len(specs)
        for part in beside:
            held[0] = Span(min(held[0].lo, part.rows.lo), max(held[0].hi, part.rows.hi))
        outs = tuple(
            self._value(v, run.mark + self._label(image, span), spec)
            for v, span, spec in zip(call.outs, held, specs, strict=True)
        )
        name = f"{call.name}{run.mark}{self._label(image, rows)}"
        step = TileCall(name, op, tuple(values), outs, run.phase, reuse)
        run.steps.append(step)
        for part in beside:
            run.parts[call.outs[0]].remove(part)
        for v, span, value in zip(call.outs, held, outs, strict=True):
            if reduces:
                add_up(v, value, run.steps, run.totals)
            else:
                self._made(run, v, image, _Part(span, value))
        return step

    def _beside(self, run: _Pass, v: int, rows: Span) -> list[_Part]:
        """Kept rows of a tensor that end or begin where the band's own rows do."""
        if run.phase == "forward" and not self.again:
            return []
        parts = run.parts.get(v, [])
        return [part for part in parts if part.rows.hi == rows.lo or part.rows.lo == rows.hi]

    def _write_zeros(self, run: _Pass, call: Call, image: int, rows: Span) -> None:
        """The gradient of rows that no window lies over."""
        v, label = call.outs[0], self._label(image, rows)
        out = self._value(v, label, self._spec(v, rows))
        run.write(f"{call.name}.fill{label}", Constant(0.0, out.spec.shape), (), out)
        self._made(run, v, image, _Part(rows, out))

    def _made(self, run: _Pass, v: int, image: int, part: _Part) -> None:
        """Notes a band of a tensor; puts it into the whole where somebody outside reads that."""
        run.parts[v] = [*run.parts.get(v, []), part]
        run.made.setdefault((v, image), []).append(part)
        if v not in self.handed_out or run.mark:
            return
        if part.value.spec.shape == self.trace.variables[v].shape:
            run.wholes[v] = part.value
            return
        if v not in run.wholes:
            run.wholes[v], steps = zeros(self.writer.value_of(v))
            run.steps += steps
        whole, label = run.wholes[v], self._label(image, part.rows)
        run.wholes[v] = self._value(v, label.replace("[", "[with ", 1), whole.spec)
        run.steps.append(
            TileCall(
                f"{self.trace.variables[v].name}.insert{label}",
                Insert((image, 0, part.rows.lo, 0)), (whole, part.value), (run.wholes[v],),
                run.phase, reuse={0: 0},
            )
        )  # fmt: skip

    def _hand_over(self, run: _Pass) -> None:
        for v, value in run.results.items():
            self.writer.becomes(v, value)

    # Rows

    def _keep_for_next(self, run: _Pass, v: int, band: int) -> None:
        """Keeps the rows made so far that forward calls of later bands read."""
        image, t = divmod(band, self.calls.bands)
        if t + 1 == self.calls.bands:
            return
        firsts = [
            read.first(rows[t + 1], self._extent(v))
            for read, rows in self.forward_readers.get(v, [])
            if rows[t + 1] < rows[-1]
        ]
        made = self.calls.frontiers[v][t + 1]
        self._keep(run, v, image, Span(min(firsts, default=made), made), band + 1)

    def _keep_for_band_before(self, run: _Pass, v: int, band: int) -> None:
        """Keeps the rows made so far, from the last one up, that backward calls of earlier bands
        read.
        """
        image, t = divmod(band, self.calls.bands)
        stops = [
            read.stop(rows[t], self._extent(v)) for read, rows in self.backward_readers.get(v, [])
        ]
        made = self.calls.frontiers[v][t]
        self._keep(run, v, image, Span(made, max(stops, default=made)), band - 1)

    def _keep(self, run: _Pass, v: int, image: int, rows: Span, band: int) -> None:
        if rows.extent:
            part = _Part(rows, self._cut(run, v, image, rows, "kept"))
            run.kept.setdefault(band, {})[v] = part

    def _source(self, run: _Pass, v: int, image: int, rows: Span) -> tuple[Value, View | None]:
        """A value that holds rows of a tensor, and where in it they are; None: they are all of
        it.
        """
        for part in self._parts(run, v, image):
            if part.rows.lo <= rows.lo and rows.hi <= part.rows.hi:
                if part.rows == rows and part.value.spec.shape[0] == 1:
                    return part.value, None
                if self._can_be_viewed(v, rows.lo - part.rows.lo):
                    return part.value, (part.image, rows.lo - part.rows.lo, rows.hi - part.rows.lo)
        joined = _Part(rows, self._cut(run, v, image, rows, "read"))
        run.parts[v] = [*run.parts.get(v, []), joined] if v in self.inner else [joined]
        return joined.value, None

    def _can_be_viewed(self, v: int, row: int) -> bool:
        """A GPU's kernels want values to begin at whole groups of four elements."""
        _, c, _, w = self.trace.variables[v].shape
        return self.trace.device == "cpu" or row * w * c % 4 == 0

    def _parts(self, run: _Pass, v: int, image: int) -> list[_Part]:
        """What holds rows of a tensor now, in the order of their first rows."""
        if v not in self.inner:
            return [_Part(Span(0, self._extent(v)), self.writer.value_of(v), image)]
        return sorted(run.parts[v], key=_first_row)

    def _cut(self, run: _Pass, v: int, image: int, rows: Span, label: str) -> Value:
        """Rows of a tensor as a value of their own: a slice of a part, or several joined."""
        pieces, start = [], rows.lo
        for part in self._parts(run, v, image):
            if part.rows.lo <= start < part.rows.hi:
                piece = Span(start, min(rows.hi, part.rows.hi))
                if piece.extent:
                    pieces.append(self._slice(run, v, image, part, piece, label))
                    start = piece.hi
        assert start == rows.hi, f"rows {start}:{rows.hi} of {self.trace.variables[v].name!r}"
        if len(pieces) == 1:
            return pieces[0]
        place = self._label(image, rows)
        out = self._value(v, f"{run.mark}.{label}{place}", self._spec(v, rows))
        name = f"{self.trace.variables[v].name}.join{run.mark}{place}"
        return run.write(name, Concat(2), tuple(pieces), out)

    def _slice(self, run: _Pass, v: int, image: int, part: _Part, rows: Span, label: str) -> Value:
        shape = part.value.spec.shape
        if rows == part.rows and shape[0] == 1:
            return part.value
        place = self._label(image, rows)
        out = self._value(v, f"{run.mark}.{label}{place}", self._spec(v, rows))
        op = Slice(shape, (part.image, 0, rows.lo - part.rows.lo, 0), out.spec.shape)
        name = f"{self.trace.variables[v].name}.slice{run.mark}{place}"
        return run.write(name, op, (part.value,), out)

    # Values

    def _extent(self, v: int) -> int:
        return self.trace.variables[v].shape[2]

    def _spec(self, v: int, rows: Span) -> Spec:
        _, c, _, w = self.trace.variables[v].shape
        return Spec((1, c, rows.extent, w), self.trace.variables[v].dtype)

    def _label(self, image: int, rows: Span) -> str:
        """As in names: "[h 4:9]", of several images "[n 1, h 4:9]"."""
        return f"[h {rows}]" if self.images == 1 else f"[n {image}, h {rows}]"

    def _value(self, v: int, mark: str, spec: Spec) -> Value:
        """A value named after a tensor; what is cut out of an input is no input."""
        old = self.trace.variables[v]
        kind = "activation" if old.kind == "input" else old.kind
        return Value(f"{old.name}{mark}", spec, kind)


def _first_row(part: _Part) -> int:
    return part.rows.lo
