"""Batch normalisation of an array (rows, channels), memory-bound, so fused with what surrounds it.

x and dy are (P, C), where P = N * H * W rows; statistics and parameters are vectors of C. ReLU and
the residual sum are done in the same pass, forward (`relu=`, `residual=`) and backward (`mask=`,
the ReLU's output). Every product-and-sum has one fixed order, so the bits equal those of the
separate kernels. Statistics are taken block by block: first the mean, then, while the block is in
cache, the squared deviations from it. No digits are lost even where the mean is a thousand standard
deviations. Blocks are added in float64. Both sums can continue from one band of rows to the next
(`add_stats` from the top, `add_grad_sums` from the bottom, in the order in which bands run) and
give the bits of one call. Source: Ioffe and Szegedy 2015; variance: Chan, Golub, LeVeque 1983. Read
next: `pooling.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ooctrain.layers.batch_norm import BatchNormUpdate
from ooctrain.layers.kernels.cpu.chunks import past_caches, row_chunk
from ooctrain.layers.kernels.cpu.elementwise import fill
from ooctrain.layers.kernels.cpu.partials import (
    channel_partials,
    channel_total,
    first_of_block,
    pixels_of_block,
)
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vfma, vmax, vselect_gt, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    AHEAD_ELEMENTS,
    prefetch,
    store_fence,
    vload,
    vload_upto,
    vput_upto,
    vscan_upto,
    vstore,
    vstore4,
)
from ooctrain.layers.kernels.cpu.workspace import SumsCut, row_sums
from ooctrain.layers.kernels.signature import B1, F4, F8, I8, F4s, I8s, U1s

Array = np.ndarray


Arrays = Sequence[Array]
ZERO = np.float32(0)
#: How many rows ahead the statistics prefetch their data.
AHEAD_ROWS = 16


@kernel
def _stats(x: F4s, channels: I8, workspace: U1s, cut: SumsCut, lo, hi, thread):
    """Per chunk and channel: sums of x and of x^2 in float64. Items are chunks, from the first that
    x touches; x holds blocks [begin, end).

    A block has n rows, mean m and squared deviations q from it, both float32; it adds n m and
    q + n m^2.
    """
    padded, per_chunk, begin, end = cut.padded, cut.per_chunk, cut.begin, cut.end
    partials, block = channel_partials(workspace, cut.chunks, 2 * padded)
    chunk = begin // per_chunk + lo
    base = chunk * 2 * padded
    sums, squares = partials[base : base + padded], partials[base + padded : base + 2 * padded]
    if chunk * per_chunk >= begin:
        sums[:] = 0.0
        squares[:] = 0.0
    origin = first_of_block(begin, cut)
    zero, whole = vsplat(ZERO), channels - channels % (4 * VL)
    for number in range(max(begin, chunk * per_chunk), min(end, (chunk + 1) * per_chunk)):
        first = first_of_block(number, cut) - origin
        last = first + pixels_of_block(number, cut)
        share = np.float32(1.0 / (last - first))
        for c in range(0, whole, 4 * VL):
            s0, s1, s2, s3 = zero, zero, zero, zero
            for row in range(first, last):
                i = row * channels + c
                for k in range(4):
                    prefetch(x, i + k * VL + AHEAD_ROWS * channels)
                s0, s1 = s0 + vload(x, i), s1 + vload(x, i + VL)
                s2, s3 = s2 + vload(x, i + 2 * VL), s3 + vload(x, i + 3 * VL)
            m0, m1, m2, m3 = share * s0, share * s1, share * s2, share * s3
            q0, q1, q2, q3 = zero, zero, zero, zero
            for row in range(first, last):
                i = row * channels + c
                d0, d1 = vload(x, i) - m0, vload(x, i + VL) - m1
                d2, d3 = vload(x, i + 2 * VL) - m2, vload(x, i + 3 * VL) - m3
                q0, q1, q2, q3 = (
                    vfma(d0, d0, q0),
                    vfma(d1, d1, q1),
                    vfma(d2, d2, q2),
                    vfma(d3, d3, q3),
                )
            vstore4(block, base + c, m0, m1, m2, m3)
            vstore4(block, base + padded + c, q0, q1, q2, q3)
        for c in range(whole, channels, VL):
            n = channels - c
            s0, q0 = zero, zero
            for row in range(first, last):
                s0 = s0 + vload_upto(x, row * channels + c, n)
            m0 = share * s0
            for row in range(first, last):
                d0 = vload_upto(x, row * channels + c, n) - m0
                q0 = vfma(d0, d0, q0)
            vstore(block, base + c, m0)
            vstore(block, base + padded + c, q0)
        count = np.float64(last - first)
        for c in range(channels):
            m = np.float64(block[base + c])
            sums[c] += count * m
            squares[c] += block[base + padded + c] + count * m * m


@inner
def inverse_root(value):
    """1 / sqrt(value); of zero infinite, as PyTorch has it: an eps of 0, and equal values."""
    root = math.sqrt(value)
    return 1.0 / root if root != 0.0 else np.inf


@kernel
def _finish_stats(
    workspace: U1s, padded: I8, chunks: I8, rows: I8, eps: F8, mean: F4s, inv_std: F4s, var: F4s,
    lo, hi, thread,
):  # fmt: skip
    """Mean, variance and 1 / sqrt(variance + eps) from the sums of all chunks. Items: channels."""
    for c in range(lo, hi):
        m = channel_total(workspace, chunks, 2 * padded, c) / rows
        square = channel_total(workspace, chunks, 2 * padded, padded + c) / rows
        v = max(square - m * m, 0.0)
        mean[c], var[c], inv_std[c] = m, v, inverse_root(v + eps)


@kernel
def _grad_reduce(
    dy: F4s, mask: F4s, x: F4s, mean: F4s, masked: B1, workspace: U1s, cut: SumsCut, lo, hi, thread,
):  # fmt: skip
    """Per chunk and channel: sums of dz and of dz * (x - mean). Items are chunks, from the first
    that the arrays touch; these hold blocks [begin, end).

    Blocks are summed in float32, their sums added in float64, from the last block to the first.
    """
    padded, per_chunk, begin, end = cut.padded, cut.per_chunk, cut.begin, cut.end
    channels, zero = mean.size, vsplat(ZERO)
    partials, block = channel_partials(workspace, cut.chunks, 2 * padded)
    chunk = begin // per_chunk + lo
    base = chunk * 2 * padded
    sums = partials[base : base + 2 * padded]
    behind = min(cut.blocks, (chunk + 1) * per_chunk)
    if behind <= end:
        sums[:] = 0.0
    origin = first_of_block(begin, cut)
    whole = channels - channels % (4 * VL)
    for number in range(min(end, behind) - 1, max(begin, chunk * per_chunk) - 1, -1):
        first = first_of_block(number, cut) - origin
        last = first + pixels_of_block(number, cut)
        for c in range(0, whole, 4 * VL):
            m0, m1 = vload(mean, c), vload(mean, c + VL)
            m2, m3 = vload(mean, c + 2 * VL), vload(mean, c + 3 * VL)
            s0, s1, s2, s3 = zero, zero, zero, zero
            q0, q1, q2, q3 = zero, zero, zero, zero
            for row in range(first, last):
                i = row * channels + c
                i1, i2, i3 = i + VL, i + 2 * VL, i + 3 * VL
                d0, d1, d2, d3 = vload(dy, i), vload(dy, i1), vload(dy, i2), vload(dy, i3)
                if masked:
                    d0 = vselect_gt(vload(mask, i), zero, d0, zero)
                    d1 = vselect_gt(vload(mask, i1), zero, d1, zero)
                    d2 = vselect_gt(vload(mask, i2), zero, d2, zero)
                    d3 = vselect_gt(vload(mask, i3), zero, d3, zero)
                s0, s1, s2, s3 = s0 + d0, s1 + d1, s2 + d2, s3 + d3
                q0, q1 = vfma(d0, vload(x, i) - m0, q0), vfma(d1, vload(x, i1) - m1, q1)
                q2, q3 = vfma(d2, vload(x, i2) - m2, q2), vfma(d3, vload(x, i3) - m3, q3)
            vstore4(block, base + c, s0, s1, s2, s3)
            vstore4(block, base + padded + c, q0, q1, q2, q3)
        for c in range(whole, channels, VL):
            n = channels - c
            m0, s0, q0 = vload_upto(mean, c, n), zero, zero
            for row in range(first, last):
                i = row * channels + c
                d0 = vload_upto(dy, i, n)
                if masked:
                    d0 = vselect_gt(vload_upto(mask, i, n), zero, d0, zero)
                s0, q0 = s0 + d0, vfma(d0, vload_upto(x, i, n) - m0, q0)
            vstore(block, base + c, s0)
            vstore(block, base + padded + c, q0)
        for c in range(channels):
            sums[c] += block[base + c]
            sums[padded + c] += block[base + padded + c]


@kernel
def _finish_grad(
    workspace: U1s, padded: I8, chunks: I8, inv_std: F4s, dgamma: F4s, dbeta: F4s, lo, hi, thread,
):  # fmt: skip
    """dgamma and dbeta from the sums of all chunks. Items: channels."""
    for c in range(lo, hi):
        dbeta[c] = channel_total(workspace, chunks, 2 * padded, c)
        products = channel_total(workspace, chunks, 2 * padded, padded + c)
        dgamma[c] = products * inv_std[c]


@kernel
def _grad_apply(
    dy: F4s, mask: F4s, x: F4s, mean: F4s, inv_std: F4s, gamma: F4s, dgamma: F4s, dbeta: F4s,
    dx: F4s, masked: B1, inv_rows: F4, past: B1, lo, hi, thread,
):  # fmt: skip
    """dx = gamma inv_std (dz - dbeta / P - (x - mean) slope), slope = inv_std dgamma / P.

    Each fused product-and-sum is written out, so that the bits do not depend on the compiler.
    """
    channels, zero, negative = mean.size, vsplat(ZERO), vsplat(-inv_rows)
    for row in range(lo, hi):
        for c in range(0, channels, VL):
            i, n = row * channels + c, channels - c
            inv, dz = vload_upto(inv_std, c, n), vload_upto(dy, i, n)
            if masked:
                dz = vselect_gt(vload_upto(mask, i, n), zero, dz, zero)
            dz = vfma(vload_upto(dbeta, c, n), negative, dz)
            slope = inv * (inv_rows * vload_upto(dgamma, c, n))
            v = vload_upto(mean, c, n) - vload_upto(x, i, n)
            vput_upto(dx, i, vload_upto(gamma, c, n) * inv * vfma(v, slope, dz), n, past)
    if past:
        store_fence()


@kernel
def _update_running(
    mean: F4s, var: F4s, old_mean: F4s, old_var: F4s, new_mean: F4s, new_var: F4s, momentum: F4,
    unbias: F4, lo, hi, thread,
):  # fmt: skip
    for c in range(lo, hi):
        new_mean[c] = old_mean[c] + momentum * (mean[c] - old_mean[c])
        new_var[c] = old_var[c] + momentum * (var[c] * unbias - old_var[c])


@kernel
def _count(old: I8s, new: I8s, lo, hi, thread):
    new[0] = old[0] + 1


@kernel
def _inv_std(var: F4s, out: F4s, eps: F8, lo, hi, thread):
    for c in range(lo, hi):
        out[c] = inverse_root(var[c] + eps)


def stats(pool: ThreadPool, x, mean, inv_std, var, eps: float, workspace) -> None:
    """Mean, biased variance and 1 / sqrt(var + eps) of each channel.

    Args:
        x: (P, C), or any array whose last axis is C.
        mean, inv_std, var: (C,), written.
        eps: added to the variance.
        workspace: uint8, `batch_norm_workspace_bytes(P, C)`.
    """
    add_stats(pool, x, x.shape, 0, workspace)
    finish_stats(pool, x.shape, mean, inv_std, var, eps, workspace)


def add_stats(pool: ThreadPool, x, shape: Sequence[int], first_pixel: int, workspace) -> None:
    """Adds whole blocks of pixels, the next ones from the top, to the sums in the workspace.

    Args:
        x: (..., C), pixels from `first_pixel` on of an array of this shape.
    """
    sums = row_sums(shape)
    items, cut = sums.span(first_pixel, x.size)
    pool.run(_stats, items, 1, x, sums.channels, workspace, cut)


def finish_stats(
    pool: ThreadPool, shape: Sequence[int], mean, inv_std, var, eps: float, workspace
) -> None:
    """The statistics, once all pixels of an array of this shape are summed."""
    sums, channels = row_sums(shape), mean.size
    space = workspace, *sums.space, sums.blocks.pixels
    pool.run(_finish_stats, channels, channels, *space, eps, mean, inv_std, var)


def inv_std_of(pool: ThreadPool, var: Array, inv_std: Array, eps: float) -> None:
    """inv_std = 1 / sqrt(var + eps), for `apply` with the running variance (evaluation)."""
    pool.run(_inv_std, var.size, var.size, var, inv_std, eps)


def grad_reduce(pool: ThreadPool, dy, x, mean, inv_std, dgamma, dbeta, mask, workspace) -> None:
    """dbeta = sum of dz, dgamma = sum of dz * xhat; dz = dy, where `mask > 0` if a mask is given.

    Args:
        dy, x: (P, C).
        mean, inv_std: (C,), of the batch, as `stats` gives them.
        dgamma, dbeta: (C,), written.
        mask: the output of the fused ReLU, (P, C), or None.
        workspace: uint8, `batch_norm_workspace_bytes(P, C)`.
    """
    add_grad_sums(pool, dy, x, mean, inv_std, mask, x.shape, 0, workspace)
    finish_grad_sums(pool, x.shape, inv_std, dgamma, dbeta, workspace)


def add_grad_sums(
    pool: ThreadPool, dy, x, mean, inv_std, mask, shape: Sequence[int], first_pixel: int, workspace
) -> None:
    """Adds whole blocks of pixels, the next ones from the bottom, to the sums in the workspace."""
    sums = row_sums(shape)
    items, cut = sums.span(first_pixel, x.size)
    arrays = dy, (dy if mask is None else mask), x, mean, mask is not None, workspace
    pool.run(_grad_reduce, items, 1, *arrays, cut)


def finish_grad_sums(
    pool: ThreadPool, shape: Sequence[int], inv_std, dgamma, dbeta, workspace
) -> None:
    """The two gradients, once all pixels of an array of this shape are summed."""
    channels, space = inv_std.size, (workspace, *row_sums(shape).space)
    pool.run(_finish_grad, channels, channels, *space, inv_std, dgamma, dbeta)


def grad_apply(
    pool: ThreadPool, dy, x, mean, inv_std, gamma, dgamma, dbeta, dx, mask, over, workspace
) -> None:
    """dx = gamma * inv_std * (dz - dbeta / P - xhat * dgamma / P), dz as in `grad_reduce`.

    `dx` may be `dy`, `x` or `mask`.

    Args:
        dgamma, dbeta: (C,); None where the statistics are constants.
        over: P, where x is not all that the sums are over; else 0.
        workspace: uint8, in that case C float32.
    """
    channels, rows = mean.size, x.size // mean.size
    if dgamma is None or dbeta is None:
        dgamma = dbeta = workspace[: mean.nbytes].view(np.float32)
        fill(pool, dgamma, 0.0)
    arrays = dy, (dy if mask is None else mask), x
    vectors = mean, inv_std, gamma, dgamma, dbeta
    past = channels % VL == 0 and past_caches(dx, dy, x)
    others = dx, mask is not None, 1.0 / (over or rows), past
    pool.run(_grad_apply, rows, row_chunk(rows, channels), *arrays, *vectors, *others)


def update(pool: ThreadPool, op: BatchNormUpdate, ins: Arrays, outs: Arrays) -> None:
    """The running statistics behind those of this batch, by `update_running`."""
    mean, var, *before = ins
    update_running(pool, mean, var, before, outs, op.momentum, op.rows)


def update_running(
    pool: ThreadPool, mean, var, before: Arrays, after: Arrays, momentum: float | None, rows: int
) -> None:
    """Moves the running statistics towards those of this batch, as torch does.

    Args:
        mean, var: statistics of the batch, (C,), the variance biased (the running one is not).
        before: running mean and variance, (C,), and if they are counted the number of batches seen,
            int64, one element.
        after: written; may be those before.
        momentum: weight of this batch; None: 1 / count (cumulative average; needs the count).
        rows: P, the number of values per channel.
    """
    (old_mean, old_var, *seen), (new_mean, new_var, *count) = before, after
    if count:
        pool.run(_count, 1, 1, *seen, *count)
    if momentum is None:
        pool.every_time()
        momentum = 1.0 / int(count[0].reshape(-1)[0])
    arrays, unbias = (old_mean, old_var, new_mean, new_var), rows / max(rows - 1, 1)
    pool.run(_update_running, mean.size, mean.size, mean, var, *arrays, momentum, unbias)


# y = (x - mean) * (gamma * inv_std) + beta, with known statistics. If x is in a cache, loading the
# vectors of C costs more than loading x: they are then loaded for four machine vectors of channels
# and kept in registers over some rows. If x is in memory, loading x costs more, and whole rows are
# read one after the other. Both ways give the same bits.

#: Rows for which `apply` keeps a group of channels in registers.
ROWS_IN_FOURS = 16
#: Most bytes read and written for which it does so. More come from memory, which is faster row
#: after row, even where a row is four vectors (measured with 32 MiB of cache: 64 x 64 x 32 x 32
#: takes two thirds of the time).
IN_FOURS_BYTES = 20 << 20


@kernel
def _apply(
    x: F4s, mean: F4s, inv_std: F4s, gamma: F4s, beta: F4s, residual: F4s, y: F4s, add: B1,
    floor: F4, past: B1, lo, hi, thread,
):  # fmt: skip
    """y = max((x - mean) * (gamma * inv_std) + beta [+ residual], floor)."""
    channels, floors = mean.size, vsplat(floor)
    for row in range(lo, hi):
        for c in range(0, channels, VL):
            i, n = row * channels + c, channels - c
            slope = vload_upto(gamma, c, n) * vload_upto(inv_std, c, n)
            v = vscan_upto(x, i, n) - vload_upto(mean, c, n)
            v = vfma(v, slope, vload_upto(beta, c, n))
            if add:
                v = v + vscan_upto(residual, i, n)
            if not past:
                prefetch(y, i + AHEAD_ELEMENTS)
            vput_upto(y, i, vmax(floors, v), n, past)
    if past:
        store_fence()


@kernel
def _apply_in_fours(
    x: F4s, mean: F4s, inv_std: F4s, gamma: F4s, beta: F4s, residual: F4s, y: F4s, add: B1,
    floor: F4, lo, hi, thread,
):  # fmt: skip
    """As `_apply`; the vectors of C for four machine vectors stay in registers over some rows."""
    channels, floors = mean.size, vsplat(floor)
    for first in range(lo, hi, ROWS_IN_FOURS):
        last = min(hi, first + ROWS_IN_FOURS)
        for c in range(0, channels, 4 * VL):
            c1, c2, c3 = c + VL, c + 2 * VL, c + 3 * VL
            m0, m1, m2, m3 = vload(mean, c), vload(mean, c1), vload(mean, c2), vload(mean, c3)
            b0, b1, b2, b3 = vload(beta, c), vload(beta, c1), vload(beta, c2), vload(beta, c3)
            s0, s1 = vload(gamma, c) * vload(inv_std, c), vload(gamma, c1) * vload(inv_std, c1)
            s2, s3 = vload(gamma, c2) * vload(inv_std, c2), vload(gamma, c3) * vload(inv_std, c3)
            for row in range(first, last):
                i = row * channels + c
                i1, i2, i3 = i + VL, i + 2 * VL, i + 3 * VL
                v0, v1 = vfma(vload(x, i) - m0, s0, b0), vfma(vload(x, i1) - m1, s1, b1)
                v2, v3 = vfma(vload(x, i2) - m2, s2, b2), vfma(vload(x, i3) - m3, s3, b3)
                if add:
                    v0, v1 = v0 + vload(residual, i), v1 + vload(residual, i1)
                    v2, v3 = v2 + vload(residual, i2), v3 + vload(residual, i3)
                v0, v1 = vmax(floors, v0), vmax(floors, v1)
                vstore4(y, i, v0, v1, vmax(floors, v2), vmax(floors, v3))


def apply(
    pool: ThreadPool, x, mean, inv_std, gamma, beta, y, residual=None, relu: bool = False
) -> None:
    """y = (x - mean) * (gamma * inv_std) + beta [+ residual] [then ReLU].

    `y` may be `x` or `residual`.
    """
    channels, rows = mean.size, x.size // mean.size
    chunk = row_chunk(rows, channels)
    # Without ReLU the floor is minus infinity: one kernel serves both.
    floor = 0.0 if relu else -math.inf
    others = (y if residual is None else residual), y, residual is not None, floor
    past = channels % VL == 0 and past_caches(y, x)
    moved_bytes = y.nbytes * (2 + (residual is not None))
    if channels % (4 * VL) == 0 and moved_bytes <= IN_FOURS_BYTES:
        pool.run(_apply_in_fours, rows, chunk, x, mean, inv_std, gamma, beta, *others)
        return
    pool.run(_apply, rows, chunk, x, mean, inv_std, gamma, beta, *others, past)
