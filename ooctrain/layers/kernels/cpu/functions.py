"""Elementwise functions on the cpu: the arithmetic of `layers/function.py`, a vector at a time.

Arrays are as in `elementwise.py`. The functions of the table, with the losses of values
(`layers/losses.py`), differ only in their arithmetic, which the definition states, so one kernel
serves them all: a number selects the function and is tested once for each vector. Read next:
`simd/simd_math.py`, where the exponential and the error function are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numba
import numpy as np

from ooctrain.layers.function import (
    SELU_ALPHA,
    SELU_SCALE,
    TANH_CUBE,
    TANH_SCALE,
    Elementwise,
    ElementwiseGrad,
)
from ooctrain.layers.kernels.cpu.chunks import element_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import (
    VL,
    vabs,
    vmax,
    vmin,
    vselect_eq,
    vselect_gt,
    vsplat,
    vsqrt,
)
from ooctrain.layers.kernels.cpu.simd.simd_math import (
    verf,
    vexp,
    vexp_any,
    vexpm1,
    vlog1p,
    vlog_any,
    vpower,
    vsigmoid,
    vtanh,
)
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vstore_upto
from ooctrain.layers.kernels.signature import B1, F4, I8, F4s
from ooctrain.layers.losses import ValueLoss, ValueLossGrad

Array = np.ndarray
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
THREE, SIX, SIXTH = np.float32(3), np.float32(6), np.float32(1 / 6)
ROOT_HALF, DENSITY = np.float32(math.sqrt(0.5)), np.float32(1 / math.sqrt(2 * math.pi))
SCALE, CUBE = np.float32(TANH_SCALE), np.float32(TANH_CUBE)
CUBE_3 = np.float32(3 * TANH_CUBE)
SELU, SELU_BELOW = np.float32(SELU_SCALE), np.float32(SELU_SCALE * SELU_ALPHA)
ERF_SLOPE = np.float32(2 / math.sqrt(math.pi))
#: Time of a kernel with two exponentials relative to a copy.
WORK = 4
GELU, GELU_TANH, SILU, HARDSWISH, HARDSIGMOID, RELU6, SOFTPLUS, AT_LEAST, AT_MOST = range(9)
LOG_SIGMOID, MISH, ELU, CELU, SELU_OF, EXP, LOG, ERF, ABS, SQRT, LENGTH, ABOVE, BELOW = range(9, 22)
SOFTPLUS_UNTIL = 22
NUMBERS: Mapping[str, int] = {
    "gelu": GELU, "gelu_tanh": GELU_TANH, "silu": SILU, "hardswish": HARDSWISH,
    "hardsigmoid": HARDSIGMOID, "relu6": RELU6, "softplus": SOFTPLUS, "at_least": AT_LEAST,
    "at_most": AT_MOST, "log_sigmoid": LOG_SIGMOID, "mish": MISH, "elu": ELU, "celu": CELU,
    "selu": SELU_OF, "exp": EXP, "log": LOG, "erf": ERF, "abs": ABS, "sqrt": SQRT,
    "length": LENGTH, "above": ABOVE, "below": BELOW, "softplus_until": SOFTPLUS_UNTIL,
}  # fmt: skip
BINARY_CROSS_ENTROPY, SMOOTH_L1, SOFT_LABELS = range(3)
LOSS_NUMBERS: Mapping[str, int] = {
    "binary_cross_entropy": BINARY_CROSS_ENTROPY, "smooth_l1": SMOOTH_L1,
    "soft_labels": SOFT_LABELS,
}  # fmt: skip


@numba.njit(inline="always")
def _softplus(v):
    """log(1 + exp(v))."""
    return vmax(vsplat(ZERO), v) + vlog1p(vexp(ZERO - vabs(v)))


@numba.njit(inline="always")
def _hard(v):
    """v + 3, at least 0 and at most 6; NaN stays."""
    return vmin(vsplat(SIX), vmax(vsplat(ZERO), v + THREE))


@numba.njit(inline="always")
def _tanh_of_gelu(v):
    return vtanh(SCALE * (v * (ONE + CUBE * (v * v))))


@kernel
def _function(x: F4s, y: F4s, which: I8, p: F4, lo, hi, thread):
    zero, parameter = vsplat(ZERO), vsplat(p)
    for i in range(lo, hi, VL):
        n = hi - i
        v = vload_upto(x, i, n)
        if which == GELU:
            v = HALF * v * (ONE + verf(ROOT_HALF * v))
        elif which == GELU_TANH:
            v = HALF * v * (ONE + _tanh_of_gelu(v))
        elif which == SILU:
            v = v * vsigmoid(v)
        elif which == HARDSWISH:
            v = v * _hard(v) * SIXTH
        elif which == HARDSIGMOID:
            v = _hard(v) * SIXTH
        elif which == RELU6:
            v = vmin(vsplat(SIX), vmax(zero, v))
        elif which == SOFTPLUS:
            v = _softplus(v)
        elif which == SOFTPLUS_UNTIL:
            v = vselect_gt(v, parameter, v, _softplus(v))
        elif which == LOG_SIGMOID:
            v = ZERO - _softplus(ZERO - v)
        elif which == MISH:
            v = v * vtanh(_softplus(v))
        elif which == ELU:
            v = vselect_gt(v, zero, v, p * vexpm1(vmin(zero, v)))
        elif which == CELU:
            v = vselect_gt(v, zero, v, p * vexpm1(vmin(zero, v) / p))
        elif which == SELU_OF:
            v = vselect_gt(v, zero, SELU * v, SELU_BELOW * vexpm1(vmin(zero, v)))
        elif which == EXP:
            v = vexp_any(v)
        elif which == LOG:
            v = vlog_any(v)
        elif which == ERF:
            v = verf(v)
        elif which == ABS:
            v = vabs(v)
        elif which in (SQRT, LENGTH):
            v = vsqrt(v)
        elif which in (AT_LEAST, ABOVE):
            v = vmax(parameter, v)
        else:
            v = vmin(parameter, v)
        vstore_upto(y, i, v, n)


@kernel
def _function_grad(dy: F4s, x: F4s, dx: F4s, which: I8, p: F4, lo, hi, thread):
    zero, one, three = vsplat(ZERO), vsplat(ONE), vsplat(THREE)
    six, parameter = vsplat(SIX), vsplat(p)
    for i in range(lo, hi, VL):
        n = hi - i
        v = vload_upto(x, i, n)
        if which == GELU:
            density = DENSITY * vexp(ZERO - HALF * (v * v))
            v = HALF * (ONE + verf(ROOT_HALF * v)) + v * density
        elif which == GELU_TANH:
            t = _tanh_of_gelu(v)
            inner = SCALE * (ONE + CUBE_3 * (v * v))
            v = HALF * (ONE + t) + HALF * v * (ONE - t * t) * inner
        elif which == SILU:
            s = vsigmoid(v)
            v = s * (ONE + v * (ONE - s))
        elif which == HARDSWISH:
            within = v * np.float32(1 / 3) + HALF
            v = vselect_gt(v, three, one, vselect_gt(ZERO - three, v, zero, within))
        elif which == HARDSIGMOID:
            within = vselect_gt(three, v, vsplat(SIXTH), zero)
            v = vselect_gt(v, ZERO - three, within, zero)
        elif which == RELU6:
            v = vselect_gt(v, zero, vselect_gt(six, v, one, zero), zero)
        elif which == SOFTPLUS:
            v = vsigmoid(v)
        elif which == SOFTPLUS_UNTIL:
            v = vselect_gt(v, parameter, one, vsigmoid(v))
        elif which == LOG_SIGMOID:
            v = vsigmoid(ZERO - v)
        elif which == MISH:
            t = vtanh(_softplus(v))
            v = t + v * (ONE - t * t) * vsigmoid(v)
        elif which == ELU:
            v = vselect_gt(v, zero, one, p * vexp(vmin(zero, v)))
        elif which == CELU:
            v = vselect_gt(v, zero, one, vexp(vmin(zero, v) / p))
        elif which == SELU_OF:
            v = vselect_gt(v, zero, vsplat(SELU), SELU_BELOW * vexp(vmin(zero, v)))
        elif which == EXP:
            v = vexp_any(v)
        elif which == LOG:
            v = ONE / v
        elif which == ERF:
            v = ERF_SLOPE * vexp(ZERO - v * v)
        elif which == ABS:
            v = vselect_gt(v, zero, one, vselect_gt(zero, v, ZERO - one, v))
        elif which == SQRT:
            v = HALF / vsqrt(v)
        elif which == LENGTH:
            v = vselect_eq(v, zero, zero, HALF / vsqrt(v))
        elif which == AT_LEAST:
            v = vselect_gt(parameter, v, zero, one)
        elif which == AT_MOST:
            v = vselect_gt(v, parameter, zero, one)
        elif which == ABOVE:
            v = vselect_gt(parameter, v, zero, vselect_eq(parameter, v, zero, one))
        else:
            v = vselect_gt(v, parameter, zero, vselect_eq(parameter, v, zero, one))
        vstore_upto(dx, i, vload_upto(dy, i, n) * v, n)


@kernel
def _power(
    x: F4s, y: F4s, p: F4, high: F4, low: F4, below: F4, of_zero: F4, of_infinity: F4, lo, hi,
    thread,
):  # fmt: skip
    numbers = p, high, low, below, of_zero, of_infinity
    for i in range(lo, hi, VL):
        n = hi - i
        vstore_upto(y, i, vpower(vload_upto(x, i, n), numbers), n)


@kernel
def _power_grad(
    dy: F4s, x: F4s, dx: F4s, factor: F4, p: F4, high: F4, low: F4, below: F4, of_zero: F4,
    of_infinity: F4, lo, hi, thread,
):  # fmt: skip
    numbers = p, high, low, below, of_zero, of_infinity
    for i in range(lo, hi, VL):
        n = hi - i
        slope = factor * vpower(vload_upto(x, i, n), numbers)
        vstore_upto(dx, i, vload_upto(dy, i, n) * slope, n)


@kernel
def _loss(x: F4s, target: F4s, y: F4s, which: I8, p: F4, lo, hi, thread):
    half, scale = vsplat(HALF * p), vsplat(HALF / p if p > ZERO else ZERO)
    beta, zero = vsplat(p), vsplat(ZERO)
    for i in range(lo, hi, VL):
        n = hi - i
        v, t = vload_upto(x, i, n), vload_upto(target, i, n)
        if which == BINARY_CROSS_ENTROPY:
            rest = vlog1p(vexp(ZERO - vabs(v)))
            v = (ONE - t) * v - vmin(zero, v) + rest
        elif which == SOFT_LABELS:
            v = ZERO - t * v
        else:
            away = vabs(v - t)
            v = vselect_gt(beta, away, away * away * scale, away - half)
        vstore_upto(y, i, v, n)


@kernel
def _loss_grad(
    x: F4s, target: F4s, dy: F4s, dx: F4s, which: I8, p: F4, of_target: B1, lo, hi, thread,
):  # fmt: skip
    scale, beta = vsplat(ONE / p if p > ZERO else ZERO), vsplat(p)
    zero, one = vsplat(ZERO), vsplat(ONE)
    for i in range(lo, hi, VL):
        n = hi - i
        v, t = vload_upto(x, i, n), vload_upto(target, i, n)
        if which == BINARY_CROSS_ENTROPY:
            v = ZERO - v if of_target else vsigmoid(v) - t
        elif which == SOFT_LABELS:
            v = ZERO - v if of_target else ZERO - t
        else:
            away = v - t
            # NaN stays, as it does in a product with 0.
            sign = vselect_gt(away, zero, one, vselect_gt(zero, away, ZERO - one, zero * away))
            v = vselect_gt(beta, vabs(away), away * scale, sign)
            v = ZERO - v if of_target else v
        vstore_upto(dx, i, vload_upto(dy, i, n) * v, n)


def function(pool: ThreadPool, x: Array, y: Array, op: Elementwise) -> None:
    """y = f(x). `y` may be `x`."""
    if op.function == "power":
        numbers = _numbers_of_power(op.parameter)
        pool.run(_power, x.size, element_chunk(x.size, WORK), x, y, *numbers)
        return
    chunk = element_chunk(x.size, WORK)
    pool.run(_function, x.size, chunk, x, y, NUMBERS[op.function], op.parameter)


def function_grad(pool: ThreadPool, dy: Array, x: Array, dx: Array, op: ElementwiseGrad) -> None:
    """dx = dy f'(x). `dx` may be `dy` or `x`."""
    if op.function == "power":
        numbers = _numbers_of_power(op.parameter - 1 if op.parameter else 0.0)
        chunk = element_chunk(x.size, WORK)
        pool.run(_power_grad, x.size, chunk, dy, x, dx, op.parameter, *numbers)
        return
    which = NUMBERS[op.function], op.parameter
    pool.run(_function_grad, x.size, element_chunk(x.size, WORK), dy, x, dx, *which)


