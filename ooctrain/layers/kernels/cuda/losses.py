"""Losses on the GPU: a warp takes a row of logits, one number is kept for the gradient.

Logits (rows, classes) and labels (per pixel: rows = N * H * W), or prediction and target, give one
loss per row, their sum or mean, and gradients. As a warp takes a row, its loads are contiguous and
its maximum and sum pass from lane to lane. The number of labels that count and the gradient of the
loss stay on the GPU and are read where they are needed, so the host does not wait for them. Read
next: `functions.py`, the losses of values; `../cpu/losses.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import THREADS, element_chunk, tiles
from ooctrain.layers.kernels.cuda.columns import add_compensated, at, column_total
from ooctrain.layers.kernels.cuda.functions import apply, binary, ternary
from ooctrain.layers.kernels.cuda.loss_space import LossSpace, loss_space
from ooctrain.layers.kernels.cuda.quads import first_quads, load_quad, store_quad
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    device,
    float32,
    int64,
    kernel,
    larger,
    smaller,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.cuda.sums import (
    HALFWAY,
    finish,
    sum_blocks,
    sum_into,
    sum_of,
    sum_of_first,
)
from ooctrain.layers.kernels.signature import B1, F4, I8, U4, F4s, F4x16, I8s
from ooctrain.layers.losses import (
    ClassLoss,
    ClassLossGrad,
    LabelWeight,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    WeightedCrossEntropy,
    WeightedCrossEntropyGrad,
)

Array = Any
Arrays = Sequence[Array]
ZERO, ONE, LOWEST = np.float32(0), np.float32(1), np.float32(-np.inf)
#: Lanes of a warp, and rows of a block of THREADS.
WARP = 32
ROWS = THREADS // WARP
WHOLE_WARP = 0xFFFFFFFF
#: Elements that a lane has under way at once; its last ones in a row come one by one.
TURNS = 4
ALL_TURNS = np.uint64(TURNS)
AT_ONCE, BEFORE_LAST = np.uint32(TURNS * WARP), np.uint32((TURNS - 1) * WARP)


@device
def row_of(block, thread):
    """The row of a warp."""
    return uint32(uint32(block) * uint32(ROWS) + uint32(uint32(thread) // uint32(WARP)))


@device
def lane_of(thread):
    """Its place in its warp."""
    return uint32(uint32(thread) % uint32(WARP))


@device
def four_of(x, i, apart):
    """x[i], x[i + apart], ...: four of a lane's elements."""
    j = i + apart
    k = j + apart
    return at(x, i), at(x, j), at(x, k), at(x, k + apart)


@device
def lane_maximum(x, i, c, classes, apart):
    """The largest of x[i], x[i + apart], ...: the elements c, c + 32, ... of a row."""
    top = LOWEST
    while uint32(c + BEFORE_LAST) < classes:
        u, v, w, z = four_of(x, i, apart)
        top = larger(z, larger(w, larger(v, larger(u, top))))
        i, c = i + ALL_TURNS * apart, uint32(c + AT_ONCE)
    while c < classes:
        top = larger(at(x, i), top)
        i, c = i + apart, uint32(c + uint32(WARP))
    return top


@device
def lane_exponentials(x, i, c, classes, apart, top):
    """The sum of exp(x - top) over these elements, one after the other."""
    total = ZERO
    while uint32(c + BEFORE_LAST) < classes:
        u, v, w, z = four_of(x, i, apart)
        total = (total + math.exp(u - top)) + math.exp(v - top)
        total = (total + math.exp(w - top)) + math.exp(z - top)
        i, c = i + ALL_TURNS * apart, uint32(c + AT_ONCE)
    while c < classes:
        total += math.exp(at(x, i) - top)
        i, c = i + apart, uint32(c + uint32(WARP))
    return total


@device
def taken(u, v):
    """Just u."""
    return u


@device
def squared_error(x, target):
    """(x - target)^2."""
    return (x - target) * (x - target)


@device
def absolute_error(x, target):
    """|x - target|."""
    return abs(x - target)


_sum = sum_of(taken)
_squared_errors = sum_of(squared_error)
_absolute_errors = sum_of(absolute_error)


