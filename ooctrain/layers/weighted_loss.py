"""Cross-entropy with class weights, label smoothing, or a loss for each row: PyTorch's options.

The result is a mean, a sum, or the loss of every row. The plain form in `cross_entropy.py` stays
small and fast; this one reads one additional input, the weights, and keeps the same log-sum-exp.
Source: PyTorch's definition of `cross_entropy` (label smoothing: Szegedy et al. 2016, section 7).
Read next: `update.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ooctrain.layers import class_loss
from ooctrain.layers.cross_entropy import SoftmaxCrossEntropy
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.trace import Kind


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
class WeightedCrossEntropy(class_loss.ClassLoss):
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
    reduction: class_loss.Reduction = "mean"
    name: ClassVar[str] = "weighted_cross_entropy"

    def infer(self, logits: Spec, labels: Spec, weights: Spec, *divisor: Spec) -> tuple[Spec, ...]:
        loss, lse = SoftmaxCrossEntropy(self.ignore_index).infer(logits, labels)
        require_float(self, weights)
        classes = logits.shape[1]
        fits = weights.shape == (classes,)
        require(fits, f"cross_entropy: one weight for each of {classes} classes", logits, weights)
        return (lse if self.reduction == "none" else loss), lse

    def reference(self, logits, labels, weights, *divisor, scalars):
        rows, label = class_loss.as_rows(logits), labels.reshape(-1)
        lse = class_loss.log_sum_exp(rows)
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


@dataclass(frozen=True, slots=True)
class WeightedCrossEntropyGrad(class_loss.ClassLossGrad):
    """dlogits of `WeightedCrossEntropy`. Reads (logits, labels, weights, lse, dloss[, divisor])."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: class_loss.Reduction = "mean"
    name: ClassVar[str] = "weighted_cross_entropy_grad"

    def infer(
        self, logits: Spec, labels: Spec, weights: Spec, lse: Spec, dloss: Spec, *divisor: Spec
    ) -> tuple[Spec, ...]:
        wanted = labels.size if self.reduction == "none" else 1
        require(dloss.size == wanted, f"cross_entropy: the gradient has {wanted} numbers", dloss)
        return (logits,)

    def reference(self, logits, labels, weights, lse, dloss, *divisor, scalars):
        rows, label = class_loss.as_rows(logits), labels.reshape(-1)
        valid = label != self.ignore_index
        chosen, share = np.where(valid, label, 0), self.label_smoothing / rows.shape[1]
        own = ((1 - self.label_smoothing) * weights[chosen])[:, None]
        p = np.exp(rows - lse.reshape(-1, 1))
        d = p * (own + share * weights.sum()) - share * weights
        d -= own * (np.arange(rows.shape[1]) == chosen[:, None])
        counted = _counted(self, weights, chosen[valid], divisor)
        d *= valid[:, None] * dloss.reshape(-1, 1) / counted
        return (class_loss.row_order(d, logits.shape),)


def _counted(
    op: WeightedCrossEntropy | WeightedCrossEntropyGrad, weights: np.ndarray, labels: np.ndarray,
    divisor: tuple[np.ndarray, ...],
) -> Any:  # fmt: skip
    """What a sum is divided by; `labels` are those that count."""
    if op.reduction != "mean":
        return 1
    return class_loss.number_of(divisor[0]) if divisor else weights[labels].sum()
