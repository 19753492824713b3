"""Losses on the cpu: one pass over each row of logits, one number kept for the gradient.

Inputs are logits (rows, classes) and labels (per pixel: rows = N * H * W), or prediction and
target; results are one loss per row, their sum or mean, and gradients. The forward kernel stores
the log-sum-exp of each row instead of probabilities, so that forward reads the logits once and the
gradient is (exp(logit - lse) - onehot) * scale. Sums are float64 partials per chunk, combined in
chunk order. Read next: `functions.py`, the losses of values; `update.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import (
    chunk_count,
    element_chunk,
    flat,
    reduction_chunk,
    row_chunk,
)
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import (
    VL,
    vabs,
    vfma,
    vmax,
    vmax_lanes,
    vselect_gt,
    vsplat,
    vsum,
)
from ooctrain.layers.kernels.cpu.simd.simd_math import vexp, vlog
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vload_upto_or, vstore_upto
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ELEMENTS
from ooctrain.layers.kernels.signature import B1, F4, F8, I8, F4s, F8s, I8s
from ooctrain.layers.losses import (
    LabelWeight,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    WeightedCrossEntropy,
    WeightedCrossEntropyGrad,
    mean_factor,
    number_of,
)
from ooctrain.step.op import whole_lines

Array = np.ndarray
Arrays = Sequence[Array]
ZERO, ONE, LOWEST = np.float32(0), np.float32(1), np.float32(-np.inf)


@kernel
def _cross_entropy(
    z: F4s, classes: I8, labels: I8s, losses: F4s, lse: F4s, ignore_index: I8, lo, hi, thread,
):  # fmt: skip
    """Items are rows: losses[r] = lse[r] - z[r, label], lse[r] = log(sum of exp(z[r])).

    VL rows at a time, so that their logarithms are one vector; until then `lse` holds the largest
    logit of a row and `losses` the sum of exp(z[r] - largest).
    """
    for first in range(lo, hi, VL):
        last = min(hi, first + VL)
        for row in range(first, last):
            start = row * classes
            tops = vsplat(LOWEST)
            for c in range(0, classes, VL):
                tops = vmax(tops, vload_upto_or(z, start + c, classes - c, LOWEST))
            top = vmax_lanes(tops)
            sums = vsplat(ZERO)
            for c in range(0, classes, VL):
                sums = sums + vexp(vload_upto_or(z, start + c, classes - c, LOWEST) - top)
            lse[row], losses[row] = top, vsum(sums)
        n = last - first
        vstore_upto(losses, first, vlog(vload_upto_or(losses, first, n, ONE)), n)
        for row in range(first, last):
            top, log_sum, label = lse[row], losses[row], labels[row]
            lse[row] = top + log_sum
            # Logits are taken relative to the largest: a large common offset costs no digits.
            losses[row] = (
                log_sum - (z[row * classes + label] - top) if label != ignore_index else ZERO
            )


@kernel
def _cross_entropy_grad(
    z: F4s, classes: I8, labels: I8s, lse: F4s, dz: F4s, scale: F4, ignore_index: I8, lo, hi,
    thread,
):  # fmt: skip
    """Items are rows: dz[r] = (exp(z[r] - lse[r]) - onehot) * scale, 0 in ignored rows."""
    for row in range(lo, hi):
        start, label = row * classes, labels[row]
        factor = ZERO if label == ignore_index else scale
        shift = lse[row]
        for c in range(0, classes, VL):
            p = factor * vexp(vload_upto(z, start + c, classes - c) - shift)
            vstore_upto(dz, start + c, p, classes - c)
        if label != ignore_index:
            dz[start + label] -= scale


@kernel
def _valid_rows(labels: I8s, ignore_index: I8) -> I8:
    count = 0
    for row in range(labels.size):
        count += labels[row] != ignore_index
    return count


@kernel
def _sum(x: F4s, partials: F8s, chunk: I8, lo, hi, thread):
    """Items are elements; each chunk has its partial sum, in float64 over blocks in float32."""
    total = 0.0
    for first in range(lo, hi, BLOCK_ELEMENTS):
        last = min(hi, first + BLOCK_ELEMENTS)
        sums = vsplat(ZERO)
        for i in range(first, last, VL):
            sums = sums + vload_upto(x, i, last - i)
        total += vsum(sums)
    partials[lo // chunk] = total


@kernel
def _errors(x: F4s, target: F4s, squared: B1, partials: F8s, chunk: I8, lo, hi, thread):
    """Sum of (x - target)^2 or of |x - target|, as `_sum`."""
    total = 0.0
    for first in range(lo, hi, BLOCK_ELEMENTS):
        last = min(hi, first + BLOCK_ELEMENTS)
        sums = vsplat(ZERO)
        for i in range(first, last, VL):
            d = vload_upto(x, i, last - i) - vload_upto(target, i, last - i)
            sums = vfma(d, d, sums) if squared else sums + vabs(d)
        total += vsum(sums)
    partials[lo // chunk] = total


@kernel
def _combine(partials: F8s, chunks: I8, factor: F8, out: F4s, lo, hi, thread):
    """out = factor * the sum of the partial sums, in their order."""
    total = 0.0
    for chunk in range(chunks):
        total += partials[chunk]
    out[0] = total * factor


@kernel
def _errors_grad(x: F4s, target: F4s, dx: F4s, scale: F4, squared: B1, lo, hi, thread):
    """dx = (x - target) * scale, or the sign of (x - target) times scale."""
    zero, up, down = vsplat(ZERO), vsplat(scale), vsplat(-scale)
    for i in range(lo, hi, VL):
        d = vload_upto(x, i, hi - i) - vload_upto(target, i, hi - i)
        if squared:
            d = scale * d
        else:
            d = vselect_gt(d, zero, up, vselect_gt(zero, d, down, zero * d))
        vstore_upto(dx, i, d, hi - i)


def cross_entropy(
    pool: ThreadPool, op: SoftmaxCrossEntropy, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The loss and the log-sum-exp of each row."""
    pool.every_time()
    logits, labels, *divisor = ins
    loss, lse = outs
    each, partials = loss_parts(workspace, labels.size)
    softmax_cross_entropy(pool, logits, labels, each, lse, op.ignore_index)
    total(pool, each, loss, _row_factor(op, labels, divisor), partials)


