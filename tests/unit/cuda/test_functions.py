"""Functions, arithmetic, sums over axes, permutations, softmax and losses of values on a GPU, in
the emulator: some of each; all samples are in test_every_sample.py."""

from __future__ import annotations

import numpy as np
import pytest
from support.draws import labels, normal, positive
from support.quick import quick

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.function import ElementwiseGrad
from ooctrain.layers.losses import LabelLikelihood, LabelLikelihoodGrad, ValueLossGrad
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread, Sum
from ooctrain.layers.softmax import SoftmaxAlong, SoftmaxGrad
from ooctrain.testing.check_cuda import check_cuda

X = (2, 3, 7, 5)
CLASSES = labels(5, classes=4, ignored=(2,))
WEIGHTS = np.array([0.5, 2, 0, 1.25], np.float32)
#: one of each kernel that is written by hand, and one of each template
QUICK = [
    (ElementwiseGrad("gelu"), (normal(*X), normal(*X, seed=1))),
    (Arithmetic("multiply"), (normal(*X), normal(3, 1, 1))),
    (Sum((0, 1, 2, 3)), (normal(3, 4, 30, 20),)),  # four chunks
    (Sum((2, 3)), (normal(3, 40, 13, 9),)),  # two groups of lanes, three images
    (Sum((1,), 0.5), (normal(*X),)),
    (Permute((0, 1, 4, 2, 5, 3)), (normal(2, 3, 2, 2, 3, 5),)),
    (Spread(X, 0.25), (normal(2, 1, 7, 1),)),
    (SoftmaxAlong(1), (normal(5, 70) * 20,)),
    (SoftmaxGrad(2), (normal(*X), -positive(*X, seed=1))),
    (ValueLossGrad("binary_cross_entropy"), (normal(*X), normal(*X), normal(*X, seed=2))),
    (LabelLikelihood(), (normal(5, 4), CLASSES, WEIGHTS)),
    (LabelLikelihoodGrad((5, 4)), (CLASSES, WEIGHTS, normal(5))),
]


@pytest.mark.parametrize(
    ("op", "arrays"),
    quick(QUICK, *range(0, len(QUICK), 8), names=2),
    ids=lambda v: repr(v) if hasattr(v, "vjp") else "",
)
def test_the_laws_on_a_gpu(op, arrays):
    check_cuda(op, *arrays, tolerance=2e-5)
