"""The law of bands through norms: sums over all rows have the bits of the untiled step.

On any data mean, variance, their gradients' sums, gradients of biases, y and dX are equal to the
bit, since one sum goes on from band to band; gradients of convolutions' weights are sums over
bands, within the bound of `test_bands.py`. Running statistics move once. The laws hold before and
after calls are fused, with forward calls once or again in backward, under any plan. The bugs that
they kill are those of tests/zoo/norm_band_bugs.py. Source: docs/tiling.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from properties.test_bands import EVERY_ROW, SCALARS, UNIT, Cut, graph_trace, results
from support.check_tile import chain_trace, random_values
from support.same_bits import check_same_bits, out_of_core
from support.tile_graphs import Graph, graphs

import ooctrain as oc
from ooctrain import nn
from ooctrain.engine.incore import Mode, initial_values, run_trace
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings
from ooctrain.layers.batch_norm import BatchNormUpdate
from ooctrain.layers.conv2d import Conv2dGradWeight
from ooctrain.rewrite.fuse import fuse
from ooctrain.rewrite.share_storage import share_storage
from ooctrain.step.trace import Trace

BEFORE = {"as traced": lambda trace: trace, "fused": fuse, "shared": share_storage}
cuts = st.builds(
    Cut, st.lists(st.integers(1, 25), max_size=5).map(tuple) | st.just(EVERY_ROW), st.booleans()
)


def bounds_of_weights(trace: Trace, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For each gradient of a convolution's weight how far two orders of its sum lie apart."""
    calls = [call for call in trace.calls if isinstance(call.op, Conv2dGradWeight)]
    read = {trace.variables[v].name for call in calls for v in call.ins}
    found = run_trace(trace, values, SCALARS, threads=2, wanted=sorted(read))
    names = {v: name for name, v in trace.outputs.items()}
    bounds = {}
    for call in calls:
        ins = [np.abs(found[trace.variables[v].name].astype("float64")) for v in call.ins]
        (products,) = call.op.reference(*ins, scalars=SCALARS)
        n = ins[-1].size
        bounds[names[call.outs[0]]] = 2 * n * UNIT / (1 - n * UNIT) * products
    return bounds


def check_norms(trace: Trace, banded: Trace, values: dict[str, np.ndarray]) -> None:
    """All but gradients of convolutions' weights have the untiled bits."""
    expected, got = results(trace, values), results(banded, values)
    bounds = bounds_of_weights(trace, values)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        if name in bounds:
            error = np.abs(value.astype("float64") - got[name])
            assert np.all(error <= bounds[name]), f"{name}: off by {error.max()}"
        else:
            assert np.array_equal(value, got[name], equal_nan=True), f"{name} differs"


def check_definitions(trace: Trace, banded: Trace, values: dict[str, np.ndarray]) -> None:
    """By the NumPy definitions, whose sums have no fixed order: to eleven digits."""
    expected, got = results(trace, values, "reference"), results(banded, values, "reference")
    for name, value in expected.items():
        size = np.abs(value).max(initial=1.0)
        assert np.abs(value - got[name]).max(initial=0) <= 1e-11 * size, f"{name} differs"


@pytest.mark.slow
@settings(max_examples=25)
@given(graphs(norms=True), cuts, st.sampled_from(sorted(BEFORE)), st.integers(0, 99))
def test_graphs_on_any_data(graph: Any, cut: Cut, before: str, seed: int) -> None:
    trace = graph_trace(*graph)
    assume(trace is not None)
    values = random_values(trace, seed, integers=None)
    trace = BEFORE[before](trace)
    check_norms(trace, cut.of(trace, "first", "last"), values)


