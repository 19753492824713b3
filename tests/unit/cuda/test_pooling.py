"""Pooling for GPUs, in the emulator: against the definition in float64 and the cpu's bits."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.quick import quick

from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.image_rows import row_start
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel, uint32
from ooctrain.layers.pooling import (
    AdaptiveAvgPool2d,
    AdaptiveAvgPool2dGrad,
    AvgPool2d,
    AvgPool2dGrad,
    MaxPool2d,
    MaxPool2dGrad,
    PoolGeometry,
)
from ooctrain.step.op import to_physical
from ooctrain.testing.check_cuda import check_cuda, run_cuda
from ooctrain.testing.check_op import run_guarded
from ooctrain.testing.emulator import EmulatedLauncher

EPS = np.finfo(np.float32).eps
# (N, C, H, W), windows
CASES = [
    ((2, 1, 8, 8), PoolGeometry((2, 2), (2, 2))),
    ((1, 3, 9, 7), PoolGeometry((3, 3), (2, 2), (1, 1, 1, 1))),
    ((1, 17, 9, 10), PoolGeometry((3, 2), (1, 2), (1, 0, 0, 1))),
    ((2, 20, 7, 12), PoolGeometry((2, 3), (3, 1), (0, 1, 1, 0))),
    ((3, 4, 5, 5), PoolGeometry((5, 5), (1, 1), (2, 2, 2, 2))),
    ((1, 64, 3, 11), PoolGeometry((1, 3), (2, 4), (0, 0, 2, 0))),
    ((1, 8, 1, 1), PoolGeometry((1, 1), (1, 1))),
]
DILATED = [
    ((2, 5, 9, 7), PoolGeometry((3, 2), (2, 1), (1, 0, 1, 2), (2, 3))),
    ((1, 8, 12, 12), PoolGeometry((3, 3), (3, 2), (2, 2, 2, 2), (2, 2))),
]
ADAPTIVE = [((2, 3, 7, 5), (3, 2)), ((1, 4, 6, 9), (1, 1)), ((1, 5, 2, 3), (7, 5))]


def normal(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def cpu_bits(op, *inputs):
    """What the cpu's kernel gives, physical."""
    return run_guarded(op, inputs, partial(CPU.run, op, ThreadPool(1), scalars={}), 0)


@pytest.mark.parametrize(("shape", "geometry"), quick(CASES + DILATED, 3, 4, 8, names=2))
def test_max_pool_has_the_bits_of_the_cpu(shape, geometry):
    x = normal(*shape)
    found = check_cuda(MaxPool2d(geometry), x, tolerance=0)
    for mine, theirs in zip(found, cpu_bits(MaxPool2d(geometry), x), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_first_maximum_wins_but_the_last_nan():
    x = np.full((1, 4, 4, 4), -np.inf, np.float32)
    x[0, 1] = 1.0
    x[0, 2, 1, 1], x[0, 2, 1, 2], x[0, 2, 0, 0] = np.nan, np.nan, np.inf
    x[0, 3] = np.arange(16).reshape(4, 4) % 5
    geometry = PoolGeometry((3, 3), (1, 1), (1, 1, 1, 1))
    y, index = run_cuda(MaxPool2d(geometry), [x])
    want_y, want_index = cpu_bits(MaxPool2d(geometry), x)
    np.testing.assert_array_equal(y, want_y)
    np.testing.assert_array_equal(index, want_index)
    assert np.isnan(y[0, 1, 1, 2])
    assert index[0, 0, 0, 0] == 4  # the corner's window begins in the padding


@pytest.mark.parametrize(("shape", "geometry"), quick(CASES + DILATED, 3, 4, 8, names=2))
def test_max_pool_grad_gathers_what_the_windows_chose(shape, geometry):
    x = normal(*shape)
    index = MaxPool2d(geometry).reference(x, scalars={})[1]
    dy = normal(*index.shape)
    # A pixel adds up at most the windows that cover it: one rounding each.
    covering = -(-geometry.kernel[0] // geometry.stride[0]) * geometry.kernel[1]
    check_cuda(MaxPool2dGrad(geometry, shape[2:]), dy, index, tolerance=covering * EPS)


@pytest.mark.parametrize("counted", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(("shape", "geometry"), quick(CASES, 4, names=2))
def test_average_pool(shape, geometry, counted):
    x = normal(*shape)
    # Rows first, then their sums, then one division: |error| <= (kh + kw + 1) eps mean|x|.
    bound = (sum(geometry.kernel) + 1) * EPS * float(np.abs(x).max())
    (y,) = check_cuda(AvgPool2d(geometry, counted), x, tolerance=1e-5)
    (want,) = AvgPool2d(geometry, counted).reference(x.astype(np.float64), scalars={})
    assert np.abs(y - to_physical(want)).max() <= bound
    grad, dy = AvgPool2dGrad(geometry, shape[2:], counted), normal(*want.shape)
    check_cuda(grad, dy, tolerance=(sum(geometry.kernel) + 2) ** 2 * EPS)


@pytest.mark.parametrize(("shape", "size"), ADAPTIVE)
def test_adaptive_average_pool(shape, size):
    x = normal(*shape)
    check_cuda(AdaptiveAvgPool2d(size), x, tolerance=20 * EPS)
    check_cuda(AdaptiveAvgPool2dGrad(shape[2:]), normal(*shape[:2], *size), tolerance=20 * EPS)


def test_extents_whose_products_need_64_bits():
    # 40000 * 70001 > 2^31: where a window begins is found with 64 bits.
    x = normal(1, 1, 1, 40000)
    check_cuda(AdaptiveAvgPool2d((1, 70001)), x, tolerance=4 * EPS)


@kernel("void(u4[::1], u4, u4, u8[::1])", threads=32)
def _row_starts(rows, columns, channels, starts):
    i = uint32(cuda.threadIdx.x)
    if i < rows.size:
        starts[i] = row_start(rows[i], columns, channels)


def test_rows_of_arrays_with_more_than_2_to_the_32_elements():
    # 20,480 x 20,480 x 64 of paper 004's largest image, and the last row that a grid can have.
    rows = np.array([0, 1, 20479, 2**31 - 1], np.uint32)
    starts = np.zeros(4, np.uint64)
    EmulatedLauncher().launch(_row_starts, 1, rows, 20480, 64, starts)
    assert starts.tolist() == [int(row) * 20480 * 64 for row in rows]
