"""Elementwise functions as operations, each a line of arithmetic with its derivative.

The functions whose gradient reads the input (GELU, SiLU, hard variants, bounds, roots, powers) are
one operation with a table, `FUNCTIONS`. Tanh and sigmoid, whose gradients read the output alone,
are operations of their own, as is ReLU (`relu.py`): they keep less. The shape may be any. Sources:
Hendrycks and Gimpel 2016 (GELU); Howard et al. 2019 (the hard variants); Clevert et al. 2016 (ELU);
Klambauer et al. 2017 (SELU); Misra 2020 (Mish). Read next: `arithmetic.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ooctrain.layers.relu import Pointwise, PointwiseGrad
from ooctrain.step.op import Spec, require

#: What an exponential or a tanh is worth in floating point operations, for the cost model.
EXP_FLOPS = 10


Array = Any
#: GELU's approximation: tanh(TANH_SCALE (x + TANH_CUBE x^3)).
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715
#: With these a layer of SELUs keeps mean 0 and variance 1 (Klambauer et al., equation 14).
SELU_SCALE, SELU_ALPHA = 1.0507009873554804934, 1.6732632423543772848
#: From here on log(1 + exp(x)) is x in float32.
LINEAR_FROM = 20.0
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class Function:
    """One row of the table.

    Args:
        value: (x, parameter) -> f(x).
        slope: (x, parameter) -> f'(x).
        flops: operations of one value.
        has_pole: whether the slope grows without bound near some x.
    """

    value: Callable[[Array, float], Array]
    slope: Callable[[Array, float], Array]
    flops: int = 2
    has_pole: bool = False


@dataclass(frozen=True, slots=True)
class Elementwise(Pointwise):
    """y = f(x).

    Args:
        function: a name in `FUNCTIONS`.
        parameter: what that function calls p.
    """

    function: str
    parameter: float = 0.0

    @property
    def name(self) -> str:
        """That of the function."""
        return self.function

    @property
    def may_fail(self) -> bool:
        """Whether its gradient grows without bound near some x."""
        return FUNCTIONS[self.function].has_pole

    def reference(self, x, scalars):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            y = FUNCTIONS[self.function].value(x, self.parameter)
        return (y.astype(x.dtype, copy=False),)

    def vjp(self, tape, ins, outs, grads):
        op = ElementwiseGrad(self.function, self.parameter)
        return tape.call(op, (grads[0], ins[0]), of=ins)

    def flops(self, ins, outs):
        return FUNCTIONS[self.function].flops * outs[0].size


@dataclass(frozen=True, slots=True)
class ElementwiseGrad(Pointwise):
    """dx = dy f'(x). Reads (dy, x)."""

    function: str
    parameter: float = 0.0
    verb: ClassVar[str] = "grad"

    @property
    def name(self) -> str:
        """That of the function, with "_grad"."""
        return f"{self.function}_grad"

    def infer(self, dy: Spec, x: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, f"{self.function}: gradient and input differ in shape", dy, x)
        return (dy,)

    def reference(self, dy, x, scalars):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            dx = dy * FUNCTIONS[self.function].slope(x, self.parameter)
        return (dx.astype(dy.dtype, copy=False),)

    def flops(self, ins, outs):
        return (1 + 2 * FUNCTIONS[self.function].flops) * outs[0].size


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); nothing overflows, since exp(-|x|) is at most 1."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def softplus(x: Array) -> Array:
    """log(1 + exp(x))."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu_slope(x: Array, p: float) -> Array:
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return (1 + _erf(x / math.sqrt(2))) / 2 + x * density


def _tanh_of_gelu(x: Array) -> Array:
    return np.tanh(TANH_SCALE * (x + TANH_CUBE * x**3))


def _gelu_tanh_slope(x: Array, p: float) -> Array:
    t = _tanh_of_gelu(x)
    inner = TANH_SCALE * (1 + 3 * TANH_CUBE * x * x)
    return (1 + t) / 2 + x * (1 - t * t) * inner / 2


def _silu_slope(x: Array, p: float) -> Array:
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


def _elu(x: Array, alpha: float, before: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) * before))


def _elu_slope(x: Array, alpha: float, before: float = 1.0) -> Array:
    return np.where(x > 0, 1, alpha * before * np.exp(np.minimum(x, 0) * before))


def _mish_slope(x: Array, p: float) -> Array:
    t = np.tanh(softplus(x))
    return t + x * (1 - t * t) * sigmoid(x)


#: Which kink has which slope is as in PyTorch.
FUNCTIONS: Mapping[str, Function] = {
    "gelu": Function(lambda x, p: x * (1 + _erf(x / math.sqrt(2))) / 2, _gelu_slope, 2 * EXP_FLOPS),
    "gelu_tanh": Function(
        lambda x, p: x * (1 + _tanh_of_gelu(x)) / 2, _gelu_tanh_slope, 2 * EXP_FLOPS
    ),
    "silu": Function(lambda x, p: x * sigmoid(x), _silu_slope, EXP_FLOPS),
    "hardswish": Function(
        lambda x, p: x * np.clip(x + 3, 0, 6) / 6,
        lambda x, p: np.where(x > 3, 1, np.where(x < -3, 0, x / 3 + 0.5)),
    ),
    "hardsigmoid": Function(
        lambda x, p: np.clip(x + 3, 0, 6) / 6,
        lambda x, p: np.where((x > -3) & (x < 3), 1 / 6, 0),
    ),
    "relu6": Function(
        lambda x, p: np.clip(x, 0, 6), lambda x, p: np.where((x > 0) & (x < 6), 1, 0)
    ),
    "softplus": Function(lambda x, p: softplus(x), lambda x, p: sigmoid(x), 2 * EXP_FLOPS),
    # the same, but x itself beyond p
    "softplus_until": Function(
        lambda x, p: np.where(x > p, x, softplus(x)),
        lambda x, p: np.where(x > p, 1, sigmoid(x)), 2 * EXP_FLOPS,
    ),
    "log_sigmoid": Function(
        lambda x, p: -softplus(-x), lambda x, p: sigmoid(-x), 2 * EXP_FLOPS
    ),
    "mish": Function(lambda x, p: x * np.tanh(softplus(x)), _mish_slope, 3 * EXP_FLOPS),
    # p (exp(x) - 1) below 0; the same of x / p; the first with the scale of SELU
    "elu": Function(_elu, _elu_slope, EXP_FLOPS),
    "celu": Function(
        lambda x, p: _elu(x, p, 1 / p), lambda x, p: _elu_slope(x, p, 1 / p), EXP_FLOPS
    ),
    "selu": Function(
        lambda x, p: SELU_SCALE * _elu(x, SELU_ALPHA),
        lambda x, p: SELU_SCALE * _elu_slope(x, SELU_ALPHA), EXP_FLOPS,
    ),
    "exp": Function(lambda x, p: np.exp(x), lambda x, p: np.exp(x), EXP_FLOPS),
    "log": Function(lambda x, p: np.log(x), lambda x, p: 1 / x, EXP_FLOPS, has_pole=True),
    "erf": Function(
        lambda x, p: _erf(x), lambda x, p: 2 / math.sqrt(math.pi) * np.exp(-x * x), EXP_FLOPS
    ),
    "abs": Function(lambda x, p: np.abs(x), lambda x, p: np.sign(x)),
    "sqrt": Function(lambda x, p: np.sqrt(x), lambda x, p: 0.5 / np.sqrt(x), has_pole=True),
    # sqrt(x) whose slope at 0 is 0, as PyTorch has it for lengths of vectors and deviations
    "length": Function(
        lambda x, p: np.sqrt(x),
        lambda x, p: np.where(x == 0, 0, 0.5 / np.sqrt(x)), has_pole=True,
    ),
    "power": Function(
        lambda x, p: np.power(x, x.dtype.type(p)),
        lambda x, p: x.dtype.type(p) * np.power(x, x.dtype.type(p - 1)) if p else 0 * x,
        2 * EXP_FLOPS, has_pole=True,
    ),
    # max(x, p) and min(x, p)
    "at_least": Function(
        lambda x, p: np.maximum(x, x.dtype.type(p)), lambda x, p: np.where(x < p, 0, 1)
    ),
    "at_most": Function(
        lambda x, p: np.minimum(x, x.dtype.type(p)), lambda x, p: np.where(x > p, 0, 1)
    ),
    # the same, but where x is p, too, the slope is 0: the bounds of hardtanh
    "above": Function(
        lambda x, p: np.maximum(x, x.dtype.type(p)), lambda x, p: np.where(x <= p, 0, 1)
    ),
    "below": Function(
        lambda x, p: np.minimum(x, x.dtype.type(p)), lambda x, p: np.where(x >= p, 0, 1)
    ),
}  # fmt: skip


# Tanh and sigmoid. Both derivatives are functions of y, 1 - y^2 and y (1 - y), so x is not kept and
# y may overwrite it.


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
