"""Smooth activations: tanh and sigmoid, whose gradients read the output alone.

Both derivatives are functions of y, 1 - y^2 and y (1 - y), so x is not kept and y may overwrite it.
The two operations share all but the function itself; the shape may be any. Read next: `combine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.layers.relu import Pointwise, PointwiseGrad

#: What an exponential or a tanh is worth in floating point operations, for the cost model.
EXP_FLOPS = 10


@dataclass(frozen=True, slots=True)
class Tanh(Pointwise):
    """y = tanh(x)."""

    name: ClassVar[str] = "tanh"

    def reference(self, x, scalars):
        return (np.tanh(x),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(TanhGrad(), (grads[0], outs[0]), of=ins)

    def flops(self, ins, outs):
        return EXP_FLOPS * outs[0].size


@dataclass(frozen=True, slots=True)
class TanhGrad(PointwiseGrad):
    """dx = dy (1 - y^2). Reads (dy, y)."""

    name: ClassVar[str] = "tanh_grad"

    def reference(self, dy, y, scalars):
        return (dy * (1 - y * y),)


@dataclass(frozen=True, slots=True)
class Sigmoid(Pointwise):
    """y = 1 / (1 + exp(-x))."""

    name: ClassVar[str] = "sigmoid"

    def reference(self, x, scalars):
        # In this form nothing overflows: exp(-|x|) is at most 1.
        small = np.exp(-np.abs(x))
        return (np.where(x >= 0, 1 / (1 + small), small / (1 + small)),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(SigmoidGrad(), (grads[0], outs[0]), of=ins)

    def flops(self, ins, outs):
        return EXP_FLOPS * outs[0].size


@dataclass(frozen=True, slots=True)
class SigmoidGrad(PointwiseGrad):
    """dx = dy y (1 - y). Reads (dy, y)."""

    name: ClassVar[str] = "sigmoid_grad"

    def reference(self, dy, y, scalars):
        return (dy * y * (1 - y),)
