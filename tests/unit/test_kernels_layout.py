"""Layout kernels, dropout and the stream copy: exact against NumPy indexing."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ooctrain.engine.autograd import tensor
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.kernels.cpu import chunks, dropout, layout
from ooctrain.layers.kernels.cpu.runtime import copy
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.layout import Reshape
from ooctrain.step.op import Spec, physical_shape, to_logical, to_physical

SHAPE = (2, 9, 11, 17)
BLOCKS = [  # offsets and extents (n, h, w, c)
    ((0, 0, 0, 0), (2, 9, 11, 17)),
    ((1, 2, 3, 0), (1, 5, 4, 17)),
    ((0, 4, 0, 0), (2, 5, 11, 17)),
    ((0, 1, 2, 3), (2, 3, 4, 5)),
    ((1, 8, 10, 16), (1, 1, 1, 1)),
    ((0, 0, 0, 1), (2, 9, 11, 16)),
]


def normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def poisoned(shape):
    return np.full(shape, np.nan, np.float32)


@pytest.mark.parametrize("block", BLOCKS)
def test_slice_and_inserts(pools, block):
    at, extent = block
    region = tuple(slice(a, a + e) for a, e in zip(at, extent, strict=True))
    x, src = normal(SHAPE), normal(extent, 1)
    for pool in pools:
        y = poisoned(extent)
        layout.slice_nhwc(pool, x, y, *at)
        np.testing.assert_array_equal(y, x[region])
        expected, dst = x.copy(), x.copy()
        expected[region] = src
        layout.insert_nhwc(pool, src, dst, *at)
        np.testing.assert_array_equal(dst, expected)
        expected[region] += src
        layout.insert_add_nhwc(pool, src, dst, *at)
        np.testing.assert_array_equal(dst, expected)


def test_a_large_insert_in_many_chunks(pools):
    src, dst = normal((3, 64, 64, 24)), poisoned((3, 64, 64, 40))
    layout.insert_nhwc(pools[1], src, dst, 0, 0, 0, 16)
    np.testing.assert_array_equal(dst[..., 16:], src)
    assert np.isnan(dst[..., :16]).all()


def lines_poisoned(shape, floats_off_a_line):
    """NaNs that begin so many elements behind the start of a cache line."""
    size = int(np.prod(shape))
    space = poisoned(size + 32)
    first = -space.ctypes.data % 64 // 4 + floats_off_a_line
    return space[first : first + size].reshape(shape)


@pytest.mark.parametrize("floats_off_a_line", [0, 1, 4])
@pytest.mark.parametrize(
    ("channels", "c0", "wide"), [(16, 16, 48), (64, 0, 80), (16, 8, 32), (17, 0, 32)]
)
def test_inserts_past_the_caches_change_no_bit(
    pools, monkeypatch, channels, c0, wide, floats_off_a_line
):
    """Whole lines stream, others do not; the gaps between the runs stay as they were."""
    monkeypatch.setattr(chunks, "PAST_CACHES_BYTES", 0)
    src = normal((3, 40, 40, channels))
    for pool in pools:
        dst = lines_poisoned((3, 40, 40, wide), floats_off_a_line)
        whole_lines = not (floats_off_a_line or c0 % 16 or channels % 16)
        assert layout._gaps_past_caches(dst, c0, channels) == whole_lines
        layout.insert_nhwc(pool, src, dst, 0, 0, 0, c0)
        np.testing.assert_array_equal(dst[..., c0 : c0 + channels], src)
        assert np.isnan(dst[..., :c0]).all()
        assert np.isnan(dst[..., c0 + channels :]).all()


def test_a_reshape_from_image_to_image_allocates_nothing(pools):
    """From one channels-last layout to another, by way of the workspace."""
    source, shape = (4, 8, 32, 32), (4, 32, 16, 16)
    op, x = Reshape(source, shape), normal(source)
    workspace = np.empty(CPU.workspace_bytes(op, [Spec(source)], [Spec(shape)], 1), np.uint8)
    physical, out = to_physical(x), poisoned(physical_shape(shape))
    for pool in pools:
        CPU.run(op, pool, [physical], [out], workspace, {})  # the first call imports and compiles
        out[:] = np.nan
        tracemalloc.start()
        CPU.run(op, pool, [physical], [out], workspace, {})
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        np.testing.assert_array_equal(to_logical(out), x.reshape(shape))
        assert peak_bytes < x.nbytes // 2


@pytest.mark.parametrize("shape", [(2, 60), (2, 6, 2, 5), (2, 3, 20)])
def test_images_of_whole_numbers_are_reshaped_too(shape):
    numbers = np.arange(120).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(tensor(numbers).reshape(shape).numpy(), numbers.reshape(shape))
    there_and_back = tensor(numbers).reshape(shape).reshape(numbers.shape)
    np.testing.assert_array_equal(there_and_back.numpy(), numbers)


def test_only_large_arrays_with_gaps_are_written_past_the_caches():
    """What fits the caches is read from them soon; a block without gaps is no dearer to write."""
    large = lines_poisoned((6, 128, 128, 64), 0)  # exactly 24 MiB
    assert layout._gaps_past_caches(large, 0, 32)
    assert not layout._gaps_past_caches(large, 0, 64)
    assert not layout._gaps_past_caches(large[:5], 0, 32)


@pytest.mark.parametrize("channels", [(3, 5), (16, 1, 32), (64,), (100, 28)])
def test_concat(pools, channels):
    sources = [normal((3, 30, 20, c), seed) for seed, c in enumerate(channels)]
    for pool in pools:
        y = poisoned((3, 30, 20, sum(channels)))
        layout.concat_nhwc(pool, sources, y)
        np.testing.assert_array_equal(y, np.concatenate(sources, 3))


@pytest.mark.parametrize("sides", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 3, 0), (4, 0, 0, 5)])
@pytest.mark.parametrize("channels", [1, 3, 17, 64])
def test_pad(pools, sides, channels):
    x = normal((2, 5, 6, channels))
    top, bottom, left, right = sides
    expected = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=2.5)
    for pool in pools:
        y = poisoned(expected.shape)
        layout.pad_nhwc(pool, x, y, sides, value=2.5)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 3, 32, 32), (2, 17, 9, 11), (1, 100, 1, 70), (3, 64, 40, 40)]
)
def test_layout_changes(pools, shape):
    x = normal(shape)
    n, c, h, w = shape
    for pool in pools:
        there, back = poisoned((n, h, w, c)), poisoned(shape)
        layout.nchw_to_nhwc(pool, x, there)
        np.testing.assert_array_equal(there, x.transpose(0, 2, 3, 1))
        layout.nhwc_to_nchw(pool, there, back)
        np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (16, 32), (300, 517), (4, 30, 20)])
def test_transpose(pools, shape):
    x = normal(shape)
    for pool in pools:
        y = poisoned((*shape[:-2], shape[-1], shape[-2]))
        layout.transpose(pool, x, y)
        np.testing.assert_array_equal(y, np.swapaxes(x, -1, -2))


def drop(pool, x, y, p, seed, step, call, **block):
    op = Dropout(p, call, **block)
    dropout.dropout(pool, x, y, op, op.key({"seed": seed, "step": step}))


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
def test_dropout_keeps_the_right_share_and_scales_it(pools, p):
    x, y = np.ones((4, 30, 40, 17), np.float32), poisoned((4, 30, 40, 17))
    drop(pools[0], x, y, p, seed=1, step=2, call=3)
    kept = y != 0
    assert abs(kept.mean() - (1 - p)) < 0.005
    np.testing.assert_allclose(y[kept], 1 / (1 - p) if p < 1 else 1)


def test_dropout_is_a_pure_function_of_its_key(pools):
    x = np.ones((2, 40, 40, 30), np.float32)

    def mask(pool, *key):
        y = poisoned(x.shape)
        drop(pool, x, y, 0.5, *key)
        return y

    first = mask(pools[0], 1, 2, 3)
    assert mask(pools[1], 1, 2, 3).tobytes() == first.tobytes()
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (3, 2, 1), (-1, 2, 3)):
        assert abs((mask(pools[0], *other) == first).mean() - 0.5) < 0.01
    # Neighbours in each axis are independent: they agree half the time.
    for axis in range(1, 4):
        a, b = np.delete(first, 0, axis), np.delete(first, -1, axis)
        assert abs((a == b).mean() - 0.5) < 0.01


def test_a_tile_draws_the_mask_of_the_whole(pools):
    x = normal((2, 12, 10, 17))
    whole = poisoned(x.shape)
    drop(pools[0], x, whole, 0.4, 5, 6, 7)
    part = np.ascontiguousarray(x[1:, 3:9, 2:10, 4:])
    tile = poisoned(part.shape)
    drop(pools[1], part, tile, 0.4, 5, 6, 7, offset=(1, 4, 3, 2), full=(2, 17, 12, 10))
    assert tile.tobytes() == whole[1:, 3:9, 2:10, 4:].tobytes()


def test_dropout_of_rows_in_place(pools):
    x = normal((6, 100))
    y, in_place = poisoned(x.shape), x.copy()
    drop(pools[0], x, y, 0.5, 1, 1, 1)
    drop(pools[0], in_place, in_place, 0.5, 1, 1, 1)
    assert in_place.tobytes() == y.tobytes()
    assert 0.3 < (y == 0).mean() < 0.7


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1000, 100_003])
@pytest.mark.parametrize(("to", "start"), [(0, 0), (1, 0), (0, 3), (13, 50)])
def test_stream_copy_copies_exactly_its_bytes(length, to, start):
    source = np.random.default_rng(length).integers(0, 255, length + 64, dtype=np.uint8)
    target = np.full(length + 128, 255, np.uint8)
    copy.stream_copy(target[to : to + length], source[start : start + length])
    np.testing.assert_array_equal(target[to : to + length], source[start : start + length])
    assert (target[:to] == 255).all()
    assert (target[to + length :] == 255).all()
