"""The rule of an operation: how it is cut to a tile, and which table says how it runs on rows.

A tile rule turns an operation and the place of a tile in its image into the operation of the tile.
An operation over windows can be tiled if its padding has four independent sides: a tile keeps the
padding where it touches the border of the image and has none elsewhere. An operation without a rule
is refused, by name and with the reason. Row rules, for bands, are data in tables, one for each kind
of operation; a user's own operation states its windows and needs no table. Source: paper 003,
section 4.1 ("FT-compatible operators"). Read next: `segment.py`; `row_rules.py`, `rules.py`,
`rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.batch_norm import (
    BatchNormApply,
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
)
from ooctrain.layers.conv2d import Conv2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
    InstanceNormStats,
)
from ooctrain.layers.layout import ConstantPad, Pad
from ooctrain.layers.losses import (
    ClassLossGrad,
    ErrorEach,
    ErrorEachGrad,
    MeanError,
    MeanErrorGrad,
    SoftmaxCrossEntropyGrad,
    TotalLoss,
    ValueLoss,
    ValueLossGrad,
    WeightedCrossEntropy,
    WeightedCrossEntropyGrad,
)
from ooctrain.layers.pooling import AdaptiveAvgPool2d, AdaptiveAvgPool2dGrad, AvgPool2d, MaxPool2d
from ooctrain.layers.reduction import Spread, Sum
from ooctrain.rewrite.tile import row_rules
from ooctrain.rewrite.tile.row_rules import SAME, MakeRule, RowPlace, RowRule
from ooctrain.step.op import Op, Spec, Window

# Row rules of normalisation: sums over all rows, and their use row by row.
#
# Once mean and deviation are known, a batch or instance norm is pointwise, with vectors that all
# rows read, so recomputation in backward needs no barrier. Only the sums need all rows first: the
# statistics going forward, two sums going backward. Each of them is a barrier between bands
# (`carried_totals.py`), and all bands together give the bits of the untiled sum
# (`carried_sums.py`). Source: ours; docs/tiling.md.


def _stats(op: BatchNormStats | InstanceNormStats, ins: Sequence[Spec]) -> RowRule | None:
    """None where an image is one pixel: blocks of the sum then hold pixels of several images."""
    _, _, h, w = ins[0].shape
    return RowRule((SAME,), _as_it_is, reduces=True) if h * w > 1 else None


def _batch_apply(op: BatchNormApply, ins: Sequence[Spec]) -> RowRule:
    return RowRule((SAME, None, None, None, None, *(SAME,) * op.residual), _as_it_is)


def _batch_grad_reduce(op: BatchNormGradReduce, ins: Sequence[Spec]) -> RowRule | None:
    if not _stats(BatchNormStats(), ins):
        return None
    return RowRule((SAME, SAME, None, None, *(SAME,) * op.mask), _as_it_is, reduces=True)


def _batch_grad_apply(op: BatchNormGradApply, ins: Sequence[Spec]) -> RowRule:
    vectors = (None,) * (3 + 2 * op.batch_stats)
    return RowRule((SAME, SAME, *vectors, *(SAME,) * op.mask), _over_the_batch)


def _instance_apply(op: InstanceNormApply, ins: Sequence[Spec]) -> RowRule:
    vectors = (None,) * (2 + 2 * op.affine)
    return RowRule((SAME, *vectors, *(SAME,) * op.residual), _as_it_is, of_image=(1, 2))


def _instance_grad_reduce(op: InstanceNormGradReduce, ins: Sequence[Spec]) -> RowRule:
    mask = (SAME,) * op.mask
    return RowRule((SAME, SAME, None, None, *mask), _as_it_is, reduces=True, of_image=(2, 3))


def _instance_grad_apply(op: InstanceNormGradApply, ins: Sequence[Spec]) -> RowRule:
    vectors = (None,) * (4 + op.affine)
    sums = 4 + op.affine, 5 + op.affine
    return RowRule(
        (SAME, SAME, *vectors, *(SAME,) * op.mask), _over_the_image, of_image=(2, 3, *sums)
    )


NORM_RULES: Mapping[type[Op], MakeRule] = {
    BatchNormStats: _stats,
    BatchNormApply: _batch_apply,
    BatchNormGradReduce: _batch_grad_reduce,
    BatchNormGradApply: _batch_grad_apply,
    InstanceNormStats: _stats,
    InstanceNormApply: _instance_apply,
    InstanceNormGradReduce: _instance_grad_reduce,
    InstanceNormGradApply: _instance_grad_apply,
}


def _as_it_is(op: Any, place: RowPlace) -> Any:
    return op


def _over_the_batch(op: BatchNormGradApply, place: RowPlace) -> Op:
    """The means of the two sums are over all pixels, not those of the band."""
    n, _, h, w = place.full
    return replace(op, over=op.over or n * h * w)


def _over_the_image(op: InstanceNormGradApply, place: RowPlace) -> Op:
    _, _, h, w = place.full
    return replace(op, over=op.over or h * w)


# Row rules of losses over images, and of sums over all rows: means, global average pooling.
#
# A mean is a sum divided by the number of values in the whole image, not in the band, so a band is
# told that number. The loss is a sum over bands, and its gradient has the untiled bits. Source:
# ours; docs/tiling.md.


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
    """Of each pixel; a mean or sum is taken apart first (`grid.py`)."""
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


def _on_rows(op: Spread, place: RowPlace) -> Op:
    return _rows_of(place, op.factor)


def _rows_of(place: RowPlace, factor: float) -> Spread:
    """One number for each channel, repeated over a band."""
    _, c, _, w = place.full
    return Spread((1, c, place.rows.extent, w), factor)


Sides = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tile lies in the image that an operation reads.

    Args:
        padding: rows and columns outside the image (top, bottom, left, right).
        start: first row and column that the tile reads.
        full: (N, C, H, W) of the whole image.
    """

    padding: Sides
    start: tuple[int, int]
    full: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class TileRule:
    """How operations of one kind are tiled in H and W.

    Args:
        windows: which rows and columns an output reads.
        cut: the operation for a tile; all but padding and place is kept.
    """

    windows: Callable[[Any], tuple[Window, Window]]
    cut: Callable[[Any, Place], Op]


