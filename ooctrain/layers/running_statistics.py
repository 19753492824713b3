"""The running statistics of batch norm, for evaluation.

The statistics of each batch update running averages, from which 1 / std is computed. Running
statistics are state, so their update is a call of its own that runs once: a forward pass that is
computed again has no side effects. Source: Ioffe and Szegedy 2015, algorithm 2. Read next:
`pooling.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.step.op import Op, Spec, require
from ooctrain.step.trace import Kind


@dataclass(frozen=True, slots=True)
class BatchNormUpdate(Op):
    """Moves running statistics towards those of the batch; runs once per step.

    Reads (mean, var, running_mean, running_var[, batches]); writes all but the first two.

    Args:
        momentum: weight of this batch; None: cumulative average.
        rows: values per channel, for the unbiased variance that PyTorch keeps.
        counted: whether there is a count of batches.
    """

    momentum: float | None
    rows: int
    counted: bool = True
    name: ClassVar[str] = "batch_norm_update"
    verb: ClassVar[str] = "update"
    pure: ClassVar[bool] = False
    out_names: ClassVar[tuple[str, ...]] = ("running_mean", "running_var", "batches")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("state", "state", "state")

    def infer(self, mean: Spec, var: Spec, running_mean: Spec, running_var: Spec, *batches: Spec):
        fits = mean.shape == var.shape == running_mean.shape == running_var.shape
        require(fits, "batch_norm: running statistics do not fit the channels", mean, running_mean)
        averages = self.counted or self.momentum is not None
        require(averages, "batch_norm: momentum=None needs a count of batches")
        require(len(batches) == self.counted, "batch_norm: the count of batches does not fit")
        return running_mean, running_var, *batches

    def reference(self, mean, var, running_mean, running_var, *batches, scalars):
        weight = 1 / (int(batches[0]) + 1) if self.momentum is None else self.momentum
        unbiased = var * (self.rows / max(self.rows - 1, 1))
        return (
            running_mean + weight * (mean - running_mean),
            running_var + weight * (unbiased - running_var),
            *(count + 1 for count in batches),
        )

    def reusable(self):
        return {0: 2, 1: 3, 2: 4} if self.counted else {0: 2, 1: 3}


@dataclass(frozen=True, slots=True)
class InverseStd(Op):
    """1 / sqrt(var + eps), for evaluation with the running variance."""

    eps: float = 1e-5
    name: ClassVar[str] = "batch_norm"
    verb: ClassVar[str] = "inv_std"
    out_names: ClassVar[tuple[str, ...]] = ("inv_std",)
    out_kinds: ClassVar[tuple[Kind, ...]] = ("stat",)

    def infer(self, var: Spec) -> tuple[Spec, ...]:
        return (var,)

    def reference(self, var, scalars):
        return (1 / np.sqrt(var + var.dtype.type(self.eps)),)
