"""Small parts that other tests only meet within something large, each held to its definition.

How networks of odd shapes are cut into parts; down to which row a gradient needs its image; what is
held of laws that students write; where two answers differ; pieces of a workspace.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support import known
from support.known_steps import row_of

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.rewrite.tile.frontier import frontier_before
from ooctrain.split.boundaries import drawn, even_cuts, middle, wiggle
from ooctrain.step.rows import RowsRead, Window
from ooctrain.testing.allocator_client import difference
from ooctrain.testing.allocator_draws import programs
from ooctrain.testing.fake_driver import FakeDriver
from ooctrain.testing.fake_gpu import FakeLauncher
from ooctrain.testing.law_by_hand import (
    LAW_LAWS,
    PICKS,
    LawFailure,
    check_law,
    random_arena,
)
from ooctrain.tracing import trace
from ooctrain.units import Granule

# Splits.


class Odd(nn.Module):
    """Convolutions with something between that knows more than its own part, or does not."""

    def __init__(self, between, result=lambda x: x):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.last, self.fc = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)
        self.channels = nn.Parameter(np.ones((4, 1, 1), np.float32))
        self.pixels = nn.Parameter(np.ones((4, 12, 10), np.float32))
        self.between, self.result = between, result

    def forward(self, x):
        y = self.between(self, F.relu(self.first(x)))
        y = F.relu(self.second(y))
        pooled = F.adaptive_avg_pool2d(F.relu(self.last(y)), 1)
        return self.result(self.fc(pooled.flatten(1)))


class Twice(Odd):
    """Concatenates along channels."""

    def __init__(self):
        super().__init__(lambda net, y: F.concat([y, F.relu(y)], dim=1))
        self.second = nn.Conv2d(8, 4, 3, padding=1)


class Stacked(Odd):
    """Concatenates along rows: no part knows where its rows go."""

    def __init__(self):
        super().__init__(lambda net, y: F.concat([y, y], dim=2))


NETWORKS = {
    "a number": lambda: Odd(lambda net, y: y * 3.0 + y),
    "one for each channel": lambda: Odd(lambda net, y: y * net.channels),
    "one for each pixel": lambda: Odd(lambda net, y: y * net.pixels),
    "channels": Twice,
    "rows": Stacked,
    "a list": lambda: Odd(lambda net, y: y, lambda z: [z, z * 2.0]),
    "a dictionary of tuples": lambda: Odd(lambda net, y: y, lambda z: {"a": (z,), "n": 3}),
}  # fmt: skip


def summed(output, target):
    """A loss of what these networks return, which need not be one tensor."""
    parts = output["a"] if isinstance(output, dict) else output
    parts = parts if isinstance(parts, list | tuple) else [parts]
    return F.concat([(each * each) for each in parts], dim=1).sum()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_cut_where_each_part_knows_enough(name):
    """The first convolution is split in all; the second only where what is between allows it."""
    oc.manual_seed(0)
    rows = []
    for depth, grid in ((0.3, (2, 2)), (1.0, (3, 1)), (1.0, (1, 2))):
        split = oc.split(NETWORKS[name](), depth=depth, grid=grid)
        found = split.shape_of((2, 2, 12, 10))
        rows.append((depth, grid, *astuple(found)))
        rows.append(row_of(trace(split, (2, 2, 12, 10), loss=summed, threads=2)))
    known.check_rows("odd", name, rows)


@given(extent=st.integers(1, 60), parts=st.integers(1, 9))
def test_even_parts_differ_by_a_row_at_most(extent, parts):
    cuts = even_cuts(extent, parts)
    assert len(cuts) == parts
    assert cuts[0] == 0
    sizes = [b - a for a, b in itertools.pairwise((*cuts, extent))]
    assert max(sizes) - min(sizes) <= 1


@given(
    extent=st.integers(1, 200), parts=st.integers(2, 9), omega=st.floats(0, 0.49),
    data=st.data(),
)  # fmt: skip
def test_boundaries_wiggle_around_the_even_ones(extent, parts, omega, data):
    place = data.draw(st.integers(1, parts - 1))
    low, high = wiggle(place, extent, parts, omega)
    inside = [
        row for row in range(extent + 1)
        if (place - omega) * extent <= row * parts <= (place + omega) * extent
    ]  # fmt: skip
    even = place * extent / parts
    if inside:
        assert (low, high) == (inside[0], inside[-1])
    else:
        assert low == high
        assert abs(low - even) <= 0.5
    assert low <= middle((low, high)) <= high
    assert middle((low, high)) - low - (high - middle((low, high))) in (0, 1)
    many = [drawn((low, high), (seed, 3)) for seed in range(40)]
    assert many == [drawn((low, high), (seed, 3)) for seed in range(40)]
    assert {low, high} >= {row for row in many if not low < row < high}


# Frontiers.


@given(
    kernel=st.integers(1, 5), stride=st.integers(1, 4), dilation=st.integers(1, 2),
    pad=st.tuples(st.integers(0, 3), st.integers(0, 3)), extent=st.integers(1, 25), data=st.data(),
)  # fmt: skip
def test_a_frontier_before_holds_all_rows_that_are_gathered(
    kernel, stride, dilation, pad, extent, data
):
    """Of the rows before output o those that some window reads, and those between two windows."""
    reach = (kernel - 1) * dilation + 1
    if max(pad) >= reach or extent + sum(pad) < reach:
        return
    window = Window(kernel, stride, dilation, *pad)
    outputs = (extent + sum(pad) - reach) // stride + 1
    cuts = data.draw(st.lists(st.integers(0, outputs), max_size=3).map(sorted))
    found = frontier_before(RowsRead(window), (0, *cuts, outputs), extent)
    wanted = []
    for cut in cuts:
        begin = cut * stride - pad[0]  # of the next window
        ends = [min((o * stride - pad[0]) + reach, extent) for o in range(cut)]
        wanted.append(min(max([*ends[-1:], begin if cut else 0, 0]), extent))
    assert found == (0, *wanted, extent)


# Laws by hand.


class Asking:
    """A law that notes what it is given, and stops an arena where a function says so."""

    name = "asking"

    def __init__(self, stops):
        self.stops, self.seen = stops, []

    def check(self, arena, rng):
        self.seen.append((arena.size, arena.pick, rng.random()))
        if self.stops(self.seen):
            raise AssertionError("a reason")  # pytest would write more behind it


def arenas(count: int, seed: int = 0) -> list:
    return [random_arena(random.Random(f"{seed}/{number}")) for number in range(count)]


@pytest.mark.parametrize("promise", LAW_LAWS)
def test_a_law_is_tried_on_each_arena_with_numbers_of_its_own(promise):
    law = Asking(lambda seen: False)
    assert check_law(law, examples=5, seed=3, law_of_laws=promise) == 5
    times = 1 + LAW_LAWS.index(promise)
    wanted = [
        (arena.size, arena.pick, random.Random(number).random())
        for number, arena in enumerate(arenas(5, 3)) for _ in range(times)
    ]  # fmt: skip
    assert law.seen == wanted


def test_a_false_alarm_names_the_first_arena():
    right = arenas(20)
    first = next(arena for arena in right if arena.size > 60)
    with pytest.raises(LawFailure) as failure:
        check_law(Asking(lambda seen: seen[-1][0] > 60))
    rule = next(name for name, pick in PICKS.items() if pick is first.pick)
    assert f"{first.size} bytes" in failure.value.where
    assert failure.value.where.endswith(rule)
    assert failure.value.what.endswith("a reason")
    assert failure.value.code == "OOC-295"
    # It says the same when it is asked twice.
    assert check_law(Asking(lambda seen: seen[-1][0] > 60), law_of_laws=LAW_LAWS[1]) == 20


def test_two_answers_are_shown_both():
    with pytest.raises(LawFailure, match=r"'' and 'a reason'"):
        check_law(Asking(lambda seen: len(seen) % 2 == 0), law_of_laws=LAW_LAWS[1])
    with pytest.raises(LawFailure, match=r"'a reason' and ''"):
        check_law(Asking(lambda seen: len(seen) == 3), law_of_laws=LAW_LAWS[1])
    assert check_law(Asking(lambda seen: False), examples=0) == 0


# What is asked of allocators.


def test_programs_have_parts_that_come_again_elsewhere():
    """Read on two streams, given back, their memory taken by a block, and claimed again."""
    granule, seen = Granule(64), {key: set() for key in ("counts", "streams", "refused", "taken")}

    @settings(max_examples=300, phases=[Phase.generate])
    @given(programs(granule, 128, 12))
    def look(program):
        asked = program.requests
        assert all(0 <= turn <= 2 for turn in program.order)
        for place, claim in enumerate(asked[:-6]):
            if asked[place - 1].op != "reserve" or (claim.op, claim.value) != ("claim", -1):
                continue  # the other claim of the row, or none of such a row
            own, other, release, taking, free, *rest = asked[place + 1 :]
            again = rest.pop(0)
            if again.op == "refuse":
                seen["refused"].add(again.value)
                again = rest.pop(0)
            else:
                seen["refused"].add(None)
            assert own.op == other.op == "use"
            assert (claim.stream, claim.lo) == (0, 0)
            assert (own.value, own.stream, other.value) == (-1, 0, -1)
            assert (release.op, release.value, release.lo) == ("release", -1, 0)
            assert claim.count == release.count == again.count
            assert (free.op, free.value) == ("free", 0)
            assert (again.op, again.value, again.lo) == ("claim", -1, 0)
            assert again.stream == other.stream
            if taking.op == "allocate":
                assert taking.stream == other.stream
            seen["taken"].add(taking.op)
            seen["counts"].add(claim.count)
            seen["streams"].add(other.stream)

    look()
    assert (seen["streams"], seen["taken"]) == ({0, 1, 2}, {"allocate", "largest"})
    # Each of a few numbers is drawn often, though not surely.
    assert seen["counts"] <= {1, 2, 3, 4}
    assert len(seen["counts"]) > 2
    assert {None} < seen["refused"] <= {None, 0, 1, 2, 3}


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        (1, 2, "1 -> 2"), ({"a": 1}, {"a": 2}, "a: 1 -> 2"), ((1, 2), (1, 3), "2 -> 3"),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b: 2 -> 3"), ({}, {"c": 1}, "c: None -> 1"),
        ({"c": 1}, {}, "c: 1 -> None"), ((1,), (1, 2), "(1,) -> (1, 2)"),
        ({"a": ({"b": 1}, 2)}, {"a": ({"b": 4}, 3)}, "a: b: 1 -> 4"), ((), {}, "() -> {}"),
        ({}, (), "{} -> ()"), ([1], [2], "[1] -> [2]"),
    ],
)  # fmt: skip
def test_the_first_difference_is_shown(before, after, where):
    assert difference(before, after) == where


@pytest.mark.parametrize(("offset", "count", "kind", "fits"), [
    (0, 16, "float32", True), (0, 17, "float32", False), (4, 15, "float32", True),
    (4, 16, "float32", False), (-4, 1, "float32", False), (64, 0, "float32", True),
    (0, 8, "int64", True), (8, 8, "int64", False), (63, 1, "uint8", True), (64, 1, "uint8", False),
])  # fmt: skip
def test_a_piece_of_a_workspace_lies_within_it(offset, count, kind, fits):
    driver = FakeDriver(1 << 20, 4096)
    launcher = FakeLauncher(driver, 0, None)
    space = DeviceArray(1 << 44, (64,), np.dtype("uint8"))
    if not fits:
        with pytest.raises(ValueError, match=f"{count} of {kind} from byte {offset}"):
            launcher.part(space, offset, count, kind)
        return
    part = launcher.part(space, offset, count, kind)
    assert (part.address, part.shape, part.dtype) == ((1 << 44) + offset, (count,), kind)