def _own_windows(op: Op) -> tuple[Window, Window]:
    windows = op.window()
    assert windows is not None
    return windows


def _cut_dropout(op: Dropout, place: Place) -> Op:
    n, c, h, w = op.offset
    offset = (n, c, h + place.start[0], w + place.start[1])
    return replace(op, offset=offset, full=op.full or place.full)


def _pad_windows(op: Pad | ConstantPad) -> tuple[Window, Window]:
    top, bottom, left, right = op.padding
    return Window(pad_lo=top, pad_hi=bottom), Window(pad_lo=left, pad_hi=right)


PADDING = TileRule(_pad_windows, lambda op, place: replace(op, padding=place.padding))
POINTWISE = TileRule(_own_windows, lambda op, place: op)
WINDOWED = TileRule(
    _own_windows,
    lambda op, place: replace(op, geometry=replace(op.geometry, padding=place.padding)),
)
#: with running statistics, which stand still
STANDING = TileRule(lambda op: (Window(), Window()), lambda op, place: op)
#: an operation of a user's own, which has a method `with_padding((top, bottom, left, right))`
OWN_PADDING = TileRule(_own_windows, lambda op, place: op.with_padding(place.padding))
RULES: Mapping[type[Op], TileRule] = {
    Conv2d: WINDOWED,
    MaxPool2d: WINDOWED,
    AvgPool2d: WINDOWED,
    Pad: PADDING,
    ConstantPad: PADDING,
    Dropout: TileRule(lambda op: (Window(), Window()), _cut_dropout),
}

#: {name of an operation: why it cannot be tiled}, for messages
OBSTACLES: Mapping[str, str] = {
    "batch_norm": "its statistics need the whole batch at once",
    "channel_sum": "it adds images of one pixel in one block",
    "linear": "it reads all pixels of an image for each output",
    "adaptive_avg_pool2d": "its windows have no fixed stride",
    "reshape": "its output has no rows and columns of the image",
    "concat": "it joins several tensors",
    "add": "it joins several tensors",
    "subtract": "it joins several tensors",
    "multiply": "it joins several tensors",
    "divide": "it joins several tensors",
    "instance_norm": "its statistics need whole images at once",
    "sum": "it adds up pixels of the whole image",
    "spread": "it repeats what has no rows and columns of the image",
    "permute": "its output has the rows and columns elsewhere",
    "softmax": "it reads whole rows or columns of the image at once",
}


def rule_of(op: Any) -> TileRule | None:
    """The rule of an operation; None where it cannot be tiled exactly."""
    if type(op) in RULES:
        return RULES[type(op)]
    if isinstance(op, BatchNormApply):
        return None if op.batch_stats or op.residual or op.relu else STANDING
    windows = op.window() if isinstance(op, Op) else None
    if windows is None:
        return None
    if windows == (Window(), Window()):
        return POINTWISE
    return OWN_PADDING if hasattr(op, "with_padding") else None


def obstacle(op: Any) -> str:
    """Why an operation cannot be tiled, in words."""
    name = getattr(op, "name", type(op).__name__)
    known = (why for start, why in OBSTACLES.items() if name.startswith(start))
    return next(known, "it has no tile rule (`window`, and `with_padding` if it has windows)")


def row_rule_of(op: Op, ins: Sequence[Spec]) -> RowRule | None:
    """The row rule of an operation over inputs of these shapes; None where it has none, or where
    these are not (N, C, H, W), or (N, H, W) of losses.
    """
    if not ins or len(ins[0].shape) != (3 if isinstance(op, TotalLoss) else 4):
        return None
    for table in (row_rules.ROW_RULES, NORM_RULES, LOSS_RULES):
        if type(op) in table:
            return table[type(op)](op, ins)
    return row_rules.own_rule_of(op, ins)
