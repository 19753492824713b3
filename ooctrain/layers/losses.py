"""Losses as operations: a number for each row or element, or their sum or mean.

Logits are (N, K) or (N, K, H, W), with a label for each image or pixel: both are rows of K logits,
so scratch and work follow from the numbers of rows and logits alone. Losses of values take a
prediction and a target of one shape. The gradient of the loss itself is an input like any other.
Source: PyTorch's definitions; label smoothing: Szegedy et al. 2016, section 7; smooth absolute
error: Girshick 2015. Read next: `reduction.py`; `kernels/cpu/losses.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.layers.function import EXP_FLOPS, sigmoid
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.rows import SAME, RowRule
from ooctrain.step.trace import Kind

# What the losses of class labels share: rows of logits, a label per row, one number kept per row. A
# mean is taken over the rows of the call, unless an additional input gives the divisor: thus a
# batch that is processed in parts is averaged as a whole (`LabelWeight`).

Reduction = Literal["mean", "sum", "none"]
#: So many float32 hold a float64: their sum, the largest first.
DIVISOR_PARTS = 3


class ClassLoss(Op):
    """A loss of (logits, labels, ...[, divisor]): mean, sum, or each by itself. Writes (loss, lse),
    lse being the log-sum-exp of each row.
    """

    __slots__ = ()
    ignore_index: int
    reduction: Reduction
    out_names: ClassVar[tuple[str, ...]] = ("out", "lse")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux", "stat")

    def flops(self, ins, outs):
        return EXP_FLOPS * ins[0].size


class ClassLossGrad(Op):
    """The gradient of a `ClassLoss`. Reads (logits, labels, ...[, divisor]) and may overwrite the
    logits.
    """

    __slots__ = ()
    ignore_index: int
    reduction: Reduction
    verb: ClassVar[str] = "grad"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    def flops(self, ins, outs):
        return EXP_FLOPS * ins[0].size

    def row_rule(self, ins):
        # Reads (logits, labels[, weights], lse, gradient of the loss[, divisor]).
        pixels = ins[1].shape
        reads = (SAME, *(SAME if spec.shape == pixels else None for spec in ins[1:]))
        return RowRule(reads, lambda place: self)


@dataclass(frozen=True, slots=True)
class LabelWeight(Op):
    """What the mean over each of equal parts of a batch is divided by, so that the mean of the
    parts' losses is the loss of the batch: the weight of all its labels that count, / parts.

    Reads (labels[, weights of the classes]), of the whole batch; writes one number.
    """

    ignore_index: int = -100
    parts: int = 1
    name: ClassVar[str] = "label_weight"
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    def infer(self, labels: Spec, *weights: Spec) -> tuple[Spec, ...]:
        require(labels.dtype == "int64", "label_weight: labels are class numbers", labels)
        return (Spec(()),)

    def reference(self, labels, *weights, scalars):
        counted = labels[labels != self.ignore_index]
        weight = weights[0][counted].sum() if weights else counted.size
        return (np.asarray(weight / self.parts),)


@dataclass(frozen=True, slots=True)
class TotalLoss(Op):
    """The sum of the losses of all rows, or their mean, and what that is divided by.

    Reads (losses, labels[, weights of the classes]) and writes (loss, divisor), the divisor being
    the weight of all labels that count; or reads (losses[, divisor]) and writes (loss,). Bands of
    rows go on with it from one to the next (docs/tiling.md).

    Args:
        counts: whether it reads labels.
    """

    ignore_index: int = -100
    counts: bool = True
    name: ClassVar[str] = "total_loss"
    out_names: ClassVar[tuple[str, ...]] = ("out", "divisor")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux", "stat")
    image_axes: ClassVar[int] = 3
    carries: ClassVar[Literal["batch"]] = "batch"

    def infer(self, losses: Spec, *others: Spec) -> tuple[Spec, ...]:
        require_float(self, losses)
        if not self.counts:
            return (Spec((), losses.dtype),)
        require(others[0].shape == losses.shape, "total_loss: a loss for each label", losses)
        return Spec((), losses.dtype), Spec((DIVISOR_PARTS,), losses.dtype)

    def reference(self, losses, *others, scalars):
        if not self.counts:
            return (np.asarray(losses.sum() / others[0] if others else losses.sum()),)
        counted = self.weight_of(*others)
        divisor = np.zeros(DIVISOR_PARTS, losses.dtype)
        divisor[0] = counted
        return np.asarray(losses.sum() / counted, losses.dtype), divisor

    def weight_of(self, labels: np.ndarray, *weights: np.ndarray) -> float:
        """The weight of the labels that count: their number, where there are no weights."""
        counted = labels[labels != self.ignore_index]
        return float(weights[0][counted].sum() if weights else counted.size)

    def row_rule(self, ins):
        others = (None,) * (len(ins) - 1 - self.counts)
        reads = (SAME, *(SAME,) * self.counts, *others)
        return RowRule(reads, lambda place: self, reduces=True)

    def sums(self, losses, *others, scalars):
        weight = self.weight_of(*others) if self.counts else 0
        return np.array([[losses.sum()], [weight]], np.float64)

    def from_sums(self, sums, pixels, others):
        total, weight = sums.reshape(-1)
        if not self.counts:
            return (np.asarray(total / number_of(others[0]) if others else total),)
        divisor = np.zeros(DIVISOR_PARTS)
        divisor[0] = weight
        return np.asarray(total / weight), divisor


def number_of(divisor: np.ndarray) -> float:
    """What a mean is divided by: one float, or several whose sum it is, as `TotalLoss` writes."""
    return float(divisor.sum(dtype=np.float64))


def as_rows(logits: np.ndarray) -> np.ndarray:
    """Logits (N, K) or (N, K, H, W) as (rows, K)."""
    return logits if logits.ndim == 2 else logits.transpose(0, 2, 3, 1).reshape(-1, logits.shape[1])


def row_order(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `as_rows`."""
    if len(shape) == 2:
        return rows
    n, k, h, w = shape
    return rows.reshape(n, h, w, k).transpose(0, 3, 1, 2)


