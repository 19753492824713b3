"""What Adam's kernels are given for one step: the seven numbers that its elements share.

In: learning rate, decays, the step's number. Out: `AdamFactors`. The one idea: the bias corrections
of both moments depend on the step alone, so they are computed once, in float64 on the host; what is
left to the kernels of either device is one square root and one division for each element, and no
power. No Numba here. Source: Kingma and Ba, "Adam" (2015), section 2; Loshchilov and Hutter (2019)
for `decoupled`. Read next: `cpu/optimizers.py`, `cuda/optimizers.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class AdamFactors(NamedTuple):
    """w' = shrink w - step_size m / (sqrt(v) root_correction + eps), of gradients g + decay w."""

    step_size: float
    beta1: float
    beta2: float
    eps: float
    root_correction: float
    decay: float
    shrink: float


def adam_factors(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
    decoupled: bool,
) -> AdamFactors:  # fmt: skip
    """The factors of one step.

    Args:
        step: counted from 1.
        decoupled: whether the decay shrinks the weight itself (AdamW) instead of joining the
            gradient.
    """
    return AdamFactors(
        step_size=lr / (1.0 - beta1**step),
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        root_correction=1.0 / math.sqrt(1.0 - beta2**step),
        decay=0.0 if decoupled else weight_decay,
        shrink=1.0 - lr * weight_decay if decoupled else 1.0,
    )
