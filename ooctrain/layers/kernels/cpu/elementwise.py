"""Elementwise kernels, the simplest ones: ReLU and its gradient, sums, scaling, the bias gradient.

In: arrays of equal shape, any number of dimensions, C-contiguous float32. Out: arrays written in place.
The one idea: a driver (a public function) flattens its arrays and hands a serial range kernel to the
pool; a kernel does `[lo, hi)` and nothing else. An output may be the same array as an input. All of them
run at memory speed, so what counts is to read and write each byte once. Kernels that few networks use are
in `activations.py`, compiled only when called. Read next: `batch_norm.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import element_chunk, flat, row_chunk
from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.pool import ThreadPool

Array = np.ndarray
ZERO = np.float32(0)


@kernel("void(f4[::1], f4[::1], i8, i8, i8)")
def _relu(x, y, lo, hi, thread):
    x, y = x[lo:hi], y[lo:hi]
    for i in range(x.size):
        y[i] = ZERO if x[i] < ZERO else x[i]


@kernel("void(f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _relu_grad(dy, y, dx, lo, hi, thread):
    dy, y, dx = dy[lo:hi], y[lo:hi], dx[lo:hi]
    for i in range(dx.size):
        dx[i] = dy[i] if y[i] > ZERO else ZERO


@kernel("void(f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _add(a, b, y, lo, hi, thread):
    a, b, y = a[lo:hi], b[lo:hi], y[lo:hi]
    for i in range(y.size):
        y[i] = a[i] + b[i]


@kernel("void(f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _add_relu(a, b, y, lo, hi, thread):
    a, b, y = a[lo:hi], b[lo:hi], y[lo:hi]
    for i in range(y.size):
        s = a[i] + b[i]
        y[i] = ZERO if s < ZERO else s


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _add_masked(a, dy, y, out, lo, hi, thread):
    a, dy, y, out = a[lo:hi], dy[lo:hi], y[lo:hi], out[lo:hi]
    for i in range(out.size):
        out[i] = a[i] + (dy[i] if y[i] > ZERO else ZERO)


@kernel("void(f4[::1], f4[::1], f4, i8, i8, i8)")
def _scale(x, y, factor, lo, hi, thread):
    x, y = x[lo:hi], y[lo:hi]
    for i in range(y.size):
        y[i] = x[i] * factor


@kernel("void(f4[::1], f4, i8, i8, i8)")
def _fill(y, value, lo, hi, thread):
    y = y[lo:hi]
    for i in range(y.size):
        y[i] = value


@kernel("void(f4[::1], i8, f8[::1], i8, i8, i8, i8)")
def _channel_partials(dy, channels, partials, rows_per_chunk, lo, hi, thread):
    sums = partials[lo // rows_per_chunk * channels :][:channels]
    sums[:] = 0.0
    for row in range(lo, hi):
        values = dy[row * channels : (row + 1) * channels]
        for c in range(channels):
            sums[c] += values[c]


@kernel("void(f8[::1], i8, f4[::1])")
def _combine_partials(partials, chunks, out):
    for c in range(out.size):
        total = 0.0
        for chunk in range(chunks):
            total += partials[chunk * out.size + c]
        out[c] = total


def relu(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = max(x, 0); NaN stays NaN. `y` may be `x`."""
    pool.run(_relu, x.size, element_chunk(x.size), flat(x), flat(y))


def relu_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy where the ReLU's output y > 0, else 0. `dx` may be `dy` or `y`."""
    pool.run(_relu_grad, dx.size, element_chunk(dx.size), flat(dy), flat(y), flat(dx))


def add(pool: ThreadPool, a: Array, b: Array, y: Array) -> None:
    """y = a + b. `y` may be `a` or `b`."""
    pool.run(_add, y.size, element_chunk(y.size), flat(a), flat(b), flat(y))


def add_relu(pool: ThreadPool, a: Array, b: Array, y: Array) -> None:
    """y = max(a + b, 0): the same bits as `add` and then `relu`. `y` may be `a` or `b`."""
    pool.run(_add_relu, y.size, element_chunk(y.size), flat(a), flat(b), flat(y))


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
    partials = workspace[: workspace.size // 8 * 8].view(np.float64)
    pool.run(_channel_partials, rows, chunk, flat(dy), channels, partials, chunk)
    _combine_partials(partials, -(-rows // chunk), db)


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
