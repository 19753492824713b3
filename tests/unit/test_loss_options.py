"""Weights, smoothing, reductions, gaps and rounding: wrong ones are refused, right ones train."""

from __future__ import annotations

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.errors import ShapeError
from ooctrain.layers.pooling import AvgPool2d, PoolGeometry
from ooctrain.step.op import Spec


def logits():
    return oc.tensor(np.random.default_rng(0).standard_normal((4, 3), np.float32))


LABELS = np.array([0, 1, 2, 1])
WRONG = {
    "an unknown reduction": (lambda: F.mse_loss(logits(), logits(), reduction="avg"), "reduction"),
    "an unknown reduction of rows": (
        lambda: F.cross_entropy(logits(), oc.tensor(LABELS), reduction="total"), "'total'",
    ),
    "too much smoothing": (
        lambda: F.cross_entropy(logits(), oc.tensor(LABELS), label_smoothing=1.5), "[0, 1]",
    ),
    "too few weights": (
        lambda: F.cross_entropy(logits(), oc.tensor(LABELS), oc.tensor(np.ones(2, np.float32))),
        "one weight for each of 3 classes",
    ),
    "a weight below nothing": (
        lambda: F.cross_entropy(logits(), oc.tensor(LABELS), oc.tensor(-np.ones(3, np.float32))),
        "not negative",
    ),
    "a trained weight": (
        lambda: F.cross_entropy(
            logits(), oc.tensor(LABELS), oc.tensor(np.ones(3, np.float32), requires_grad=True)
        ),
        "no gradient",
    ),
    "a label out of range": (
        lambda: F.cross_entropy(logits(), oc.tensor(LABELS + 1), label_smoothing=0.1),
        "label 3 is not one of the 3 classes",
    ),
    "a gap of nothing": (lambda: F.max_pool2d(images(), 2, dilation=0), "at least 1"),
    "a step of nothing": (lambda: F.max_pool2d(images(), 2, 0, ceil_mode=True), "at least 1"),
    "padding beyond half": (lambda: F.max_pool2d(images(), 3, padding=2), "half of the window"),
}  # fmt: skip


def images():
    return oc.tensor(np.ones((1, 2, 8, 8), np.float32))


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_options_are_refused_in_words(kind):
    attempt, hint = WRONG[kind]
    with pytest.raises(oc.OoctrainError) as caught:
        attempt()
    assert hint in str(caught.value)


def test_rounded_up_means_count_the_padding_and_nothing_behind_it():
    # 6 pixels, windows of 3, steps of 3, padding 1: rows -1..1, 2..4, 5..7, of which 7 is behind.
    ones = F.avg_pool2d(oc.tensor(np.ones((1, 1, 6, 6), np.float32)), 3, 3, 1, ceil_mode=True)
    inside, counted = np.array([2, 3, 1]), np.array([3, 3, 2])
    expected = np.outer(inside, inside) / np.outer(counted, counted)
    np.testing.assert_allclose(ones.numpy()[0, 0], expected, rtol=1e-6)


def test_means_of_dilated_windows_are_refused():
    with pytest.raises(ShapeError, match="no dilation"):
        AvgPool2d(PoolGeometry((2, 2), (1, 1), dilation=(2, 2))).infer(Spec((1, 1, 5, 5)))


def test_rounding_up_leaves_out_windows_that_begin_in_the_padding():
    # 5 pixels, windows of 2, steps of 2, padding 1: begins at -1, 1, 3 and 5, the last in none.
    rounded = PoolGeometry((2, 2), (2, 2), (1, 1, 1, 1)).rounded_up(5, 4)
    assert rounded.output_size(5, 4) == (3, 3)
    assert rounded.padding == (1, 1, 1, 1)
    assert PoolGeometry((3, 3), (2, 2)).rounded_up(6, 7).padding == (0, 1, 0, 0)


def net():
    oc.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1, 2, ceil_mode=True),
        nn.Flatten(), nn.Linear(4 * 9, 3),
    )  # fmt: skip


def losses(loss, budget):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((6, 1, 7, 7), np.float32), np.arange(6) % 3
    model = net()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with oc.Trainer(model, loss, optimizer, budget, "window", threads=1) as trainer:
        return [trainer.step(x, y) for _ in range(4)]


@pytest.mark.parametrize(
    "options",
    [
        {"weight": np.array([1.0, 0.5, 2.0], np.float32), "label_smoothing": 0.1},
        {"label_smoothing": 0.2, "reduction": "sum"},
        {"reduction": "sum"},
    ],
)
def test_such_losses_train_within_a_budget_with_the_same_bits(options):
    in_core = losses(nn.CrossEntropyLoss(**options), None)
    assert losses(nn.CrossEntropyLoss(**options), "30%") == in_core
    assert in_core[-1] < in_core[0]


def test_a_wrong_label_is_told_before_the_step_with_weights_too():
    model = net()
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    with oc.Trainer(model, loss, oc.optim.SGD(model.parameters(), lr=0.1), threads=1) as trainer:
        x = np.zeros((2, 1, 7, 7), np.float32)
        with pytest.raises(oc.OoctrainError, match="label 7"):
            trainer.step(x, np.array([0, 7]))
        assert np.isfinite(trainer.step(x, np.array([0, 2])))
