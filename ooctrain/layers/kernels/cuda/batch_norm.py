"""Batch normalisation on (rows, channels): apply, and the two passes of its gradient.

x and dy are (P, C), where the P rows are the N * H * W pixels; the vectors of each channel include
the statistics (`batch_norm_stats.py`). As on the cpu (`../cpu/batch_norm.py`: the same products and
sums in the same order), ReLU and the residual sum are done in the same pass, with the bits of the
separate kernels. `apply` and `grad_apply` walk over quads, whatever the number of channels, two
of the same channels a thread;
`grad_reduce` sums over rows as in `conv/columns.py`. Source: Ioffe and Szegedy 2015. Read next:
`optimizers.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import (
    BATCH_ROWS,
    THREADS,
    Columns,
    image_columns,
    same_channels,
)
from ooctrain.layers.kernels.cuda.conv.columns import (
    add_compensated,
    chunk_of_block,
    chunks_of,
    column_total,
    finish_sums,
    in_chunk,
    load_rows,
    load_whole,
    partials_of,
    place_of,
    two_partials,
)
from ooctrain.layers.kernels.cuda.elementwise import fill, masked_by, relu_of
from ooctrain.layers.kernels.cuda.quads import (
    load_channels,
    load_quad,
    quads_of_channels,
    store_quad,
    sum_quad,
)
from ooctrain.layers.kernels.cuda.runtime.intrinsics import fma
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, float32, kernel, uint32

Array = Any
ZERO = np.float32(0)


@device
def normalised(x, mean, inv_std, gamma, beta):
    """(x - mean) * (gamma * inv_std) + beta."""
    return fma(x - mean, gamma * inv_std, beta)


@device
def normalised_quad(x, m, s, g, b):
    """`normalised` of four values."""
    return (
        normalised(x[0], m[0], s[0], g[0], b[0]), normalised(x[1], m[1], s[1], g[1], b[1]),
        normalised(x[2], m[2], s[2], g[2], b[2]), normalised(x[3], m[3], s[3], g[3], b[3]),
    )  # fmt: skip


@device
def floored_quad(v, floor):
    """max(v, floor) of four values."""
    return relu_of(v[0], floor), relu_of(v[1], floor), relu_of(v[2], floor), relu_of(v[3], floor)


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], u4, u4, f4)", threads=THREADS)
def _apply(x, mean, inv_std, gamma, beta, y, channels, apart, floor):
    """y = max(normalised x, floor)."""
    x_block, y_block, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    i, j, c = quads_of_channels(x_block, y_block, thread, apart, channels)
    a, b = load_quad(x, i), load_quad(x, j)
    m, s = load_channels(mean, c, channels), load_channels(inv_std, c, channels)
    g, t = load_channels(gamma, c, channels), load_channels(beta, c, channels)
    store_quad(y, i, floored_quad(normalised_quad(a, m, s, g, t), floor))
    store_quad(y, j, floored_quad(normalised_quad(b, m, s, g, t), floor))


@kernel(
    "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], u4, u4, f4)",
    threads=THREADS,
)
def _apply_add(x, mean, inv_std, gamma, beta, residual, y, channels, apart, floor):
    """y = max(normalised x + residual, floor)."""
    x_block, y_block, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    i, j, c = quads_of_channels(x_block, y_block, thread, apart, channels)
    a, b = load_quad(x, i), load_quad(x, j)
    r, q = load_quad(residual, i), load_quad(residual, j)
    m, s = load_channels(mean, c, channels), load_channels(inv_std, c, channels)
    g, t = load_channels(gamma, c, channels), load_channels(beta, c, channels)
    a = normalised_quad(a, m, s, g, t)
    b = normalised_quad(b, m, s, g, t)
    store_quad(y, i, floored_quad(sum_quad(a, r), floor))
    store_quad(y, j, floored_quad(sum_quad(b, q), floor))


@device
def masked(dy, mask, has_mask):
    """dy, or with a mask dy where the ReLU's output is positive, else 0."""
    return masked_by(dy, mask, ZERO) if has_mask else dy