def _numbers_of_power(p: float) -> tuple[float, ...]:
    """What `vpower` takes of an exponent."""
    p = float(np.float32(p))
    mantissa, exponent = math.frexp(p)
    high = math.ldexp(round(math.ldexp(mantissa, 12)), exponent - 12)
    below = math.nan if p % 1 else -1.0 if p % 2 else 1.0
    of_zero, of_infinity = (0.0, math.inf) if p > 0 else (math.inf, 0.0) if p < 0 else (1.0, 1.0)
    return p, high, p - high, below, of_zero, of_infinity


def value_loss(pool: ThreadPool, x: Array, target: Array, y: Array, op: ValueLoss) -> None:
    """y = f(x, target), for each element."""
    which = LOSS_NUMBERS[op.function], op.parameter
    pool.run(_loss, x.size, element_chunk(x.size, WORK), x, target, y, *which)


def value_loss_grad(
    pool: ThreadPool, x: Array, target: Array, dy: Array, dx: Array, op: ValueLossGrad
) -> None:
    """The gradient of the prediction, or of the target. `dx` may be `x`."""
    which = LOSS_NUMBERS[op.function], op.parameter, op.of_target
    pool.run(_loss_grad, x.size, element_chunk(x.size, WORK), x, target, dy, dx, *which)


