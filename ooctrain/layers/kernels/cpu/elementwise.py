"""Elementwise kernels, the simplest ones: ReLU and its gradient, sums, scaling, the bias gradient.

Arrays are C-contiguous float32 of equal shape, with any number of dimensions. A driver (a public
function) hands its arrays and a serial range kernel to the pool. A kernel sees them flat and
computes only the elements `[lo, hi)`. An output may be the same array as an input. All of these
kernels run at memory speed, so each byte should be read and written once. Results larger than the
caches are written past them, with the same bits. Functions that few networks use are in
`functions.py`, compiled only for them. Read next: `batch_norm.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import (
    THREE_ARRAYS,
    element_chunk,
    past_caches,
)
from ooctrain.layers.kernels.cpu.partials import (
    channel_partials,
    channel_total,
    first_of_block,
    pixels_of_block,
)
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vmax, vselect_gt, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    store_fence,
    vload,
    vload_upto,
    vput_upto,
    vscan_upto,
    vstore,
    vstore4,
    vstore_upto,
)
from ooctrain.layers.kernels.cpu.workspace import SumsCut, row_sums
from ooctrain.layers.kernels.signature import B1, F4, I8, F4s, U1s

Array = np.ndarray
ZERO = np.float32(0)


@kernel
def _relu(x: F4s, y: F4s, past: B1, lo, hi, thread):
    zero = vsplat(ZERO)
    for i in range(lo, hi, VL):
        n = hi - i
        vput_upto(y, i, vmax(zero, vload_upto(x, i, n)), n, past)
    if past:
        store_fence()


@kernel
def _relu_grad(dy: F4s, y: F4s, dx: F4s, past: B1, lo, hi, thread):
    zero = vsplat(ZERO)
    for i in range(lo, hi, VL):
        n = hi - i
        vput_upto(dx, i, vselect_gt(vscan_upto(y, i, n), zero, vscan_upto(dy, i, n), zero), n, past)
    if past:
        store_fence()


@kernel
def _add(a: F4s, b: F4s, y: F4s, floor: F4, past: B1, lo, hi, thread):
    """y = max(a + b, floor)."""
    floors = vsplat(floor)
    for i in range(lo, hi, VL):
        n = hi - i
        vput_upto(y, i, vmax(floors, vscan_upto(a, i, n) + vscan_upto(b, i, n)), n, past)
    if past:
        store_fence()


@kernel
def _add_masked(a: F4s, dy: F4s, y: F4s, out: F4s, past: B1, lo, hi, thread):
    zero = vsplat(ZERO)
    for i in range(lo, hi, VL):
        n = hi - i
        dz = vselect_gt(vscan_upto(y, i, n), zero, vscan_upto(dy, i, n), zero)
        vput_upto(out, i, vscan_upto(a, i, n) + dz, n, past)
    if past:
        store_fence()


@kernel
def _scale(x: F4s, y: F4s, factor: F4, past: B1, lo, hi, thread):
    for i in range(lo, hi, VL):
        n = hi - i
        vput_upto(y, i, factor * vload_upto(x, i, n), n, past)
    if past:
        store_fence()


@kernel
def _fill(y: F4s, value: F4, lo, hi, thread):
    values = vsplat(value)
    whole = hi - (hi - lo) % (4 * VL)
    for i in range(lo, whole, 4 * VL):
        vstore4(y, i, values, values, values, values)
    for i in range(whole, hi, VL):
        vstore_upto(y, i, values, hi - i)


@kernel
def _channel_sums(dy: F4s, channels: I8, workspace: U1s, cut: SumsCut, lo, hi, thread):
    """float32 sums over blocks of rows, four vectors at a time; blocks added in float64, from the
    last to the first, as in `batch_norm._grad_reduce`.
    """
    padded, per_chunk, begin, end = cut.padded, cut.per_chunk, cut.begin, cut.end
    partials, block = channel_partials(workspace, cut.chunks, padded)
    chunk = begin // per_chunk + lo
    base, zero = chunk * padded, vsplat(ZERO)
    sums, behind = partials[base : base + padded], min(cut.blocks, (chunk + 1) * per_chunk)
    if behind <= end:
        sums[:] = 0.0
    origin = first_of_block(begin, cut)
    for number in range(min(end, behind) - 1, max(begin, chunk * per_chunk) - 1, -1):
        first = first_of_block(number, cut) - origin
        last = first + pixels_of_block(number, cut)
        whole = channels - channels % (4 * VL)
        for c in range(0, whole, 4 * VL):
            s0, s1, s2, s3 = zero, zero, zero, zero
            for row in range(first, last):
                i = row * channels + c
                s0, s1 = s0 + vload(dy, i), s1 + vload(dy, i + VL)
                s2, s3 = s2 + vload(dy, i + 2 * VL), s3 + vload(dy, i + 3 * VL)
            vstore4(block, base + c, s0, s1, s2, s3)
        for c in range(whole, channels, VL):
            s0 = zero
            for row in range(first, last):
                s0 = s0 + vload_upto(dy, row * channels + c, channels - c)
            vstore(block, base + c, s0)
        for c in range(channels):
            sums[c] += block[base + c]


@kernel
def _add_channel_sums(db: F4s, workspace: U1s, padded: I8, chunks: I8, lo, hi, thread):
    for c in range(lo, hi):
        db[c] = channel_total(workspace, chunks, padded, c)


def relu(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = max(x, 0); NaN stays NaN. `y` may be `x`."""
    pool.run(_relu, x.size, element_chunk(x.size), x, y, past_caches(y, x))


