"""Blocks of a tensor: taking one out, putting one in, adding to one, clearing one; steps.

A tensor and the place where a block begins give the block, or the whole tensor with the block
replaced. Slice and insert are each other's gradient. With accumulation they are all that tiling
needs: a tile is a rewrite of the trace, not an instruction of the list. With steps, also backwards,
blocks have operations of their own, which tiling never makes. Read next: `layout.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.errors import ShapeError
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.rows import RowPlace, RowRule, RowsRead, Window

Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice(Op):
    """y = the block of `shape` that begins at `start`.

    Args:
        full: shape of the input (part of the operation, so that its gradient knows it).
        start: first index along each axis.
        shape: shape of the block.
    """

    full: Index
    start: Index
    shape: Index
    name: ClassVar[str] = "slice"

    @staticmethod
    def of(full: Index, keys: Sequence[slice]) -> Slice | StridedSlice:
        """The slice that `x[keys]` means, x of shape `full`. Raises ShapeError for other keys."""
        fits = len(keys) <= len(full) and all(
            isinstance(key, slice) and (key.step is None or key.step >= 1) for key in keys
        )
        if not fits:
            raise ShapeError(
                "a tensor takes slices with steps of 1 and more",
                fix="x[0:8] or x[:, ::2]; x.flip(0) is x backwards",
            )
        whole = [slice(None)] * (len(full) - len(keys))
        ranges = [
            range(*key.indices(extent)) for key, extent in zip((*keys, *whole), full, strict=True)
        ]
        start, steps = tuple(r.start for r in ranges), tuple(r.step for r in ranges)
        shape = tuple(len(r) for r in ranges)
        if all(step == 1 or extent <= 1 for step, extent in zip(steps, shape, strict=True)):
            return Slice(full, start, shape)
        return StridedSlice(full, start, steps, shape)

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require(x.shape == self.full, f"slice: made for shape {self.full}", x)
        _require_inside(self.full, self.start, self.shape, "slice")
        return (Spec(self.shape, x.dtype),)

    def reference(self, x, scalars):
        return (x[_region(self.start, self.shape)].copy(),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(Embed(self.full, self.start), grads, of=ins)

    def flops(self, ins, outs):
        return 0

    def bytes_moved(self, ins, outs):
        return 2 * outs[0].nbytes

    def row_rule(self, ins):
        # The gradient of a padding, row r is row r + start; or of a concatenation, some channels.
        if len(self.full) != 4 or self.full[0] != self.shape[0]:
            return None
        return RowRule((RowsRead(Window(pad_lo=-self.start[2])),), self._on_rows)

    def _on_rows(self, place: RowPlace) -> Slice:
        (_, c, _, w), (_, k, _, v), rows = self.full, self.shape, place.rows.extent
        return Slice((1, c, rows, w), (0, self.start[1], 0, self.start[3]), (1, k, rows, v))

    def samples_apart(self, read, ins, outs, count):
        return same_first_axis(*ins, *outs)


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """y = 0 everywhere but for the block at `start`, which is x: the gradient of a slice."""

    full: Index
    start: Index
    name: ClassVar[str] = "embed"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        _require_inside(self.full, self.start, x.shape, "embed")
        return (Spec(self.full, x.dtype),)

    def reference(self, x, scalars):
        y = np.zeros(self.full, x.dtype)
        y[_region(self.start, x.shape)] = x
        return (y,)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(Slice(self.full, self.start, ins[0].shape), grads, of=ins)

    def flops(self, ins, outs):
        return 0

    def samples_apart(self, read, ins, outs, count):
        return same_first_axis(*ins, *outs)


@dataclass(frozen=True, slots=True)
class Insert(Op):
    """y = x with the block at `start` replaced by `part`. Reads (x, part); y may overwrite x."""

    start: Index
    name: ClassVar[str] = "insert"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    def infer(self, x: Spec, part: Spec) -> tuple[Spec, ...]:
        _require_inside(x.shape, self.start, part.shape, "insert")
        return (x,)

    def reference(self, x, part, scalars):
        y = x.copy()
        y[_region(self.start, part.shape)] = part
        return (y,)

    def vjp(self, tape, ins, outs, grads):
        x, part = ins
        (dy,) = grads
        dx = tape.gradient(Clear(self.start, part.shape), (dy,), of=x)
        return dx, tape.call(Slice(x.shape, self.start, part.shape), (dy,), of=(part,))[0]

    def flops(self, ins, outs):
        return 0

    def samples_apart(self, read, ins, outs, count):
        return same_first_axis(*ins, *outs)


@dataclass(frozen=True, slots=True)
class InsertAdd(Op):
    """y = x with `part` added to the block at `start`. Reads (x, part); y may overwrite x."""

    start: Index
    name: ClassVar[str] = "insert_add"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    def infer(self, x: Spec, part: Spec) -> tuple[Spec, ...]:
        require_float(self, x, part)
        _require_inside(x.shape, self.start, part.shape, "insert_add")
        return (x,)

    def reference(self, x, part, scalars):
        y = x.copy()
        y[_region(self.start, part.shape)] += part
        return (y,)

    def vjp(self, tape, ins, outs, grads):
        x, part = ins
        (dy,) = grads
        return dy, tape.call(Slice(x.shape, self.start, part.shape), (dy,), of=(part,))[0]

    def flops(self, ins, outs):
        return ins[1].size


@dataclass(frozen=True, slots=True)
class Clear(Op):
    """y = x with the block of `shape` at `start` set to 0: the gradient of an insert's whole."""

    start: Index
    shape: Index
    name: ClassVar[str] = "clear"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        _require_inside(x.shape, self.start, self.shape, "clear")
        return (x,)

    def reference(self, x, scalars):
        y = x.copy()
        y[_region(self.start, self.shape)] = 0
        return (y,)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(self, grads, of=ins)


