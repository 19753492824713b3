"""Negative log-likelihood: minus the log-probability that a network gives to the true class.

Log-probabilities (N, K) or (N, K, H, W), labels and class weights give a loss for each label, 0
where the label is ignored. The sum or mean is a call of its own (`reduction.py`). Only the label's
own element is read, so a class of probability 0 does not affect the losses of other labels. Read
next: `update.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.layers import class_loss
from ooctrain.layers.cross_entropy import SoftmaxCrossEntropy
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.trace import Kind


@dataclass(frozen=True, slots=True)
class LabelLikelihood(class_loss.ClassLoss):
    """y = -weights[label] x[label] for each row, 0 where the label is ignored.

    Reads (x, labels, weights), shapes as `SoftmaxCrossEntropy`, weights (K,).

    Args:
        reduction: what becomes of the losses, so that batches can be averaged; it changes nothing
            here.
    """

    ignore_index: int = -100
    reduction: class_loss.Reduction = "none"
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
        rows, label = class_loss.as_rows(x), labels.reshape(-1)
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
        shape: of dx.
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
        return (class_loss.row_order(dx, self.shape),)
