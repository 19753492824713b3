"""Row bands that compute no row twice: kept rows forward, gathered gradient rows backward.

In: a trace and the calls of it that run in bands. Out: an ordinary trace. The one idea: band after
band, each call runs over the rows that its frontier gives it. What it reads above them was made by
the bands before; of each tensor the few rows that the next band needs are kept, cut out at once so
that the rest may go. Backward the bands come in descending order: a gradient row is gathered from
all rows that it went to, which are there by then, so no halo is added up and each row is written
once. Weight gradients sum each band's own rows. With `again`, a band's forward calls run once more
in backward, from the kept rows; without, backward reads what forward made, and the planner decides
what to keep, to swap, to run again. Source: ours; docs/tiling.md. Read next:
`tests/properties/test_bands.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ooctrain.layers.combine import Concat, Constant
from ooctrain.layers.regions import Insert, Slice
from ooctrain.rewrite.tile.banded_calls import BandedCalls
from ooctrain.rewrite.tile.frontier import Frontier
from ooctrain.rewrite.tile.halo import Read, Span
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
    weaver = _BandWeaver(trace, calls, writer)
    writer.copy(calls.before)
    forward = weaver.forward()
    writer.write(forward.steps)
    writer.copy(calls.between)
    backward = weaver.backward(forward, again)
    writer.write(backward.steps, wanted=backward.results.values())
    writer.copy(calls.after)
    return writer.finish()


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a tensor."""

    rows: Span
    value: Value


