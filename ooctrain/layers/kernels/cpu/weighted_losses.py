"""Cross-entropy with class weights and label smoothing, and losses that are not summed up.

In: logits (rows, classes), labels, a weight for each class; or prediction and target. Out: one loss
per row or element, gradients. The one idea: what `losses.py` has found for a row (log-sum-exp, loss
of the label) is all that weights and smoothing need besides one more pass over the row. Few
trainings use them, so these are plain loops. Read next: `pooling.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import element_chunk, row_chunk
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

Array = np.ndarray
ZERO = np.float32(0)


@kernel("void(f4[::1], i8, i8[::1], f4[::1], f4[::1], f4[::1], f4, i8, i8, i8, i8)")
def _weigh(z, classes, labels, weights, lse, losses, smoothing, ignore_index, lo, hi, thread):
    """losses[r] = (1 - s) w[label] losses[r] + s / K * sum of w[c] (lse[r] - z[r, c])."""
    for row in range(lo, hi):
        if labels[row] == ignore_index:
            losses[row] = ZERO
            continue
        own = weights[labels[row]] * losses[row]
        if smoothing == ZERO:
            losses[row] = own
            continue
        spread = 0.0
        for c in range(classes):
            # A class of weight 0 counts nothing, also where its logit is -inf.
            if weights[c] != ZERO:
                spread += weights[c] * (lse[row] - z[row * classes + c])
        losses[row] = (1 - smoothing) * own + smoothing / classes * spread


@kernel(
    "void(f4[::1], i8, i8[::1], f4[::1], f4[::1], f4[::1], f4, f4, f4[::1], i8, i8, i8, i8)",
)
def _weighted_grad(
    z, classes, labels, weights, lse, dloss, factor, smoothing, dz, ignore_index, lo, hi, thread
):
    """dz = factor dloss[r] (p (own + all) - own onehot - (s / K) w), with own = (1 - s) w[label]
    and all = s / K * sum of w. `dloss` has one element, or one for each row."""
    total = 0.0
    for c in range(classes):
        total += weights[c]
    for row in range(lo, hi):
        start, label = row * classes, labels[row]
        if label == ignore_index:
            for c in range(classes):
                dz[start + c] = ZERO
            continue
        scale = factor * (dloss[row] if dloss.size > 1 else dloss[0])
        own, share = (1 - smoothing) * weights[label], smoothing / classes
        for c in range(classes):
            p = np.exp(z[start + c] - lse[row])
            dz[start + c] = scale * (p * (own + share * total) - share * weights[c])
        dz[start + label] -= scale * own


@kernel("f8(i8[::1], f4[::1], i8)")
def _weight_of_labels(labels, weights, ignore_index):
    total = 0.0
    for row in range(labels.size):
        if labels[row] != ignore_index:
            total += weights[labels[row]]
    return total


@kernel("void(f4[::1], f4[::1], b1, f4[::1], i8, i8, i8)")
def _error_each(x, target, squared, y, lo, hi, thread):
    for i in range(lo, hi):
        d = x[i] - target[i]
        y[i] = d * d if squared else abs(d)


@kernel("void(f4[::1], f4[::1], f4[::1], b1, f4[::1], i8, i8, i8)")
def _error_each_grad(x, target, dy, squared, dx, lo, hi, thread):
    for i in range(lo, hi):
        d = x[i] - target[i]
        dx[i] = (d + d if squared else np.sign(d)) * dy[i]


def weigh(
    pool: ThreadPool, logits: Array, labels: Array, weights: Array, lse: Array, losses: Array,
    smoothing: float, ignore_index: int,
) -> None:  # fmt: skip
    """Turns what `losses.softmax_cross_entropy` wrote into weighted and smoothed losses.

    Args:
        logits: (rows, classes).
        weights: (classes,).
        lse, losses: (rows,), losses read and written.
        smoothing: share of the label that is spread over all classes.
    """
    rows, classes = logits.shape
    arguments = logits, classes, labels, weights, lse, losses, smoothing, ignore_index
    pool.run(_weigh, rows, row_chunk(rows, classes), *arguments)


def weighted_grad(
    pool: ThreadPool, logits: Array, labels: Array, weights: Array, lse: Array, dloss: Array,
    dlogits: Array, factor: float, smoothing: float, ignore_index: int,
) -> None:  # fmt: skip
    """Gradient of `weigh`, times `factor` and dloss (one number, or one for each row).

    `dlogits` may be `logits`.
    """
    rows, classes = logits.shape
    arguments = (
        logits, classes, labels, weights, lse, dloss, factor, smoothing, dlogits,
        ignore_index,
    )  # fmt: skip
    pool.run(_weighted_grad, rows, row_chunk(rows, classes), *arguments)


def weight_of_labels(labels: Array, weights: Array, ignore_index: int) -> float:
    """Sum of the weights of all labels that count: the divisor of a mean."""
    return _weight_of_labels(labels, weights, ignore_index)


def error_each(pool: ThreadPool, x: Array, target: Array, y: Array, squared: bool) -> None:
    """y = (x - target)^2, or |x - target|."""
    arguments = x, target, squared, y
    pool.run(_error_each, x.size, element_chunk(x.size), *arguments)


def error_each_grad(
    pool: ThreadPool, x: Array, target: Array, dy: Array, dx: Array, squared: bool
) -> None:
    """dx = 2 (x - target) dy, or sign(x - target) dy. `dx` may be `x`."""
    arguments = x, target, dy, squared, dx
    pool.run(_error_each_grad, x.size, element_chunk(x.size), *arguments)
