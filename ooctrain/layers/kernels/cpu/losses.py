"""Losses over rows: softmax cross-entropy, mean squared error, absolute error, and their gradients.

In: logits (rows, classes) and labels (per pixel: rows = N * H * W), or prediction and target. Out: one
loss per row, their sum or mean, gradients. The one idea: the forward kernel stores the log-sum-exp of
each row instead of probabilities, so that forward reads the logits once and the gradient is
(exp(logit - lse) - onehot) * scale. Sums are float64 partials per chunk, combined in chunk order. Read
next: `optimizers.py`.
"""

from __future__ import annotations

import math

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import chunk_count, element_chunk, flat, row_chunk
from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.pool import ThreadPool

Array = np.ndarray
ZERO, ONE = np.float32(0), np.float32(1)


@kernel("void(f4[:,::1], i8[::1], f4[::1], f4[::1], i8, i8, i8, i8)")
def _cross_entropy(logits, labels, losses, lse, ignore_index, lo, hi, thread):
    classes = logits.shape[1]
    for row in range(lo, hi):
        top = logits[row, 0]
        for c in range(1, classes):
            top = max(top, logits[row, c])
        total = 0.0
        for c in range(classes):
            total += math.exp(logits[row, c] - top)
        lse[row] = top + math.log(total)
        label = labels[row]
        losses[row] = ZERO if label == ignore_index else math.log(total) - (logits[row, label] - top)


@kernel("void(f4[:,::1], i8[::1], f4[::1], f4[:,::1], f4, i8, i8, i8, i8)")
def _cross_entropy_grad(logits, labels, lse, dlogits, scale, ignore_index, lo, hi, thread):
    classes = logits.shape[1]
    for row in range(lo, hi):
        factor = ZERO if labels[row] == ignore_index else scale
        for c in range(classes):
            dlogits[row, c] = math.exp(logits[row, c] - lse[row]) * factor
        if labels[row] != ignore_index:
            dlogits[row, labels[row]] -= scale


@kernel("i8(i8[::1], i8)")
def _valid_rows(labels, ignore_index):
    count = 0
    for row in range(labels.size):
        count += labels[row] != ignore_index
    return count


@kernel("void(f4[::1], f8[::1], i8, i8, i8, i8)")
def _sum(x, partials, chunk, lo, hi, thread):
    total = 0.0
    for i in range(lo, hi):
        total += x[i]
    partials[lo // chunk] = total


@kernel("void(f4[::1], f4[::1], f8[::1], i8, i8, i8, i8)")
def _squared_errors(x, target, partials, chunk, lo, hi, thread):
    total = 0.0
    for i in range(lo, hi):
        total += (x[i] - target[i]) ** 2
    partials[lo // chunk] = total


@kernel("void(f4[::1], f4[::1], f8[::1], i8, i8, i8, i8)")
def _absolute_errors(x, target, partials, chunk, lo, hi, thread):
    total = 0.0
    for i in range(lo, hi):
        total += abs(x[i] - target[i])
    partials[lo // chunk] = total


@kernel("void(f8[::1], i8, f8, f4[::1])")
def _combine(partials, chunks, factor, out):
    total = 0.0
    for chunk in range(chunks):
        total += partials[chunk]
    out[0] = total * factor


@kernel("void(f4[::1], f4[::1], f4[::1], f4, i8, i8, i8)")
def _mse_grad(x, target, dx, scale, lo, hi, thread):
    for i in range(lo, hi):
        dx[i] = (x[i] - target[i]) * scale


@kernel("void(f4[::1], f4[::1], f4[::1], f4, i8, i8, i8)")
def _l1_grad(x, target, dx, scale, lo, hi, thread):
    for i in range(lo, hi):
        d = x[i] - target[i]
        dx[i] = scale if d > ZERO else (-scale if d < ZERO else d * ZERO)


def softmax_cross_entropy(
    pool: ThreadPool, logits: Array, labels: Array, losses: Array, lse: Array, ignore_index: int = -100
) -> None:
    """losses[r] = lse[r] - logits[r, label], lse[r] = log(sum of exp(logits[r])).

    Args:
        logits: (rows, classes).
        labels: int64, (rows,), each in [0, classes) or `ignore_index` (loss 0); checked by the caller.
        losses, lse: (rows,), written.
    """
    chunk = row_chunk(*logits.shape)
    pool.run(
        _cross_entropy, logits.shape[0], chunk, logits, labels, losses, lse, ignore_index
    )


def softmax_cross_entropy_grad(
    pool: ThreadPool,
    logits: Array,
    labels: Array,
    lse: Array,
    dlogits: Array,
    scale: float,
    ignore_index: int = -100,
) -> None:
    """dlogits = (softmax - onehot) * scale; rows with `ignore_index` get 0. `dlogits` may be `logits`.

    Args:
        scale: gradient of the loss, divided by `valid_rows` for a mean.
    """
    chunk = row_chunk(*logits.shape)
    pool.run(
        _cross_entropy_grad, logits.shape[0], chunk, logits, labels, lse, dlogits, np.float32(scale), ignore_index
    )  # fmt: skip


def valid_rows(labels: Array, ignore_index: int = -100) -> int:
    """Number of labels that are not `ignore_index`: the divisor of a mean."""
    return _valid_rows(flat(labels), ignore_index)


def total(pool: ThreadPool, losses: Array, out: Array, factor: float, workspace: Array) -> None:
    """out[0] = factor * sum of losses (factor = 1 / valid rows for a mean), summed in float64.

    Args:
        workspace: uint8, `reduction_workspace_bytes(losses.size)`.
    """
    _reduce(pool, _sum, (flat(losses),), out, factor, workspace)


def mse(pool: ThreadPool, x: Array, target: Array, out: Array, factor: float, workspace: Array) -> None:
    """out[0] = factor * sum of (x - target)^2; factor = 1 / x.size for a mean, 1 for a sum."""
    _reduce(pool, _squared_errors, (flat(x), flat(target)), out, factor, workspace)


def l1(pool: ThreadPool, x: Array, target: Array, out: Array, factor: float, workspace: Array) -> None:
    """out[0] = factor * sum of |x - target|."""
    _reduce(pool, _absolute_errors, (flat(x), flat(target)), out, factor, workspace)


def mse_grad(pool: ThreadPool, x: Array, target: Array, dx: Array, scale: float) -> None:
    """dx = (x - target) * scale; scale = 2 * dloss / x.size for a mean. `dx` may be `x` or `target`."""
    pool.run(_mse_grad, x.size, element_chunk(x.size), flat(x), flat(target), flat(dx), np.float32(scale))


def l1_grad(pool: ThreadPool, x: Array, target: Array, dx: Array, scale: float) -> None:
    """dx = sign(x - target) * scale, 0 where equal. `dx` may be `x` or `target`."""
    pool.run(_l1_grad, x.size, element_chunk(x.size), flat(x), flat(target), flat(dx), np.float32(scale))


def _reduce(pool, range_kernel, arrays, out, factor, workspace) -> None:
    elements = arrays[0].size
    chunk, partials = element_chunk(elements), workspace[: workspace.size // 8 * 8].view(np.float64)
    pool.run(range_kernel, elements, chunk, *arrays, partials, chunk)
    _combine(partials, chunk_count(elements, chunk), factor, flat(out))
