"""Axes in another order.

Axis i of the result is axis `axes[i]` of the input. The result is written in its own memory order,
which for (N, C, H, W) is channels-last as always. The gradient is the inverse permutation. Read
next: `softmax.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.layers.reduction import Index
from ooctrain.step.op import Op, Spec, require, require_float

#: Most axes that kernels walk along.
MOST_AXES = 6


@dataclass(frozen=True, slots=True)
class Permute(Op):
    """y = x.transpose(axes)."""

    axes: Index
    name: ClassVar[str] = "permute"
    untiled: ClassVar[str] = "its output has the rows and columns elsewhere"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        fits = tuple(sorted(self.axes)) == tuple(range(len(x.shape)))
        require(fits, f"permute: {self.axes} are not the axes of the tensor, each once", x)
        require(len(self.axes) <= MOST_AXES, f"permute: at most {MOST_AXES} axes", x)
        return (Spec(tuple(x.shape[axis] for axis in self.axes), x.dtype),)

    def reference(self, x, scalars):
        return (x.transpose(self.axes).copy(),)

    def vjp(self, tape, ins, outs, grads):
        back = tuple(int(axis) for axis in np.argsort(self.axes))
        return tape.call(Permute(back), grads, of=ins)

    def flops(self, ins, outs):
        return 0

    def samples_apart(self, read, ins, outs, count):
        return self.axes[0] == 0
