"""Pooling against a loop over windows in float64: odd shapes, padding, NaN and tiles."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain.layers.kernels.cpu import pooling
from ooctrain.layers.pooling import PoolGeometry

# (N, H, W, C), kernel, stride, (top, bottom, left, right)
CASES = [
    ((2, 8, 8, 1), (2, 2), (2, 2), (0, 0, 0, 0)),
    ((1, 9, 7, 3), (3, 3), (2, 2), (1, 1, 1, 1)),
    ((2, 9, 10, 17), (3, 2), (1, 2), (1, 0, 0, 1)),
    ((1, 11, 6, 64), (3, 3), (1, 1), (1, 1, 1, 1)),
    ((2, 7, 12, 100), (2, 3), (3, 1), (0, 1, 1, 0)),
    ((3, 5, 5, 5), (5, 5), (1, 1), (2, 2, 2, 2)),
    ((4, 40, 40, 33), (3, 3), (2, 2), (1, 1, 1, 1)),
]


def poisoned(shape):
    return np.full(shape, np.nan, np.float32)


def output_shape(x_shape, kernel, stride, padding):
    n, h, w, c = x_shape
    oh = (h + padding[0] + padding[1] - kernel[0]) // stride[0] + 1
    ow = (w + padding[2] + padding[3] - kernel[1]) // stride[1] + 1
    return n, oh, ow, c


def windows(x_shape, kernel, stride, padding):
    """Yields (oh, ow, rows, columns), the window clipped to the image."""
    _, oh_count, ow_count, _ = output_shape(x_shape, kernel, stride, padding)
    for oh in range(oh_count):
        for ow in range(ow_count):
            h, w = oh * stride[0] - padding[0], ow * stride[1] - padding[2]
            yield (
                oh,
                ow,
                slice(max(h, 0), min(h + kernel[0], x_shape[1])),
                slice(max(w, 0), min(w + kernel[1], x_shape[2])),
            )


@pytest.mark.parametrize("case", CASES)
def test_max_pool(pools, case):
    shape, kernel, stride, padding = case
    geometry = PoolGeometry(kernel, stride, padding)
    rng = np.random.default_rng(0)
    # Few distinct values: ties are common, and the first maximum must win.
    x = rng.integers(-3, 4, shape).astype(np.float32)
    out = output_shape(*case)
    dy = rng.integers(-5, 6, out).astype(np.float32)
    expected, expected_dx, expected_index = np.zeros(out), np.zeros(shape), np.zeros(out, int)
    for oh, ow, rows, columns in windows(*case):
        window = x[:, rows, columns]
        flat = window.reshape(shape[0], -1, shape[3])
        first = flat.argmax(1)
        expected[:, oh, ow] = flat.max(1)
        width = columns.stop - columns.start
        h, w = rows.start + first // width, columns.start + first % width
        r, s = h - (oh * stride[0] - padding[0]), w - (ow * stride[1] - padding[2])
        expected_index[:, oh, ow] = r * kernel[1] + s
        n, c = np.indices(first.shape)
        np.add.at(expected_dx, (n, h, w, c), dy[:, oh, ow])
    for pool in pools:
        y, index, dx = poisoned(out), np.full(out, 255, np.uint8), poisoned(shape)
        pooling.max_pool(pool, x, y, index, geometry)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(index, expected_index)
        pooling.max_pool_grad(pool, dy, index, dx, geometry)
        np.testing.assert_array_equal(dx, expected_dx)


def test_max_pool_lets_nan_through_and_survives_minus_infinity(pools):
    x = np.full((1, 4, 4, 20), -np.inf, np.float32)
    x[0, 1, 0, 3] = np.nan
    x[0, 0, 0, 3] = 7
    x[0, 1, 1, 3] = 9
    y, index, dx = poisoned((1, 2, 2, 20)), np.full((1, 2, 2, 20), 255, np.uint8), poisoned(x.shape)
    pooling.max_pool(pools[0], x, y, index, PoolGeometry((2, 2), (2, 2)))
    assert np.isnan(y[0, 0, 0, 3])
    assert index[0, 0, 0, 3] == 2
    assert (y[0, 1] == -np.inf).all()
    pooling.max_pool_grad(pools[0], np.ones_like(y), index, dx, PoolGeometry((2, 2), (2, 2)))
    assert dx.sum() == y.size


@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_avg_pool(pools, case, count_include_pad):
    shape, kernel, stride, padding = case
    geometry = PoolGeometry(kernel, stride, padding)
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape, dtype=np.float32)
    out = output_shape(*case)
    dy = rng.standard_normal(out, dtype=np.float32)
    expected, expected_dx = np.zeros(out), np.zeros(shape)
    for oh, ow, rows, columns in windows(*case):
        cells = (rows.stop - rows.start) * (columns.stop - columns.start)
        cells = kernel[0] * kernel[1] if count_include_pad else cells
        expected[:, oh, ow] = x[:, rows, columns].sum((1, 2), dtype=np.float64) / cells
        expected_dx[:, rows, columns] += dy[:, oh, ow][:, None, None].astype(np.float64) / cells
    seen = set()
    for pool in pools:
        y, dx = poisoned(out), poisoned(shape)
        pooling.avg_pool(pool, x, y, geometry, count_include_pad)
        pooling.avg_pool_grad(pool, dy, dx, geometry, count_include_pad)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dx, expected_dx, rtol=1e-5, atol=1e-6)
        seen.add(y.tobytes() + dx.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("count_include_pad", [True, False])
def test_a_tile_averages_like_the_whole_image(pools, count_include_pad):
    """Output rows 0..2 and 3..5 of a padded pooling, each from a tile with its own padding."""
    x = np.random.default_rng(2).standard_normal((1, 12, 12, 19), dtype=np.float32)
    whole = poisoned((1, 6, 6, 19))
    pooling.avg_pool(
        pools[0], x, whole, PoolGeometry((3, 3), (2, 2), (1, 1, 1, 1)), count_include_pad
    )
    # Output row o reads input rows 2o - 1 .. 2o + 1: the upper tile 0..5, the lower one 5..11.
    for rows, top, bottom, out in (
        (slice(0, 6), 1, 0, slice(0, 3)),
        (slice(5, 12), 0, 0, slice(3, 6)),
    ):
        tile = poisoned((1, 3, 6, 19))
        part = np.ascontiguousarray(x[:, rows])
        geometry = PoolGeometry((3, 3), (2, 2), (top, bottom, 1, 1))
        pooling.avg_pool(pools[0], part, tile, geometry, count_include_pad)
        assert tile.tobytes() == whole[:, out].tobytes()


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 8, 8, 16), (1, 1)),
        ((3, 7, 7, 100), (1, 1)),
        ((2, 7, 5, 3), (3, 2)),
        ((1, 13, 13, 17), (6, 6)),
        ((2, 3, 4, 1), (7, 7)),
        ((2, 6, 6, 64), (6, 6)),
        ((8, 32, 32, 40), (1, 1)),
    ],
)
def test_adaptive_avg_pool(pools, shape, size):
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape, dtype=np.float32)
    dy = rng.standard_normal((shape[0], *size, shape[3]), dtype=np.float32)
    expected, expected_dx = np.zeros(dy.shape), np.zeros(shape)
    for oh in range(size[0]):
        for ow in range(size[1]):
            rows = slice(oh * shape[1] // size[0], -(-(oh + 1) * shape[1] // size[0]))
            columns = slice(ow * shape[2] // size[1], -(-(ow + 1) * shape[2] // size[1]))
            cells = (rows.stop - rows.start) * (columns.stop - columns.start)
            expected[:, oh, ow] = x[:, rows, columns].mean((1, 2), dtype=np.float64)
            expected_dx[:, rows, columns] += dy[:, oh, ow][:, None, None].astype(np.float64) / cells
    seen = set()
    for pool in pools:
        y, dx = poisoned(dy.shape), poisoned(shape)
        pooling.adaptive_avg_pool(pool, x, y)
        pooling.adaptive_avg_pool_grad(pool, dy, dx)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dx, expected_dx, rtol=1e-5, atol=1e-6)
        seen.add(y.tobytes() + dx.tobytes())
    assert len(seen) == 1
