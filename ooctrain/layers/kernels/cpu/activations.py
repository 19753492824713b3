"""Leaky ReLU, tanh and sigmoid: reached through `elementwise.py`, compiled when first used.

In and out: as in `elementwise.py`. The one idea: kernels are compiled when their module is imported, so
those that most networks do not need live in a module of their own.
"""

from __future__ import annotations

import math

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import element_chunk, flat
from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.pool import ThreadPool

Array = np.ndarray
ZERO, ONE = np.float32(0), np.float32(1)


@kernel("void(f4[::1], f4[::1], f4[::1], f4, i8, i8, i8)")
def _leaky(dy, y, dx, slope, lo, hi, thread):
    dy, y, dx = dy[lo:hi], y[lo:hi], dx[lo:hi]
    for i in range(dx.size):
        dx[i] = dy[i] if y[i] > ZERO else dy[i] * slope


@kernel("void(f4[::1], f4[::1], i8, i8, i8)")
def _tanh(x, y, lo, hi, thread):
    for i in range(lo, hi):
        y[i] = math.tanh(x[i])


@kernel("void(f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _tanh_grad(dy, y, dx, lo, hi, thread):
    for i in range(lo, hi):
        dx[i] = dy[i] * (ONE - y[i] * y[i])


@kernel("void(f4[::1], f4[::1], i8, i8, i8)")
def _sigmoid(x, y, lo, hi, thread):
    for i in range(lo, hi):
        y[i] = ONE / (ONE + math.exp(-x[i]))


@kernel("void(f4[::1], f4[::1], f4[::1], i8, i8, i8)")
def _sigmoid_grad(dy, y, dx, lo, hi, thread):
    for i in range(lo, hi):
        dx[i] = dy[i] * y[i] * (ONE - y[i])


def leaky_relu(pool: ThreadPool, x: Array, y: Array, slope: float) -> None:
    """See `elementwise.leaky_relu`."""
    leaky_relu_grad(pool, x, x, y, slope)


def leaky_relu_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array, slope: float) -> None:
    """See `elementwise.leaky_relu_grad`."""
    pool.run(_leaky, dx.size, element_chunk(dx.size), flat(dy), flat(y), flat(dx), np.float32(slope))


def tanh(pool: ThreadPool, x: Array, y: Array) -> None:
    """See `elementwise.tanh`."""
    pool.run(_tanh, x.size, element_chunk(x.size), flat(x), flat(y))


def tanh_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """See `elementwise.tanh_grad`."""
    pool.run(_tanh_grad, dx.size, element_chunk(dx.size), flat(dy), flat(y), flat(dx))


def sigmoid(pool: ThreadPool, x: Array, y: Array) -> None:
    """See `elementwise.sigmoid`."""
    pool.run(_sigmoid, x.size, element_chunk(x.size), flat(x), flat(y))


def sigmoid_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """See `elementwise.sigmoid_grad`."""
    pool.run(_sigmoid_grad, dx.size, element_chunk(dx.size), flat(dy), flat(y), flat(dx))