@kernel(
    "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], b1, i8, u4, u4, u4, u4, "
    "i8, u4, u4)",
    threads=THREADS,
)
def _grad_sums(
    dy, mask, x, mean, inv_std, dgammas, dbetas, has_mask, rows, chunks, channels, lanes,
    rows_per_chunk, section, per_section, begin,
):  # fmt: skip
    """Sums of dz * xhat and of dz of each channel over the rows of a chunk; the arrays begin with
    chunk `begin`.
    """
    totals = cuda.shared.array(THREADS, float32)
    products = cuda.shared.array(THREADS, float32)
    dys = cuda.local.array(BATCH_ROWS, float32)
    masks = cuda.local.array(BATCH_ROWS, float32)
    xs = cuda.local.array(BATCH_ROWS, float32)
    thread = uint32(cuda.threadIdx.x)
    block = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    cut = lanes, rows_per_chunk, section, per_section
    c, chunk, base, left = chunk_of_block(block, thread, rows, channels, cut, begin)
    image = uint32(cuda.blockIdx.z)
    of_image = uint32(image * channels + c)
    row, step = uint32(thread // lanes), uint32(THREADS // lanes)
    centre = mean[of_image]
    total, lost, product, product_lost = ZERO, ZERO, ZERO, ZERO
    while in_chunk(BATCH_ROWS - 1, row, step, left):
        load_whole(dys, dy, base, row, step, channels)
        load_whole(xs, x, base, row, step, channels)
        if has_mask:
            load_whole(masks, mask, base, row, step, channels)
        part, product_part = ZERO, ZERO
        for k in range(BATCH_ROWS):
            dz = masked(dys[k], masks[k], has_mask)
            part += dz
            product_part = fma(dz, xs[k] - centre, product_part)
        total, lost = add_compensated(total, lost, part)
        product, product_lost = add_compensated(product, product_lost, product_part)
        row = uint32(row + uint32(BATCH_ROWS) * step)
    if row < left:
        load_rows(dys, dy, base, row, step, left, channels)
        load_rows(xs, x, base, row, step, left, channels)
        if has_mask:
            load_rows(masks, mask, base, row, step, left, channels)
        part, product_part = ZERO, ZERO
        for k in range(BATCH_ROWS):
            inside = in_chunk(k, row, step, left)
            dz = masked(dys[k], masks[k], has_mask) if inside else ZERO
            part += dz
            product_part = fma(dz, xs[k] - centre, product_part)
        total, lost = add_compensated(total, lost, part)
        product, product_lost = add_compensated(product, product_lost, product_part)
    totals[thread], products[thread] = total, product
    cuda.syncthreads()
    if thread < lanes:
        place = place_of(image, chunk, chunks, c, channels)
        dgammas[place] = column_total(products, thread, lanes) * inv_std[of_image]
        dbetas[place] = column_total(totals, thread, lanes)


@device
def input_gradient(dz, x, mean, inv_std, gamma, dgamma, dbeta, inv_rows):
    """gamma inv_std (dz - dbeta / P - xhat dgamma / P).

    Each fused product-and-sum is written out, so that the bits do not depend on the compiler.
    """
    dz = fma(dbeta, -inv_rows, dz)
    slope = inv_std * (inv_rows * dgamma)
    return gamma * inv_std * fma(mean - x, slope, dz)


@device
def input_gradient_quad(dy, mask, has_mask, x, channel_values, inv_rows):
    """`input_gradient` of a quad; what belongs to its channels: five quads."""
    m, s, g, p, b = channel_values
    z0, z1 = masked(dy[0], mask[0], has_mask), masked(dy[1], mask[1], has_mask)
    z2, z3 = masked(dy[2], mask[2], has_mask), masked(dy[3], mask[3], has_mask)
    return (
        input_gradient(z0, x[0], m[0], s[0], g[0], p[0], b[0], inv_rows),
        input_gradient(z1, x[1], m[1], s[1], g[1], p[1], b[1], inv_rows),
        input_gradient(z2, x[2], m[2], s[2], g[2], p[2], b[2], inv_rows),
        input_gradient(z3, x[3], m[3], s[3], g[3], p[3], b[3], inv_rows),
    )


@kernel(
    "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], "
    "b1, u4, u4, f4)",
    threads=THREADS,
)
def _grad_apply(
    dy, mask, x, mean, inv_std, gamma, dgamma, dbeta, dx, has_mask, channels, apart, inv_rows
):
    """dx = scale * (dz - dbeta / P - (x - mean) * slope)."""
    x_block, y_block, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    i, j, c = quads_of_channels(x_block, y_block, thread, apart, channels)
    xi, xj, dyi, dyj = load_quad(x, i), load_quad(x, j), load_quad(dy, i), load_quad(dy, j)
    mask_i, mask_j = dyi, dyj
    if has_mask:
        mask_i, mask_j = load_quad(mask, i), load_quad(mask, j)
    values = (
        load_channels(mean, c, channels), load_channels(inv_std, c, channels),
        load_channels(gamma, c, channels), load_channels(dgamma, c, channels),
        load_channels(dbeta, c, channels),
    )  # fmt: skip
    store_quad(dx, i, input_gradient_quad(dyi, mask_i, has_mask, xi, values, inv_rows))
    store_quad(dx, j, input_gradient_quad(dyj, mask_j, has_mask, xj, values, inv_rows))


def apply(launcher: Launcher, x, mean, inv_std, gamma, beta, y, residual, relu: bool) -> None:
    """y = (x - mean) * (gamma * inv_std) + beta [+ residual] [then ReLU].

    `y` may be `x` or `residual`.
    """
    # Without ReLU the floor is minus infinity: one kernel serves both.
    floor = 0.0 if relu else -math.inf
    vectors, (blocks, apart) = (mean, inv_std, gamma, beta), same_channels(y.size, mean.size)
    if residual is None:
        launcher.launch(_apply, blocks, x, *vectors, y, mean.size, apart, floor)
    else:
        launcher.launch(_apply_add, blocks, x, *vectors, residual, y, mean.size, apart, floor)


def grad_reduce(launcher: Launcher, dy, x, mean, inv_std, dgamma, dbeta, mask, workspace) -> None:
    """dbeta = sum of dz, dgamma = sum of dz * xhat; dz = dy, where `mask > 0` if a mask is given.

    Both are right to `columns.SUM_ROUNDINGS` + 3 roundings of the sum of absolute values.

    Args:
        dy, x: (P, C); or images, one behind the other, each with its own statistics.
        mean, inv_std, dgamma, dbeta: (C,), or (N, C) for N images.
        mask: the output of the fused ReLU, (P, C), or None.
        workspace: uint8, `batch_norm_workspace_bytes(P, C, N)`.
    """
    cut = image_columns(x.shape, mean.size // x.shape[-1])
    arrays = dy, dy if mask is None else mask, x, mean, inv_std
    launcher.launch(
        _grad_sums, cut.blocks, *arrays, *two_partials(launcher, cut, workspace),
        mask is not None, cut.rows, cut.chunks, cut.channels, *cut.cut, 0,
    )  # fmt: skip
    finish_grad_sums(launcher, cut, dgamma, dbeta, workspace)


def add_grad_sums(
    launcher: Launcher, dy, x, mean, inv_std, mask, cut: Columns, image: int, first_row: int,
    workspace,
) -> None:  # fmt: skip
    """The partial sums of some whole chunks, as `batch_norm_stats.add_stats`."""
    begin, chunks = chunks_of(cut, first_row, x.size // cut.channels)
    arrays = dy, dy if mask is None else mask, x, mean, inv_std
    launcher.launch(
        _grad_sums, (chunks, cut.blocks[1], 1), *arrays,
        *partials_of(launcher, cut, image, workspace), mask is not None, cut.rows, cut.chunks,
        cut.channels, *cut.cut, begin,
    )  # fmt: skip


def finish_grad_sums(launcher: Launcher, cut: Columns, dgamma, dbeta, workspace) -> None:
    """The sums, once all chunks have their partial ones."""
    partials = launcher.part(workspace, 0, 2 * cut.partials, "float32")
    finish_sums(launcher, cut, partials, dgamma, dbeta)


def grad_apply(
    launcher: Launcher, dy, x, mean, inv_std, gamma, dgamma, dbeta, dx, mask, over, workspace
) -> None:
    """dx = gamma * inv_std * (dz - dbeta / P - xhat * dgamma / P); `dx` may be an input.

    Args:
        dgamma, dbeta: (C,); None where the statistics are constants.
        over: P, where x is not all that the sums are over; else 0.
        workspace: uint8, in that case C float32.
    """
    if dgamma is None or dbeta is None:
        dgamma = dbeta = launcher.part(workspace, 0, mean.size, "float32")
        fill(launcher, dgamma, 0.0)
    arrays = dy, dy if mask is None else mask, x
    vectors = mean, inv_std, gamma, dgamma, dbeta
    blocks, apart = same_channels(dx.size, mean.size)
    numbers = mask is not None, mean.size, apart, 1.0 / (over or x.size // mean.size)
    launcher.launch(_grad_apply, blocks, *arrays, *vectors, dx, *numbers)
