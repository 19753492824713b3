"""What the kernels of an optimizer's update are given for one step: numbers that all elements
share.

In: the operation and the step scalars. Out: `SgdFactors`, `AdamFactors`. The one idea: what depends
on the step alone is computed once, in float64 on the host; for Adam the bias corrections of both
moments, so that the kernels of either device are left with one square root and one division for
each element, and no power. No Numba here. Source: torch.optim; Kingma and Ba, "Adam" (2015),
section 2; Loshchilov and Hutter (2019) for `decoupled`. Read next: `cpu/optimizers.py`,
`cuda/optimizers.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ooctrain.layers.update import AdamUpdate, SGDUpdate
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


def sgd_factors(op: SGDUpdate, scalars: Scalars) -> SgdFactors:
    """The factors of one step."""
    return SgdFactors(
        lr=float(scalars[op.lr]),
        momentum=op.momentum,
        undamped=1.0 - op.dampening_in(scalars),
        decay=op.weight_decay,
        nesterov=op.nesterov,
    )


def adam_factors(op: AdamUpdate, scalars: Scalars) -> AdamFactors:
    """The factors of one step; with `decoupled` (AdamW) the decay shrinks the weight itself instead
    of joining the gradient.
    """
    lr, step = float(scalars[op.lr]), int(scalars["step"]) + 1
    return AdamFactors(
        step_size=lr / (1.0 - op.beta1**step),
        beta1=op.beta1,
        beta2=op.beta2,
        eps=op.eps,
        root_correction=1.0 / math.sqrt(1.0 - op.beta2**step),
        decay=0.0 if op.decoupled else op.weight_decay,
        shrink=1.0 - lr * op.weight_decay if op.decoupled else 1.0,
    )
