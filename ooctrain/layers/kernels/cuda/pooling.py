"""Pooling on the GPU, in which gradients *gather*: nothing is added atomically.

The kernels map x (N, H, W, C) to y (N, OH, OW, C). As on the cpu, the thread of an input pixel adds
up the windows that cover it, in ascending order, so the bits are fixed. Rows and columns of a
window are clipped to the image before the loops, which therefore need no tests. The four channels
of a thread are one access: 16 bytes of values, four of places. Read next: `resampling.py`,
`../cpu/pooling.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cuda.image_rows import (
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
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4_bytes, st4_bytes
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    device,
    float32,
    int32,
    kernel,
    larger,
    smaller,
    uint8,
    uint32,
)
from ooctrain.layers.kernels.signature import U4, F4s, U1s, U4x5, U4x6, U4x8
from ooctrain.layers.pooling import PoolGeometry

# Max pooling, its windows dense or with gaps. It also gives the place of each maximum in its window
# (one byte, r * S + s), which is all that the gradient reads.

LOWEST = np.float32(-np.inf)
I0 = np.int32(0)


@device
def _first_cell(corner, dilation):
    """First row of a window that lies in the image; `corner`: where the window begins."""
    outside = uint32(larger(I0, int32(-corner)))
    return uint32(uint32(outside + dilation - U1) // dilation) if dilation > U1 else outside


@device
def _end_cell(corner, extent, dilation, cells):
    """One past the last row of a window that lies in the image."""
    inside = uint32(larger(I0, int32(int32(extent) - corner)))
    if dilation > U1:
        inside = uint32(uint32(inside + dilation - U1) // dilation)
    return smaller(inside, cells)


@device
def _first_window(at, reach, stride):
    """First window that may cover padded row `at`; a window reaches `reach` rows past its first."""
    return uint32(uint32(at - reach + stride - U1) // stride) if at > reach else U0


@device
def _cell_of(behind, dilation, cells):
    """Which row of a window lies `behind` rows after its first; `cells` where none does."""
    if dilation == U1:
        return behind
    cell = uint32(behind // dilation)
    return cell if uint32(cell * dilation) == behind else cells


@kernel(threads=THREADS)
def _max_pool(x: F4s, y: F4s, index: U1s, sizes: U4x5, window: U4x8, lanes: U4):
    """A thread: some channels of an output pixel. The first maximum wins, as in torch, or a NaN."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, dh, dw, top, left = window
    best = cuda.local.array(LANES, float32)
    where = cuda.local.array(LANES, uint32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, oh, ow, c = pixel_of(row, place, rows, channels, lanes)
    if ow < columns:
        corner_h = int32(int32(oh * sh) - int32(top))
        corner_w = int32(int32(ow * sw) - int32(left))
        r, r_end = _first_cell(corner_h, dh), _end_cell(corner_h, height, dh, kh)
        s_first, s_end = _first_cell(corner_w, dw), _end_cell(corner_w, width, dw, kw)
        for lane in range(LANES):
            best[lane] = LOWEST
            # Where all are -inf, the first cell inside the image is the first maximum.
            where[lane] = uint32(r * kw + s_first) if r < r_end and s_first < s_end else U0
        while r < r_end:
            h = uint32(corner_h + int32(r * dh))
            start = row_start(uint32(n * height + h), width, channels)
            s = s_first
            while s < s_end:
                w = uint32(corner_w + int32(s * dw))
                values = load(x, start + uint32(w * channels + c), lanes)
                cell = uint32(r * kw + s)
                for lane in range(LANES):
                    v, b = values[lane], best[lane]
                    wins = v > b or v != v
                    best[lane] = v if wins else b
                    where[lane] = cell if wins else where[lane]
                s = uint32(s + U1)
            r = uint32(r + U1)
        out = row_start(row, columns, channels) + uint32(ow * channels + c)
        store(y, out, best, lanes)
        if lanes == U1:
            index[out] = uint8(where[0])
        else:
            st4_bytes(index, out, (where[0], where[1], where[2], where[3]))


@device
def _cells(index, at, lanes):
    """Where the maxima of a thread's channels sat."""
    if lanes == U1:
        return uint32(index[at]), U0, U0, U0
    return ld4_bytes(index, at)


@kernel(threads=THREADS)
def _max_pool_grad(dy: F4s, index: U1s, dx: F4s, sizes: U4x5, window: U4x8, lanes: U4):
    """A thread: some channels of an input pixel, over the windows that cover it."""
    height, width, rows, columns, channels = sizes
    kh, kw, sh, sw, dh, dw, top, left = window
    total = cuda.local.array(LANES, float32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, line, w, c = pixel_of(row, place, height, channels, lanes)
    if w < width:
        at_h = uint32(line + top)
        at_w = uint32(w + left)
        oh = _first_window(at_h, uint32(uint32(kh - U1) * dh), sh)
        ow_first = _first_window(at_w, uint32(uint32(kw - U1) * dw), sw)
        oh_end = smaller(rows, uint32(uint32(at_h // sh) + U1))
        ow_end = smaller(columns, uint32(uint32(at_w // sw) + U1))
        for lane in range(LANES):
            total[lane] = F0
        while oh < oh_end:
            r = _cell_of(uint32(at_h - uint32(oh * sh)), dh, kh)
            start = row_start(uint32(n * rows + oh), columns, channels)
            ow = ow_first if r < kh else ow_end
            while ow < ow_end:
                s = _cell_of(uint32(at_w - uint32(ow * sw)), dw, kw)
                if s < kw:
                    at = start + uint32(ow * channels + c)
                    values = load(dy, at, lanes)
                    cells = _cells(index, at, lanes)
                    for lane in range(LANES):
                        here = cells[lane] == uint32(r * kw + s)
                        total[lane] += values[lane] if here else F0
                ow = uint32(ow + U1)
            oh = uint32(oh + U1)
        store(dx, row_start(row, width, channels) + uint32(w * channels + c), total, lanes)


def max_pool(launcher: Launcher, x: Array, y: Array, index: Array, g: PoolGeometry) -> None:
    """y = maximum of each window; index = its position r * kernel_w + s in the window.

    Args:
        x: (N, H, W, C).
        y: (N, OH, OW, C).
        index: uint8, shape of y.
        g: the windows; padded cells never win.
    """
    sizes, lanes = sizes_of(x, y), lanes_of(x.shape[3])
    launcher.launch(_max_pool, row_blocks(y), x, y, index, sizes, _window(g), lanes)


def max_pool_grad(launcher: Launcher, dy: Array, index: Array, dx: Array, g: PoolGeometry) -> None:
    """dx = for each input pixel the sum of dy over the windows whose maximum it was."""
    sizes, lanes = sizes_of(dx, dy), lanes_of(dx.shape[3])
    launcher.launch(_max_pool_grad, row_blocks(dx), dy, index, dx, sizes, _window(g), lanes)


def _window(g: PoolGeometry) -> tuple[int, ...]:
    """(kernel, stride, dilation, top and left padding)."""
    return *g.kernel, *g.stride, *g.dilation, g.padding[0], g.padding[2]


# Average pooling, by fixed windows and adaptive ones. An adaptive window only has another formula
# for its first and end cell, so one kernel serves both kinds. Each row of a window is summed, then
# the sums of the rows: an average of a million pixels loses no more digits than two sums of a
# thousand.

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


@kernel(threads=THREADS)
def _avg_pool(x: F4s, y: F4s, sizes: U4x5, window: U4x6, divisor: U4, lanes: U4):
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


@kernel(threads=THREADS)
def _avg_pool_grad(dy: F4s, dx: F4s, sizes: U4x5, window: U4x6, divisor: U4, lanes: U4):
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
    window = _average_window(g, count_include_pad)
    launcher.launch(_avg_pool, row_blocks(y), x, y, sizes, *window, lanes)


def avg_pool_grad(
    launcher: Launcher, dy: Array, dx: Array, g: PoolGeometry, count_include_pad: bool
) -> None:
    """dx = for each input pixel the sum of dy / cells over the windows that cover it."""
    sizes, lanes = sizes_of(dx, dy), lanes_of(dx.shape[3])
    window = _average_window(g, count_include_pad)
    launcher.launch(_avg_pool_grad, row_blocks(dx), dy, dx, sizes, *window, lanes)


def adaptive_avg_pool(launcher: Launcher, x: Array, y: Array) -> None:
    """y = means over OH x OW windows [floor(o * H / OH), ceil((o + 1) * H / OH)), as in torch."""
    sizes, lanes = sizes_of(x, y), lanes_of(x.shape[3])
    launcher.launch(_avg_pool, row_blocks(y), x, y, sizes, ADAPTIVE, 0, lanes)


def adaptive_avg_pool_grad(launcher: Launcher, dy: Array, dx: Array) -> None:
    """dx = for each input pixel the sum of dy / cells over the adaptive windows that cover it."""
    sizes, lanes = sizes_of(dx, dy), lanes_of(dx.shape[3])
    launcher.launch(_avg_pool_grad, row_blocks(dx), dy, dx, sizes, ADAPTIVE, 0, lanes)


def _average_window(g: PoolGeometry, count_include_pad: bool) -> tuple[tuple[int, ...], int]:
    """(kernel, stride, top and left padding), and the cells of each; 0: those in the image."""
    cells = g.kernel[0] * g.kernel[1] if count_include_pad else 0
    return (*g.kernel, *g.stride, g.padding[0], g.padding[2]), cells
