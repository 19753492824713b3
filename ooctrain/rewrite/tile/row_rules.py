"""Row rules: which rows of its inputs each operation reads, backward operations included.

An operation and the shapes of its inputs give its `RowRule`, data without any call of the network
(`row_rule_of`). An operation runs over rows: those of its output, or, where it sums over rows (a
weight gradient), those of the gradient that it sums. For each input one relation gives the rows
that a row reads: the window that lies over it, or, for the gradient of a windowed operation, all
outputs whose windows lie over it. The same kernels then compute a band of rows, padded above and
below by the rows that, by this relation, lie outside. Rules stand in three tables; a user's own
operation states its windows and needs no table. Source: paper 003, section 4.1, whose table 3 has
such maps for forward operations; the others are ours, docs/tiling.md. Read next: `frontier.py`,
then `bands.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.batch_norm import (
    BatchNormApply,
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
)
from ooctrain.layers.combine import Concat
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
    InstanceNormStats,
)
from ooctrain.layers.layout import Pad
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
from ooctrain.layers.pooling import (
    AdaptiveAvgPool2d,
    AdaptiveAvgPool2dGrad,
    AvgPool2d,
    AvgPool2dGrad,
    MaxPool2d,
    MaxPool2dGrad,
)
from ooctrain.layers.reduction import ChannelSum, Spread, Sum
from ooctrain.layers.regions import Slice
from ooctrain.layers.resampling import Upsample, UpsampleGrad
from ooctrain.rewrite.tile.halo import Read, Span, reach, read_span
from ooctrain.step.op import Op, Spec, Window


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Which rows of one input a row reads.

    Args:
        window: row o lies over rows [o s - p, o s - p + reach).
        gathers: the other way round: row r reads all rows o whose windows lie over r.
    """

    window: Window = field(default_factory=Window)
    gathers: bool = False

    @property
    def overlap(self) -> int:
        """Rows that two neighbouring bands read."""
        return max(reach(self.window) - self.window.stride, 0)

    def read(self, rows: Span, extent: int) -> Read:
        """What `rows` read of an input of `extent` rows, and how many rows the window stands out
        above and below it.
        """
        return (
            self._gathered(rows, extent) if self.gathers else read_span(rows, self.window, extent)
        )

    def first(self, row: int, extent: int) -> int:
        """The first row that `row` and all later ones read."""
        return self.read(Span(row, row + 1), extent).inside.lo

    def stop(self, row: int, extent: int) -> int:
        """One past the last row that all rows before `row` read; 0 where there are none."""
        return self.read(Span(row - 1, row), extent).inside.hi if row > 0 else 0

    def _gathered(self, rows: Span, outputs: int) -> Read:
        """Of `outputs` rows those whose windows lie over `rows`.

        A row between two windows (kernel < stride) belongs to the window before it, whose gradient
        is then read for nothing: padding must not be negative.
        """
        w = self.window
        touching = -((reach(w) - 1 - w.pad_lo - rows.lo) // w.stride)
        lo = max(0, min(touching, (rows.lo + w.pad_lo) // w.stride))
        hi = min(outputs, (rows.hi - 1 + w.pad_lo) // w.stride + 1)
        above = rows.lo - (lo * w.stride - w.pad_lo)
        below = (hi - 1) * w.stride - w.pad_lo + reach(w) - rows.hi
        return Read(Span(lo, hi), above, max(below, 0))


# A resized image: its rows are those of the nearest pixel, or between two rows. Row o lies at o H /
# OH among the rows from which it is made, for any H and OH. So the rows read neither begin nor end
# at multiples of a stride, but their borders never decrease with o, and frontiers need no more. A
# band knows its place in the whole image, so it has the whole image's weights. Source: ours.


#: First row of what is read, rows of the whole of it; first row of the result, rows of the whole.
Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Which rows of one input a row reads; as `row_rules.RowsRead`.

    Args:
        mode: "nearest" or "bilinear".
        corners: whether the centres of the corner pixels coincide.
        place: place of what is at hand, in whole images before and after; the gradient's the same
        way
            round.
        gathers: a row of the gradient reads all rows that were made of it.
    """

    mode: str
    corners: bool
    place: Place
    gathers: bool = False

    @property
    def overlap(self) -> int:
        """Rows that two neighbouring bands read."""
        return 2 if self.mode == "bilinear" else 0

    def read(self, rows: Span, extent: int) -> Read:
        """What `rows` read of an input of `extent` rows."""
        before, _, after, outputs = self.place
        if self.gathers:
            # The first row behind which it begins to be read, the first that begins below it.
            lo = bisect_right(range(outputs), before + rows.lo, key=self._stop_of)
            hi = bisect_left(range(outputs), before + rows.hi, key=self._first_of)
            origin = after
        else:
            lo, hi = self._first_of(after + rows.lo), self._stop_of(after + rows.hi - 1)
            origin = before
        start = min(max(lo - origin, 0), extent)
        return Read(Span(start, min(max(hi - origin, start), extent)), 0, 0)

    def first(self, row: int, extent: int) -> int:
        """The first row that `row` and all later ones read."""
        return self.read(Span(row, row + 1), extent).inside.lo

    def stop(self, row: int, extent: int) -> int:
        """One past the last row that all rows before `row` read; 0 where there are none."""
        return self.read(Span(row - 1, row), extent).inside.hi if row > 0 else 0

    def computable(self, rows: int, extent: int) -> int:
        """How many rows can be computed from the first `rows` of `extent` rows of the whole."""
        outputs = self.place[3]
        if rows >= extent:
            return outputs
        return bisect_right(range(outputs), rows, key=self._stop_of)

    def _first_of(self, row: int) -> int:
        """The first row that a row of the whole result reads.

        Where it lies exactly on a row, kernels may round to just above that: the row before is
        read too, by next to nothing.
        """
        lower, exact = self._position(row)
        return lower if self.mode == "nearest" else max(lower - exact, 0)

    def _stop_of(self, row: int) -> int:
        lower, _ = self._position(row)
        return lower + 1 if self.mode == "nearest" else min(lower + 2, self.place[1])

    def _position(self, row: int) -> tuple[int, bool]:
        """The row at or above which it lies, and whether exactly there."""
        _, size, _, outputs = self.place
        if self.mode == "nearest":
            count, by = row * size, outputs
        elif self.corners:
            count, by = row * (size - 1), max(outputs - 1, 1)
        else:
            count, by = max((2 * row + 1) * size - outputs, 0), 2 * outputs
        return min(count // by, size - 1), count % by == 0


#: Rows of windows, or of an image in another size.
AnyRead = RowsRead | ScaledRows


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a band of rows of one image lies.

    Args:
        image: its number.
        rows: over which the operation runs.
        above, below: rows of padding that its first input needs.
        full: (N, C, H, W) of its whole output.
    """

    image: int
    rows: Span
    above: int
    below: int
    full: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowRule:
    """How an operation is cut into bands of rows.

    Args:
        reads: for each input which of its rows a row reads; None: all of it, as of a weight.
        cut: the operation of a band.
        reduces: its outputs have no rows: each is a sum over all rows that the operation runs over,
            which are those of the last input that it reads.
        of_image: inputs, (N, C) or (N, C, 1, 1), of which a band reads what belongs to its image.
        adds_images: whether a sum over rows is also one over images.
    """

    reads: tuple[AnyRead | None, ...]
    cut: Callable[[Any, RowPlace], Op]
    reduces: bool = False
    of_image: tuple[int, ...] = ()
    adds_images: bool = True


SAME = RowsRead()
MakeRule = Callable[[Any, Sequence[Spec]], RowRule | None]


def row_rule_of(op: Op, ins: Sequence[Spec]) -> RowRule | None:
    """The row rule of an operation over inputs of these shapes; None where it has none, or where
    these are not (N, C, H, W), or (N, H, W) of losses.
    """
    if not ins or len(ins[0].shape) != (3 if isinstance(op, TotalLoss) else 4):
        return None
    for table in (ROW_RULES, NORM_RULES, LOSS_RULES):
        if type(op) in table:
            return table[type(op)](op, ins)
    return own_rule_of(op, ins)


def own_rule_of(op: Op, ins: Sequence[Spec]) -> RowRule | None:
    """The row rule of an operation that is not in a table, by its `window`."""
    windows = op.window() if isinstance(op, Op) else None
    if windows is None:
        return None
    if windows == (Window(), Window()):
        return RowRule((SAME,) * len(ins), _as_it_is)
    if not hasattr(op, "with_padding"):
        return None
    others = (None,) * (len(ins) - 1)
    return RowRule((RowsRead(windows[0]), *others), _with_own_padding)


# Operations over windows, and their gradients


def _conv2d(op: Conv2d, ins: Sequence[Spec]) -> RowRule:
    others = (None,) * (len(ins) - 1)
    return RowRule((RowsRead(op.window()[0]), *others), _with_geometry)


def _conv2d_grad_input(op: Conv2dGradInput, ins: Sequence[Spec]) -> RowRule:
    rows, _ = op.geometry.windows(*ins[1].shape[2:])
    return RowRule((RowsRead(rows, gathers=True), None), _with_geometry_and_size)


def _conv2d_grad_weight(op: Conv2dGradWeight, ins: Sequence[Spec]) -> RowRule:
    rows, _ = op.geometry.windows(*op.kernel)
    return RowRule((RowsRead(rows), SAME), _with_geometry, reduces=True)


def _conv_transpose2d(op: ConvTranspose2d, ins: Sequence[Spec]) -> RowRule:
    """As the gradient of a convolution in its input; its own gradients are a convolution's."""
    rows, _ = op.geometry.windows(*op.kernel)
    others = (None,) * (len(ins) - 1)
    return RowRule((RowsRead(rows, gathers=True), *others), _with_geometry_and_size)


def _pool(op: MaxPool2d | AvgPool2d, ins: Sequence[Spec]) -> RowRule:
    return RowRule((RowsRead(op.window()[0]),), _with_geometry)


def _max_pool2d_grad(op: MaxPool2dGrad, ins: Sequence[Spec]) -> RowRule:
    gathered = RowsRead(op.geometry.windows()[0], gathers=True)
    return RowRule((gathered, gathered), _with_geometry_and_size)


def _avg_pool2d_grad(op: AvgPool2dGrad, ins: Sequence[Spec]) -> RowRule | None:
    """None where a window counts its cells in the image: a band does not see all of them."""
    if not op.count_include_pad and any(op.geometry.padding):
        return None
    gathered = RowsRead(op.geometry.windows()[0], gathers=True)
    return RowRule((gathered,), _with_geometry_and_all_cells)


def _pad(op: Pad, ins: Sequence[Spec]) -> RowRule:
    window = Window(pad_lo=op.padding[0], pad_hi=op.padding[1])
    return RowRule((RowsRead(window),), _with_padding)


def _upsample(op: Upsample, ins: Sequence[Spec]) -> RowRule:
    """By a whole factor f and the nearest row: row o reads row o // f, as a gradient gathers."""
    rows, outputs = ins[0].shape[2], op.size[0]
    if _has_whole_factor(op, rows, outputs):
        window = Window(outputs // rows, outputs // rows)
        return RowRule((RowsRead(window, gathers=True),), _with_size)
    before, size, after, whole = op.place or (0, rows, 0, outputs)
    read = ScaledRows(op.mode, op.corners, (before, size, after, whole))

    def cut(op: Upsample, place: RowPlace) -> Op:
        first = before + read.first(place.rows.lo, rows)
        return replace(_with_size(op, place), place=(first, size, after + place.rows.lo, whole))

    return RowRule((read,), cut)


def _upsample_grad(op: UpsampleGrad, ins: Sequence[Spec]) -> RowRule:
    rows, outputs = op.size[0], ins[0].shape[2]
    if _has_whole_factor(op, rows, outputs):
        window = Window(outputs // rows, outputs // rows)
        return RowRule((RowsRead(window),), _with_size)
    before, size, after, whole = op.place or (0, rows, 0, outputs)
    read = ScaledRows(op.mode, op.corners, (before, size, after, whole), gathers=True)

    def cut(op: UpsampleGrad, place: RowPlace) -> Op:
        first = after + read.read(place.rows, outputs).inside.lo
        return replace(_with_size(op, place), place=(before + place.rows.lo, size, first, whole))

    return RowRule((read,), cut)


def _has_whole_factor(op: Upsample | UpsampleGrad, rows: int, outputs: int) -> bool:
    return op.mode == "nearest" and outputs % rows == 0 and not op.place


# Operations on the rows as they are


def _concat(op: Concat, ins: Sequence[Spec]) -> RowRule | None:
    """Along the channels."""
    return RowRule((SAME,) * len(ins), _as_it_is) if op.axis == 1 else None


def _slice(op: Slice, ins: Sequence[Spec]) -> RowRule | None:
    """The gradient of a padding, row r is row r + start; or of a concatenation, some channels."""
    if len(op.full) != 4 or op.full[0] != op.shape[0]:
        return None
    return RowRule((RowsRead(Window(pad_lo=-op.start[2])),), _of_rows)


def _dropout(op: Dropout, ins: Sequence[Spec]) -> RowRule:
    return RowRule((SAME,), _with_offset)


def _channel_sum(op: ChannelSum, ins: Sequence[Spec]) -> RowRule | None:
    """None where images are one pixel each: blocks of the sum then hold pixels of several."""
    n, _, h, w = ins[0].shape
    return RowRule((SAME,), _as_it_is, reduces=True) if n == 1 or h * w > 1 else None


ROW_RULES: Mapping[type[Op], MakeRule] = {
    Conv2d: _conv2d,
    Conv2dGradInput: _conv2d_grad_input,
    Conv2dGradWeight: _conv2d_grad_weight,
    ConvTranspose2d: _conv_transpose2d,
    ChannelSum: _channel_sum,
    MaxPool2d: _pool,
    MaxPool2dGrad: _max_pool2d_grad,
    AvgPool2d: _pool,
    AvgPool2dGrad: _avg_pool2d_grad,
    Pad: _pad,
    Slice: _slice,
    Concat: _concat,
    Dropout: _dropout,
    Upsample: _upsample,
    UpsampleGrad: _upsample_grad,
}


# Normalisation. Once mean and deviation are known, a batch or instance norm is pointwise, with
# vectors that all rows read, so recomputation in backward needs no barrier. Only the sums need all
# rows first: the statistics going forward, two sums going backward. Each of them is a barrier
# between bands (`carried_totals.py`), and all bands together give the bits of the untiled sum
# (`carried_sums.py`).


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


def _over_the_batch(op: BatchNormGradApply, place: RowPlace) -> Op:
    """The means of the two sums are over all pixels, not those of the band."""
    n, _, h, w = place.full
    return replace(op, over=op.over or n * h * w)


def _over_the_image(op: InstanceNormGradApply, place: RowPlace) -> Op:
    _, _, h, w = place.full
    return replace(op, over=op.over or h * w)


# Losses over images, and sums over all rows: means, global average pooling. A mean is a sum divided
# by the number of values in the whole image, so the operation of a band holds that number. The loss
# is a sum over bands, and its gradient has the untiled bits.


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
    """Of each pixel; a mean or sum is taken apart first (`tiling.py`)."""
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


# The operation of a band


def _as_it_is(op: Op, place: RowPlace) -> Op:
    return op


def _with_own_padding(op: Any, place: RowPlace) -> Op:
    """An operation of a user's own; `window` says how it pads columns."""
    columns = op.window()[1]
    return op.with_padding((place.above, place.below, columns.pad_lo, columns.pad_hi))


def _with_geometry(op: Any, place: RowPlace) -> Any:
    _, _, left, right = op.geometry.padding
    padding = place.above, place.below, left, right
    return replace(op, geometry=replace(op.geometry, padding=padding))


def _with_geometry_and_size(op: Any, place: RowPlace) -> Any:
    return replace(_with_geometry(op, place), size=(place.rows.extent, op.size[1]))


def _with_geometry_and_all_cells(op: AvgPool2dGrad, place: RowPlace) -> Op:
    return replace(_with_geometry_and_size(op, place), count_include_pad=True)


def _with_size(op: Any, place: RowPlace) -> Any:
    return replace(op, size=(place.rows.extent, op.size[1]))


def _with_padding(op: Pad, place: RowPlace) -> Op:
    return replace(op, padding=(place.above, place.below, *op.padding[2:]))


def _of_rows(op: Slice, place: RowPlace) -> Op:
    (_, c, _, w), (_, k, _, v), rows = op.full, op.shape, place.rows.extent
    return Slice((1, c, rows, w), (0, op.start[1], 0, op.start[3]), (1, k, rows, v))


def _with_offset(op: Dropout, place: RowPlace) -> Op:
    (n, c, h, w), (images, channels, height, width) = op.offset, place.full
    full = op.full or (images, channels, height, width)
    return replace(op, offset=(n + place.image, c, h + place.rows.lo, w), full=full)
