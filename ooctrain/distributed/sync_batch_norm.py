"""Batch norm by the statistics of the whole batch, whose parts lie on several ranks.

The parts are of one size, so the mean of the batch is the mean of the parts' means, and its
variance is the mean of their variances plus the variance of their means. In the gradient, which
passes through the statistics, the two sums over all values are sums over ranks. Both exchanges take
place in the middle of the step, where all ranks wait. The bits are not those of one rank with the
whole batch, which adds in another order. Source: Chan, Golub, LeVeque 1979, for variances of parts.
Read next: `../layers/batch_norm.py`; `recording.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ooctrain.layers.batch_norm import BatchNormApply, BatchNormGradApply, BatchNormGradReduce
from ooctrain.step.op import Op, Spec, require
from ooctrain.step.trace import Kind


@dataclass(frozen=True, slots=True)
class JoinedStatistics(Op):
    """Mean, 1 / sqrt(var + eps) and variance of parts of one size. Reads (mean, var) of each."""

    eps: float = 1e-5
    name: ClassVar[str] = "batch_norm"
    verb: ClassVar[str] = "join"
    out_names: ClassVar[tuple[str, ...]] = ("mean", "inv_std", "var")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("stat", "stat", "stat")

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        fits = len(ins) >= 2 and len(ins) % 2 == 0 and len(set(ins)) == 1
        require(fits, "batch_norm: wants mean and variance of each part", *ins)
        return ins[:1] * 3

    def reference(self, *arrays, scalars):
        means, variances = np.stack(arrays[::2]), np.stack(arrays[1::2])
        mean = means.mean(axis=0)
        var = variances.mean(axis=0) + np.square(means - mean).mean(axis=0)
        return mean, 1 / np.sqrt(var + mean.dtype.type(self.eps)), var

    def cpu(self, pool, ins, outs, workspace, scalars):
        """A few numbers a channel."""
        for out, value in zip(outs, self.reference(*ins, scalars=scalars), strict=True):
            out[...] = value

    def flops(self, ins, outs):
        return 4 * sum(spec.size for spec in ins)


@dataclass(frozen=True, slots=True)
class SyncedBatchNormApply(BatchNormApply):
    """Normalises by the statistics of all ranks; computed as `BatchNormApply` is.

    Args:
        rows: values per channel of all ranks.
        messages: `recording.Messages`, through which the gradient's sums are exchanged.
    """

    rows: int = 0
    messages: Any = field(default=None, compare=False, repr=False)

    def vjp(self, tape, ins, outs, grads):
        x, mean, inv_std, gamma, beta = ins
        (dy,) = grads
        mine = tape.call(BatchNormGradReduce(), (dy, x, mean, inv_std), of=(gamma, beta))
        path = tape.site.path
        dgamma, dbeta = self.messages.sums(f"{path}.sync", mine, "aux")
        apply = BatchNormGradApply(over=self.rows)
        dx = tape.gradient(apply, (dy, x, mean, inv_std, gamma, dgamma, dbeta), of=x)
        return dx, None, None, *mine


def joined_statistics(
    tape: Any, messages: Any, found: tuple[Any, ...], eps: float, rows: int
) -> tuple[tuple[Any, ...], SyncedBatchNormApply]:
    """Statistics of all ranks' parts, and the operation that normalises by them.

    Args:
        found: mean, 1 / std and variance of this rank's part.
        rows: values per channel of this rank's part.
    """
    mean, _, var = found
    path = tape.site.prefix(JoinedStatistics())
    everybodys = messages.everybodys(f"{path}.sync", (mean, var), "stat")
    together = [tensor for row in everybodys for tensor in row]
    statistics = tape.call(JoinedStatistics(eps), together)
    apply = SyncedBatchNormApply(rows=rows * len(everybodys), messages=messages)
    return statistics, apply
