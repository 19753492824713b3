"""Cross-entropy with class weights and label smoothing, and losses that are not summed up.

Inputs are logits (rows, classes), labels and a weight for each class, or prediction and target;
results are one loss per row or element, and gradients. `losses.py` computes for each row the
log-sum-exp and the loss of the label; given these, weights and smoothing need only one more pass
over the row. Few trainings use them, so these are plain loops. Read next: `pooling.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.layers.class_loss import LabelWeight, number_of
from ooctrain.layers.kernels.cpu.chunks import element_chunk, flat, row_chunk
from ooctrain.layers.kernels.cpu.losses import (
    loss_parts,
    softmax_cross_entropy,
    total,
    valid_rows,
)
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.regression_loss import mean_factor
from ooctrain.layers.weighted_loss import WeightedCrossEntropy, WeightedCrossEntropyGrad

Array = np.ndarray
Arrays = Sequence[Array]
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


@kernel("f8(i8[::1], f4[::1], i8, f8)")
def weight_of_labels(labels, weights, ignore_index, total):
    """`total` and the weights of the labels that count, added one after the other."""
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


def write(pool: ThreadPool, target: Array, values: tuple[float, ...]) -> None:
    """target = values."""
    target[:] = values


def weighted_cross_entropy(
    pool: ThreadPool, op: WeightedCrossEntropy, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The loss, of all rows or of each, and the log-sum-exp of each row."""
    logits, labels, weights, *divisor = ins
    loss, lse = outs
    each, partials = loss_parts(workspace, labels.size)
    each = loss if op.reduction == "none" else each
    softmax_cross_entropy(pool, logits, labels, each, lse, op.ignore_index)
    arrays, rows, classes = (labels, weights, lse, each), labels.size, weights.size
    settings = op.label_smoothing, op.ignore_index
    pool.run(_weigh, rows, row_chunk(rows, classes), logits, classes, *arrays, *settings)
    if op.reduction != "none":
        total(pool, each, loss, _factor(op, labels, weights, divisor), partials)


def weighted_cross_entropy_grad(
    pool: ThreadPool, op: WeightedCrossEntropyGrad, ins: Arrays, outs: Arrays
) -> None:
    """dlogits, which may be the logits; dloss is one number, or one for each row."""
    logits, labels, weights, lse, dloss, *divisor = ins
    rows, classes = labels.size, weights.size
    factors = _factor(op, labels, weights, divisor), op.label_smoothing
    arguments = logits, classes, labels, weights, lse, dloss, *factors, outs[0], op.ignore_index
    pool.run(_weighted_grad, rows, row_chunk(rows, classes), *arguments)


def error_each(pool: ThreadPool, x: Array, target: Array, y: Array, absolute: bool) -> None:
    """y = (x - target)^2, or |x - target|."""
    arguments = x, target, not absolute, y
    pool.run(_error_each, x.size, element_chunk(x.size), *arguments)


def error_each_grad(
    pool: ThreadPool, x: Array, target: Array, dy: Array, dx: Array, absolute: bool
) -> None:
    """dx = 2 (x - target) dy, or sign(x - target) dy. `dx` may be `x`."""
    arguments = x, target, dy, not absolute, dx
    pool.run(_error_each_grad, x.size, element_chunk(x.size), *arguments)


def label_weight(pool: ThreadPool, op: LabelWeight, ins: Arrays, outs: Arrays) -> None:
    """The weight of the labels that count (1 each where there are no weights), / parts."""
    labels, *weights = ins
    if weights:
        counted = weight_of_labels(flat(labels), *weights, op.ignore_index, 0.0)
    else:
        counted = valid_rows(labels, op.ignore_index)
    outs[0][...] = counted / op.parts


def _factor(
    op: WeightedCrossEntropy | WeightedCrossEntropyGrad, labels: Array, weights: Array,
    divisor: Arrays,
) -> float:  # fmt: skip
    """What the summed losses are multiplied by."""
    if op.reduction != "mean":
        return 1.0
    if divisor:
        return mean_factor(number_of(divisor[0]))
    return mean_factor(weight_of_labels(flat(labels), weights, op.ignore_index, 0.0))
