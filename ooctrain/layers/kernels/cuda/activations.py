"""Leaky ReLU, tanh and sigmoid, and their gradients, which need only the output; bytes to floats.

Arrays are as in `elementwise.py`. The hardware has a fast exponential and libdevice a tanh, both
accurate to about two units in the last place, so each kernel is the formula itself and runs at
memory speed. Read next: `dropout.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS
from ooctrain.layers.kernels.cuda.pointwise import apply, binary, unary
from ooctrain.layers.kernels.cuda.runtime.intrinsics import fma, ld4_bytes, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, float32, int64, kernel

Array = Any
Each = float | tuple[float, ...]
ZERO, ONE = np.float32(0), np.float32(1)


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


@kernel("void(u1[::1], f4[::1], f4, f4)", threads=THREADS)
def _from_bytes(x, y, mean, std):
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


@kernel("void(u1[::1], f4[::1], i8, i8, f4, f4, f4, f4, f4, f4, f4, f4)", threads=THREADS)
def _from_bytes_by_channel(x, y, channels, first, m0, m1, m2, m3, s0, s1, s2, s3):
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
