"""Max and average pooling on NHWC, fixed windows and adaptive ones, and their gradients.

The image x (N, H, W, C) becomes y (N, OH, OW, C); max pooling also stores the position of each
maximum in its window (one byte, r * kernel width + s). Gradients *gather*: each input cell sums the
windows that cover it, in ascending order. So no two threads write the same cell, and the order of a
sum is fixed. Padding is (top, bottom, left, right). A tile of an image passes 0 on the sides where
it was cut, since its halo is part of the data, and the image's padding on the others. The cells
outside the tile are then exactly those outside the image, and an average divides by the same count
as in the untiled image. Read next: `losses.py`.
"""

from __future__ import annotations

from types import ModuleType

import numba
import numpy as np

from ooctrain.layers.kernels.cpu.chunks import image_sizes, row_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vfma, vselect_eq, vselect_wins, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    prefetch,
    vload,
    vload_bytes,
    vload_bytes_upto,
    vload_upto,
    vstore4,
    vstore4_bytes,
    vstore_bytes_upto,
    vstore_upto,
)
from ooctrain.layers.kernels.signature import I8, F4s, I8x5, I8x6, U1s
from ooctrain.layers.pooling import PoolGeometry

Array = np.ndarray
ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-np.inf)
#: How far ahead, in elements, rows of windows are prefetched.
AHEAD = 1024
#: The window (kernel, stride, top and left padding) that stands for adaptive pooling.
ADAPTIVE = (0, 0, 0, 0, 0, 0)


@numba.njit(inline="always")
def _prefetch_run(array, start, count):
    """Prefetches `count` floats that lie AHEAD elements behind `start`.

    The hardware's prefetcher does not follow the rows of windows: max pooling of large images is
    twice as fast with this (measured).
    """
    for i in range(start + AHEAD, start + AHEAD + count, 16):
        prefetch(array, i)


@kernel
def _max_pool(xs: F4s, ys: F4s, indices: U1s, sizes: I8x5, window: I8x6, lo, hi, thread):
    """Items are output rows (n, oh). Rows r and columns s of a window are clipped to the image.

    As in torch, the first maximum wins, and NaN beats everything. Four vectors of channels are done
    at a time: in each, every comparison waits for the one before, so the four overlap.
    """
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, top, left = window
    lowest, whole = vsplat(LOWEST), channels - channels % (4 * VL)
    for item in range(lo, hi):
        n, oh = item // rows, item % rows
        r0, r1 = max(0, top - oh * sh), min(kh, height + top - oh * sh)
        for ow in range(columns):
            s0, s1 = max(0, left - ow * sw), min(kw, width + left - ow * sw)
            corner = ((n * height + oh * sh - top) * width + ow * sw - left) * channels
            out = (item * columns + ow) * channels
            for r in range(r0, r1):
                _prefetch_run(xs, corner + r * width * channels, sw * channels)
            start = vsplat(np.float32(r0 * kw + s0))
            for c in range(0, whole, 4 * VL):
                b0, b1, b2, b3 = lowest, lowest, lowest, lowest
                w0, w1, w2, w3 = start, start, start, start
                for r in range(r0, r1):
                    for s in range(s0, s1):
                        i = corner + (r * width + s) * channels + c
                        k = vsplat(np.float32(r * kw + s))
                        v0, v1 = vload(xs, i), vload(xs, i + VL)
                        v2, v3 = vload(xs, i + 2 * VL), vload(xs, i + 3 * VL)
                        w0, b0 = vselect_wins(v0, b0, k, w0), vselect_wins(v0, b0, v0, b0)
                        w1, b1 = vselect_wins(v1, b1, k, w1), vselect_wins(v1, b1, v1, b1)
                        w2, b2 = vselect_wins(v2, b2, k, w2), vselect_wins(v2, b2, v2, b2)
                        w3, b3 = vselect_wins(v3, b3, k, w3), vselect_wins(v3, b3, v3, b3)
                vstore4(ys, out + c, b0, b1, b2, b3)
                vstore4_bytes(indices, out + c, w0, w1, w2, w3)
            for c in range(whole, channels, VL):
                b0, w0, lanes = lowest, start, channels - c
                for r in range(r0, r1):
                    for s in range(s0, s1):
                        k = vsplat(np.float32(r * kw + s))
                        v0 = vload_upto(xs, corner + (r * width + s) * channels + c, lanes)
                        w0, b0 = vselect_wins(v0, b0, k, w0), vselect_wins(v0, b0, v0, b0)
                vstore_upto(ys, out + c, b0, lanes)
                vstore_bytes_upto(indices, out + c, w0, lanes)


@numba.njit(inline="always")
def _first(o, size, out, kernel, stride, before):
    """First input cell of window o; kernel 0 means adaptive windows."""
    if kernel == 0:
        return o * size // out if out > 1 else 0
    return max(0, o * stride - before)


@numba.njit(inline="always")
def _end(o, size, out, kernel, stride, before):
    """One past the last input cell of window o."""
    if kernel == 0:
        return ((o + 1) * size + out - 1) // out if out > 1 else size
    return min(size, o * stride - before + kernel)


