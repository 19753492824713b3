"""The functions of `layers/function.py` and `layers/value_loss.py`, and their gradients.

Arrays are as in `elementwise.py`. A function is one line for one element, and the templates of
`pointwise.py` make a kernel of it; this file contains the lines. Read next: `strided.py`,
`../cpu/functions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooctrain.layers.function import TANH_CUBE, TANH_SCALE, Elementwise, ElementwiseGrad
from ooctrain.layers.kernels.cuda.activations import logistic
from ooctrain.layers.kernels.cuda.pointwise import apply, binary, ternary, unary
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, device
from ooctrain.layers.value_loss import ValueLoss, ValueLossGrad

Array = Any
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
THREE, SIX = np.float32(3), np.float32(6)
THIRD, SIXTH = np.float32(1 / 3), np.float32(1 / 6)
ROOT_HALF, DENSITY = np.float32(math.sqrt(0.5)), np.float32(1 / math.sqrt(2 * math.pi))
SCALE, CUBE = np.float32(TANH_SCALE), np.float32(TANH_CUBE)
CUBE_3 = np.float32(3 * TANH_CUBE)


@device
def gelu(x, p):
    """x Phi(x), Phi the normal distribution."""
    return HALF * x * (ONE + math.erf(ROOT_HALF * x))


@device
def gelu_slope(dy, x, p):
    """dy (Phi(x) + x phi(x))."""
    density = DENSITY * math.exp(-HALF * (x * x))
    return dy * (HALF * (ONE + math.erf(ROOT_HALF * x)) + x * density)


@device
def tanh_of_gelu(x):
    """What GELU's approximation has in place of the error function."""
    return math.tanh(SCALE * (x * (ONE + CUBE * (x * x))))


@device
def gelu_tanh(x, p):
    """GELU's approximation."""
    return HALF * x * (ONE + tanh_of_gelu(x))


@device
def gelu_tanh_slope(dy, x, p):
    """dy times the derivative of that."""
    t = tanh_of_gelu(x)
    inner = SCALE * (ONE + CUBE_3 * (x * x))
    return dy * (HALF * (ONE + t) + HALF * x * (ONE - t * t) * inner)


@device
def silu(x, p):
    """x times its sigmoid."""
    return x * logistic(x, p)


@device
def silu_slope(dy, x, p):
    """dy s (1 + x (1 - s))."""
    s = logistic(x, p)
    return dy * (s * (ONE + x * (ONE - s)))


@device
def at_least(x, p):
    """max(x, p); NaN stays NaN."""
    return p if x < p else x


@device
def at_least_slope(dy, x, p):
    """dy where x >= p, else 0."""
    return dy * (ZERO if x < p else ONE)


@device
def at_most(x, p):
    """min(x, p); NaN stays NaN."""
    return p if x > p else x


@device
def at_most_slope(dy, x, p):
    """dy where x <= p, else 0."""
    return dy * (ZERO if x > p else ONE)


@device
def hardsigmoid(x, p):
    """(x + 3) / 6, within 0 and 1."""
    return SIXTH * at_most(at_least(x + THREE, ZERO), SIX)


@device
def hardsigmoid_slope(dy, x, p):
    """dy / 6 within -3 and 3."""
    return dy * (SIXTH if -THREE < x < THREE else ZERO)


@device
def hardswish(x, p):
    """x times its hard sigmoid."""
    return x * hardsigmoid(x, p)


@device
def hardswish_slope(dy, x, p):
    """dy (x / 3 + 1 / 2), between 0 and dy outside -3 and 3."""
    if x > THREE:
        return dy
    return dy * (ZERO if x < -THREE else x * THIRD + HALF)


@device
def relu6(x, p):
    """x within 0 and 6."""
    return at_most(at_least(x, ZERO), SIX)


@device
def relu6_slope(dy, x, p):
    """dy within 0 and 6."""
    return dy * (ONE if ZERO < x < SIX else ZERO)


@device
def softplus(x, p):
    """log(1 + exp(x))."""
    return at_least(x, ZERO) + math.log1p(math.exp(-abs(x)))


@device
def softplus_slope(dy, x, p):
    """dy times the sigmoid."""
    return dy * logistic(x, p)


