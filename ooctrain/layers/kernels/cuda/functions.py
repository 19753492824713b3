"""Elementwise functions on the GPU: a line of arithmetic, made a kernel by a template.

A device function of one, two or three elements and a parameter becomes a `Kernel` that applies it
to arrays of any size (`elementwise.py` says which). These are the functions of
`layers/function.py`, the losses of values (`layers/losses.py`), and their gradients. Read next:
`strided.py`, `../cpu/functions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooctrain.layers.function import (
    SELU_ALPHA,
    SELU_SCALE,
    TANH_CUBE,
    TANH_SCALE,
    Elementwise,
    ElementwiseGrad,
)
from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS, tiles
from ooctrain.layers.kernels.cuda.quads import first_quads, load_quad, store_quad
from ooctrain.layers.kernels.cuda.runtime.intrinsics import fma, ld4_bytes, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, cuda, device, float32, int64, kernel
from ooctrain.layers.kernels.signature import F4, I8, F4s, U1s
from ooctrain.layers.losses import ValueLoss, ValueLossGrad

# The templates. All pointwise kernels are bound by memory and differ in one line of arithmetic, so
# the code that walks over memory at full speed is written once. Each thread takes two quads
# (`quads.py`) and loads both before it stores. So two loads are in flight, and an output may be the
# same array as an input.


def unary(function: Any) -> Kernel:
    """Kernel y = function(x, parameter)."""

    @device
    def of_quad(a, p):
        return function(a[0], p), function(a[1], p), function(a[2], p), function(a[3], p)

    def over_elements(x: F4s, y: F4s, p: F4):
        i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
        a, b = load_quad(x, i), load_quad(x, j)
        store_quad(y, i, of_quad(a, p))
        store_quad(y, j, of_quad(b, p))

    return _kernel(over_elements, function)


def binary(function: Any) -> Kernel:
    """Kernel y = function(u, v, parameter)."""

    @device
    def of_quads(a, b, p):
        return (
            function(a[0], b[0], p), function(a[1], b[1], p),
            function(a[2], b[2], p), function(a[3], b[3], p),
        )  # fmt: skip

    def over_pairs(u: F4s, v: F4s, y: F4s, p: F4):
        i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
        ui, uj, vi, vj = load_quad(u, i), load_quad(u, j), load_quad(v, i), load_quad(v, j)
        store_quad(y, i, of_quads(ui, vi, p))
        store_quad(y, j, of_quads(uj, vj, p))

    return _kernel(over_pairs, function)


def ternary(function: Any) -> Kernel:
    """Kernel y = function(u, v, w, parameter)."""

    @device
    def of_quads(a, b, c, p):
        return (
            function(a[0], b[0], c[0], p), function(a[1], b[1], c[1], p),
            function(a[2], b[2], c[2], p), function(a[3], b[3], c[3], p),
        )  # fmt: skip

    def over_triples(u: F4s, v: F4s, w: F4s, y: F4s, p: F4):
        i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
        ui, uj, vi, vj = load_quad(u, i), load_quad(u, j), load_quad(v, i), load_quad(v, j)
        wi, wj = load_quad(w, i), load_quad(w, j)
        store_quad(y, i, of_quads(ui, vi, wi, p))
        store_quad(y, j, of_quads(uj, vj, wj, p))

    return _kernel(over_triples, function)


def apply(launcher: Launcher, kernel: Kernel, *arrays: Any, parameter: float = 0.0) -> None:
    """Starts a pointwise kernel on arrays of equal size, the output last."""
    launcher.launch(kernel, tiles(arrays[-1].size), *arrays, parameter)


def named_after(function: Any, template: Callable, suffix: str = "") -> Callable:
    """The filled template under its function's name, which profilers and messages show."""
    original = function.py_func
    template.__name__ = template.__qualname__ = original.__name__ + suffix
    template.__module__ = original.__module__
    return template


