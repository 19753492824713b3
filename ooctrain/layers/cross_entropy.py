"""Softmax cross-entropy, per image or per pixel.

Logits (N, K) or (N, K, H, W) and labels give the mean or the sum of the losses. Forward keeps the
log-sum-exp of each row, one number, instead of the probabilities. The gradient is (exp(logit - lse)
- onehot) / rows, times the gradient of the loss itself, which is an input like any other. Labels
are checked when they enter (`check_labels`), not in kernels. Read next: `weighted_loss.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.layers import class_loss
from ooctrain.layers.regression_loss import MeanOrSum
from ooctrain.step.op import Spec, require, require_float


@dataclass(frozen=True, slots=True)
class SoftmaxCrossEntropy(class_loss.ClassLoss):
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
        rows, label = class_loss.as_rows(logits), labels.reshape(-1)
        lse = class_loss.log_sum_exp(rows)
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
class SoftmaxCrossEntropyGrad(class_loss.ClassLossGrad):
    """dlogits = (softmax - onehot) * dloss, / rows for a mean. Reads (logits, labels, lse, dloss[,
    divisor])."""

    ignore_index: int = -100
    reduction: MeanOrSum = "mean"
    name: ClassVar[str] = "cross_entropy_grad"

    def infer(self, logits: Spec, labels: Spec, lse: Spec, dloss: Spec, *divisor: Spec):
        require(dloss.size == 1, "cross_entropy: the gradient of the loss is one number", dloss)
        return (logits,)

    def reference(self, logits, labels, lse, dloss, *divisor, scalars):
        rows, label = class_loss.as_rows(logits), labels.reshape(-1)
        valid = label != self.ignore_index
        d = np.exp(rows - lse.reshape(-1, 1))
        d[np.arange(len(rows)), np.where(valid, label, 0)] -= 1
        counted = class_loss.number_of(divisor[0]) if divisor else valid.sum()
        d *= valid[:, None] * dloss / (counted if self.reduction == "mean" else 1)
        return (class_loss.row_order(d, logits.shape),)


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
    rows = class_loss.as_rows(logits[:8])
    return bool(
        rows.shape[1] > 1 and (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-4)
    )