@device
def cross_entropy_of(x, target, p):
    """Binary cross-entropy of a logit."""
    rest = math.log1p(math.exp(-abs(x)))
    return (ONE - target) * x - at_most(x, ZERO) + rest


@device
def cross_entropy_slope(x, target, dy, p):
    """dy (sigmoid - target)."""
    return dy * (logistic(x, p) - target)


@device
def cross_entropy_of_target(x, target, dy, p):
    """-dy x: the gradient of the target."""
    return -dy * x


@device
def soft_label(x, target, p):
    """-target x."""
    return -target * x


@device
def soft_label_slope(x, target, dy, p):
    """-dy target."""
    return -dy * target


@device
def smooth_error(x, target, p):
    """|d| - p / 2 beyond p, else d^2 / (2 p); d = x - target."""
    away = abs(x - target)
    if away < p:
        return HALF * away * away / p
    return away - HALF * p


@device
def smooth_error_slope(x, target, dy, p):
    """dy times the sign of d beyond p, else dy d / p."""
    away = x - target
    if abs(away) < p:
        return dy * (away / p)
    if away > ZERO:
        return dy
    return -dy if away < ZERO else dy * (ZERO * away)


@device
def smooth_error_of_target(x, target, dy, p):
    """The gradient of the target."""
    return -smooth_error_slope(x, target, dy, p)


VALUES: Mapping[str, Kernel] = {
    "gelu": unary(gelu), "gelu_tanh": unary(gelu_tanh), "silu": unary(silu),
    "hardswish": unary(hardswish), "hardsigmoid": unary(hardsigmoid), "relu6": unary(relu6),
    "softplus": unary(softplus), "at_least": unary(at_least), "at_most": unary(at_most),
}  # fmt: skip
SLOPES: Mapping[str, Kernel] = {
    "gelu": binary(gelu_slope), "gelu_tanh": binary(gelu_tanh_slope), "silu": binary(silu_slope),
    "hardswish": binary(hardswish_slope), "hardsigmoid": binary(hardsigmoid_slope),
    "relu6": binary(relu6_slope), "softplus": binary(softplus_slope),
    "at_least": binary(at_least_slope), "at_most": binary(at_most_slope),
}  # fmt: skip
LOSSES: Mapping[str, Kernel] = {
    "binary_cross_entropy": binary(cross_entropy_of), "smooth_l1": binary(smooth_error),
    "soft_labels": binary(soft_label),
}  # fmt: skip
#: of the prediction
LOSS_SLOPES: Mapping[str, Kernel] = {
    "binary_cross_entropy": ternary(cross_entropy_slope), "smooth_l1": ternary(smooth_error_slope),
    "soft_labels": ternary(soft_label_slope),
}  # fmt: skip
_OF_TARGET = ternary(cross_entropy_of_target)
TARGET_SLOPES: Mapping[str, Kernel] = {
    "binary_cross_entropy": _OF_TARGET, "smooth_l1": ternary(smooth_error_of_target),
    "soft_labels": _OF_TARGET,
}  # fmt: skip


def function(launcher: Launcher, x: Array, y: Array, op: Elementwise) -> None:
    """y = f(x). `y` may be `x`."""
    apply(launcher, VALUES[op.function], x, y, parameter=op.parameter)


def function_grad(launcher: Launcher, dy: Array, x: Array, dx: Array, op: ElementwiseGrad) -> None:
    """dx = dy f'(x). `dx` may be `dy` or `x`."""
    apply(launcher, SLOPES[op.function], dy, x, dx, parameter=op.parameter)


def value_loss(launcher: Launcher, x: Array, target: Array, y: Array, op: ValueLoss) -> None:
    """y = f(x, target), for each element."""
    apply(launcher, LOSSES[op.function], x, target, y, parameter=op.parameter)


def value_loss_grad(
    launcher: Launcher, x: Array, target: Array, dy: Array, dx: Array, op: ValueLossGrad
) -> None:
    """The gradient of the prediction, or of the target. `dx` may be `x`."""
    slopes = TARGET_SLOPES if op.of_target else LOSS_SLOPES
    apply(launcher, slopes[op.function], x, target, dy, dx, parameter=op.parameter)