@numba.njit(inline="always")
def _advance(o0, o1, cell, size, out, kernel, stride, before):
    """The windows [o0, o1) that cover `cell`, from those of the cell before; no division."""
    while o0 < out and _end(o0, size, out, kernel, stride, before) <= cell:
        o0 += 1
    while o1 < out and _first(o1, size, out, kernel, stride, before) <= cell:
        o1 += 1
    return o0, o1


@kernel
def _max_pool_grad(dys: F4s, indices: U1s, dxs: F4s, sizes: I8x5, window: I8x6, lo, hi, thread):
    """Items are input rows (n, h); window oh covers h when oh * sh <= h + top < oh * sh + kh."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, top, left = window
    zero, whole = vsplat(ZERO), channels - channels % (4 * VL)
    for item in range(lo, hi):
        n, h = item // height, item % height
        oh0, oh1 = max(0, (h + top - kh + sh) // sh), min(rows, (h + top) // sh + 1)
        ow0, ow1 = 0, 0
        for w in range(width):
            before = ow0
            ow0, ow1 = _advance(ow0, ow1, w, width, columns, kw, sw, left)
            out = (item * width + w) * channels
            _prefetch_run(dxs, out, channels)
            if w == 0 or ow0 > before:
                for oh in range(oh0, oh1):
                    i = ((n * rows + oh) * columns + ow0) * channels
                    _prefetch_run(dys, i, channels)
                    prefetch(indices, i + AHEAD)
            for c in range(0, whole, 4 * VL):
                t0, t1, t2, t3 = zero, zero, zero, zero
                for oh in range(oh0, oh1):
                    for ow in range(ow0, ow1):
                        i = ((n * rows + oh) * columns + ow) * channels + c
                        k = vsplat(np.float32((h + top - oh * sh) * kw + w + left - ow * sw))
                        t0 = t0 + vselect_eq(vload_bytes(indices, i), k, vload(dys, i), zero)
                        i += VL
                        t1 = t1 + vselect_eq(vload_bytes(indices, i), k, vload(dys, i), zero)
                        i += VL
                        t2 = t2 + vselect_eq(vload_bytes(indices, i), k, vload(dys, i), zero)
                        i += VL
                        t3 = t3 + vselect_eq(vload_bytes(indices, i), k, vload(dys, i), zero)
                vstore4(dxs, out + c, t0, t1, t2, t3)
            for c in range(whole, channels, VL):
                t0, lanes = zero, channels - c
                for oh in range(oh0, oh1):
                    for ow in range(ow0, ow1):
                        i = ((n * rows + oh) * columns + ow) * channels + c
                        k = vsplat(np.float32((h + top - oh * sh) * kw + w + left - ow * sw))
                        where, d = vload_bytes_upto(indices, i, lanes), vload_upto(dys, i, lanes)
                        t0 = t0 + vselect_eq(where, k, d, zero)
                vstore_upto(dxs, out + c, t0, lanes)


@kernel
def _avg_pool(xs: F4s, ys: F4s, sizes: I8x5, window: I8x6, divisor: I8, lo, hi, thread):
    """Items are output rows; divisor = 0 means the number of cells inside the image."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, top, left = window
    zero, whole = vsplat(ZERO), channels - channels % (4 * VL)
    for item in range(lo, hi):
        n, oh = item // rows, item % rows
        h0, h1 = _first(oh, height, rows, kh, sh, top), _end(oh, height, rows, kh, sh, top)
        for ow in range(columns):
            w0 = _first(ow, width, columns, kw, sw, left)
            w1 = _end(ow, width, columns, kw, sw, left)
            cells = vsplat(np.float32(divisor if divisor > 0 else (h1 - h0) * (w1 - w0)))
            out = (item * columns + ow) * channels
            for h in range(h0, h1):
                _prefetch_run(xs, (h * width + n * height * width + w0) * channels, sw * channels)
            for c in range(0, whole, 4 * VL):
                t0, t1, t2, t3 = zero, zero, zero, zero
                for h in range(h0, h1):
                    for w in range(w0, w1):
                        i = ((n * height + h) * width + w) * channels + c
                        t0, t1 = t0 + vload(xs, i), t1 + vload(xs, i + VL)
                        t2, t3 = t2 + vload(xs, i + 2 * VL), t3 + vload(xs, i + 3 * VL)
                vstore4(ys, out + c, t0 / cells, t1 / cells, t2 / cells, t3 / cells)
            for c in range(whole, channels, VL):
                t0 = zero
                for h in range(h0, h1):
                    for w in range(w0, w1):
                        i = ((n * height + h) * width + w) * channels + c
                        t0 = t0 + vload_upto(xs, i, channels - c)
                vstore_upto(ys, out + c, t0 / cells, channels - c)