def log_sum_exp(rows: np.ndarray) -> np.ndarray:
    """log(sum(exp(row))) of each row; the largest is taken out, so that nothing overflows."""
    peak = rows.max(axis=1)
    return peak + np.log(np.exp(rows - peak[:, None]).sum(axis=1))


# Softmax cross-entropy. Forward keeps the log-sum-exp of each row instead of the probabilities. The
# gradient is (exp(logit - lse) - onehot) / rows, times the gradient of the loss. Labels are checked
# when they enter (`check_labels`), not in kernels.


@dataclass(frozen=True, slots=True)
class SoftmaxCrossEntropy(ClassLoss):
    """loss = mean or sum of -log softmax(logits)[label] over the rows that count: those whose label
    is not `ignore_index`.

    Reads (logits, labels[, divisor]): (N, K) and (N), or (N, K, H, W) and (N, H, W). Writes (loss,
    lse).
    """

    ignore_index: int = -100
    reduction: MeanOrSum = "mean"
    name: ClassVar[str] = "cross_entropy"

    def infer(self, logits: Spec, labels: Spec, *divisor: Spec) -> tuple[Spec, ...]:
        require_float(self, logits)
        fits = len(logits.shape) in (2, 4)
        require(fits, "cross_entropy: logits are (N, K) or (N, K, H, W)", logits)
        wanted = (logits.shape[0], *logits.shape[2:])
        what, fix = f"labels must have shape {wanted}", "labels are class numbers, not one-hot rows"
        if math.prod(labels.shape) == math.prod(wanted):
            fix = f"labels.reshape({wanted})"
        elif labels.shape == logits.shape:
            fix = "class numbers, one_hot.argmax(1); or probabilities, one_hot.astype(np.float32)"
        require(labels.shape == wanted, f"cross_entropy: {what}", logits, labels, fix=fix)
        what, fix = f"labels must be int64, not {labels.dtype}", "labels.astype(np.int64)"
        require(labels.dtype == "int64", f"cross_entropy: {what}", labels, fix=fix)
        return Spec((), logits.dtype), Spec(labels.shape, logits.dtype)

    def reference(self, logits, labels, *divisor, scalars):
        rows, label = as_rows(logits), labels.reshape(-1)
        lse = log_sum_exp(rows)
        valid = label != self.ignore_index
        picked = rows[np.arange(len(rows)), np.where(valid, label, 0)]
        loss = np.where(valid, lse - picked, 0).sum()
        if self.reduction == "mean":
            loss = loss / (divisor[0] if divisor else valid.sum())
        return np.asarray(loss, logits.dtype), lse.reshape(labels.shape)

    def vjp(self, tape, ins, outs, grads):
        logits, labels, *divisor = ins
        op = SoftmaxCrossEntropyGrad(self.ignore_index, self.reduction)
        found = tape.call(op, (logits, labels, outs[1], grads[0], *divisor), of=(logits,))
        return found[0], *(None for _ in ins[1:])


