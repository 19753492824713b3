"""Reflection padding on NHWC and its gradient.

The image x (N, H, W, C) gets borders in which it is mirrored at its outermost pixels. The gradient
*gathers*: an input row sums the output rows that are copies of it, at most three, in ascending
order, so no two threads write the same row. Read next: `upsample.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import row_chunk
from ooctrain.layers.kernels.cpu.runtime.jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

Sides = tuple[int, int, int, int]


@inner
def _mirror(i, extent):
    """The index in [0, extent) whose pixel reflection shows at `i`, at most extent - 1 outside."""
    if i < 0:
        return -i
    return 2 * (extent - 1) - i if i >= extent else i


@inner
def _add_pixel(source, i, target, j, channels):
    """target[j : j + channels] += source[i : i + channels]."""
    for c in range(channels):
        target[j + c] += source[i + c]


@kernel("void(f4[::1], f4[::1], UniTuple(i8, 3), UniTuple(i8, 4), i8, i8, i8)")
def _reflect(x, y, sizes, sides, lo, hi, thread):
    """Items are output rows (n, oh)."""
    height, width, channels = sizes
    top, bottom, left, right = sides
    tall, wide = top + height + bottom, left + width + right
    for item in range(lo, hi):
        n, h = item // tall, _mirror(item % tall - top, height)
        row, out = (n * height + h) * width * channels, item * wide * channels
        for ow in range(wide):
            i, j = row + _mirror(ow - left, width) * channels, out + ow * channels
            for c in range(channels):
                y[j + c] = x[i + c]


@kernel("void(f4[::1], f4[::1], UniTuple(i8, 3), UniTuple(i8, 4), i8, i8, i8)")
def _reflect_grad(dy, dx, sizes, sides, lo, hi, thread):
    """Items are input rows (n, h); copies of h: the mirror image above, itself, the one below."""
    height, width, channels = sizes
    top, bottom, left, right = sides
    tall, wide = top + height + bottom, left + width + right
    for item in range(lo, hi):
        n, h = item // height, item % height
        row = item * width * channels
        dx[row : row + width * channels] = 0.0
        for copy in range(3):
            oh = top + (-h if copy == 0 else h if copy == 1 else 2 * (height - 1) - h)
            if oh < 0 or oh >= tall or (copy != 1 and oh == top + h):
                continue
            source = (n * tall + oh) * wide * channels
            for ow in range(wide):
                j = row + _mirror(ow - left, width) * channels
                _add_pixel(dy, source + ow * channels, dx, j, channels)


def reflect(pool: ThreadPool, x: np.ndarray, y: np.ndarray, sides: Sides) -> None:
    """y = x with mirrored borders of (top, bottom, left, right) pixels, each less than the image's
    extent.
    """
    rows = y.shape[0] * y.shape[1]
    chunk = row_chunk(rows, y.shape[2] * y.shape[3])
    pool.run(_reflect, rows, chunk, x, y, x.shape[1:], sides)


def reflect_grad(pool: ThreadPool, dy: np.ndarray, dx: np.ndarray, sides: Sides) -> None:
    """dx = for each pixel the sum of dy over all its copies."""
    rows = dx.shape[0] * dx.shape[1]
    chunk = row_chunk(rows, dx.shape[2] * dx.shape[3])
    pool.run(_reflect_grad, rows, chunk, dy, dx, dx.shape[1:], sides)