def relu_grad(pool: ThreadPool, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy where the ReLU's output y > 0, else 0. `dx` may be `dy` or `y`."""
    past = past_caches(dx, dy, y)
    chunk = element_chunk(dx.size, THREE_ARRAYS)
    pool.run(_relu_grad, dx.size, chunk, dy, y, dx, past)


def add(pool: ThreadPool, a: Array, b: Array, y: Array, relu: bool = False) -> None:
    """y = a + b, or max(a + b, 0) in one pass, with the bits of two. `y` may be `a` or `b`."""
    # Without ReLU the floor is minus infinity: one kernel serves both.
    floor, chunk = 0.0 if relu else -math.inf, element_chunk(y.size, THREE_ARRAYS)
    pool.run(_add, y.size, chunk, a, b, y, floor, past_caches(y, a, b))


def add_masked(pool: ThreadPool, a: Array, dy: Array, y: Array, out: Array) -> None:
    """out = a + (dy where y > 0, else 0): the bits of `relu_grad` and then `add`.

    `out` may be any of the inputs.
    """
    arrays = a, dy, y, out
    chunk = element_chunk(out.size, THREE_ARRAYS)
    pool.run(_add_masked, out.size, chunk, *arrays, past_caches(out, a, dy, y))


def scale(pool: ThreadPool, x: Array, y: Array, factor: float) -> None:
    """y = factor * x. `y` may be `x`."""
    pool.run(_scale, y.size, element_chunk(y.size), x, y, factor, past_caches(y, x))


def scale_by(pool: ThreadPool, x: Array, factor: Array, y: Array) -> None:
    """y = factor * x, the factor being an array of one number. `y` may be `x`."""
    pool.every_time()
    scale(pool, x, y, float(factor))


def fill(pool: ThreadPool, y: Array, value: float) -> None:
    """y = value everywhere."""
    pool.run(_fill, y.size, element_chunk(y.size), y, value)


def channel_sum(pool: ThreadPool, dy: Array, db: Array, workspace: Array) -> None:
    """db[c] = sum of dy over all rows: the gradient of a bias.

    Args:
        dy: (rows, C), or any array whose last axis is C.
        db: (C,).
        workspace: uint8, `channel_sum_workspace_bytes(rows, C)`.
    """
    add_channel_sums(pool, dy, dy.shape, 0, workspace)
    finish_channel_sums(pool, dy.shape, db, workspace)


def add_channel_sums(
    pool: ThreadPool, dy: Array, shape: Sequence[int], first_pixel: int, workspace: Array
) -> None:
    """Adds whole blocks of pixels, the next ones from the bottom, to the sums in the workspace.

    Args:
        dy: (..., C), pixels from `first_pixel` on of an array of this shape.
    """
    sums = row_sums(shape)
    items, cut = sums.span(first_pixel, dy.size)
    pool.run(_channel_sums, items, 1, dy, sums.channels, workspace, cut)


def finish_channel_sums(
    pool: ThreadPool, shape: Sequence[int], db: Array, workspace: Array
) -> None:
    """The sums, once all pixels of an array of this shape are summed."""
    pool.run(_add_channel_sums, db.size, db.size, db, workspace, *row_sums(shape).space)
