"""Losses for GPUs, in the emulator: against float64 within bounds that are formulas."""

from __future__ import annotations

import numpy as np
import pytest
from support.quick import quick

from ooctrain.layers.kernels.cuda.sums import SUM_ROUNDINGS
from ooctrain.layers.losses import (
    ClassWeights,
    ErrorEach,
    ErrorEachGrad,
    MeanError,
    MeanErrorGrad,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    WeightedCrossEntropy,
    WeightedCrossEntropyGrad,
)
from ooctrain.step.op import to_physical
from ooctrain.testing.check_cuda import check_cuda, run_cuda

UNIT = 2.0**-24  # of a rounding to nearest
IGNORED = -100
# logits (N, K) or (N, K, H, W), which labels are ignored
CASES = [
    ((5, 4), (2,)),
    ((3, 1000), ()),
    ((1, 33), ()),
    ((2, 21, 5, 3), (0, 7, 29)),
    ((1, 2, 30, 31), (3,)),
]


def normal(*shape, seed=0):
    rng = np.random.default_rng((seed, *shape))
    return (3 * rng.standard_normal(shape)).astype(np.float32)


def labels_of(shape, ignored):
    values = np.random.default_rng(3).integers(0, shape[1], (shape[0], *shape[2:]))
    values.reshape(-1)[list(ignored)] = IGNORED
    return values


def lse_of(logits, labels):
    return SoftmaxCrossEntropy().reference(logits, labels, scalars={})[1].astype(np.float32)