@dataclass(frozen=True, slots=True)
class SoftmaxCrossEntropyGrad(ClassLossGrad):
    """dlogits = (softmax - onehot) * dloss, / rows for a mean. Reads (logits, labels, lse, dloss[,
    divisor])."""

    ignore_index: int = -100
    reduction: MeanOrSum = "mean"
    name: ClassVar[str] = "cross_entropy_grad"

    def infer(self, logits: Spec, labels: Spec, lse: Spec, dloss: Spec, *divisor: Spec):
        require(dloss.size == 1, "cross_entropy: the gradient of the loss is one number", dloss)
        return (logits,)

    def reference(self, logits, labels, lse, dloss, *divisor, scalars):
        rows, label = as_rows(logits), labels.reshape(-1)
        valid = label != self.ignore_index
        d = np.exp(rows - lse.reshape(-1, 1))
        d[np.arange(len(rows)), np.where(valid, label, 0)] -= 1
        counted = number_of(divisor[0]) if divisor else valid.sum()
        d *= valid[:, None] * dloss / (counted if self.reduction == "mean" else 1)
        return (row_order(d, logits.shape),)


def check_labels(labels: np.ndarray, classes: int, ignore_index: int = -100) -> None:
    """Raises ConfigError where a label is not a class number.

    Args:
        labels: whole numbers of any shape.
        classes: K; labels are 0 to K - 1, or `ignore_index`.
    """
    wrong = (labels < 0) | (labels >= classes)
    wrong &= labels != ignore_index
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ConfigError(
            f"label {int(labels[where])} is not one of the {classes} classes 0 to {classes - 1}",
            code="OOC-111",
            where=f"labels{list(where)}",
            numbers=f"{int(wrong.sum())} of {labels.size} labels are out of range",
            fix="count classes from 0; give the model as many outputs as there are classes",
        )


def looks_like_probabilities(logits: np.ndarray) -> bool:
    """Whether every row (of the first eight images) is >= 0 and sums to 1: probabilities, which a
    softmax has made already.
    """
    rows = as_rows(logits[:8])
    return bool(
        rows.shape[1] > 1 and (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-4)
    )


# Negative log-likelihood: minus the log-probability that a network gives to the true class, for
# each label, 0 where it is ignored. The sum or mean is a call of its own (`reduction.py`). Only the
# label's own element is read, so a class of probability 0 does not affect other labels.


