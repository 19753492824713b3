"""Instance normalisation: each channel of each image by its own mean and deviation.

For x (N, C, H, W), and gamma and beta (C) or none, y = gamma (x - mean) / std + beta. It is batch
norm of each image alone, so the kernels of batch norm run image after image. There are no running
statistics: training and evaluation are the same. As in `batch_norm.py`, and for the same reasons,
statistics, apply and the two calls of the gradient are separate, and ReLU and a residual sum can be
fused into them. Source: Ulyanov, Vedaldi and Lempitsky 2016. Read next: `resampling.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from ooctrain.layers.batch_norm import Statistics
from ooctrain.layers.reduction import ChannelSum
from ooctrain.layers.relu import ReLUGrad, where_positive
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.rows import SAME, RowPlace, RowRule
from ooctrain.step.trace import Kind


@dataclass(frozen=True, slots=True)
class InstanceNormStats(Statistics):
    """mean and 1 / sqrt(var + eps) of each channel of each image, both (N, C)."""

    eps: float = 1e-5
    name: ClassVar[str] = "instance_norm"
    out_names: ClassVar[tuple[str, ...]] = ("mean", "inv_std")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("stat", "stat")
    by_image: ClassVar[bool] = True
    carries: ClassVar[Literal["image"]] = "image"
    untiled: ClassVar[str] = "its statistics need whole images at once"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(len(x.shape) == 4, "instance_norm: wants (N, C, H, W)", x)
        require(x.shape[2] * x.shape[3] > 1, "instance_norm: one pixel has no variance", x)
        return (Spec(x.shape[:2], x.dtype),) * 2

    def reference(self, x, scalars):
        var = x.var(axis=(2, 3))
        return x.mean(axis=(2, 3)), 1 / np.sqrt(var + x.dtype.type(self.eps))


@dataclass(frozen=True, slots=True)
class InstanceNormApply(Op):
    """y = gamma * inv_std * (x - mean) + beta [+ residual] [then ReLU].

    Reads (x, mean, inv_std[, gamma, beta][, residual]).

    Args:
        affine: there are gamma and beta; else they are 1 and 0.
        relu: a ReLU follows in the same pass.
        residual: another input is added before that.
    """

    affine: bool = False
    relu: bool = False
    residual: bool = False
    name: ClassVar[str] = "instance_norm"
    patchwise: ClassVar[bool] = True
    untiled: ClassVar[str] = "its statistics need whole images at once"

    def infer(self, x: Spec, mean: Spec, inv_std: Spec, *rest: Spec) -> tuple[Spec, ...]:
        require_float(self, x, *rest)
        fits = mean.shape == inv_std.shape == x.shape[:2]
        require(fits, "instance_norm: wants one mean and std per channel and image", x, mean)
        fits = len(rest) == 2 * self.affine + self.residual
        fits = fits and all(v.shape == x.shape[1:2] for v in rest[: 2 * self.affine])
        fits = fits and all(v.shape == x.shape for v in rest[2 * self.affine :])
        require(fits, "instance_norm: gamma, beta or residual do not fit", x, *rest)
        return (x,)

    def reference(self, x, mean, inv_std, *rest, scalars):
        y = (x - _pixels(mean)) * _pixels(inv_std)
        if self.affine:
            y = y * rest[0][:, None, None] + rest[1][:, None, None]
        y = y + rest[-1] if self.residual else y
        return (np.where(y < 0, y.dtype.type(0), y) if self.relu else y,)

    def vjp(self, tape, ins, outs, grads):
        x, mean, inv_std, *rest = ins
        (dy,) = grads
        mask = outs[:1] if self.relu else ()
        reduce = InstanceNormGradReduce(mask=self.relu)
        sums = tape.call(reduce, (dy, x, mean, inv_std, *mask))
        affine = rest[: 2 * self.affine]
        dvectors = [
            tape.call(ChannelSum(), (s,), of=(v,))[0] for s, v in zip(sums, affine, strict=False)
        ]
        apply = InstanceNormGradApply(affine=self.affine, mask=self.relu)
        dx = tape.gradient(apply, (dy, x, mean, inv_std, *affine[:1], *sums, *mask), of=x)
        through = rest[2 * self.affine :]
        through = [tape.call(ReLUGrad(), (dy, *mask), of=(r,))[0] if mask else dy for r in through]
        return dx, None, None, *dvectors, *through

    def flops(self, ins, outs):
        return 4 * outs[0].size

    def reusable(self):
        # The gradient needs x, but not the residual.
        return {0: 3 + 2 * self.affine if self.residual else 0}

    def row_rule(self, ins):
        vectors = (None,) * (2 + 2 * self.affine)
        reads = (SAME, *vectors, *(SAME,) * self.residual)
        return RowRule(reads, lambda place: self, of_image=(1, 2))

    def samples_apart(self, read, ins, outs, count):
        return True


@dataclass(frozen=True, slots=True)
class InstanceNormGradReduce(Op):
    """For each channel of each image the sums of dz xhat and of dz; dz = dy, or dy where y > 0 with
    `mask`; xhat = (x - mean) inv_std.

    Reads (dy, x, mean, inv_std[, y]); writes two (N, C).
    """

    mask: bool = False
    name: ClassVar[str] = "instance_norm_grad_reduce"
    verb: ClassVar[str] = "grad_reduce"
    out_names: ClassVar[tuple[str, ...]] = ("sum_dz_xhat", "sum_dz")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("stat", "stat")
    carries: ClassVar[Literal["image"]] = "image"
    untiled: ClassVar[str] = "its statistics need whole images at once"

    def infer(self, dy: Spec, x: Spec, mean: Spec, inv_std: Spec, *y: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, "instance_norm: gradient and input differ in shape", dy, x)
        require(len(y) == self.mask, "instance_norm: the mask needs the output", dy, *y)
        return mean, mean

    def reference(self, dy, x, mean, inv_std, *y, scalars):
        dz = where_positive(y[0], dy) if y else dy
        xhat = (x - _pixels(mean)) * _pixels(inv_std)
        return (dz * xhat).sum(axis=(2, 3)), dz.sum(axis=(2, 3))

    def flops(self, ins, outs):
        return 4 * ins[0].size

    def row_rule(self, ins):
        reads = (SAME, SAME, None, None, *(SAME,) * self.mask)
        return RowRule(reads, lambda place: self, reduces=True, of_image=(2, 3))


@dataclass(frozen=True, slots=True)
class InstanceNormGradApply(Op):
    """dx = gamma inv_std (dz - sum_dz / P - xhat sum_dz_xhat / P), P = H W.

    Reads (dy, x, mean, inv_std[, gamma], sum_dz_xhat, sum_dz[, y]).

    Args:
        over: P, where x is a part of what the sums are over; 0: x is all.
    """

    affine: bool = False
    mask: bool = False
    over: int = 0
    name: ClassVar[str] = "instance_norm_grad_apply"
    verb: ClassVar[str] = "grad_input"
    # x has no reader after this; dy may have one, where it is the gradient of a sum.
    reuses: ClassVar[Mapping[int, int]] = {0: 1}
    untiled: ClassVar[str] = "its statistics need whole images at once"

    def infer(self, dy: Spec, x: Spec, *rest: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, "instance_norm: gradient and input differ in shape", dy, x)
        wanted = 4 + self.affine + self.mask
        require(len(rest) == wanted, f"instance_norm: gradient wants {2 + wanted} inputs", dy, x)
        return (x,)

    def reference(self, dy, x, mean, inv_std, *rest, scalars):
        dz = where_positive(rest[-1], dy) if self.mask else dy
        dz_xhat, dz_sum = rest[self.affine : self.affine + 2]
        pixels = self.over or x.shape[2] * x.shape[3]
        xhat = (x - _pixels(mean)) * _pixels(inv_std)
        dz = dz - _pixels(dz_sum / pixels) - xhat * _pixels(dz_xhat / pixels)
        slope = inv_std * rest[0] if self.affine else inv_std
        return (_pixels(slope) * dz,)

    def flops(self, ins, outs):
        return 8 * outs[0].size

    def row_rule(self, ins):
        vectors = (None,) * (4 + self.affine)
        sums = 4 + self.affine, 5 + self.affine
        reads = (SAME, SAME, *vectors, *(SAME,) * self.mask)
        return RowRule(reads, self._on_rows, of_image=(2, 3, *sums))

    def _on_rows(self, place: RowPlace) -> InstanceNormGradApply:
        """The means of the two sums are over the whole image."""
        _, _, h, w = place.full
        return replace(self, over=self.over or h * w)


def _pixels(values: np.ndarray) -> np.ndarray:
    """(N, C) values in a shape that broadcasts over (N, C, H, W)."""
    return values[:, :, None, None]
