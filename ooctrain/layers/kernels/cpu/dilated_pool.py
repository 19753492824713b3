"""Max pooling whose windows have gaps between their cells, and its gradient.

Arrays are as in `pooling.py`. Few networks dilate a pooling, so these are the plain loops of the
definition. In the gradient an input cell sums over the windows of which it is a cell. Read next:
`losses.py`.
"""

from __future__ import annotations

import numba
import numpy as np

from ooctrain.layers.kernels.cpu.chunks import image_sizes, row_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.signature import F4s, I8x5, I8x8, U1s
from ooctrain.layers.pooling import PoolGeometry

Array = np.ndarray
ZERO, LOWEST = np.float32(0), np.float32(-np.inf)


@kernel
def _max_pool(xs: F4s, ys: F4s, indices: U1s, sizes: I8x5, window: I8x8, lo, hi, thread):
    """Items are output rows (n, oh). As in torch, the first maximum wins, and NaN beats all."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, dh, dw, top, left = window
    for item in range(lo, hi):
        n, oh = item // rows, item % rows
        for ow in range(columns):
            for c in range(channels):
                best, where = LOWEST, -1
                for r in range(kh):
                    h = oh * sh - top + r * dh
                    for s in range(kw):
                        w = ow * sw - left + s * dw
                        if h < 0 or h >= height or w < 0 or w >= width:
                            continue
                        x = xs[((n * height + h) * width + w) * channels + c]
                        if where < 0 or x > best or (np.isnan(x) and not np.isnan(best)):
                            best, where = x, r * kw + s
                out = (item * columns + ow) * channels + c
                ys[out], indices[out] = best, max(where, 0)


@numba.njit(inline="always")
def _position(at, window, stride, dilation, cells):
    """Which of a window's cells (along one axis) padded row `at` is; -1 where it is none."""
    behind = at - window * stride
    if behind < 0 or behind % dilation != 0 or behind // dilation >= cells:
        return -1
    return behind // dilation


@kernel
def _max_pool_grad(dys: F4s, indices: U1s, dxs: F4s, sizes: I8x5, window: I8x8, lo, hi, thread):
    """Items are input rows (n, h)."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, dh, dw, top, left = window
    for item in range(lo, hi):
        n, h = item // height, item % height
        dxs[item * width * channels : (item + 1) * width * channels] = ZERO
        for oh in range(max(0, (h + top - (kh - 1) * dh) // sh), min(rows, (h + top) // sh + 1)):
            r = _position(h + top, oh, sh, dh, kh)
            if r < 0:
                continue
            for w in range(width):
                first = max(0, (w + left - (kw - 1) * dw) // sw)
                for ow in range(first, min(columns, (w + left) // sw + 1)):
                    s = _position(w + left, ow, sw, dw, kw)
                    if s < 0:
                        continue
                    i = ((n * rows + oh) * columns + ow) * channels
                    j = (item * width + w) * channels
                    for c in range(channels):
                        if indices[i + c] == r * kw + s:
                            dxs[j + c] += dys[i + c]


def max_pool(pool: ThreadPool, x: Array, y: Array, index: Array, g: PoolGeometry) -> None:
    """As `pooling.max_pool`, with rows and columns between the cells of a window."""
    items, arrays = y.shape[0] * y.shape[1], (x, y, index)
    sizes, chunk = image_sizes(x, y), row_chunk(items, y.size // items)
    pool.run(_max_pool, items, chunk, *arrays, sizes, _window(g))


def max_pool_grad(pool: ThreadPool, dy: Array, index: Array, dx: Array, g: PoolGeometry) -> None:
    """dx = for each input cell the sum of dy over the windows whose maximum it was."""
    items, arrays = dx.shape[0] * dx.shape[1], (dy, index, dx)
    sizes, chunk = image_sizes(dx, dy), row_chunk(items, dx.size // items)
    pool.run(_max_pool_grad, items, chunk, *arrays, sizes, _window(g))


def _window(g: PoolGeometry) -> tuple[int, ...]:
    """(kernel, stride, dilation, top and left padding)."""
    return *g.kernel, *g.stride, *g.dilation, g.padding[0], g.padding[2]
