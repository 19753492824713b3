"""An operation on some rows of larger tensors, without a copy of them.

Each input of an operation is given with the rows of the image to read, together with rows of the
result that exist already; all this becomes one operation. Values lie channels-last, so consecutive
rows of one image are contiguous in memory, and a kernel can be handed a view, for reading and for
writing. So a band reads its rows from the whole image, and its results are written directly after
the rows that the band before has kept. The rows of one input may lie in several values
(`pieces.py`). Read next: `bands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.kernels.driver_table import DriverTable
from ooctrain.rewrite.tile.halo import with_rows
from ooctrain.rewrite.tile.pieces import InPieces, copy_rows
from ooctrain.step.op import Op, Scalars, Spec, require

#: image, first row, end
View = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OnRows(Op):
    """`op` on rows of its inputs; its first output stands between rows that are copied there.

    Reads the inputs of `op`, then the rows above its result, then the rows below it.

    Args:
        op: writes one image.
        views: of each value that it reads the rows; None: all of it.
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
        """Of the operation, on rows."""
        return f"{self.op.name}_on_rows"

    @property
    def computes(self) -> Op:
        """The operation: on some rows it is to planners what it is on all."""
        return self.op.computes

    @property
    def algorithm(self) -> str:
        """Of the convolution that it is, "" if it is not one."""
        return getattr(self.op, "algorithm", "")

    @property
    def scalar_names(self) -> tuple[str, ...]:
        return self.op.scalar_names

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        first, *others = self.op.infer(*self._inner_specs(ins))
        beside = ins[len(self.views) :]
        if not beside:
            return first, *others
        fits = all(spec.shape == with_rows(first.shape, spec.shape[-2]) for spec in beside)
        require(fits, f"{self.name}: rows beside the result do not fit it", first, *beside)
        rows = first.shape[-2] + sum(spec.shape[-2] for spec in beside)
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
        beside = list(arrays[len(self.views) :])
        parts = [*beside[: self.above], first, *beside[self.above :]]
        return np.concatenate(parts, axis=-2) if beside else first, *others

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
        self, table: DriverTable, ins: Sequence[Spec], outs: Sequence[Spec], threads: int
    ) -> int:
        if self.pieces:
            return self._in_pieces(ins).workspace_bytes(table, threads)
        inner = self._inner_specs(ins), self._inner_outs(ins, outs)
        return table.workspace_bytes(self.op, *inner, threads)

    def _run(
        self, table: DriverTable, workers: Any, ins: Sequence[Any], outs: Sequence[Any],
        workspace: Any, scalars: Scalars,
    ) -> None:  # fmt: skip
        beside, own = ins[len(self.views) :], outs
        if beside:
            above, own_rows, below = self._parts_of(outs[0], beside)
            if self.above:
                copy_rows(table, workers, beside[0], above)
            if self.below:
                copy_rows(table, workers, beside[-1], below)
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

    def _parts_of(self, whole: Any, beside: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The rows above the operation's own ones, these, and the rows below."""
        start = beside[0].shape[1] if self.above else 0
        stop = whole.shape[1] - (beside[-1].shape[1] if self.below else 0)
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
        beside = ins[len(self.views) :]
        if not beside:
            return list(outs)
        rows = outs[0].shape[-2] - sum(spec.shape[-2] for spec in beside)
        return [Spec(with_rows(outs[0].shape, rows), outs[0].dtype), *outs[1:]]


def _logical(shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of a physical array's value."""
    if len(shape) != 4:
        return tuple(shape)
    n, h, w, c = shape
    return n, c, h, w
