"""Blocks of a tensor: taking one out, putting one in, adding to one, clearing one.

A tensor and the place where a block begins give the block, or the whole tensor with the block
replaced. Slice and insert are each other's gradient. With accumulation they are all that tiling
needs: a tile is a rewrite of the trace, not an instruction of the list. Read next: `layout.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.errors import ShapeError
from ooctrain.step.op import Op, Spec, require, require_float

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
    def of(full: Index, keys: Sequence[slice]) -> Slice:
        """The slice that `x[keys]` means, x of shape `full`, with a key for each axis. Raises
        ShapeError: a step other than 1.
        """
        if any(key.step not in (None, 1) for key in keys):
            raise ShapeError(
                "a tensor takes slices with step 1 only",
                fix="x[0:8] or x[:, :3]; for other steps index the batch in NumPy",
            )
        bounds = [key.indices(extent)[:2] for key, extent in zip(keys, full, strict=True)]
        return Slice(full, tuple(lo for lo, _ in bounds), tuple(hi - lo for lo, hi in bounds))

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


def _region(start: Index, shape: Index) -> tuple[slice, ...]:
    return tuple(slice(a, a + extent) for a, extent in zip(start, shape, strict=True))


def _require_inside(full: Index, start: Index, shape: Index, name: str) -> None:
    fits = len(full) == len(start) == len(shape) and all(
        a >= 0 and b >= 0 and a + b <= extent
        for extent, a, b in zip(full, start, shape, strict=True)
    )
    require(fits, f"{name}: block {shape} at {start} is not inside {full}")
