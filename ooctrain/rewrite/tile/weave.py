"""The tiled trace: slices, the calls of each tile, inserts, and the same again in backward.

A trace, a segment of it and the spans of the tiles give an ordinary trace in which every output
element belongs to exactly one tile. Forward: cut the tile's inputs out, run its calls, insert its
outputs. Backward (scatter-add): run the tile's pure forward calls again (or let backward read what
forward made, and the planner decide), go backward from its own output gradient, add its part of dX
over the halo, add its dW and db, tile after tile in a fixed order. No activation inside the segment
outlives its tile. Source: paper 003, section 3 and figure 5; its gather rule for gradients needs a
wider halo. Read next: `tests/properties/test_tiled_gradients.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ooctrain.layers.regions import Insert, InsertAdd, Slice
from ooctrain.rewrite.tile.halo import chain_reads, whole_reads
from ooctrain.rewrite.tile.segment import Role, Segment, TiledLayer, VjpCalls, record_vjp
from ooctrain.rewrite.tile.writer import (
    TileCall,
    TraceWriter,
    Value,
    add_up,
    onto,
    positions,
    zeros,
)
from ooctrain.step.op import Op, Spec
from ooctrain.step.rows import Read, Span, TilePlace, Window
from ooctrain.step.trace import Phase, Trace

Region = tuple[Span, Span]


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile: its rows and columns of the target, and what each stage reads for them."""

    target: Region
    reads: tuple[tuple[Read, Read], ...]

    def read_region(self, stage: int) -> Region:
        """Rows and columns of the image that a stage reads."""
        rows, columns = self.reads[stage]
        return rows.inside, columns.inside

    def written_region(self, stage: int) -> Region:
        """Rows and columns that a stage writes."""
        return self.read_region(stage + 1) if stage + 1 < len(self.reads) else self.target


def make_tiles(
    trace: Trace, segment: Segment, rows: Sequence[Span], columns: Sequence[Span]
) -> list[Tile]:
    """All tiles, row by row."""
    height, width = trace.variables[segment.source].shape[2:]
    windows = [stage.windows for stage in segment.stages]
    down = _reads(rows, [w[0] for w in windows], height)
    across = _reads(columns, [w[1] for w in windows], width)
    return [
        Tile((r, c), tuple(zip(row_reads, column_reads, strict=True)))
        for (r, row_reads), (c, column_reads) in itertools.product(down, across)
    ]


def _reads(
    spans: Sequence[Span], windows: Sequence[Window], extent: int
) -> list[tuple[Span, tuple[Read, ...]]]:
    if len(spans) == 1:
        return [(spans[0], whole_reads(windows, extent))]
    return [(span, chain_reads(span, windows, extent)) for span in spans]


def weave(trace: Trace, segment: Segment, tiles: Sequence[Tile], again: bool = True) -> Trace:
    """The trace with the segment's calls replaced by those of its tiles.

    Args:
        again: write each tile's forward calls into the backward pass once more.

    Cost: O(calls of the trace + tiles * calls of the segment).
    """
    return _Weaver(trace, segment, tiles, again).run()


