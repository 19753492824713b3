"""Kernels that walk along axes, on sizes of several chunks: against their definitions, and the same
bits for any number of threads. Small shapes, with gradients: tests/support/function_samples.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.draws import normal, positive

import ooctrain as oc
from ooctrain.engine.tensor import call, current_tape
from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.extremes import MaxAlong
from ooctrain.layers.function import FUNCTIONS, Elementwise, ElementwiseGrad
from ooctrain.layers.kernels.walks import permuted, repeated, walk
from ooctrain.layers.losses import ValueLoss
from ooctrain.layers.permute import MOST_AXES, Permute
from ooctrain.layers.reduction import Spread, Sum, groups_of_axes
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.testing.check_op import check_kernel

IMAGES = (2, 20, 70, 50)
LARGE = [
    (Sum((1,), 0.5), (normal(3, 70_001),)),
    (Sum((1,)), (normal(3, 1_100_001),)),
    (Sum((0, 2, 3), 0.5), (normal(3, 5, 130, 150),)),
    (Sum((2, 3)), (normal(2, 37, 200, 210),)),
    (Sum((0,)), (normal(3, 70_001),)),
    (Spread(IMAGES), (normal(2, 20, 1, 1),)),
    (Elementwise("gelu"), (normal(2, 40_000) * 3,)),
    (Arithmetic("multiply"), (normal(*IMAGES), normal(20, 1, 1))),
    (Arithmetic("multiply"), (normal(*IMAGES), normal(2, 20, 1, 1))),
    (Arithmetic("divide"), (normal(*IMAGES), positive(70, 50))),
    (Permute((0, 2, 3, 1)), (normal(*IMAGES),)),
    (Permute((1, 0)), (normal(301, 411),)),
    (SoftmaxAlong(1), (normal(*IMAGES),)),
    (MaxAlong((1,)), (normal(*IMAGES),)),
    (MaxAlong((2, 3)), (normal(*IMAGES),)),
    (MaxAlong((1,)), (normal(3, 70_001),)),
    (SoftmaxAlong(2, log=True), (normal(*IMAGES),)),
]


@pytest.mark.parametrize(
    ("op", "arrays"), LARGE, ids=lambda v: repr(v) if hasattr(v, "vjp") else ""
)
def test_large(op, arrays):
    check_kernel(op, arrays, tolerance=2e-6)


@pytest.mark.parametrize("shape", [(5, 203), (3, 64, 7), (2, 33, 130), (4, 3), (1, 1)])
def test_the_first_of_the_largest(shape):
    """Of equal ones the first, of NaN too, wherever they are, and of nothing but -infinity."""
    rng = np.random.default_rng(0)
    for values in ([-1.0, 0.5, 2.0], [-3.0, -np.inf], [-np.inf], [0.25, np.nan, np.inf, 1.0]):
        x = rng.choice(np.float32(values), shape)
        y, index = current_tape().call(MaxAlong((1,)), [oc.tensor(x)])
        assert np.array_equal(y.numpy(), x.max(1, keepdims=True), equal_nan=True)
        assert np.array_equal(index.numpy(), x.argmax(1).reshape(index.shape))


def test_sums_keep_their_digits():
    x = np.full((1, 3_000_001), 0.1, np.float32)
    exact = 3_000_001 * float(x[0, 0])
    assert abs(float(oc.tensor(x).sum().numpy()) - exact) <= 2e-7 * exact


#: Functions whose slope is infinite or none at 1e-30, 100 or their negatives.
UNBOUNDED = ("exp", "log", "sqrt", "length", "power")


def test_functions_far_out():
    values = np.array([np.nan, np.inf, -np.inf, 100, -100, 1e-30, -1e-30, 1e30, -1e30], np.float32)
    for name, function in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            want = function.value(values.astype(np.float64), 0.5)
        found = call(Elementwise(name, 0.5), oc.tensor(values)).numpy()
        assert np.isnan(found[0]), name
        finite = np.isfinite(want) & (np.abs(want) < 1e30)
        assert np.allclose(found[finite], want[finite], rtol=1e-6, atol=1e-38), name
        slope = call(
            ElementwiseGrad(name, 0.5), oc.tensor(np.ones(9, np.float32)), oc.tensor(values)
        ).numpy()
        assert name in UNBOUNDED or np.isfinite(slope[3:7]).all(), name


def test_exponentials_logarithms_and_roots_of_any_number():
    """Beyond the range of the fast ones: to 2 units in the last place, subnormal numbers too, and
    infinite or NaN where NumPy is."""
    tiny = np.float32([0, -0.0, 1e-45, 3e-42, 1.1e-38, 2e-38, np.inf, -np.inf, np.nan, 3e38])
    steps = np.arange(-110, 95, 0.371, dtype=np.float32)
    for name, values in (("exp", steps), ("exp", tiny), ("log", np.exp2(steps)), ("log", tiny),
                         ("log", -tiny), ("sqrt", tiny)):  # fmt: skip
        with np.errstate(all="ignore"):
            exact = FUNCTIONS[name].value(values.astype(np.float64), 0.4)
            want = exact.astype(np.float32)
        found = call(Elementwise(name, 0.4), oc.tensor(values)).numpy()
        assert np.array_equal(np.isfinite(found), np.isfinite(want)), name
        assert np.array_equal(found[~np.isfinite(want)], want[~np.isfinite(want)], equal_nan=True)
        sound = np.isfinite(want)
        away = np.abs(found[sound] - exact[sound])
        assert (away <= 2 * np.spacing(np.abs(want[sound]))).all(), name


@pytest.mark.parametrize("p", [0.75, -0.5, 1 / 3, 4.0, -3.0, 2.5, 9.3, 1.0, 0.0])
def test_powers_of_any_number(p):
    """To 2 units in the last place, and one more for each whole number in the exponent."""
    steps = np.exp2(np.arange(-148, 128, 0.371)).astype(np.float32)
    odd = np.float32([0, np.inf, np.nan, 1, -1, 1e-45, 3e-39])
    for values in (steps, -steps, odd):
        with np.errstate(all="ignore"):
            exact = values.astype(np.float64) ** float(np.float32(p))
            want = exact.astype(np.float32)
        found = call(Elementwise("power", p), oc.tensor(values)).numpy()
        sound = np.isfinite(want) & ~np.isnan(values)  # NaN to the 0-th is NaN here
        assert np.array_equal(np.isfinite(found[sound]), np.isfinite(want[sound]))
        away = np.abs(found[sound] - exact[sound]) / np.spacing(np.abs(want[sound]))
        assert away.max(initial=0) <= 2 + abs(p)
        beyond = ~np.isfinite(want)
        assert np.array_equal(found[beyond], want[beyond], equal_nan=True)
    all_of_them = call(Elementwise("power", p), oc.tensor(steps)).numpy()
    alone = call(Elementwise("power", p), oc.tensor(steps[300:301])).numpy()
    assert alone[0] == all_of_them[300]


def test_a_small_loss_of_a_sure_network_is_no_zero():
    x, t = np.array([[20.0, -20, 60]], np.float32), np.array([[1.0, 0, 1]], np.float32)
    found = call(ValueLoss("binary_cross_entropy"), oc.tensor(x), oc.tensor(t)).numpy()
    assert np.allclose(found, [[math.exp(-20), math.exp(-20), math.exp(-60)]], rtol=1e-6, atol=0)


def test_walks_merge_what_lies_side_by_side():
    shape = (2, 3, 5, 7)
    assert walk(shape, repeated(shape, shape)).extents == (1,) * (MOST_AXES - 1) + (210,)
    per_channel = walk(shape, repeated(shape, shape), repeated((3, 1, 1), shape))
    assert per_channel.extents[-2:] == (70, 3)
    assert per_channel.steps[1][-2:] == (0, 1)
    # The result lies as (n, w, c, h): its columns and channels are neighbours in the input too.
    moved = walk((2, 5, 7, 3), permuted(shape, (0, 2, 3, 1)))
    assert moved.extents[-3:] == (2, 21, 5)
    assert moved.steps[0][-3:] == (105, 1, 21)


def test_axes_are_grouped_as_they_lie_in_memory():
    assert groups_of_axes((2, 3, 5, 7), (0, 2, 3)) == [(0, 2, 3)]
    assert groups_of_axes((2, 3, 5, 7), (0, 1)) == [(0,), (1,)]
    assert groups_of_axes((2, 3, 5, 7), (1, 3)) == [(1, 3)]
    assert groups_of_axes((2, 3, 1, 7), (0, 3)) == [(0, 3)]
    assert groups_of_axes((2, 3, 5), (0, 2)) == [(0,), (2,)]
