"""Losses with all their options are their definitions, written in NumPy and float64.

The tests against PyTorch (`tests/peers/`) say the same where PyTorch is installed.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F

N, K = 5, 4
SHAPES = {"rows": (N, K), "pixels": (N, K, 2, 3)}
REDUCTIONS = {"mean": np.mean, "sum": np.sum, "none": lambda each: each}
#: Each sum has fewer terms than this; each term is rounded a few times.
ROUNDINGS = 512 * np.finfo(np.float32).eps


def drawn(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def wide(array):
    return array.astype(np.float64)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def along_classes(weight, ndim):
    return weight.reshape(K, *(1,) * (ndim - 2))


def is_the_definition(found, definition):
    np.testing.assert_allclose(found.numpy(), definition, rtol=ROUNDINGS, atol=ROUNDINGS)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("weighted", "of_hits"), [*itertools.product([False, True], repeat=2)])
def test_binary_cross_entropy(reduction, weighted, of_hits):
    x, y = drawn((N, K), 0), np.random.default_rng(1).random((N, K)).astype(np.float32)
    weight = np.array([0.5, 1, 2, 3], np.float32)
    more = np.array([3, 0.25, 1, 2], np.float32)
    likely = 1 / (1 + np.exp(-wide(x)))
    factor = wide(more) if of_hits else 1.0
    each = -factor * y * np.log(likely) - (1 - wide(y)) * np.log(1 - likely)
    each = each * wide(weight) if weighted else each
    found = F.binary_cross_entropy_with_logits(
        oc.tensor(x), oc.tensor(y), oc.tensor(weight) if weighted else None, reduction=reduction,
        pos_weight=oc.tensor(more) if of_hits else None,
    )  # fmt: skip
    is_the_definition(found, REDUCTIONS[reduction](each))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_errors_of_values(reduction, beta):
    x, y = drawn((N, K), 2), drawn((N, K), 3)
    d, reduced = wide(x) - wide(y), REDUCTIONS[reduction]
    given = oc.tensor(x), oc.tensor(y)
    is_the_definition(F.mse_loss(*given, reduction=reduction), reduced(d**2))
    is_the_definition(F.l1_loss(*given, reduction=reduction), reduced(np.abs(d)))
    flat = np.abs(d) - beta / 2
    smooth = np.where(np.abs(d) >= beta, flat, d**2 / (2 * beta)) if beta else np.abs(d)
    is_the_definition(F.smooth_l1_loss(*given, reduction=reduction, beta=beta), reduced(smooth))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("weighted", "smoothing"), [(0, 0.0), (1, 0.0), (0, 0.2), (1, 0.2)])
def test_cross_entropy_of_classes(reduction, shape, weighted, smoothing):
    """A mean is by weight; the label 1 is ignored."""
    x = drawn(SHAPES[shape], 4)
    labels = np.random.default_rng(5).integers(0, K, (N, *SHAPES[shape][2:]))
    weight = np.array([0.5, 1, 2, 3], np.float32) if weighted else np.ones(K, np.float32)
    logs, counts = log_softmax(wide(x)), (labels != 1) * 1.0
    of_label = np.take_along_axis(logs, labels[:, None], 1)[:, 0]
    spread = (logs * along_classes(wide(weight), x.ndim)).sum(1) / K
    each = -((1 - smoothing) * wide(weight)[labels] * of_label + smoothing * spread) * counts
    reduced = REDUCTIONS[reduction](each)
    if reduction == "mean":
        reduced = each.sum() / (counts * wide(weight)[labels]).sum()
    found = F.cross_entropy(
        oc.tensor(x), oc.tensor(labels), oc.tensor(weight) if weighted else None,
        ignore_index=1, reduction=reduction, label_smoothing=smoothing,
    )  # fmt: skip
    is_the_definition(found, reduced)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("weighted", "smoothing"), [(0, 0.0), (1, 0.2)])
def test_cross_entropy_of_probabilities(reduction, shape, weighted, smoothing):
    """A mean is over rows, whatever their weights."""
    x, target = drawn(SHAPES[shape], 6), np.abs(drawn(SHAPES[shape], 7))
    target /= target.sum(1, keepdims=True)
    weight = np.array([0.5, 1, 2, 3], np.float32)
    smooth = wide(target) * (1 - smoothing) + smoothing / K
    terms = -log_softmax(wide(x)) * smooth
    each = (terms * along_classes(wide(weight), x.ndim) if weighted else terms).sum(1)
    found = F.cross_entropy(
        oc.tensor(x), oc.tensor(target), oc.tensor(weight) if weighted else None,
        reduction=reduction, label_smoothing=smoothing,
    )  # fmt: skip
    is_the_definition(found, REDUCTIONS[reduction](each))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_negative_log_likelihood(reduction, weighted):
    logs = log_softmax(wide(drawn((N, K), 8))).astype(np.float32)
    labels = np.random.default_rng(9).integers(0, K, N)
    weight = np.array([0.5, 1, 2, 3], np.float32)
    factor = wide(weight)[labels] if weighted else np.ones(N)
    each = -factor * wide(logs)[np.arange(N), labels]
    reduced = each.sum() / factor.sum() if reduction == "mean" else REDUCTIONS[reduction](each)
    found = F.nll_loss(
        oc.tensor(logs), oc.tensor(labels), oc.tensor(weight) if weighted else None,
        reduction=reduction,
    )  # fmt: skip
    is_the_definition(found, reduced)
