"""Losses of values, element by element: binary cross-entropy of logits, smooth absolute error,
terms of cross-entropy with class probabilities.

Predictions and targets of one shape give a loss for each element. Weights, sums and means are other
operations (`reduction.py`), so a loss is a function of two numbers in a table, `VALUE_LOSSES`, as
in `function.py`. Sources: PyTorch's definitions; Girshick 2015 (smooth absolute error). Read next:
`class_losses.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ooctrain.layers.class_losses import Reduction
from ooctrain.layers.function import EXP_FLOPS, sigmoid
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.trace import Kind

Array = Any


@dataclass(frozen=True, slots=True)
class ValueLoss(Op):
    """y = f(x, target), for each element. Reads (x, target).

    Args:
        function: a name in `VALUE_LOSSES`.
        parameter: what that function calls p.
        reduction: what becomes of the losses, so that batches can be averaged; it changes nothing
            here.
    """

    function: str
    parameter: float = 0.0
    reduction: Reduction = "none"

    @property
    def name(self) -> str:
        """That of the function."""
        return self.function

    def infer(self, x: Spec, target: Spec) -> tuple[Spec, ...]:
        require_float(self, x, target)
        require(x.shape == target.shape, "loss: prediction and target differ in shape", x, target)
        return (x,)

    def reference(self, x, target, scalars):
        return (VALUE_LOSSES[self.function].value(x, target, self.parameter).astype(x.dtype),)

    def vjp(self, tape, ins, outs, grads):
        x, target = ins
        read = x, target, grads[0]
        dx = tape.gradient(ValueLossGrad(self.function, self.parameter), read, of=x)
        of_target = ValueLossGrad(self.function, self.parameter, of_target=True)
        return dx, tape.gradient(of_target, read, of=target)

    def flops(self, ins, outs):
        return 2 * EXP_FLOPS * ins[0].size


@dataclass(frozen=True, slots=True)
class ValueLossGrad(Op):
    """dx = dy df / dx, or the gradient of the target. Reads (x, target, dy)."""

    function: str
    parameter: float = 0.0
    of_target: bool = False
    verb: ClassVar[str] = "grad"

    @property
    def name(self) -> str:
        """That of the function, with "_grad"."""
        return f"{self.function}_grad"

    def infer(self, x: Spec, target: Spec, dy: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, "loss: the gradient has the shape of the prediction", x, dy)
        return (x,)

    def reference(self, x, target, dy, scalars):
        loss = VALUE_LOSSES[self.function]
        slope = loss.slope_of_target if self.of_target else loss.slope
        return ((dy * slope(x, target, self.parameter)).astype(x.dtype),)

    def flops(self, ins, outs):
        return 2 * EXP_FLOPS * ins[0].size

    def reusable(self):
        return {0: 0}


@dataclass(frozen=True, slots=True)
class FunctionOfTwo:
    """One row of the table: f, df / dx and df / dtarget, each of (x, target, parameter)."""

    value: Callable[[Array, Array, float], Array]
    slope: Callable[[Array, Array, float], Array]
    slope_of_target: Callable[[Array, Array, float], Array]


def _smooth(x: Array, target: Array, p: float) -> Array:
    """|d| - p / 2 beyond p, the parabola that meets it within; d = x - target."""
    away = np.abs(x - target)
    return np.where(away < p, away * away / (2 * p if p else 1), away - p / 2)


def _smooth_slope(x: Array, target: Array, p: float) -> Array:
    away = x - target
    return np.where(np.abs(away) < p, away / (p or 1), np.sign(away))


VALUE_LOSSES: Mapping[str, FunctionOfTwo] = {
    # -target log s(x) - (1 - target) log(1 - s(x)), s the sigmoid; no digits are lost where it is
    # nearly 0.
    "binary_cross_entropy": FunctionOfTwo(
        lambda x, t, p: (1 - t) * x - np.minimum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        lambda x, t, p: sigmoid(x) - t,
        lambda x, t, p: -x,
    ),
    # -target x, x the logarithm of a probability: a term of cross-entropy with class probabilities
    "soft_labels": FunctionOfTwo(
        lambda x, t, p: -t * x, lambda x, t, p: -t + 0 * x, lambda x, t, p: -x + 0 * t
    ),
    "smooth_l1": FunctionOfTwo(_smooth, _smooth_slope, lambda x, t, p: -_smooth_slope(x, t, p)),
}


# Losses of values: squared and absolute differences, as a mean, a sum, or one for each element.
#
# Prediction and target have the same shape. Both errors are antisymmetric, so one operation gives
# the gradient of either side, with the two exchanged. The gradient of the loss itself is an input
# like any other.


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
