"""The law of tiling: y, dX, dW and db of a tiled chain are those of the untiled one.

On whole numbers they are equal to the bit, in the reference mode and for the algorithms direct,
im2col and winograd2; on other data, and for winograd4, they lie within bounds that are derived
here from the rounding unit and the number of terms in each sum. Source: paper 003; the borders are
the point (docs/errata.md). The bugs that this law kills are in tests/zoo/tile_bugs.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.check_tile import SCALARS, chain_trace, check_tile, random_values
from support.quick import quick
from support.tile_chains import Chain, chains, exact_values

from ooctrain import nn
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight
from ooctrain.rewrite.tile import tile
from ooctrain.step.trace import Call, Trace
from ooctrain.tracing import trace as trace_step

UNIT = 2.0**-24  # the rounding unit of float32


@settings(max_examples=25)
@given(chains(), st.integers(0, 99))
def test_definitions(chain: Chain, seed: int) -> None:
    trace = chain.trace()
    values = trace and exact_values(trace, seed)
    assume(values is not None)
    check_tile(trace, chain.grid, values, mode="reference")


@pytest.mark.parametrize("algorithm", ["direct", "im2col"])
@settings(max_examples=25)
@given(chain=chains(), seed=st.integers(0, 99))
def test_kernels_to_the_bit(algorithm: str, chain: Chain, seed: int) -> None:
    trace = chain.trace(algorithm)
    values = trace and exact_values(trace, seed)
    assume(values is not None)
    check_tile(trace, chain.grid, values)


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=2),
    st.tuples(st.integers(5, 19), st.integers(5, 19)),
    st.tuples(st.integers(1, 19), st.integers(1, 19)),
    st.booleans(),
)
def test_winograd2_to_the_bit(
    paddings: list[int], size: tuple[int, int], grid: tuple[int, int], pooled: bool
) -> None:
    layers: list[nn.Module] = [nn.Conv2d(16, 16, 3, padding=min(p, 2)) for p in paddings]
    layers[1:1] = [nn.MaxPool2d(3, 2, 1)] if pooled else [nn.ReLU()]
    trace = Chain(nn.Sequential(*layers), (1, 16, *size), grid).trace("winograd2")
    assume(trace is not None)
    assert {algorithm_of(call) for call in trace.calls} == {None, "winograd2"}
    values = exact_values(trace, 0)
    assume(values is not None)
    check_tile(trace, grid, values)


class Clamped(nn.Module):
    """A function whose bounds are part of it."""

    def forward(self, input):
        return input.clamp(-1, 2)


@pytest.mark.parametrize("grid", [(1, 3), (4, 2), (9, 9)])
@pytest.mark.parametrize("layer", [nn.ReLU6(), Clamped(), nn.ConstantPad2d((1, 2, 0, 1), 2.0)])
def test_what_reads_its_input_in_backward_to_the_bit(layer: nn.Module, grid) -> None:
    layers = [nn.Conv2d(2, 3, 3, padding=1), layer, nn.Conv2d(3, 2, 3, stride=2), layer]
    trace = chain_trace(nn.Sequential(*layers), (2, 2, 11, 9), conv_algorithm="direct")
    values = exact_values(trace, 0)
    assert values is not None
    check_tile(trace, grid, values)


@pytest.mark.parametrize(
    "layer",
    [
        nn.GELU(),
        nn.GELU("tanh"),
        nn.SiLU(),
        nn.Hardswish(),
        nn.Hardsigmoid(),
        nn.Softmax(1),
        nn.LogSoftmax(1),
    ],
)
def test_smooth_functions_in_tiles(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), layer, nn.Conv2d(3, 2, 3, stride=2), layer)
    trace = chain_trace(model, (2, 2, 11, 9), conv_algorithm="direct")
    values = random_values(trace, 0, integers=None)
    largest = {k: np.max(abs(v)) for k, v in run_trace(trace, values, SCALARS, "cpu").items()}
    check_tile(trace, (3, 2), values, bound=lambda name: 1e-5 * largest[name])


# --------------------------------------------------------------------------------------------------
# -
# Bounds for other data.
#
# A sum of n products, in any order, fused or not: |computed - true| <= gamma(n) * sum of
# |products|,
# gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
# In a chain of linear calls with n_1, n_2, ... terms the factors multiply: an output differs from
# the true one by at most (prod (1 + gamma(n_i)) - 1) times the same chain on absolute values.
# --------------------------------------------------------------------------------------------------
# -


def gamma(terms: float) -> float:
    """The bound of a sum of products, relative to the sum of their absolute values."""
    assert terms * UNIT < 0.5
    return terms * UNIT / (1 - terms * UNIT)


def terms_of(trace: Trace, call: Call) -> int:
    """Products that are summed into one output, at most: never more than an input has elements."""
    outs = [trace.variables[v] for v in call.outs]
    ins = [trace.variables[v] for v in call.ins]
    if isinstance(call.op, Conv2d | Conv2dGradInput):
        k, c, r, s = ins[1].shape
        return r * s * (c if isinstance(call.op, Conv2d) else k) + 1
    if isinstance(call.op, Conv2dGradWeight):
        n, _, h, w = ins[1].shape
        return n * h * w
    return max(int(np.prod(v.shape)) for v in (*ins, *outs)) if outs[0].kind == "wgrad" else 20


def relative_bound(
    trace: Trace, tiles: int, amplification: dict[type, float] | None = None
) -> float:
    """2 (prod (1 + gamma(n + tiles)) - 1) over the calls of the untiled trace.

    Each tile's path to an output runs through the same calls, and adds up at most once per tile;
    the factor 2 is for the errors of both traces.
    """
    product = 1.0
    for call in trace.calls:
        factor = (amplification or {}).get(type(call.op), 1.0)
        product *= 1 + factor * gamma(terms_of(trace, call) + tiles)
    return 2 * (product - 1)


@pytest.mark.parametrize("algorithm", ["direct", "im2col"])
@settings(max_examples=25)
@given(chain=chains(linear=True), seed=st.integers(0, 99))
def test_float_data_within_the_bound(algorithm: str, chain: Chain, seed: int) -> None:
    trace = chain.trace(algorithm)
    assume(trace is not None)
    values = random_values(trace, seed, integers=None)
    sizes = run_trace(trace, {k: np.abs(v) for k, v in values.items()}, SCALARS, "reference")
    bound = relative_bound(trace, chain.grid[0] * chain.grid[1])
    assert bound < 0.01  # it says something
    check_tile(trace, chain.grid, values, bound=lambda name: bound * sizes[name])


# Winograd F(4x4, 3x3): Y = A^T [(G g G^T) * (B^T d B)] A. Its errors come with the sum of absolute
# values of all terms, also of those that cancel: per axis, sum over j of |A_jo| |G_j.| |B_j.|,
# against 3 for the plain sum (4 for the gradient of the weight, where 4 outputs are summed).
B4 = np.array(
    [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
     [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]]
)  # fmt: skip
G4 = np.array(
    [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
     [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
)  # fmt: skip
A4 = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])
TRANSFORM_TERMS = 2 * (6 + 6 + 3)  # additions of the transforms along one path, both axes


def winograd4_amplification() -> dict[type, float]:
    """How much larger than the plain sum the sum of absolute values is, in two dimensions."""
    b, g, a = np.abs(B4).sum(1), np.abs(G4), np.abs(A4)
    forward = max((a * (g.sum(1) * b)).sum(1)) / 3
    weight = max((g.T * (a.sum(0) * b)).sum(1)) / 4
    return {Conv2d: forward**2, Conv2dGradInput: forward**2, Conv2dGradWeight: weight**2}


def algorithm_of(call: Call) -> str | None:
    """The convolution algorithm of a call; None where it has none."""
    return getattr(call.op, "algorithm", None)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(7, 21), st.integers(7, 21)),
    st.tuples(st.integers(1, 21), st.integers(1, 21)),
    st.sampled_from(["whole", "float"]),
)
def test_winograd4_within_the_bound(
    depth: int, size: tuple[int, int], grid: tuple[int, int], data: str
) -> None:
    model = nn.Sequential(*[nn.Conv2d(16, 16, 3, padding=1) for _ in range(depth)])
    trace = chain_trace(model, (1, 16, *size), conv_algorithm="winograd4")
    assert {algorithm_of(call) for call in tile(trace, grid).calls} == {None, "winograd4"}
    values = random_values(trace, 0, integers=2 if data == "whole" else None)
    # All data at its largest: what a transform mixes may lie anywhere in its tile.
    largest = {name: np.full(v.shape, np.abs(v).max()) for name, v in values.items()}
    sizes = run_trace(trace, largest, SCALARS, "reference")
    bound = relative_bound(trace, grid[0] * grid[1], winograd4_amplification())
    assert bound < 0.2  # of what the data could sum up to at most
    check_tile(trace, grid, values, bound=lambda name: bound * float(np.max(sizes[name])))


# --------------------------------------------------------------------------------------------------
# -
# Named cases: the ones that halos are got wrong on.
# --------------------------------------------------------------------------------------------------
# -

CASES = {
    "3x3 chain": (nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1)),
    "pool 3x3/2 pad 1": (nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.ReLU()),
    "stride 2": (nn.Conv2d(2, 3, 3, 2, 1), nn.ReLU(), nn.Conv2d(3, 2, 3, 2, 1)),
    "stride over kernel": (nn.Conv2d(2, 3, 1, 3), nn.Conv2d(3, 2, 2, 3)),
    "dilation": (nn.Conv2d(2, 3, 3, padding=2, dilation=2), nn.ReLU()),
    "kernel 5": (nn.Conv2d(2, 3, 5, padding=2), nn.MaxPool2d(2)),
    "kernel 7/2": (nn.Conv2d(2, 3, 7, 2, 3), nn.MaxPool2d(3, 2, 1)),
    "even kernel": (nn.Conv2d(2, 3, 2, padding=1), nn.Conv2d(3, 2, 4, padding=1)),
    "more padding than kernel": (nn.Conv2d(2, 3, 1, padding=2), nn.ReLU()),
    "groups": (nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.ReLU()),
    "average": (nn.AvgPool2d(2), nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d(4, 2, 1)),
    "dropout": (nn.Conv2d(2, 3, 3, padding=1), nn.Dropout(0.5)),
    "one-sided padding": (nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(2, 3, 3, 2)),
}


def test_a_single_row_of_padding() -> None:
    """One output, which reads padding alone: there is one tile, and it is the whole."""
    layers = nn.Conv2d(1, 1, 5), nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1, stride=3, padding=1)
    trace = chain_trace(nn.Sequential(*layers), (1, 1, 5, 5))
    check_tile(trace, (3, 3), random_values(trace))


@pytest.mark.parametrize(
    "grid", quick([(2, 2), (3, 1), (99, 99)], 0), ids=["2x2", "3x1", "rows of 1"]
)
@pytest.mark.parametrize("case", CASES)
def test_named_cases(case: str, grid: tuple[int, int]) -> None:
    chain = Chain(nn.Sequential(*CASES[case]), (2, 2, 17, 13), grid)
    trace = chain.trace("direct")
    values = exact_values(trace, 1)
    assert values is not None
    check_tile(trace, grid, values)


def test_counted_in_a_whole_step() -> None:
    """Loss, gradients, updated parameters and momenta of a step whose middle is tiled."""

    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    step = trace_step(model, (2, 1, 12, 12), threads=2, conv_algorithm="direct")
    values = initial_values(step, model)
    values["input"] = np.random.default_rng(0).standard_normal((2, 1, 12, 12)).astype("float32")
    values["target"] = np.array([0, 2])
    spread = dict.fromkeys((*step.outputs, *values), 0.0001)
    check_tile(step, (3, 2), values, bound=lambda name: spread[name])