def row_bound(logits):
    """Of a row's log-sum-exp: two ulps of each exp, K / 32 + 5 additions, a log, two sums."""
    additions = -(-logits.shape[1] // 32) + 5
    return (additions + 8) * 2 * UNIT + 4 * UNIT * (1 + np.abs(logits).max())


@pytest.mark.parametrize("reduction", quick(["mean", "sum"], 0))
@pytest.mark.parametrize(("shape", "ignored"), quick(CASES, 0, names=2))
def test_cross_entropy(shape, ignored, reduction):
    logits, labels = normal(*shape), labels_of(shape, ignored)
    op = SoftmaxCrossEntropy(reduction=reduction)
    loss, lse = check_cuda(op, logits, labels)
    exact = logits.astype(np.float64)
    want_loss, want_lse = op.reference(exact, labels, scalars={})
    assert np.abs(lse - want_lse).max() <= row_bound(logits)
    # Each row's own error, then the sum's, relative to the sum (all losses are positive).
    rows = labels.size if reduction == "sum" else 1
    bound = rows * row_bound(logits) + (SUM_ROUNDINGS + 4) * UNIT * abs(want_loss)
    assert abs(loss - want_loss) <= bound
    check_cuda(
        SoftmaxCrossEntropyGrad(reduction=reduction), logits, labels, lse_of(exact, labels),
        np.float32(0.7), tolerance=row_bound(logits) + 16 * UNIT,
    )  # fmt: skip


def test_a_common_offset_costs_no_digits():
    logits, labels = np.round(normal(4, 7) * 64) / 64 + 4096, labels_of((4, 7), ())
    loss, _ = run_cuda(SoftmaxCrossEntropy(), [logits.astype(np.float32), labels])
    (want, _) = SoftmaxCrossEntropy().reference(logits.astype(np.float64), labels, scalars={})
    assert abs(loss - want) <= 8 * UNIT * want


def test_all_ignored_is_no_number_for_a_mean_and_no_gradient():
    logits, labels = normal(3, 4), np.full(3, IGNORED)
    assert np.isnan(run_cuda(SoftmaxCrossEntropy(), [logits, labels])[0])
    assert run_cuda(SoftmaxCrossEntropy(reduction="sum"), [logits, labels])[0] == 0
    inputs = [logits, labels, lse_of(logits, np.zeros(3, int)), np.float32(1)]
    (grad,) = run_cuda(SoftmaxCrossEntropyGrad(), inputs)
    assert (grad == 0).all()


def test_infinite_logits_are_impossible_classes():
    logits = normal(2, 40)
    logits[:, 3:] = -np.inf
    loss, lse = run_cuda(SoftmaxCrossEntropy(), [logits, np.array([0, 2])])
    want = np.log(np.exp(logits[:, :3].astype(np.float64)).sum(1))
    assert np.abs(lse - want).max() <= row_bound(logits[:, :3])
    assert np.isfinite(loss)


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_and_smoothing(reduction, smoothing):
    for shape, ignored in CASES[:1] + CASES[2:4]:
        logits, labels = normal(*shape), labels_of(shape, ignored)
        weights = np.abs(normal(shape[1], seed=1)) * (np.arange(shape[1]) != 1)
        op = WeightedCrossEntropy(IGNORED, smoothing, reduction)
        check_cuda(op, logits, labels, weights, tolerance=row_bound(logits) + 64 * UNIT)
        dloss = normal(*labels.shape) if reduction == "none" else np.float32(0.7)
        inputs = logits, labels, weights, lse_of(logits.astype(float), labels), dloss
        grad = WeightedCrossEntropyGrad(IGNORED, smoothing, reduction)
        check_cuda(grad, *inputs, tolerance=row_bound(logits) + 64 * UNIT)


def test_a_class_of_weight_zero_may_be_impossible():
    logits, weights = normal(2, 3), np.array([1.0, 0.0, 2.0], np.float32)
    logits[:, 1] = -np.inf
    (loss, _) = run_cuda(
        WeightedCrossEntropy(label_smoothing=0.1), [logits, np.array([0, 2]), weights]
    )
    assert np.isfinite(loss)


@pytest.mark.parametrize("count", [1, 16, 37])
def test_class_weights_travel_with_the_launches(count):
    values = tuple(float(v) for v in normal(count))
    (found,) = check_cuda(ClassWeights(values), tolerance=UNIT)
    np.testing.assert_array_equal(found, np.float32(values))


# One tile, part of a second, and more than a block takes at once.
@pytest.mark.slow
@pytest.mark.parametrize("shape", quick([(1, 1), (2, 3, 7, 5), (3, 683), (1, 3, 64, 65)], 1))
@pytest.mark.parametrize("absolute", quick([False, True], 1))
def test_squared_and_absolute_errors(shape, absolute):
    x, target = normal(*shape), normal(*shape, seed=1)
    for reduction in ("mean", "sum"):
        op = MeanError(absolute, reduction)
        (loss,) = check_cuda(op, x, target)
        exact = (x.astype(np.float64), target.astype(np.float64))
        (want,) = op.reference(*exact, scalars={})
        # The terms are positive; each has up to three roundings of its own, the factor two.
        assert abs(loss - want) <= (SUM_ROUNDINGS + 5) * UNIT * want
        grad = MeanErrorGrad(absolute, reduction)
        check_cuda(grad, x, target, np.float32(0.7), tolerance=8 * UNIT)
    check_cuda(ErrorEach(absolute), x, target, tolerance=4 * UNIT)
    check_cuda(ErrorEachGrad(absolute), x, target, normal(*shape, seed=2), tolerance=4 * UNIT)


def test_the_slope_of_an_absolute_error_is_zero_at_equality_and_keeps_nan():
    x = np.array([[1.0, 2.0, np.nan, 3.0, 0.0]], np.float32)
    target = np.array([[1.0, 3.0, 0.0, 2.0, -1.0]], np.float32)
    (dx,) = run_cuda(MeanErrorGrad(True, "sum"), [x, target, np.float32(0.5)])
    np.testing.assert_array_equal(dx, [[0, -0.5, np.nan, 0.5, 0.5]])


def test_large_sums_lose_no_digits():
    # 2^18 equal terms: a plain float32 sum by one thread would be wrong by 1e-3 and more.
    x = np.full((1, 1, 512, 512), np.float32(0.1))
    (loss,) = run_cuda(MeanError(True, "sum"), [x, np.zeros_like(x)])
    want = float(np.float32(0.1)) * x.size
    assert abs(float(loss) - want) <= (SUM_ROUNDINGS + 5) * UNIT * want
    assert to_physical(x).size == 1 << 18
