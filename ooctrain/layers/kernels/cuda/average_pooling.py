"""Average pooling on NHWC, fixed windows and adaptive ones, and their gradients.

The kernels map x (N, H, W, C) to y (N, OH, OW, C). An adaptive window only has another formula for
its first and end cell, so one kernel serves both kinds. Each row of a window is summed, then the
sums of the rows: an average of a million pixels loses no more digits than two sums of a thousand.
Read next: `upsample.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cuda.conv.image_rows import (
    F0,
    LANES,
    THREADS,
    U0,
    U1,
    Array,
    lanes_of,
    load,
    pixel_of,
    place_of,
    row_blocks,
    row_start,
    scaled,
    sizes_of,
    store,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, float32, kernel, smaller, uint32
from ooctrain.layers.pooling import PoolGeometry

F1 = np.float32(1)
#: The window (kernel, stride, top and left padding) that stands for adaptive pooling.
ADAPTIVE = (0, 0, 0, 0, 0, 0)


@device
def _first(window, size, windows, cells, stride, before):
    """First input cell of a window; `cells`, its size, is 0 for adaptive windows."""
    if cells == U0:
        return scaled(window, size, windows, U0)
    start = uint32(window * stride)
    return uint32(start - before) if start > before else U0


@device
def _end(window, size, windows, cells, stride, before):
    """One past the last input cell of a window."""
    if cells == U0:
        return scaled(uint32(window + U1), size, windows, uint32(windows - U1))
    return smaller(size, uint32(uint32(window * stride) + cells - before))


@device
def _first_cover(cell, size, windows, cells, stride, before):
    """First window that covers an input cell."""
    if cells == U0:
        return scaled(cell, windows, size, U0)
    at = uint32(cell + before)
    return uint32(uint32(at - cells) // stride + U1) if at >= cells else U0


@device
def _end_cover(cell, size, windows, cells, stride, before):
    """One past the last window that covers an input cell."""
    if cells == U0:
        return scaled(uint32(cell + U1), windows, size, uint32(size - U1))
    return smaller(windows, uint32(uint32(uint32(cell + before) // stride) + U1))


@kernel("void(f4[::1], f4[::1], UniTuple(u4, 5), UniTuple(u4, 6), u4, u4)", threads=THREADS)
def _avg_pool(x, y, sizes, window, divisor, lanes):
    """A thread: some channels of an output pixel. Divisor 0: the number of cells in the image."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, top, left = window
    total = cuda.local.array(LANES, float32)
    along = cuda.local.array(LANES, float32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, oh, ow, c = pixel_of(row, place, rows, channels, lanes)
    if ow < columns:
        h, h_end = _first(oh, height, rows, kh, sh, top), _end(oh, height, rows, kh, sh, top)
        w_first = _first(ow, width, columns, kw, sw, left)
        w_end = _end(ow, width, columns, kw, sw, left)
        cells = divisor
        if cells == U0:
            cells = uint32(uint32(h_end - h) * uint32(w_end - w_first))
        for lane in range(LANES):
            total[lane] = F0
        while h < h_end:
            start = row_start(uint32(n * height + h), width, channels)
            for lane in range(LANES):
                along[lane] = F0
            w = w_first
            while w < w_end:
                values = load(x, start + uint32(w * channels + c), lanes)
                for lane in range(LANES):
                    along[lane] += values[lane]
                w = uint32(w + U1)
            for lane in range(LANES):
                total[lane] += along[lane]
            h = uint32(h + U1)
        for lane in range(LANES):
            total[lane] /= float32(cells)
        store(y, row_start(row, columns, channels) + uint32(ow * channels + c), total, lanes)


@kernel("void(f4[::1], f4[::1], UniTuple(u4, 5), UniTuple(u4, 6), u4, u4)", threads=THREADS)
def _avg_pool_grad(dy, dx, sizes, window, divisor, lanes):
    """A thread: some channels of an input pixel, over the windows that cover it."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, top, left = window
    total = cuda.local.array(LANES, float32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, h, w, c = pixel_of(row, place, height, channels, lanes)
    if w < width:
        oh = _first_cover(h, height, rows, kh, sh, top)
        oh_end = _end_cover(h, height, rows, kh, sh, top)
        ow_first = _first_cover(w, width, columns, kw, sw, left)
        ow_end = _end_cover(w, width, columns, kw, sw, left)
        for lane in range(LANES):
            total[lane] = F0
        while oh < oh_end:
            tall = uint32(
                _end(oh, height, rows, kh, sh, top) - _first(oh, height, rows, kh, sh, top)
            )
            start = row_start(uint32(n * rows + oh), columns, channels)
            ow = ow_first
            while ow < ow_end:
                cells = divisor
                if cells == U0:
                    wide = uint32(_end(ow, width, columns, kw, sw, left))
                    cells = uint32(tall * uint32(wide - _first(ow, width, columns, kw, sw, left)))
                share = F1 / float32(cells)
                values = load(dy, start + uint32(ow * channels + c), lanes)
                for lane in range(LANES):
                    total[lane] += share * values[lane]
                ow = uint32(ow + U1)
            oh = uint32(oh + U1)
        store(dx, row_start(row, width, channels) + uint32(w * channels + c), total, lanes)


def avg_pool(
    launcher: Launcher, x: Array, y: Array, g: PoolGeometry, count_include_pad: bool
) -> None:
    """y = sum of each window / number of its cells, those of the padding counted or not.

    Args:
        x: (N, H, W, C).
        y: (N, OH, OW, C).
        g: the windows.
        count_include_pad: as in torch.
    """
    sizes, lanes = sizes_of(x, y), lanes_of(x.shape[3])
    window = _window(g, count_include_pad)
    launcher.launch(_avg_pool, row_blocks(y), x, y, sizes, *window, lanes)


def avg_pool_grad(
    launcher: Launcher, dy: Array, dx: Array, g: PoolGeometry, count_include_pad: bool
) -> None:
    """dx = for each input pixel the sum of dy / cells over the windows that cover it."""
    sizes, lanes = sizes_of(dx, dy), lanes_of(dx.shape[3])
    window = _window(g, count_include_pad)
    launcher.launch(_avg_pool_grad, row_blocks(dx), dy, dx, sizes, *window, lanes)


def adaptive_avg_pool(launcher: Launcher, x: Array, y: Array) -> None:
    """y = means over OH x OW windows [floor(o * H / OH), ceil((o + 1) * H / OH)), as in torch."""
    sizes, lanes = sizes_of(x, y), lanes_of(x.shape[3])
    launcher.launch(_avg_pool, row_blocks(y), x, y, sizes, ADAPTIVE, 0, lanes)


def adaptive_avg_pool_grad(launcher: Launcher, dy: Array, dx: Array) -> None:
    """dx = for each input pixel the sum of dy / cells over the adaptive windows that cover it."""
    sizes, lanes = sizes_of(dx, dy), lanes_of(dx.shape[3])
    launcher.launch(_avg_pool_grad, row_blocks(dx), dy, dx, sizes, ADAPTIVE, 0, lanes)


def _window(g: PoolGeometry, count_include_pad: bool) -> tuple[tuple[int, ...], int]:
    """(kernel, stride, top and left padding), and the cells of each; 0: those in the image."""
    cells = g.kernel[0] * g.kernel[1] if count_include_pad else 0
    return (*g.kernel, *g.stride, g.padding[0], g.padding[2]), cells