# With a step along each axis. A step below 0 goes backwards, which flips an axis.


@dataclass(frozen=True, slots=True)
class StridedSlice(Op):
    """y = the elements at start, start + step, start + 2 step, ... along each axis.

    Args:
        full: shape of the input.
        start, steps: first index and step along each axis; no step is 0.
        shape: shape of the output.
    """

    full: Index
    start: Index
    steps: Index
    shape: Index
    name: ClassVar[str] = "strided_slice"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(x.shape == self.full, f"strided_slice: made for shape {self.full}", x)
        _require_places(self.full, self.start, self.steps, self.shape, "strided_slice")
        return (Spec(self.shape, x.dtype),)

    def reference(self, x, scalars):
        return (x[_places(self.start, self.steps, self.shape)],)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(StridedEmbed(self.full, self.start, self.steps), grads, of=ins)

    def flops(self, ins, outs):
        return 0

    def bytes_moved(self, ins, outs):
        return 2 * outs[0].nbytes

    def samples_apart(self, read, ins, outs, count):
        return self.steps[0] == 1 and same_first_axis(*ins, *outs)


@dataclass(frozen=True, slots=True)
class StridedEmbed(Op):
    """y = 0 but where a strided slice reads, which is x: its gradient."""

    full: Index
    start: Index
    steps: Index
    name: ClassVar[str] = "strided_embed"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        _require_places(self.full, self.start, self.steps, x.shape, "strided_embed")
        return (Spec(self.full, x.dtype),)

    def reference(self, x, scalars):
        y = np.zeros(self.full, x.dtype)
        y[_places(self.start, self.steps, x.shape)] = x
        return (y,)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(
            StridedSlice(self.full, self.start, self.steps, ins[0].shape), grads, of=ins
        )

    def flops(self, ins, outs):
        return 0

    def samples_apart(self, read, ins, outs, count):
        return self.steps[0] == 1 and same_first_axis(*ins, *outs)


def _places(start: Index, steps: Index, shape: Index) -> tuple[np.ndarray, ...]:
    axes = zip(start, steps, shape, strict=True)
    return np.ix_(*(a + step * np.arange(extent) for a, step, extent in axes))


def _require_places(full: Index, start: Index, steps: Index, shape: Index, name: str) -> None:
    fits = len(full) == len(start) == len(steps) == len(shape) and all(
        step and n > 0 and 0 <= a < extent and 0 <= a + (n - 1) * step < extent
        for extent, a, step, n in zip(full, start, steps, shape, strict=True)
    )
    require(fits, f"{name}: {shape} from {start} by {steps} is not inside {full}")


def same_first_axis(*shapes: Index) -> bool:
    """Whether all have the same first extent, that of samples."""
    return len({shape[0] for shape in shapes}) == 1


def _region(start: Index, shape: Index) -> tuple[slice, ...]:
    return tuple(slice(a, a + extent) for a, extent in zip(start, shape, strict=True))


def _require_inside(full: Index, start: Index, shape: Index, name: str) -> None:
    fits = len(full) == len(start) == len(shape) and all(
        a >= 0 and b >= 0 and a + b <= extent
        for extent, a, b in zip(full, start, shape, strict=True)
    )
    require(fits, f"{name}: block {shape} at {start} is not inside {full}")
