"""Tiling: a rewrite of the trace that runs a chain of layers tile by tile, with the same results.

In: a trace, a grid, the names of two layers. Out: an ordinary trace, which planners, verifier,
simulator and executor treat like any other. The one idea: what does not outlive its tile need not
be kept for the whole image, at the price of running the tile's forward calls again in backward.
Source: paper 003. Read next: `rewrite.py`, then `halo.py` (which rows), `rules.py` (which
operations), `segment.py` (which calls), `weave.py` (the new trace).
"""

from __future__ import annotations

from ooctrain.rewrite.tile.rewrite import parse_name, tile_trace
from ooctrain.step.trace import Trace

__all__ = ["tile", "tile_by_name"]


def tile(
    trace: Trace,
    grid: tuple[int, int] = (2, 2),
    first: str | None = None,
    last: str | None = None,
) -> Trace:
    """Runs a chain of layers tile by tile: same outputs and gradients, less memory, more computing.

    Outputs and gradients are those of the untiled trace: to the bit on integer-valued data for
    convolutions by "direct", "im2col" and "winograd2", else up to the order of float sums.

    Args:
        trace: a step, rewritten or not; each convolution keeps its algorithm.
        grid: number of tiles in H and W of the chain's output; fewer where it has fewer rows.
        first, last: names of the first and last layer (or forward call) of the chain; None: as far
            as the chain goes; both None: the longest chain of convolutions, poolings and pointwise
            operations in the trace.

    Returns:
        A trace with the same inputs, parameters, outputs and carries. As a rewrite of a plan its
        name is "tile:HxW:first:last", the ends optional.

    Raises:
        ConfigError: a call of the segment cannot be tiled, or there is no such chain.

    Cost: O(calls + tiles * calls of the chain).
    """
    return tile_trace(trace, grid, first, last)


def tile_by_name(trace: Trace, name: str) -> Trace:
    """The rewrite of a plan: "tile:4x4", "tile:4x2:conv1" or "tile:4x2:conv1:pool2".

    Raises:
        ConfigError: as `tile`, or the name is not of this form.
    """
    return tile_trace(trace, *parse_name(name))
