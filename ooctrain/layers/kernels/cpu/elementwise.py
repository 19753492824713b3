"""Elementwise kernels, the simplest ones: ReLU and its gradient, sums, scaling, the bias gradient.

In: arrays of equal shape, any number of dimensions, C-contiguous float32. Out: arrays written in place.
The one idea: a driver (a public function) flattens its arrays and hands a serial range kernel to the
pool; a kernel does `[lo, hi)` and nothing else. An output may be the same array as an input. All of them
run at memory speed, so what counts is to read and write each byte once. Kernels that few networks use are
in `activations.py`, compiled only when called. Read next: `batch_norm.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import chunk_count, element_chunk, flat, row_chunk
from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd import (
    VL,
    vload,
    vload_part,
    vmax,
    vselect_gt,
    vsplat,
    vstore,
    vstore_part,
)
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ROWS, channel_partials

Array = np.ndarray
ZERO, NO_FLOOR = np.float32(0), np.float32(-np.inf)


@kernel("void(f4[::1], f4[::1], i8, i8, i8)")
def _relu(x, y, lo, hi, thread):
    zero, end = vsplat(ZERO), hi - (hi - lo) % VL
    for i in range(lo, end, VL):
        vstore(y, i, vmax(zero, vload(x, i)))
    vstore_part(y, end, vmax(zero, vload_part(x, end, hi - end)), hi - end)


@kernel("void(f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _relu_grad(dy, y, dx, lo, hi, thread):
    zero, end = vsplat(ZERO), hi - (hi - lo) % VL
    for i in range(lo, end, VL):
        vstore(dx, i, vselect_gt(vload(y, i), zero, vload(dy, i), zero))
    n = hi - end
    vstore_part(dx, end, vselect_gt(vload_part(y, end, n), zero, vload_part(dy, end, n), zero), n)


@kernel("void(f4[::1], f4[::1], f4[::1], f4, i8, i8, i8)")
def _add(a, b, y, floor, lo, hi, thread):
    """y = max(a + b, floor)."""
    floors, end = vsplat(floor), hi - (hi - lo) % VL
    for i in range(lo, end, VL):
        vstore(y, i, vmax(floors, vload(a, i) + vload(b, i)))
    n = hi - end
    vstore_part(y, end, vmax(floors, vload_part(a, end, n) + vload_part(b, end, n)), n)


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _add_masked(a, dy, y, out, lo, hi, thread):
    zero, end = vsplat(ZERO), hi - (hi - lo) % VL
    for i in range(lo, end, VL):
        vstore(out, i, vload(a, i) + vselect_gt(vload(y, i), zero, vload(dy, i), zero))
    n = hi - end
    dz = vselect_gt(vload_part(y, end, n), zero, vload_part(dy, end, n), zero)
    vstore_part(out, end, vload_part(a, end, n) + dz, n)


@kernel("void(f4[::1], f4[::1], f4, i8, i8, i8)")
def _scale(x, y, factor, lo, hi, thread):
    end = hi - (hi - lo) % VL
    for i in range(lo, end, VL):
        vstore(y, i, factor * vload(x, i))
    vstore_part(y, end, factor * vload_part(x, end, hi - end), hi - end)


@kernel("void(f4[::1], f4, i8, i8, i8)")
def _fill(y, value, lo, hi, thread):
    values, end = vsplat(value), hi - (hi - lo) % VL
    for i in range(lo, end, VL):
        vstore(y, i, values)
    vstore_part(y, end, values, hi - end)


@kernel("void(f4[::1], i8, i8, f8[::1], f4[::1], i8, i8, i8, i8)")
def _channel_partials(dy, channels, padded, partials, block, rows_per_chunk, lo, hi, thread):
    """float32 sums over blocks of rows, 4 vectors of channels at a time; blocks added in float64."""
    base = lo // rows_per_chunk * padded
    sums = partials[base : base + padded]
    sums[:] = 0.0
    for first in range(lo, hi, BLOCK_ROWS):
        last = min(hi, first + BLOCK_ROWS)
        for c in range(0, channels, 4 * VL):
            s0, s1, s2, s3 = vsplat(ZERO), vsplat(ZERO), vsplat(ZERO), vsplat(ZERO)
            n = channels - c
            for row in range(first, last):
                i = row * channels + c
                s0 = s0 + vload_part(dy, i, n)
                s1 = s1 + vload_part(dy, i + VL, n - VL)
                s2 = s2 + vload_part(dy, i + 2 * VL, n - 2 * VL)
                s3 = s3 + vload_part(dy, i + 3 * VL, n - 3 * VL)
            vstore(block, base + c, s0)
            vstore(block, base + c + VL, s1)
            vstore(block, base + c + 2 * VL, s2)
            vstore(block, base + c + 3 * VL, s3)
        for c in range(padded):
            sums[c] += block[base + c]


@kernel("void(f8[::1], i8, i8, f4[::1])")
def _combine_partials(partials, padded, chunks, out):
    for chunk in range(1, chunks):
        for c in range(padded):
            partials[c] += partials[chunk * padded + c]
    for c in range(out.size):
        out[c] = partials[c]


def relu(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = max(x, 0); NaN stays NaN. `y` may be `x`."""
    pool.run(_relu, x.size, element_chunk(x.size), flat(x), flat(y))