@kernel(threads=THREADS)
def _cross_entropy(z: F4s, classes: U4, labels: I8s, losses: F4s, lse: F4s, ignore_index: I8):
    """A warp: losses[r] = lse[r] - z[r, label], lse[r] = log(sum of exp(z[r]))."""
    lane = lane_of(cuda.threadIdx.x)
    row = row_of(cuda.blockIdx.x, cuda.threadIdx.x)
    if row < labels.size:
        start = uint64(row) * uint64(classes)
        first, apart = start + uint64(lane), uint64(WARP)
        top = lane_maximum(z, first, lane, classes, apart)
        for step in (16, 8, 4, 2, 1):
            top = larger(cuda.shfl_xor_sync(WHOLE_WARP, top, step), top)
        total = lane_exponentials(z, first, lane, classes, apart, top)
        for step in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(WHOLE_WARP, total, step)
        if lane == 0:
            label, log_sum = labels[row], math.log(total)
            lse[row] = top + log_sum
            # Taken from the largest logit, not from lse: no digits are lost to a common offset.
            losses[row] = ZERO
            if label != ignore_index:
                losses[row] = log_sum - (z[start + uint64(label)] - top)


@kernel(threads=THREADS)
def _cross_entropy_grad(
    z: F4s, classes: U4, labels: I8s, lse: F4s, dloss: F4s, divisor: F4s, divides: B1, dz: F4s,
    ignore_index: I8,
):  # fmt: skip
    """A warp: dz[r] = (exp(z[r] - lse[r]) - onehot) * dloss [/ divisor], 0 in ignored rows."""
    lane = lane_of(cuda.threadIdx.x)
    row = row_of(cuda.blockIdx.x, cuda.threadIdx.x)
    if row < labels.size:
        start, label = uint64(row) * uint64(classes), labels[row]
        scale = dloss[0] / divisor[0] if divides else dloss[0]
        for c in range(lane, classes, WARP):
            p = math.exp(z[start + uint32(c)] - lse[row]) - (ONE if c == label else ZERO)
            dz[start + uint32(c)] = p * scale if label != ignore_index else ZERO


@kernel(threads=THREADS)
def _label_weights(
    labels: I8s, weights: F4s, weighted: B1, ignore_index: I8, partials: F4s, labels_per_block: I8,
):  # fmt: skip
    """partials[block] = number of its labels that count, or the sum of the weights of these."""
    totals = cuda.shared.array(THREADS, float32)
    thread, halfway = uint32(cuda.threadIdx.x), uint32(HALFWAY)
    first = int64(cuda.blockIdx.x) * labels_per_block
    last = smaller(first + labels_per_block, labels.size)
    total, lost = ZERO, ZERO
    for i in range(first + thread, last, THREADS):
        label = labels[uint64(i)]
        if label != ignore_index:
            weight = weights[uint64(label)] if weighted else ONE
            total, lost = add_compensated(total, lost, weight)
    totals[thread] = total
    cuda.syncthreads()
    if thread < halfway:
        totals[thread] = column_total(totals, thread, halfway)
    cuda.syncthreads()
    if thread == 0:
        partials[cuda.blockIdx.x] = sum_of_first(totals, HALFWAY)


@device
def error_slope(x, target, scale, squared):
    """(x - target) * scale, or the sign of (x - target) times scale; NaN stays NaN."""
    d = x - target
    if squared:
        return d * scale
    if d > ZERO:
        return scale
    return -scale if d < ZERO else d * scale


@kernel(threads=THREADS)
def _errors_grad(x: F4s, target: F4s, dloss: F4s, factor: F4, squared: B1, dx: F4s):
    i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    s = dloss[0] * factor
    a, b, t, u = load_quad(x, i), load_quad(x, j), load_quad(target, i), load_quad(target, j)
    store_quad(dx, i, (
        error_slope(a[0], t[0], s, squared), error_slope(a[1], t[1], s, squared),
        error_slope(a[2], t[2], s, squared), error_slope(a[3], t[3], s, squared),
    ))  # fmt: skip
    store_quad(dx, j, (
        error_slope(b[0], u[0], s, squared), error_slope(b[1], u[1], s, squared),
        error_slope(b[2], u[2], s, squared), error_slope(b[3], u[3], s, squared),
    ))  # fmt: skip


