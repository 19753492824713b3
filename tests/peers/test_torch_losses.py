"""Options of losses and poolings beside torch: the same values, the same gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F

torch = pytest.importorskip("torch")
theirs = torch.nn.functional
pytestmark = pytest.mark.peers

REDUCTIONS = ("mean", "sum", "none")
WEIGHT = np.array([0.5, 2.0, 0.0, 1.25, 1.0], np.float32)
ROUNDING = 2e-5


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def both(ours, their, x, seed=9):
    """(value, gradient) of each, along the same random cotangent."""
    a, b = oc.tensor(x, requires_grad=True), torch.from_numpy(x).requires_grad_()
    y, t = ours(a), their(b)
    assert tuple(y.shape) == tuple(t.shape)
    cotangent = normal(*t.shape, seed=seed)
    y.backward(oc.tensor(cotangent))
    t.backward(torch.from_numpy(cotangent))
    return (y.numpy(), a.grad.numpy()), (t.detach().numpy(), b.grad.numpy())


def distance(ours, their, x):
    """The largest difference of values or of gradients, relative where they are beyond one."""
    pairs = zip(*both(ours, their, x), strict=True)
    return np.max([np.max(abs(mine - other) / (1 + abs(other))) for mine, other in pairs])


@pytest.mark.parametrize("shape", [(12, 5), (2, 5, 3, 4)])
@pytest.mark.parametrize(
    ("reduction", "weighted", "smoothing"),
    list(itertools.product(REDUCTIONS, (False, True), (0.0, 0.2, 1.0))),
)
def test_cross_entropy(shape, reduction, weighted, smoothing):
    labels = np.random.default_rng(1).integers(0, 5, (shape[0], *shape[2:]))
    labels.reshape(-1)[[1, 4]] = -100
    options = {"reduction": reduction, "label_smoothing": smoothing}
    weight = WEIGHT if weighted else None
    error = distance(
        lambda x: F.cross_entropy(
            x, oc.tensor(labels), None if weight is None else oc.tensor(weight), **options
        ),
        lambda x: theirs.cross_entropy(
            x, torch.from_numpy(labels), None if weight is None else torch.from_numpy(weight),
            **options,
        ),
        3 * normal(*shape),
    )  # fmt: skip
    assert error < ROUNDING


def test_a_mean_over_no_label_is_no_number():
    labels = np.full(3, -100)
    for options in ({}, {"label_smoothing": 0.5}):
        mine = F.cross_entropy(oc.tensor(normal(3, 5)), oc.tensor(labels), **options)
        other = theirs.cross_entropy(
            torch.from_numpy(normal(3, 5)), torch.from_numpy(labels), **options
        )
        assert np.isnan(mine.numpy()) == np.isnan(other.numpy()) == True  # noqa: E712


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss"])
def test_errors(name, reduction):
    target = normal(2, 3, 5, 4, seed=5)
    error = distance(
        lambda x: getattr(F, name)(x, oc.tensor(target), reduction=reduction),
        lambda x: getattr(theirs, name)(x, torch.from_numpy(target), reduction=reduction),
        normal(2, 3, 5, 4),
    )
    assert error < ROUNDING


def test_the_modules_hand_their_options_on():
    x, labels = normal(12, 5), np.arange(12) % 5
    pairs = [
        (
            oc.nn.CrossEntropyLoss(WEIGHT, reduction="sum", label_smoothing=0.1),
            torch.nn.CrossEntropyLoss(
                torch.from_numpy(WEIGHT), reduction="sum", label_smoothing=0.1
            ),
        ),
        (oc.nn.CrossEntropyLoss(ignore_index=2), torch.nn.CrossEntropyLoss(ignore_index=2)),
    ]
    for mine, other in pairs:
        error = distance(
            lambda t, m=mine: m(t, oc.tensor(labels)),
            lambda t, o=other: o(t, torch.from_numpy(labels)),
            x,
        )
        assert error < ROUNDING
    target = normal(12, 5, seed=3)
    for name in ("MSELoss", "L1Loss"):
        mine = getattr(oc.nn, name)(reduction="sum")
        other = getattr(torch.nn, name)(reduction="sum")
        error = distance(
            lambda t, m=mine: m(t, oc.tensor(target)),
            lambda t, o=other: o(t, torch.from_numpy(target)),
            x,
        )
        assert error < ROUNDING


POOLS = list(
    itertools.product(
        (2, 3, (3, 2)), (1, 2, 3, (2, 1)), (0, 1, (1, 0)), (1, 2, (2, 3)), (False, True)
    )
)


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation", "ceil_mode"), POOLS)
def test_max_pool(kernel, stride, padding, dilation, ceil_mode):
    x = normal(2, 3, 11, 10)
    options = (kernel, stride, padding, dilation, ceil_mode)
    mine, other = (
        lambda t, pool=pool: pool(t, *options) for pool in (F.max_pool2d, theirs.max_pool2d)
    )
    assert distance(mine, other, x) < 1e-6
    module = oc.nn.MaxPool2d(*options[:4], ceil_mode=ceil_mode)
    assert np.array_equal(module(oc.tensor(x)).numpy(), F.max_pool2d(oc.tensor(x), *options))


@pytest.mark.parametrize("extent", range(5, 13))
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "counts"),
    [
        (2, 2, 0, True),
        (3, 2, 0, True),
        (2, 3, 0, True),
        (3, 2, 1, False),
        (3, 3, 1, False),
        (3, 2, 1, True),
        (3, 3, 1, True),
        (2, 3, 1, True),
        (5, 4, 2, True),
        (4, (3, 5), (2, 0), True),
    ],
)
def test_rounding_up(extent, kernel, stride, padding, counts):
    x = normal(1, 2, extent, extent + 1)
    options = (kernel, stride, padding)
    error = distance(
        lambda t: F.max_pool2d(t, *options, ceil_mode=True),
        lambda t: theirs.max_pool2d(t, *options, ceil_mode=True),
        x,
    )
    assert error < ROUNDING
    error = distance(
        lambda t: F.avg_pool2d(t, *options, True, counts),
        lambda t: theirs.avg_pool2d(t, *options, True, counts),
        x,
    )
    assert error < ROUNDING


def test_nothing_beats_no_number_in_a_pooling():
    x = normal(1, 3, 9, 9)
    x[0, 0, 4, 4], x[0, 1, 2, 3] = np.nan, -np.inf
    options = (3, 2, 1, 2)
    mine = F.max_pool2d(oc.tensor(x), *options).numpy()
    np.testing.assert_array_equal(mine, theirs.max_pool2d(torch.from_numpy(x), *options).numpy())
