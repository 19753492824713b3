"""Any segment of any graph runs in bands with the right bits, or is refused by a typed error.

The graphs of tests/properties/test_bands.py end with a convolution, so each gradient in them comes
from within. Here a segment begins and ends at any call: at a product whose gradient comes from
outside, at one factor of it, at a sum with a tensor that is far ahead. Whatever planners ask for,
they get a tiled step or a ConfigError, never an assertion.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from properties.test_bands import EVERY_ROW, Cut, check_any_data, cuts
from support.check_tile import chain_trace, random_values
from support.quick import all_but, every
from support.tile_graphs import BINARY, Graph, graphs

import ooctrain as oc
import ooctrain.functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, ShapeError


def check(trace: oc.Trace, cut: Cut, first: str, last: str, seed: int) -> bool:
    """Whether the segment can run in bands; then it has the bits of the untiled step."""
    try:
        banded = cut.of(trace, first, last)
    except ConfigError:
        return False
    check_any_data(trace, banded, random_values(trace, seed, integers=None))
    return True


@settings(max_examples=40)
@given(graphs(), cuts, st.integers(0, 50), st.integers(0, 50), st.integers(0, 9))
def test_any_segment(
    graph: tuple[Graph, tuple[int, int, int, int]], cut: Cut, begin: int, end: int, seed: int
) -> None:
    try:
        trace = chain_trace(*graph, conv_algorithm="direct")
    except ShapeError:  # an image becomes smaller than a window
        assume(False)
    forward = [call.name for call in trace.calls if call.phase == "forward"]
    ends = sorted((begin % len(forward), end % len(forward)))
    check(trace, cut, forward[ends[0]], forward[ends[1]], seed)


class Product(nn.Module):
    """One tensor and another one, which is farther behind, put together at the very end."""

    def __init__(self, how: str, swapped: bool):
        super().__init__()
        self.how, self.swapped = how, swapped
        self.first, self.behind = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        ahead = self.first(x)
        pair = ahead, F.sigmoid(self.behind(ahead))
        return BINARY[self.how](*(pair[::-1] if self.swapped else pair))


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("how", every(BINARY, 2))
def test_a_segment_that_ends_with_a_product(how: str, swapped: bool, again: bool) -> None:
    trace = chain_trace(Product(how, swapped), (2, 2, 26, 12), conv_algorithm="direct")
    last = [call.name for call in trace.calls if call.phase == "forward"][-1]
    assert check(trace, Cut((8, 9, 23), again), "first", last, 1)
    assert check(trace, Cut(EVERY_ROW, again), "first", last, 1)


class Gates(nn.Module):
    """The three gates of attention: of each pixel, of rows and columns, of channels."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.first, self.gate = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.to_one, self.out = nn.Conv2d(4, 1, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.kind == "pixels":
            h = h * F.sigmoid(self.gate(h))
        elif self.kind == "space":
            h = F.sigmoid(self.to_one(h)) * h
        elif self.kind == "channels":
            h = h * F.sigmoid(self.gate(F.adaptive_avg_pool2d(h, 1)))
        else:
            h = h / (1.0 + F.sigmoid(self.gate(h))) - h
        return self.out(h.mean((2, 3)))


@pytest.mark.parametrize(
    "kind", all_but(["pixels", "space", "channels", "quotient"], "pixels", "channels", "quotient")
)
def test_planners_of_gates(kind: str) -> None:
    """A plan, or a refusal, for each budget; in-core there is a plan."""
    fitting = 0
    trace = oc.trace(Gates(kind), (2, 3, 16, 16), threads=1)
    low, high = oc.trace_minimum_bytes(trace), oc.trace_peak_bytes(trace)
    for planner in ("banded", "auto"):
        for budget, host in ((low * 3 // 4, None), (low, 0), ((low + high) // 2, 0), (high, None)):
            try:
                plan = oc.plan(trace, budget, planner, host_budget=host, evaluations=20)
            except oc.Infeasible:
                continue
            oc.verify(plan, trace, budget)
            fitting += 1
    assert fitting