def cross_entropy(
    launcher: Launcher, op: SoftmaxCrossEntropy, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The loss and the log-sum-exp of each row."""
    logits, labels, *given = ins
    loss, lse = outs
    space = loss_space(launcher, workspace, labels.size, each=True)
    softmax_cross_entropy(launcher, logits, labels, space.each, lse, op.ignore_index)
    divisor = mean_divisor(launcher, op, space, labels, given=given)
    total(launcher, space.each, loss, space.partials, divisor)


def cross_entropy_grad(
    launcher: Launcher, op: SoftmaxCrossEntropyGrad, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """dlogits = (softmax - onehot) * dloss / divisor, 0 in ignored rows; may be the logits."""
    logits, labels, lse, dloss, *given = ins
    space = loss_space(launcher, workspace, labels.size, each=False)
    divisor = mean_divisor(launcher, op, space, labels, given=given)
    rows, classes = labels.size, logits.shape[-1]
    scale = dloss, dloss if divisor is None else divisor, divisor is not None
    arrays = logits, classes, labels, lse, *scale, outs[0]
    launcher.launch(_cross_entropy_grad, blocks_for(rows, ROWS), *arrays, op.ignore_index)


def softmax_cross_entropy(
    launcher: Launcher, logits: Array, labels: Array, losses: Array, lse: Array, ignore_index: int
) -> None:
    """losses[r] = lse[r] - logits[r, label], lse[r] = log(sum of exp(logits[r])).

    Args:
        logits: (..., classes), channels last.
        labels: int64, one for each row, in [0, classes) or `ignore_index` (loss 0).
        losses, lse: of as many elements, written.
    """
    rows, classes = labels.size, logits.shape[-1]
    arrays = logits, classes, labels, losses, lse
    launcher.launch(_cross_entropy, blocks_for(rows, ROWS), *arrays, ignore_index)


def mean_divisor(
    launcher: Launcher, op: ClassLoss | ClassLossGrad, space: LossSpace, labels, weights=None,
    given: Arrays = (),
) -> Array | None:  # fmt: skip
    """What a mean over rows is divided by, a number on the GPU; None for other reductions: the
    number of labels that count, or the sum of their weights.

    Args:
        weights: (classes,), or None for 1 each.
        given: the divisor, where it is not that of these labels.
    """
    if op.reduction != "mean":
        return None
    if given:
        return given[0]
    weigh_labels(launcher, op.ignore_index, labels, weights, space.divisor, space.partials)
    return space.divisor


def label_weight(
    launcher: Launcher, op: LabelWeight, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The weight of the labels that count (1 each where there are no weights), / parts."""
    labels, weights = ins[0], ins[1] if len(ins) > 1 else None
    share = 1 / op.parts
    weigh_labels(launcher, op.ignore_index, labels, weights, outs[0], workspace, share)


def weigh_labels(
    launcher: Launcher, ignore_index: int, labels, weights, out, workspace, factor: float = 1.0
) -> None:
    """out[0] = factor * the weight of the labels that count."""
    blocks, weighted = sum_blocks(labels.size), weights is not None
    partials = launcher.part(workspace, 0, blocks, "float32")
    settings = weights if weighted else partials, weighted, ignore_index
    chunk = element_chunk(labels.size)
    launcher.launch(_label_weights, blocks, labels, *settings, partials, chunk)
    finish(launcher, partials, out, factor)


def total(
    launcher: Launcher, losses: Array, out: Array, workspace: Array, divisor: Array | None = None
) -> None:
    """out[0] = sum of losses [/ divisor[0]].

    Args:
        workspace: uint8, `reduction_workspace_bytes(losses.size)`.
    """
    sum_into(launcher, _sum, losses, losses, out, workspace, divisor=divisor)


def mean_error(
    launcher: Launcher, x, target, out, factor: float, absolute: bool, workspace
) -> None:
    """out[0] = factor * sum of (x - target)^2, or of |x - target|.

    Args:
        factor: 1 / x.size for a mean, 1 for a sum.
    """
    errors = _absolute_errors if absolute else _squared_errors
    sum_into(launcher, errors, x, target, out, workspace, factor)


def mean_error_grad(
    launcher: Launcher, x, target, dloss, dx, factor: float, absolute: bool
) -> None:
    """dx = 2 (x - target) dloss factor, or sign(x - target) dloss factor, 0 where equal.

    `dx` may be `x`.
    """
    arguments = x, target, dloss, factor if absolute else 2 * factor, not absolute, dx
    launcher.launch(_errors_grad, tiles(x.size), *arguments)


# Negative log-likelihood: from (rows, classes), labels and a weight for each class, a loss for each
# row, or its gradient. A thread takes one row of the loss, or one element of the gradient.


@kernel(threads=THREADS)
def _likelihood(x: F4s, labels: I8s, weights: F4s, y: F4s, ignore_index: I8):
    row = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if row < labels.size:
        label, loss = labels[uint64(row)], ZERO
        if label != ignore_index:
            loss = -weights[uint64(label)] * x[uint64(row * weights.size + label)]
        y[uint64(row)] = loss


@kernel(threads=THREADS)
def _likelihood_grad(labels: I8s, weights: F4s, dy: F4s, dx: F4s, ignore_index: I8):
    e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if e < dx.size:
        row = e // weights.size
        label, slope = labels[uint64(row)], ZERO
        if label != ignore_index and label == e - row * weights.size:
            slope = -weights[uint64(label)] * dy[uint64(row)]
        dx[uint64(e)] = slope


def likelihood(
    launcher: Launcher, x: Array, labels: Array, weights: Array, y: Array, ignore_index: int
) -> None:
    """y = -weights[label] x[label] for each row, 0 where it is ignored."""
    blocks = blocks_for(labels.size, THREADS)
    launcher.launch(_likelihood, blocks, x, labels, weights, y, ignore_index)


def likelihood_grad(
    launcher: Launcher, labels: Array, weights: Array, dy: Array, dx: Array, ignore_index: int
) -> None:
    """dx = -weights[label] dy at the label, else 0."""
    blocks = blocks_for(dx.size, THREADS)
    launcher.launch(_likelihood_grad, blocks, labels, weights, dy, dx, ignore_index)


# Cross-entropy with class weights and label smoothing, and losses that are not summed up. Given a
# row's log-sum-exp and the loss of its label, weights and smoothing need only one more pass over
# the row.

TWO = np.float32(2)
SQUARED, ABSOLUTE = 2.0, 1.0
#: Weights that one launch writes.
VALUES_AT_ONCE = 16


@kernel(threads=THREADS)
def _weigh(
    z: F4s, classes: U4, labels: I8s, weights: F4s, lse: F4s, losses: F4s, smoothing: F4,
    ignore_index: I8,
):  # fmt: skip
    """A warp: losses[r] = (1 - s) w[label] losses[r] + s / K * sum of w[c] (lse[r] - z[r, c])."""
    lane = uint32(cuda.threadIdx.x % WARP)
    row = row_of(cuda.blockIdx.x, cuda.threadIdx.x)
    if row < labels.size:
        start, label = uint64(row) * uint64(classes), labels[row]
        spread = ZERO
        if smoothing > ZERO:
            for c in range(lane, classes, WARP):
                # A class of weight 0 counts nothing, also where its logit is -inf.
                if weights[c] != ZERO:
                    spread += weights[c] * (lse[row] - z[start + uint32(c)])
        for step in (16, 8, 4, 2, 1):
            spread += cuda.shfl_xor_sync(WHOLE_WARP, spread, step)
        if lane == 0:
            loss = ZERO
            if label != ignore_index:
                loss = (ONE - smoothing) * (weights[uint64(label)] * losses[row])
                loss += smoothing / float32(classes) * spread
            losses[row] = loss


@kernel(threads=THREADS)
def _weighted_grad(
    z: F4s, classes: U4, labels: I8s, weights: F4s, lse: F4s, dloss: F4s, divisor: F4s, divides: B1,
    smoothing: F4, dz: F4s, ignore_index: I8,
):  # fmt: skip
    """A warp: dz = dloss[r] [/ divisor] (p (own + all) - own onehot - (s / K) w), own = (1 - s)
    w[label], all = s / K * sum of w. `dloss` has one element, or one for each row."""
    lane = uint32(cuda.threadIdx.x % WARP)
    row = row_of(cuda.blockIdx.x, cuda.threadIdx.x)
    if row < labels.size:
        start, label = uint64(row) * uint64(classes), labels[row]
        everything = ZERO
        for c in range(lane, classes, WARP):
            everything += weights[c]
        for step in (16, 8, 4, 2, 1):
            everything += cuda.shfl_xor_sync(WHOLE_WARP, everything, step)
        counts = label != ignore_index
        own = (ONE - smoothing) * weights[uint64(label)] if counts else ZERO
        share = smoothing / float32(classes)
        scale = dloss[row] if dloss.size > 1 else dloss[0]
        scale = scale / divisor[0] if divides else scale
        for c in range(lane, classes, WARP):
            p = math.exp(z[start + uint32(c)] - lse[row])
            d = p * (own + share * everything) - share * weights[c]
            d -= own if c == label else ZERO
            dz[start + uint32(c)] = scale * d if counts else ZERO


@device
def error(x, target, power):
    """(x - target)^2, or |x - target|."""
    d = x - target
    return d * d if power == TWO else abs(d)


@device
def error_grad(x, target, dy, power):
    """2 (x - target) dy, or sign(x - target) dy."""
    return error_slope(x, target, dy + dy if power == TWO else dy, power == TWO)


_error_each = binary(error)
_error_each_grad = ternary(error_grad)


@kernel(threads=32)
def _write(target: F4s, first: U4, values: F4x16):
    """target[first + i] = values[i], as far as the target reaches."""
    if cuda.threadIdx.x == 0:
        for i in range(VALUES_AT_ONCE):
            if uint32(first + uint32(i)) < target.size:
                target[uint32(first + uint32(i))] = values[i]


def write(launcher: Launcher, target: Array, values: tuple[float, ...]) -> None:
    """target = values: a few numbers from the host, which travel with the launches."""
    for first in range(0, len(values), VALUES_AT_ONCE):
        some = values[first : first + VALUES_AT_ONCE]
        some += (0.0,) * (VALUES_AT_ONCE - len(some))
        launcher.launch(_write, 1, target, first, some)


def weighted_cross_entropy(
    launcher: Launcher, op: WeightedCrossEntropy, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The loss, of all rows or of each, and the log-sum-exp of each row."""
    logits, labels, weights, *given = ins
    loss, lse = outs
    summed, rows, classes = op.reduction != "none", labels.size, weights.size
    space = loss_space(launcher, workspace, rows, each=summed)
    each = space.each if summed else loss
    softmax_cross_entropy(launcher, logits, labels, each, lse, op.ignore_index)
    arrays, settings = (labels, weights, lse, each), (op.label_smoothing, op.ignore_index)
    launcher.launch(_weigh, blocks_for(rows, ROWS), logits, classes, *arrays, *settings)
    if summed:
        divisor = mean_divisor(launcher, op, space, labels, weights, given)
        total(launcher, each, loss, space.partials, divisor)


def weighted_cross_entropy_grad(
    launcher: Launcher, op: WeightedCrossEntropyGrad, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """dlogits, which may be the logits; dloss is one number, or one for each row."""
    logits, labels, weights, lse, dloss, *given = ins
    space = loss_space(launcher, workspace, labels.size, each=False)
    divisor = mean_divisor(launcher, op, space, labels, weights, given)
    scale = dloss, dloss if divisor is None else divisor, divisor is not None
    launcher.launch(
        _weighted_grad, blocks_for(labels.size, ROWS), logits, weights.size, labels, weights, lse,
        *scale, op.label_smoothing, outs[0], op.ignore_index,
    )  # fmt: skip


def error_each(launcher: Launcher, x: Array, target: Array, y: Array, absolute: bool) -> None:
    """y = (x - target)^2, or |x - target|."""
    apply(launcher, _error_each, x, target, y, parameter=ABSOLUTE if absolute else SQUARED)


def error_each_grad(
    launcher: Launcher, x: Array, target: Array, dy: Array, dx: Array, absolute: bool
) -> None:
    """dx = 2 (x - target) dy, or sign(x - target) dy. `dx` may be `x`."""
    power = ABSOLUTE if absolute else SQUARED
    apply(launcher, _error_each_grad, x, target, dy, dx, parameter=power)