@dataclass(frozen=True, slots=True)
class LabelLikelihood(ClassLoss):
    """y = -weights[label] x[label] for each row, 0 where the label is ignored.

    Reads (x, labels, weights), shapes as `SoftmaxCrossEntropy`, weights (K,).

    Args:
        reduction: what becomes of the losses, so that batches can be averaged; it changes nothing
            here.
    """

    ignore_index: int = -100
    reduction: Reduction = "none"
    name: ClassVar[str] = "likelihood"
    out_names: ClassVar[tuple[str, ...]] = ("out",)
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    def infer(self, x: Spec, labels: Spec, weights: Spec) -> tuple[Spec, ...]:
        _, each = SoftmaxCrossEntropy(self.ignore_index).infer(x, labels)
        require_float(self, weights)
        fits = weights.shape == x.shape[1:2]
        require(fits, f"nll_loss: one weight for each of {x.shape[1]} classes", x, weights)
        return (each,)

    def reference(self, x, labels, weights, scalars):
        rows, label = as_rows(x), labels.reshape(-1)
        valid = label != self.ignore_index
        chosen = np.where(valid, label, 0)
        each = np.where(valid, -weights[chosen] * rows[np.arange(len(rows)), chosen], 0)
        return (each.reshape(labels.shape).astype(x.dtype),)

    def vjp(self, tape, ins, outs, grads):
        x, labels, weights = ins
        op = LabelLikelihoodGrad(x.shape, self.ignore_index)
        return tape.gradient(op, (labels, weights, grads[0]), of=x), None, None

    def flops(self, ins, outs):
        return ins[1].size


@dataclass(frozen=True, slots=True)
class LabelLikelihoodGrad(Op):
    """dx = -weights[label] dy at the label, else 0. Reads (labels, weights, dy).

    Args:
        shape: shape of dx.
    """

    shape: tuple[int, ...]
    ignore_index: int = -100
    name: ClassVar[str] = "likelihood_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, labels: Spec, weights: Spec, dy: Spec) -> tuple[Spec, ...]:
        require(dy.shape == labels.shape, "nll_loss: a gradient for each label", labels, dy)
        return (Spec(self.shape, dy.dtype),)

    def reference(self, labels, weights, dy, scalars):
        label = labels.reshape(-1)
        valid = label != self.ignore_index
        chosen = np.where(valid, label, 0)
        dx = np.zeros((label.size, self.shape[1]), dy.dtype)
        dx[np.arange(label.size), chosen] = np.where(valid, -weights[chosen] * dy.reshape(-1), 0)
        return (row_order(dx, self.shape),)


# Cross-entropy with class weights, label smoothing, or a loss for each row: PyTorch's options. The
# plain form stays small and fast; this one reads one additional input, the weights, and keeps the
# same log-sum-exp.


@dataclass(frozen=True, slots=True)
class ClassWeights(Op):
    """The weights of the classes, constants of the step."""

    values: tuple[float, ...]
    name: ClassVar[str] = "class_weights"
    verb: ClassVar[str] = "fill"
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    def infer(self) -> tuple[Spec, ...]:
        return (Spec((len(self.values),)),)

    def reference(self, scalars):
        return (np.asarray(self.values),)


