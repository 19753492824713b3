"""The law of tiling: a tiled trace computes what the untiled one does.

Both traces, of a chain or a whole step under a grid, are run call by call, and their outputs (y,
dX, dW, db of a chain; loss, gradients and updated parameters of a step) must agree. On small whole
numbers float sums are exact in any order, so there they agree to the bit. An AssertionError names
the output that differs. It also checks an operation of your own that has a tile rule. Read next:
`rewrite/tile/weave.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ooctrain.engine.incore import Mode, run_trace
from ooctrain.rewrite.tile.tiling import Tiling, tile_trace
from ooctrain.step.op import Scalars
from ooctrain.step.trace import Trace
from ooctrain.testing.tiled.check_tiled import gradient_step as chain_trace
from ooctrain.testing.tiled.check_tiled import random_values

__all__ = ["SCALARS", "chain_trace", "check_tile", "random_values"]

SCALARS: Scalars = {"lr": 0.5, "step": 3, "seed": 7}


def check_tile(
    trace: Trace,
    grid: tuple[int, int],
    values: Mapping[str, np.ndarray],
    *,
    first: str | None = None,
    last: str | None = None,
    mode: Mode = "cpu",
    threads: int = 2,
    bound: Callable[[str], float | np.ndarray] | None = None,
) -> None:
    """Runs a trace and its tiled form and compares their outputs and the values that they carry
    over.

    Args:
        grid, first, last: as `oc.tile` takes them.
        values: of the initial variables; small whole numbers where equality to the bit is wanted.
        mode: "cpu" runs the kernels, "reference" the definitions in float64.
        threads: for which the trace was made.
        bound: largest error allowed for an output, by name; None: equal to the bit.

    Raises:
        AssertionError: names the output and says how far apart the two are.
    """
    tiled = tile_trace(trace, Tiling(grid, first, last))  # without a word where it has fewer tiles
    expected, found = (run_trace(t, values, SCALARS, mode, threads=threads) for t in (trace, tiled))
    assert expected.keys() == found.keys(), "an output is lost"
    for name, value in expected.items():
        limit: float | np.ndarray = 0.0 if bound is None else bound(name)
        assert value.shape == found[name].shape, f"{name}: {value.shape} became {found[name].shape}"
        error = np.abs(value.astype("float64") - found[name])
        assert np.all(error <= limit), (
            f"{name}: off by {error.max()}, at most {limit}, in {grid} tiles"
        )
