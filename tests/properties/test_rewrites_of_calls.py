"""Law: `fuse` and `share_storage` keep every result, of calls in any order.

Networks put their calls in a few patterns, so a rewrite that asks too little is right on all of
them. Here calls read whatever was written last: an input twice, a ReLU's gradient by readers that
cannot mask it, what is handed out. Results are compared on the kernels, to the bit, and on storages
that spoil whatever an operation in place may spoil (`support/strict_storage.py`).
"""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.directed import always
from support.random_calls import random_calls
from support.strict_storage import run_strictly
from support.tile_chains import Chain, chains, exact_values

from ooctrain import nn
from ooctrain.engine.incore import run_trace
from ooctrain.rewrite import fuse, share_storage
from ooctrain.rewrite.tile import tile

SCALARS = {"lr": 0.1, "step": 2, "seed": 5}


def initial(trace, seed):
    rng = np.random.default_rng(seed)
    variables = [trace.variables[v] for v in trace.initial]
    return {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in variables}


def same(results, expected):
    """Equal values: nothing was added in another order. (Tiles add to 0, where -0 becomes 0.)"""
    found = results.keys() == expected.keys()
    return found and all(np.array_equal(results[n], value) for n, value in expected.items())


def check_calls(trace, values):
    """The rewrites alone and together, strictly and on the kernels."""
    strictly, plain = run_strictly(trace, values, SCALARS), run_trace(trace, values, SCALARS)
    for rewritten in (fuse(trace), share_storage(trace), share_storage(fuse(trace))):
        assert same(run_strictly(rewritten, values, SCALARS), strictly)
        assert same(run_trace(rewritten, values, SCALARS), plain)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_rewrites_keep_the_results_of_any_calls(seed, calls):
    trace = random_calls(random.Random(seed), calls)
    check_calls(trace, initial(trace, seed))


def test_rewrites_find_something_in_such_calls():
    """Else the law above would hold of anything."""
    traces = [random_calls(random.Random(seed), 6) for seed in range(30)]
    assert sum(len(fuse(trace).calls) < len(trace.calls) for trace in traces) > 10
    assert sum(any(c.reuse for c in share_storage(t).calls) for t in traces) > 20


# Tiles of a trace whose storages are shared already, as a planner makes them.

PLAIN = nn.Sequential(
    nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(3, 2, 3, padding=1),
    nn.LeakyReLU(0.5),
)  # fmt: skip
#: (chain, seed of its values). With one tile, or a wide halo, a tile reads the image itself.
IN_PLACE = nn.Sequential(
    nn.Conv2d(2, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 7, padding=3), nn.LeakyReLU(0.5)
)
TILED = [
    (Chain(PLAIN, (1, 2, 9, 7), (2, 2)), 1),
    (Chain(nn.Sequential(nn.ReLU(), nn.Conv2d(2, 3, 3), nn.ReLU()), (1, 2, 9, 7), (3, 1)), 1),
    (Chain(IN_PLACE, (1, 2, 9, 7), (1, 1)), 1),
    (Chain(IN_PLACE, (1, 2, 4, 4), (2, 2)), 1),
    (Chain(IN_PLACE, (1, 2, 6, 4), (2, 1)), 2),
]


def check_tiles(chain, seed, *, kernels=False):
    """Tiling what shares its storages, and sharing those of the tiles; from the first layer, and
    from the second, whose input is a value like all others."""
    trace = chain.trace("direct")
    values = None if trace is None else exact_values(trace, seed)
    if trace is None or values is None:
        return
    shared = share_storage(trace)
    plain = run_strictly(trace, values, SCALARS)
    for first in (None, "1") if len(list(chain.model.children())) > 1 else (None,):
        once = tile(shared, chain.grid, first)
        for tiled in (once, share_storage(once)):
            assert same(run_strictly(tiled, values, SCALARS), plain)
    if kernels:
        expected = run_trace(trace, values, SCALARS, threads=2)
        assert same(run_trace(tiled, values, SCALARS, threads=2), expected)


@pytest.mark.slow
@settings(max_examples=5)
@given(chains(), st.integers(0, 99))
@always(TILED)
def test_tiles_of_shared_storages_keep_the_results(chain, seed):
    check_tiles(chain, seed)


def test_tiles_of_shared_storages_keep_the_bits_of_the_kernels():
    for grid, image_gradient in product([(2, 2), (9, 1), (1, 3)], [True, False]):
        check_tiles(Chain(PLAIN, (2, 2, 9, 7), grid, image_gradient), 1, kernels=True)
