"""Upsampling, reflection and dropout for GPUs, in the emulator."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.quick import quick

from ooctrain.layers.dropout import Dropout
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.resampling import ReflectionPad2d, ReflectionPad2dGrad, Upsample, UpsampleGrad
from ooctrain.step.op import to_physical
from ooctrain.testing.check_cuda import check_cuda, run_cuda
from ooctrain.testing.check_op import SCALARS, run_guarded

EPS = np.finfo(np.float32).eps
# (N, C, H, W), (OH, OW)
SIZES = [
    ((2, 3, 7, 5), (14, 10)),
    ((1, 4, 7, 5), (3, 13)),
    ((1, 17, 2, 3), (1, 1)),
    ((1, 1, 1, 1), (4, 3)),
    ((2, 8, 5, 4), (5, 4)),
]


def normal(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("shape", "size"), quick(SIZES, 1, 4, names=2))
def test_nearest(shape, size):
    check_cuda(Upsample(size), normal(*shape), tolerance=0)
    copies = (-(-size[0] // shape[2]) + 1) * (-(-size[1] // shape[3]) + 1)
    check_cuda(UpsampleGrad(shape[2:]), normal(*shape[:2], *size), tolerance=copies * EPS)


@pytest.mark.slow
@pytest.mark.parametrize("corners", quick([False, True], 1))
@pytest.mark.parametrize(("shape", "size"), quick(SIZES, 1, 4, names=2))
def test_bilinear(shape, size, corners):
    # Four products of three roundings, three sums: a handful of eps of the largest.
    check_cuda(Upsample(size, "bilinear", corners), normal(*shape), tolerance=8 * EPS)
    readers = np.prod([2 * out / extent + 2 for out, extent in zip(size, shape[2:], strict=True)])
    grad = UpsampleGrad(shape[2:], "bilinear", corners)
    check_cuda(grad, normal(*shape[:2], *size), tolerance=(readers + 8) * EPS)


@pytest.mark.slow
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 20480), (1, 1, 30011, 1)])
def test_positions_far_from_the_border_are_exact(shape, corners):
    # In float32 a position of 20,000 pixels would be wrong by a thousandth of a pixel.
    size = tuple(2 * extent + 1 if extent > 1 else 1 for extent in shape[2:])
    x = normal(*shape)
    op = Upsample(size, "bilinear", corners)
    (y,) = run_cuda(op, [x])
    scale = size[0] * size[1] / (shape[2] * shape[3])
    at = np.arange(y.size) * ((x.size - 1) / (y.size - 1)) if corners else None
    at = np.maximum((np.arange(y.size) + 0.5) / scale - 0.5, 0) if at is None else at
    want = np.interp(at, np.arange(x.size), x.ravel().astype(np.float64))
    assert np.abs(y.ravel() - want).max() <= 8 * EPS * np.abs(x).max()


@pytest.mark.parametrize("sides", quick([(1, 2, 3, 4), (0, 0, 1, 0), (6, 6, 4, 4)], 0))
@pytest.mark.parametrize("channels", quick([3, 4, 17], 1))
def test_reflection(channels, sides):
    top, bottom, left, right = sides
    check_cuda(ReflectionPad2d(sides), normal(2, channels, 7, 5), tolerance=0)
    dy = normal(2, channels, 7 + top + bottom, 5 + left + right)
    check_cuda(ReflectionPad2dGrad(sides), dy, tolerance=9 * EPS)


@pytest.mark.parametrize(
    ("shape", "op"),
    [
        ((2, 3, 5, 7), Dropout(0.4, 2)),
        ((1, 8, 4, 1), Dropout(0.1, 5, (1, 0, 2, 1), (2, 8, 9, 8))),
        ((3, 130), Dropout(0.5, 1)),
        ((4, 5), Dropout(1.0, 3)),
        ((4, 5), Dropout(0.0, 3)),
    ],
)
def test_dropout_drops_what_the_cpu_drops(shape, op):
    x = normal(*shape)
    (y,) = check_cuda(op, x, tolerance=EPS)
    (want,) = run_guarded(op, [x], partial(CPU.run, op, ThreadPool(1), scalars=SCALARS), 0)
    np.testing.assert_array_equal(y, want)
    if 0 < op.p < 1 and x.size > 50:
        assert 0 < np.count_nonzero(y) < y.size
        (other,) = run_cuda(op, [x], {**SCALARS, "step": 4})
        assert (other != y).any()


def test_a_tile_drops_what_the_whole_drops():
    x = normal(2, 4, 6, 6)
    (whole,) = run_cuda(Dropout(0.4, 2), [x])
    tile = Dropout(0.4, 2, (0, 0, 3, 1), (2, 4, 6, 6))
    (part,) = run_cuda(tile, [x[:, :, 3:, 1:5]])
    np.testing.assert_array_equal(part, whole[:, 3:, 1:5])
    assert whole.shape == to_physical(x).shape
