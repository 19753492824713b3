"""Every operation with inputs to try it on, of odd shapes on purpose.

`SAMPLES` has pairs of an operation and its logical inputs. It is one table for all checks of
operations, on any device, so that a new operation is written down once; a test checks that none is
missing. Values keep away from kinks, so that finite differences exist too. Read next:
`ooctrain/testing/check_op.py`, `ooctrain/testing/check_cuda.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from support.draws import distinct, labels, normal, positive
from support.function_samples import SAMPLES as FUNCTIONS

from ooctrain.layers.arithmetic import BytesToFloat
from ooctrain.layers.batch_norm import (
    BatchNormApply,
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
    BatchNormUpdate,
    InverseStd,
)
from ooctrain.layers.combine import Add, AddMasked, Concat, Constant, Scale
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight, Geometry
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.function import Sigmoid, SigmoidGrad, Tanh, TanhGrad
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
    InstanceNormStats,
)
from ooctrain.layers.layout import Pad, Reshape
from ooctrain.layers.linear import Linear, LinearGradInput, LinearGradWeight, MatMul
from ooctrain.layers.losses import (
    ClassWeights,
    ErrorEach,
    ErrorEachGrad,
    LabelWeight,
    MeanError,
    MeanErrorGrad,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    TotalLoss,
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
    PoolGeometry,
)
from ooctrain.layers.reduction import ChannelSum
from ooctrain.layers.regions import (
    Clear,
    Embed,
    Insert,
    InsertAdd,
    Slice,
    StridedEmbed,
    StridedSlice,
)
from ooctrain.layers.relu import LeakyReLU, LeakyReLUGrad, ReLU, ReLUGrad
from ooctrain.layers.resampling import ReflectionPad2d, ReflectionPad2dGrad, Upsample, UpsampleGrad
from ooctrain.layers.update import (
    AdamUpdate,
    ClipFactor,
    ClipValue,
    RMSpropUpdate,
    ScaleBy,
    SGDUpdate,
    SumOfSquares,
)
from ooctrain.step.op import Op

Samples = Iterator[tuple[Op, tuple[Any, ...]]]


X = (2, 3, 7, 5)
POOL = PoolGeometry((3, 2), (2, 1), (1, 0, 1, 1))
SPREAD = PoolGeometry((3, 2), (2, 1), (1, 0, 1, 2), (2, 3))
TILED = Geometry((2, 1), (1, 0, 2, 1), (1, 2), 1)
GROUPED = Geometry((1, 2), (0, 1, 1, 1), (1, 1), 3)
PLAIN = Geometry((1, 1), (1, 1, 1, 1))


def conv_samples() -> Samples:
    """Convolutions by every algorithm of the cpu device that takes dilation and groups."""
    for algorithm in ("winograd2", "winograd4"):
        x, w, dy = normal(2, 16, 9, 8), normal(32, 16, 3, 3) / 12, normal(2, 32, 9, 8, seed=1)
        yield Conv2d(PLAIN, (3, 3), algorithm), (x, w, normal(32))
        yield Conv2dGradInput(PLAIN, (9, 8), algorithm), (dy, w)
        yield Conv2dGradWeight(PLAIN, (3, 3), algorithm), (x, dy)
    for algorithm in ("direct", "im2col"):
        yield Conv2d(TILED, (3, 2), algorithm), (normal(*X), normal(4, 3, 3, 2), normal(4))
        yield Conv2d(GROUPED, (2, 3), algorithm), (normal(*X), normal(6, 1, 2, 3))
        yield Conv2dGradInput(TILED, (7, 5), algorithm), (normal(2, 4, 3, 6), normal(4, 3, 3, 2))
        yield Conv2dGradInput(GROUPED, (7, 5), algorithm), (normal(2, 6, 7, 3), normal(6, 1, 2, 3))
        yield Conv2dGradWeight(TILED, (3, 2), algorithm), (normal(*X), normal(2, 4, 3, 6))
        yield Conv2dGradWeight(GROUPED, (2, 3), algorithm), (normal(*X), normal(2, 6, 7, 3))


def depthwise_samples() -> Samples:
    """Convolutions with a group for each channel."""
    alone, plain = Geometry((2, 1), (1, 0, 2, 3), (1, 2), 3), Geometry((1, 1), (1,) * 4, (1, 1), 6)
    yield Conv2d(alone, (3, 2), "depthwise"), (normal(*X), normal(3, 1, 3, 2), normal(3))
    yield Conv2dGradInput(alone, (7, 5), "depthwise"), (normal(2, 3, 3, 8), normal(3, 1, 3, 2))
    yield Conv2dGradWeight(alone, (3, 2), "depthwise"), (normal(*X), normal(2, 3, 3, 8))
    x, w = normal(1, 6, 3, 4), normal(6, 1, 3, 3)
    yield Conv2d(plain, (3, 3), "depthwise"), (x, w)
    yield Conv2dGradInput(plain, (3, 4), "depthwise"), (x, w)
    yield Conv2dGradWeight(plain, (3, 3), "depthwise"), (x, normal(1, 6, 3, 4, seed=1))


def conv_transpose_samples() -> Samples:
    """Transposed convolutions."""
    x, uneven, grouped = normal(2, 4, 3, 5), Geometry((2, 3), (1, 0, 2, 1)), normal(2, 6, 4, 3)
    for algorithm in ("direct", "im2col"):
        up = ConvTranspose2d(Geometry((2, 2), (1, 1, 1, 1)), (4, 4), (6, 10), algorithm)
        yield up, (x, normal(4, 3, 4, 4), normal(3))
        yield ConvTranspose2d(uneven, (3, 2), (6, 12), algorithm), (x, normal(4, 3, 3, 2))
        apart = Geometry((1, 1), (0, 0, 0, 0), (2, 1), 3)
        yield ConvTranspose2d(apart, (2, 3), (6, 5), algorithm), (grouped, normal(6, 2, 2, 3))
    wide = ConvTranspose2d(PLAIN, (3, 3), (9, 8), "winograd2")
    yield wide, (normal(2, 32, 9, 8), normal(32, 16, 3, 3) / 12, normal(16))


def instance_norm_samples() -> Samples:
    """Instance norm and its gradient."""
    x, dy, y = (normal(3, 5, 3, 4, seed=s) for s in range(3))
    stats, c = (normal(3, 5, seed=3), positive(3, 5, seed=4)), (normal(5), normal(5, seed=1))
    sums = normal(3, 5, seed=5), normal(3, 5, seed=6)
    yield InstanceNormStats(1e-5), (x,)
    yield InstanceNormStats(1e-2), (normal(1, 17, 1, 9),)
    # Alone, an apply is not differentiated through its statistics: see the composition below.
    for affine in (False, True):
        vectors = c * affine
        yield InstanceNormApply(affine), (x, *stats, *vectors)
        yield InstanceNormApply(affine, relu=True), (x, *stats, *vectors)
        yield InstanceNormApply(affine, True, True), (x, *stats, *vectors, y)
        yield InstanceNormGradApply(affine), (dy, x, *stats, *vectors[:1], *sums)
        yield InstanceNormGradApply(affine, True), (dy, x, *stats, *vectors[:1], *sums, y)
    yield InstanceNormGradReduce(), (dy, x, *stats)
    yield InstanceNormGradReduce(True), (dy, x, *stats, y)


def resize_samples() -> Samples:
    """Reflection and upsampling."""
    for sides in ((1, 2, 3, 4), (0, 0, 1, 0), (6, 6, 4, 4)):
        yield ReflectionPad2d(sides), (normal(*X),)
        top, bottom, left, right = sides
        yield ReflectionPad2dGrad(sides), (normal(2, 3, 7 + top + bottom, 5 + left + right),)
    yield ReflectionPad2d((1, 1, 1, 1)), (normal(1, 40, 2, 3),)
    for size in ((14, 10), (7, 5), (3, 13), (1, 1), (20, 2)):
        yield Upsample(size), (normal(*X),)
        yield UpsampleGrad((7, 5)), (normal(2, 3, *size),)
        for corners in (False, True):
            yield Upsample(size, "bilinear", corners), (normal(*X),)
            yield UpsampleGrad((7, 5), "bilinear", corners), (normal(2, 3, *size),)
    for mode in ("nearest", "bilinear"):  # rows 2 to 6 of 9, for rows 5 to 11 of 19
        yield Upsample((7, 8), mode, False, (2, 9, 5, 19)), (normal(2, 3, 5, 4),)
        yield UpsampleGrad((2, 4), mode, False, (3, 9, 5, 19)), (normal(2, 3, 6, 8),)
    yield Upsample((8, 4), "bilinear"), (normal(1, 19, 1, 1),)
    yield Upsample((8, 4), "bilinear", True), (normal(1, 19, 1, 1),)


def batch_norm_samples() -> Samples:
    """Batch norm, fused and not, and its gradient."""
    x, c = normal(4, 3, 3, 5), 3
    stats = (normal(c), positive(c, seed=1))
    affine = (normal(c, seed=2), normal(c, seed=3))
    yield BatchNormStats(1e-5), (x,)
    yield BatchNormStats(1e-3), (normal(7, 3),)
    yield InverseStd(1e-5), (positive(c),)
    yield BatchNormApply(batch_stats=False), (x, *stats, *affine)
    yield BatchNormApply(batch_stats=False, relu=True), (normal(7, 3), *stats, *affine)
    fused = BatchNormApply(batch_stats=False, relu=True, residual=True)
    yield fused, (x, *stats, *affine, normal(4, 3, 3, 5, seed=4))
    for mask in (False, True):
        y = (np.maximum(normal(4, 3, 3, 5, seed=5), 0),) * mask
        dy = normal(4, 3, 3, 5, seed=6)
        yield BatchNormGradReduce(mask), (dy, x, *stats, *y)
        yield BatchNormGradApply(False, mask), (dy, x, *stats, normal(c), *y)
        sums = (normal(c, seed=7), normal(c, seed=8))
        yield BatchNormGradApply(True, mask), (dy, x, *stats, normal(c), *sums, *y)
    running = (normal(c, seed=9), positive(c, seed=9), np.array(4))
    yield BatchNormUpdate(0.1, 60), (normal(c), positive(c), *running)
    yield BatchNormUpdate(None, 60), (normal(c), positive(c), *running)
    yield BatchNormUpdate(0.3, 60, counted=False), (normal(c), positive(c), *running[:2])


def pool_samples() -> Samples:
    """Pools and their gradients."""
    yield MaxPool2d(POOL), (distinct(*X),)
    yield MaxPool2d(PoolGeometry((2, 2), (2, 2))), (distinct(1, 17, 4, 6),)
    yield MaxPool2d(SPREAD), (distinct(2, 17, 9, 7),)
    where = np.random.default_rng(8).integers(0, 6, (2, 17, 3, 7), np.uint8)
    yield MaxPool2dGrad(SPREAD, (9, 7)), (normal(2, 17, 3, 7), where)
    index = np.random.default_rng(0).integers(0, 6, (2, 3, 3, 6)).astype(np.uint8)
    yield (
        MaxPool2dGrad(PoolGeometry((3, 2), (3, 1), (1, 1, 1, 1)), (7, 5)),
        (normal(2, 3, 3, 6), index),
    )
    for counted in (True, False):
        yield AvgPool2d(POOL, counted), (normal(*X),)
        yield AvgPool2dGrad(POOL, (7, 5), counted), (normal(2, 3, 3, 6),)
    yield AdaptiveAvgPool2d((3, 2)), (normal(*X),)
    yield AdaptiveAvgPool2d((1, 1)), (normal(*X),)
    yield AdaptiveAvgPool2d((9, 7)), (normal(*X),)
    yield AdaptiveAvgPool2dGrad((7, 5)), (normal(2, 3, 3, 2),)


def layout_samples() -> Samples:
    """What moves values and computes none."""
    yield Pad((1, 0, 2, 3)), (normal(*X),)
    yield Slice(X, (1, 0, 2, 1), (1, 3, 4, 3)), (normal(*X),)
    yield Slice((6, 5), (1, 2), (3, 3)), (normal(6, 5),)
    yield Slice((6,), (2,), (3,)), (np.arange(6),)
    yield Embed(X, (1, 0, 2, 1)), (normal(1, 3, 4, 3),)
    yield Insert((0, 1, 2, 1)), (normal(*X), normal(2, 2, 4, 3))
    yield Insert((1, 0)), (normal(6, 5), normal(2, 5))
    yield InsertAdd((0, 1, 2, 1)), (normal(*X), normal(2, 2, 4, 3))
    yield InsertAdd((1, 0)), (normal(6, 5), normal(2, 5))
    yield InsertAdd((2,)), (normal(6), normal(3))
    yield InsertAdd((1, 2, 0)), (normal(3, 4, 5), normal(2, 2, 3))
    yield Clear((0, 1, 2, 1), (2, 2, 4, 3)), (normal(*X),)
    for start, steps, shape in (
        ((0, 0, 0, 1), (1, 1, 2, 2), (2, 3, 4, 2)), ((1, 2, 6, 4), (-1, -1, -2, -1), (2, 3, 3, 5)),
        ((0, 1, 0, 0), (1, 1, 3, 1), (2, 2, 3, 5)), ((0, 0, 6, 0), (1, 1, -1, 1), (2, 3, 7, 5)),
    ):  # fmt: skip
        yield StridedSlice(X, start, steps, shape), (normal(*X),)
        yield StridedEmbed(X, start, steps), (normal(*shape),)
    yield StridedSlice((6, 9), (1, 8), (2, -3), (3, 3)), (normal(6, 9),)
    yield StridedEmbed((6, 9), (1, 8), (2, -3)), (normal(3, 3),)
    yield (
        StridedSlice((2, 8, 5, 4), (0, 4, 1, 0), (1, 1, 2, 2), (2, 4, 2, 2)),
        (normal(2, 8, 5, 4),),
    )
    yield Reshape(X, (2, 105)), (normal(*X),)
    yield Reshape((2, 105), X), (normal(2, 105),)
    yield Reshape((3, 7, 1, 1), (3, 7)), (normal(3, 7, 1, 1),)
    yield Reshape(X, (2, 5, 7, 3)), (normal(*X),)


def loss_samples() -> Samples:
    """Losses and their gradients."""
    logits, pixels = normal(5, 4), normal(2, 4, 3, 3)
    yield SoftmaxCrossEntropy(), (logits, labels(5, classes=4))
    yield SoftmaxCrossEntropy(), (pixels, labels(2, 3, 3, classes=4, ignored=(1, 4, 17)))
    yield SoftmaxCrossEntropy(), (logits * 100, labels(5, classes=4, ignored=(0,)))
    scale = np.float32(0.7)
    lse = np.log(np.exp(logits).sum(1))
    yield SoftmaxCrossEntropyGrad(), (logits, labels(5, classes=4, ignored=(2,)), lse, scale)
    yield SoftmaxCrossEntropy(reduction="sum"), (logits, labels(5, classes=4, ignored=(1,)))
    total = SoftmaxCrossEntropyGrad(reduction="sum")
    yield total, (logits, labels(5, classes=4), lse, scale)
    yield ClassWeights((0.25, 2.0, 0.0)), ()
    yield LabelWeight(parts=2), (labels(2, 3, 3, classes=4, ignored=(1, 4)),)
    yield LabelWeight(parts=3), (labels(7, classes=3, ignored=(2,)), normal(3) ** 2)
    some, each = labels(2, 3, 3, classes=3, ignored=(1, 4)), normal(2, 3, 3) ** 2
    yield TotalLoss(), (each, some)
    yield TotalLoss(), (each, some, np.array([0.25, 2.0, 0.5], np.float32))
    yield TotalLoss(counts=False), (each,)
    yield TotalLoss(counts=False), (each, np.float32(7.5))
    yield SoftmaxCrossEntropy(), (logits, labels(5, classes=4, ignored=(0,)), np.float32(7.5))
    yield SoftmaxCrossEntropyGrad(), (logits, labels(5, classes=4), lse, scale, np.float32(7.5))
    for reduction in ("mean", "sum", "none"):
        marks, few = labels(2, 3, 3, classes=4, ignored=(1, 4)), labels(5, classes=4, ignored=(2,))
        own = np.array([0.5, 2, 0, 1.25], np.float32)
        yield WeightedCrossEntropy(-100, 0.0, reduction), (logits, few, own)
        yield WeightedCrossEntropy(-100, 0.3, reduction), (pixels, marks, own)
        dloss = normal(5) if reduction == "none" else scale
        grad = WeightedCrossEntropyGrad(-100, 0.3, reduction)
        yield grad, (logits, few, own, lse, dloss)
        if reduction == "mean":
            yield WeightedCrossEntropy(-100, 0.3), (logits, few, own, np.float32(2.5))
            yield grad, (logits, few, own, lse, dloss, np.float32(2.5))
    for absolute in (False, True):
        yield MeanError(absolute), (normal(*X), normal(*X, seed=1))
        yield MeanErrorGrad(absolute), (normal(*X), normal(*X, seed=1), scale)
        yield MeanError(absolute, "sum"), (normal(*X), normal(*X, seed=1))
        yield MeanErrorGrad(absolute, "sum"), (normal(*X), normal(*X, seed=1), scale)
        yield ErrorEach(absolute), (normal(*X), normal(*X, seed=1))
        yield ErrorEachGrad(absolute), (normal(*X), normal(*X, seed=1), normal(*X, seed=2))


def update_samples() -> Samples:
    """Optimizers and clipping."""
    w, g, m, v = (normal(5, 3, seed=s) for s in range(4))
    yield SGDUpdate(), (w, g)
    yield SGDUpdate(0.9, 0.0, 1e-2, True), (w, g, m)
    yield SGDUpdate(0.9, 0.3, 1e-2), (w, g, m)
    yield AdamUpdate(weight_decay=1e-2), (w, g, m, np.abs(v))
    yield AdamUpdate(0.8, 0.99, 1e-6, 1e-2, True), (w, g, m, np.abs(v))
    spread = np.abs(v) + g * g + m * m  # well beyond the mean's square
    yield RMSpropUpdate(), (w, g, np.abs(v))
    yield RMSpropUpdate(0.9, 1e-6, 1e-2, 0.8), (w, g, np.abs(v), m)
    yield RMSpropUpdate(centered=True), (w, g, spread, m)
    yield RMSpropUpdate(0.9, 1e-6, 1e-2, 0.8, True), (w, g, spread, m, v)
    yield SumOfSquares(), (g,)
    yield ClipFactor(1.0), (np.float32(3.0), np.float32(5.0))
    yield ScaleBy(), (g, np.float32(0.25))
    yield ClipValue(0.5), (g,)


def plain_samples() -> Samples:
    """Element by element, concatenation, dropout, linear layers, sums."""
    a, b, y = (normal(*X, seed=s) for s in range(3))
    for op in (ReLU(), LeakyReLU(0.2), Tanh(), Sigmoid(), Scale(-1.5)):
        yield op, (a,)
        yield op, (normal(3, 4),)
    for two in (ReLUGrad(), LeakyReLUGrad(0.2), TanhGrad(), SigmoidGrad(), Add(), Add(relu=True)):
        yield two, (a, b)
    yield AddMasked(), (a, b, y)
    yield BytesToFloat(127.5, 60.0), (np.arange(210, dtype=np.uint8).reshape(X),)
    each = tuple(40.0 * c + 0.3 for c in range(X[1])), tuple(c + 1.1 for c in range(X[1]))
    yield BytesToFloat(*each), (np.arange(210, dtype=np.uint8).reshape(X),)
    yield Constant(2.5, (3, 2)), ()
    yield Concat(1), (a, normal(2, 1, 7, 5), b)
    yield Concat(0), (normal(2, 5), normal(3, 5))
    yield Dropout(0.4, 2), (a,)
    yield Dropout(0.4, 2), (normal(3, 4),)
    yield Dropout(0.5, 1, (1, 0, 2, 1), (4, 3, 9, 8)), (a,)
    yield Linear(), (normal(3, 5), normal(4, 5), normal(4))
    yield Linear(), (normal(1, 5), normal(17, 5))
    yield LinearGradInput(), (normal(3, 4), normal(4, 5))
    yield LinearGradWeight(), (normal(3, 5), normal(3, 4))
    for form, shapes in (
        ("nn", ((3, 5), (5, 4))), ("nt", ((3, 5), (4, 5))), ("tn", ((5, 3), (5, 4))),
    ):  # fmt: skip
        yield MatMul(form), tuple(normal(*shape, seed=n) for n, shape in enumerate(shapes))
        yield MatMul(form), tuple(normal(2, *shape, seed=n) for n, shape in enumerate(shapes))
    yield MatMul("nt"), (normal(3, 8, 20), normal(3, 12, 20, seed=1))
    yield ChannelSum(), (normal(3, 5),)
    yield ChannelSum(), (a,)


SAMPLES = [
    *plain_samples(), *conv_samples(), *batch_norm_samples(), *pool_samples(), *layout_samples(),
    *loss_samples(), *update_samples(), *conv_transpose_samples(), *instance_norm_samples(),
    *resize_samples(), *depthwise_samples(), *FUNCTIONS,
]  # fmt: skip
