"""What checks of operations and of tilings are made of: guards, tolerances, bounds, views.

A check that allows for more than it says passes all that it is tried on, so each of its numbers
meets a value on either side here. How far a tiled result may lie from the untiled one follows from
the sizes of sums; for a few networks it is known. `test_user_op.py` and `test_check_tiled.py` run
the checks as a whole.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
from support import known
from support.known_steps import row_of

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.engine.own_op import Op as OwnOp
from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.reduction import Sum
from ooctrain.step.op import Op, Spec
from ooctrain.testing.check_op import (
    GUARD_BYTES,
    as_input,
    check_agreement,
    check_gradient,
    check_op,
    check_shapes,
    run_guarded,
    same_bits,
    trace_function,
)
from ooctrain.testing.fake_driver import FakeDriver
from ooctrain.testing.fake_gpu import queue
from ooctrain.testing.tiled.check_tiled import (
    SCALARS,
    Allowed,
    TiledReport,
    TiledRow,
    allowed_errors,
    gamma,
    gradient_step,
    random_values,
    resummed,
    terms_of,
)

ONES = np.ones((2, 3), np.float32)


# Guards


@dataclass(frozen=True, slots=True)
class Twice(Op):
    """Twice its first input, where that is, and the sum of both."""

    reuse: bool = False

    def infer(self, x: Spec, y: Spec) -> tuple[Spec, ...]:
        return x, Spec(x.shape, x.dtype)

    def reference(self, x, y, scalars):
        return 2 * x, x + y

    def reusable(self):
        return {0: 0} if self.reuse else {}


class Written:
    """A kernel: right, but for what `wrong` does to its arrays."""

    def __init__(self, wrong=lambda ins, outs, space: None):
        self.wrong, self.seen = wrong, []

    def __call__(self, ins, outs, space):
        self.seen = [(a.ctypes.data % 64, a.tobytes()) for a in (*ins, *outs, space)]
        self.given = [a.copy() for a in ins]
        outs[1][...] = ins[0] + ins[1]
        outs[0][...] = 2 * ins[0]
        self.wrong(ins, outs, space)


def around(array: np.ndarray, before: int) -> np.ndarray:
    """The byte `before` bytes in front of an array, or behind its end for a negative number."""
    at = array.ctypes.data - before if before > 0 else array.ctypes.data + array.nbytes - before - 1
    return np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 1).from_address(at))


def test_a_kernel_gets_aligned_arrays_full_of_garbage_and_its_results_come_back():
    kernel = Written()
    out = run_guarded(Twice(), [ONES, 2 * ONES], kernel, 40)
    assert [a.tolist() for a in out] == [(2 * ONES).tolist(), (3 * ONES).tolist()]
    assert [place for place, _ in kernel.seen] == [0] * 5
    assert kernel.seen[4][1] == b"\x55" * 40
    assert np.isnan(np.frombuffer(kernel.seen[2][1], np.float32)).all()
    assert [a.tolist() for a in kernel.given] == [ONES.tolist(), (2 * ONES).tolist()]
    in_place = run_guarded(Twice(True), [ONES, 2 * ONES], kernel, 0, in_place=True)
    assert same_bits(out, in_place)
    assert kernel.seen[2] == kernel.seen[0]
    apart = run_guarded(Twice(True), [ONES, 2 * ONES], kernel, 0)
    assert same_bits(out, apart)
    assert np.isnan(np.frombuffer(kernel.seen[2][1], np.float32)).all()


@pytest.mark.parametrize("before", [1, GUARD_BYTES, -1, -GUARD_BYTES])
@pytest.mark.parametrize("which", range(5))
def test_a_byte_that_is_written_outside_is_noticed(before, which):
    def wrong(ins, outs, space):
        around((*ins, *outs, space)[which], before)[:] = 7

    named = ("an input", "an input", "an output", "an output", "the workspace")[which]
    with pytest.raises(AssertionError, match=named):
        run_guarded(Twice(), [ONES, ONES], Written(wrong), 64)


@pytest.mark.parametrize("which", [0, 1])
def test_an_input_that_is_changed_is_noticed_but_where_it_may_be(which):
    def wrong(ins, outs, space):
        ins[which][0] += 1

    with pytest.raises(AssertionError, match=f"input {which}"):
        run_guarded(Twice(), [ONES, ONES], Written(wrong), 0)
    if which:
        with pytest.raises(AssertionError, match="input 1"):
            run_guarded(Twice(True), [ONES, ONES], Written(wrong), 0, in_place=True)
    else:
        run_guarded(Twice(True), [ONES, ONES], Written(wrong), 0, in_place=True)


@pytest.mark.parametrize(
    ("off", "fine"), [(0.9, True), (1.1, False), (-1.1, False), (math.nan, False)]
)
def test_a_kernel_agrees_within_the_tolerance_of_the_largest(off, fine):
    right = [2 * ONES, 3 * ONES]
    wrong = [right[0], right[1].astype("float64")]
    wrong[1][1, 1] += 3 * 1e-3 * off
    if fine:
        check_agreement(Twice(), [ONES, 2 * ONES], wrong, {}, 1e-3)
        return
    with pytest.raises(AssertionError):
        check_agreement(Twice(), [ONES, 2 * ONES], wrong, {}, 1e-3)


def test_shapes_are_those_that_are_inferred():
    check_shapes(Twice(), [ONES, ONES])
    with pytest.raises(AssertionError, match="infer says"):
        check_shapes(Twice(), [ONES, np.ones((4, 2, 3), np.float32)])


def test_inputs_are_floats_of_32_bits_or_whole_numbers():
    assert as_input([1.5, 2.0]).dtype == np.float32
    assert as_input([1, 2]).dtype.kind == "i"
    assert as_input(2.5).dtype == np.float64
    assert same_bits([ONES], [ONES.copy()])
    assert not same_bits([ONES, ONES], [ONES, 2 * ONES])
    assert not same_bits([np.float32([0.0])], [np.float32([-0.0])])


# Gradients


@dataclass(frozen=True, slots=True)
class Squared(Op):
    """The square, whose gradient is off by a part, or of another shape."""

    off: float = 0.0

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (x,)

    def reference(self, x, scalars):
        return (x * x,)

    def vjp(self, tape, ins, outs, grads):
        twice = tape.call(Scaled(2 + self.off), [ins[0]])[0]
        return [tape.call(Arithmetic("multiply"), [twice, grads[0]])[0]]


@dataclass(frozen=True, slots=True)
class Scaled(Op):
    """A multiple."""

    factor: float

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (x,)

    def reference(self, x, scalars):
        return (self.factor * x,)


@pytest.mark.parametrize(
    ("off", "fine"), [(0.0, True), (2e-6, True), (2e-5, False), (-2e-5, False)]
)
def test_a_gradient_that_is_off_is_noticed(off, fine):
    from ooctrain.engine.tensor import current_tape

    values = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)
    squared = lambda x: current_tape().call(Squared(off), [x])[0]  # noqa: E731
    if fine:
        check_gradient(squared, values)
        return
    with pytest.raises(AssertionError, match="gradient of input 0"):
        check_gradient(squared, values)


def test_a_function_is_recorded_with_its_gradients_as_it_was():
    def function(x, y, labels):
        return [(x * y), F.relu(x).sum()]

    arrays = [ONES, 2 * ONES, np.arange(3)]
    rows = []
    for gradient in (True, False):
        step = trace_function(function, arrays, gradient)
        rows.append((gradient, " ".join(sorted(step.outputs)), *row_of(step)))
        assert [step.variables[v].name for v in step.initial][:2] == ["x0", "x1"]
    known.check_rows("checks", "recorded", rows)


def test_an_operation_is_checked_as_a_whole():
    check_op(Arithmetic("multiply"), ONES * 1.5, ONES * 0.5)
    check_op(Sum((0, 1), 0.5), np.linspace(1, 2, 12).reshape(2, 6))


class Wrong(OwnOp):
    """Its gradient is twice what it should be."""

    def shape(self, x):
        return x

    def forward(self, x):
        return x * x

    def backward(self, dy, x):
        return 4 * dy * x


def test_gradients_are_checked_where_that_is_asked_for():
    x = np.linspace(1, 2, 6, dtype=np.float32)
    check_op(Wrong(), x, gradient=False)
    with pytest.raises(AssertionError, match="gradient of input 0"):
        check_op(Wrong(), x)
    check_op(NoVjp(), x)
    with pytest.raises(AssertionError, match="infer says"):
        check_op(OtherShape(), x)


class NoVjp(OwnOp):
    """It has no gradient."""

    def shape(self, x):
        return x

    def forward(self, x):
        return x + 1


class OtherShape(NoVjp):
    """It says that its output is longer than it is."""

    def shape(self, x):
        return (x[0] + 1,)


# How far a tiled result may be off


def network(widths=(3, 4, 4)) -> nn.Module:
    first, second, third = widths
    return nn.Sequential(
        nn.Conv2d(first, second, 3, padding=1), nn.BatchNorm2d(second), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(second, third, 3, padding=1), nn.AvgPool2d(2), nn.ReLU(),
    )  # fmt: skip


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.Flatten(),
                         nn.Linear(2 * 6 * 6, 4))  # fmt: skip


TILINGS = {
    "bands of a norm": (network, (2, 3, 12, 8), ("bands:3",)),
    "bands": (plain, (3, 2, 8, 8), ("bands:2",)),
    "tiles": (plain, (2, 2, 8, 8), ("tile:2x2:0",)),
    "bands again": (plain, (3, 2, 8, 8), ("bands_again:2",)),
}  # fmt: skip


@pytest.mark.parametrize("name", TILINGS)
def test_what_is_allowed_is_what_it_was(name):
    make, image, tilings = TILINGS[name]
    rows = []
    for algorithm in ("direct", "winograd2"):
        step = gradient_step(make(), image, conv_algorithm=algorithm, threads=1)
        rng = np.random.default_rng(3)
        values = {v.name: rng.integers(-3, 4, v.shape).astype("float32") for v in step.variables}
        sums = resummed(step, tilings)
        allowed = allowed_errors(step, tilings, values, SCALARS)
        found = [
            (v, a.relative, None if a.size is None else float(a.size.sum()),
             float(np.sum(a.bound(step.variables[v].shape))))
            for v, a in sorted(allowed.items())
        ]  # fmt: skip
        rows.append((algorithm, *row_of(step), known.digest(sorted(sums.items(), key=str)),
                     known.digest([terms_of(step, call) for call in step.calls]),
                     known.digest(found), sum(a.relative == 0 for a in allowed.values()),
                     sum(a.relative is None for a in allowed.values())))  # fmt: skip
    known.check_rows("checks", name, rows)


def test_the_bound_of_a_sum_is_higham_s():
    unit = 2.0**-24
    assert gamma(0) == 0
    assert gamma(10) == 10 * unit / (1 - 10 * unit)
    assert Allowed(0.5, np.array([2.0, 3.0])).bound((2,)).tolist() == [2, 3]
    assert Allowed(0.5, np.array([2.0])).bound((2, 2)).tolist() == [[2, 2], [2, 2]]
    assert (
        Allowed().bound((2,)).tolist() == Allowed(None, np.ones(2)).bound((2,)).tolist() == [0, 0]
    )


def test_values_are_drawn_as_they_were():
    step = gradient_step(network(), (2, 3, 8, 8), threads=1)
    for integers in (2, 5, None):
        found = random_values(step, 4, integers=integers)
        for variable in (step.variables[v] for v in step.initial):
            array = found[variable.name]
            assert (array.shape, str(array.dtype)) == (variable.shape, variable.dtype)
            if variable.kind == "state":
                assert (array >= 0).all()
            if integers is not None:
                assert np.abs(array).max() <= integers
                assert (array == np.round(array)).all()
            elif array.size > 30 and variable.kind != "state":
                assert np.abs(array).max() > 1.2
                assert (array < 0).any()
    same = random_values(step, 4)
    assert all(np.array_equal(same[k], random_values(step)[k]) is (k not in same) for k in ("x",))


@pytest.mark.parametrize(("got", "bound", "holds"), [
    (1.0, 0.0, True), (1.0 + 1e-9, 0.0, False), (1.5, 0.5, True), (0.5, 0.5, True),
    (1.51, 0.5, False), (math.nan, 0.5, False), (math.inf, 9.0, False),
])  # fmt: skip
def test_a_row_holds_within_its_bound(got, bound, holds):
    row = TiledRow("y", "bound", 1.0, bound, (0,), 1.0, got)
    assert row.holds == holds
    report = TiledReport(("bands:2",), (row, replace(row, name="grad:x", promise="bits")))
    assert "1 results to the bit, 1 within bounds" in repr(report)
    assert str(report).splitlines()[0] == "bands:2"
    assert len(str(report).splitlines()) == 4


# Arrays on the fake


class Named:
    """Notes which bytes a kernel names."""

    def launch(self, stream, ranges, run, name):
        self.ranges = ranges


@pytest.mark.parametrize("seed", range(10))
def test_a_kernel_names_the_bytes_of_its_arrays_those_in_common_once(seed):
    """Arrays that only touch stay apart: they may lie in memory of different allocations."""
    rng, driver = random.Random(seed), Named()
    places = [(rng.randrange(40), rng.randrange(6)) for _ in range(7)]
    queue(
        driver, 1, [DeviceArray(at, (size,), np.dtype("uint8")) for at, size in places], print, "k"
    )
    bytes_of = [set(range(at, at + size)) for at, size in places if size]
    while any(one & other for one, other in combinations(bytes_of, 2)):
        one, other = next(pair for pair in combinations(bytes_of, 2) if pair[0] & pair[1])
        bytes_of = [each for each in bytes_of if each not in (one, other)] + [one | other]
    assert driver.ranges == sorted((min(each), len(each)) for each in bytes_of)


def test_arrays_over_the_same_bytes_share_them():
    driver = FakeDriver(1 << 20, 4096)
    stream, base = driver.create_stream(), driver.allocate(8192)
    driver.write(base, np.zeros(8192, np.uint8))
    arrays = [
        DeviceArray(base + offset, (count,), np.dtype("float32"))
        for offset, count in ((0, 4), (8, 4), (24, 2), (4000, 40), (64, 0))
    ]
    seen = []

    def run(held):
        seen.append([a.ctypes.data % 64 for a in held])
        held[0][:] = [1, 2, 3, 4]
        seen.append(held[1].tolist())
        held[2][:] = 7
        held[3][:] = np.arange(40)
        assert held[4].shape == (0,)

    queue(driver, stream, arrays, run, "kernel")
    assert not seen
    driver.drain()
    assert seen[0][:4] == [(base + offset) % 64 for offset in (0, 8, 24, 4000)]
    assert seen[1] == [3, 4, 0, 0]
    assert driver.read(base, 32).view(np.float32).tolist() == [1, 2, 3, 4, 0, 0, 7, 7]
    assert driver.read(base + 4000, 160).view(np.float32).tolist() == list(range(40))
