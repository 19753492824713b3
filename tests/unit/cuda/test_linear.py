"""The products of a linear layer on a GPU, in the emulator: odd sizes, splits, bounds."""

from __future__ import annotations

import numpy as np
import pytest
from support.quick import quick

from ooctrain.errors import ShapeError
from ooctrain.layers.kernels.cuda import matmul_blocking
from ooctrain.layers.kernels.cuda.chunks import WAVE_BLOCKS
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.linear import Linear, LinearGradInput, LinearGradWeight
from ooctrain.step.op import Spec
from ooctrain.testing.check_cuda import check_cuda

UNIT = 2.0**-24  # of a rounding to nearest
# rows N, inputs I, outputs O
SIZES = [
    (1, 1, 1), (3, 5, 4), (64, 64, 64), (2, 130, 65), (65, 17, 3), (2, 1030, 9), (67, 132, 136),
]  # fmt: skip


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def check_product(op, a, b, inputs, bias=0.0):
    """|error| <= (terms of a split + splits + 2) roundings of |a| |b| + |bias|, elementwise."""
    (found,) = check_cuda(op, *inputs)
    rows, columns, depth = a.shape[0], b.shape[1], a.shape[1]
    a, b = a.astype(np.float64), b.astype(np.float64)
    terms = min(depth, matmul_blocking.terms_of_split(rows, columns, depth))
    roundings = terms + matmul_blocking.splits(rows, columns, depth) + 2
    bound = roundings * UNIT * (np.abs(a) @ np.abs(b) + np.abs(bias))
    assert (np.abs(found - (a @ b + bias)) <= bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("size", quick(SIZES, 0, 1, 4))
def test_forward(size):
    rows, inputs, outputs = size
    x, w, bias = normal(rows, inputs), normal(outputs, inputs), normal(outputs)
    check_product(Linear(), x, w.T, (x, w))
    check_product(Linear(), x, w.T, (x, w, bias), bias)


@pytest.mark.parametrize("size", quick(SIZES, 4))
def test_gradients(size):
    rows, inputs, outputs = size
    x, w, dy = normal(rows, inputs), normal(outputs, inputs), normal(rows, outputs)
    check_product(LinearGradInput(), dy, w, (dy, w))
    check_product(LinearGradWeight(), dy.T, x, (x, dy))


def test_integers_are_exact_in_any_split():
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((3, 1025), (5, 1025)))
    assert matmul_blocking.splits(3, 5, 1025) > 1
    check_cuda(Linear(), x, w, tolerance=0)


def test_extents_that_32_bits_cannot_count_are_refused():
    """Rows, columns and terms are counted in 32 bits, some with a sign, up to a tile further."""
    most = matmul_blocking.MOST_EXTENT
    assert most + WAVE_BLOCKS * matmul_blocking.STEP + matmul_blocking.COLUMNS < 2**31
    x, w, y = (Spec(shape, "float32") for shape in ((2, most), (10, most), (2, 10)))
    assert CUDA.workspace_bytes(Linear(), (x, w), (y,), 1) > 0
    x, w = (Spec((rows, most + 1), "float32") for rows in (2, 10))
    with pytest.raises(ShapeError, match="too large for the cuda device"):
        CUDA.workspace_bytes(Linear(), (x, w), (y,), 1)


def test_splits_cover_the_sum_and_none_is_empty():
    for rows, columns in ((1, 1), (32, 4096), (4096, 25088)):
        for depth in (1, 16, 17, 511, 1024, 1025, 25088):
            terms = matmul_blocking.terms_of_split(rows, columns, depth)
            parts = matmul_blocking.splits(rows, columns, depth)
            assert terms % matmul_blocking.STEP == 0
            assert (parts - 1) * terms < depth <= parts * terms
            assert parts <= WAVE_BLOCKS
    # The first linear layer of VGG-16 on a batch of 32: 32 tiles alone would not fill a GPU.
    assert matmul_blocking.splits(32, 4096, 25088) == 8
    assert matmul_blocking.workspace_bytes(4096, 25088, 32) == 0
