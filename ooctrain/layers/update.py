"""Optimizer updates and gradient clipping as calls.

Parameter, gradient and slots give their next values, on the same storage. The learning rate, the
step number and a momentum that a schedule changes are step scalars: the call reads them by name
when it runs, and they are never attributes. So a changed learning rate needs no new trace, and a
call that runs again in the same step sees the same values. Source: torch.optim, whose order of
operations is kept; Kingma and Ba 2015; Loshchilov and Hutter 2019; Tieleman and Hinton 2012,
lecture 6.5 (RMSprop). Read next: `optim/algorithms.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ooctrain.layers.relu import Pointwise
from ooctrain.step.op import Op, Scalars, Spec, require, require_float
from ooctrain.step.trace import Kind

CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6


@dataclass(frozen=True, slots=True)
class SGDUpdate(Op):
    """d = g + decay w; m' = momentum m + (1 - dampening) d; w' = w - lr m' (Nesterov: lr (d +
    momentum m')).

    Reads (w, g[, m]); writes (w'[, m']). In step 0 dampening is not applied, as in PyTorch.

    Args:
        momentum: a number, or the name of the step scalar that holds it.
        lr: name of the step scalar that holds the learning rate.
    """

    momentum: float | str = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    lr: str = "lr"
    name: ClassVar[str] = "sgd"
    verb: ClassVar[str] = "update"
    pure: ClassVar[bool] = False

    @property
    def scalar_names(self) -> tuple[str, ...]:
        return (self.lr, "step", *_named(self.momentum))

    def infer(self, w: Spec, g: Spec, *slots: Spec) -> tuple[Spec, ...]:
        return _update_specs(self, w, g, slots, 1 if self.momentum else 0)

    def reference(self, w, g, *slots, scalars):
        lr, d = scalars[self.lr], g + self.weight_decay * w
        if not slots:
            return (w - lr * d,)
        momentum = value_in(scalars, self.momentum)
        m = momentum * slots[0] + (1 - self.dampening_in(scalars)) * d
        return w - lr * (d + momentum * m if self.nesterov else m), m

    def flops(self, ins, outs):
        return 6 * ins[0].size

    def reusable(self):
        return {0: 0, 1: 2} if self.momentum else {0: 0}

    def dampening_in(self, scalars: Scalars) -> float:
        """What is applied in this step."""
        return self.dampening if self.dampening and scalars["step"] else 0.0


@dataclass(frozen=True, slots=True)
class AdamUpdate(Op):
    """Adam, or AdamW with `decoupled`. Reads (w, g, m, v); writes their next values.

    Args:
        beta1: a number, or the name of the step scalar that holds it.
        lr: name of the step scalar that holds the learning rate.
    """

    beta1: float | str = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    lr: str = "lr"
    name: ClassVar[str] = "adam"
    verb: ClassVar[str] = "update"
    pure: ClassVar[bool] = False
    reuses: ClassVar[Mapping[int, int]] = {0: 0, 1: 2, 2: 3}

    @property
    def scalar_names(self) -> tuple[str, ...]:
        return (self.lr, "step", *_named(self.beta1))

    def infer(self, w: Spec, g: Spec, *slots: Spec) -> tuple[Spec, ...]:
        return _update_specs(self, w, g, slots, 2)

    def reference(self, w, g, m, v, scalars):
        lr, step = scalars[self.lr], scalars["step"] + 1
        if self.decoupled:
            w = w - lr * self.weight_decay * w
        else:
            g = g + self.weight_decay * w
        beta1 = value_in(scalars, self.beta1)
        m = beta1 * m + (1 - beta1) * g
        v = self.beta2 * v + (1 - self.beta2) * g * g
        root = np.sqrt(v) / np.sqrt(1 - self.beta2**step) + self.eps
        return w - lr / (1 - beta1**step) * m / root, m, v

    def flops(self, ins, outs):
        return 14 * ins[0].size


@dataclass(frozen=True, slots=True)
class RMSpropUpdate(Op):
    """v' = alpha v + (1 - alpha) d^2; step = d / (sqrt(v') + eps), centered: d / (sqrt(v' - a'^2) +
    eps) with a' = alpha a + (1 - alpha) d; w' = w - lr step, with momentum: b' = momentum b + step;
    w' = w - lr b'. d = g + decay w.

    Reads (w, g, v[, a][, b]); writes (w', v'[, a'][, b']). Where rounding makes v' - a'^2 negative
    it is taken for 0; PyTorch's root is then no number.

    Args:
        momentum: a number, or the name of the step scalar that holds it.
        lr: name of the step scalar that holds the learning rate.
    """

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float | str = 0.0
    centered: bool = False
    lr: str = "lr"
    name: ClassVar[str] = "rmsprop"
    verb: ClassVar[str] = "update"
    pure: ClassVar[bool] = False

    @property
    def scalar_names(self) -> tuple[str, ...]:
        return (self.lr, *_named(self.momentum))

    def infer(self, w: Spec, g: Spec, *slots: Spec) -> tuple[Spec, ...]:
        return _update_specs(self, w, g, slots, 1 + self.centered + bool(self.momentum))

    def reference(self, w, g, v, *slots, scalars):
        d = g + self.weight_decay * w
        v = self.alpha * v + (1 - self.alpha) * d * d
        news, spread = [v], v
        if self.centered:
            a = self.alpha * slots[0] + (1 - self.alpha) * d
            news, spread = [v, a], np.maximum(v - a * a, 0)
        step = d / (np.sqrt(spread) + self.eps)
        if self.momentum:
            step = value_in(scalars, self.momentum) * slots[-1] + step
            news.append(step)
        return (w - scalars[self.lr] * step, *news)

    def flops(self, ins, outs):
        return (10 + 4 * self.centered + 2 * bool(self.momentum)) * ins[0].size

    def reusable(self):
        slots = 1 + self.centered + bool(self.momentum)
        return {0: 0} | {slot: slot + 1 for slot in range(1, slots + 1)}


@dataclass(frozen=True, slots=True)
class SumOfSquares(Op):
    """Sum of g^2; added in double precision, or compensated, then rounded once."""

    name: ClassVar[str] = "sum_of_squares"
    verb: ClassVar[str] = "squares"
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    def infer(self, g: Spec) -> tuple[Spec, ...]:
        require_float(self, g)
        return (Spec((), "float32"),)

    def reference(self, g, scalars):
        return (np.sum(np.square(g, dtype=np.float64)),)

    def flops(self, ins, outs):
        return 2 * ins[0].size


@dataclass(frozen=True, slots=True)
class ClipFactor(Op):
    """min(1, max_norm / norm of all gradients), from the sum of squares of each; not a number where
    the norm is not finite, as in PyTorch.
    """

    max_norm: float
    name: ClassVar[str] = "clip_factor"
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    def infer(self, *squares: Spec) -> tuple[Spec, ...]:
        require(bool(squares), "clip: there is no gradient to clip")
        return (Spec((), "float32"),)

    def reference(self, *squares, scalars):
        norm = np.sqrt(sum(float(square) for square in squares))
        return (np.asarray(np.minimum(1.0, self.max_norm / (norm + CLIP_EPS))),)


@dataclass(frozen=True, slots=True)
class ScaleBy(Op):
    """y = factor * x, the factor being a variable. Reads (x, factor)."""

    name: ClassVar[str] = "scale_by"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    def infer(self, x: Spec, factor: Spec) -> tuple[Spec, ...]:
        require(factor.size == 1, "scale_by: the factor is one number", factor)
        return (x,)

    def reference(self, x, factor, scalars):
        return (x * x.dtype.type(factor),)


@dataclass(frozen=True, slots=True)
class ClipValue(Pointwise):
    """y = x limited to [-limit, limit]."""

    limit: float
    name: ClassVar[str] = "clip_value"

    def reference(self, x, scalars):
        return (np.clip(x, -self.limit, self.limit),)


def value_in(scalars: Scalars, setting: float | str) -> float:
    """A setting of this step: a number, or the step scalar of that name."""
    return float(scalars[setting]) if isinstance(setting, str) else setting


def _named(setting: float | str) -> tuple[str, ...]:
    return (setting,) if isinstance(setting, str) else ()


def _update_specs(
    op: Op, w: Spec, g: Spec, slots: tuple[Spec, ...], count: int
) -> tuple[Spec, ...]:
    fits = len(slots) == count and all(spec.shape == w.shape for spec in (g, *slots))
    what = f"{op.name}: wants a gradient and {count} slots shaped like the parameter"
    require(fits, what, w, g, *slots)
    return (w, *slots)


# What all elements share in one step of an optimizer's update.
#
# The operation and the step scalars give `SgdFactors`, `AdamFactors` or `RmspropFactors`. What
# depends on the step alone is computed once, in float64 on the host. For Adam these are the bias
# corrections of both moments, so that the kernels of either device need one square root and one
# division for each element, and no power. No Numba here. Source: torch.optim; Kingma and Ba,
# "Adam" (2015), section 2; Loshchilov and Hutter (2019) for `decoupled`.


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
