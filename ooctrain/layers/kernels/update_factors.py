"""What all elements share in one step of an optimizer's update.

The operation and the step scalars give `SgdFactors`, `AdamFactors` or `RmspropFactors`. What
depends on the step alone is computed once, in float64 on the host. For Adam these are the bias
corrections of both moments, so that the kernels of either device need one square root and one
division for each element, and no power. No Numba here. Source: torch.optim; Kingma and Ba, "Adam"
(2015), section 2; Loshchilov and Hutter (2019) for `decoupled`. Read next: `cpu/update.py`,
`cuda/update.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ooctrain.layers.update import AdamUpdate, RMSpropUpdate, SGDUpdate, value_in
from ooctrain.step.op import Scalars


class SgdFactors(NamedTuple):
    """d = g + decay w; m' = momentum m + undamped d; w' = w - lr m' (Nesterov: lr (d + momentum
    m')).
    """

    lr: float
    momentum: float
    undamped: float
    decay: float
    nesterov: bool


class AdamFactors(NamedTuple):
    """w' = shrink w - step_size m / (sqrt(v) root_correction + eps), of gradients g + decay w."""

    step_size: float
    beta1: float
    beta2: float
    eps: float
    root_correction: float
    decay: float
    shrink: float


class RmspropFactors(NamedTuple):
    """v' = alpha v + rest d^2 of gradients d = g + decay w; w' = w - lr b', b' = momentum b + d /
    (root + eps).
    """

    lr: float
    alpha: float
    rest: float
    eps: float
    decay: float
    momentum: float


def sgd_factors(op: SGDUpdate, scalars: Scalars) -> SgdFactors:
    """The factors of one step."""
    return SgdFactors(
        lr=float(scalars[op.lr]),
        momentum=value_in(scalars, op.momentum),
        undamped=1.0 - op.dampening_in(scalars),
        decay=op.weight_decay,
        nesterov=op.nesterov,
    )


def adam_factors(op: AdamUpdate, scalars: Scalars) -> AdamFactors:
    """The factors of one step; with `decoupled` (AdamW) the decay shrinks the weight itself instead
    of joining the gradient.
    """
    lr, step = float(scalars[op.lr]), int(scalars["step"]) + 1
    beta1 = value_in(scalars, op.beta1)
    return AdamFactors(
        step_size=lr / (1.0 - beta1**step),
        beta1=beta1,
        beta2=op.beta2,
        eps=op.eps,
        root_correction=1.0 / math.sqrt(1.0 - op.beta2**step),
        decay=0.0 if op.decoupled else op.weight_decay,
        shrink=1.0 - lr * op.weight_decay if op.decoupled else 1.0,
    )


def rmsprop_factors(op: RMSpropUpdate, scalars: Scalars) -> RmspropFactors:
    """The factors of one step; 1 - alpha is taken before alpha is rounded to float32."""
    return RmspropFactors(
        lr=float(scalars[op.lr]),
        alpha=op.alpha,
        rest=1.0 - op.alpha,
        eps=op.eps,
        decay=op.weight_decay,
        momentum=value_in(scalars, op.momentum),
    )
