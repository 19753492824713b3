"""The law of bands: no row is computed twice, and each has the bits of the untiled network.

On whole numbers all outputs are equal to the bit. On any data y and dX are (direct and im2col):
each of their elements is made by one call, from all its terms in the same order. Gradients of
weights are sums over bands, within a bound that is written out below. Bands lie at random cuts, one
row high or empty, so where cuts lie changes no bit; forward calls run once, or again in backward.
The bugs that these laws kill are those of tests/zoo/band_bugs.py. Source: docs/tiling.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.check_tile import SCALARS, chain_trace, random_values
from support.quick import all_but, quick
from support.tile_chains import MOST_PIXELS, Chain, chains, exact_values
from support.tile_graphs import Graph, graphs

from ooctrain import nn
from ooctrain.engine.incore import Mode, run_trace
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.rewrite.tile import tile
from ooctrain.rewrite.tile.banded_calls import banded_calls
from ooctrain.rewrite.tile.bands import weave_bands
from ooctrain.step.trace import Trace

UNIT = 2.0**-24  # the rounding unit of float32


@dataclass(frozen=True)
class Cut:
    """At which rows a chain's input is cut, and whether forward runs again in backward."""

    rows: tuple[int, ...]
    again: bool

    def of(self, trace: Trace, first: str | None = None, last: str | None = None) -> Trace:
        """The trace in bands, by default its longest chain."""
        source = banded_calls(trace, 1, first, last).forward[0].ins[0]
        extent = trace.variables[source].shape[2]
        cuts = sorted({0, extent}.union(row for row in self.rows if row < extent))
        return weave_bands(trace, banded_calls(trace, 1, first, last, cuts), self.again)


def in_bands(cut: Cut, trace: Trace) -> Trace:
    """The trace in bands, unless it is refused: it adds images of one pixel, or rows that a band
    reads are all padding.
    """
    try:
        return cut.of(trace)
    except ConfigError as refusal:
        named = ("adds images of one pixel in one block", "read nothing but padding")
        assume(not any(why in str(refusal) for why in named))
        raise


EVERY_ROW = tuple(range(1, MOST_PIXELS))
some_rows = st.lists(st.integers(1, MOST_PIXELS - 1), max_size=8).map(tuple)
cuts = st.builds(Cut, some_rows | st.just(EVERY_ROW), st.booleans())


def results(trace: Trace, values: dict[str, np.ndarray], mode: Mode = "cpu") -> dict[str, Any]:
    return run_trace(trace, values, SCALARS, mode, threads=2)


def check_bits(
    trace: Trace, banded: Trace, values: dict[str, np.ndarray], mode: Mode = "cpu"
) -> None:
    """All outputs are equal to the bit."""
    expected, got = results(trace, values, mode), results(banded, values, mode)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        assert np.array_equal(value, got[name]), f"{name} differs"


