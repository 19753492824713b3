"""Depthwise convolution: every channel has a filter of its own.

Arrays are as in `conv2d.py`, with one input channel for each filter. There is no matrix product
here: each output is a sum over the few taps of its window. Vectors therefore hold channels, the
weights are transposed once into a (taps, channels) table, and memory limits the speed. Forward and
the gradient of the input are one kernel: output o reads pixel (o * scale + shift + tap * step) /
divide where that is whole. Forward has scale = stride, step = dilation; backward has divide =
stride, step = -dilation. Any stride, dilation and padding is allowed. Read next:
`layers/conv2d.py`, whose operations choose this algorithm.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cpu.chunks import chunk_count, row_chunk
from ooctrain.layers.kernels.cpu.conv import conv_workspace
from ooctrain.layers.kernels.cpu.elementwise import fill
from ooctrain.layers.kernels.cpu.layout import transpose
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vfma, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload, vload_upto, vstore4, vstore_upto
from ooctrain.layers.kernels.signature import I8, F4s, I8x4, I8x6, I8x7

Array = np.ndarray
ZERO = np.float32(0)


@inner
def _pixel(at, divide, extent):
    """The row (or column) at / divide, or -1 where it is not whole or outside."""
    if at < 0:
        return -1
    if divide > 1:
        if at % divide != 0:
            return -1
        at //= divide
    return at if at < extent else -1


@kernel
def _gather(
    x: F4s, table: F4s, bias: F4s, y: F4s, sizes: I8x7, down: I8x4, across: I8x4, lo, hi, thread,
):  # fmt: skip
    """Items are rows of y: y = bias + sum over taps of x * table. Four vectors at a time."""
    height, width, rows, columns, kh, kw, channels = sizes
    scale_h, shift_h, step_h, divide_h = down
    scale_w, shift_w, step_w, divide_w = across
    whole = channels - channels % (4 * VL)
    for item in range(lo, hi):
        n, at_h = item // rows, item % rows * scale_h + shift_h
        for column in range(columns):
            at_w, out = column * scale_w + shift_w, (item * columns + column) * channels
            for c in range(0, whole, 4 * VL):
                a0, a1 = vload(bias, c), vload(bias, c + VL)
                a2, a3 = vload(bias, c + 2 * VL), vload(bias, c + 3 * VL)
                for r in range(kh):
                    h = _pixel(at_h + r * step_h, divide_h, height)
                    if h < 0:
                        continue
                    for s in range(kw):
                        w = _pixel(at_w + s * step_w, divide_w, width)
                        if w >= 0:
                            i = ((n * height + h) * width + w) * channels + c
                            t = (r * kw + s) * channels + c
                            a0 = vfma(vload(x, i), vload(table, t), a0)
                            a1 = vfma(vload(x, i + VL), vload(table, t + VL), a1)
                            a2 = vfma(vload(x, i + 2 * VL), vload(table, t + 2 * VL), a2)
                            a3 = vfma(vload(x, i + 3 * VL), vload(table, t + 3 * VL), a3)
                vstore4(y, out + c, a0, a1, a2, a3)
            for c in range(whole, channels, VL):
                lanes = channels - c
                a0 = vload_upto(bias, c, lanes)
                for r in range(kh):
                    h = _pixel(at_h + r * step_h, divide_h, height)
                    if h < 0:
                        continue
                    for s in range(kw):
                        w = _pixel(at_w + s * step_w, divide_w, width)
                        if w >= 0:
                            i = ((n * height + h) * width + w) * channels + c
                            t = (r * kw + s) * channels + c
                            a0 = vfma(vload_upto(x, i, lanes), vload_upto(table, t, lanes), a0)
                vstore_upto(y, out + c, a0, lanes)


@kernel
def _grad_weight(
    x: F4s, dy: F4s, tables: F4s, sizes: I8x7, window: I8x6, table_size: I8, rows_per_chunk: I8, lo,
    hi, thread,
):  # fmt: skip
    """Items are rows of dy; each chunk of them has its own table, at multiples of `table_size`."""
    height, width, rows, columns, kh, kw, channels = sizes
    sh, sw, dh, dw, top, left = window
    base = lo // rows_per_chunk * table_size
    tables[base : base + table_size] = ZERO
    for item in range(lo, hi):
        n, h0 = item // rows, item % rows * sh - top
        for tap in range(kh * kw):
            h, w0 = h0 + tap // kw * dh, tap % kw * dw - left
            if h < 0 or h >= height:
                continue
            first = 0 if w0 >= 0 else (sw - 1 - w0) // sw
            last = min(columns, (width - w0 + sw - 1) // sw)
            for c in range(0, channels, VL):
                lanes, t = channels - c, base + tap * channels + c
                total = vsplat(ZERO)
                for ow in range(first, last):
                    i = ((n * height + h) * width + w0 + ow * sw) * channels + c
                    j = (item * columns + ow) * channels + c
                    total = vfma(vload_upto(x, i, lanes), vload_upto(dy, j, lanes), total)
                vstore_upto(tables, t, vload_upto(tables, t, lanes) + total, lanes)


@kernel
def _sum_tables(tables: F4s, table_size: I8, count: I8, lo, hi, thread):
    """The first table becomes the sum of all, in their order. Items: elements."""
    for k in range(1, count):
        for i in range(lo, hi):
            tables[i] += tables[k * table_size + i]


def forward(pool: ThreadPool, shape: ConvShape, x, w, bias, y, workspace) -> None:
    """y = bias + for each channel the correlation with its filter."""
    table, zeros = _table(pool, shape, w, workspace)
    top, _, left, _ = shape.padding
    if bias is None:
        bias = zeros[: shape.c]
        fill(pool, bias, 0.0)
    down = shape.stride[0], -top, shape.dilation[0], 1
    across = shape.stride[1], -left, shape.dilation[1], 1
    sizes = shape.h, shape.w, shape.oh, shape.ow, shape.r, shape.s, shape.c
    items = shape.n * shape.oh
    chunk = conv_workspace.output_chunk(shape)
    pool.run(_gather, items, chunk, x, table, bias, y, sizes, down, across)


def grad_input(
    pool: ThreadPool, shape: ConvShape, dy: Array, w: Array, dx: Array, workspace: Array
) -> None:
    """dx: for each input pixel the sum of dy times the weight of the tap that read it."""
    table, zeros = _table(pool, shape, w, workspace)
    top, _, left, _ = shape.padding
    fill(pool, zeros[: shape.c], 0.0)
    down = 1, top, -shape.dilation[0], shape.stride[0]
    across = 1, left, -shape.dilation[1], shape.stride[1]
    sizes = shape.oh, shape.ow, shape.h, shape.w, shape.r, shape.s, shape.c
    items = shape.n * shape.h
    chunk = row_chunk(items, shape.w * shape.c)
    arrays = dy, table, zeros[: shape.c], dx
    pool.run(_gather, items, chunk, *arrays, sizes, down, across)


def grad_weight(
    pool: ThreadPool, shape: ConvShape, x: Array, dy: Array, dw: Array, workspace: Array
) -> None:
    """dw: for each tap the sum of dy times the pixel that it read, chunk by chunk."""
    tables, table_size = workspace.view(np.float32), conv_workspace.table_floats(shape)
    items, chunk = shape.n * shape.oh, conv_workspace.output_chunk(shape)
    sizes = shape.h, shape.w, shape.oh, shape.ow, shape.r, shape.s, shape.c
    window = *shape.stride, *shape.dilation, shape.padding[0], shape.padding[2]
    pool.run(_grad_weight, items, chunk, x, dy, tables, sizes, window, table_size, chunk)
    taps, chunks = shape.r * shape.s, chunk_count(items, chunk)
    if chunks > 1:
        pool.run(_sum_tables, table_size, table_size, tables, table_size, chunks)
    total = tables[: taps * shape.c].reshape(taps, shape.c)
    transpose(pool, total, dw.reshape(shape.c, taps))


def _table(pool: ThreadPool, shape: ConvShape, w: Array, workspace: Array) -> tuple[Array, Array]:
    """The weights as (taps, channels) at the front of the workspace, and the rest of it."""
    floats, taps = workspace.view(np.float32), shape.r * shape.s
    table = floats[: taps * shape.c]
    transpose(pool, w.reshape(shape.c, taps), table.reshape(taps, shape.c))
    return table, floats[conv_workspace.table_floats(shape) :]