def cross_entropy_grad(
    pool: ThreadPool, op: SoftmaxCrossEntropyGrad, ins: Arrays, outs: Arrays
) -> None:
    """dlogits, which may be the logits."""
    pool.every_time()
    logits, labels, lse, dloss, *divisor = ins
    scale = float(dloss.reshape(-1)[0]) * _row_factor(op, labels, divisor)
    softmax_cross_entropy_grad(pool, logits, labels, lse, outs[0], scale, op.ignore_index)


def softmax_cross_entropy(
    pool: ThreadPool, logits, labels, losses, lse, ignore_index: int = -100
) -> None:
    """losses[r] = lse[r] - logits[r, label], lse[r] = log(sum of exp(logits[r])).

    Args:
        logits: (..., classes), channels last.
        labels: int64, one for each row, in [0, classes) or `ignore_index` (loss 0); the caller
            checks.
        losses, lse: of as many elements, written.
    """
    rows, classes = labels.size, logits.shape[-1]
    args = logits, classes, labels, losses, lse, ignore_index
    pool.run(_cross_entropy, rows, row_chunk(rows, classes), *args)


def softmax_cross_entropy_grad(
    pool: ThreadPool, logits, labels, lse, dlogits, scale: float, ignore_index: int = -100
) -> None:
    """dlogits = (softmax - onehot) * scale, 0 in ignored rows. `dlogits` may be `logits`.

    Args:
        scale: gradient of the loss, divided by `valid_rows` for a mean.
    """
    rows, classes = labels.size, logits.shape[-1]
    args = logits, classes, labels, lse, dlogits, scale, ignore_index
    pool.run(_cross_entropy_grad, rows, row_chunk(rows, classes), *args)


def valid_rows(labels: Array, ignore_index: int = -100) -> int:
    """Number of labels that are not `ignore_index`: the divisor of a mean."""
    return _valid_rows(flat(labels), ignore_index)


def total(pool: ThreadPool, losses: Array, out: Array, factor: float, workspace: Array) -> None:
    """out[0] = factor * sum of losses (factor = 1 / valid rows for a mean), summed in float64.

    Args:
        workspace: uint8, `reduction_workspace_bytes(losses.size)`.
    """
    _reduce(pool, _sum, (losses,), out, factor, workspace)


def mean_error(pool: ThreadPool, x, target, out, factor: float, absolute: bool, workspace) -> None:
    """out[0] = factor * sum of (x - target)^2, or of |x - target|.

    Args:
        factor: 1 / x.size for a mean, 1 for a sum.
    """
    _reduce(pool, _errors, (x, target, not absolute), out, factor, workspace)


def mean_error_grad(pool: ThreadPool, x, target, dloss, dx, factor: float, absolute: bool) -> None:
    """dx = 2 (x - target) dloss factor, or sign(x - target) dloss factor, 0 where equal.

    `dx` may be `x`.
    """
    pool.every_time()
    scale = float(dloss.reshape(-1)[0]) * factor
    args = x, target, dx, scale if absolute else 2 * scale, not absolute
    pool.run(_errors_grad, x.size, element_chunk(x.size), *args)


