"""The law of any tiling: between any two calls of any network it is right, or refused by name.

Users name segments by hand, and planners offer them, so an end may lie behind a sum over all rows,
in a value of one pixel, or at an image without rows. Each of these either leaves the results of the
untiled step, as `testing/tiled/check_tiled.py` compares them, or is a `ConfigError`. The examples
that stand here are those that ended in an error of Python's own. Source: docs/tiling.md.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.odd_nets import KINDS, OddNet

import ooctrain as oc
from ooctrain import nn
from ooctrain.errors import ConfigError, Infeasible, OoctrainError
from ooctrain.execution.planners import get_planner
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planning.question import Question
from ooctrain.testing.tiled.check_tiled import (
    TiledRow,
    check_tiled,
    compared,
    gradient_step,
    random_values,
)

PLANS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), min_size=1, max_size=7)
IMAGES = st.sampled_from([(6, 6), (7, 5), (9, 12), (1, 1), (16, 16), (1, 9), (13, 1), (11, 8)])
ENDS = st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))
GRIDS = st.sampled_from(["bands:2", "bands:5", "bands:99", "bands_again:3", "tile:2", "tile:5x3"])
CASE = (PLANS, IMAGES, st.integers(1, 3), GRIDS, ENDS)
PLANNERS = ("banded:untiled=false", "sft:untiled=false")


def named(trace: oc.Trace, grid: str, ends: tuple[int, int] | None) -> str:
    """The tiling between two forward calls, or of the longest chain."""
    if ends is None:
        return grid
    calls = [call.name for call in trace.calls if call.phase == "forward"]
    first, last = sorted(end % len(calls) for end in ends)
    return f"{grid}:{calls[first]}:{calls[last]}"


def rows_of(net: nn.Module, image: tuple[int, ...], grid: str, ends: tuple[int, int] | None
            ) -> tuple[TiledRow, ...]:  # fmt: skip
    """What differs; nothing where the tiling, or the network, is refused."""
    oc.manual_seed(0)
    try:
        trace = gradient_step(net, image, conv_algorithm="direct")
        tiling = named(trace, grid, ends)
        return compared(trace, (tiling,), random_values(trace, 0, integers=None))
    except OoctrainError:
        return ()


def check(plan, size, images, grid, ends):
    wrong = [row for row in rows_of(OddNet(plan), (images, 2, *size), grid, ends) if not row.holds]
    assert not wrong, wrong


@settings(max_examples=25)
@given(*CASE)
@example([("product", 0), ("conv", 0), ("quotient", 1)], (13, 1), 1, "bands:5", (0, 99))
def test_between_any_two_calls_it_is_right_or_refused(plan, size, images, grid, ends):
    check(plan, size, images, grid, ends)


@pytest.mark.slow
@settings(max_examples=1500)
@given(*CASE)
def test_between_many_two_calls_it_is_right_or_refused(plan, size, images, grid, ends):
    check(plan, size, images, grid, ends)


@pytest.mark.parametrize(
    ("plan", "tiling", "why"),
    [
        (["gate"], "bands:2:stem:hardsigmoid.fwd", "'sum.out' is a sum over all rows"),
        (["global", "global"], "bands:3:stem:parts.1", "'parts.0.out' is a sum over all rows"),
        (["less mean"], "bands:3:stem:subtract", "is a sum over all rows"),
        (["batch norm"], "bands:3:stem:parts.0.update", "reads no image that could be cut"),
        (["no first row"], "bands:3:pad:pad", "'slice.out' has no pixels"),
    ],
)
def test_what_has_no_rows_is_refused(plan, tiling, why):
    height = 1 if plan == ["no first row"] else 8
    net = OddNet([(kind, 0) for kind in plan])
    trace = gradient_step(net, (1, 2, height, 6), threads=1)
    with pytest.raises(ConfigError, match=why) as refusal:
        apply_rewrites(trace, (tiling,))
    assert refusal.value.code == "OOC-113"


def test_rows_of_a_gradient_wait_for_those_that_it_is_computed_from():
    """Two values that lie a row apart meet, and one of them is read by a convolution's gradient."""
    net = OddNet([("conv", 0), ("product", 0), ("quotient", 0), ("conv", 0)])
    rows = rows_of(net, (2, 2, 13, 3), "bands:5", (0, 99))
    assert rows
    assert all(row.holds for row in rows), rows


@pytest.mark.parametrize("planner", PLANNERS)
@settings(max_examples=10)
@given(plan=PLANS, size=IMAGES)
@example([("gate", 9)], (16, 16))
@example([("no first row", 2), ("relu", 0), ("mean up", 0)], (1, 1))
def test_a_planner_of_tilings_names_a_budget_that_suffices(planner, plan, size):
    trace = apply_rewrites(gradient_step(OddNet(plan), (2, 2, *size), threads=1), ("fuse",))
    asked, machine = get_planner(planner), oc.machine("cpu-generic")
    with pytest.raises(Infeasible) as refusal:
        asked.plan(Question(trace, 1, machine))
    least = refusal.value.minimum_bytes
    assert asked.plan(Question(trace, least, machine)).peak_bytes <= least


def test_a_bias_in_front_of_a_norm_has_a_gradient_of_rounding_alone():
    oc.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)
    )
    report = check_tiled(net, (2, 2, 9, 9), "tile:3x2:3:3")
    assert all(row.holds for row in report.rows)