@dataclass(frozen=True, slots=True)
class WeightedCrossEntropy(ClassLoss):
    """Of each row whose label counts: (1 - s) w[label] (lse - z[label]) + s / K * sum over the
    classes of w[c] (lse - z[c]).

    Reads (logits, labels, weights[, divisor]), shapes as `SoftmaxCrossEntropy`, weights (K,).
    Writes (loss, lse).

    Args:
        label_smoothing: s.
        reduction: "mean" divides the sum by the weights of the labels that count.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: Reduction = "mean"
    name: ClassVar[str] = "weighted_cross_entropy"

    def infer(self, logits: Spec, labels: Spec, weights: Spec, *divisor: Spec) -> tuple[Spec, ...]:
        loss, lse = SoftmaxCrossEntropy(self.ignore_index).infer(logits, labels)
        require_float(self, weights)
        classes = logits.shape[1]
        fits = weights.shape == (classes,)
        require(fits, f"cross_entropy: one weight for each of {classes} classes", logits, weights)
        return (lse if self.reduction == "none" else loss), lse

    def reference(self, logits, labels, weights, *divisor, scalars):
        rows, label = as_rows(logits), labels.reshape(-1)
        lse = log_sum_exp(rows)
        valid = label != self.ignore_index
        chosen = np.where(valid, label, 0)
        own = weights[chosen] * (lse - rows[np.arange(len(rows)), chosen])
        spread = (weights * (lse[:, None] - rows)).sum(axis=1) / rows.shape[1]
        each = valid * ((1 - self.label_smoothing) * own + self.label_smoothing * spread)
        loss = each.reshape(labels.shape)
        if self.reduction != "none":
            loss = np.asarray(each.sum() / _counted(self, weights, chosen[valid], divisor))
        return loss.astype(logits.dtype), lse.reshape(labels.shape)

    def vjp(self, tape, ins, outs, grads):
        logits, labels, weights, *divisor = ins
        op = WeightedCrossEntropyGrad(self.ignore_index, self.label_smoothing, self.reduction)
        read = logits, labels, weights, outs[1], grads[0], *divisor
        return tape.call(op, read, of=(logits,))[0], *(None for _ in ins[1:])

    def row_rule(self, ins):
        # Of each pixel; a mean or sum is taken apart first (`rewrite/tile/tiling.py`).
        each = RowRule((SAME, SAME, None), lambda place: self)
        return each if self.reduction == "none" else None


@dataclass(frozen=True, slots=True)
class WeightedCrossEntropyGrad(ClassLossGrad):
    """dlogits of `WeightedCrossEntropy`. Reads (logits, labels, weights, lse, dloss[, divisor])."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: Reduction = "mean"
    name: ClassVar[str] = "weighted_cross_entropy_grad"

    def infer(
        self, logits: Spec, labels: Spec, weights: Spec, lse: Spec, dloss: Spec, *divisor: Spec
    ) -> tuple[Spec, ...]:
        wanted = labels.size if self.reduction == "none" else 1
        require(dloss.size == wanted, f"cross_entropy: the gradient has {wanted} numbers", dloss)
        return (logits,)

    def reference(self, logits, labels, weights, lse, dloss, *divisor, scalars):
        rows, label = as_rows(logits), labels.reshape(-1)
        valid = label != self.ignore_index
        chosen, share = np.where(valid, label, 0), self.label_smoothing / rows.shape[1]
        own = ((1 - self.label_smoothing) * weights[chosen])[:, None]
        p = np.exp(rows - lse.reshape(-1, 1))
        d = p * (own + share * weights.sum()) - share * weights
        d -= own * (np.arange(rows.shape[1]) == chosen[:, None])
        counted = _counted(self, weights, chosen[valid], divisor)
        d *= valid[:, None] * dloss.reshape(-1, 1) / counted
        return (row_order(d, logits.shape),)


def _counted(
    op: WeightedCrossEntropy | WeightedCrossEntropyGrad, weights: np.ndarray, labels: np.ndarray,
    divisor: tuple[np.ndarray, ...],
) -> Any:  # fmt: skip
    """What a sum is divided by; `labels` are those that count."""
    if op.reduction != "mean":
        return 1
    return number_of(divisor[0]) if divisor else weights[labels].sum()


# Losses of values, element by element: binary cross-entropy of logits, smooth absolute error, terms
# of cross-entropy with class probabilities. Weights, sums and means are other operations, so a loss
# is a function of two numbers in a table, `VALUE_LOSSES`, as in `function.py`.

Array = Any


@dataclass(frozen=True, slots=True)
class ValueLoss(Op):
    """y = f(x, target), for each element. Reads (x, target).

    Args:
        function: a name in `VALUE_LOSSES`.
        parameter: what that function calls p.
        reduction: what becomes of the losses, so that batches can be averaged; it changes nothing
            here.
    """

    function: str
    parameter: float = 0.0
    reduction: Reduction = "none"

    @property
    def name(self) -> str:
        """That of the function."""
        return self.function

    def infer(self, x: Spec, target: Spec) -> tuple[Spec, ...]:
        require_float(self, x, target)
        require(x.shape == target.shape, "loss: prediction and target differ in shape", x, target)
        return (x,)

    def reference(self, x, target, scalars):
        return (VALUE_LOSSES[self.function].value(x, target, self.parameter).astype(x.dtype),)

    def vjp(self, tape, ins, outs, grads):
        x, target = ins
        read = x, target, grads[0]
        dx = tape.gradient(ValueLossGrad(self.function, self.parameter), read, of=x)
        of_target = ValueLossGrad(self.function, self.parameter, of_target=True)
        return dx, tape.gradient(of_target, read, of=target)

    def flops(self, ins, outs):
        return 2 * EXP_FLOPS * ins[0].size

    def row_rule(self, ins):
        return RowRule((SAME,) * len(ins), lambda place: self)