# Leaky ReLU, tanh and sigmoid, whose gradients need only the output.

#: Time of a kernel with an exponential relative to a copy.
EXP_WORK = 4


@kernel
def _leaky(dy: F4s, y: F4s, dx: F4s, slope: F4, lo, hi, thread):
    zero = vsplat(ZERO)
    for i in range(lo, hi, VL):
        n = hi - i
        d = vload_upto(dy, i, n)
        vstore_upto(dx, i, vselect_gt(vload_upto(y, i, n), zero, d, slope * d), n)


@kernel
def _tanh(x: F4s, y: F4s, lo, hi, thread):
    for i in range(lo, hi, VL):
        n = hi - i
        vstore_upto(y, i, vtanh(vload_upto(x, i, n)), n)


@kernel
def _tanh_grad(dy: F4s, y: F4s, dx: F4s, lo, hi, thread):
    for i in range(lo, hi, VL):
        n = hi - i
        out = vload_upto(y, i, n)
        vstore_upto(dx, i, vload_upto(dy, i, n) * (ONE - out * out), n)


@kernel
def _sigmoid(x: F4s, y: F4s, lo, hi, thread):
    for i in range(lo, hi, VL):
        n = hi - i
        vstore_upto(y, i, vsigmoid(vload_upto(x, i, n)), n)


