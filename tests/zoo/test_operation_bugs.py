"""The laws of operations bite: each planted bug leaves plain uses right and breaks a law.

The laws are `check_op` on a few samples, and what NumPy gives for composed functions.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.draws import labels, normal, positive
from zoo.operation_bugs import BUGS

import ooctrain as oc
from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.function import Elementwise
from ooctrain.layers.linear import MatMul
from ooctrain.layers.losses import LabelLikelihood, ValueLoss
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread, Sum
from ooctrain.layers.regions import StridedSlice
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.testing.check_op import check_op

KILLED = AssertionError, oc.OoctrainError, pytest.fail.Exception


def plain_uses() -> None:
    """What one tries first: equal shapes, whole sums, one image, labels that all count."""
    x, y = normal(3, 4), normal(3, 4, seed=1)
    a, b = oc.tensor(x, requires_grad=True), oc.tensor(y)
    total = ((a * b - a) / b).sum()
    total.backward()
    assert np.allclose(total.numpy(), ((x * y - x) / y).sum(), rtol=1e-4)
    assert np.allclose(a.grad.numpy(), (y - 1) / y, rtol=1e-4, atol=1e-5)
    logs = oc.functional.log_softmax(a, 1)
    loss = oc.functional.nll_loss(logs, oc.tensor(labels(3, classes=4)))
    wanted = oc.functional.cross_entropy(a, oc.tensor(labels(3, classes=4)))
    assert np.allclose(loss.numpy(), wanted.numpy(), rtol=1e-5)


def law_of_arithmetic() -> None:
    """Operands that are repeated along the first axes, the last ones, or where they have 1."""
    for shape in ((3, 1, 1), (7, 5), (2, 1, 7, 1)):
        for name in ("multiply", "divide", "subtract"):
            check_op(Arithmetic(name), normal(2, 3, 7, 5), positive(*shape))


def law_of_axes() -> None:
    """Means of few rows, their gradients, cycles of axes."""
    check_op(Sum((2, 3), 0.25), normal(2, 3, 4, 5))
    check_op(Spread((2, 3, 4, 5), 0.25), normal(2, 3, 1, 1))
    check_op(Permute((0, 2, 3, 1)), normal(2, 3, 4, 5))
    check_op(StridedSlice((6, 5), (1, 0), (2, 1), (3, 5)), normal(6, 5))


def law_of_choices() -> None:
    """The smaller of two, what is dropped, and several that are the largest."""
    check_op(Arithmetic("minimum"), normal(3, 4), normal(3, 4, seed=1))
    check_op(Arithmetic("drop"), normal(3, 4), np.float32(normal(4, seed=1) > 0))
    x = oc.tensor(np.float32([[1, 3, 3, 2]]), requires_grad=True)
    x.amax(1).sum().backward()
    assert x.grad.tolist() == [[0, 0.5, 0.5, 0]]


def law_of_matrices() -> None:
    """Products of square matrices, one of them turned."""
    for form in ("nn", "nt", "tn"):
        check_op(MatMul(form), normal(2, 3, 3), normal(2, 3, 3, seed=1))


def law_of_losses() -> None:
    """Logarithms of probabilities, targets, ignored labels."""
    check_op(SoftmaxAlong(1, log=True), normal(5, 4))
    check_op(ValueLoss("binary_cross_entropy"), normal(5, 4), positive(5, 4))
    chosen, weights = labels(5, classes=4, ignored=(2,)), positive(4)
    check_op(LabelLikelihood(), normal(5, 4), chosen, weights)


def law_of_compositions() -> None:
    """Values that NumPy gives, and a gradient."""
    check_op(Elementwise("gelu"), normal(3, 4))
    x, slopes = normal(2, 5, 3, 5), normal(5)
    y = oc.functional.prelu(oc.tensor(x), oc.tensor(slopes)).numpy()
    assert np.allclose(y, np.where(x > 0, x, x * slopes[:, None, None]))
    y = oc.nn.GroupNorm(2, 4)(oc.tensor(normal(3, 4, 2, 2))).numpy().reshape(6, -1)
    assert np.allclose(y.mean(1), 0, atol=1e-5)


LAWS = {
    "arithmetic": law_of_arithmetic, "axes": law_of_axes, "losses": law_of_losses,
    "choices": law_of_choices, "matrices": law_of_matrices,
    "composed": law_of_compositions,
}  # fmt: skip


def test_plain_uses_hold_without_bugs():
    assert plain_uses() is None


@pytest.mark.parametrize("law", LAWS)
def test_laws_hold_without_bugs(law):
    assert LAWS[law]() is None


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_passes_plain_uses_and_breaks_its_law(name, monkeypatch):
    law, plant = BUGS[name]
    plant(monkeypatch)
    plain_uses()
    with pytest.raises(KILLED):
        LAWS[law]()