@dataclass(frozen=True, slots=True)
class ValueLossGrad(Op):
    """dx = dy df / dx, or the gradient of the target. Reads (x, target, dy)."""

    function: str
    parameter: float = 0.0
    of_target: bool = False
    verb: ClassVar[str] = "grad"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    @property
    def name(self) -> str:
        """That of the function, with "_grad"."""
        return f"{self.function}_grad"

    def infer(self, x: Spec, target: Spec, dy: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, "loss: the gradient has the shape of the prediction", x, dy)
        return (x,)

    def reference(self, x, target, dy, scalars):
        loss = VALUE_LOSSES[self.function]
        slope = loss.slope_of_target if self.of_target else loss.slope
        return ((dy * slope(x, target, self.parameter)).astype(x.dtype),)

    def flops(self, ins, outs):
        return 2 * EXP_FLOPS * ins[0].size

    def row_rule(self, ins):
        return RowRule((SAME,) * len(ins), lambda place: self)


@dataclass(frozen=True, slots=True)
class FunctionOfTwo:
    """One row of the table: f, df / dx and df / dtarget, each of (x, target, parameter)."""

    value: Callable[[Array, Array, float], Array]
    slope: Callable[[Array, Array, float], Array]
    slope_of_target: Callable[[Array, Array, float], Array]


def _smooth(x: Array, target: Array, p: float) -> Array:
    """|d| - p / 2 beyond p, the parabola that meets it within; d = x - target."""
    away = np.abs(x - target)
    return np.where(away < p, away * away / (2 * p if p else 1), away - p / 2)


def _smooth_slope(x: Array, target: Array, p: float) -> Array:
    away = x - target
    return np.where(np.abs(away) < p, away / (p or 1), np.sign(away))


VALUE_LOSSES: Mapping[str, FunctionOfTwo] = {
    # -target log s(x) - (1 - target) log(1 - s(x)), s the sigmoid; no digits are lost where it is
    # nearly 0.
    "binary_cross_entropy": FunctionOfTwo(
        lambda x, t, p: (1 - t) * x - np.minimum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        lambda x, t, p: sigmoid(x) - t,
        lambda x, t, p: -x,
    ),
    # -target x, x the logarithm of a probability: a term of cross-entropy with class probabilities
    "soft_labels": FunctionOfTwo(
        lambda x, t, p: -t * x, lambda x, t, p: -t + 0 * x, lambda x, t, p: -x + 0 * t
    ),
    "smooth_l1": FunctionOfTwo(_smooth, _smooth_slope, lambda x, t, p: -_smooth_slope(x, t, p)),
}


# Squared and absolute differences. Both errors are antisymmetric, so one operation gives the
# gradient of either side, with the two exchanged.