def largest_errors(trace: Trace, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For each gradient of a weight how far two orders of its sum can lie apart.

    It is a sum of n products of what its call reads, which is the same on both sides. Any order of
    the sum is off by gamma(n) times the sum of the products' absolute values at most, gamma(n) =
    n u / (1 - n u) (Higham, Accuracy and Stability, section 3.1); two orders by twice that.
    """
    calls = [c for c in trace.calls if trace.variables[c.outs[0]].kind == "wgrad"]
    read = {trace.variables[v].name for call in calls for v in call.ins}
    found = run_trace(trace, values, SCALARS, threads=2, wanted=sorted(read))
    outputs = {v: name for name, v in trace.outputs.items()}
    bounds = {}
    for call in calls:
        ins = [np.abs(found[trace.variables[v].name].astype("float64")) for v in call.ins]
        (products,) = call.op.reference(*ins, scalars=SCALARS)
        n = ins[-1].size  # no more products than the gradient that is read has elements
        bounds[outputs[call.outs[0]]] = 2 * n * UNIT / (1 - n * UNIT) * products
    return bounds


def check_any_data(trace: Trace, banded: Trace, values: dict[str, np.ndarray]) -> None:
    """Values and gradients of images equal to the bit, gradients of weights within the bound."""
    expected, got = results(trace, values), results(banded, values)
    bounds = largest_errors(trace, values)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        error = np.abs(value.astype("float64") - got[name])
        assert np.all(error <= bounds.get(name, 0.0)), f"{name}: off by {error.max()}"


# Values


@settings(max_examples=40)
@given(chains(), cuts, st.integers(0, 99))
def test_definitions_on_whole_numbers(chain: Chain, cut: Cut, seed: int) -> None:
    trace = chain.trace()
    assume(trace is not None)
    values = exact_values(trace, seed)
    assume(values is not None)
    check_bits(trace, in_bands(cut, trace), values, "reference")


@pytest.mark.parametrize("algorithm", ["direct", "im2col"])
@settings(max_examples=20)
@given(chain=chains(), cut=cuts, seed=st.integers(0, 99))
def test_kernels_on_any_data(algorithm: str, chain: Chain, cut: Cut, seed: int) -> None:
    trace = chain.trace(algorithm)
    assume(trace is not None)
    check_any_data(trace, in_bands(cut, trace), random_values(trace, seed, integers=None))


@pytest.mark.parametrize("algorithm", ["direct", "im2col"])
@settings(max_examples=30)
@given(chain=chains(), cut=cuts, seed=st.integers(0, 99))
def test_kernels_on_whole_numbers(algorithm: str, chain: Chain, cut: Cut, seed: int) -> None:
    trace = chain.trace(algorithm)
    assume(trace is not None)
    values = exact_values(trace, seed)
    assume(values is not None)
    check_bits(trace, in_bands(cut, trace), values)


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(1, 2), cuts, st.integers(0, 99))
def test_depthwise_on_any_data(kernel: int, stride: int, cut: Cut, seed: int) -> None:
    layers = nn.Conv2d(8, 8, kernel, stride, kernel // 2, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1)
    trace = Chain(nn.Sequential(*layers), (1, 8, 23, 9), (1, 1)).trace("auto")
    assert {getattr(c.op, "algorithm", None) for c in trace.calls} == {None, "depthwise", "direct"}
    check_any_data(trace, in_bands(cut, trace), random_values(trace, seed, integers=None))


@settings(max_examples=15)
@given(st.integers(5, 19), st.integers(5, 19), cuts)
def test_winograd2_on_whole_numbers(height: int, width: int, cut: Cut) -> None:
    """A band's transforms begin at other rows than the image's, so on other data roundings differ;
    and where two values nearly tie, ReLU and maxima may then decide otherwise.
    """
    layers = nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
    trace = Chain(nn.Sequential(*layers), (1, 16, height, width), (1, 1)).trace("winograd2")
    values = exact_values(trace, 0)
    assume(values is not None)
    check_bits(trace, in_bands(cut, trace), values)


@settings(max_examples=15)
@given(chains(), st.integers(0, 99))
def test_one_band_is_the_untiled_step(chain: Chain, seed: int) -> None:
    """Of one image: not even the sums over pixels differ."""
    one_image = Chain(chain.model, (1, *chain.image[1:]), (1, 1), chain.image_gradient)
    trace = one_image.trace("direct")
    assume(trace is not None)
    check_bits(trace, Cut((), False).of(trace), random_values(trace, seed, integers=None))


def graph_trace(model: nn.Module, image: tuple[int, int, int, int]) -> Trace | None:
    """Forward and backward by "direct"; None where an image becomes smaller than a window, or
    nothing leads from "first" to "last".
    """
    try:
        trace = chain_trace(model, image, conv_algorithm="direct")
        banded_calls(trace, 1, "first", "last")
    except (ShapeError, ConfigError):
        return None
    return trace


@settings(max_examples=20)
@given(graphs(), cuts, st.integers(0, 99))
def test_graphs_on_any_data(
    graph: tuple[Graph, tuple[int, int, int, int]], cut: Cut, seed: int
) -> None:
    """Forks, sums, products, quotients, concatenations, upsampling; skips that enter or leave."""
    trace = graph_trace(*graph)
    assume(trace is not None)
    values = random_values(trace, seed, integers=None)
    check_any_data(trace, cut.of(trace, "first", "last"), values)


#: Graphs that bands are got wrong on: steps, and a tensor that is read behind the segment.
GRAPHS = {
    "residual block": Graph([("relu", 0, 0), ("3x3", 0, 0), ("add", 0, 2)]),
    "two blocks": Graph([("3x3", 0, 0), ("add", 0, 2), ("5x5", 0, 0), ("add", 0, 4)]),
    "a skip that enters": Graph([("3x3", 0, 0), ("add", 0, 0), ("relu", 0, 0)]),
    "a skip that leaves": Graph([("5x5", 0, 0), ("3x3", 0, 0)], leaving=2),
    "a fork of two windows": Graph([("3x3", 0, 0), ("5x5", 1, 0), ("add", 0, 3), ("add", 0, 2)]),
    "a U": Graph([("3x3", 0, 0), ("pool", 0, 0), ("5x5", 0, 0), ("up", 0, 0), ("concat", 0, 3)]),
    "upsampled by overlapping pools": Graph([("pool", 0, 1), ("3x3", 0, 0), ("up", 0, 0)]),
    "transposed": Graph([("3x3/2", 0, 0), ("up 4x4", 0, 0), ("add", 0, 1), ("up 3x3", 0, 0)]),
    "bilinear": Graph([("pool", 0, 0), ("3x3", 0, 0), ("bilinear", 0, 0), ("concat", 0, 3)]),
    "corners": Graph([("pool", 0, 0), ("3x3", 0, 0), ("corners", 0, 0), ("add", 0, 3)]),
    "enlarged by other factors": Graph(
        [("bilinear, odd", 0, 0), ("3x3", 0, 0), ("corners, odd", 0, 0), ("nearest, odd", 0, 0)]
    ),
    "bilinear and smaller": Graph([("3x3", 0, 0), ("bilinear, smaller", 0, 0), ("bilinear", 0, 0)]),
    "a gate": Graph([("3x3", 0, 0), ("gate", 1, 0), ("relu", 0, 0)]),
    "a gate read first": Graph([("5x5", 0, 0), ("multiply", 0, 1), ("3x3", 0, 0)]),
    "a gate of a gate": Graph(
        [("3x3", 0, 0), ("multiply", 0, 1), ("5x5", 0, 0), ("gate", 1, 0), ("divide", 0, 4)]
    ),
    "a quotient": Graph([("3x3", 0, 0), ("divide", 1, 0), ("divide", 0, 3)]),
    "a difference": Graph([("3x3", 0, 0), ("subtract", 1, 0), ("subtract", 0, 3)]),
    "a gate from below": Graph(
        [("pool", 0, 0), ("3x3", 0, 0), ("up", 0, 0), ("gate", 3, 0), ("multiply", 0, 2)]
    ),
    "a factor that enters": Graph([("3x3", 0, 0), ("multiply", 0, 0), ("gate", 0, 3)]),
    "a factor that leaves": Graph([("3x3", 0, 0), ("multiply", 0, 1)], leaving=2),
    "a square": Graph([("3x3", 0, 0), ("multiply", 0, 0), ("3x3", 0, 0), ("gate", 0, 1)]),
    "a sum with itself": Graph([("3x3", 0, 0), ("add", 0, 3), ("relu", 0, 0)]),
}


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("rows", quick([(8, 9, 23), EVERY_ROW], 0), ids=["uneven", "rows of 1"])
@pytest.mark.parametrize(
    "case", all_but(GRAPHS, "corners", "enlarged by other factors", "bilinear and smaller")
)
def test_named_graphs(case: str, rows: tuple[int, ...], again: bool) -> None:
    trace = graph_trace(GRAPHS[case], (2, 2, 26, 12))
    assert trace is not None
    banded = Cut(rows, again).of(trace, "first", "last")
    check_any_data(trace, banded, random_values(trace, 1, integers=None))


#: Chains that bands are got wrong on; beside those of test_tiled_gradients.py.
CASES = {
    "overlapping pools": (nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 1, 1)),
    "rows that nobody reads": (nn.Conv2d(2, 3, 2, 2), nn.Conv2d(3, 2, 2, 3)),
    "rows between windows": (nn.Conv2d(2, 3, 1, 3), nn.ReLU(), nn.Conv2d(3, 2, 2, 3)),
    "windows of padding alone": (nn.Conv2d(2, 3, 1, padding=2), nn.Conv2d(3, 2, 3, padding=1)),
    "strides in the padding": (nn.Conv2d(2, 3, 1, 3, padding=5), nn.ReLU()),
    "halos larger than bands": (nn.Conv2d(2, 2, 7, padding=3), nn.Conv2d(2, 2, 5, padding=2)),
    "two strides": (nn.Conv2d(2, 3, 3, 2, 1), nn.ReLU(), nn.Conv2d(3, 2, 5, 2, 2), nn.ReLU()),
    "dilation": (nn.Conv2d(2, 3, 3, padding=2, dilation=2), nn.AvgPool2d(4, 2, 1)),
    "padding below alone": (nn.Conv2d(2, 3, 1), nn.ReLU(), nn.ZeroPad2d((0, 0, 0, 2))),
    "dropout and padding": (nn.ZeroPad2d((0, 1, 2, 1)), nn.Dropout(0.5), nn.Conv2d(2, 3, 3, 2)),
    "stochastic depth": (nn.Conv2d(2, 3, 3), nn.StochasticDepth(0.5, "row"), nn.Conv2d(3, 2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("rows", quick([(8, 9, 23), EVERY_ROW], 0), ids=["uneven", "rows of 1"])
@pytest.mark.parametrize("case", CASES)
def test_named_cases(case: str, rows: tuple[int, ...], again: bool) -> None:
    trace = Chain(nn.Sequential(*CASES[case]), (2, 2, 26, 11), (1, 1)).trace("direct")
    check_any_data(trace, Cut(rows, again).of(trace), random_values(trace, 1, integers=None))


# Rows

BAND = re.compile(r"(.+)\[(?:n (\d+), )?h (\d+):(\d+)\]")


def computed_rows(banded: Trace, original: Trace) -> dict[str, list[tuple[int, int]]]:
    """{call of the untiled step that writes an image: the (image, row) that calls of bands write
    in its place}.
    """
    writes_image = {c.name for c in original.calls if len(original.variables[c.outs[0]].shape) == 4}
    found: dict[str, list[tuple[int, int]]] = {}
    for call in banded.calls:
        match = BAND.fullmatch(call.name)
        name = match[1].removesuffix(".fill") if match else ""
        if name in writes_image and original_kind(original, name) != "wgrad":
            rows = range(int(match[3]), int(match[4]))
            found.setdefault(name, []).extend((int(match[2] or 0), row) for row in rows)
    return found


def original_kind(original: Trace, name: str) -> str:
    (call,) = (c for c in original.calls if c.name == name)
    return original.variables[call.outs[0]].kind


@settings(max_examples=60)
@given(chains(), cuts)
def test_each_row_is_computed_once(chain: Chain, cut: Cut) -> None:
    """Of each tensor and each gradient of one, in the first run; so no halo is computed twice."""
    trace = chain.trace("direct")
    assume(trace is not None)
    found = computed_rows(in_bands(Cut(cut.rows, again=False), trace), trace)
    for call in trace.calls:
        if call.name in found:
            n, _, h, _ = trace.variables[call.outs[0]].shape
            every = [(image, row) for image in range(n) for row in range(h)]
            assert sorted(found[call.name]) == every, call.name
    assert found.keys() >= {c.name for c in trace.calls if c.phase == "forward"}


def frontiers_by_hand(layers: Sequence[tuple[int, int, int]], cuts: Sequence[int]) -> list[Any]:
    """Frontiers through layers of (kernel, stride, padding), by trying each row; kernel >=
    stride.
    """
    found = [list(cuts)]
    for kernel, stride, padding in layers:
        before, extent = found[-1], found[-1][-1]
        ends = range(kernel - padding, extent + padding + 1, stride)  # of the windows
        found.append([sum(min(end, extent) <= a for end in ends) if a else 0 for a in before])
    return found


def test_kept_bytes_are_those_of_the_formula() -> None:
    """Per border the rows of each tensor from the first that the next band reads to the last that
    is there, times the bytes of a row.
    """
    layers = [(3, 1, 1), (1, 1, 0), (5, 2, 2), (2, 2, 0), (3, 1, 1)]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 5, 2, 2), nn.MaxPool2d(2),
        nn.Conv2d(4, 2, 3, padding=1),
    )  # fmt: skip
    trace = chain_trace(model, (2, 3, 96, 40), conv_algorithm="direct")
    rows = frontiers_by_hand(layers, range(0, 97, 24))
    expected = 0
    for i, (_, stride, padding) in enumerate(layers[1:], 1):
        n, c, _, w = trace.variable_by_name[f"{i - 1}.out"].shape
        kept = [rows[i][t] - max(0, rows[i + 1][t] * stride - padding) for t in (1, 2, 3)]
        expected += sum(kept) * n * c * w * 4
    banded = tile(trace, (4, 1), halo="keep")
    kept = [v.nbytes for v in banded.variables if ".out.kept[" in v.name]
    assert sum(kept) == expected > 0