def loss_parts(workspace: Array, rows: int) -> tuple[Array, Array]:
    """(a float32 for each row, scratch of their sum): a workspace of `class_loss_bytes`."""
    return workspace[: 4 * rows].view(np.float32), workspace[whole_lines(4 * rows) :]


def _row_factor(
    op: SoftmaxCrossEntropy | SoftmaxCrossEntropyGrad, labels: Array, divisor: Arrays
) -> float:
    """What the summed losses of the rows are multiplied by."""
    if op.reduction == "sum":
        return 1.0
    counted = number_of(divisor[0]) if divisor else valid_rows(labels, op.ignore_index)
    return mean_factor(counted)


def _reduce(pool, range_kernel, arrays, out, factor, workspace) -> None:
    elements = arrays[0].size
    chunk = reduction_chunk(elements)
    partials = workspace[: workspace.size // 8 * 8].view(np.float64)
    pool.run(range_kernel, elements, chunk, *arrays, partials, chunk)
    combine(pool, partials, chunk_count(elements, chunk), factor, out)


def combine(pool: ThreadPool, partials: Array, chunks: int, factor: float, out: Array) -> None:
    """out[0] = factor * the sum of the partial sums of so many chunks, in their order."""
    pool.run(_combine, 1, 1, partials, chunks, factor, out)


# Negative log-likelihood: from (rows, classes), labels and a weight for each class, a loss for each
# row, or its gradient. A row costs one load, so plain loops suffice.


@kernel
def _likelihood(x: F4s, labels: I8s, weights: F4s, y: F4s, ignore_index: I8, lo, hi, thread):
    classes = weights.size
    for row in range(lo, hi):
        label = labels[row]
        y[row] = ZERO if label == ignore_index else -weights[label] * x[row * classes + label]


@kernel
def _likelihood_grad(labels: I8s, weights: F4s, dy: F4s, dx: F4s, ignore_index: I8, lo, hi, thread):
    classes = weights.size
    for row in range(lo, hi):
        label = labels[row]
        for c in range(classes):
            dx[row * classes + c] = ZERO
        if label != ignore_index:
            dx[row * classes + label] = -weights[label] * dy[row]


def likelihood(
    pool: ThreadPool, x: Array, labels: Array, weights: Array, y: Array, ignore_index: int
) -> None:
    """y = -weights[label] x[label] for each row, 0 where it is ignored."""
    chunk = row_chunk(labels.size, 1)
    pool.run(_likelihood, labels.size, chunk, x, labels, weights, y, ignore_index)


def likelihood_grad(
    pool: ThreadPool, labels: Array, weights: Array, dy: Array, dx: Array, ignore_index: int
) -> None:
    """dx = -weights[label] dy at the label, else 0."""
    chunk = row_chunk(labels.size, weights.size)
    pool.run(_likelihood_grad, labels.size, chunk, labels, weights, dy, dx, ignore_index)


# Cross-entropy with class weights and label smoothing, and losses that are not summed up. Given a
# row's log-sum-exp and the loss of its label, weights and smoothing need only one more pass over
# the row. Few trainings use them, so these are plain loops.


@kernel
def _weigh(
    z: F4s, classes: I8, labels: I8s, weights: F4s, lse: F4s, losses: F4s, smoothing: F4,
    ignore_index: I8, lo, hi, thread,
):  # fmt: skip
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


@kernel
def _weighted_grad(
    z: F4s, classes: I8, labels: I8s, weights: F4s, lse: F4s, dloss: F4s, factor: F4, smoothing: F4,
    dz: F4s, ignore_index: I8, lo, hi, thread,
):  # fmt: skip
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


@kernel
def weight_of_labels(labels: I8s, weights: F4s, ignore_index: I8, total: F8) -> F8:
    """`total` and the weights of the labels that count, added one after the other."""
    for row in range(labels.size):
        if labels[row] != ignore_index:
            total += weights[labels[row]]
    return total


@kernel
def _error_each(x: F4s, target: F4s, squared: B1, y: F4s, lo, hi, thread):
    for i in range(lo, hi):
        d = x[i] - target[i]
        y[i] = d * d if squared else abs(d)


@kernel
def _error_each_grad(x: F4s, target: F4s, dy: F4s, squared: B1, dx: F4s, lo, hi, thread):
    for i in range(lo, hi):
        d = x[i] - target[i]
        dx[i] = (d + d if squared else np.sign(d)) * dy[i]


def write(pool: ThreadPool, target: Array, values: tuple[float, ...]) -> None:
    """target = values."""
    pool.every_time()
    target[:] = values


def weighted_cross_entropy(
    pool: ThreadPool, op: WeightedCrossEntropy, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The loss, of all rows or of each, and the log-sum-exp of each row."""
    pool.every_time()
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
    pool.every_time()
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
    pool.every_time()
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
