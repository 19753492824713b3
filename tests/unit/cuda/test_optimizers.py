"""Optimizers and clipping for GPUs, in the emulator: float64 formulas and the cpu's bits."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain.eager import run_cpu
from ooctrain.layers.base import to_physical
from ooctrain.layers.kernels.cpu.pool import ThreadPool
from ooctrain.layers.kernels.cuda import clipping, optimizers
from ooctrain.layers.kernels.cuda.shim import Kernel, why_no_ptx
from ooctrain.layers.update import AdamUpdate, ClipFactor, ScaleBy, SGDUpdate, SumOfSquares
from ooctrain.testing.check_cuda import check_cuda
from ooctrain.testing.check_op import SCALARS, spec_of
from ooctrain.testing.ptx import assemble, check_ptx, why_no_assembler

EPS = float(np.finfo(np.float32).eps)
SIZES = [1, 18, 2051]
SGD = [
    SGDUpdate(),
    SGDUpdate(weight_decay=0.1),
    SGDUpdate(momentum=0.9, weight_decay=0.1),
    SGDUpdate(momentum=0.9, weight_decay=0.1, nesterov=True),
    SGDUpdate(momentum=0.8, dampening=0.3),
]
ADAM = [AdamUpdate(), AdamUpdate(weight_decay=0.1), AdamUpdate(weight_decay=0.1, decoupled=True)]


def normal(size, seed=0):
    return np.random.default_rng((seed, size)).standard_normal(size).astype(np.float32)


def cpu_bits(op, *inputs, scalars=SCALARS):
    pool = ThreadPool(1)
    try:
        outs = op.infer(*map(spec_of, inputs))
        return run_cpu(op, pool, list(map(to_physical, inputs)), outs, scalars)
    finally:
        pool.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("op", SGD, ids=repr)
def test_sgd(op, step, size):
    """In the first step there is no dampening."""
    inputs = [normal(size), normal(size, 1)] + [normal(size, 2)] * bool(op.momentum)
    scalars = {**SCALARS, "step": step}
    found = check_cuda(op, *inputs, scalars=scalars, tolerance=4 * EPS)
    for mine, theirs in zip(found, cpu_bits(op, *inputs, scalars=scalars), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=EPS, atol=EPS / 8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [0, 100])
@pytest.mark.parametrize("op", ADAM, ids=repr)
def test_adam(op, step, size):
    inputs = [normal(size), normal(size, 1), normal(size, 2), np.abs(normal(size, 3))]
    scalars = {**SCALARS, "step": step}
    # In step 0 the correction of the second moment, 1 - 0.999, has lost ten bits already.
    found = check_cuda(op, *inputs, scalars=scalars, tolerance=16 * EPS)
    for mine, theirs in zip(found, cpu_bits(op, *inputs, scalars=scalars), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2 * EPS, atol=EPS)


@pytest.mark.parametrize("size", [1, 7, 2048, 5001])
def test_sum_of_squares(size):
    """Within the stated bound."""
    g = 3 * normal(size)
    (found,) = check_cuda(SumOfSquares(), g, tolerance=1e-6)
    wanted = np.sum(np.square(g, dtype=np.float64))
    assert found.dtype == np.float64
    assert abs(found - wanted) <= clipping.SQUARES_ROUNDINGS * EPS / 2 * wanted


@pytest.mark.parametrize("count", [1, 8, 9, 21])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_factor(count, max_norm):
    """Every sum counts once, whatever their number; factors are at most 1."""
    squares = [np.float64(1 + 0.37 * i) for i in range(count)]
    (found,) = check_cuda(ClipFactor(max_norm), *squares, tolerance=1e-15)
    assert (found < 1) == (max_norm < 1)


def test_clipping_a_norm_that_is_not_a_number_changes_nothing():
    check_cuda(ClipFactor(1.0), np.float64(np.nan), tolerance=0)


@pytest.mark.parametrize("size", SIZES)
def test_scale_by(size):
    check_cuda(ScaleBy(), normal(size), np.float64(1 / 3), tolerance=EPS)


@pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_ptx(capability):
    """Float64 only where the one factor of all gradients is; loads of 16 bytes."""
    kernels = [v for v in (*vars(optimizers).values(), clipping._squares, clipping._clip_value)
               if isinstance(v, Kernel)]  # fmt: skip
    for compiled in kernels:
        facts = check_ptx(compiled, capability)
        if not why_no_assembler():
            made = assemble(facts)
            assert made.spill_bytes == 0
            assert made.registers <= 42, "six blocks of 256 threads fit a multiprocessor"
    assert check_ptx(optimizers._sgd, capability).count("ld.global.v4") % 3 == 0
    adam = check_ptx(optimizers._adam, capability)
    assert adam.count("ld.global.v4") % 4 == 0
    assert adam.count("sqrt.rn.f32") >= 4, "the root is rounded correctly, as on the cpu"
