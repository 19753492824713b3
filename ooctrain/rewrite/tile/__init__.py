"""Tiling: a rewrite of the trace that runs a chain of layers tile by tile, with the same results.

A trace, a grid and the names of two layers give an ordinary trace, which planners, verifier,
simulator and executor treat like any other. A value that does not outlive its tile need not be kept
for the whole image. There are two kinds of tiles with this property: those that compute their halo
again, and bands of rows that keep it. Source: paper 003; bands are ours (docs/tiling.md). Read
next: `tiling.py`, then `../../step/rows.py` and `halo.py` (which rows), `segment.py`
(which calls), `weave.py` (the new trace); of bands `frontier.py`, `bands.py`.
"""

from __future__ import annotations

from ooctrain.errors import warn
from ooctrain.rewrite.tile.tiling import Halo, Tiling, parse_name, remark_on, tile_trace
from ooctrain.step.arguments import checked_but
from ooctrain.step.trace import Trace

__all__ = ["remark_by_name", "tile", "tile_by_name"]


@checked_but("grid")
def tile(
    trace: Trace,
    grid: tuple[int, int] = (2, 2),
    first: str | None = None,
    last: str | None = None,
    *,
    halo: Halo = "recompute",
    again: bool = True,
) -> Trace:
    """Runs a chain of layers tile by tile: same outputs and gradients, less memory, more computing.

    Outputs and gradients are those of the untiled trace: to the bit on integer-valued data for
    convolutions by "direct", "im2col" and "winograd2", else up to the order of float sums. Bands
    that keep their halos give outputs and gradients of images to the bit on any data, for "direct",
    "im2col" and "depthwise"; only gradients of weights are sums over bands.

    Args:
        trace: a step, rewritten or not; each convolution keeps its algorithm.
        grid: number of tiles in H and W of the chain's output; fewer, with a warning, where it has
            fewer rows. Of bands (T, 1): into how many the chain's input is cut.
        first, last: names of the first and last layer (or forward call) of the chain; for bands
            with sums and concatenations in between. None: as far as the chain goes; both None: the
            longest chain of convolutions, poolings and pointwise operations in the trace.
        halo: "recompute": tiles, which compute what their neighbours compute too; "keep": bands of
            rows, which compute no row twice and keep the few that the next one needs.
        again: write each tile's forward calls into the backward pass once more, so that their
            results need not be kept; False: backward reads them, and planners decide what to keep,
            to swap, or to run again.

    Returns:
        A trace with the same inputs, parameters, outputs and carries; images among inputs and
        outputs may lie in blocks, "input[h 0:64]" and so on (`bands.py`). As a rewrite of a plan
        its name is "tile:HxW:first:last", the ends optional; of bands "bands:T:first:last", or
        "bands_again:T:first:last" for `again`.

    Raises:
        ConfigError: a call of the segment cannot be tiled, or is a tile's already, or there is no
            such chain.

    Cost: O(calls + tiles * calls of the chain).
    """
    tiling = Tiling(grid, first, last, halo, again)
    tiled = tile_trace(trace, tiling)
    if remark := remark_on(trace, tiling):
        warn(remark)
    return tiled


def tile_by_name(trace: Trace, name: str) -> Trace:
    """The rewrite of a plan: "tile:4x4", "tile:4x2:conv1", "bands:16:conv1:pool2" and the like.

    Raises:
        ConfigError: as `tile`, or the name is not of this form.
    """
    return tile_trace(trace, parse_name(name))


def remark_by_name(trace: Trace, name: str) -> str:
    """What the tiling of this name does otherwise than its name says: fewer tiles; "": nothing."""
    return remark_on(trace, parse_name(name))
