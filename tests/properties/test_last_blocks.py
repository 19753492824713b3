"""Law: the last elements of a kernel count like all others, wherever its blocks end.

A kernel takes elements by vectors, vectors by blocks, blocks by chunks, and the last one of each
may be cut short: there a sum forgets its tail. Random values do not tell, since what a few elements
add to a sum of thousands is below any tolerance. So sizes lie around the borders of the kernels'
own vectors, blocks and chunks, and what is summed is *loud*: zero, but for whole numbers on both
sides of the last border of each kind. Then every element left out is a large share of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.op_samples import normal, positive

from ooctrain.layers.batch_norm import (
    BatchNormApply,
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
)
from ooctrain.layers.combine import Add, AddMasked, Scale
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.function import Sigmoid, Tanh
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradReduce,
    InstanceNormStats,
)
from ooctrain.layers.kernels.cpu.chunks import (
    ALIGN_ELEMENTS,
    INLINE_ELEMENTS,
    MOST_PARTIALS,
    SMALL_ELEMENTS,
    row_chunk,
)
from ooctrain.layers.kernels.cpu.simd.simd import VL
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ELEMENTS, BLOCK_ROWS
from ooctrain.layers.linear import Linear, LinearGradWeight
from ooctrain.layers.losses import (
    ErrorEach,
    LabelWeight,
    MeanError,
    MeanErrorGrad,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    WeightedCrossEntropy,
)
from ooctrain.layers.pooling import AdaptiveAvgPool2d
from ooctrain.layers.reduction import ChannelSum
from ooctrain.layers.relu import LeakyReLU, ReLU, ReLUGrad
from ooctrain.layers.update import AdamUpdate, ClipValue, ScaleBy, SGDUpdate, SumOfSquares
from ooctrain.step.op import Op
from ooctrain.testing.check_op import as_input, check_kernel

Inputs = tuple[Any, ...]
BLOCKS = (VL, 4 * VL, BLOCK_ROWS, ALIGN_ELEMENTS, BLOCK_ELEMENTS, INLINE_ELEMENTS, SMALL_ELEMENTS)
#: Numbers of elements: around each border, in a later block, in a later chunk, in the last of them.
SIZES = (
    *(size + beyond for size in BLOCKS for beyond in (-1, 1)),
    2 * BLOCK_ELEMENTS + VL + 1, INLINE_ELEMENTS + VL + 1, SMALL_ELEMENTS + BLOCK_ELEMENTS + 3,
    MOST_PARTIALS * SMALL_ELEMENTS + 5,
)  # fmt: skip
CHANNELS = (1, VL + 1, 4 * VL + 3)


def rows_of(channels: int) -> tuple[int, ...]:
    """Numbers of rows of so many channels: around the borders of blocks and of chunks."""
    chunk = row_chunk(2, channels)
    return 2, BLOCK_ROWS - 1, 2 * BLOCK_ROWS + 1, chunk - 1, chunk + 1, chunk + BLOCK_ROWS + 2


def borders(extent: int, *blocks: int) -> list[int]:
    """The first element, the last, and those on both sides of the last border of each block."""
    last = {(extent - 1) // block * block for block in (*BLOCKS, *blocks)}
    places = {0, extent - 1, *last, *(max(0, place - 1) for place in last)}
    return sorted(places)


def loud(*shape: int, axis: int = 0, chunk: int = 1) -> np.ndarray:
    """Zeros, but 1, 2, 3, ... at the borders along an axis; sums of their squares are exact."""
    x = np.zeros(shape, np.float32)
    along = np.moveaxis(x, axis, 0)
    for number, place in enumerate(borders(shape[axis], chunk)):
        along[place] = number % 7 + 1
    return x


def elementwise(size: int) -> Iterator[tuple[Op, Inputs]]:
    """Each result depends on its own element alone, so that any values tell."""
    a, b, c = (normal(size, seed=s) for s in range(3))
    for one in (ReLU(), LeakyReLU(0.2), Tanh(), Sigmoid(), Scale(-1.5), ClipValue(0.5)):
        yield one, (a,)
    yield Dropout(0.4, 2), (a[:, None],)
    yield ScaleBy(), (a, np.float32(0.25))
    for two in (ReLUGrad(), Add(), Add(relu=True), ErrorEach(False), ErrorEach(True)):
        yield two, (a, b)
    yield AddMasked(), (a, b, c)
    yield MeanErrorGrad(False), (a, b, np.float32(0.7))
    yield SGDUpdate(0.9, 0.0, 1e-2, True), (a, b, c)
    yield AdamUpdate(weight_decay=1e-2), (a, b, c, np.abs(c))


def sums(size: int) -> Iterator[tuple[Op, Inputs]]:
    """One number of all elements, or of all rows."""
    x = loud(size)
    yield SumOfSquares(), (x,)
    for absolute in (False, True):
        yield MeanError(absolute, "sum"), (x, np.zeros_like(x))
        yield MeanError(absolute), (np.zeros_like(x), x)
    # A row whose label has by far the largest logit adds nothing.
    labels = np.arange(size) % 3
    logits = np.where(labels[:, None] == np.arange(3), 60, 0) * (x == 0)[:, None]
    own = np.array([0.5, 2, 1.25], np.float32)
    yield SoftmaxCrossEntropy(reduction="sum"), (logits * 1.0, labels)
    yield WeightedCrossEntropy(-100, 0.0, "sum"), (logits * 1.0, labels, own)
    yield LabelWeight(), (np.where(x > 0, labels, -100),)
    lse = np.log(np.exp(logits - 60.0).sum(1)) + 60
    yield SoftmaxCrossEntropyGrad(), (logits * 1.0, labels, lse, np.float32(size))


def over_rows(rows: int, channels: int) -> Iterator[tuple[Op, Inputs]]:
    """A number for each channel, of all its rows; and what is done with it to each row."""
    chunk = row_chunk(rows, channels)
    x, y = loud(rows, channels, chunk=chunk), normal(rows, channels)
    stats, gamma = (normal(channels, seed=3), positive(channels, seed=4)), normal(channels, seed=5)
    yield ChannelSum(), (x,)
    yield BatchNormStats(1e-5), (x,)
    yield BatchNormGradReduce(), (x, y, *stats)
    yield BatchNormGradReduce(True), (x, y, *stats, np.abs(y))
    yield BatchNormApply(relu=True), (y, *stats, gamma, gamma)
    yield BatchNormGradApply(), (x, y, *stats, gamma, gamma, gamma)
    yield LinearGradWeight(), (x, normal(rows, 3, seed=6))
    image = np.ascontiguousarray(x.T)[None, :, :, None]
    of_image = tuple(vector[None] for vector in stats)
    yield InstanceNormStats(1e-5), (image,)
    yield InstanceNormGradReduce(), (image, np.abs(image), *of_image)
    yield InstanceNormApply(False), (image, *of_image)
    yield AdaptiveAvgPool2d((1, 1)), (image,)
    yield Linear(), (loud(2, rows, axis=1), normal(3, rows))


def hold(cases: Iterator[tuple[Op, Inputs]]) -> None:
    """Each kernel gives what its definition does, on the outermost elements too."""
    for op, inputs in cases:
        check_kernel(op, [as_input(value) for value in inputs], tolerance=1e-5)


@pytest.mark.parametrize("size", SIZES[:-1])
@pytest.mark.parametrize("cases", [elementwise, sums])
def test_no_element_is_left_out(cases: Callable, size: int) -> None:
    hold(cases(size))


def test_no_chunk_of_many_is_left_out() -> None:
    hold(sums(SIZES[-1]))


@pytest.mark.parametrize("channels", CHANNELS)
def test_no_row_is_left_out(channels: int) -> None:
    for rows in rows_of(channels):
        hold(over_rows(rows, channels))
