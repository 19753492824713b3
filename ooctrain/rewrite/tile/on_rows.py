"""An operation on some rows of larger tensors, without a copy of them.

Each input of an operation is given with the rows of the image to read, together with rows of the
result that exist already; all this becomes one operation, `OnRows`. Values lie channels-last, so
consecutive rows of one image are contiguous in memory, and a kernel can be handed a view, for
reading and for writing. So a band reads its rows from the whole image, and its results are written
directly after the rows that the band before has kept. The rows of one input may lie in several
values (`InPieces`). Source: ours; docs/tiling.md. Read next: `bands.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ooctrain.layers.combine import Add
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.kernels.kernel_table import KernelTable
from ooctrain.layers.regions import Slice
from ooctrain.rewrite.tile.halo import with_rows
from ooctrain.step.op import Op, Scalars, Spec, physical_shape, require, row_rule_of, whole_lines
from ooctrain.step.rows import AnyRead, RowPlace, RowRule, Span

#: image, first row, end
View = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OnRows(Op):
    """`op` on rows of its inputs; its first output stands between rows that are copied there.

    Reads the inputs of `op`, then the rows above its result, then the rows below it.

    Args:
        op: the operation, which writes one image.
        views: rows to read, for each value; None: all of it.
        above, below: whether there are such rows.
        pieces: for each input of `op` how many values it lies in, one below the other; (): in one.
    """

    op: Op
    views: tuple[View | None, ...]
    above: bool = False
    below: bool = False
    pieces: tuple[int, ...] = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the operation, on rows."""
        return f"{self.op.name}_on_rows"

    @property
    def computes(self) -> Op:
        """The operation: on some rows it is to planners what it is on all."""
        return self.op.computes

    @property
    def algorithm(self) -> str:
        """Algorithm of a convolution; "" for other operations."""
        return getattr(self.op, "algorithm", "")

    @property
    def scalar_names(self) -> tuple[str, ...]:
        return self.op.scalar_names

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        first, *others = self.op.infer(*self._inner_specs(ins))
        around = ins[len(self.views) :]
        if not around:
            return first, *others
        fits = all(spec.shape == with_rows(first.shape, spec.shape[-2]) for spec in around)
        require(fits, f"{self.name}: rows around the result do not fit it", first, *around)
        rows = first.shape[-2] + sum(spec.shape[-2] for spec in around)
        return Spec(with_rows(first.shape, rows), first.dtype), *others

    def reference(self, *arrays, scalars):
        viewed = [
            x if view is None else x[view[0] : view[0] + 1, ..., view[1] : view[2], :]
            for x, view in zip(arrays, self.views, strict=False)
        ]
        inner = [
            parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-2)
            for parts in self._grouped(viewed)
        ]
        first, *others = self.op.reference(*inner, scalars=scalars)
        around = list(arrays[len(self.views) :])
        parts = [*around[: self.above], first, *around[self.above :]]
        return np.concatenate(parts, axis=-2) if around else first, *others

    def flops(self, ins, outs):
        return self.op.flops(self._inner_specs(ins), self._inner_outs(ins, outs))

    def bytes_moved(self, ins, outs):
        moved = self.op.bytes_moved(self._inner_specs(ins), self._inner_outs(ins, outs))
        moved += self._in_pieces(ins).extra_bytes() if self.pieces else 0
        return moved + sum(2 * spec.nbytes for spec in ins[len(self.views) :])

    def workspace_bytes(self, ins: Sequence[Spec], outs: Sequence[Spec], threads: int) -> int:
        """Scratch of the operation on the cpu device."""
        return self._scratch(CPU, ins, outs, threads)

    def cuda_workspace_bytes(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
        """Scratch of the operation on a GPU."""
        return self._scratch(CUDA, ins, outs, 1)

    def cpu(self, pool, ins, outs, workspace, scalars):
        """Writes `outs` from `ins`, physical arrays."""
        self._run(CPU, pool, ins, outs, workspace, scalars)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        """Queues what `cpu` does."""
        self._run(CUDA, launcher, ins, outs, workspace, scalars)

    def _scratch(
        self, table: KernelTable, ins: Sequence[Spec], outs: Sequence[Spec], threads: int
    ) -> int:
        if self.pieces:
            return self._in_pieces(ins).workspace_bytes(table, threads)
        inner = self._inner_specs(ins), self._inner_outs(ins, outs)
        return table.workspace_bytes(self.op, *inner, threads)

    def _run(
        self, table: KernelTable, workers: Any, ins: Sequence[Any], outs: Sequence[Any],
        workspace: Any, scalars: Scalars,
    ) -> None:  # fmt: skip
        around, own = ins[len(self.views) :], outs
        if around:
            above, own_rows, below = self._parts_of(outs[0], around)
            if self.above:
                copy_rows(table, workers, around[0], above)
            if self.below:
                copy_rows(table, workers, around[-1], below)
            own = [own_rows, *outs[1:]]
        inner = [
            x if view is None else x[view[0] : view[0] + 1, view[1] : view[2]]
            for x, view in zip(ins, self.views, strict=False)
        ]
        if not self.pieces:
            table.run(self.op, workers, inner, own, workspace, scalars)
            return
        specs = [Spec(_logical(x.shape), x.dtype.name) for x in ins]
        pieces = self._in_pieces(specs)
        pieces.compute(table, workers, self._grouped(inner), own, workspace, scalars)

    def _parts_of(self, whole: Any, around: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The rows above the operation's own ones, these, and the rows below."""
        start = around[0].shape[1] if self.above else 0
        stop = whole.shape[1] - (around[-1].shape[1] if self.below else 0)
        return whole[:, :start], whole[:, start:stop], whole[:, stop:]

    def _in_pieces(self, ins: Sequence[Spec]) -> InPieces:
        heights = [
            tuple(spec.shape[-2] for spec in parts) if len(parts[0].shape) > 2 else ()
            for parts in self._grouped(self._viewed_specs(ins))
        ]
        return InPieces(self.op, tuple(self._inner_specs(ins)), tuple(heights))

    def _grouped(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """The values in which each input of the operation lies."""
        ends = list(accumulate(self.pieces or (1,) * len(self.views)))
        return [values[lo:hi] for lo, hi in pairwise([0, *ends])]

    def _viewed_specs(self, ins: Sequence[Spec]) -> list[Spec]:
        """What it reads of each value."""
        return [
            spec if view is None else Spec(with_rows(spec.shape, view[2] - view[1]), spec.dtype)
            for spec, view in zip(ins, self.views, strict=False)
        ]

    def _inner_specs(self, ins: Sequence[Spec]) -> list[Spec]:
        """What the operation reads."""
        found = []
        for first, *others in self._grouped(self._viewed_specs(ins)):
            if others:
                rows = first.shape[-2] + sum(spec.shape[-2] for spec in others)
                fits = all(spec.shape == with_rows(first.shape, spec.shape[-2]) for spec in others)
                require(fits, f"{self.name}: pieces do not fit each other", first, *others)
                first = Spec(with_rows(first.shape, rows), first.dtype)
            found.append(first)
        return found

    def _inner_outs(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> list[Spec]:
        """What the operation writes."""
        around = ins[len(self.views) :]
        if not around:
            return list(outs)
        rows = outs[0].shape[-2] - sum(spec.shape[-2] for spec in around)
        return [Spec(with_rows(outs[0].shape, rows), outs[0].dtype), *outs[1:]]


def _logical(shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of a physical array's value."""
    if len(shape) != 4:
        return tuple(shape)
    n, h, w, c = shape
    return n, c, h, w


# Inputs that lie in several values, one below the other, with almost no copies. The operation's row
# rule is applied once more inside the call. Rows of the result whose windows lie in one piece of
# each input are computed from views of these pieces; only where windows cross a border between two
# pieces are these few rows copied together in the call's workspace. So kept rows and own rows, or
# blocks that were cut elsewhere, need not become one value first.


#: Heights of the pieces of one input, from the top.
Heights = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows that the kernels compute at once.

    Args:
        op: the operation, cut to them.
        rows: rows of the whole result; where it sums over rows, those that it sums.
        reads: for each input its rows; None: all of it, whatever it is.
        copied: for each input whether these rows lie in several pieces.
    """

    op: Op
    rows: Span
    reads: tuple[Span | None, ...]
    copied: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class InPieces:
    """An operation over inputs that lie in pieces.

    Args:
        op: the operation, which writes one image.
        ins: shapes of its inputs, as if each lay in one piece.
        heights: those of the pieces of each input; () where it is taken as it is.
    """

    op: Op
    ins: tuple[Spec, ...]
    heights: tuple[Heights, ...]

    @property
    def outs(self) -> tuple[Spec, ...]:
        """Shapes of its results."""
        return self.op.infer(*self.ins)

    @property
    def rule(self) -> RowRule | None:
        """Its row rule; None: it reads all rows at once, as a sum that is carried on does."""
        return row_rule_of(self.op, self.ins)

    @property
    def reduces(self) -> bool:
        """Whether its result has no rows."""
        return self.rule is None or self.rule.reduces

    def runs(self) -> tuple[RowRun, ...]:
        """The rows in parts, such that as few as possible are copied."""
        return _runs(self)

    def _apart_or_at_once(self) -> tuple[RowRun, ...]:
        """The rows in parts, such that as few as possible are copied.

        All at once where that copies no more: where pieces are as thin as halos, or where a sum
        over rows is so large that adding parts of it up costs more than to copy what it reads.
        """
        rule = self.rule
        if rule is None:
            return (self._copied_whole(),)
        everything = self._run(rule, Span(0, self._extent(rule)))
        apart = [self._run(rule, Span(*ends)) for ends in pairwise(self._cuts(rule))]
        empty = any(span is not None and not span.extent for run in apart for span in run.reads)
        if empty or self._cost(apart) >= self._cost([everything]):
            return (everything,)
        return tuple(apart)

    def extra_bytes(self) -> int:
        """Bytes read and written besides those of the operation."""
        return self._cost(self.runs())

    def workspace_bytes(self, table: KernelTable, threads: int) -> int:
        """Scratch of the kernels, rows that are copied, and a part of a sum."""
        runs, outs = self.runs(), self.outs
        partial = sum(whole_lines(spec.nbytes) for spec in outs) if self.reduces else 0
        return (
            max(whole_lines(self._scratch(run, table, threads)) for run in runs)
            + max(sum(map(whole_lines, self._copies(run))) for run in runs)
            + (partial if len(runs) > 1 else 0)
        )

    def compute(
        self, table: KernelTable, workers: Any, ins: Sequence[Sequence[Any]], outs: Sequence[Any],
        workspace: Any, scalars: Scalars,
    ) -> None:  # fmt: skip
        """Writes `outs`, physical arrays, from the pieces of each input."""
        reduces = self.reduces
        for number, run in enumerate(self.runs()):
            space = _Space(workspace)
            arrays = [
                parts[0] if span is None else _rows(table, workers, parts, span, space)
                for parts, span in zip(ins, run.reads, strict=True)
            ]
            written = outs if reduces else [out[:, run.rows.lo : run.rows.hi] for out in outs]
            if reduces and number:
                written = [space.take(spec) for spec in self.outs]
            table.run(run.op, workers, arrays, written, space.rest, scalars)
            for total, part in zip(outs if reduces and number else (), written, strict=False):
                table.run(Add(), workers, [total, part], [total], None, {})

    def _extent(self, rule: RowRule) -> int:
        """Over how many rows the operation runs."""
        if not rule.reduces:
            return self.outs[0].shape[-2]
        read = [s for s, r in zip(self.ins, rule.reads, strict=True) if r is not None]
        return read[-1].shape[-2]

    def _cuts(self, rule: RowRule) -> list[int]:
        """Before which rows a run begins: the first that reads beyond a border between two pieces,
        and the first that reads nothing above it.
        """
        extent = self._extent(rule)
        found = {0, extent}
        for read, spec, heights in zip(rule.reads, self.ins, self.heights, strict=True):
            for border in list(accumulate(heights))[:-1] if read is not None else ():
                assert read is not None
                found |= {
                    _first_row(read, spec.shape[-2], extent, lambda span, b=border: span.hi > b),
                    _first_row(read, spec.shape[-2], extent, lambda span, b=border: span.lo >= b),
                }
        return sorted(found)

    def _run(self, rule: RowRule, rows: Span) -> RowRun:
        reads = [
            None if read is None else read.read(rows, spec.shape[-2])
            for read, spec in zip(rule.reads, self.ins, strict=True)
        ]
        above, below = (0, 0) if reads[0] is None else (reads[0].pad_lo, reads[0].pad_hi)
        spans = tuple(None if read is None else read.inside for read in reads)
        copied = tuple(
            span is not None and len(_overlaps(heights, span)) > 1
            for span, heights in zip(spans, self.heights, strict=True)
        )
        op = rule.cut(RowPlace(0, rows, above, below, self.outs[0].shape))
        return RowRun(op, rows, spans, copied)

    def _copied_whole(self) -> RowRun:
        """All rows, the pieces of each input put together."""
        reads = tuple(Span(0, sum(heights)) if heights else None for heights in self.heights)
        copied = tuple(len(heights) > 1 for heights in self.heights)
        return RowRun(self.op, Span(0, max(map(sum, self.heights))), reads, copied)

    def _copies(self, run: RowRun) -> list[int]:
        """Bytes of the rows of each input that are copied."""
        return [
            _of_rows(spec, span).nbytes
            for spec, span, copied in zip(self.ins, run.reads, run.copied, strict=True)
            if copied and span is not None
        ]

    def _cost(self, runs: Sequence[RowRun]) -> int:
        """Copies are read and written; a part of a sum is read, and the sum is, and written."""
        sums = 3 * (len(runs) - 1) * sum(s.nbytes for s in self.outs) if self.reduces else 0
        return sums + sum(2 * size for run in runs for size in self._copies(run))

    def _scratch(self, run: RowRun, table: KernelTable, threads: int) -> int:
        ins = [
            spec if span is None else _of_rows(spec, span)
            for spec, span in zip(self.ins, run.reads, strict=True)
        ]
        outs = list(self.outs)
        if not self.reduces:
            outs = [_of_rows(spec, run.rows) for spec in outs]
        return table.workspace_bytes(run.op, ins, outs, threads)


class _Space:
    """A workspace that is handed out from its end; the kernels get what is left."""

    def __init__(self, workspace: Any) -> None:
        self._workspace = workspace
        self._end = workspace.size

    def take(self, spec: Spec) -> Any:
        """An array, physical."""
        self._end -= whole_lines(spec.nbytes)
        flat = self._workspace[self._end : self._end + spec.nbytes]
        return flat.view(np.dtype(spec.dtype)).reshape(physical_shape(spec.shape))

    @property
    def rest(self) -> Any:
        """What lies before all that was taken."""
        return self._workspace[: self._end]


@lru_cache(maxsize=4096)
def _runs(pieces: InPieces) -> tuple[RowRun, ...]:
    """Kept, since each step asks for them again."""
    return pieces._apart_or_at_once()


def _rows(table: KernelTable, workers: Any, parts: Sequence[Any], span: Span, space: _Space) -> Any:
    """Rows of an input: a view of one piece, or a copy of what lies in several."""
    overlaps = _overlaps(tuple(part.shape[1] for part in parts), span)
    views = [parts[i][:, lo:hi] for i, lo, hi in overlaps]
    if len(views) == 1:
        return views[0]
    n, _, w, c = parts[0].shape
    together = space.take(Spec((n, c, span.extent, w), parts[0].dtype.name))
    start = 0
    for view in views:
        copy_rows(table, workers, view, together[:, start : start + view.shape[1]])
        start += view.shape[1]
    return together


def _overlaps(heights: Heights, span: Span) -> list[tuple[int, int, int]]:
    """(piece, first row in it, end) of the pieces in which rows lie."""
    ends = accumulate(heights)
    found = [
        (i, max(span.lo - (end - height), 0), min(span.hi - (end - height), height))
        for i, (end, height) in enumerate(zip(ends, heights, strict=True))
    ]
    return [(i, lo, hi) for i, lo, hi in found if lo < hi]


def _first_row(read: AnyRead, extent: int, rows: int, holds: Any) -> int:
    """The first of `rows` rows for whose reads something holds that then holds for all later ones;
    `rows` where it holds for none.
    """
    return bisect_left(
        range(rows), True, key=lambda row: holds(read.read(Span(row, row + 1), extent).inside)
    )


def _of_rows(spec: Spec, rows: Span) -> Spec:
    return Spec(with_rows(spec.shape, rows.extent), spec.dtype)


def copy_rows(table: KernelTable, workers: Any, rows: Any, place: Any) -> None:
    """place = rows, by the kernel that takes blocks out of a tensor."""
    n, h, w, c = rows.shape
    block = Slice((n, c, h, w), (0, 0, 0, 0), (n, c, h, w))
    table.run(block, workers, [rows], [place], None, {})
