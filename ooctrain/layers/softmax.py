"""Softmax along one axis, and its logarithm.

The result is exp(x) / sum(exp(x)) along the axis, or the logarithm of it, in the shape of the
input. The gradient reads the output alone. The largest element is subtracted first, so that nothing
overflows. For a loss of class labels `losses.py` does softmax and loss in one call. Read
next: `losses.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.layers.function import EXP_FLOPS
from ooctrain.layers.reduction import Sum
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.rows import PIXEL


@dataclass(frozen=True, slots=True)
class SoftmaxAlong(Op):
    """y = exp(x) / sum(exp(x)) along `axis`, or the logarithm of that with `log`."""

    axis: int
    log: bool = False
    name: ClassVar[str] = "softmax"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}
    untiled: ClassVar[str] = "it reads whole rows or columns of the image at once"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(0 <= self.axis < len(x.shape), f"softmax: no axis {self.axis}", x)
        return (x,)

    def reference(self, x, scalars):
        away = x - x.max(axis=self.axis, keepdims=True)
        total = np.exp(away).sum(axis=self.axis, keepdims=True)
        return (away - np.log(total) if self.log else np.exp(away) / total,)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(SoftmaxGrad(self.axis, self.log), (grads[0], outs[0]), of=ins)

    def flops(self, ins, outs):
        return EXP_FLOPS * outs[0].size

    def extents(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """(outer, classes, inner) in memory."""
        return Sum((self.axis,)).extents(shape)

    def window(self):
        # Along the channels of images each pixel is by itself.
        return PIXEL if self.axis == 1 else None

    def samples_apart(self, read, ins, outs, count):
        return self.axis != 0


@dataclass(frozen=True, slots=True)
class SoftmaxGrad(Op):
    """dx = y (dy - sum(dy y)); with `log` dx = dy - exp(y) sum(dy). Reads (dy, y)."""

    axis: int
    log: bool = False
    name: ClassVar[str] = "softmax_grad"
    verb: ClassVar[str] = "grad"
    untiled: ClassVar[str] = "it reads whole rows or columns of the image at once"

    def infer(self, dy: Spec, y: Spec) -> tuple[Spec, ...]:
        require(dy.shape == y.shape, "softmax: gradient and output differ in shape", dy, y)
        return (dy,)

    def reference(self, dy, y, scalars):
        if self.log:
            return (dy - np.exp(y) * dy.sum(axis=self.axis, keepdims=True),)
        return (y * (dy - (dy * y).sum(axis=self.axis, keepdims=True)),)

    def flops(self, ins, outs):
        return 4 * outs[0].size

    def extents(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """(outer, classes, inner) in memory."""
        return Sum((self.axis,)).extents(shape)

    def reusable(self):
        return {0: 0}
