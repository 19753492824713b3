"""What the losses of class labels share: rows of logits, a label per row, one number kept per row.

Logits are (N, K) or (N, K, H, W). Images and pixels alike are rows of K logits, so scratch and work
follow from the numbers of rows and logits alone, whatever the loss of a row is. A mean is taken
over the rows of the call, unless an additional input gives the divisor: thus a batch that is
processed in parts is averaged as a whole (`LabelWeight`). Read next: `cross_entropy.py`, the plain
loss, then `weighted_loss.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ooctrain.layers.activation import EXP_FLOPS
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.trace import Kind

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

    def flops(self, ins, outs):
        return EXP_FLOPS * ins[0].size

    def reusable(self):
        return {0: 0}


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
