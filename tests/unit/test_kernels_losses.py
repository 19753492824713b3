"""Losses against float64 NumPy: extreme logits, ignored rows, same bits for any threads."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain.layers.kernels.cpu import losses
from ooctrain.layers.kernels.cpu import workspace as ws

SHAPES = [(1, 2), (5, 3), (64, 10), (33, 17), (512, 1000), (20_000, 21), (7, 64), (3, 1)]


def poisoned(*shape):
    return np.full(shape, np.nan, np.float32)


def exact_cross_entropy(logits, labels):
    wide = logits.astype(np.float64)
    top = wide.max(1)
    lse = top + np.log(np.exp(wide - top[:, None]).sum(1))
    rows = np.arange(len(labels))
    valid = labels != -100
    row_losses = np.where(valid, lse - wide[rows, np.where(valid, labels, 0)], 0)
    gradient = np.exp(wide - lse[:, None])
    gradient[rows, np.where(valid, labels, 0)] -= 1
    return row_losses, lse, gradient * valid[:, None], valid.sum()


def run(pool, logits, labels, scale):
    rows = logits.shape[0]
    row_losses, lse, dlogits = poisoned(rows), poisoned(rows), poisoned(*logits.shape)
    losses.softmax_cross_entropy(pool, logits, labels, row_losses, lse)
    losses.softmax_cross_entropy_grad(pool, logits, labels, lse, dlogits, scale)
    return row_losses, lse, dlogits


@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy(pools, shape):
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal(shape) * 5).astype(np.float32)
    labels = rng.integers(0, shape[1], shape[0])
    labels[rng.random(shape[0]) < 0.2] = -100
    exact_losses, exact_lse, exact_grad, valid = exact_cross_entropy(logits, labels)
    assert losses.valid_rows(labels) == valid
    seen = set()
    for pool in pools:
        row_losses, lse, dlogits = run(pool, logits, labels, 0.25)
        np.testing.assert_allclose(lse, exact_lse, rtol=2e-7, atol=1e-6)
        np.testing.assert_allclose(row_losses, exact_losses, rtol=1e-6, atol=3e-6)
        np.testing.assert_allclose(dlogits, 0.25 * exact_grad, rtol=1e-5, atol=5e-7)
        out, scratch = poisoned(1), np.full(ws.reduction_workspace_bytes(shape[0]), 255, np.uint8)
        losses.total(pool, row_losses, out, 1 / max(valid, 1), scratch)
        np.testing.assert_allclose(out[0], exact_losses.sum() / max(valid, 1), rtol=1e-5, atol=1e-6)
        in_place = logits.copy()
        losses.softmax_cross_entropy_grad(pool, in_place, labels, lse, in_place, 0.25)
        assert in_place.tobytes() == dlogits.tobytes()
        seen.add(row_losses.tobytes() + lse.tobytes() + dlogits.tobytes() + out.tobytes())
    assert len(seen) == 1


def test_a_row_does_not_depend_on_its_neighbours(pools):
    logits = np.random.default_rng(1).standard_normal((9, 37), dtype=np.float32)
    labels = np.arange(9)
    together = run(pools[0], logits, labels, 1.0)
    for row in range(9):
        alone = run(pools[0], logits[row : row + 1].copy(), labels[row : row + 1].copy(), 1.0)
        for part, whole in zip(alone, together, strict=True):
            assert part.tobytes() == whole[row : row + 1].tobytes()


def test_extreme_logits(pools):
    logits = np.zeros((5, 40), np.float32)
    logits[0, 3] = 1e4
    logits[1] = -1e3
    logits[2, :20] = -np.inf
    logits[3, 7] = np.nan
    logits[4] = np.linspace(-200, 0, 40)
    row_losses, lse, dlogits = run(pools[0], logits, np.array([3, 0, 30, 1, 39]), 1.0)
    assert row_losses[0] == 0
    np.testing.assert_allclose(row_losses[1:3], [np.log(40), np.log(20)], rtol=2e-4)
    np.testing.assert_allclose(dlogits[2, :20], 0, atol=0)
    assert np.isnan(row_losses[3])
    assert np.isnan(lse[3])
    assert np.isfinite(dlogits[[0, 1, 2, 4]]).all()
    np.testing.assert_allclose(dlogits[[0, 1, 2, 4]].sum(1), 0, atol=1e-4)


@pytest.mark.parametrize("size", [1, 17, 4096, 400_003])
def test_mse_and_l1(pools, size):
    rng = np.random.default_rng(2)
    x, target = (rng.standard_normal(size, dtype=np.float32) for _ in range(2))
    target[size // 2] = x[size // 2]
    d = x.astype(np.float64) - target
    dloss = np.full((), 3, np.float32)
    cases = [(False, (d**2).sum(), 2 * d), (True, abs(d).sum(), np.sign(d))]
    for absolute, exact, exact_grad in cases:
        seen = set()
        for pool in pools:
            out, dx = poisoned(1), poisoned(size)
            scratch = np.full(ws.reduction_workspace_bytes(size), 255, np.uint8)
            losses.mean_error(pool, x, target, out, 1 / size, absolute, scratch)
            np.testing.assert_allclose(out[0], exact / size, rtol=3e-7)
            losses.mean_error_grad(pool, x, target, dloss, dx, 1.0, absolute)
            np.testing.assert_allclose(dx, 3 * exact_grad, rtol=1e-6, atol=1e-6)
            in_place = x.copy()
            losses.mean_error_grad(pool, in_place, target, dloss, in_place, 1.0, absolute)
            assert in_place.tobytes() == dx.tobytes()
            seen.add(out.tobytes() + dx.tobytes())
        assert len(seen) == 1