#: Graphs that norms are got wrong on: steps, the shape of the image, a tensor that leaves.
CASES: dict[str, tuple[Graph, tuple[int, int, int, int]]] = {
    "batch norm": (Graph([("batch norm", 0, 0), ("relu", 0, 0)]), (2, 2, 26, 12)),
    "two in a row": (
        Graph([("batch norm", 0, 0), ("relu", 0, 0), ("5x5", 0, 0), ("batch norm", 0, 0)]),
        (2, 2, 26, 12),
    ),
    "a residual block": (
        Graph([("batch norm", 0, 0), ("relu", 0, 0), ("3x3", 0, 0), ("batch norm", 0, 0),
               ("add", 0, 4), ("relu", 0, 0)]),
        (2, 2, 26, 12),
    ),
    "instance norm": (
        Graph([("instance norm", 0, 0), ("relu", 0, 0), ("3x3/2", 0, 0),
               ("plain instance norm", 0, 0)]),
        (3, 2, 26, 12),
    ),
    "frozen": (Graph([("frozen norm", 0, 0), ("relu", 0, 0), ("batch norm", 0, 0)]), (2, 2, 26, 9)),
    "rows of several blocks": (Graph([("batch norm", 0, 0), ("5x5", 0, 0)]), (1, 2, 26, 290)),
    "several chunks": (Graph([("batch norm", 0, 0), ("relu", 0, 0)]), (2, 2, 40, 1000)),
    "pooled into a norm": (Graph([("pool", 0, 0), ("batch norm", 0, 0)]), (1, 2, 26, 6)),
    "a norm that leaves": (
        Graph([("batch norm", 0, 0), ("pool", 0, 1), ("up", 0, 0), ("batch norm", 0, 0)], 1),
        (1, 2, 24, 12),
    ),
}  # fmt: skip
QUICK = ("a residual block", "instance norm")


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize(
    "rows", [(8, 9, 23), pytest.param(EVERY_ROW, marks=pytest.mark.slow)], ids=["uneven", "each"]
)
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_named_graphs(case: str, rows: tuple[int, ...], again: bool) -> None:
    trace = graph_trace(*CASES[case])
    assert trace is not None
    banded = Cut(rows, again).of(trace, "first", "last")
    check_norms(trace, banded, random_values(trace, 1, integers=None))


def all_named_graphs(mode: Mode = "reference") -> None:
    """For planted bugs."""
    for case in ("a residual block", "instance norm"):
        trace = graph_trace(*CASES[case])
        assert trace is not None
        values = random_values(trace, 1, integers=None)
        for again in (False, True):
            trace = fuse(trace) if again else trace
            check = check_norms if mode == "cpu" else check_definitions
            check(trace, Cut((8, 9, 23), again).of(trace, "first", "last"), values)


@pytest.mark.slow
def test_definitions() -> None:
    assert all_named_graphs() is None


def test_running_statistics_move_once() -> None:
    trace = graph_trace(*CASES["two in a row"])
    assert trace is not None
    banded = Cut((8, 9, 23), True).of(trace, "first", "last")
    for one in (trace, banded):
        moves = [call for call in one.calls if isinstance(call.op, BatchNormUpdate)]
        assert len(moves) == 2
        assert not any(call.pure for call in moves)


def test_recomputation_in_backward_has_no_barrier() -> None:
    """Statistics are computed once; what lies between two stored tensors is computed again, from
    the statistics that were kept.
    """
    trace = graph_trace(*CASES["a residual block"])
    assert trace is not None
    banded = Cut((8, 16), True).of(trace, "first", "last")
    again = [call for call in banded.calls if ".again" in call.name]
    assert again
    assert all(call.phase == "backward" for call in again)
    assert not [call for call in again if "stats" in call.name]
    total = [call for call in banded.calls if call.name == "norm0.stats"]
    assert [call.phase for call in total] == ["forward"]


@pytest.mark.parametrize(
    "planner", ["naive", *(pytest.param(p, marks=pytest.mark.slow) for p in ("belady", "prefix"))]
)
def test_out_of_core_as_in_core(planner: str) -> None:
    oc.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1),
    )  # fmt: skip
    shape = (1, 2, 48, 40)
    step = oc.trace(model, shape, "mse", threads=2)
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal(shape, np.float32), rng.standard_normal(shape, np.float32))]
    banded = oc.tile(step, (6, 1), "0", "6", halo="keep", again=False)
    found = []
    for how, budget in (("keep-all", None), (planner, "80KiB")):
        given = Settings(
            budget=budget, planner=how, allocator="best-fit", device="cpu", time_limit_s=None,
            machine="cpu-generic",
        )  # fmt: skip
        start = initial_values(banded, model)
        found.append(out_of_core(prepare(banded, given), given, start, batches, SCALARS))
    check_same_bits(*found)


def test_one_image_of_one_pixel_has_no_rule() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    trace = chain_trace(model, (4, 2, 3, 3), conv_algorithm="direct")
    with pytest.raises(oc.errors.ConfigError, match=r"'1\.stats' cannot run in bands"):
        oc.tile(trace, (2, 1), "0", "2", halo="keep")
