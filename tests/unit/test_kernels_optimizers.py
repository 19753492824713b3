"""Optimizer kernels against the formulas in float64 over several steps; clipping in fixed order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.quick import quick

from ooctrain.layers.kernels.cpu import update
from ooctrain.layers.kernels.cpu import workspace as ws
from ooctrain.layers.update import (
    AdamUpdate,
    ClipFactor,
    RMSpropUpdate,
    SGDUpdate,
    adam_factors,
    rmsprop_factors,
    sgd_factors,
)

#: One element; less than a chunk; eight chunks and a rest; as many chunks as there may be.
SIZES = quick([1, 17, 1000, 100_001, 400_001], 0, 1, 2, 3)


def poisoned(size):
    return np.full(size, np.nan, np.float32)


def gradients(size, steps=3):
    rng = np.random.default_rng(size)
    return [rng.standard_normal(size, dtype=np.float32) for _ in range(steps + 1)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("momentum", "dampening", "decay", "nesterov"),
    [
        (0, 0, 0, False),
        (0, 0, 0.1, False),
        (0.9, 0, 0.1, False),
        (0.9, 0, 0.1, True),
        (0.8, 0.3, 0, False),
    ],
)
def test_sgd(pools, size, momentum, dampening, decay, nesterov):
    start, *steps = gradients(size)
    for pool in pools:
        exact, buffer = start.astype(np.float64), np.zeros(size)
        w, m = start.copy(), np.zeros(size, np.float32) if momentum else None
        for g in steps:
            d = g + decay * exact
            buffer = momentum * buffer + (1 - dampening) * d
            direction = d + momentum * buffer if nesterov else buffer if momentum else d
            exact = exact - 0.1 * direction
            options = {
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": decay,
                "nesterov": nesterov,
            }
            w_out, m_out = poisoned(size), poisoned(size) if momentum else None
            factors = sgd_factors(SGDUpdate(**options), {"lr": 0.1, "step": 1})
            update.sgd(pool, w, g, m, w_out, m_out, factors)
            update.sgd(pool, w, g, m, w, m, factors)
            assert w.tobytes() == w_out.tobytes(), "in place and apart differ"
            if momentum:
                assert m.tobytes() == m_out.tobytes()
        np.testing.assert_allclose(w, exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("decay", "decoupled"), [(0, False), (0.1, False), (0.1, True)])
def test_adam(pools, size, decay, decoupled):
    start, *steps = gradients(size)
    for pool in pools:
        exact, first, second = start.astype(np.float64), np.zeros(size), np.zeros(size)
        w, m, v = start.copy(), np.zeros(size, np.float32), np.zeros(size, np.float32)
        for step, g in zip(itertools.count(1), steps, strict=False):
            d = g.astype(np.float64)
            if decoupled:
                exact = exact * (1 - 0.01 * decay)
            else:
                d = d + decay * exact
            first, second = 0.9 * first + 0.1 * d, 0.999 * second + 0.001 * d * d
            root = np.sqrt(second / (1 - 0.999**step)) + 1e-8
            exact = exact - 0.01 * first / (1 - 0.9**step) / root
            outs = poisoned(size), poisoned(size), poisoned(size)
            op = AdamUpdate(weight_decay=decay, decoupled=decoupled)
            factors = adam_factors(op, {"lr": 0.01, "step": step - 1})
            update.adam(pool, w, g, m, v, *outs, factors)
            update.adam(pool, w, g, m, v, w, m, v, factors)
            assert [a.tobytes() for a in (w, m, v)] == [a.tobytes() for a in outs]
        np.testing.assert_allclose(w, exact, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("momentum", [0, 0.8])
@pytest.mark.parametrize(("centered", "decay"), [(False, 0), (False, 0.1), (True, 0.1)])
def test_rmsprop(pools, size, momentum, centered, decay):
    start, *steps = gradients(size)
    op = RMSpropUpdate(0.9, 1e-3, decay, momentum, centered)
    for pool in pools:
        exact, square, mean, buffer = start.astype(np.float64), 0.0, 0.0, 0.0
        w, slots = start.copy(), [np.zeros(size, np.float32) for _ in range(3)]
        for g in steps:
            d = g + decay * exact
            square, mean = 0.9 * square + 0.1 * d * d, 0.9 * mean + 0.1 * d
            spread = square - mean * mean if centered else square
            buffer = momentum * buffer + d / (np.sqrt(spread) + 1e-3)
            exact = exact - 0.01 * buffer
            outs = [poisoned(size) for _ in range(4)]
            factors, kept = rmsprop_factors(op, {"lr": 0.01}), (centered, bool(momentum))
            update.rmsprop(pool, (w, g, *slots), outs, factors, kept)
            update.rmsprop(pool, (w, g, *slots), (w, *slots), factors, kept)
            assert w.tobytes() == outs[0].tobytes(), "in place and apart differ"
            for slot, out, there in zip(slots, outs[1:], (True, *kept), strict=True):
                assert slot.tobytes() == out.tobytes() if there else np.isnan(out).all()
        np.testing.assert_allclose(w, exact, rtol=1e-5, atol=2e-6)


def test_a_centered_root_is_always_a_number(pools):
    """Of gradients that are all the same, rounding makes the spread negative here and there."""
    g = gradients(1000)[0]
    w, square, mean = np.zeros_like(g), g * g, g.copy()
    factors = rmsprop_factors(RMSpropUpdate(centered=True), {"lr": 0.01})
    spoilt = 0
    for _ in range(5):
        before = w.copy()
        arrays = w, g, square, mean, w
        update.rmsprop(pools[0], arrays, (w, square, mean, w), factors, (True, False))
        spoilt += int((square < mean.astype(np.float64) ** 2).sum())
        assert np.isfinite(w).all()
        assert (w != before).all()
    assert spoilt, "this is what the law is about"


@pytest.mark.parametrize("size", SIZES)
def test_sum_of_squares_has_one_value_for_any_threads(pools, size):
    g = gradients(size)[0]
    scratch = np.full(ws.reduction_workspace_bytes(size), 255, np.uint8)
    values = [np.zeros((), np.float32) for _ in pools]
    for pool, value in zip(pools, values, strict=True):
        update.sum_of_squares(pool, g, value, scratch)
    assert len({value.tobytes() for value in values}) == 1
    np.testing.assert_allclose(values[0], (g.astype(np.float64) ** 2).sum(), rtol=1e-6)


@pytest.mark.parametrize(("squares", "factor"), [((0.25, 0.0), 1.0), ((9.0, 16.0), 0.2)])
def test_clip_factor(pools, squares, factor):
    out = np.zeros((), np.float32)
    update.clip_factor(pools[0], ClipFactor(1.0), list(np.float32(squares)), [out])
    assert out == pytest.approx(factor, rel=1e-6)
