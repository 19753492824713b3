"""Optimizers and clipping for GPUs, in the emulator: float64 formulas and the cpu's bits."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_facts import assemble, check_ptx, why_no_assembler
from support.quick import quick

from ooctrain.layers.kernels.cuda import clipping, update
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, why_no_ptx
from ooctrain.layers.update import (
    AdamUpdate,
    ClipFactor,
    RMSpropUpdate,
    ScaleBy,
    SGDUpdate,
    SumOfSquares,
)
from ooctrain.testing.check_cuda import check_cuda, cpu_bits, run_cuda
from ooctrain.testing.check_op import SCALARS

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
RMSPROP = [
    RMSpropUpdate(),
    RMSpropUpdate(0.9, 1e-6, 0.1, 0.8),
    RMSpropUpdate(0.9, 1e-6, 0.1, centered=True),
    RMSpropUpdate(0.9, 1e-6, 0.0, "momentum", True),
]


def normal(size, seed=0):
    return np.random.default_rng((seed, size)).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("op", quick(SGD, 0, 3, 4), ids=repr)
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


@pytest.mark.slow  # Adam is tried at once
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", RMSPROP, ids=repr)
def test_rmsprop(op, size):
    mean, extra = normal(size, 2), normal(size, 4)
    # Weights and squares are so large that no difference loses a digit.
    square = np.abs(normal(size, 3)) + mean**2 + normal(size, 1) ** 2
    inputs = [3 + normal(size), normal(size, 1), square]
    inputs += [mean] * op.centered + [extra] * bool(op.momentum)
    found = check_cuda(op, *inputs, scalars={**SCALARS, "momentum": 0.7}, tolerance=16 * EPS)
    theirs = cpu_bits(op, *inputs, scalars={**SCALARS, "momentum": 0.7})
    for mine, other in zip(found, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=4 * EPS, atol=EPS)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 2048, 5001])
def test_sum_of_squares(size):
    """Within the stated bound."""
    g = 3 * normal(size)
    (found,) = check_cuda(SumOfSquares(), g, tolerance=1e-6)
    wanted = np.sum(np.square(g, dtype=np.float64))
    assert found.dtype == np.float32
    assert abs(found - wanted) <= clipping.SQUARES_ROUNDINGS * EPS / 2 * wanted


@pytest.mark.parametrize("count", [1, 8, 9, 21])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_factor(count, max_norm):
    """Every sum counts once, whatever their number; factors are at most 1."""
    squares = [np.float32(1 + 0.37 * i) for i in range(count)]
    (found,) = check_cuda(ClipFactor(max_norm), *squares, tolerance=4 * EPS)
    assert (found < 1) == (max_norm < 1)


def test_small_sums_of_squares_are_not_lost_beside_a_large_one():
    """Each of 4000 is less than half a rounding of the total; together they are 1/5 of it."""
    squares = [np.float32(1)] + [np.float32(0.8 * EPS / 2)] * 4000
    (found,) = run_cuda(ClipFactor(0.5), squares)
    norm = np.sqrt(np.sum(np.array(squares, np.float64)))
    bound = clipping.FACTOR_ROUNDINGS * EPS / 2
    assert abs(found * (norm + 1e-6) / 0.5 - 1) <= bound
    assert bound < 0.8 * EPS / 2 * 4000 / 4, "a plain sum would be further off"


@pytest.mark.slow
@pytest.mark.parametrize("power", [62, 64, 100])
def test_a_sum_of_squares_that_float32_cannot_hold_is_infinite_as_on_the_cpu(power):
    """In a thread's sum, in a block's, in that of the blocks: infinite stays infinite."""
    for size in (7, 5001):
        g = normal(size)
        g[size // 3 :: 1000] = np.float32(2.0**power)
        (found,), (want,) = run_cuda(SumOfSquares(), [g]), cpu_bits(SumOfSquares(), g)
        np.testing.assert_allclose(found, want, rtol=clipping.SQUARES_ROUNDINGS * EPS)


@pytest.mark.parametrize("count", [1, 2, 9, 300])
def test_a_norm_beyond_two_to_the_64th_clips_as_on_the_cpu(count):
    largest = np.finfo(np.float32).max
    for squares in ([largest] * count, [np.float32(np.inf), *[largest] * count]):
        (found,), (want,) = run_cuda(ClipFactor(2.0), squares), cpu_bits(ClipFactor(2.0), *squares)
        assert found == pytest.approx(want, rel=clipping.FACTOR_ROUNDINGS * EPS / 2, abs=0)


def test_clipping_a_norm_that_is_not_a_number_says_so_as_in_torch():
    for count, place in ((1, 0), (9, 3), (9, 8)):
        squares = [np.float32(np.nan if i == place else 1) for i in range(count)]
        (found,) = run_cuda(ClipFactor(1.0), squares)
        assert np.isnan(found)


@pytest.mark.parametrize("size", SIZES)
def test_scale_by(size):
    check_cuda(ScaleBy(), normal(size), np.float32(1 / 3), tolerance=EPS)


@pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
@pytest.mark.slow  # all kernels are compiled in `contracts/test_ptx_of_every_kernel.py`
@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_ptx(capability):
    """No float64, nothing spilled; loads of 16 bytes."""
    kernels = [v for v in (*vars(update).values(), *vars(clipping).values())
               if isinstance(v, Kernel)]  # fmt: skip
    for compiled in kernels:
        facts = check_ptx(compiled, capability)
        if not why_no_assembler():
            made = assemble(facts)
            assert made.spill_bytes == 0
            assert made.registers <= 42, "six blocks of 256 threads fit a multiprocessor"
    assert check_ptx(update._sgd, capability).count("ld.global.v4") % 3 == 0
    adam = check_ptx(update._adam, capability)
    assert adam.count("ld.global.v4") % 4 == 0
    assert adam.count("sqrt.rn.f32") >= 4, "the root is rounded correctly, as on the cpu"
