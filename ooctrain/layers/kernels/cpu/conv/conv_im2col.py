"""Convolution as in textbooks: write every receptive field as a row of a matrix, then multiply.

Activations are NHWC and weights KRSC. Let col[p] be the R*S*C numbers on which output pixel p
depends ("im2col"). Then y[p, k] = col[p] . w[k]; dcol[p] = sum_k dy[p, k] w[k] is scattered back to
dx; and dW[k] = sum_p dy[p, k] col[p]. This is slow and clear: the reference with which the fast
kernels are compared. Each thread writes the column rows of one block of output rows at a time to
scratch memory. Source: Chellapilla, Puri, Simard, "High Performance Convolutional Neural Networks
for Document Processing" (2006), section 3. Read next: `conv_direct.py`, which never writes the
columns.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cpu.conv.conv_workspace import Im2colBlocking, im2col_blocking
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.signature import B1, F4s

ZERO = np.float32(0.0)


@inner
def _write_columns(x, p, image, group, row, rows, column):
    """column[pixel * columns + (r, s, c)] = x at tap (r, s), channel c of the pixel; 0 outside."""
    place = 0
    for oh in range(row, row + rows):
        for ow in range(p.ow):
            for r in range(p.r):
                ih = oh * p.stride_h + r * p.dilation_h - p.top
                for s in range(p.s):
                    iw = ow * p.stride_w + s * p.dilation_w - p.left
                    inside = ih >= 0 and ih < p.h and iw >= 0 and iw < p.w
                    start = ((image * p.h + ih) * p.w + iw) * p.c + group * p.cg
                    for c in range(p.cg):
                        column[place + c] = x[start + c] if inside else ZERO
                    place += p.cg


@kernel
def _forward(
    x: F4s, w: F4s, bias: F4s, has_bias: B1, y: F4s, space: F4s, p: Im2colBlocking, lo, hi, thread,
):  # fmt: skip
    """Items: blocks of output rows of an image."""
    column = space[thread * p.column_floats : (thread + 1) * p.column_floats]
    for item in range(lo, hi):
        image, row = item // p.row_blocks, item % p.row_blocks * p.block_rows
        rows = min(p.block_rows, p.oh - row)
        for group in range(p.groups):
            _write_columns(x, p, image, group, row, rows, column)
            for pixel in range(rows * p.ow):
                field = column[pixel * p.columns : (pixel + 1) * p.columns]
                start = ((image * p.oh + row) * p.ow + pixel) * p.k
                for k in range(group * p.kg, (group + 1) * p.kg):
                    weights = w[k * p.columns : (k + 1) * p.columns]
                    total = bias[k] if has_bias else ZERO
                    for i in range(p.columns):
                        total += field[i] * weights[i]
                    y[start + k] = total


@kernel
def _grad_input(dy: F4s, w: F4s, dx: F4s, space: F4s, p: Im2colBlocking, lo, hi, thread):
    """Items: whole images, since the fields of an image's pixels overlap in dx."""
    field = space[thread * p.column_floats : thread * p.column_floats + p.columns]
    for image in range(lo, hi):
        dx[image * p.h * p.w * p.c : (image + 1) * p.h * p.w * p.c] = ZERO
        for group in range(p.groups):
            for pixel in range(p.oh * p.ow):
                oh, ow = pixel // p.ow, pixel % p.ow
                field[:] = ZERO
                for k in range(group * p.kg, (group + 1) * p.kg):
                    error = dy[(image * p.oh * p.ow + pixel) * p.k + k]
                    weights = w[k * p.columns : (k + 1) * p.columns]
                    for i in range(p.columns):
                        field[i] += error * weights[i]
                for r in range(p.r):
                    ih = oh * p.stride_h + r * p.dilation_h - p.top
                    for s in range(p.s):
                        iw = ow * p.stride_w + s * p.dilation_w - p.left
                        if ih >= 0 and ih < p.h and iw >= 0 and iw < p.w:
                            start = ((image * p.h + ih) * p.w + iw) * p.c + group * p.cg
                            for c in range(p.cg):
                                dx[start + c] += field[(r * p.s + s) * p.cg + c]


@kernel
def _grad_weight(x: F4s, dy: F4s, dw: F4s, space: F4s, p: Im2colBlocking, lo, hi, thread):
    """Items: blocks of filters; each walks the whole batch, so no partial sums are needed."""
    column = space[thread * p.column_floats : (thread + 1) * p.column_floats]
    blocks = -(-p.kg // p.filters)
    for item in range(lo, hi):
        group = item // blocks
        first = group * p.kg + item % blocks * p.filters
        last = min(first + p.filters, (group + 1) * p.kg)
        dw[first * p.columns : last * p.columns] = ZERO
        for block in range(p.n * p.row_blocks):
            image, row = block // p.row_blocks, block % p.row_blocks * p.block_rows
            rows = min(p.block_rows, p.oh - row)
            _write_columns(x, p, image, group, row, rows, column)
            for pixel in range(rows * p.ow):
                field = column[pixel * p.columns : (pixel + 1) * p.columns]
                for k in range(first, last):
                    error = dy[((image * p.oh + row) * p.ow + pixel) * p.k + k]
                    sums = dw[k * p.columns : (k + 1) * p.columns]
                    for i in range(p.columns):
                        sums[i] += error * field[i]


def _scratch(p: Im2colBlocking, workspace: np.ndarray) -> np.ndarray:
    return workspace[: p.size_floats * 4].view(np.float32)


def forward(pool: ThreadPool, shape: ConvShape, x, w, bias, y, workspace) -> None:
    """y = x * w + bias. See `conv2d.forward`."""
    p, has_bias = im2col_blocking(shape, "forward", pool.threads), bias is not None
    space, w = _scratch(p, workspace), w.reshape(-1)
    any_bias = bias if has_bias else w
    pool.run(_forward, p.items, 1, x.reshape(-1), w, any_bias, has_bias, y.reshape(-1), space, p)


def grad_input(pool: ThreadPool, shape: ConvShape, dy, w, dx, workspace) -> None:
    """dx from dy. See `conv2d.grad_input`."""
    p = im2col_blocking(shape, "grad_input", pool.threads)
    space = _scratch(p, workspace)
    pool.run(_grad_input, p.items, 1, dy.reshape(-1), w.reshape(-1), dx.reshape(-1), space, p)


def grad_weight(pool: ThreadPool, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw from x and dy. See `conv2d.grad_weight`."""
    p = im2col_blocking(shape, "grad_weight", pool.threads)
    space = _scratch(p, workspace)
    pool.run(_grad_weight, p.items, 1, x.reshape(-1), dy.reshape(-1), dw.reshape(-1), space, p)
