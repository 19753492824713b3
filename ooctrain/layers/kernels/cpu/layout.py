"""Moving blocks: slices, inserts, concatenation, zero padding, layout changes.

In and out: NHWC arrays. The one idea: slice, insert and concat are one kernel, the copy of a block of
rows between two arrays with strides of their own; a concat is an insert per input. Inserts write only
their region and leave the rest of `dst` as it is, which is what tiles need. Read next: `dropout.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import flat, row_chunk
from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.pool import ThreadPool

Array = np.ndarray


@kernel("void(f4[::1], i8, i8, i8, i8, f4[::1], i8, i8, i8, i8, i8, i8, i8, i8, i8, i8)")
def _copy_block(
    src, src_at, src_n, src_h, src_w, dst, dst_at, dst_n, dst_h, dst_w, height, width, run, lo, hi, thread
):  # fmt: skip
    """Items are rows (n, h); each row is `width` runs of `run` elements."""
    for item in range(lo, hi):
        n, h = item // height, item % height
        for w in range(width):
            source = src[src_at + n * src_n + h * src_h + w * src_w :][:run]
            target = dst[dst_at + n * dst_n + h * dst_h + w * dst_w :][:run]
            for i in range(run):
                target[i] = source[i]


@kernel("void(f4[::1], i8, i8, i8, i8, f4[::1], i8, i8, i8, i8, i8, i8, i8, i8, i8, i8)")
def _add_block(
    src, src_at, src_n, src_h, src_w, dst, dst_at, dst_n, dst_h, dst_w, height, width, run, lo, hi, thread
):  # fmt: skip
    """As `_copy_block`, but adds."""
    for item in range(lo, hi):
        n, h = item // height, item % height
        for w in range(width):
            source = src[src_at + n * src_n + h * src_h + w * src_w :][:run]
            target = dst[dst_at + n * dst_n + h * dst_h + w * dst_w :][:run]
            for i in range(run):
                target[i] += source[i]


@kernel("void(f4[:,:,:,::1], f4[:,:,:,::1], i8, i8, f4, i8, i8, i8)")
def _pad(x, y, top, left, value, lo, hi, thread):
    """Items are output rows."""
    height, width, channels = x.shape[1], x.shape[2], x.shape[3]
    for item in range(lo, hi):
        n, oh = item // y.shape[1], item % y.shape[1]
        inside = top <= oh < top + height
        for ow in range(y.shape[2]):
            for c in range(channels):
                if inside and left <= ow < left + width:
                    y[n, oh, ow, c] = x[n, oh - top, ow - left, c]
                else:
                    y[n, oh, ow, c] = value


@kernel("void(f4[:,:,::1], f4[:,:,::1], i8, i8, i8, i8)")
def _transpose(x, y, block, lo, hi, thread):
    """y[b, j, i] = x[b, i, j]; items are (b, block of `block` columns j)."""
    rows, columns = x.shape[1], x.shape[2]
    blocks = -(-columns // block)
    for item in range(lo, hi):
        b, j0 = item // blocks, item % blocks * block
        j1 = min(columns, j0 + block)
        for i0 in range(0, rows, block):
            i1 = min(rows, i0 + block)
            for j in range(j0, j1):
                for i in range(i0, i1):
                    y[b, j, i] = x[b, i, j]


def slice_nhwc(pool: ThreadPool, x: Array, y: Array, n0: int, h0: int, w0: int, c0: int) -> None:
    """y = x[n0:, h0:, w0:, c0:], as much as y holds."""
    _block(pool, _copy_block, x, (n0, h0, w0, c0), y, (0, 0, 0, 0), y.shape)


def insert_nhwc(pool: ThreadPool, src: Array, dst: Array, n0: int, h0: int, w0: int, c0: int) -> None:
    """dst[n0:, h0:, w0:, c0:] = src, in place; a concat is one insert per input."""
    _block(pool, _copy_block, src, (0, 0, 0, 0), dst, (n0, h0, w0, c0), src.shape)


def insert_add_nhwc(pool: ThreadPool, src: Array, dst: Array, n0: int, h0: int, w0: int, c0: int) -> None:
    """dst[n0:, h0:, w0:, c0:] += src, in place."""
    _block(pool, _add_block, src, (0, 0, 0, 0), dst, (n0, h0, w0, c0), src.shape)


def pad_nhwc(
    pool: ThreadPool, x: Array, y: Array, top: int, bottom: int, left: int, right: int, value: float = 0.0
) -> None:
    """y = x with a border of `value`; y is (N, top + H + bottom, left + W + right, C)."""
    items = y.shape[0] * y.shape[1]
    pool.run(_pad, items, row_chunk(items, y.size // items), x, y, top, left, np.float32(value))


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
    pool.run(_transpose, items, row_chunk(items, x3.shape[1] * min(block, x3.shape[2])), x3, y3, block)


def _block(pool, range_kernel, src, src_at, dst, dst_at, extent) -> None:
    """Copies or adds a block; whole pixels, and whole rows, are merged into longer runs."""
    batch, height, width, run = extent
    if src.shape[3] == run == dst.shape[3]:
        width, run = 1, width * run
    ends = (*_offset_and_strides(src, src_at), flat(dst), *_offset_and_strides(dst, dst_at))
    items = batch * height
    pool.run(range_kernel, items, row_chunk(items, width * run), flat(src), *ends, height, width, run)


def _offset_and_strides(array: Array, at: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Element offset of `at`, and the strides of n, h and w in elements."""
    _, h, w, c = array.shape
    return ((at[0] * h + at[1]) * w + at[2]) * c + at[3], h * w * c, w * c, c
