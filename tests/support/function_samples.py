"""Samples of elementwise functions, arithmetic, sums, permutations, softmax and losses of values.

`SAMPLES` has the form of that in `op_samples.py`, whose second half this is. The sums are over
axes. Read next: `draws.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from support.draws import distinct, labels, normal, positive

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.extremes import MaxAlong, MaxAlongGrad
from ooctrain.layers.function import FUNCTIONS, Elementwise, ElementwiseGrad
from ooctrain.layers.layout import ConstantPad
from ooctrain.layers.losses import (
    VALUE_LOSSES,
    LabelLikelihood,
    LabelLikelihoodGrad,
    ValueLoss,
    ValueLossGrad,
)
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread, Sum
from ooctrain.layers.softmax import SoftmaxAlong, SoftmaxGrad
from ooctrain.step.op import Op

Samples = Iterator[tuple[Op, tuple[Any, ...]]]
X = (2, 3, 7, 5)
#: Operands that are repeated: each fits X.
REPEATED = ((3, 1, 1), (1, 3, 1, 1), (7, 5), (5,), (1,), (2, 1, 7, 1), (2, 3, 1, 1), ())


#: Functions of numbers above 0.
OF_POSITIVE = ("log", "sqrt", "length", "power")


def function_samples() -> Samples:
    """Each function, with values far beyond its kinks too."""
    wide = np.linspace(-12, 12, 101, dtype=np.float32)[None] + np.float32(0.013)
    for name in FUNCTIONS:
        for x in (normal(*X) * 2, wide):
            x = np.abs(x) + np.float32(0.01) if name in OF_POSITIVE else x
            yield Elementwise(name, 0.4), (x,)
            yield ElementwiseGrad(name, 0.4), (normal(*x.shape, seed=1), x)
    yield Elementwise("power", 3.0), (normal(*X),)
    yield ElementwiseGrad("power", 3.0), (normal(*X, seed=1), normal(*X))


def arithmetic_samples() -> Samples:
    """Equal shapes, and each operand repeated."""
    for function in ("add", "subtract", "multiply", "divide"):
        yield Arithmetic(function), (normal(*X), positive(*X, seed=1))
    for shape in REPEATED:
        yield Arithmetic("multiply"), (normal(*X), normal(*shape, seed=1))
        yield Arithmetic("divide"), (normal(*shape), positive(*X, seed=1))
    some = np.float32(normal(*X, seed=2) > 0)
    for function in ("maximum", "minimum", "keep", "drop"):
        yield Arithmetic(function), (normal(*X), some if len(function) == 4 else normal(*X, seed=1))
    yield Arithmetic("maximum"), (normal(*X), normal(3, 1, 1, seed=1))
    yield Arithmetic("minimum"), (normal(2, 1, 7, 1), normal(1, 3, 1, 5, seed=1))
    yield Arithmetic("keep"), (normal(*X), some[:1, :, :1])
    yield Arithmetic("drop"), (normal(7, 5), some)
    for function in ("greater", "greater_equal", "equal", "share"):
        yield Arithmetic(function), (np.round(normal(*X)), np.round(normal(*X, seed=1)))
        yield Arithmetic(function), (np.round(normal(*X)), np.round(normal(3, 1, 1, seed=1)))
    yield Arithmetic("subtract"), (normal(2, 1, 7, 1), normal(1, 3, 1, 5))
    yield Arithmetic("divide"), (normal(4, 1), positive(1, 6, seed=1))
    yield Arithmetic("add"), (normal(2, 3, 2, 1, 2, 3), normal(3, 1, 4, 1, 1))
    yield Arithmetic("multiply"), (normal(3, 5), normal(2, 3, 1, 5))


def axis_samples() -> Samples:
    """Sums over each group of axes that lie side by side, their gradients, permutations."""
    for axes in ((), (0,), (1,), (2,), (3,), (2, 3), (0, 2, 3), (1, 3), (1, 2, 3), (0, 1, 2, 3)):
        yield Sum(axes), (normal(*X),)
    yield Sum((0,), 0.25), (normal(4, 3),)
    yield Sum((1,), 0.25), (normal(70, 4),)
    yield Sum((0, 1, 2), -1.0), (normal(2, 3, 40),)
    for shape in ((2, 3, 1, 1), (1, 3, 1, 5), (1, 1, 1, 1), X):
        yield Spread(X, 0.25), (normal(*shape),)
    yield Spread((5, 4)), (normal(5, 1),)
    for axes in ((0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3)):
        yield Permute(axes), (normal(*X),)
    yield Permute((1, 0)), (normal(7, 33),)
    yield Permute((0, 1, 4, 2, 5, 3)), (normal(2, 3, 2, 2, 3, 5),)
    yield Permute((2, 0, 1)), (normal(4, 3, 5),)


def extreme_samples() -> Samples:
    """The largest over each group of axes, with ties, with a NaN, and of many."""
    for axes in ((), (1,), (2,), (3,), (2, 3), (1, 2, 3), (0, 1, 2, 3)):
        yield MaxAlong(axes), (distinct(*X),)
        yield MaxAlong(axes, "even"), (distinct(*X),)
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(X))
        places = np.random.default_rng(3).integers(0, math.prod(X) // math.prod(shape), shape)
        yield MaxAlongGrad(axes, X), (normal(*shape), places)
    yield MaxAlong((1,)), (distinct(4, 70),)
    yield MaxAlong((0,), "even"), (distinct(70, 4),)


def softmax_samples() -> Samples:
    """Along the last axis in memory, another one, and a long one."""
    for log in (False, True):
        for axis in (0, 1, 2, 3):
            yield SoftmaxAlong(axis, log), (normal(*X),)
        yield SoftmaxAlong(1, log), (normal(5, 70) * 20,)
        yield SoftmaxGrad(1, log), (normal(*X), -positive(*X, seed=1))
        yield SoftmaxGrad(2, log), (normal(*X), -positive(*X, seed=1))


def loss_samples() -> Samples:
    """Losses of values and of labels, element by element."""
    x, target = normal(*X) * 3, positive(*X, seed=1) / 4
    for name in VALUE_LOSSES:
        for parameter in (0.7,) if name == "smooth_l1" else (0.0,):
            yield ValueLoss(name, parameter), (x, target)
            for of_target in (False, True):
                op = ValueLossGrad(name, parameter, of_target)
                yield op, (x, target, normal(*X, seed=2))
    yield ValueLoss("smooth_l1", 0.0), (x, target)
    weights = np.array([0.5, 2, 0, 1.25], np.float32)
    for shape in ((5, 4), (2, 4, 3, 3)):
        chosen = labels(shape[0], *shape[2:], classes=4, ignored=(2,))
        yield LabelLikelihood(), (normal(*shape), chosen, weights)
        yield LabelLikelihoodGrad(shape), (chosen, weights, normal(*chosen.shape))


def pad_samples() -> Samples:
    """A border of a value."""
    yield ConstantPad((1, 0, 2, 3), -1.5), (normal(*X),)


SAMPLES = [
    *function_samples(), *arithmetic_samples(), *axis_samples(), *extreme_samples(),
    *softmax_samples(),
    *loss_samples(), *pad_samples(),
]  # fmt: skip
