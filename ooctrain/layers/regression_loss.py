"""Losses of values: squared and absolute differences, as a mean, a sum, or one for each element.

Prediction and target have the same shape. Both errors are antisymmetric, so one operation gives the
gradient of either side, with the two exchanged. The gradient of the loss itself is an input like
any other. Read next: `class_loss.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.trace import Kind

MeanOrSum = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True)
class MeanError(Op):
    """loss = mean or sum of (x - target)^2, or of |x - target| with `absolute`.

    Reads (x, target).

    Args:
        over: what a mean divides by, where x is a part of what it is over; 0: x is all.
    """

    absolute: bool = False
    reduction: MeanOrSum = "mean"
    over: int = 0
    name: ClassVar[str] = "mean_error"
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    def infer(self, x: Spec, target: Spec) -> tuple[Spec, ...]:
        require_float(self, x, target)
        require(x.shape == target.shape, "loss: prediction and target differ in shape", x, target)
        return (Spec((), x.dtype),)

    def reference(self, x, target, scalars):
        error = np.abs(x - target) if self.absolute else (x - target) ** 2
        total = error.sum()
        if self.reduction == "mean":
            total = total / self.over if self.over else error.mean()
        return (np.asarray(total, x.dtype),)

    def vjp(self, tape, ins, outs, grads):
        x, target = ins
        op, (dloss,) = MeanErrorGrad(self.absolute, self.reduction), grads
        dx = tape.gradient(op, (x, target, dloss), of=x)
        # The error is antisymmetric: exchange the two for the gradient of the target.
        return dx, tape.gradient(op, (target, x, dloss), of=target)

    def flops(self, ins, outs):
        return 3 * ins[0].size


@dataclass(frozen=True, slots=True)
class MeanErrorGrad(Op):
    """dx = 2 (x - target) dloss, or sign(x - target) dloss, / size for a mean.

    Reads (x, target, dloss).

    Args:
        over: as in `MeanError`.
    """

    absolute: bool = False
    reduction: MeanOrSum = "mean"
    over: int = 0
    name: ClassVar[str] = "mean_error_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, x: Spec, target: Spec, dloss: Spec) -> tuple[Spec, ...]:
        require(dloss.size == 1, "loss: the gradient of the loss is one number", dloss)
        return (x,)

    def reference(self, x, target, dloss, scalars):
        error = np.sign(x - target) if self.absolute else 2 * (x - target)
        return (error * dloss / ((self.over or x.size) if self.reduction == "mean" else 1),)

    def flops(self, ins, outs):
        return 3 * ins[0].size

    def reusable(self):
        return {0: 0}


@dataclass(frozen=True, slots=True)
class ErrorEach(Op):
    """y = (x - target)^2, or |x - target| with `absolute`: a loss for each element.

    Reads (x, target).
    """

    absolute: bool = False
    name: ClassVar[str] = "error_each"

    def infer(self, x: Spec, target: Spec) -> tuple[Spec, ...]:
        require_float(self, x, target)
        require(x.shape == target.shape, "loss: prediction and target differ in shape", x, target)
        return (x,)

    def reference(self, x, target, scalars):
        return (np.abs(x - target) if self.absolute else (x - target) ** 2,)

    def vjp(self, tape, ins, outs, grads):
        x, target = ins
        op, (dy,) = ErrorEachGrad(self.absolute), grads
        dx = tape.gradient(op, (x, target, dy), of=x)
        return dx, tape.gradient(op, (target, x, dy), of=target)

    def flops(self, ins, outs):
        return 2 * ins[0].size


@dataclass(frozen=True, slots=True)
class ErrorEachGrad(Op):
    """dx = 2 (x - target) dy, or sign(x - target) dy. Reads (x, target, dy)."""

    absolute: bool = False
    name: ClassVar[str] = "error_each_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, x: Spec, target: Spec, dy: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, "loss: the gradient has the shape of the prediction", x, dy)
        return (x,)

    def reference(self, x, target, dy, scalars):
        return ((np.sign(x - target) if self.absolute else 2 * (x - target)) * dy,)

    def flops(self, ins, outs):
        return 3 * ins[0].size

    def reusable(self):
        return {0: 0}


def mean_factor(count: float) -> float:
    """What a sum is multiplied by for a mean: 1 / count, or NaN where nothing counts, as in
    PyTorch.
    """
    return 1.0 / count if count else float("nan")