def _kernel(template: Callable, function: Any) -> Kernel:
    return kernel(threads=THREADS)(named_after(function, template))


# The functions of the tables.

Array = Any
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
THREE, SIX = np.float32(3), np.float32(6)
THIRD, SIXTH = np.float32(1 / 3), np.float32(1 / 6)
ROOT_HALF, DENSITY = np.float32(math.sqrt(0.5)), np.float32(1 / math.sqrt(2 * math.pi))
SCALE, CUBE = np.float32(TANH_SCALE), np.float32(TANH_CUBE)
CUBE_3 = np.float32(3 * TANH_CUBE)
SELU, SELU_BELOW = np.float32(SELU_SCALE), np.float32(SELU_SCALE * SELU_ALPHA)
ERF_SLOPE = np.float32(2 / math.sqrt(math.pi))


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
def above_slope(dy, x, p):
    """dy where x > p, else 0."""
    return dy * (ZERO if x <= p else ONE)


@device
def below_slope(dy, x, p):
    """dy where x < p, else 0."""
    return dy * (ZERO if x >= p else ONE)


@device
def softplus(x, p):
    """log(1 + exp(x))."""
    return at_least(x, ZERO) + math.log1p(math.exp(-abs(x)))


@device
def softplus_until(x, p):
    """The same; x beyond p."""
    return x if x > p else at_least(x, ZERO) + math.log1p(math.exp(-abs(x)))


@device
def softplus_slope(dy, x, p):
    """dy times the sigmoid."""
    return dy * logistic(x, p)


@device
def softplus_until_slope(dy, x, p):
    """The same; dy beyond p."""
    return dy if x > p else dy * logistic(x, p)


@device
def log_sigmoid(x, p):
    """The logarithm of the sigmoid."""
    return at_most(x, ZERO) - math.log1p(math.exp(-abs(x)))


@device
def log_sigmoid_slope(dy, x, p):
    """dy times the sigmoid of -x."""
    return dy * logistic(-x, p)


@device
def tanh_of_mish(x):
    """tanh(log(1 + exp(x)))."""
    return math.tanh(at_least(x, ZERO) + math.log1p(math.exp(-abs(x))))


@device
def mish(x, p):
    """x times that."""
    return x * tanh_of_mish(x)


@device
def mish_slope(dy, x, p):
    """dy times the derivative of that."""
    t = tanh_of_mish(x)
    return dy * (t + x * (ONE - t * t) * logistic(x, p))


@device
def elu(x, p):
    """x above 0, else p (exp(x) - 1)."""
    return x if x > ZERO else p * math.expm1(x)


@device
def elu_slope(dy, x, p):
    """dy above 0, else dy p exp(x)."""
    return dy if x > ZERO else dy * (p * math.exp(x))


@device
def celu(x, p):
    """x above 0, else p (exp(x / p) - 1)."""
    return x if x > ZERO else p * math.expm1(x / p)


@device
def celu_slope(dy, x, p):
    """dy above 0, else dy exp(x / p)."""
    return dy if x > ZERO else dy * math.exp(x / p)


@device
def selu(x, p):
    """ELU with the two numbers of self-normalising networks."""
    return SELU * x if x > ZERO else SELU_BELOW * math.expm1(x)


@device
def selu_slope(dy, x, p):
    """dy times the derivative of that."""
    return dy * SELU if x > ZERO else dy * (SELU_BELOW * math.exp(x))


@device
def exponential(x, p):
    """exp(x)."""
    return math.exp(x)


@device
def exponential_slope(dy, x, p):
    """dy exp(x)."""
    return dy * math.exp(x)


@device
def logarithm(x, p):
    """log(x)."""
    return math.log(x)


@device
def logarithm_slope(dy, x, p):
    """dy / x."""
    return dy * (ONE / x)


@device
def error_function(x, p):
    """erf(x)."""
    return math.erf(x)


