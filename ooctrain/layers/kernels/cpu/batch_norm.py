"""Batch normalisation on (rows, channels): statistics, apply, and the two passes of its gradient.

In: x or dy as (P, C), rows being N * H * W; per-channel vectors. Out: normalised rows, statistics,
gradients. The one idea: batch norm is bound by memory, so ReLU and the residual sum ride along in the
same pass, forward (`relu=`, `residual=`) and backward (`mask=`, the ReLU's output), with the same bits
as the separate kernels: every product-and-sum has one fixed order. Statistics are taken block by block,
mean first and then squared deviations from it while the block is in cache, so that a mean of a thousand
standard deviations costs no digits; blocks are summed in float64. Source: Ioffe and Szegedy 2015;
blockwise variance: Chan, Golub, LeVeque 1983. Read next: `pooling.py`.
"""

from __future__ import annotations

import math

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import chunk_count, flat, row_chunk
from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.pool import ThreadPool

Array = np.ndarray
ZERO = np.float32(0)
NO_FLOOR = np.float32(-np.inf)


@kernel("void(f4[::1], i8, f8[::1], i8, i8, i8, i8)")
def _stats(x, channels, partials, rows_per_chunk, lo, hi, thread):
    """Per chunk and channel: the mean and the sum of squared deviations from it."""
    base = lo // rows_per_chunk * 2 * channels
    mean, square = partials[base:][:channels], partials[base + channels :][:channels]
    mean[:] = 0.0
    square[:] = 0.0
    for row in range(lo, hi):
        values = x[row * channels :][:channels]
        for c in range(channels):
            mean[c] += values[c]
    for c in range(channels):
        mean[c] /= hi - lo
    for row in range(lo, hi):
        values = x[row * channels :][:channels]
        for c in range(channels):
            square[c] += (values[c] - mean[c]) ** 2


@kernel("void(f8[::1], i8, i8, f8, f4[::1], f4[::1], f4[::1])")
def _finish_stats(partials, rows, rows_per_chunk, eps, mean, inv_std, var):
    channels = mean.size
    for c in range(channels):
        total = 0.0
        for lo in range(0, rows, rows_per_chunk):
            count = min(rows_per_chunk, rows - lo)
            total += count * partials[lo // rows_per_chunk * 2 * channels + c]
        m = total / rows
        squares = 0.0
        for lo in range(0, rows, rows_per_chunk):
            count = min(rows_per_chunk, rows - lo)
            base = lo // rows_per_chunk * 2 * channels
            squares += partials[base + channels + c] + count * (partials[base + c] - m) ** 2
        mean[c] = m
        var[c] = squares / rows
        inv_std[c] = 1.0 / math.sqrt(squares / rows + eps)


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4, i8, i8, i8)")
def _apply(x, mean, inv_std, gamma, beta, y, floor, lo, hi, thread):
    channels = mean.size
    for row in range(lo, hi):
        for c in range(channels):
            i = row * channels + c
            v = (x[i] - mean[c]) * (gamma[c] * inv_std[c]) + beta[c]
            y[i] = floor if v < floor else v


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4, i8, i8, i8)")
def _apply_residual(x, mean, inv_std, gamma, beta, residual, y, floor, lo, hi, thread):
    channels = mean.size
    for row in range(lo, hi):
        for c in range(channels):
            i = row * channels + c
            v = ((x[i] - mean[c]) * (gamma[c] * inv_std[c]) + beta[c]) + residual[i]
            y[i] = floor if v < floor else v


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], i8, f8[::1], i8, i8, i8, i8)")
def _grad_reduce(dy, mask, x, mean, masked, partials, rows_per_chunk, lo, hi, thread):
    channels = mean.size
    base = lo // rows_per_chunk * 2 * channels
    sums, products = partials[base:][:channels], partials[base + channels :][:channels]
    sums[:] = 0.0
    products[:] = 0.0
    for row in range(lo, hi):
        for c in range(channels):
            i = row * channels + c
            dz = dy[i]
            if masked and not mask[i] > ZERO:
                dz = ZERO
            sums[c] += dz
            products[c] += dz * (x[i] - mean[c])


@kernel("void(f8[::1], i8, f4[::1], f4[::1], f4[::1])")
def _finish_grad(partials, chunks, inv_std, dgamma, dbeta):
    channels = inv_std.size
    for c in range(channels):
        total, product = 0.0, 0.0
        for chunk in range(chunks):
            total += partials[chunk * 2 * channels + c]
            product += partials[chunk * 2 * channels + channels + c]
        dbeta[c] = total
        dgamma[c] = product * inv_std[c]


@kernel(
    "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], i8, f4, f4[::1], i8, i8, i8)"
)
def _grad_apply(
    dy, mask, x, mean, inv_std, gamma, dgamma, dbeta, masked, inv_rows, dx, lo, hi, thread
):
    channels = mean.size
    for row in range(lo, hi):
        for c in range(channels):
            i = row * channels + c
            dz = dy[i]
            if masked and not mask[i] > ZERO:
                dz = ZERO
            slope = inv_std[c] * dgamma[c] * inv_rows
            dx[i] = gamma[c] * inv_std[c] * (dz - dbeta[c] * inv_rows - (x[i] - mean[c]) * slope)


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4, f4)")
def _update_running(mean, var, running_mean, running_var, momentum, unbias):
    for c in range(mean.size):
        running_mean[c] += momentum * (mean[c] - running_mean[c])
        running_var[c] += momentum * (var[c] * unbias - running_var[c])


