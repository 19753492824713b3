"""Blocks of an array moved elsewhere on the cpu: slices, inserts, padding, changes of layout.

Arrays are NHWC. Slice, insert and concat are one kernel, which copies a block of rows between two
arrays with different strides. A concat interleaves its inputs pixel by pixel, two at a time.
Inserts write only their region and leave the rest of `dst` as it is, as tiles require. A large
block with gaps between its runs is written past the caches, since a cache would first read each of
its lines. Read next: `dropout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from ooctrain.layers.combine import Concat
from ooctrain.layers.kernels.cpu import elementwise
from ooctrain.layers.kernels.cpu.chunks import past_caches, row_chunk
from ooctrain.layers.kernels.cpu.runtime.copy import copy_unless_same
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    prefetch,
    store_fence,
    vinterleave3,
    vload,
    vload_part,
    vload_upto,
    vstore,
    vstore4,
    vstore_part,
    vstore_upto,
    vstream,
    vtranspose,
)
from ooctrain.layers.kernels.signature import B1, F4, I8, F4s, F4s3d, I8x4
from ooctrain.layers.layout import Reshape, logical_in_memory
from ooctrain.step.op import to_logical

Array = np.ndarray
Sides = tuple[int, int, int, int]
LINE_FLOATS = 16
#: How many runs ahead of their writing the lines of a strided block are prefetched.
AHEAD_RUNS = 16


@numba.njit(inline="always")
def _copy_run(src, i, dst, j, run):
    """dst[j : j + run] = src[i : i + run]."""
    whole = run - run % (4 * VL)
    for k in range(0, whole, 4 * VL):
        v0, v1 = vload(src, i + k), vload(src, i + k + VL)
        v2, v3 = vload(src, i + k + 2 * VL), vload(src, i + k + 3 * VL)
        vstore4(dst, j + k, v0, v1, v2, v3)
    k = whole
    if k + 2 * VL <= run:
        v0, v1 = vload(src, i + k), vload(src, i + k + VL)
        vstore(dst, j + k, v0)
        vstore(dst, j + k + VL, v1)
        k += 2 * VL
    if k + VL <= run:
        vstore(dst, j + k, vload(src, i + k))
        k += VL
    if k < run:
        vstore_part(dst, j + k, vload_part(src, i + k, run - k), run - k)


@numba.njit(inline="always")
def _stream_run(src, i, dst, j, run):
    """As `_copy_run`, past the caches, for whole lines."""
    for k in range(0, run, VL):
        vstream(dst, j + k, vload(src, i + k))


@numba.njit(inline="always")
def _add_run(src, i, dst, j, run):
    """dst[j : j + run] += src[i : i + run]."""
    for k in range(0, run, VL):
        v = vload_upto(dst, j + k, run - k) + vload_upto(src, i + k, run - k)
        vstore_upto(dst, j + k, v, run - k)


@numba.njit(inline="always")
def _ask_for_run(dst, j, run):
    """Prefetches the lines of a run that will be written: runs with gaps no hardware predicts."""
    for k in range(0, run, LINE_FLOATS):
        prefetch(dst, j + k)


@numba.njit(inline="always")
def _fill_run(dst, j, value, run):
    """dst[j : j + run] = value."""
    for k in range(0, run, VL):
        vstore_upto(dst, j + k, value, run - k)


@inner
def _offset_and_strides(shape, at):
    """Element offset of `at`, and the strides of n, h and w in elements."""
    _, h, w, c = shape
    return ((at[0] * h + at[1]) * w + at[2]) * c + at[3], h * w * c, w * c, c


@kernel
def _move_block(
    src: F4s, src_shape: I8x4, src_start: I8x4, dst: F4s, dst_shape: I8x4, dst_start: I8x4,
    extent: I8x4, add: B1, past: B1, lo, hi, thread,
):  # fmt: skip
    """Items are rows (n, h) of a block; whole pixels are merged into longer runs."""
    src_at, src_n, src_h, src_w = _offset_and_strides(src_shape, src_start)
    dst_at, dst_n, dst_h, dst_w = _offset_and_strides(dst_shape, dst_start)
    _, height, width, run = extent
    if src_shape[3] == run and dst_shape[3] == run:
        width, run = 1, width * run
    for item in range(lo, hi):
        n, h = item // height, item % height
        for w in range(width):
            i = src_at + n * src_n + h * src_h + w * src_w
            j = dst_at + n * dst_n + h * dst_h + w * dst_w
            if add:
                _add_run(src, i, dst, j, run)
            elif past:
                _stream_run(src, i, dst, j, run)
            else:
                if width > 1:
                    _ask_for_run(dst, j + AHEAD_RUNS * dst_w, run)
                _copy_run(src, i, dst, j, run)
    if past:
        store_fence()


@kernel
def _concat_pair(a: F4s, b: F4s, y: F4s, ca: I8, cb: I8, channels: I8, at: I8, lo, hi, thread):
    """Items are pixels: both sources' channels of a pixel are written in one go."""
    for p in range(lo, hi):
        _copy_run(a, p * ca, y, p * channels + at, ca)
        _copy_run(b, p * cb, y, p * channels + at + ca, cb)