MeanOrSum = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True)
class MeanError(Op):
    """loss = mean or sum of (x - target)^2, or of |x - target| with `absolute`.

    Reads (x, target).

    Args:
        over: what a mean divides by, where x is a part of what it is over; 0: x is all.
    """

    absolute: bool = False
    reduction: MeanOrSum = "mean"
    over: int = 0
    name: ClassVar[str] = "mean_error"
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    def infer(self, x: Spec, target: Spec) -> tuple[Spec, ...]:
        require_float(self, x, target)
        require(x.shape == target.shape, "loss: prediction and target differ in shape", x, target)
        return (Spec((), x.dtype),)

    def reference(self, x, target, scalars):
        error = np.abs(x - target) if self.absolute else (x - target) ** 2
        total = error.sum()
        if self.reduction == "mean":
            total = total / self.over if self.over else error.mean()
        return (np.asarray(total, x.dtype),)

    def vjp(self, tape, ins, outs, grads):
        x, target = ins
        op, (dloss,) = MeanErrorGrad(self.absolute, self.reduction), grads
        dx = tape.gradient(op, (x, target, dloss), of=x)
        # The error is antisymmetric: exchange the two for the gradient of the target.
        return dx, tape.gradient(op, (target, x, dloss), of=target)

    def flops(self, ins, outs):
        return 3 * ins[0].size

    def row_rule(self, ins):
        size = self.over or ins[0].size
        return RowRule((SAME, SAME), lambda place: replace(self, over=size), reduces=True)


@dataclass(frozen=True, slots=True)
class MeanErrorGrad(Op):
    """dx = 2 (x - target) dloss, or sign(x - target) dloss, / size for a mean.

    Reads (x, target, dloss).

    Args:
        over: as in `MeanError`.
    """

    absolute: bool = False
    reduction: MeanOrSum = "mean"
    over: int = 0
    name: ClassVar[str] = "mean_error_grad"
    verb: ClassVar[str] = "grad"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    def infer(self, x: Spec, target: Spec, dloss: Spec) -> tuple[Spec, ...]:
        require(dloss.size == 1, "loss: the gradient of the loss is one number", dloss)
        return (x,)

    def reference(self, x, target, dloss, scalars):
        error = np.sign(x - target) if self.absolute else 2 * (x - target)
        return (error * dloss / ((self.over or x.size) if self.reduction == "mean" else 1),)

    def flops(self, ins, outs):
        return 3 * ins[0].size

    def row_rule(self, ins):
        size = self.over or ins[0].size
        return RowRule((SAME, SAME, None), lambda place: replace(self, over=size))


@dataclass(frozen=True, slots=True)
class ErrorEach(Op):
    """y = (x - target)^2, or |x - target| with `absolute`: a loss for each element.

    Reads (x, target).
    """

    absolute: bool = False
    name: ClassVar[str] = "error_each"

    def infer(self, x: Spec, target: Spec) -> tuple[Spec, ...]:
        require_float(self, x, target)
        require(x.shape == target.shape, "loss: prediction and target differ in shape", x, target)
        return (x,)

    def reference(self, x, target, scalars):
        return (np.abs(x - target) if self.absolute else (x - target) ** 2,)

    def vjp(self, tape, ins, outs, grads):
        x, target = ins
        op, (dy,) = ErrorEachGrad(self.absolute), grads
        dx = tape.gradient(op, (x, target, dy), of=x)
        return dx, tape.gradient(op, (target, x, dy), of=target)

    def flops(self, ins, outs):
        return 2 * ins[0].size

    def row_rule(self, ins):
        return RowRule((SAME,) * len(ins), lambda place: self)


@dataclass(frozen=True, slots=True)
class ErrorEachGrad(Op):
    """dx = 2 (x - target) dy, or sign(x - target) dy. Reads (x, target, dy)."""

    absolute: bool = False
    name: ClassVar[str] = "error_each_grad"
    verb: ClassVar[str] = "grad"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    def infer(self, x: Spec, target: Spec, dy: Spec) -> tuple[Spec, ...]:
        require(dy.shape == x.shape, "loss: the gradient has the shape of the prediction", x, dy)
        return (x,)

    def reference(self, x, target, dy, scalars):
        return ((np.sign(x - target) if self.absolute else 2 * (x - target)) * dy,)

    def flops(self, ins, outs):
        return 3 * ins[0].size

    def row_rule(self, ins):
        return RowRule((SAME,) * len(ins), lambda place: self)


def mean_factor(count: float) -> float:
    """What a sum is multiplied by for a mean: 1 / count, or NaN where nothing counts, as in
    PyTorch.
    """
    return 1.0 / count if count else float("nan")
