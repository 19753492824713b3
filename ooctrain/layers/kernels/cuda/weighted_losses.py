"""Cross-entropy with class weights and label smoothing, and losses that are not summed up.

Logits (rows, classes), labels and a weight for each class, or prediction and target, give one loss
per row or element, and gradients. Weights and smoothing need only the results of `losses.py` for a
row (log-sum-exp, loss of the label) and one more pass over the row. Read next: `matmul.py`,
`../cpu/weighted_losses.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.loss_space import loss_space
from ooctrain.layers.kernels.cuda.losses import (
    ROWS,
    THREADS,
    WARP,
    WHOLE_WARP,
    ZERO,
    error_slope,
    mean_divisor,
    row_of,
    softmax_cross_entropy,
    total,
)
from ooctrain.layers.kernels.cuda.pointwise import apply, binary, ternary
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, float32, kernel, uint32, uint64
from ooctrain.layers.weighted_loss import WeightedCrossEntropy, WeightedCrossEntropyGrad

Array = Any
Arrays = Sequence[Array]
ONE, TWO = np.float32(1), np.float32(2)
SQUARED, ABSOLUTE = 2.0, 1.0
#: Weights that one launch writes.
VALUES_AT_ONCE = 16


@kernel("void(f4[::1], u4, i8[::1], f4[::1], f4[::1], f4[::1], f4, i8)", threads=THREADS)
def _weigh(z, classes, labels, weights, lse, losses, smoothing, ignore_index):
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


@kernel(
    "void(f4[::1], u4, i8[::1], f4[::1], f4[::1], f4[::1], f4[::1], b1, f4, f4[::1], i8)",
    threads=THREADS,
)
def _weighted_grad(
    z, classes, labels, weights, lse, dloss, divisor, divides, smoothing, dz, ignore_index
):
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


@kernel("void(f4[::1], u4, UniTuple(f4, 16))", threads=32)
def _write(target, first, values):
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