class _Weaver:
    """Copies a trace call by call; the segment is replaced on the way."""

    def __init__(self, trace: Trace, segment: Segment, tiles: Sequence[Tile], again: bool) -> None:
        self.trace, self.segment, self.tiles, self.again = trace, segment, tiles, again
        self.writer = TraceWriter(trace)
        self.forward_steps: list[list[TileCall]] = []  # for each tile, one step per stage
        self.records: dict[Any, VjpCalls] = {}

    def run(self) -> Trace:
        """The new trace."""
        stages = self.segment.stages
        forward_ids = {stage.forward.id for stage in stages}
        backward_ids = {call.id for stage in stages for call in stage.backward}
        first_backward = min(backward_ids, default=-1)
        for call in self.trace.calls:
            if call.id == stages[-1].forward.id:
                self.writer.write(self._forward_steps())
            if call.id == first_backward:
                steps, results = self._backward_steps()
                self.writer.write(steps, wanted=results)
            if call.id not in forward_ids | backward_ids:
                self.writer.copy([call])
        return self.writer.finish()

    # Forward

    def _forward_steps(self) -> list[TileCall]:
        target = self.writer.value_of(self.segment.target)
        whole, steps = zeros(target)
        for tile in self.tiles:
            own, part = self._run_tile(tile, "forward", "")
            self.forward_steps.append(own[-len(self.segment.stages) :])
            steps += own
            steps.append(insertion(Insert, whole, part, tile.target, "forward"))
            whole = steps[-1].outs[0]
        self.writer.becomes(self.segment.target, whole)
        return steps

    def _run_tile(self, tile: Tile, phase: Phase, mark: str) -> tuple[list[TileCall], Value]:
        """Slice and forward calls of a tile; returns them and the tile's part of the target.

        Args:
            phase: "backward" where the calls are run again to compute gradients.
            mark: part of the names of calls and variables, which must differ from those of the
                first run.
        """
        steps: list[TileCall] = []
        image = self._slice(
            self.writer.value_of(self.segment.source), tile.read_region(0), phase, mark, steps
        )
        for i, stage in enumerate(self.segment.stages):
            others = tuple(self.writer.value_of(v) for v in stage.forward.ins[1:])
            op = self._cut(tile, i)
            specs = op.infer(image.spec, *(other.spec for other in others))
            place = label(tile.written_region(i))
            outs = tuple(
                Value(f"{old.name}{mark}{place}", spec, old.kind)
                for old, spec in zip(self._old(stage.forward.outs), specs, strict=True)
            )
            name = f"{stage.forward.name}{mark}{place}"
            steps.append(
                TileCall(name, op, (image, *others), outs, phase, positions(stage.forward))
            )
            image = outs[0]
        return steps, image

    def _slice(
        self, whole: Value, region: Region, phase: Phase, mark: str, steps: list[TileCall]
    ) -> Value:
        start, shape = block(whole.spec, region)
        if shape == whole.spec.shape:
            return whole
        place = label(region)
        part = Value(f"{whole.name}{mark}{place}", Spec(shape, whole.spec.dtype), whole.kind)
        if part.kind == "input":
            part.kind = "activation"  # inputs come from the host; this one is computed
        op = Slice(whole.spec.shape, start, shape)
        steps.append(TileCall(f"{whole.name}.slice{mark}{place}", op, (whole,), (part,), phase))
        return part

    def _cut(self, tile: Tile, stage: int) -> Any:
        forward = self.segment.stages[stage].forward
        rows, columns = tile.reads[stage]
        padding = (rows.pad_lo, rows.pad_hi, columns.pad_lo, columns.pad_hi)
        n, c, h, w = self.trace.variables[forward.ins[0]].shape
        start = rows.inside.lo, columns.inside.lo
        return forward.op.on_tile(TilePlace(padding, start, (n, c, h, w)))

    # Backward

    def _backward_steps(self) -> tuple[list[TileCall], list[Value]]:
        """Backward of all tiles; returns the steps and the gradients that they are for."""
        source_gradient = self.segment.stages[0].gradients.get(self.segment.source)
        steps: list[TileCall] = []
        totals: dict[int, Value] = {}  # gradient in the old trace: its sum over tiles so far
        if source_gradient is not None:
            totals[source_gradient], steps = zeros(self.writer.value_of(source_gradient))
        for tile, forward in zip(self.tiles, self.forward_steps, strict=True):
            made = forward
            if self.again:
                repeated, _ = self._run_tile(tile, "backward", ".again")
                steps += repeated
                made = repeated[-len(forward) :]
            self._differentiate(tile, made, forward, steps, totals)
        for gradient, total in totals.items():
            self.writer.becomes(gradient, total)
        return steps, list(totals.values())

    def _differentiate(
        self,
        tile: Tile,
        made: Sequence[TileCall],
        forward: Sequence[TileCall],
        steps: list[TileCall],
        totals: dict[int, Value],
    ) -> None:
        """Backward calls of one tile, which read what `made` has; each gradient is added to its
        total at once.
        """
        last = self.segment.stages[-1]
        assert last.seed is not None
        seed = self._slice(self.writer.value_of(last.seed), tile.target, "backward", "", steps)
        for i in reversed(range(len(self.segment.stages))):
            stage, place = self.segment.stages[i], label(tile.written_region(i))
            if not stage.backward:
                break  # nothing before it needs a gradient
            calls, roles, results = self._backward_of_stage(stage, place, made[i], forward[i], seed)
            steps += calls
            image, *others = zip(stage.forward.ins, results, strict=True)
            for variable, role in others:
                if role is not None:
                    add_up(stage.gradients[variable], roles[role], steps, totals)
            if image[1] is None:
                continue
            seed = roles[image[1]]
            if i == 0:
                total = totals[stage.gradients[image[0]]]
                steps.append(insertion(InsertAdd, total, seed, tile.read_region(0), "backward"))
                totals[stage.gradients[image[0]]] = steps[-1].outs[0]

    def _backward_of_stage(
        self,
        stage: TiledLayer,
        place: str,
        made: TileCall,
        forward: TileCall,
        seed: Value,
    ) -> tuple[list[TileCall], dict[Role, Value], Sequence[Role | None]]:
        """The backward calls of a stage for one tile, its variables by role, the roles of its
        results."""
        calls: list[TileCall] = []
        record = self._record(stage, made)
        roles: dict[Role, Value] = {("in", i): v for i, v in enumerate(made.ins)}
        roles |= {("out", i): v for i, v in enumerate(made.outs)}
        roles["seed", 0] = seed
        for recorded, call in zip(record.calls, stage.backward, strict=True):
            outs = tuple(
                Value(f"{old.name}{place}", spec, old.kind)
                for old, spec in zip(self._old(call.outs), recorded.specs, strict=True)
            )
            roles |= dict(zip(recorded.outs, outs, strict=True))
            ins = tuple(roles[role] for role in recorded.ins)
            op = _keep_algorithm(recorded.op, call.op)
            name, reuse = f"{call.name}{place}", positions(call)
            calls.append(TileCall(name, op, ins, outs, "backward", reuse, forward))
        return calls, roles, record.results

    def _record(self, stage: TiledLayer, step: TileCall) -> VjpCalls:
        """The backward calls of a tile's operation, kept, since most tiles share their shapes."""
        ins, outs = (tuple(value.spec for value in side) for side in (step.ins, step.outs))
        wanted = tuple(variable in stage.gradients for variable in stage.forward.ins)
        key = (type(step.op), repr(step.op), ins, outs, wanted)
        if key not in self.records:
            self.records[key] = record_vjp(step.op, ins, outs, wanted)
        return self.records[key]

    def _old(self, variables: Iterable[int]) -> list[Any]:
        return [self.trace.variables[v] for v in variables]


def _keep_algorithm(op: Any, original: Any) -> Op:
    """A tile's backward operation with the algorithm of the original one."""
    return replace(op, algorithm=original.algorithm) if hasattr(op, "algorithm") else op


def insertion(
    op: type[Insert] | type[InsertAdd], whole: Value, part: Value, region: Region, phase: Phase
) -> TileCall:
    """The next version of `whole`, on the same storage, with `part` inserted or added."""
    start, _ = block(whole.spec, region)
    base = whole.name.removesuffix(".zero").split("[")[0]
    place = label(region)
    return onto(whole, f"{base}[to {place[1:]}", f"{base}.{op.name}{place}", op(start), part, phase)


def block(whole: Spec, region: Region) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Start and shape of a region of an (N, C, H, W) variable."""
    rows, columns = region
    n, c = whole.shape[:2]
    return (0, 0, rows.lo, columns.lo), (n, c, rows.extent, columns.extent)


def label(region: Region) -> str:
    """How names spell a region: "[h 0:16, w 32:48]"."""
    return f"[h {region[0]}, w {region[1]}]"
