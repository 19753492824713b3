"""Operations that combine values: sums, multiples, constants, concatenation.

They make one tensor from tensors of fitting shapes. The gradient of a sum is the *same* value for
all its terms (paper 004, section 4.2), so `Add.vjp` passes the one gradient to both sides and
records no call. Read next: `regions.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.layers.regions import Slice
from ooctrain.layers.relu import Pointwise, ReLUGrad, where_positive
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.rows import SAME, RowRule
from ooctrain.step.trace import Kind


@dataclass(frozen=True, slots=True)
class Add(Pointwise):
    """y = a + b, or max(a + b, 0) with `relu` (set by the fusing rewrite). No broadcasting."""

    relu: bool = False
    name: ClassVar[str] = "add"

    def infer(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        require_float(self, a, b)
        require(a.shape == b.shape, "add: both sides must have the same shape", a, b)
        return (a,)

    def reference(self, a, b, scalars):
        total = a + b
        return (np.where(total < 0, total.dtype.type(0), total) if self.relu else total,)

    def vjp(self, tape, ins, outs, grads):
        (dy,) = grads
        if self.relu:
            (dy,) = tape.call(ReLUGrad(), (dy, outs[0]), of=ins[:1])
        return dy, dy


@dataclass(frozen=True, slots=True)
class AddMasked(Pointwise):
    """out = a + (dy where y > 0, else 0): the sum of two gradients, one of which comes through a
    ReLU.
    """

    name: ClassVar[str] = "add_masked"

    def infer(self, a: Spec, dy: Spec, y: Spec) -> tuple[Spec, ...]:
        require(a.shape == dy.shape == y.shape, "add_masked: shapes differ", a, dy, y)
        return (a,)

    def reference(self, a, dy, y, scalars):
        return (a + where_positive(y, dy),)

    def flops(self, ins, outs):
        return 2 * outs[0].size


@dataclass(frozen=True, slots=True)
class Scale(Pointwise):
    """y = factor * x."""

    factor: float
    name: ClassVar[str] = "scale"

    def reference(self, x, scalars):
        return (x * x.dtype.type(self.factor),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(Scale(self.factor), grads, of=ins)


@dataclass(frozen=True, slots=True)
class Constant(Op):
    """One value everywhere: the gradient of a loss, the weights of a norm that has none."""

    value: float
    shape: tuple[int, ...]
    name: ClassVar[str] = "constant"
    verb: ClassVar[str] = "fill"
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)
    patchwise: ClassVar[bool] = True

    def infer(self) -> tuple[Spec, ...]:
        return (Spec(self.shape),)

    def reference(self, scalars):
        return (np.full(self.shape, self.value),)


@dataclass(frozen=True, slots=True)
class Concat(Op):
    """y = all inputs one after the other along an axis."""

    axis: int = 1
    name: ClassVar[str] = "concat"
    untiled: ClassVar[str] = "it joins several tensors"

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        require(bool(ins), "concat: nothing to join")
        same = len({spec.dtype for spec in ins}) == 1
        require(same, "concat: all inputs must have the same element type", *ins)
        first = ins[0].shape
        require(0 <= self.axis < len(first), f"concat: no axis {self.axis}", ins[0])
        for spec in ins:
            fits = len(spec.shape) == len(first) and all(
                a == b or i == self.axis
                for i, (a, b) in enumerate(zip(first, spec.shape, strict=True))
            )
            require(fits, f"concat: shapes may differ along axis {self.axis} only", *ins)
        joined = sum(spec.shape[self.axis] for spec in ins)
        return (Spec((*first[: self.axis], joined, *first[self.axis + 1 :]), ins[0].dtype),)

    def reference(self, *arrays, scalars):
        return (np.concatenate(arrays, self.axis),)

    def vjp(self, tape, ins, outs, grads):
        starts = self.starts([x.shape[self.axis] for x in ins])
        parts = [
            Slice(outs[0].shape, self.at(x.ndim, start), x.shape)
            for x, start in zip(ins, starts, strict=True)
        ]
        return [tape.gradient(part, grads, of=x) for part, x in zip(parts, ins, strict=True)]

    def flops(self, ins, outs):
        return 0

    def starts(self, extents: Sequence[int]) -> list[int]:
        """Where along the axis each input lies in the output."""
        return [sum(extents[:i]) for i in range(len(extents))]

    def at(self, ndim: int, start: int) -> tuple[int, ...]:
        """`start` along the axis, as an index."""
        return tuple(start if axis == self.axis else 0 for axis in range(ndim))

    def row_rule(self, ins):
        return RowRule((SAME,) * len(ins), lambda place: self) if self.axis == 1 else None

    def samples_apart(self, read, ins, outs, count):
        return self.axis != 0
