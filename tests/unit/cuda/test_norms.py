"""Instance norm for GPUs, in the emulator: each image by itself, with the bits of batch norm."""

from __future__ import annotations

import numpy as np
import pytest
from support.quick import quick

from ooctrain.layers.batch_norm import BatchNormGradReduce, BatchNormStats
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
    InstanceNormStats,
)
from ooctrain.layers.kernels.cuda import batch_norm, chunks, columns
from ooctrain.step.op import to_physical
from ooctrain.testing.check_cuda import check_cuda, run_cuda

EPS = float(np.finfo(np.float32).eps)
ROUNDING = EPS / 2
NORM_EPS = 1e-5
# One channel; a thread for each channel, and for four; more than a block's 32; several chunks.
SHAPES = [(2, 1, 3, 3), (3, 5, 2, 3), (2, 8, 3, 5), (2, 37, 9, 13)]


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def statistics(x):
    inv_std = 1 / np.sqrt(x.astype(np.float64).var((2, 3)) + NORM_EPS)
    return x.mean((2, 3), np.float64).astype(np.float32), inv_std.astype(np.float32)


@pytest.mark.slow  # `test_ptx_samples.py` tries statistics of images, too
@pytest.mark.parametrize("shape", quick(SHAPES, 2))
def test_statistics_are_those_of_each_image_alone(shape):
    x = 2 * normal(*shape) + 1
    mean, inv_std = check_cuda(InstanceNormStats(NORM_EPS), x)
    images, channels, height, width = shape
    cut = chunks.columns(height * width, channels, images)
    bound = batch_norm.joins(cut) * ROUNDING * np.abs(x).max((2, 3))
    assert (np.abs(mean - x.mean((2, 3), np.float64)) <= bound).all()
    for n in range(images):
        alone = run_cuda(BatchNormStats(NORM_EPS), [x[n : n + 1]])
        assert [mean[n].tobytes(), inv_std[n].tobytes()] == [a.tobytes() for a in alone[:2]]


@pytest.mark.parametrize("shape", quick(SHAPES, 2))
@pytest.mark.parametrize("mask", [False, True])
def test_sums_of_the_gradient(shape, mask):
    dy, x, y = (normal(*shape, seed=s) for s in range(3))
    inputs = [dy, x, *statistics(x)]
    masks = [y] if mask else []
    dz_xhat, dz_sum = check_cuda(InstanceNormGradReduce(mask), *inputs, *masks)
    dz = dy.astype(np.float64) * ((y > 0) if mask else 1)
    bound = (columns.SUM_ROUNDINGS + 3) * ROUNDING * np.abs(dz).sum((2, 3))
    assert (np.abs(dz_sum - dz.sum((2, 3))) <= bound).all()
    for n in range(shape[0]):
        alone = [a[n : n + 1] for a in (dy, x)] + [v[n] for v in inputs[2:]]
        found = run_cuda(BatchNormGradReduce(mask), alone + [m[n : n + 1] for m in masks])
        assert [dz_xhat[n].tobytes(), dz_sum[n].tobytes()] == [a.tobytes() for a in found]


@pytest.mark.slow
@pytest.mark.parametrize("shape", quick(SHAPES, 2))
@pytest.mark.parametrize("affine", [False, True])
def test_apply_and_gradient_of_the_input(shape, affine):
    x, dy, y = (normal(*shape, seed=s) for s in range(3))
    gamma, beta = normal(shape[1], seed=1), normal(shape[1], seed=2)
    inputs, vectors = [x, *statistics(x)], [gamma, beta] if affine else []
    check_cuda(InstanceNormApply(affine), *inputs, *vectors, tolerance=4 * EPS)
    check_cuda(InstanceNormApply(affine, True), *inputs, *vectors, tolerance=4 * EPS)
    fused = InstanceNormApply(affine, relu=True, residual=True)
    check_cuda(fused, *inputs, *vectors, y, tolerance=4 * EPS)
    sums = normal(*shape[:2], seed=5), normal(*shape[:2], seed=6)
    gradient = [dy, *inputs, *vectors[:1], *sums]
    check_cuda(InstanceNormGradApply(affine), *gradient, tolerance=8 * EPS)
    check_cuda(InstanceNormGradApply(affine, True), *gradient, y, tolerance=8 * EPS)


def test_apply_keeps_nan():
    x = normal(2, 3, 2, 2)
    inputs = [x, *statistics(x)]
    x[1, 2, 0, 1] = np.nan
    (y,) = run_cuda(InstanceNormApply(relu=True), inputs)
    assert (np.isnan(y) == np.isnan(to_physical(x))).all()
