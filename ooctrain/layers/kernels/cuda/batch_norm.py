"""Batch normalisation of an array (rows, channels) on the GPU, without float64.

x and dy are (P, C), where the P rows are the N * H * W pixels. As on the cpu
(`../cpu/batch_norm.py`: the same products and sums in the same order), ReLU and the residual sum
are done in the same pass, with the bits of the separate kernels. `apply` and `grad_apply` walk over
quads, whatever the number of channels, two of the same channels a thread; `grad_reduce` sums over
rows as in `columns.py`. Source: Ioffe and Szegedy 2015. Read next: `instance_norm.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.layers.batch_norm import BatchNormUpdate
from ooctrain.layers.kernels.cuda.chunks import (
    BATCH_ROWS,
    FINISH_LANES,
    THREADS,
    Columns,
    image_columns,
    same_channels,
)
from ooctrain.layers.kernels.cuda.columns import (
    add_compensated,
    at,
    chunk_of_block,
    chunks_of,
    column_of,
    column_total,
    finish_sums,
    in_chunk,
    load_rows,
    load_whole,
    partials_of,
    place_of,
    rows_in_section,
    two_partials,
)
from ooctrain.layers.kernels.cuda.elementwise import fill, masked_by, relu_of
from ooctrain.layers.kernels.cuda.functions import apply as pointwise_apply
from ooctrain.layers.kernels.cuda.functions import unary
from ooctrain.layers.kernels.cuda.layout import copy_unless_same
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
from ooctrain.layers.kernels.signature import B1, F4, I8, U4, F4s, I8s

# Statistics of each channel: mean, variance and 1 / sqrt(variance + eps). A thread keeps eight rows
# in registers, takes their mean, then the squared deviations from it; such triples (count, mean,
# squared deviations) are joined by a formula without cancellation, even where the mean is a
# thousand standard deviations. The order of joining is that of `columns.py`, which shapes alone
# determine: threads, then rows of threads, then chunks. Source: Chan, Golub, LeVeque 1983.

Array = Any
Arrays = Sequence[Array]
ZERO, ONE, ALL_ROWS = np.float32(0), np.float32(1), np.float32(BATCH_ROWS)


@device
def moments(batch, row, step, left):
    """(count, mean, squared deviations) of the rows of a batch that belong to the chunk."""
    count, total, squares = ZERO, ZERO, ZERO
    for k in range(BATCH_ROWS):
        inside = in_chunk(k, row, step, left)
        count += ONE if inside else ZERO
        total += batch[k] if inside else ZERO
    mean = total / count
    for k in range(BATCH_ROWS):
        away = batch[k] - mean if in_chunk(k, row, step, left) else ZERO
        squares = fma(away, away, squares)
    return count, mean, squares


@device
def whole_moments(batch):
    """(count, mean, squared deviations) of a batch whose rows all belong to the chunk."""
    total, squares = ZERO, ZERO
    for k in range(BATCH_ROWS):
        total += batch[k]
    mean = total / ALL_ROWS
    for k in range(BATCH_ROWS):
        squares = fma(batch[k] - mean, batch[k] - mean, squares)
    return ALL_ROWS, mean, squares


@device
def joined(count, mean, squares, count2, mean2, squares2):
    """(count, mean, squared deviations) of two sets together; either may be empty."""
    total = count + count2
    share = count2 / total if total > ZERO else ZERO
    away = mean2 - mean
    # In this order an empty set adds 0 even where the square of `away` would overflow.
    squares = (squares + squares2) + away * (away * (count * share))
    return total, fma(away, share, mean), squares


@device
def column_moments(counts, means, squares, lane, lanes):
    """The triples of the threads of one channel, joined in their order."""
    count, mean, square = ZERO, ZERO, ZERO
    for i in range(lane, THREADS, lanes):
        count, mean, square = joined(count, mean, square, counts[i], means[i], squares[i])
    return count, mean, square


@kernel(threads=THREADS)
def _stats(
    x: F4s, chunk_means: F4s, chunk_squares: F4s, rows: I8, chunks: U4, channels: U4, lanes: U4,
    rows_per_chunk: U4, section: I8, per_section: U4, begin: U4,
):  # fmt: skip
    """Mean and squared deviations of each channel over the rows of a chunk; x begins with chunk
    `begin`.
    """
    counts = cuda.shared.array(THREADS, float32)
    means = cuda.shared.array(THREADS, float32)
    squares = cuda.shared.array(THREADS, float32)
    batch = cuda.local.array(BATCH_ROWS, float32)
    thread = uint32(cuda.threadIdx.x)
    block = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    cut = lanes, rows_per_chunk, section, per_section
    c, chunk, base, left = chunk_of_block(block, thread, rows, channels, cut, begin)
    row, step = uint32(thread // lanes), uint32(THREADS // lanes)
    count, mean, square = ZERO, ZERO, ZERO
    while in_chunk(BATCH_ROWS - 1, row, step, left):
        load_whole(batch, x, base, row, step, channels)
        count2, mean2, square2 = whole_moments(batch)
        count, mean, square = joined(count, mean, square, count2, mean2, square2)
        row = uint32(row + uint32(BATCH_ROWS) * step)
    if row < left:
        load_rows(batch, x, base, row, step, left, channels)
        count2, mean2, square2 = moments(batch, row, step, left)
        count, mean, square = joined(count, mean, square, count2, mean2, square2)
    counts[thread], means[thread], squares[thread] = count, mean, square
    cuda.syncthreads()
    if thread < lanes:
        count, mean, square = column_moments(counts, means, squares, thread, lanes)
        place = place_of(cuda.blockIdx.z, chunk, chunks, c, channels)
        chunk_means[place] = mean
        chunk_squares[place] = square


@kernel(threads=THREADS)
def _finish_stats(
    chunk_means: F4s, chunk_squares: F4s, chunk_count: U4, channels: U4, rows_per_chunk: U4,
    section: I8, per_section: U4, eps: F4, mean: F4s, inv_std: F4s, var: F4s,
):  # fmt: skip
    """Joins the chunks of each channel in their order."""
    counts = cuda.shared.array(THREADS, float32)
    means = cuda.shared.array(THREADS, float32)
    squares = cuda.shared.array(THREADS, float32)
    thread, lanes = uint32(cuda.threadIdx.x), uint32(FINISH_LANES)
    c = column_of(uint32(cuda.blockIdx.x), thread, lanes, channels)
    image = uint32(cuda.blockIdx.y)
    total, m, q = ZERO, ZERO, ZERO
    for chunk in range(thread // lanes, chunk_count, THREADS // FINISH_LANES):
        place = place_of(image, chunk, chunk_count, c, channels)
        _, left = rows_in_section(uint32(chunk), rows_per_chunk, section, per_section)
        total, m, q = joined(total, m, q, float32(left), at(chunk_means, place),
                             at(chunk_squares, place))  # fmt: skip
    counts[thread], means[thread], squares[thread] = total, m, q
    cuda.syncthreads()
    if thread < lanes:
        total, m, q = column_moments(counts, means, squares, thread, lanes)
        of_image = uint32(image * channels + c)
        mean[of_image] = m
        var[of_image] = q / total
        inv_std[of_image] = ONE / math.sqrt(q / total + eps)


@device
def moved(old, new, weight):
    """old moved towards new."""
    return fma(weight, new - old, old)


@kernel(threads=THREADS)
def _update_running(
    mean: F4s, var: F4s, running_mean: F4s, running_var: F4s, weight: F4, unbias: F4,
):  # fmt: skip
    c = uint32(cuda.grid(1))
    if c < mean.size:
        running_mean[c] = moved(running_mean[c], mean[c], weight)
        running_var[c] = moved(running_var[c], var[c] * unbias, weight)


@kernel(threads=THREADS)
def _average_running(
    mean: F4s, var: F4s, running_mean: F4s, running_var: F4s, count: I8s, unbias: F4,
):  # fmt: skip
    """The cumulative average: the weight of this batch is 1 / count."""
    c, weight = uint32(cuda.grid(1)), ONE / float32(count[0])
    if c < mean.size:
        running_mean[c] = moved(running_mean[c], mean[c], weight)
        running_var[c] = moved(running_var[c], var[c] * unbias, weight)


@kernel(threads=32)
def _count_batch(count: I8s):
    if cuda.threadIdx.x == 0:
        count[0] += 1


@device
def inverse_deviation(variance, eps):
    """1 / sqrt(variance + eps)."""
    return ONE / math.sqrt(variance + eps)


_inv_std = unary(inverse_deviation)


def stats(launcher: Launcher, x, mean, inv_std, var, eps: float, workspace) -> None:
    """Mean, biased variance and 1 / sqrt(var + eps) of each channel.

    With M = `joins(columns)` roundings, the mean is right to M * 2^-24 * max |x|, the variance to
    about 2 M * 2^-24 of itself (the cpu kernel, whose blocks are added in float64, to about 2^-22).

    Args:
        x: (P, C), or any array whose last axis is C; or images, one behind the other.
        mean, inv_std, var: (C,), or (N, C) for each of N images; written.
        eps: added to the variance.
        workspace: uint8, `batch_norm_workspace_bytes(P, C, N)`.
    """
    cut = image_columns(x.shape, mean.size // x.shape[-1])
    means, squares = two_partials(launcher, cut, workspace)
    sizes = cut.rows, cut.chunks, cut.channels, *cut.cut, 0
    launcher.launch(_stats, cut.blocks, x, means, squares, *sizes)
    finish_stats(launcher, cut, mean, inv_std, var, eps, workspace)


def add_stats(launcher: Launcher, x, cut: Columns, image: int, first_row: int, workspace) -> None:
    """The partial results of some whole chunks.

    Args:
        x: rows from `first_row` on of an array that is cut so; of this image, if there are several.
    """
    begin, chunks = chunks_of(cut, first_row, x.size // cut.channels)
    means, squares = partials_of(launcher, cut, image, workspace)
    sizes = cut.rows, cut.chunks, cut.channels, *cut.cut, begin
    launcher.launch(_stats, (chunks, cut.blocks[1], 1), x, means, squares, *sizes)


def finish_stats(launcher: Launcher, cut: Columns, mean, inv_std, var, eps, workspace) -> None:
    """The statistics, once all chunks have their partial results."""
    sizes = cut.chunks, cut.channels, *cut.cut[1:]
    blocks, results = (cut.finish_blocks, cut.images), (mean, inv_std, var)
    partials = two_partials(launcher, cut, workspace)
    launcher.launch(_finish_stats, blocks, *partials, *sizes, eps, *results)


def inv_std_of(launcher: Launcher, var: Array, inv_std: Array, eps: float) -> None:
    """inv_std = 1 / sqrt(var + eps), for `apply` with the running variance (evaluation)."""
    pointwise_apply(launcher, _inv_std, var, inv_std, parameter=eps)


def update(launcher: Launcher, op: BatchNormUpdate, ins: Arrays, outs: Arrays) -> None:
    """Moves the running statistics, in place, towards those of this batch, as torch does.

    Args:
        ins: mean and variance of the batch, (C,), the variance biased (the running one gets the
            unbiased); the running ones and, where counted, the number of batches seen.
        outs: all but the first two; the count is one int64.
    """
    for old, new in zip(ins[2:], outs, strict=True):
        copy_unless_same(launcher, old, new)
    if op.counted:
        launcher.launch(_count_batch, 1, outs[2])
    arrays, blocks = (*ins[:2], *outs[:2]), -(-ins[0].size // THREADS)
    unbias = op.rows / max(op.rows - 1, 1)
    if op.momentum is None:
        launcher.launch(_average_running, blocks, *arrays, outs[2], unbias)
    else:
        launcher.launch(_update_running, blocks, *arrays, op.momentum, unbias)


def joins(cut: Columns) -> int:
    """How many joins of triples, each of a few roundings, follow one another in a result."""
    threads_of_a_channel = THREADS // cut.lanes
    batches = -(-cut.rows_per_chunk // (threads_of_a_channel * BATCH_ROWS))
    rows_of_finish = THREADS // FINISH_LANES
    return batches + threads_of_a_channel + -(-cut.chunks // rows_of_finish) + rows_of_finish


# Normalising, and the two passes of the gradient.


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


@kernel(threads=THREADS)
def _apply(
    x: F4s, mean: F4s, inv_std: F4s, gamma: F4s, beta: F4s, y: F4s, channels: U4, apart: U4,
    floor: F4,
):  # fmt: skip
    """y = max(normalised x, floor)."""
    x_block, y_block, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    i, j, c = quads_of_channels(x_block, y_block, thread, apart, channels)
    a, b = load_quad(x, i), load_quad(x, j)
    m, s = load_channels(mean, c, channels), load_channels(inv_std, c, channels)
    g, t = load_channels(gamma, c, channels), load_channels(beta, c, channels)
    store_quad(y, i, floored_quad(normalised_quad(a, m, s, g, t), floor))
    store_quad(y, j, floored_quad(normalised_quad(b, m, s, g, t), floor))


@kernel(threads=THREADS)
def _apply_add(
    x: F4s, mean: F4s, inv_std: F4s, gamma: F4s, beta: F4s, residual: F4s, y: F4s, channels: U4,
    apart: U4, floor: F4,
):  # fmt: skip
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


@kernel(threads=THREADS)
def _grad_sums(
    dy: F4s, mask: F4s, x: F4s, mean: F4s, inv_std: F4s, dgammas: F4s, dbetas: F4s, has_mask: B1,
    rows: I8, chunks: U4, channels: U4, lanes: U4, rows_per_chunk: U4, section: I8, per_section: U4,
    begin: U4,
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


@kernel(threads=THREADS)
def _grad_apply(
    dy: F4s, mask: F4s, x: F4s, mean: F4s, inv_std: F4s, gamma: F4s, dgamma: F4s, dbeta: F4s,
    dx: F4s, has_mask: B1, channels: U4, apart: U4, inv_rows: F4,
):  # fmt: skip
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
    """The partial sums of some whole chunks, as `add_stats`."""
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