@dataclass(slots=True)
class _Pass:
    """What one pass over the bands has made so far.

    Args:
        phase: of its calls.
        mark: part of the names of what is made once more.
        steps: its calls.
        parts: {tensor: rows of it that the band at work can read}.
        kept: {band: {tensor: its rows that this band gets from those that ran before}}.
        taken: {(tensor, first row, end): a value that holds these rows}.
        made: {tensor: all its bands}.
        wholes: {tensor: the whole that its bands go into}, where somebody outside reads it.
        totals: {gradient: its sum over the bands so far}.
        by_call: {(call, band): its step}.
    """

    phase: Phase
    mark: str = ""
    steps: list[TileCall] = field(default_factory=list)
    parts: dict[int, list[_Part]] = field(default_factory=dict)
    kept: dict[int, dict[int, _Part]] = field(default_factory=dict)
    taken: dict[tuple[int, int, int], Value] = field(default_factory=dict)
    made: dict[int, list[_Part]] = field(default_factory=dict)
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
    """Makes the steps of the bands, pass by pass."""

    def __init__(self, trace: Trace, calls: BandedCalls, writer: TraceWriter) -> None:
        self.trace, self.calls, self.writer = trace, calls, writer
        inside = (*calls.forward, *calls.backward)
        ids = {call.id for call in inside}
        self.inner = {v for call in inside for v in call.outs}
        self.handed_out = set(trace.outputs.values()) | {
            v for v in self.inner if not ids.issuperset(trace.readers[v])
        }
        self.forward_readers = self._readers(calls.forward)
        self.backward_readers = self._readers(calls.backward)

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
        for band in range(self.calls.bands):
            run.begin(band)
            for call in self.calls.forward:
                self._run_call(run, call, band)
                for v in call.outs:
                    self._keep_for_next(run, v, band)
        self._hand_over(run)
        return run

    def backward(self, forward: _Pass, again: bool) -> _Pass:
        """All bands in descending order; `again`: each begins with its forward calls."""
        run = _Pass("backward", taken={} if again else forward.taken)
        for band in reversed(range(self.calls.bands)):
            run.begin(band)
            if again:
                self._run_again(run, forward, band)
            else:
                run.parts |= forward.made
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
        run.taken = once_more.taken

    # One call in one band

    def _run_call(self, run: _Pass, call: Call, band: int, of: TileCall | None = None) -> None:
        rule, frontier = self.calls.rules[call.id], self.calls.rows[call.id]
        rows = Span(frontier[band], frontier[band + 1])
        if not rows.extent:
            return
        reads = [
            None if read is None else read.read(rows, self._extent(v))
            for read, v in zip(rule.reads, call.ins, strict=True)
        ]
        if any(read is not None and not read.inside.extent for read in reads):
            if not rule.reduces:
                self._write_zeros(run, call, rows)
            return
        step = self._step(run, call, rows, reads, of)
        run.by_call[call.id, band] = step
        for v, value in zip(call.outs, step.outs, strict=True):
            if rule.reduces:
                add_up(v, value, run.steps, run.totals)
            else:
                self._made(run, v, _Part(rows, value))

    def _step(
        self, run: _Pass, call: Call, rows: Span, reads: Sequence[Read | None], of: TileCall | None
    ) -> TileCall:
        """The call of a band."""
        ins = tuple(
            self.writer.value_of(v) if read is None else self._take(run, v, read.inside)
            for v, read in zip(call.ins, reads, strict=True)
        )
        above, below = (0, 0) if reads[0] is None else (reads[0].pad_lo, reads[0].pad_hi)
        place = RowPlace(rows, above, below, self.trace.variables[call.outs[0]].shape)
        op = self.calls.rules[call.id].cut(call.op, place)
        specs = op.infer(*(value.spec for value in ins))
        outs = tuple(
            self._value(v, f"{run.mark}[h {rows}]", spec)
            for v, spec in zip(call.outs, specs, strict=True)
        )
        name = f"{call.name}{run.mark}[h {rows}]"
        run.steps.append(TileCall(name, op, ins, outs, run.phase, positions(call), of))
        return run.steps[-1]

    def _write_zeros(self, run: _Pass, call: Call, rows: Span) -> None:
        """The gradient of rows that no window lies over."""
        v = call.outs[0]
        out = self._value(v, f"[h {rows}]", self._spec(v, rows))
        run.write(f"{call.name}.fill[h {rows}]", Constant(0.0, out.spec.shape), (), out)
        self._made(run, v, _Part(rows, out))

    def _made(self, run: _Pass, v: int, part: _Part) -> None:
        """Notes a band of a tensor; puts it into the whole where somebody outside reads that."""
        run.parts[v] = [*run.parts.get(v, []), part]
        run.made.setdefault(v, []).append(part)
        if v not in self.handed_out or run.mark:
            return
        if part.rows.extent == self._extent(v):
            run.wholes[v] = part.value
            return
        if v not in run.wholes:
            run.wholes[v], steps = zeros(self.writer.value_of(v))
            run.steps += steps
        whole, name = run.wholes[v], self.trace.variables[v].name
        run.wholes[v] = self._value(v, f"[with h {part.rows}]", whole.spec)
        run.steps.append(
            TileCall(
                f"{name}.insert[h {part.rows}]", Insert((0, 0, part.rows.lo, 0)),
                (whole, part.value), (run.wholes[v],), run.phase, reuse={0: 0},
            )
        )  # fmt: skip

    def _hand_over(self, run: _Pass) -> None:
        for v, value in run.results.items():
            self.writer.becomes(v, value)

    # Rows

    def _keep_for_next(self, run: _Pass, v: int, band: int) -> None:
        """Keeps the rows made so far that forward calls of later bands read."""
        if band + 1 == self.calls.bands:
            return
        firsts = [
            read.first(rows[band + 1], self._extent(v))
            for read, rows in self.forward_readers.get(v, [])
            if rows[band + 1] < rows[-1]
        ]
        made = self.calls.frontiers[v][band + 1]
        self._keep(run, v, Span(min(firsts, default=made), made), band + 1)

    def _keep_for_band_before(self, run: _Pass, v: int, band: int) -> None:
        """Keeps the rows made so far, from the last one up, that backward calls of earlier bands
        read.
        """
        stops = [
            read.stop(rows[band], self._extent(v))
            for read, rows in self.backward_readers.get(v, [])
        ]
        made = self.calls.frontiers[v][band]
        self._keep(run, v, Span(made, max(stops, default=made)), band - 1)

    def _keep(self, run: _Pass, v: int, rows: Span, band: int) -> None:
        if rows.extent:
            part = _Part(rows, self._cut(run, v, rows, "kept"))
            run.kept.setdefault(band, {})[v] = part

    def _take(self, run: _Pass, v: int, rows: Span) -> Value:
        """Rows of a tensor as one value, which is made once."""
        key = v, rows.lo, rows.hi
        if key not in run.taken:
            run.taken[key] = self._cut(run, v, rows, "read")
        return run.taken[key]

    def _cut(self, run: _Pass, v: int, rows: Span, label: str) -> Value:
        """Rows of a tensor: a part as it is, a slice of one, or several joined."""
        whole = _Part(Span(0, self._extent(v)), self.writer.value_of(v))
        parts = sorted(run.parts[v], key=_first_row) if v in self.inner else [whole]
        pieces = []
        for part in parts:
            shared = Span(max(rows.lo, part.rows.lo), min(rows.hi, part.rows.hi))
            if shared.extent:
                pieces.append(self._slice(run, v, part, shared, label))
        held = sum(piece.spec.shape[2] for piece in pieces)
        assert held == rows.extent, f"{held} of rows {rows} of {self.trace.variables[v].name!r}"
        if len(pieces) == 1:
            return pieces[0]
        out = self._value(v, f"{run.mark}.{label}[h {rows}]", self._spec(v, rows))
        name = f"{self.trace.variables[v].name}.join{run.mark}[h {rows}]"
        return run.write(name, Concat(2), tuple(pieces), out)

    def _slice(self, run: _Pass, v: int, part: _Part, rows: Span, label: str) -> Value:
        if rows == part.rows:
            return part.value
        out = self._value(v, f"{run.mark}.{label}[h {rows}]", self._spec(v, rows))
        op = Slice(part.value.spec.shape, (0, 0, rows.lo - part.rows.lo, 0), out.spec.shape)
        name = f"{self.trace.variables[v].name}.slice{run.mark}[h {rows}]"
        return run.write(name, op, (part.value,), out)

    # Values

    def _extent(self, v: int) -> int:
        return self.trace.variables[v].shape[2]

    def _spec(self, v: int, rows: Span) -> Spec:
        n, c, _, w = self.trace.variables[v].shape
        return Spec((n, c, rows.extent, w), self.trace.variables[v].dtype)

    def _value(self, v: int, mark: str, spec: Spec) -> Value:
        """A value named after a tensor; what is cut out of an input is no input."""
        old = self.trace.variables[v]
        kind = "activation" if old.kind == "input" else old.kind
        return Value(f"{old.name}{mark}", spec, kind)


def _first_row(part: _Part) -> int:
    return part.rows.lo