@kernel
def _pad(
    x: F4s, y: F4s, height: I8, row: I8, top: I8, tall: I8, left: I8, right: I8, value: F4, lo, hi,
    thread,
):  # fmt: skip
    """Items are output rows (n, oh): of `left + row + right` elements, `tall` for each image."""
    fill, wide = vsplat(value), left + row + right
    for item in range(lo, hi):
        n, h = item // tall, item % tall - top
        if 0 <= h < height:
            _fill_run(y, item * wide, fill, left)
            _copy_run(x, (n * height + h) * row, y, item * wide + left, row)
            _fill_run(y, item * wide + left + row, fill, right)
        else:
            _fill_run(y, item * wide, fill, wide)


@kernel
def _transpose(x: F4s3d, y: F4s3d, block: I8, lo, hi, thread):
    """y[b, j, i] = x[b, i, j]; items are (b, block of `block` columns j). RGB images: 3 rows."""
    rows, columns = x.shape[1], x.shape[2]
    xs, ys = x.reshape(x.size), y.reshape(y.size)
    blocks = (columns + block - 1) // block
    for item in range(lo, hi):
        b, j0 = item // blocks * rows * columns, item % blocks * block
        j1 = min(columns, j0 + block)
        whole_j = j1 - (j1 - j0) % VL
        whole_i = rows - rows % VL
        for i in range(0, whole_i, VL):
            for j in range(j0, whole_j, VL):
                vtranspose(xs, b + i * columns + j, columns, ys, b + j * rows + i, rows)
        if rows == 3:
            for j in range(j0, whole_j, VL):
                vinterleave3(xs, b + j, columns, ys, b + 3 * j)
            whole_i = 3
        for i in range(rows):
            for j in range(j0 if i >= whole_i else whole_j, j1):
                ys[b + j * rows + i] = xs[b + i * columns + j]


def slice_nhwc(pool: ThreadPool, x: Array, y: Array, n0: int, h0: int, w0: int, c0: int) -> None:
    """y = x[n0:, h0:, w0:, c0:], as much as y holds."""
    _move(pool, x, (n0, h0, w0, c0), y, (0, 0, 0, 0), y.shape)


def insert_nhwc(
    pool: ThreadPool, src: Array, dst: Array, n0: int, h0: int, w0: int, c0: int
) -> None:
    """dst[n0:, h0:, w0:, c0:] = src, in place; a concat is one insert per input."""
    _move(pool, src, (0, 0, 0, 0), dst, (n0, h0, w0, c0), src.shape)


def insert_add_nhwc(
    pool: ThreadPool, src: Array, dst: Array, n0: int, h0: int, w0: int, c0: int
) -> None:
    """dst[n0:, h0:, w0:, c0:] += src, in place."""
    _move(pool, src, (0, 0, 0, 0), dst, (n0, h0, w0, c0), src.shape, add=True)


