"""What losses of class numbers share: rows of logits, a label for each, one number kept of each.

In: logits (N, K) or (N, K, H, W), and labels. Out: the parts of an operation that do not depend on
what the loss of a row is. The one idea: images and pixels alike are rows of K logits, so scratch
and work follow from the number of rows and logits alone. Read next: `cross_entropy.py`, the plain
loss, then `weighted_loss.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from ooctrain.layers.activation import EXP_FLOPS
from ooctrain.step.op import FLOAT_BYTES, Op, whole_lines
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

    def workspace_bytes(self, ins, outs, threads):
        from ooctrain.layers.kernels.cpu import workspace

        rows = ins[1].size
        return whole_lines(FLOAT_BYTES * rows) + workspace.reduction_workspace_bytes(rows)

    def cuda_workspace_bytes(self, ins, outs):
        from ooctrain.layers.kernels.cuda import loss_space

        return loss_space.loss_space_bytes(ins[1].size, each=self.reduction != "none")

    def flops(self, ins, outs):
        return EXP_FLOPS * ins[0].size


class ClassLossGrad(Op):
    """The gradient of a `ClassLoss`. Reads (logits, labels, ...) and may overwrite the logits."""

    __slots__ = ()
    ignore_index: int
    reduction: Reduction
    verb: ClassVar[str] = "grad"

    def cuda_workspace_bytes(self, ins, outs):
        from ooctrain.layers.kernels.cuda import loss_space

        return loss_space.loss_space_bytes(ins[1].size, each=False)

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


def loss_parts(workspace: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(a float32 for each row, scratch of their sum): the workspace of a loss on the cpu device."""
    each_bytes = FLOAT_BYTES * rows
    return workspace[:each_bytes].view(np.float32), workspace[whole_lines(each_bytes) :]


def cuda_divisor(
    op: ClassLoss | ClassLossGrad, launcher: Any, space: Any, labels: Any, weights: Any = None
) -> Any:
    """What a mean over rows is divided by, a number on the GPU; None for other reductions.

    Args:
        space: `layers.kernels.cuda.loss_space.LossSpace`.
        weights: of the classes; None for 1 each.
    """
    from ooctrain.layers.kernels.cuda import losses

    if op.reduction != "mean":
        return None
    losses.label_weight(launcher, labels, weights, space.divisor, space.partials, op.ignore_index)
    return space.divisor
