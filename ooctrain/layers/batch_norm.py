"""Batch normalisation as separate calls, because their results have different lifetimes.

For x (N, C, H, W) or (N, C), and gamma and beta (C), y = gamma (x - mean) / std + beta. Statistics
are tiny and worth keeping, while the output is large and may be recomputed from them; the gradient
is two calls, a reduction and a pass over x. The fusing rewrite adds ReLU and the residual sum to
these calls (`relu`, `residual`; `mask` in the gradient). Source: Ioffe and Szegedy 2015. Read next:
`instance_norm.py`; `kernels/cpu/batch_norm.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from ooctrain.layers.relu import ReLUGrad, where_positive
from ooctrain.step.op import Op, Spec, require, require_float, row_rule_of
from ooctrain.step.rows import PIXEL, SAME, RowPlace, RowRule
from ooctrain.step.trace import Kind


class Statistics(Op):
    """Mean and deviation of each channel: sums of x and of x^2, which can go on from band to band.

    Args:
        eps: is added to the variance.
    """

    __slots__ = ()
    verb: ClassVar[str] = "stats"
    patchwise: ClassVar[bool] = True
    eps: float

    def flops(self, ins, outs):
        return 4 * ins[0].size

    def row_rule(self, ins):
        # Where an image is one pixel, blocks of the sum hold pixels of several images.
        _, _, h, w = ins[0].shape
        return RowRule((SAME,), lambda place: self, reduces=True) if h * w > 1 else None

    def sums(self, x, *, scalars):
        x = x.astype(np.float64)
        return np.stack([x.sum(axis=(0, 2, 3)), (x * x).sum(axis=(0, 2, 3))])

    def from_sums(self, sums, pixels, others):
        mean, square = sums / pixels
        var = np.maximum(square - mean * mean, 0)
        return (mean, 1 / np.sqrt(var + self.eps), var)[: len(self.out_names)]


@dataclass(frozen=True, slots=True)
class BatchNormStats(Statistics):
    """mean, 1 / sqrt(var + eps) and the biased variance of each channel."""

    eps: float = 1e-5
    name: ClassVar[str] = "batch_norm"
    out_names: ClassVar[tuple[str, ...]] = ("mean", "inv_std", "var")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("stat", "stat", "stat")
    carries: ClassVar[Literal["batch"]] = "batch"
    untiled: ClassVar[str] = "its statistics need the whole batch at once"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(len(x.shape) in (2, 4), "batch_norm: wants (N, C) or (N, C, H, W)", x)
        what, fix = "one value per channel has no variance", "use a larger batch, or model.eval()"
        require(x.size > x.shape[1], f"batch_norm: {what}", x, fix=fix)
        return (Spec((x.shape[1],), x.dtype),) * 3

    def reference(self, x, scalars):
        mean, var = x.mean(axis=_rows(x)), x.var(axis=_rows(x))
        return mean, 1 / np.sqrt(var + x.dtype.type(self.eps)), var


@dataclass(frozen=True, slots=True)
class BatchNormApply(Op):
    """y = gamma * inv_std * (x - mean) + beta [+ residual] [then ReLU].

    Reads (x, mean, inv_std, gamma, beta[, residual]).

    Args:
        batch_stats: the statistics are those of x itself, so the gradient passes through them too;
            False in evaluation, where they are constants.
        relu: a ReLU follows in the same pass.
        residual: another input is added before that.
    """

    batch_stats: bool = True
    relu: bool = False
    residual: bool = False
    name: ClassVar[str] = "batch_norm"
    by_image: ClassVar[bool] = True
    patchwise: ClassVar[bool] = True
    untiled: ClassVar[str] = "its statistics need the whole batch at once"

    def infer(self, x: Spec, mean: Spec, inv_std: Spec, gamma: Spec, beta: Spec, *residual: Spec):
        require_float(self, x, gamma, beta, *residual)
        channels = x.shape[1:2]
        fits = all(spec.shape == channels for spec in (mean, inv_std, gamma, beta))
        what = "batch_norm: wants one mean, std, gamma and beta per channel"
        require(fits, what, x, mean, gamma, beta)
        fits = len(residual) == self.residual and all(r.shape == x.shape for r in residual)
        require(fits, "batch_norm: the residual does not fit", x, *residual)
        return (x,)

    def reference(self, x, mean, inv_std, gamma, beta, *residual, scalars):
        y = (x - _column(mean, x)) * _column(gamma * inv_std, x) + _column(beta, x)
        y = y + residual[0] if residual else y
        return (np.where(y < 0, y.dtype.type(0), y) if self.relu else y,)

    def vjp(self, tape, ins, outs, grads):
        x, mean, inv_std, gamma, beta, *residual = ins
        (dy,) = grads
        mask = outs[:1] if self.relu else ()
        reduce = BatchNormGradReduce(mask=self.relu)
        dgamma, dbeta = tape.call(reduce, (dy, x, mean, inv_std, *mask), of=(gamma, beta))
        sums = (dgamma, dbeta) if self.batch_stats else ()
        apply = BatchNormGradApply(batch_stats=self.batch_stats, mask=self.relu)
        dx = tape.gradient(apply, (dy, x, mean, inv_std, gamma, *sums, *mask), of=x)
        through = [tape.call(ReLUGrad(), (dy, *mask), of=(r,))[0] if mask else dy for r in residual]
        return dx, None, None, dgamma, dbeta, *through

    def flops(self, ins, outs):
        return 4 * outs[0].size

    def reusable(self):
        # In training the gradient needs x, but not the residual.
        return {0: 5} if self.residual and self.batch_stats else {0: 0}

    def window(self):
        # By running statistics, which stand still.
        return None if self.batch_stats or self.residual or self.relu else PIXEL

    def row_rule(self, ins):
        return RowRule((SAME, *(None,) * 4, *(SAME,) * self.residual), lambda place: self)


@dataclass(frozen=True, slots=True)
class BatchNormGradReduce(Op):
    """dbeta = sum of dz, dgamma = sum of dz (x - mean) inv_std; dz = dy, or dy where y > 0 with
    `mask`.

    Reads (dy, x, mean, inv_std[, y]).
    """

    mask: bool = False
    name: ClassVar[str] = "batch_norm_grad_reduce"
    verb: ClassVar[str] = "grad_reduce"
    out_names: ClassVar[tuple[str, ...]] = ("dgamma", "dbeta")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("wgrad", "wgrad")
    carries: ClassVar[Literal["batch"]] = "batch"
    untiled: ClassVar[str] = "its statistics need the whole batch at once"

    def infer(self, dy: Spec, x: Spec, mean: Spec, inv_std: Spec, *y: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, "batch_norm: gradient and input differ in shape", dy, x)
        require(len(y) == self.mask, "batch_norm: the mask needs the output, and only then", dy, *y)
        return mean, mean

    def reference(self, dy, x, mean, inv_std, *y, scalars):
        dz = where_positive(y[0], dy) if y else dy
        centred = (x - _column(mean, x)) * _column(inv_std, x)
        return (dz * centred).sum(axis=_rows(x)), dz.sum(axis=_rows(x))

    def flops(self, ins, outs):
        return 4 * ins[0].size

    def row_rule(self, ins):
        if not row_rule_of(BatchNormStats(), ins):
            return None
        reads = (SAME, SAME, None, None, *(SAME,) * self.mask)
        return RowRule(reads, lambda place: self, reduces=True)


@dataclass(frozen=True, slots=True)
class BatchNormGradApply(Op):
    """dx = gamma inv_std (dz - dbeta / P - xhat dgamma / P), P values per channel; dz as in the
    reduction.

    Reads (dy, x, mean, inv_std, gamma[, dgamma, dbeta][, y]); without `batch_stats` the statistics
    are constants, and dx = gamma inv_std dz.

    Args:
        over: P, where x is a part of what the sums are over; 0: x is all.
    """

    batch_stats: bool = True
    mask: bool = False
    over: int = 0
    name: ClassVar[str] = "batch_norm_grad_apply"
    verb: ClassVar[str] = "grad_input"
    # x has no reader after this; dy may have one, where it is the gradient of a sum.
    reuses: ClassVar[Mapping[int, int]] = {0: 1}
    untiled: ClassVar[str] = "its statistics need the whole batch at once"

    def infer(self, dy: Spec, x: Spec, *rest: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, "batch_norm: gradient and input differ in shape", dy, x)
        wanted = 3 + 2 * self.batch_stats + self.mask
        require(len(rest) == wanted, f"batch_norm: gradient wants {2 + wanted} inputs", dy, x)
        return (x,)

    def reference(self, dy, x, mean, inv_std, gamma, *rest, scalars):
        dz = where_positive(rest[-1], dy) if self.mask else dy
        if self.batch_stats:
            rows = self.over or x.size // x.shape[1]
            xhat = (x - _column(mean, x)) * _column(inv_std, x)
            dz = dz - _column(rest[1] / rows, x) - xhat * _column(rest[0] / rows, x)
        return (_column(gamma * inv_std, x) * dz,)

    def flops(self, ins, outs):
        return 8 * outs[0].size

    def row_rule(self, ins):
        vectors = (None,) * (3 + 2 * self.batch_stats)
        return RowRule((SAME, SAME, *vectors, *(SAME,) * self.mask), self._on_rows)

    def _on_rows(self, place: RowPlace) -> BatchNormGradApply:
        """The means of the two sums are over all pixels, not those of the band."""
        n, _, h, w = place.full
        return replace(self, over=self.over or n * h * w)


def _rows(x: np.ndarray) -> tuple[int, ...]:
    return (0, 2, 3) if x.ndim == 4 else (0,)


def _column(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Per-channel values in a shape that broadcasts over x."""
    return values[:, None, None] if x.ndim == 4 else values


# Running statistics, for evaluation. They are state, so the update by a batch's statistics is a
# call of its own that runs once: a forward pass that is computed again has no side effects. Source:
# Ioffe and Szegedy 2015, algorithm 2.


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
    patchwise: ClassVar[bool] = True
    untiled: ClassVar[str] = "its statistics need the whole batch at once"

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
    patchwise: ClassVar[bool] = True

    def infer(self, var: Spec) -> tuple[Spec, ...]:
        return (var,)

    def reference(self, var, scalars):
        return (1 / np.sqrt(var + var.dtype.type(self.eps)),)