@device
def error_function_slope(dy, x, p):
    """dy 2 exp(-x^2) / sqrt(pi)."""
    return dy * (ERF_SLOPE * math.exp(-x * x))


@device
def size_of(x, p):
    """|x|."""
    return abs(x)


@device
def size_slope(dy, x, p):
    """dy times the sign of x; NaN stays."""
    if x > ZERO:
        return dy
    return -dy if x < ZERO else dy * x


@device
def root(x, p):
    """sqrt(x)."""
    return math.sqrt(x)


@device
def root_slope(dy, x, p):
    """dy / (2 sqrt(x))."""
    return dy * (HALF / math.sqrt(x))


@device
def length_slope(dy, x, p):
    """The same, and 0 at 0."""
    return ZERO * dy if x == ZERO else dy * (HALF / math.sqrt(x))


@device
def power(x, p):
    """x to the p-th."""
    return math.pow(x, p)


@device
def power_slope(dy, x, p):
    """dy p x^(p - 1)."""
    return dy * (p * math.pow(x, p - ONE) if p != ZERO else ZERO)


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
    "log_sigmoid": unary(log_sigmoid), "mish": unary(mish), "elu": unary(elu), "celu": unary(celu),
    "selu": unary(selu), "exp": unary(exponential), "log": unary(logarithm),
    "erf": unary(error_function), "abs": unary(size_of), "power": unary(power),
    "sqrt": unary(root), "softplus_until": unary(softplus_until),
}  # fmt: skip
#: Functions whose slopes differ.
SAME_VALUES: Mapping[str, str] = {"length": "sqrt", "above": "at_least", "below": "at_most"}
SLOPES: Mapping[str, Kernel] = {
    "gelu": binary(gelu_slope), "gelu_tanh": binary(gelu_tanh_slope), "silu": binary(silu_slope),
    "hardswish": binary(hardswish_slope), "hardsigmoid": binary(hardsigmoid_slope),
    "relu6": binary(relu6_slope), "softplus": binary(softplus_slope),
    "at_least": binary(at_least_slope), "at_most": binary(at_most_slope),
    "above": binary(above_slope), "below": binary(below_slope),
    "log_sigmoid": binary(log_sigmoid_slope), "mish": binary(mish_slope), "elu": binary(elu_slope),
    "celu": binary(celu_slope), "selu": binary(selu_slope), "exp": binary(exponential_slope),
    "log": binary(logarithm_slope), "erf": binary(error_function_slope), "abs": binary(size_slope),
    "sqrt": binary(root_slope), "length": binary(length_slope), "power": binary(power_slope),
    "softplus_until": binary(softplus_until_slope),
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
    name = SAME_VALUES.get(op.function, op.function)
    apply(launcher, VALUES[name], x, y, parameter=op.parameter)


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


# Leaky ReLU, tanh and sigmoid, whose gradients need only the output; bytes to floats. The hardware
# has a fast exponential and libdevice a tanh, both accurate to about two units in the last place,
# so each kernel is the formula itself and runs at memory speed.

Each = float | tuple[float, ...]


@device
def leaky_by(dy, y, slope):
    """dy where y > 0, else slope * dy."""
    return dy if y > ZERO else slope * dy


@device
def hyperbolic_tangent(x, parameter):
    """tanh(x)."""
    return math.tanh(x)


@device
def tanh_slope(dy, y, parameter):
    """dy * (1 - y^2)."""
    return dy * fma(-y, y, ONE)


@device
def logistic(x, parameter):
    """1 / (1 + exp(-x)); where exp(-x) overflows, 1 / infinity is the 0 that it should be."""
    return ONE / (ONE + math.exp(-x))


@device
def logistic_slope(dy, y, parameter):
    """dy * y * (1 - y)."""
    return dy * (y * (ONE - y))


_leaky = binary(leaky_by)
_tanh = unary(hyperbolic_tangent)
_tanh_grad = binary(tanh_slope)
_sigmoid = unary(logistic)
_sigmoid_grad = binary(logistic_slope)


def leaky_relu(launcher: Launcher, x: Array, y: Array, slope: float) -> None:
    """y = x where x > 0, else slope * x. `y` may be `x`."""
    leaky_relu_grad(launcher, x, x, y, slope)


def leaky_relu_grad(launcher: Launcher, dy: Array, y: Array, dx: Array, slope: float) -> None:
    """dx = dy where y > 0, else slope * dy.

    y is the input of the forward kernel or, for slope > 0, its output. `dx` may be `dy` or `y`.
    """
    apply(launcher, _leaky, dy, y, dx, parameter=slope)


def tanh(launcher: Launcher, x: Array, y: Array) -> None:
    """y = tanh(x). `y` may be `x`."""
    apply(launcher, _tanh, x, y)


def tanh_grad(launcher: Launcher, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy * (1 - y^2), with y the output of tanh. `dx` may be `dy`."""
    apply(launcher, _tanh_grad, dy, y, dx)


def sigmoid(launcher: Launcher, x: Array, y: Array) -> None:
    """y = 1 / (1 + exp(-x)). `y` may be `x`."""
    apply(launcher, _sigmoid, x, y)


def sigmoid_grad(launcher: Launcher, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy * y * (1 - y), with y the output of the sigmoid. `dx` may be `dy`."""
    apply(launcher, _sigmoid_grad, dy, y, dx)


@device
def scaled_byte(byte, mean, std):
    """(byte - mean) / std."""
    return (float32(byte) - mean) / std


@kernel(threads=THREADS)
def _from_bytes(x: U1s, y: F4s, mean: F4, std: F4):
    i = (int64(cuda.blockIdx.x) * THREADS + int64(cuda.threadIdx.x)) * QUAD
    if i + QUAD <= y.size:
        b = ld4_bytes(x, i)
        st4(y, i, (
            scaled_byte(b[0], mean, std), scaled_byte(b[1], mean, std),
            scaled_byte(b[2], mean, std), scaled_byte(b[3], mean, std),
        ))  # fmt: skip
    else:
        while i < y.size:
            y[i] = scaled_byte(x[i], mean, std)
            i += 1


@kernel(threads=THREADS)
def _from_bytes_by_channel(
    x: U1s, y: F4s, channels: I8, first: I8, m0: F4, m1: F4, m2: F4, m3: F4, s0: F4, s1: F4, s2: F4,
    s3: F4,
):  # fmt: skip
    pixel = int64(cuda.blockIdx.x) * THREADS + int64(cuda.threadIdx.x)
    if pixel * channels < y.size:
        i = pixel * channels + first
        y[i] = scaled_byte(x[i], m0, s0)
        if first + 1 < channels:
            y[i + 1] = scaled_byte(x[i + 1], m1, s1)
        if first + 2 < channels:
            y[i + 2] = scaled_byte(x[i + 2], m2, s2)
        if first + 3 < channels:
            y[i + 3] = scaled_byte(x[i + 3], m3, s3)


def from_bytes(launcher: Launcher, x: Array, y: Array, mean: Each, std: Each) -> None:
    """y = (x - mean) / std of bytes: a thread for four values; with numbers for each channel, which
    lie last, a thread for each pixel, and a launch for four channels. The bits are the cpu
    kernel's, since a difference and a quotient cannot become one rounding.
    """
    if isinstance(mean, tuple) and isinstance(std, tuple):
        channels = len(mean)
        for first in range(0, channels, QUAD):
            each = [one[first : first + QUAD] for one in (mean, std)]
            numbers = [np.float32(v) for one in each for v in (*one, *(1.0,) * (QUAD - len(one)))]
            blocks = blocks_for(y.size // channels, THREADS)
            launcher.launch(_from_bytes_by_channel, blocks, x, y, channels, first, *numbers)
        return
    launcher.launch(_from_bytes, blocks_for(y.size, THREADS * QUAD), x, y, mean, std)
