"""Batch norm against float64 NumPy, fused against unfused to the bit, any threads to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain.layers.kernels.cpu import batch_norm, chunks
from ooctrain.layers.kernels.cpu import batch_norm as bn
from ooctrain.layers.kernels.cpu import elementwise as ew
from ooctrain.layers.kernels.cpu import workspace as ws

SHAPES = [(2, 1), (5, 3), (1000, 17), (9001, 64), (70, 100), (700, 260), (70_000, 3), (2003, 128)]
EPS = 1e-5
NO_SPACE = np.empty(0, np.uint8)


def poisoned(*shape):
    return np.full(shape, np.nan, np.float32)


def problem(rows, channels, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, channels), dtype=np.float32) * np.float32(2) + np.float32(1)
    dy = rng.standard_normal((rows, channels), dtype=np.float32)
    gamma = rng.uniform(0.5, 1.5, channels).astype(np.float32)
    beta = rng.standard_normal(channels, dtype=np.float32)
    return x, dy, gamma, beta


def statistics(pool, x):
    channels = x.shape[1]
    mean, inv_std, var = poisoned(channels), poisoned(channels), poisoned(channels)
    scratch = np.full(ws.batch_norm_workspace_bytes(*x.shape), 255, np.uint8)
    bn.stats(pool, x, mean, inv_std, var, EPS, scratch)
    return mean, inv_std, var


def reduced(pool, dy, x, mean, inv_std, mask=None):
    dgamma, dbeta = poisoned(x.shape[1]), poisoned(x.shape[1])
    scratch = np.full(ws.batch_norm_workspace_bytes(*x.shape), 255, np.uint8)
    bn.grad_reduce(pool, dy, x, mean, inv_std, dgamma, dbeta, mask, scratch)
    return dgamma, dbeta


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics(pools, shape):
    x = problem(*shape)[0]
    exact = x.astype(np.float64)
    seen = set()
    for pool in pools:
        mean, inv_std, var = statistics(pool, x)
        np.testing.assert_allclose(mean, exact.mean(0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(var, exact.var(0), rtol=2e-6)
        np.testing.assert_allclose(inv_std, 1 / np.sqrt(exact.var(0) + EPS), rtol=2e-6)
        seen.add(mean.tobytes() + inv_std.tobytes() + var.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("first_row", [0.0, 1e3])
def test_a_large_mean_does_not_destroy_the_variance(pools, first_row):
    rng = np.random.default_rng(1)
    x = (1e3 + rng.standard_normal((20_000, 20))).astype(np.float32)
    x[0] = first_row
    mean, _, var = statistics(pools[1], x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(0), rtol=2e-7)
    np.testing.assert_allclose(var, exact.var(0), rtol=1e-4)


def test_a_constant_channel_has_variance_zero(pools):
    mean, inv_std, var = statistics(pools[0], np.full((4097, 5), 0.1, np.float32))
    np.testing.assert_allclose(mean, 0.1, rtol=1e-6)
    assert (var < 1e-12).all()
    np.testing.assert_allclose(inv_std, 1 / np.sqrt(EPS), rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_apply(pools, shape):
    x, residual, gamma, beta = problem(*shape)
    mean, inv_std, _ = statistics(pools[0], x)
    exact = (x.astype(np.float64) - mean) * inv_std * gamma + beta
    seen = set()
    for pool in pools:
        y, summed, fused, in_place = poisoned(*shape), poisoned(*shape), poisoned(*shape), x.copy()
        bn.apply(pool, x, mean, inv_std, gamma, beta, y)
        np.testing.assert_allclose(y, exact, rtol=1e-5, atol=2e-6)
        bn.apply(pool, in_place, mean, inv_std, gamma, beta, in_place)
        assert in_place.tobytes() == y.tobytes()
        ew.add(pool, y, residual, summed)
        bn.apply(pool, x, mean, inv_std, gamma, beta, fused, residual=residual)
        assert fused.tobytes() == summed.tobytes()
        ew.relu(pool, summed, summed)
        bn.apply(pool, x, mean, inv_std, gamma, beta, fused, residual=residual, relu=True)
        assert fused.tobytes() == summed.tobytes()
        bn.apply(pool, x, mean, inv_std, gamma, beta, fused, relu=True)
        seen.add(fused.tobytes())
        ew.relu(pool, y, y)
        assert fused.tobytes() == y.tobytes()
    assert len(seen) == 1


@pytest.mark.parametrize("shape", [(9001, 64), (37, 192)])
def test_apply_row_by_row_has_the_bits_of_apply_in_fours(pools, monkeypatch, shape):
    """The way depends on how much is moved, which a tile and its whole do not share."""
    x, dy, gamma, beta = problem(*shape)
    mean, inv_std, _ = statistics(pools[0], x)
    for residual, relu in ((None, False), (dy, True)):
        results = []
        for in_fours_bytes in (batch_norm.IN_FOURS_BYTES, 0):
            monkeypatch.setattr(batch_norm, "IN_FOURS_BYTES", in_fours_bytes)
            y = poisoned(*shape)
            bn.apply(pools[1], x, mean, inv_std, gamma, beta, y, residual, relu)
            results.append(y.tobytes())
        assert results[0] == results[1]
        monkeypatch.undo()


def test_apply_keeps_nan(pools):
    x, _, gamma, beta = problem(40, 17)
    mean, inv_std, _ = statistics(pools[0], x)
    x[3, 5] = np.nan
    y = poisoned(40, 17)
    bn.apply(pools[0], x, mean, inv_std, gamma, beta, y, relu=True)
    assert np.isnan(y[3, 5])
    assert np.isnan(y).sum() == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient(pools, shape):
    x, dy, gamma, beta = problem(*shape)
    rows = shape[0]
    mean, inv_std, _ = statistics(pools[0], x)
    output = poisoned(*shape)
    bn.apply(pools[0], x, mean, inv_std, gamma, beta, output, relu=True)
    dz = dy * (output > 0)
    xhat = (x.astype(np.float64) - mean) * inv_std
    exact_dbeta, exact_dgamma = dz.sum(0, dtype=np.float64), (dz * xhat).sum(0)
    exact_dx = (
        gamma.astype(np.float64) * inv_std * (dz - exact_dbeta / rows - xhat * exact_dgamma / rows)
    )
    seen = set()
    for pool in pools:
        dgamma, dbeta = reduced(pool, dy, x, mean, inv_std, mask=output)
        np.testing.assert_allclose(dgamma, exact_dgamma, rtol=1e-5, atol=1e-6 * rows**0.5)
        np.testing.assert_allclose(dbeta, exact_dbeta, rtol=1e-5, atol=1e-6 * rows**0.5)
        dx, apart, in_place = poisoned(*shape), poisoned(*shape), dy.copy()
        bn.grad_apply(pool, dy, x, mean, inv_std, gamma, dgamma, dbeta, dx, output, 0, NO_SPACE)
        np.testing.assert_allclose(dx, exact_dx, rtol=1e-5, atol=3e-6)
        bn.grad_apply(
            pool, in_place, x, mean, inv_std, gamma, dgamma, dbeta, in_place, output, 0, NO_SPACE
        )
        assert in_place.tobytes() == dx.tobytes()
        masked = poisoned(*shape)
        ew.relu_grad(pool, dy, output, masked)
        dgamma_2, dbeta_2 = reduced(pool, masked, x, mean, inv_std)
        bn.grad_apply(
            pool,
            masked,
            x,
            mean,
            inv_std,
            gamma,
            dgamma_2,
            dbeta_2,
            apart,
            None,
            0,
            NO_SPACE,
        )
        assert (dgamma_2.tobytes(), dbeta_2.tobytes()) == (
            dgamma.tobytes(),
            dbeta.tobytes(),
        )
        assert apart.tobytes() == dx.tobytes()
        seen.add(dx.tobytes() + dgamma.tobytes() + dbeta.tobytes())
    assert len(seen) == 1


def test_running_statistics_follow_torch(pools):
    mean, var = np.array([1, 2], np.float32), np.array([4, 9], np.float32)
    running_mean, running_var = np.zeros(2, np.float32), np.ones(2, np.float32)
    count = np.zeros(1, np.int64)
    running = running_mean, running_var, count
    bn.update_running(pools[0], mean, var, running, running, 0.1, rows=5)
    np.testing.assert_allclose(running_mean, [0.1, 0.2], rtol=1e-6)
    np.testing.assert_allclose(running_var, [0.9 + 0.1 * 5, 0.9 + 0.1 * 11.25], rtol=1e-6)
    assert count[0] == 1
    bn.update_running(pools[0], mean, var, running, running, None, rows=5)
    np.testing.assert_allclose(running_mean, [0.55, 1.1], rtol=1e-6)
    assert count[0] == 2


def test_inverse_deviation_for_evaluation(pools):
    out = poisoned(3)
    bn.inv_std_of(pools[0], np.array([0, 1, 3], np.float32), out, 1.0)
    np.testing.assert_allclose(out, [1, 2**-0.5, 0.5], rtol=1e-7)


@pytest.mark.parametrize("shape", [(1000, 64), (70, 100), (1001, 16)])
def test_stores_past_the_caches_change_no_bit(pools, monkeypatch, shape):
    """Forward and gradient, for whole vectors of channels and others."""
    x, dy, gamma, beta = problem(*shape)
    mean, inv_std, _ = statistics(pools[0], x)
    dgamma, dbeta = reduced(pools[0], dy, x, mean, inv_std)
    results = []
    for bound in (chunks.PAST_CACHES_BYTES, 0):
        monkeypatch.setattr(chunks, "PAST_CACHES_BYTES", bound)
        for pool in pools:
            space = np.full((2, x.size + 16), np.nan, np.float32)
            firsts = [-row.ctypes.data % 64 // 4 for row in space]
            y, dx = (
                row[f : f + x.size].reshape(shape) for row, f in zip(space, firsts, strict=True)
            )
            assert chunks.past_caches(y, x) == (bound == 0)
            bn.apply(pool, x, mean, inv_std, gamma, beta, y, relu=True)
            bn.grad_apply(pool, dy, x, mean, inv_std, gamma, dgamma, dbeta, dx, y, 0, NO_SPACE)
            results.append((y.tobytes(), dx.tobytes()))
    assert len(set(results)) == 1
