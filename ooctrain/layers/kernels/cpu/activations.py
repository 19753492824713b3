"""Leaky ReLU, tanh and sigmoid, and their gradients, which need only the output.

Arrays are as in `elementwise.py`. Kernels are compiled when their module is imported, so those that
most networks do not need live in a module of their own. Read next: `simd/simd_math.py`, where the
exponential is.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import element_chunk
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import vselect_gt, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_math import vsigmoid, vtanh
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vstore_upto
from ooctrain.layers.kernels.cpu.simd.vector import VL

Array = np.ndarray
ZERO, ONE = np.float32(0), np.float32(1)
#: Time of a kernel with an exponential relative to a copy.
EXP_WORK = 4


@kernel("void(f4[::1], f4[::1], f4[::1], f4, i8, i8, i8)")
def _leaky(dy, y, dx, slope, lo, hi, thread):
    zero = vsplat(ZERO)
    for i in range(lo, hi, VL):
        n = hi - i
        d = vload_upto(dy, i, n)
        vstore_upto(dx, i, vselect_gt(vload_upto(y, i, n), zero, d, slope * d), n)


@kernel("void(f4[::1], f4[::1], i8, i8, i8)")
def _tanh(x, y, lo, hi, thread):
    for i in range(lo, hi, VL):
        n = hi - i
        vstore_upto(y, i, vtanh(vload_upto(x, i, n)), n)


@kernel("void(f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _tanh_grad(dy, y, dx, lo, hi, thread):
    for i in range(lo, hi, VL):
        n = hi - i
        out = vload_upto(y, i, n)
        vstore_upto(dx, i, vload_upto(dy, i, n) * (ONE - out * out), n)


@kernel("void(f4[::1], f4[::1], i8, i8, i8)")
def _sigmoid(x, y, lo, hi, thread):
    for i in range(lo, hi, VL):
        n = hi - i
        vstore_upto(y, i, vsigmoid(vload_upto(x, i, n)), n)


@kernel("void(f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _sigmoid_grad(dy, y, dx, lo, hi, thread):
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
