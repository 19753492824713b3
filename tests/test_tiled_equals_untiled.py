"""Tiled equals untiled: the one law of tiling, to be read first; tutorial 05 walks through it.

In bands of rows, every row of every layer's output and gradient has the bits of the untiled step.
Gradients of weights are sums over bands, so their floats are added in another order: they differ by
no more than two orders of one sum can. All operations, cuts and algorithms, and the bugs that such
laws catch: `properties/test_bands.py`, `properties/test_tiled_gradients.py`, `zoo/tile_bugs.py`.
"""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain.engine.incore import run_trace

LAYERS = [
    lambda: oc.nn.Conv2d(2, 2, 3, padding=1),
    lambda: oc.nn.Conv2d(2, 2, 5, stride=2, padding=2),
    lambda: oc.nn.MaxPool2d(3, 2, 1),
    oc.nn.ReLU,
]
chains = st.lists(st.sampled_from(LAYERS), max_size=4).map(
    lambda makers: oc.nn.Sequential(LAYERS[0](), *(make() for make in makers))
)


@given(chains, st.integers(8, 24), st.integers(1, 24), st.integers(0, 99))
def test_tiled_equals_untiled(model, height, bands, seed):
    untiled = oc.trace(model, (1, 2, height, 9), "mse", None, threads=2, conv_algorithm="direct")
    tiled = oc.tile(untiled, grid=(min(bands, height), 1), halo="keep")
    rng, initial = np.random.default_rng(seed), [untiled.variables[v] for v in untiled.initial]
    values = {v.name: rng.standard_normal(v.shape).astype("float32") for v in initial}
    expected, got = (
        run_trace(trace, values, {}, wanted=[v.name for v in trace.variables], threads=2)
        for trace in (untiled, tiled)
    )
    for v in tiled.variables:  # "1.out[h 4:9]" are rows 4 to 8 of "1.out"
        name, lo = re.fullmatch(r"(.*?)(?:\[h (\d+):\d+\])?", v.name).groups("0")
        if name in expected and len(v.shape) == 4 and v.kind != "wgrad":
            for row in range(v.shape[2]):
                a, b = expected[name][:, :, int(lo) + row], got[v.name][:, :, row]
                numbers = f"expected {a[a != b][:1]}, got {b[a != b][:1]}"
                assert np.array_equal(a, b), f"{name}, row {int(lo) + row}: {numbers}"
    for call in untiled.calls:
        weight, read = untiled.variables[call.outs[0]], [untiled.variables[v] for v in call.ins]
        if weight.kind == "wgrad":  # a sum of n products has an error of n u sum |products| at most
            n, largest = read[-1].shape[2] * read[-1].shape[3], [expected[v.name] for v in read]
            bound = 2 * (1.01 * n * 2.0**-24) * n * np.prod([np.abs(x).max() for x in largest])
            assert np.abs(expected[weight.name] - got[weight.name]).max() <= bound, weight.name