def concat_nhwc(pool: ThreadPool, sources: Sequence[Array], y: Array) -> None:
    """y = the sources side by side along the channels, two of them in each pass."""
    channels, at = y.shape[3], 0
    pixels = y.size // channels
    for first in range(0, len(sources) - 1, 2):
        a, b = sources[first], sources[first + 1]
        ca, cb = a.size // pixels, b.size // pixels
        chunk = row_chunk(pixels, ca + cb)
        pool.run(_concat_pair, pixels, chunk, a, b, y, ca, cb, channels, at)
        at += ca + cb
    if len(sources) % 2:
        insert_nhwc(pool, sources[-1], y, 0, 0, 0, at)


def pad_nhwc(pool: ThreadPool, x: Array, y: Array, sides: Sides, value: float = 0.0) -> None:
    """y = x with a border of `value`, of (top, bottom, left, right) pixels."""
    top, _, left, right = sides
    n, height, width, c = x.shape
    items, tall = n * y.shape[1], y.shape[1]
    sizes = height, width * c, top, tall, left * c, right * c
    chunk = row_chunk(items, y.size // items)
    pool.run(_pad, items, chunk, x, y, *sizes, value)


def nchw_to_nhwc(pool: ThreadPool, x: Array, y: Array) -> None:
    """y[n, h, w, c] = x[n, c, h, w]."""
    n, c, h, w = x.shape
    transpose(pool, x.reshape((n, c, h * w), copy=False), y.reshape((n, h * w, c), copy=False))


def nhwc_to_nchw(pool: ThreadPool, x: Array, y: Array) -> None:
    """y[n, c, h, w] = x[n, h, w, c]."""
    n, h, w, c = x.shape
    transpose(pool, x.reshape((n, h * w, c), copy=False), y.reshape((n, c, h * w), copy=False))


def transpose(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = x with its last two axes exchanged; 2-d, or 3-d for a batch of matrices."""
    x3 = x.reshape((-1, *x.shape[-2:]), copy=False)
    y3 = y.reshape((-1, *y.shape[-2:]), copy=False)
    block = 64
    items = x3.shape[0] * -(-x3.shape[2] // block)
    pool.run(
        _transpose, items, row_chunk(items, x3.shape[1] * min(block, x3.shape[2])), x3, y3, block
    )


def _move(pool, src, src_at, dst, dst_at, extent, add=False) -> None:
    """Copies or adds a block."""
    batch, height, width, run = extent
    past = not add and _gaps_past_caches(dst, dst_at[3], run)
    blocks = src, src.shape, src_at, dst, dst.shape, dst_at, extent
    pool.run(
        _move_block, batch * height, row_chunk(batch * height, width * run), *blocks, add, past
    )


def _gaps_past_caches(dst: Array, c0: int, run: int) -> bool:
    """Whether to write `run` channels from `c0` on past the caches: with gaps, and whole lines."""
    channels = dst.shape[3]
    return run < channels and (c0 | run | channels) % LINE_FLOATS == 0 and past_caches(dst)


# The same for arrays of any type and number of axes, from physical arrays and logical starts. The
# kernels above take (N, H, W, C) float32, and an (N, C) array is a special case of that. All other
# arrays, such as labels, are small, so NumPy's own copy suffices.

Arrays = Sequence[Array]
Index = tuple[int, ...]


def slice_of(pool: ThreadPool, x: Array, y: Array, start: Index) -> None:
    """y = the block of x at logical `start`, as much as y holds."""
    if _has_kernel(x):
        slice_nhwc(pool, _nhwc(x), _nhwc(y), *_first(start))
    else:
        pool.every_time()
        np.copyto(to_logical(y), _block(x, start, y))


def insert_into(pool: ThreadPool, part: Array, whole: Array, start: Index) -> None:
    """The block of `whole` at logical `start` = part."""
    if _has_kernel(part):
        insert_nhwc(pool, _nhwc(part), _nhwc(whole), *_first(start))
    else:
        pool.every_time()
        np.copyto(_block(whole, start, part), to_logical(part))


def embed(pool: ThreadPool, part: Array, whole: Array, start: Index) -> None:
    """whole = 0, but for the block at logical `start`, which is `part`."""
    elementwise.fill(pool, whole, 0.0)
    insert_into(pool, part, whole, start)


def insert(pool: ThreadPool, x: Array, part: Array, y: Array, start: Index) -> None:
    """y = x with the block at logical `start` = part. `y` may be `x`."""
    copy_unless_same(pool, x, y)
    insert_into(pool, part, y, start)


def insert_add(pool: ThreadPool, x: Array, part: Array, y: Array, start: Index) -> None:
    """y = x with the block at logical `start` += part. `y` may be `x`."""
    copy_unless_same(pool, x, y)
    if _has_kernel(part):
        insert_add_nhwc(pool, _nhwc(part), _nhwc(y), *_first(start))
    else:
        pool.every_time()
        block = _block(y, start, part)
        np.add(block, to_logical(part), out=block)


def clear(pool: ThreadPool, x: Array, y: Array, start: Index, shape: Index) -> None:
    """y = x with the block of a logical shape at `start` = 0. `y` may be `x`."""
    pool.every_time()
    copy_unless_same(pool, x, y)
    to_logical(y)[_region(start, shape)] = 0


def concat(pool: ThreadPool, op: Concat, ins: Arrays, outs: Arrays) -> None:
    """The inputs one after the other; channels of images are interleaved pixel by pixel."""
    y = outs[0]
    if y.ndim == 4 and op.axis == 1:
        concat_nhwc(pool, ins, y)
        return
    starts = op.starts([to_logical(x).shape[op.axis] for x in ins])
    for x, start in zip(ins, starts, strict=True):
        insert_into(pool, x, y, op.at(x.ndim, start))


def reshape(pool: ThreadPool, op: Reshape, ins: Arrays, outs: Arrays, workspace: Array) -> None:
    """The same elements in the same logical order; from image to image by way of the workspace."""
    x, y = ins[0], outs[0]
    if op.keeps_memory_order:
        copy_unless_same(pool, x, y)
    elif x.dtype != np.float32:
        # The kernels know float32 only; images of whole numbers are rare: NumPy copies them.
        pool.every_time()
        to_logical(y)[...] = to_logical(x).reshape(op.shape)
    elif logical_in_memory(op.source):
        nchw_to_nhwc(pool, x.reshape(op.shape), y)
    elif logical_in_memory(op.shape):
        nhwc_to_nchw(pool, x, y.reshape(op.source))
    else:
        logical = workspace[: x.nbytes].view(x.dtype)
        nhwc_to_nchw(pool, x, logical.reshape(op.source))
        nchw_to_nhwc(pool, logical.reshape(op.shape), y)


def _has_kernel(array: Array) -> bool:
    return array.dtype == np.float32 and array.ndim in (2, 4)


def _nhwc(physical: Array) -> Array:
    """A (N, C) array seen as (N, 1, 1, C); 4-d ones as they are."""
    return physical if physical.ndim == 4 else physical.reshape(physical.shape[0], 1, 1, -1)


def _first(start: Index) -> tuple[int, int, int, int]:
    """A logical index as one of `_nhwc`."""
    n, c, h, w = (*start, 0, 0)[:4]
    return n, h, w, c


def _block(whole: Array, start: Index, part: Array) -> Array:
    """The block of `whole`, a logical view, that has the shape of `part`."""
    return to_logical(whole)[_region(start, to_logical(part).shape)]


def _region(start: Index, shape: Index) -> tuple[slice, ...]:
    return tuple(slice(a, a + extent) for a, extent in zip(start, shape, strict=True))
