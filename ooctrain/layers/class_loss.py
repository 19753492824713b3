"""What losses of class numbers share: rows of logits, a label for each, one number kept of each.

In: logits (N, K) or (N, K, H, W), and labels. Out: the parts of an operation that do not depend on
what the loss of a row is. The one idea: images and pixels alike are rows of K logits, so scratch
and work follow from the number of rows and logits alone. Read next: `cross_entropy.py`, the plain
loss, then `weighted_loss.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from ooctrain.layers.activation import EXP_FLOPS
from ooctrain.step.op import Op
from ooctrain.step.trace import Kind

Reduction = Literal["mean", "sum", "none"]


class ClassLoss(Op):
    """A loss of (logits, labels, ...): mean, sum, or each by itself. Writes (loss, lse), lse being
    the log-sum-exp of each row.
    """

    __slots__ = ()
    ignore_index: int
    reduction: Reduction
    out_names: ClassVar[tuple[str, ...]] = ("out", "lse")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux", "stat")

    def flops(self, ins, outs):
        return EXP_FLOPS * ins[0].size


class ClassLossGrad(Op):
    """The gradient of a `ClassLoss`. Reads (logits, labels, ...) and may overwrite the logits."""

    __slots__ = ()
    ignore_index: int
    reduction: Reduction
    verb: ClassVar[str] = "grad"

    def flops(self, ins, outs):
        return EXP_FLOPS * ins[0].size

    def reusable(self):
        return {0: 0}


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
