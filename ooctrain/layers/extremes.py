"""The largest element along axes, and where it is.

Axes and memory are as in `reduction.py`: one call looks along axes that lie side by side, and
leaves them with extent 1. Two gradients are in use, and both are PyTorch's: of `amax` equal ones
share it evenly, of `max` along an axis the first one has it. The smallest element is that of the
negative numbers. Read next: `softmax.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.reduction import Index, Sum
from ooctrain.step.op import Op, Spec, physical_shape, require, to_logical, to_physical
from ooctrain.step.trace import Kind


@dataclass(frozen=True, slots=True)
class MaxAlong(Op):
    """y = the largest element of x over `axes`, and its place among them, in memory order.

    NaN is larger than any number.

    Args:
        axes: as of `Sum`.
        ties: "first": the first of equal ones has the gradient; "even": all have a share.
    """

    axes: Index
    ties: Literal["first", "even"] = "first"
    name: ClassVar[str] = "largest"
    out_names: ClassVar[tuple[str, ...]] = ("out", "index")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("activation", "aux")

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        (y,) = Sum(self.axes).infer(x)
        require(x.size > 0, "largest: there is no element", x)
        return y, Spec(y.shape, "int64")

    def reference(self, x, scalars):
        rows = to_physical(x).reshape(self.extents(x.shape))
        shape = physical_shape(Sum(self.axes).infer(Spec(x.shape))[0].shape)
        y, index = rows.max(axis=1), rows.argmax(axis=1)
        return to_logical(y.reshape(shape)), to_logical(index.reshape(shape))

    def vjp(self, tape, ins, outs, grads):
        (x,), (y, index), dy = ins, outs, grads[0]
        if self.ties == "first":
            return tape.call(MaxAlongGrad(self.axes, x.shape), (dy, index), of=ins)
        if not x.requires_grad:
            return [None]
        equal = tape.gradient(Arithmetic("equal"), (x, y), of=x)
        count = tape.gradient(Sum(self.axes), (equal,), of=x)
        share = tape.gradient(Arithmetic("divide"), (dy, count), of=x)
        return tape.call(Arithmetic("multiply"), (equal, share), of=ins)

    def flops(self, ins, outs):
        return ins[0].size

    def extents(self, shape: Index) -> tuple[int, int, int]:
        """(outer, rows, inner) of an input of a logical shape, in memory."""
        return Sum(self.axes).extents(shape)

    def samples_apart(self, read, ins, outs, count):
        return 0 not in self.axes


@dataclass(frozen=True, slots=True)
class MaxAlongGrad(Op):
    """dx = dy where the largest element was, else 0. Reads (dy, index).

    Args:
        shape: shape of x.
    """

    axes: Index
    shape: Index
    name: ClassVar[str] = "largest_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, dy: Spec, index: Spec) -> tuple[Spec, ...]:
        require(dy.shape == index.shape, "largest: gradient and places differ in shape", dy, index)
        (y,) = Sum(self.axes).infer(Spec(self.shape, dy.dtype))
        require(dy.shape == y.shape, f"largest: made for shape {self.shape}", dy)
        return (Spec(self.shape, dy.dtype),)

    def reference(self, dy, index, scalars):
        outer, rows, inner = self.extents(self.shape)
        where = to_physical(index).reshape(outer, 1, inner) == np.arange(rows)[:, None]
        dx = np.where(where, to_physical(dy).reshape(outer, 1, inner), dy.dtype.type(0))
        return (to_logical(dx.reshape(physical_shape(self.shape))),)

    def flops(self, ins, outs):
        return 0

    def extents(self, shape: Index) -> tuple[int, int, int]:
        """(outer, rows, inner) in memory."""
        return Sum(self.axes).extents(shape)
