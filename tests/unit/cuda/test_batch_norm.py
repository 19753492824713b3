"""Batch norm for GPUs, in the emulator: stated bounds against float64, fused against unfused to the
bit, the cpu's bits where nothing is summed over rows.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_facts import assemble, check_ptx, why_no_assembler
from support.quick import quick

from ooctrain.layers.batch_norm import (
    BatchNormApply,
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
    BatchNormUpdate,
    InverseStd,
)
from ooctrain.layers.combine import Add
from ooctrain.layers.kernels.cuda import batch_norm, chunks, columns
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, why_no_ptx
from ooctrain.layers.relu import ReLU, ReLUGrad
from ooctrain.step.op import to_logical, to_physical
from ooctrain.testing.check_cuda import check_cuda, cpu_bits, run_cuda
from ooctrain.testing.check_op import SCALARS

EPS = float(np.finfo(np.float32).eps)
ROUNDING = EPS / 2
BN_EPS = 1e-5
# One channel; a cut last quad; whole quads; more than a block's 32 channels; several chunks of
# rows (with 32 lanes a block has 64 rows under way); batches that end within a chunk.
SHAPES = [(5, 1), (3, 5, 2, 3), (2, 4, 3, 3), (3, 33, 5, 1), (2, 40, 9, 13), (70, 3)]


def problem(shape, seed=0):
    rng = np.random.default_rng((seed, *shape))
    x, dy, residual = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    gamma = rng.uniform(0.5, 1.5, shape[1]).astype(np.float32)
    beta = rng.standard_normal(shape[1]).astype(np.float32)
    return 2 * x + 1, dy, residual, gamma, beta


def rows_of(x):
    """(rows, channels) in float64."""
    return to_physical(x).reshape(-1, x.shape[1]).astype(np.float64)


def check_statistics(x, found):
    """The bounds that `batch_norm_stats.stats` states."""
    mean, inv_std, var = found
    rows = rows_of(x)
    roundings = batch_norm.joins(chunks.columns(*rows.shape)) * ROUNDING
    largest, exact = np.abs(rows).max(0), rows.var(0)
    assert (np.abs(mean - rows.mean(0)) <= roundings * largest).all()
    bound = 2 * roundings * exact + (roundings * largest) ** 2
    assert (np.abs(var - exact) <= bound).all()
    np.testing.assert_allclose(inv_std, 1 / np.sqrt(var.astype(np.float64) + BN_EPS), rtol=2 * EPS)


@pytest.mark.slow
@pytest.mark.parametrize("shape", quick(SHAPES, 2))
def test_statistics(shape):
    x = problem(shape)[0]
    check_statistics(x, check_cuda(BatchNormStats(BN_EPS), x, tolerance=1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("first_row", [0.0, 1e3])
def test_a_large_mean_does_not_destroy_the_variance(first_row):
    rng = np.random.default_rng(1)
    x = (1e3 + rng.standard_normal((700, 5))).astype(np.float32)
    x[0] = first_row
    found = run_cuda(BatchNormStats(BN_EPS), [x])
    check_statistics(x, found)
    np.testing.assert_allclose(found[2], x.astype(np.float64).var(0), rtol=1e-4)


@pytest.mark.slow
def test_a_constant_channel_has_variance_zero():
    mean, inv_std, var = run_cuda(BatchNormStats(BN_EPS), [np.full((300, 3), 0.1, np.float32)])
    np.testing.assert_allclose(mean, 0.1, rtol=1e-6)
    assert (var < 1e-12).all()
    np.testing.assert_allclose(inv_std, BN_EPS**-0.5, rtol=1e-5)


@pytest.mark.slow
def test_infinite_values_give_no_finite_statistics():
    x = problem((40, 3))[0]
    x[17, 1] = np.inf
    mean, _, var = run_cuda(BatchNormStats(BN_EPS), [x])
    assert np.isfinite(mean).tolist() == np.isfinite(var).tolist() == [True, False, True]


def statistics(x):
    rows = rows_of(x)
    inv_std = 1 / np.sqrt(rows.var(0) + BN_EPS)
    return rows.mean(0).astype(np.float32), inv_std.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("shape", quick([(5, 1), (3, 5, 2, 3), (2, 40, 9, 13)], 2))
def test_apply_fused_and_apart(shape):
    x, _, residual, gamma, beta = problem(shape)
    inputs = [x, *statistics(x), gamma, beta]
    (plain,) = check_cuda(BatchNormApply(), *inputs, tolerance=4 * EPS)
    (rectified,) = check_cuda(BatchNormApply(relu=True), *inputs, tolerance=4 * EPS)
    fused = BatchNormApply(relu=True, residual=True)
    (found,) = check_cuda(fused, *inputs, residual, tolerance=4 * EPS)
    assert rectified.tobytes() == run_cuda(ReLU(), [to_logical(plain)])[0].tobytes()
    apart = run_cuda(Add(relu=True), [to_logical(plain), residual])[0]
    assert found.tobytes() == apart.tobytes()
    for mine, op, more in [(plain, BatchNormApply(), []), (found, fused, [residual])]:
        theirs = cpu_bits(op, *inputs, *more)[0]
        np.testing.assert_allclose(mine, theirs, rtol=EPS, atol=EPS)


def test_apply_keeps_nan():
    x, _, _, gamma, beta = problem((40, 17))
    inputs = [x, *statistics(x), gamma, beta]
    x[3, 5] = np.nan
    (y,) = run_cuda(BatchNormApply(relu=True), inputs)
    assert np.isnan(y[3, 5])
    assert np.isnan(y).sum() == 1


@pytest.mark.slow
@pytest.mark.parametrize("shape", quick(SHAPES, 2))
def test_sums_of_the_gradient(shape):
    """The stated bound, and with a mask the bits of a separate ReLU gradient."""
    x, dy, y, *_ = problem(shape)
    mean, inv_std = statistics(x)
    dgamma, dbeta = check_cuda(
        BatchNormGradReduce(mask=True), dy, x, mean, inv_std, y, tolerance=1e-5
    )
    dz = rows_of(dy) * (rows_of(y) > 0)
    products = dz * (rows_of(x) - mean) * inv_std
    roundings = (columns.SUM_ROUNDINGS + 3) * ROUNDING
    assert (np.abs(dbeta - dz.sum(0)) <= roundings * np.abs(dz).sum(0)).all()
    assert (np.abs(dgamma - products.sum(0)) <= roundings * np.abs(products).sum(0)).all()
    masked = ReLUGrad().reference(dy, y, scalars=SCALARS)[0]
    apart = run_cuda(BatchNormGradReduce(), [masked, x, mean, inv_std])
    assert [a.tobytes() for a in apart] == [dgamma.tobytes(), dbeta.tobytes()]


@pytest.mark.parametrize("shape", quick([(5, 1), (3, 5, 2, 3), (2, 40, 9, 13)], 2))
@pytest.mark.parametrize("mask", [False, True])
def test_gradient_of_the_input(shape, mask):
    x, dy, y, gamma, _ = problem(shape)
    mean, inv_std = statistics(x)
    sums = run_cuda(BatchNormGradReduce(), [dy, x, mean, inv_std])
    masks = [y] if mask else []
    op, inputs = BatchNormGradApply(mask=mask), [dy, x, mean, inv_std, gamma, *sums, *masks]
    (dx,) = check_cuda(op, *inputs, tolerance=8 * EPS)
    np.testing.assert_allclose(dx, cpu_bits(op, *inputs)[0], rtol=2 * EPS, atol=2 * EPS)


def test_gradient_in_evaluation():
    x, dy, y, gamma, _ = problem((2, 5, 3, 3))
    inputs = [dy, x, *statistics(x), gamma, y]
    check_cuda(BatchNormGradApply(batch_stats=False, mask=True), *inputs, tolerance=4 * EPS)


@pytest.mark.parametrize("momentum", quick([0.1, None], 0))
@pytest.mark.parametrize("counted", quick([True, False], 0))
def test_running_statistics(momentum, counted):
    if momentum is None and not counted:
        return
    rng = np.random.default_rng(3)
    vectors = [rng.uniform(0.5, 2, 300).astype(np.float32) for _ in range(4)]
    counts = [np.asarray(6, np.int64)] if counted else []
    op = BatchNormUpdate(momentum, rows=7, counted=counted)
    found = check_cuda(op, *vectors, *counts, tolerance=3 * EPS)
    if counted:
        assert found[2] == 7


@pytest.mark.slow
def test_inverse_deviation_for_evaluation():
    check_cuda(InverseStd(0.5), np.linspace(0, 9, 35, dtype=np.float32), tolerance=2 * EPS)


@pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
@pytest.mark.slow  # all kernels are compiled in `contracts/test_ptx_of_every_kernel.py`
@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_ptx(capability):
    """No float64, no local memory; eight rows under way; the passes over elements in quads."""
    for module in (batch_norm, batch_norm):
        for compiled in vars(module).values():
            if isinstance(compiled, Kernel):
                facts = check_ptx(compiled, capability)
                if not why_no_assembler():
                    assert assemble(facts).spill_bytes == 0
    # Two quads of each array a thread, and what both share of each vector of channels once.
    for name, quads, vectors in (("_apply", 2, 4), ("_apply_add", 4, 4), ("_grad_apply", 6, 5)):
        facts = check_ptx(getattr(batch_norm, name), capability)
        assert facts.count("st.global.v4") == 2
        assert facts.count("ld.global.v4") == quads + vectors
    # Eight rows at a time, once without a test for the last row and once with it.
    assert check_ptx(batch_norm._stats, capability).count("ld.global.f32") == 2 * 8
