"""Operations that bring values together: sums, multiples, constants, concatenation.

In: tensors of fitting shapes. Out: one tensor. The one idea: the gradient of a sum is the *same*
value for all its terms (paper 004, section 4.2): `Add.vjp` hands the one gradient to both sides and
records no call at all. Read next: `regions.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.layers.regions import Slice
from ooctrain.layers.relu import POINTWISE, ReLUGrad, where_positive
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.trace import Kind


@dataclass(frozen=True, slots=True)
class Add(Op):
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

    def cpu(self, pool, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cpu import elementwise

        (elementwise.add_relu if self.relu else elementwise.add)(pool, *ins, outs[0])

    def cuda(self, launcher, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cuda import elementwise

        (elementwise.add_relu if self.relu else elementwise.add)(launcher, *ins, outs[0])

    def vjp(self, tape, ins, outs, grads):
        (dy,) = grads
        if self.relu:
            (dy,) = tape.call(ReLUGrad(), (dy, outs[0]), of=ins[:1])
        return dy, dy

    def reusable(self):
        return {0: 0}

    def window(self):
        return POINTWISE


@dataclass(frozen=True, slots=True)
class AddMasked(Op):
    """out = a + (dy where y > 0, else 0): the sum of two gradients, one of which comes through a
    ReLU.
    """

    name: ClassVar[str] = "add_masked"

    def infer(self, a: Spec, dy: Spec, y: Spec) -> tuple[Spec, ...]:
        require(a.shape == dy.shape == y.shape, "add_masked: shapes differ", a, dy, y)
        return (a,)

    def reference(self, a, dy, y, scalars):
        return (a + where_positive(y, dy),)

    def cpu(self, pool, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cpu import elementwise

        elementwise.add_masked(pool, *ins, outs[0])

    def cuda(self, launcher, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cuda import elementwise

        elementwise.add_masked(launcher, *ins, outs[0])

    def flops(self, ins, outs):
        return 2 * outs[0].size

    def reusable(self):
        return {0: 0}

    def window(self):
        return POINTWISE


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """y = factor * x."""

    factor: float
    name: ClassVar[str] = "scale"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        return (x,)

    def reference(self, x, scalars):
        return (x * x.dtype.type(self.factor),)

    def cpu(self, pool, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cpu import elementwise

        elementwise.scale(pool, ins[0], outs[0], self.factor)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cuda import elementwise

        elementwise.scale(launcher, ins[0], outs[0], self.factor)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(Scale(self.factor), grads, of=ins)

    def reusable(self):
        return {0: 0}

    def window(self):
        return POINTWISE


@dataclass(frozen=True, slots=True)
class Constant(Op):
    """One value everywhere: the gradient of a loss, the weights of a norm that has none."""

    value: float
    shape: tuple[int, ...]
    name: ClassVar[str] = "constant"
    verb: ClassVar[str] = "fill"
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    def infer(self) -> tuple[Spec, ...]:
        return (Spec(self.shape),)

    def reference(self, scalars):
        return (np.full(self.shape, self.value),)

    def cpu(self, pool, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cpu import elementwise

        elementwise.fill(pool, outs[0], self.value)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cuda import elementwise

        elementwise.fill(launcher, outs[0], self.value)


@dataclass(frozen=True, slots=True)
class Concat(Op):
    """y = all inputs one after the other along an axis."""

    axis: int = 1
    name: ClassVar[str] = "concat"

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        require_float(self, *ins)
        require(bool(ins), "concat: nothing to join")
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

    def cpu(self, pool, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cpu import layout
        from ooctrain.layers.regions import copy_block

        if outs[0].ndim == 4 and self.axis == 1:
            layout.concat_nhwc(pool, ins, outs[0])
            return
        for array, start in zip(
            ins, self._starts([_extent(a, self.axis) for a in ins]), strict=True
        ):
            copy_block(pool, array, outs[0], self._at(array.ndim, start), insert=True)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cuda import regions

        starts = self._starts([_extent(array, self.axis) for array in ins])
        for array, start in zip(ins, starts, strict=True):
            regions.insert(launcher, array, outs[0], self._at(array.ndim, start))

    def vjp(self, tape, ins, outs, grads):
        starts = self._starts([x.shape[self.axis] for x in ins])
        parts = [
            Slice(outs[0].shape, self._at(x.ndim, start), x.shape)
            for x, start in zip(ins, starts, strict=True)
        ]
        return [tape.gradient(part, grads, of=x) for part, x in zip(parts, ins, strict=True)]

    def flops(self, ins, outs):
        return 0

    def _starts(self, extents: list[int]) -> list[int]:
        return [sum(extents[:i]) for i in range(len(extents))]

    def _at(self, ndim: int, start: int) -> tuple[int, ...]:
        return tuple(start if axis == self.axis else 0 for axis in range(ndim))


def _extent(physical: np.ndarray, axis: int) -> int:
    """Extent of a logical axis of a physical array."""
    return physical.shape[(0, 3, 1, 2)[axis] if physical.ndim == 4 else axis]
