"""Row rules of losses over images, and of sums over all rows: means, global average pooling.

A mean is a sum divided by the number of values in the whole image, not in the band, so a band is
told that number. The loss is a sum over bands, and its gradient has the untiled bits. Source: ours;
docs/tiling.md. Read next: `rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.average_pooling import AdaptiveAvgPool2d, AdaptiveAvgPool2dGrad
from ooctrain.layers.class_loss import ClassLossGrad, TotalLoss
from ooctrain.layers.cross_entropy import SoftmaxCrossEntropyGrad
from ooctrain.layers.reduction import Spread, Sum
from ooctrain.layers.regression_loss import ErrorEach, ErrorEachGrad, MeanError, MeanErrorGrad
from ooctrain.layers.value_loss import ValueLoss, ValueLossGrad
from ooctrain.layers.weighted_loss import WeightedCrossEntropy, WeightedCrossEntropyGrad
from ooctrain.rewrite.tile.row_rules import SAME, MakeRule, RowPlace, RowRule
from ooctrain.step.op import Op, Spec

#: Where an image's rows and columns are.
ROWS_AND_COLUMNS = (2, 3)


def _each(op: Op, ins: Sequence[Spec]) -> RowRule:
    """A loss of each element, or its gradient."""
    return RowRule((SAME,) * len(ins), _as_it_is)


def _arithmetic(op: Arithmetic, ins: Sequence[Spec]) -> RowRule | None:
    """Of two images, or of an image and what is repeated along its rows: weights of a loss."""
    shape = ins[0].shape
    b = ins[1].shape
    if len(b) == 4 and b[2] == shape[2]:
        return RowRule((SAME, SAME), _as_it_is) if b[0] == shape[0] else None
    if len(b) == 4 and b[0] > 1:
        return RowRule((SAME, None), _as_it_is, of_image=(1,)) if b[2:] == (1, 1) else None
    return RowRule((SAME, None), _as_it_is) if len(b) < 2 or b[-2] == 1 else None


def _class_loss(op: WeightedCrossEntropy, ins: Sequence[Spec]) -> RowRule | None:
    """Of each pixel; a mean or sum is taken apart first (`class_losses.py`)."""
    return RowRule((SAME, SAME, None), _as_it_is) if op.reduction == "none" else None


def _class_loss_grad(op: ClassLossGrad, ins: Sequence[Spec]) -> RowRule:
    """Reads (logits, labels[, weights], lse, gradient of the loss[, divisor])."""
    of_pixels = ins[1].shape
    return RowRule(tuple(SAME if i == 0 or spec.shape == of_pixels else None
                         for i, spec in enumerate(ins)), _as_it_is)  # fmt: skip


def _total_loss(op: TotalLoss, ins: Sequence[Spec]) -> RowRule:
    others = (None,) * (len(ins) - 1 - op.counts)
    return RowRule((SAME, *(SAME,) * op.counts, *others), _as_it_is, reduces=True)


def _mean_error(op: MeanError, ins: Sequence[Spec]) -> RowRule:
    size = ins[0].size
    return RowRule((SAME, SAME), lambda op, place: replace(op, over=op.over or size), reduces=True)


def _mean_error_grad(op: MeanErrorGrad, ins: Sequence[Spec]) -> RowRule:
    size = ins[0].size
    return RowRule((SAME, SAME, None), lambda op, place: replace(op, over=op.over or size))


def _sum(op: Sum, ins: Sequence[Spec]) -> RowRule | None:
    """Of rows: over all images, or of each image by itself."""
    if 2 not in op.axes:
        return None
    return RowRule((SAME,), _as_it_is, reduces=True, adds_images=0 in op.axes)


def _spread(op: Spread, ins: Sequence[Spec]) -> RowRule | None:
    """Of one number for all rows; a value that has rows already is not repeated along them."""
    if ins[0].shape[2] > 1 or len(op.shape) != 4:
        return None
    of_image = (0,) if ins[0].shape[0] > 1 else ()
    return RowRule((None,), _on_rows, of_image=of_image)


def _global_pool(op: AdaptiveAvgPool2d, ins: Sequence[Spec]) -> RowRule | None:
    """Global average pooling is a sum over all rows of an image, divided by its pixels."""
    if op.size != (1, 1):
        return None
    mean = Sum(ROWS_AND_COLUMNS, 1 / math.prod(ins[0].shape[2:]))
    return RowRule((SAME,), lambda op, place: mean, reduces=True, adds_images=False)


def _global_pool_grad(op: AdaptiveAvgPool2dGrad, ins: Sequence[Spec]) -> RowRule | None:
    if ins[0].shape[2:] != (1, 1):
        return None
    share = 1 / math.prod(op.size)
    return RowRule((None,), lambda op, place: _rows_of(place, share), of_image=(0,))


LOSS_RULES: Mapping[type[Op], MakeRule] = {
    Arithmetic: _arithmetic,
    MeanError: _mean_error,
    MeanErrorGrad: _mean_error_grad,
    ErrorEach: _each,
    ErrorEachGrad: _each,
    ValueLoss: _each,
    ValueLossGrad: _each,
    Sum: _sum,
    Spread: _spread,
    WeightedCrossEntropy: _class_loss,
    WeightedCrossEntropyGrad: _class_loss_grad,
    SoftmaxCrossEntropyGrad: _class_loss_grad,
    TotalLoss: _total_loss,
    AdaptiveAvgPool2d: _global_pool,
    AdaptiveAvgPool2dGrad: _global_pool_grad,
}


def _as_it_is(op: Any, place: RowPlace) -> Any:
    return op


def _on_rows(op: Spread, place: RowPlace) -> Op:
    return _rows_of(place, op.factor)


def _rows_of(place: RowPlace, factor: float) -> Spread:
    """One number for each channel, repeated over a band."""
    _, c, _, w = place.full
    return Spread((1, c, place.rows.extent, w), factor)
