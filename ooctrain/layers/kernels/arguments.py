"""Arguments of driver functions that are not simply the inputs followed by the outputs.

An operation, its inputs and outputs, and the step scalars give the arguments in the order of the
function. The functions of both devices have the same parameters, so the code that leads from an
operation to them is written once. Optional inputs (a bias, a residual, a mask) become None where
they are absent. Read next: `kernel_table.py`, `cpu/table.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooctrain.layers.batch_norm import BatchNormApply, BatchNormGradApply, BatchNormGradReduce
from ooctrain.layers.conv2d import Convolution, ConvShape
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
)
from ooctrain.layers.kernels.update_factors import adam_factors, rmsprop_factors, sgd_factors
from ooctrain.layers.losses import MeanError, MeanErrorGrad, mean_factor
from ooctrain.layers.update import AdamUpdate, RMSpropUpdate, SGDUpdate
from ooctrain.step.op import Op, Scalars

Arrays = Sequence[Any]


def whole_call(op: Op, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(op, inputs, outputs), for functions that start several kernels."""
    return op, ins, outs


def and_operation(op: Op, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(inputs, outputs, operation)."""
    return *ins, *outs, op


def with_bias(op: Op, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(x, W, bias or None, y)."""
    bias = ins[2] if len(ins) == 3 else None
    return ins[0], ins[1], bias, outs[0]


def convolution(op: Convolution, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(shape, algorithm, two inputs, output)."""
    return _conv_shape(op, ins, outs), op.algorithm, *ins, *outs


def convolution_with_bias(op: Convolution, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(shape, algorithm, x, W, bias or None, y)."""
    return _conv_shape(op, ins, outs), op.algorithm, *with_bias(op, ins, outs, scalars)


def batch_norm_apply(op: BatchNormApply, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(x, mean, inv_std, gamma, beta, y, residual or None, whether a ReLU follows)."""
    return *ins[:5], *outs, ins[5] if op.residual else None, op.relu


def norm_grad_reduce(
    op: BatchNormGradReduce | InstanceNormGradReduce, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(dy, x, mean, inv_std, dgamma, dbeta, mask or None)."""
    return *ins[:4], *outs, ins[4] if op.mask else None


def batch_norm_grad_apply(
    op: BatchNormGradApply, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(dy, x, mean, inv_std, gamma, dgamma or None, dbeta or None, dx, mask or None, over)."""
    sums = ins[5:7] if op.batch_stats else (None, None)
    return *ins[:5], *sums, *outs, ins[-1] if op.mask else None, op.over


def instance_norm_apply(
    op: InstanceNormApply, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(x, mean, inv_std, gamma or None, beta or None, y, residual or None, whether a ReLU
    follows).
    """
    affine = ins[3:5] if op.affine else (None, None)
    return *ins[:3], *affine, *outs, ins[-1] if op.residual else None, op.relu


def instance_norm_grad_apply(
    op: InstanceNormGradApply, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(dy, x, mean, inv_std, gamma or None, sum_dz_xhat, sum_dz, dx, mask or None, over)."""
    gamma, sums = ins[4] if op.affine else None, ins[4 + op.affine : 6 + op.affine]
    return *ins[:4], gamma, *sums, *outs, ins[-1] if op.mask else None, op.over


def mean_error(
    op: MeanError | MeanErrorGrad, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(inputs, output, what the summed errors are multiplied by, whether they are absolute)."""
    factor = 1.0 if op.reduction == "sum" else mean_factor(op.over or ins[0].size)
    return *ins, *outs, factor, op.absolute


def dropout(op: Dropout, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(x, y, operation, key of the call)."""
    return *ins, *outs, op, op.key(scalars)


def sgd(op: SGDUpdate, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(w, g, m, w', m', factors); without momentum m and m' are None."""
    pairs = (*ins, *outs) if op.momentum else (*ins, None, *outs, None)
    return *pairs, sgd_factors(op, scalars)


def adam(op: AdamUpdate, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(w, g, m, v, w', m', v', factors)."""
    return *ins, *outs, adam_factors(op, scalars)


def rmsprop(op: RMSpropUpdate, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """((w, g, v, a, b), (w', v', a', b'), factors, which of a and b are kept); the parameter stands
    for those that are not."""
    kept = op.centered, bool(op.momentum)
    slots, news = iter(ins[3:]), iter(outs[2:])
    before = (*ins[:3], *(next(slots) if one else ins[0] for one in kept))
    after = (*outs[:2], *(next(news) if one else outs[0] for one in kept))
    return before, after, rmsprop_factors(op, scalars), kept


def _conv_shape(op: Convolution, ins: Arrays, outs: Arrays) -> ConvShape:
    """All extents, from arrays in physical layout."""
    x, w = op.image_and_weight(ins, outs)
    (n, height, width, c), (k, r, s, c_of_group) = x.shape, w.shape
    return op.geometry.conv_shape((n, c, height, width), (k, c_of_group, r, s))
