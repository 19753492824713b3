"""The law of bands by Winograd's transforms: other tiles, other roundings.

F(m x m, 3 x 3): Y = A^T [(G g G^T) * (B^T d B)] A. Its error comes with the sum of absolute values
of all terms, also of those that cancel: per axis max over o of sum over j of |A_jo| |G_j.| |B_j.|,
against 3 for the plain sum. So an output differs from the true one by at most

    (prod over calls (1 + f^2 gamma(n + T)) - 1) times the chain with all values at their largest

and two of them by twice that; f is that ratio, n the terms of a call, T the bands. This holds of
linear chains, and of others where all decisions are the same: where two cells of a window, or a
value and 0, nearly tie, a ReLU or a maximum may decide otherwise, and single gradients move far.
Source: Higham, Accuracy and Stability of Numerical Algorithms, 3.1; docs/tiling.md.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from properties.test_bands import Cut
from properties.test_tiled_gradients import relative_bound, winograd4_amplification
from support.check_tile import SCALARS, chain_trace, random_values
from support.tile_chains import MOST_PIXELS

from ooctrain import nn
from ooctrain.engine.incore import run_trace
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight
from ooctrain.step.trace import Trace

B2 = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
G2 = np.array([[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]])
A2 = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])


def winograd2_amplification() -> dict[type, float]:
    """How much larger than the plain sum the sum of absolute values is, in two dimensions."""
    b, g, a = np.abs(B2).sum(1), np.abs(G2), np.abs(A2)
    forward = max((a * (g.sum(1) * b)).sum(1)) / 3
    weight = max((g.T * (a.sum(0) * b)).sum(1)) / 2
    return {Conv2d: forward**2, Conv2dGradInput: forward**2, Conv2dGradWeight: weight**2}


def test_the_matrices_are_those_of_the_transform() -> None:
    """A^T [(G g) * (B^T d)] is the correlation of four numbers with three."""
    g, d = np.array([2.0, -1, 3]), np.array([1.0, 4, -2, 5])
    assert A2 @ ((G2 @ g) * (B2 @ d)) == pytest.approx(np.correlate(d, g, "valid"))
    # Per axis 1 * 2 + 3/2 * 2 + 3/2 * 2, against 3.
    assert winograd2_amplification()[Conv2d] == pytest.approx((8 / 3) ** 2)


AMPLIFICATION = {"winograd2": winograd2_amplification, "winograd4": winograd4_amplification}
rows = st.lists(st.integers(1, MOST_PIXELS - 1), max_size=4).map(tuple)
cuts = st.builds(Cut, rows, st.booleans())
sizes = st.tuples(st.integers(7, 21), st.integers(7, 21))


def check_bounds(trace: Trace, banded: Trace, algorithm: str, values: dict[str, np.ndarray]) -> int:
    """All results within the bound; how many are not equal to the bit."""
    bands = sum(call.name.startswith("0.fwd[") for call in banded.calls)
    largest = {name: np.full(v.shape, np.abs(v).max()) for name, v in values.items()}
    whole = run_trace(trace, largest, SCALARS, "reference")
    bound = relative_bound(trace, bands, AMPLIFICATION[algorithm]())
    assert bound < 0.2  # of what the data could sum up to at most
    expected, got = (run_trace(t, values, SCALARS, threads=2) for t in (trace, banded))
    for name, value in expected.items():
        error = np.abs(value.astype("float64") - got[name]).max()
        assert error <= bound * np.abs(whole[name]).max(), f"{name}: off by {error}"
    return sum(not np.array_equal(value, got[name]) for name, value in expected.items())


def decisions(trace: Trace, values: dict[str, np.ndarray], untiled: Trace) -> dict[str, np.ndarray]:
    """Which values of ReLUs are above 0, and positions of maxima, by the names of whole tensors."""
    deciding = {
        untiled.variables[v].name
        for call in untiled.calls if call.op.name in ("relu", "max_pool2d") for v in call.outs
    }  # fmt: skip
    parts = {}
    for v in trace.variables:
        name, lo = re.fullmatch(r"(.*?)(?:\[h (\d+):\d+\])?", v.name).groups("0")
        if name in deciding:
            parts[v.name] = name, int(lo)
    found = run_trace(trace, values, SCALARS, threads=2, wanted=list(parts))
    wholes = {v.name: np.zeros(v.shape) for v in untiled.variables if v.name in deciding}
    for variable, (name, lo) in parts.items():
        index = found[variable].dtype == np.uint8
        part = found[variable] if index else found[variable] > 0
        wholes[name][:, :, lo : lo + part.shape[2]] = part
    return wholes


@pytest.mark.parametrize(
    "algorithm", [pytest.param("winograd2", marks=pytest.mark.slow), "winograd4"]
)
@settings(max_examples=12)
@given(depth=st.integers(1, 2), size=sizes, cut=cuts, seed=st.integers(0, 9))
def test_linear_chains(
    algorithm: str, depth: int, size: tuple[int, int], cut: Cut, seed: int
) -> None:
    model = nn.Sequential(*[nn.Conv2d(16, 16, 3, padding=1) for _ in range(depth)])
    trace = chain_trace(model, (1, 16, *size), conv_algorithm=algorithm)
    banded = cut.of(trace)
    assert algorithm in {getattr(call.op, "algorithm", None) for call in banded.calls}
    check_bounds(trace, banded, algorithm, random_values(trace, seed, integers=None))


def deciding_chain(algorithm: str, size: tuple[int, int]) -> Trace:
    layers = nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    model = nn.Sequential(*layers, nn.Conv2d(16, 16, 3, padding=1))
    return chain_trace(model, (1, 16, *size), conv_algorithm=algorithm)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", AMPLIFICATION)
@settings(max_examples=15)
@given(size=sizes, rows=rows, seed=st.integers(0, 99))
def test_equal_decisions(algorithm: str, size: tuple[int, int], rows: tuple, seed: int) -> None:
    """Masks and positions of maxima are compared first."""
    trace = deciding_chain(algorithm, size)
    banded, values = Cut(rows, again=False).of(trace), random_values(trace, seed, integers=None)
    untiled, tiled = (decisions(t, values, trace) for t in (trace, banded))
    assume(all(np.array_equal(decided, tiled[name]) for name, decided in untiled.items()))
    check_bounds(trace, banded, algorithm, values)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", AMPLIFICATION)
def test_bands_do_round_otherwise(algorithm: str) -> None:
    """So to the bit would be too much to ask; and most decisions are the same."""
    trace = deciding_chain(algorithm, (19, 13))
    banded = Cut((5, 11), again=False).of(trace)
    same = moved = 0
    for seed in range(8):
        values = random_values(trace, seed, integers=None)
        untiled, tiled = (decisions(t, values, trace) for t in (trace, banded))
        if all(np.array_equal(decided, tiled[name]) for name, decided in untiled.items()):
            same += 1
            moved += check_bounds(trace, banded, algorithm, values)
    assert same >= 4
    assert moved > 0