@kernel
def _sigmoid_grad(dy: F4s, y: F4s, dx: F4s, lo, hi, thread):
    for i in range(lo, hi, VL):
        n = hi - i
        out = vload_upto(y, i, n)
        vstore_upto(dx, i, vload_upto(dy, i, n) * (out * (ONE - out)), n)


def leaky_relu(pool: ThreadPool, x: Array, y: Array, slope: float) -> None:
    """y = x where x > 0, else slope * x. `y` may be `x`."""
    leaky_relu_grad(pool, x, x, y, slope)


def leaky_relu_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array, slope: float) -> None:
    """dx = dy where y > 0, else slope * dy.

    y is the input of the forward kernel or, for slope > 0, its output. `dx` may be `dy` or `y`.
    """
    pool.run(_leaky, dx.size, element_chunk(dx.size), dy, y, dx, slope)


def tanh(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = tanh(x). `y` may be `x`."""
    pool.run(_tanh, x.size, element_chunk(x.size, EXP_WORK), x, y)


def tanh_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy * (1 - y^2), with y the output of tanh. `dx` may be `dy`."""
    pool.run(_tanh_grad, dx.size, element_chunk(dx.size), dy, y, dx)


def sigmoid(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = 1 / (1 + exp(-x)). `y` may be `x`."""
    pool.run(_sigmoid, x.size, element_chunk(x.size, EXP_WORK), x, y)


def sigmoid_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy * y * (1 - y), with y the output of the sigmoid. `dx` may be `dy`."""
    pool.run(_sigmoid_grad, dx.size, element_chunk(dx.size), dy, y, dx)
