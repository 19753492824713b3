"""Statistics of each channel, by joining (count, mean, squared deviations); running statistics.

From x as (P, C), where the P rows are the N * H * W pixels, it computes mean, variance and 1 /
sqrt(variance + eps). A thread keeps eight rows in registers, takes their mean, then the squared
deviations from it; such triples are joined by a formula without cancellation. So float64 is not
needed, even where the mean is a thousand standard deviations. Triples are joined in the order of
`conv/columns.py`, which shapes alone determine: threads, then rows of threads, then chunks. Source:
Chan, Golub, LeVeque 1983. Read next: `batch_norm.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import (
    BATCH_ROWS,
    FINISH_LANES,
    THREADS,
    Columns,
    image_columns,
)
from ooctrain.layers.kernels.cuda.conv.columns import (
    at,
    chunk_of_block,
    chunks_of,
    column_of,
    in_chunk,
    load_rows,
    load_whole,
    partials_of,
    place_of,
    rows_in_section,
    two_partials,
)
from ooctrain.layers.kernels.cuda.pointwise import apply, unary
from ooctrain.layers.kernels.cuda.regions import copy_unless_same
from ooctrain.layers.kernels.cuda.runtime.intrinsics import fma
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, float32, kernel, uint32
from ooctrain.layers.running_statistics import BatchNormUpdate

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


@kernel("void(f4[::1], f4[::1], f4[::1], i8, u4, u4, u4, u4, i8, u4, u4)", threads=THREADS)
def _stats(
    x, chunk_means, chunk_squares, rows, chunks, channels, lanes, rows_per_chunk, section,
    per_section, begin,
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


@kernel(
    "void(f4[::1], f4[::1], u4, u4, u4, i8, u4, f4, f4[::1], f4[::1], f4[::1])", threads=THREADS
)
def _finish_stats(
    chunk_means, chunk_squares, chunk_count, channels, rows_per_chunk, section, per_section, eps,
    mean, inv_std, var,
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


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4, f4)", threads=THREADS)
def _update_running(mean, var, running_mean, running_var, weight, unbias):
    c = uint32(cuda.grid(1))
    if c < mean.size:
        running_mean[c] = moved(running_mean[c], mean[c], weight)
        running_var[c] = moved(running_var[c], var[c] * unbias, weight)


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], i8[::1], f4)", threads=THREADS)
def _average_running(mean, var, running_mean, running_var, count, unbias):
    """The cumulative average: the weight of this batch is 1 / count."""
    c, weight = uint32(cuda.grid(1)), ONE / float32(count[0])
    if c < mean.size:
        running_mean[c] = moved(running_mean[c], mean[c], weight)
        running_var[c] = moved(running_var[c], var[c] * unbias, weight)


@kernel("void(i8[::1])", threads=32)
def _count_batch(count):
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
    apply(launcher, _inv_std, var, inv_std, parameter=eps)


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
