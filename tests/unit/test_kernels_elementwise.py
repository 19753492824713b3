"""Elementwise kernels against NumPy: values, aliasing, poison, same bits for any threads."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain.layers.kernels.cpu import chunks, functions
from ooctrain.layers.kernels.cpu import elementwise as ew
from ooctrain.layers.kernels.cpu import workspace as ws

SIZES = [1, 3, 17, 64, 1000, 70_001, 600_001]


def data(size, count=1, seed=0):
    rng = np.random.default_rng(seed + size)
    arrays = [rng.standard_normal(size, dtype=np.float32) for _ in range(count)]
    return arrays[0] if count == 1 else arrays


def poisoned(shape):
    return np.full(shape, np.nan, np.float32)


UNARY = {
    "relu": (lambda p, x, y: ew.relu(p, x, y), lambda x: np.maximum(x, 0)),
    "leaky": (
        lambda p, x, y: functions.leaky_relu(p, x, y, 0.2),
        lambda x: np.where(x > 0, x, 0.2 * x),
    ),
    "tanh": (lambda p, x, y: functions.tanh(p, x, y), np.tanh),
    "sigmoid": (lambda p, x, y: functions.sigmoid(p, x, y), lambda x: 1 / (1 + np.exp(-x))),
    "scale": (lambda p, x, y: ew.scale(p, x, y, 0.3), lambda x: x * 0.3),
}
# In the gradients the second argument is the output of the forward kernel (leaky ReLU: input).
BINARY = {
    "add": (lambda p, a, b, y: ew.add(p, a, b, y), lambda a, b: a + b),
    "add_relu": (
        lambda p, a, b, y: ew.add(p, a, b, y, relu=True),
        lambda a, b: np.maximum(a + b, 0),
    ),
    "relu_grad": (lambda p, a, b, y: ew.relu_grad(p, a, b, y), lambda a, b: a * (b > 0)),
    "leaky_grad": (
        lambda p, a, b, y: functions.leaky_relu_grad(p, a, b, y, 0.2),
        lambda a, b: np.where(b > 0, a, 0.2 * a),
    ),
    "tanh_grad": (
        lambda p, a, b, y: functions.tanh_grad(p, a, b, y),
        lambda a, b: a * (1 - b * b),
    ),
    "sigmoid_grad": (
        lambda p, a, b, y: functions.sigmoid_grad(p, a, b, y),
        lambda a, b: a * b * (1 - b),
    ),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(pools, name, size):
    kernel, reference = UNARY[name]
    x = 3 * data(size)
    expected = reference(x.astype(np.float64))
    for pool in pools:
        y = poisoned(size)
        kernel(pool, x, y)
        np.testing.assert_allclose(y, expected, rtol=5e-7, atol=1e-7)
        in_place = x.copy()
        kernel(pool, in_place, in_place)
        assert in_place.tobytes() == y.tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BINARY)
def test_binary(pools, name, size):
    kernel, reference = BINARY[name]
    a, b = data(size, 2)
    expected = reference(a.astype(np.float64), b.astype(np.float64))
    for pool in pools:
        y = poisoned(size)
        kernel(pool, a, b, y)
        np.testing.assert_allclose(y, expected, rtol=5e-7, atol=5e-7)
        for alias in (0, 1):
            pair = [a.copy(), b.copy()]
            kernel(pool, *pair, pair[alias])
            assert pair[alias].tobytes() == y.tobytes(), f"in place over argument {alias}"


@pytest.mark.parametrize("size", SIZES)
def test_add_masked_has_the_bits_of_relu_grad_and_add(pools, size):
    a, dy, y = data(size, 3)
    for pool in pools:
        masked, expected, out = poisoned(size), poisoned(size), poisoned(size)
        ew.relu_grad(pool, dy, y, masked)
        ew.add(pool, a, masked, expected)
        ew.add_masked(pool, a, dy, y, out)
        assert out.tobytes() == expected.tobytes()
        in_place = a.copy()
        ew.add_masked(pool, in_place, dy, y, in_place)
        assert in_place.tobytes() == expected.tobytes()


def test_add_relu_has_the_bits_of_add_and_relu(pools):
    a, b = data(1003, 2)
    fused, apart = poisoned(1003), poisoned(1003)
    ew.add(pools[0], a, b, fused, relu=True)
    ew.add(pools[0], a, b, apart)
    ew.relu(pools[0], apart, apart)
    assert fused.tobytes() == apart.tobytes()


def test_special_values(pools):
    x = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, -1e-40, 1e-40] * 5, np.float32)
    y = poisoned(x.size)
    ew.relu(pools[0], x, y)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    functions.tanh(pools[0], x, y)
    np.testing.assert_array_equal(y, np.tanh(x))
    functions.sigmoid(pools[0], x, y)
    np.testing.assert_array_equal(y[:4], [np.nan, 0, 1, 0.5])


def test_relu_grad_is_zero_where_the_output_is_zero(pools):
    dx = poisoned(40)
    ew.relu_grad(pools[0], np.full(40, np.inf, np.float32), np.zeros(40, np.float32), dx)
    assert not dx.any()


@pytest.mark.parametrize("size", SIZES)
def test_fill(pools, size):
    for pool in pools:
        y = poisoned(size)
        ew.fill(pool, y, -2.5)
        assert (y == -2.5).all()


def test_tanh_and_sigmoid_are_accurate_everywhere(pools):
    x = np.concatenate([np.linspace(-100, 100, 40_001), np.logspace(-30, 2, 5_001)]).astype(
        np.float32
    )
    y = poisoned(x.size)
    functions.tanh(pools[0], x, y)
    np.testing.assert_allclose(y, np.tanh(x.astype(np.float64)), rtol=4e-7)
    functions.sigmoid(pools[0], x, y)
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=4e-7, atol=1e-37)


@pytest.mark.parametrize(
    ("rows", "channels"), [(1, 1), (7, 3), (1000, 17), (5000, 64), (150_000, 3), (900, 1000)]
)
def test_channel_sum(pools, rows, channels):
    dy = data(rows * channels).reshape(rows, channels) + np.float32(10)
    results = set()
    for pool in pools:
        db = poisoned(channels)
        scratch = np.full(ws.channel_sum_workspace_bytes(rows, channels), 255, np.uint8)
        ew.channel_sum(pool, dy, db, scratch)
        np.testing.assert_allclose(db, dy.astype(np.float64).sum(0), rtol=3e-7)
        results.add(db.tobytes())
    assert len(results) == 1


def test_a_strided_output_is_refused_rather_than_copied(pools):
    with pytest.raises(ValueError):
        ew.relu(pools[0], data(8), np.zeros((4, 4), np.float32)[:, :2])


def aligned(size):
    """Poison on a cache line, as variables lie in the arena."""
    space = np.full(size + 16, np.nan, np.float32)
    first = -space.ctypes.data % 64 // 4
    return space[first : first + size]


@pytest.mark.parametrize("size", [16, 70_001, 600_001])
@pytest.mark.parametrize("name", ["add", "add_relu", "relu_grad"])
def test_stores_past_the_caches_change_no_bit(pools, monkeypatch, name, size):
    """Large results go past the caches; aligned or not, in place or not, they are the same."""
    kernel, _ = BINARY[name]
    a, b = data(size, 2)
    expected = poisoned(size)
    kernel(pools[0], a, b, expected)
    monkeypatch.setattr(chunks, "PAST_CACHES_BYTES", 0)
    for pool in pools:
        on_a_line, off_a_line, in_place = aligned(size), aligned(size + 1)[1:], aligned(size)
        in_place[:] = a
        assert chunks.past_caches(on_a_line, a)
        assert not chunks.past_caches(off_a_line, a)
        assert not chunks.past_caches(in_place, in_place)
        kernel(pool, a, b, on_a_line)
        kernel(pool, a, b, off_a_line)
        kernel(pool, in_place, b, in_place)
        for result in (on_a_line, off_a_line, in_place):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("work", [1, 4])
@pytest.mark.parametrize("elements", [1, 1 << 15, (1 << 15) + 1, 1 << 16, 1 << 20, 11_170_000])
def test_chunks_are_few_and_whole(elements, work):
    """At most so many as partial results have room for; small problems are one chunk."""
    for chunk, most in (
        (chunks.element_chunk(elements, work), chunks.MOST_CHUNKS),
        (chunks.reduction_chunk(elements), chunks.MOST_PARTIALS),
    ):
        assert chunks.chunk_count(elements, chunk) <= most
        assert chunk % chunks.ALIGN_ELEMENTS == 0
    small = elements * work <= chunks.INLINE_ELEMENTS
    assert not small or chunks.element_chunk(elements, work) >= elements
