"""The compiled kernels, run from their PTX, agree with the definitions as the emulated ones do.

The table of samples of all operations, and convolutions by every algorithm; what is quick has one
kernel of each family. The bounds are those of `test_every_sample.py` and `test_conv.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from doubles import ptx_machine
from doubles.ptx_machine import PtxLauncher
from support.conv_shapes import SHAPES, draw, parts
from support.op_samples import SAMPLES
from support.quick import quick

from ooctrain.layers import (
    batch_norm,
    combine,
    conv2d,
    dropout,
    function,
    linear,
    losses,
    pooling,
    regions,
    relu,
    resampling,
    update,
)
from ooctrain.layers.conv2d import CUDA_ALGORITHMS, choose_algorithm
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx
from ooctrain.step.op import to_logical
from ooctrain.testing.check_cuda import check_cuda, run_cuda

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
BY_PTX = PtxLauncher()
#: one of each family of kernels
FAMILIES = (
    function.Tanh, batch_norm.BatchNormStats, batch_norm.BatchNormApply, combine.Concat,
    losses.SoftmaxCrossEntropy, dropout.Dropout, linear.Linear, pooling.MaxPool2d,
    regions.InsertAdd, losses.MeanError, relu.ReLU, update.AdamUpdate, resampling.Upsample,
)  # fmt: skip
QUICK_SHAPE = "odd channels"
CAPABILITIES = pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])


def samples():
    """The table; convolutions by an algorithm that every shape has."""
    for op, arrays in SAMPLES:
        yield replace(op, algorithm="naive") if hasattr(op, "algorithm") else op, arrays


@pytest.mark.parametrize(
    "family", quick(FAMILIES, *range(1, len(FAMILIES), 6)), ids=lambda family: family.__name__
)
def test_a_kernel_of_each_family(family):
    op, arrays = next((op, arrays) for op, arrays in samples() if isinstance(op, family))
    check_cuda(op, *arrays, tolerance=2e-5, launchers=[BY_PTX])


@pytest.mark.slow
@CAPABILITIES
def test_every_sample(capability):
    failed = {}
    for op, arrays in samples():
        try:
            check_cuda(op, *arrays, tolerance=2e-5, launchers=[PtxLauncher(capability)])
        except Exception as error:
            failed[repr(op)] = str(error)[:500]
    assert not failed


def convolutions():
    """Every algorithm, shape and direction that there is."""
    for algorithm in CUDA_ALGORITHMS:
        for name in SHAPES:
            if choose_algorithm(SHAPES[name], algorithm) == algorithm:
                for part in range(3):
                    quick = name == QUICK_SHAPE and part == 0
                    marks = () if quick else pytest.mark.slow
                    yield pytest.param(algorithm, name, part, marks=marks)


@pytest.mark.parametrize(("algorithm", "name", "part"), list(convolutions()))
def test_convolutions_are_exact_on_integers(algorithm, name, part):
    shape = SHAPES[name]
    op, inputs = list(parts(shape, algorithm, draw(shape)))[part]
    (want,) = op.reference(*inputs, scalars={})
    (found,) = run_cuda(op, inputs, {}, BY_PTX)
    np.testing.assert_array_equal(to_logical(found), want, err_msg=op.name)


@pytest.mark.slow
def test_bits_do_not_depend_on_how_many_blocks_run_at_once(monkeypatch):
    op, arrays = next((o, a) for o, a in samples() if isinstance(o, conv2d.Conv2dGradWeight))
    found = [run_cuda(op, arrays, {}, BY_PTX)[0]]
    for lanes in (1, 10_000):
        monkeypatch.setattr(ptx_machine, "LANES_AT_ONCE", lanes)
        found.append(run_cuda(op, arrays, {}, BY_PTX)[0])
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