@kernel
def _avg_pool_grad(dys: F4s, dxs: F4s, sizes: I8x5, window: I8x6, divisor: I8, lo, hi, thread):
    """Items are input rows; the windows that cover a cell are found as in `_max_pool_grad`."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, top, left = window
    for item in range(lo, hi):
        n, h = item // height, item % height
        if kh == 0:
            oh0, oh1 = h * rows // height, ((h + 1) * rows + height - 1) // height
        else:
            oh0, oh1 = max(0, (h + top - kh + sh) // sh), min(rows, (h + top) // sh + 1)
        ow0, ow1 = 0, 0
        for w in range(width):
            ow0, ow1 = _advance(ow0, ow1, w, width, columns, kw, sw, left)
            j = (item * width + w) * channels
            windows = 0
            for oh in range(oh0, oh1):
                tall = _end(oh, height, rows, kh, sh, top) - _first(oh, height, rows, kh, sh, top)
                for ow in range(ow0, ow1):
                    wide = _end(ow, width, columns, kw, sw, left)
                    wide -= _first(ow, width, columns, kw, sw, left)
                    share = vsplat(ONE / np.float32(divisor if divisor > 0 else tall * wide))
                    i = ((n * rows + oh) * columns + ow) * channels
                    for c in range(0, channels, VL):
                        count = channels - c
                        d = vload_upto(dys, i + c, count)
                        if windows > 0:
                            d = vfma(d, share, vload_upto(dxs, j + c, count))
                        else:
                            d = d * share
                        vstore_upto(dxs, j + c, d, count)
                    windows += 1
            if windows == 0:
                dxs[j : j + channels] = ZERO


def max_pool(pool: ThreadPool, x: Array, y: Array, index: Array, g: PoolGeometry) -> None:
    """y = maximum of each window; index = its position r * kernel_w + s in the window.

    Args:
        x: (N, H, W, C).
        y: (N, OH, OW, C).
        index: uint8, shape of y; so a window has at most 256 cells.
        g: the windows; padded cells never win.
    """
    if g.dilation != (1, 1):
        _dilated().max_pool(pool, x, y, index, g)
        return
    items = y.shape[0] * y.shape[1]
    arguments = x, y, index, image_sizes(x, y), _window(g)
    pool.run(_max_pool, items, _row_chunk_of(y, items), *arguments)


def max_pool_grad(pool: ThreadPool, dy: Array, index: Array, dx: Array, g: PoolGeometry) -> None:
    """dx = for each input cell the sum of dy over the windows whose maximum it was."""
    if g.dilation != (1, 1):
        _dilated().max_pool_grad(pool, dy, index, dx, g)
        return
    items = dx.shape[0] * dx.shape[1]
    arguments = dy, index, dx, image_sizes(dx, dy), _window(g)
    pool.run(_max_pool_grad, items, _row_chunk_of(dx, items), *arguments)


def avg_pool(
    pool: ThreadPool, x: Array, y: Array, g: PoolGeometry, count_include_pad: bool = True
) -> None:
    """y = sum of each window / number of its cells, those of the padding counted or not.

    Args: as `max_pool`; `count_include_pad` as in torch.
    """
    items = y.shape[0] * y.shape[1]
    arguments = x, y, image_sizes(x, y), _window(g), _divisor(g, count_include_pad)
    pool.run(_avg_pool, items, _row_chunk_of(y, items), *arguments)


def avg_pool_grad(
    pool: ThreadPool, dy: Array, dx: Array, g: PoolGeometry, count_include_pad: bool = True
) -> None:
    """dx = for each input cell the sum of dy / cells over the windows that cover it."""
    items = dx.shape[0] * dx.shape[1]
    arguments = dy, dx, image_sizes(dx, dy), _window(g), _divisor(g, count_include_pad)
    pool.run(_avg_pool_grad, items, _row_chunk_of(dx, items), *arguments)


def adaptive_avg_pool(pool: ThreadPool, x: Array, y: Array) -> None:
    """y = means over OH x OW windows [floor(o * H / OH), ceil((o + 1) * H / OH)), as in torch."""
    items = y.shape[0] * y.shape[1]
    arguments = x, y, image_sizes(x, y), ADAPTIVE, 0
    pool.run(_avg_pool, items, _row_chunk_of(x, items), *arguments)


def adaptive_avg_pool_grad(pool: ThreadPool, dy: Array, dx: Array) -> None:
    """dx = for each input cell the sum of dy / cells over the adaptive windows that cover it."""
    items = dx.shape[0] * dx.shape[1]
    arguments = dy, dx, image_sizes(dx, dy), ADAPTIVE, 0
    pool.run(_avg_pool_grad, items, _row_chunk_of(dx, items), *arguments)


def _window(g: PoolGeometry) -> tuple[int, ...]:
    """(kernel, stride, top and left padding)."""
    return *g.kernel, *g.stride, g.padding[0], g.padding[2]


def _divisor(g: PoolGeometry, count_include_pad: bool) -> int:
    """Cells of each window; 0: those inside the image."""
    return g.kernel[0] * g.kernel[1] if count_include_pad else 0


def _row_chunk_of(array: Array, items: int) -> int:
    return row_chunk(items, array.size // items)


def _dilated() -> ModuleType:
    """Kernels for windows with gaps."""
    # Late: `runtime/reached.py` is not to see it, since few networks have such windows.
    from ooctrain.layers.kernels.cpu import dilated_pool

    return dilated_pool