def relu_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy where the ReLU's output y > 0, else 0. `dx` may be `dy` or `y`."""
    pool.run(_relu_grad, dx.size, element_chunk(dx.size), flat(dy), flat(y), flat(dx))


def add(pool: ThreadPool, a: Array, b: Array, y: Array) -> None:
    """y = a + b. `y` may be `a` or `b`."""
    pool.run(_add, y.size, element_chunk(y.size), flat(a), flat(b), flat(y), NO_FLOOR)


def add_relu(pool: ThreadPool, a: Array, b: Array, y: Array) -> None:
    """y = max(a + b, 0): the same bits as `add` and then `relu`. `y` may be `a` or `b`."""
    pool.run(_add, y.size, element_chunk(y.size), flat(a), flat(b), flat(y), ZERO)


def add_masked(pool: ThreadPool, a: Array, dy: Array, y: Array, out: Array) -> None:
    """out = a + (dy where y > 0, else 0): `relu_grad` and then `add`, same bits. `out` may be any input."""
    pool.run(_add_masked, out.size, element_chunk(out.size), flat(a), flat(dy), flat(y), flat(out))


def scale(pool: ThreadPool, x: Array, y: Array, factor: float) -> None:
    """y = factor * x. `y` may be `x`."""
    pool.run(_scale, y.size, element_chunk(y.size), flat(x), flat(y), np.float32(factor))


def fill(pool: ThreadPool, y: Array, value: float) -> None:
    """y = value everywhere."""
    pool.run(_fill, y.size, element_chunk(y.size), flat(y), np.float32(value))


def channel_sum(pool: ThreadPool, dy: Array, db: Array, workspace: Array) -> None:
    """db[c] = sum of dy over all rows: the gradient of a bias.

    Args:
        dy: (rows, C), or any array whose last axis is C.
        db: (C,).
        workspace: uint8, `channel_sum_workspace_bytes(rows, C)`.
    """
    channels, rows = db.size, dy.size // db.size
    chunk = row_chunk(rows, channels)
    padded, partials, block = channel_partials(workspace, chunk_count(rows, chunk), channels, sums=1)
    pool.run(_channel_partials, rows, chunk, flat(dy), channels, padded, partials, block, chunk)
    _combine_partials(partials, padded, chunk_count(rows, chunk), db)


def leaky_relu(pool: ThreadPool, x: Array, y: Array, slope: float) -> None:
    """y = x where x > 0, else slope * x. `y` may be `x`."""
    _activations().leaky_relu(pool, x, y, slope)


def leaky_relu_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array, slope: float) -> None:
    """dx = dy where y > 0, else slope * dy; y is the input or (for slope > 0) the output. `dx` may be `dy`."""
    _activations().leaky_relu_grad(pool, dy, y, dx, slope)


def tanh(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = tanh(x). `y` may be `x`."""
    _activations().tanh(pool, x, y)


def tanh_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy * (1 - y^2), with y the output of tanh. `dx` may be `dy`."""
    _activations().tanh_grad(pool, dy, y, dx)


def sigmoid(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = 1 / (1 + exp(-x)). `y` may be `x`."""
    _activations().sigmoid(pool, x, y)


def sigmoid_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy * y * (1 - y), with y the output of the sigmoid. `dx` may be `dy`."""
    _activations().sigmoid_grad(pool, dy, y, dx)


def _activations():
    """The rarer kernels, imported (and compiled) when a network first uses one of them."""
    from ooctrain.layers.kernels.cpu import activations

    return activations