@kernel("void(f4[::1], f4[::1], f8)")
def _inv_std(var, out, eps):
    for c in range(var.size):
        out[c] = 1.0 / math.sqrt(var[c] + eps)


def stats(
    pool: ThreadPool, x: Array, mean: Array, inv_std: Array, var: Array, workspace: Array, eps: float
) -> None:
    """Mean, biased variance and 1 / sqrt(var + eps) of each channel.

    Args:
        x: (P, C), or any array whose last axis is C.
        mean, inv_std, var: (C,), written.
        workspace: uint8, `batch_norm_workspace_bytes(P, C)`.
        eps: added to the variance.
    """
    channels, rows = mean.size, x.size // mean.size
    chunk = row_chunk(rows, channels)
    partials = _as_doubles(workspace)
    pool.run(_stats, rows, chunk, flat(x), channels, partials, chunk)
    _finish_stats(partials, rows, chunk, eps, mean, inv_std, var)


def inv_std_of(var: Array, inv_std: Array, eps: float) -> None:
    """inv_std = 1 / sqrt(var + eps), for `apply` with the running variance (evaluation)."""
    _inv_std(var, inv_std, eps)


def apply(
    pool: ThreadPool,
    x: Array,
    mean: Array,
    inv_std: Array,
    gamma: Array,
    beta: Array,
    y: Array,
    residual: Array | None = None,
    relu: bool = False,
) -> None:
    """y = (x - mean) * (gamma * inv_std) + beta [+ residual] [then ReLU]. `y` may be `x` or `residual`."""
    channels, rows = mean.size, x.size // mean.size
    chunk = row_chunk(rows, channels)
    # Without ReLU the floor is minus infinity: one kernel serves both.
    floor = ZERO if relu else NO_FLOOR
    if residual is None:
        pool.run(_apply, rows, chunk, flat(x), mean, inv_std, gamma, beta, flat(y), floor)
    else:
        args = flat(x), mean, inv_std, gamma, beta, flat(residual), flat(y), floor
        pool.run(_apply_residual, rows, chunk, *args)


def grad_reduce(
    pool: ThreadPool,
    dy: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    dgamma: Array,
    dbeta: Array,
    workspace: Array,
    mask: Array | None = None,
) -> None:
    """dbeta = sum of dz, dgamma = sum of dz * xhat, over rows; dz = dy, masked by `mask > 0` if given.

    Args:
        dy, x: (P, C).
        mask: the output of the fused ReLU, (P, C), or None.
        workspace: uint8, `batch_norm_workspace_bytes(P, C)`.
    """
    channels, rows = mean.size, x.size // mean.size
    chunk = row_chunk(rows, channels)
    partials = _as_doubles(workspace)
    masks = flat(dy if mask is None else mask)
    masked = int(mask is not None)
    pool.run(_grad_reduce, rows, chunk, flat(dy), masks, flat(x), mean, masked, partials, chunk)
    _finish_grad(partials, chunk_count(rows, chunk), inv_std, dgamma, dbeta)


def grad_apply(
    pool: ThreadPool,
    dy: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    gamma: Array,
    dgamma: Array,
    dbeta: Array,
    dx: Array,
    mask: Array | None = None,
) -> None:
    """dx = gamma * inv_std * (dz - dbeta / P - xhat * dgamma / P). `dx` may be `dy`, `x` or `mask`."""
    channels, rows = mean.size, x.size // mean.size
    masks = flat(dy if mask is None else mask)
    channel_args = mean, inv_std, gamma, dgamma, dbeta, int(mask is not None), np.float32(1.0 / rows)
    pool.run(_grad_apply, rows, row_chunk(rows, channels), flat(dy), masks, flat(x), *channel_args, flat(dx))


def update_running(
    mean: Array,
    var: Array,
    running_mean: Array,
    running_var: Array,
    count: Array | None,
    momentum: float | None,
    rows: int,
) -> None:
    """Moves the running statistics, in place, towards those of this batch, as torch does.

    Args:
        mean, var: of the batch, (C,), the variance biased; the running variance gets the unbiased one.
        running_mean, running_var: (C,), updated.
        count: int64, one element, number of batches seen; incremented. None: not counted.
        momentum: weight of this batch; None: 1 / count (cumulative average; needs `count`).
        rows: P, the number of values per channel.
    """
    if count is not None:
        count += 1
    weight = 1.0 / int(count.reshape(-1)[0]) if momentum is None else momentum
    unbias = rows / max(rows - 1, 1)
    _update_running(mean, var, running_mean, running_var, np.float32(weight), np.float32(unbias))


def _as_doubles(workspace: Array) -> Array:
    return workspace[: workspace.size // 8 * 8].view(np.float64)
