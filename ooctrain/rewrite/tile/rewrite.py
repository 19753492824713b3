"""The rewrite itself: from a description of a tiling to a tiled trace.

In: a trace and a `Tiling`. Out: the tiled trace. The one idea: there are two kinds of tiles. With
recomputed halos, rows and columns are cut independently, and each pair of spans is a tile that
reads whatever it needs of the image. With kept halos, bands of whole rows follow each other, and
what two of them need is kept. Read next: `halo.py`, `rules.py`, `segment.py`, `weave.py`; then
`row_rules.py`, `frontier.py`, `banded_calls.py`, `bands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from ooctrain.errors import ConfigError
from ooctrain.rewrite.tile.banded_calls import banded_calls
from ooctrain.rewrite.tile.bands import weave_bands
from ooctrain.rewrite.tile.class_losses import losses_apart
from ooctrain.rewrite.tile.halo import tile_spans
from ooctrain.rewrite.tile.segment import find_segment
from ooctrain.rewrite.tile.steps import make_tiles
from ooctrain.rewrite.tile.weave import weave
from ooctrain.step.trace import Trace

Halo = Literal["recompute", "keep"]


@dataclass(frozen=True, slots=True)
class Tiling:
    """What `ooctrain.rewrite.tile.tile` is asked for; it describes the arguments."""

    grid: tuple[int, int]
    first: str | None = None
    last: str | None = None
    halo: Halo = "recompute"
    again: bool = True


#: {name of a rewrite: its kind of halo, whether forward calls run again}
NAMED: dict[str, tuple[Halo, bool]] = {
    "tile": ("recompute", True),
    "bands": ("keep", False),
    "bands_again": ("keep", True),
}


def tile_trace(trace: Trace, tiling: Tiling) -> Trace:
    """See `ooctrain.rewrite.tile.tile`."""
    _check(tiling)
    if tiling.halo == "keep":
        trace = losses_apart(trace, tiling.last)
        calls = banded_calls(trace, tiling.grid[0], tiling.first, tiling.last)
        return weave_bands(trace, calls, tiling.again)
    segment = find_segment(trace, tiling.first, tiling.last)
    height, width = trace.variables[segment.source].shape[2:]
    windows = [stage.windows for stage in segment.stages]
    rows = tile_spans([w[0] for w in windows], height, tiling.grid[0])
    columns = tile_spans([w[1] for w in windows], width, tiling.grid[1])
    return weave(trace, segment, make_tiles(trace, segment, rows, columns), tiling.again)


def _check(tiling: Tiling) -> None:
    if not _is_grid(tiling.grid):
        raise ConfigError(
            f"a grid is two numbers of tiles, not {tiling.grid!r}",
            code="OOC-113",
            fix="grid=(4, 1), rows and columns of tiles",
        )
    if tiling.halo not in ("recompute", "keep"):
        raise ConfigError(
            f"halo {tiling.halo!r} is neither 'recompute' nor 'keep'",
            code="OOC-113",
            fix="halo='recompute' for tiles, halo='keep' for bands",
        )
    if tiling.halo == "keep" and tiling.grid[1] != 1:
        raise ConfigError(
            f"bands that keep their halos are as wide as the image, not 1/{tiling.grid[1]} of it",
            code="OOC-113",
            fix=f"grid=({tiling.grid[0] * tiling.grid[1]}, 1), or halo='recompute'",
        )


def _is_grid(grid: object) -> bool:
    """Whether it is two whole numbers of 1 or more."""
    return (
        isinstance(grid, Sequence) and len(grid) == 2
        and all(isinstance(n, Integral) and int(n) >= 1 for n in grid)
    )  # fmt: skip


def parse_name(name: str) -> Tiling:
    """The tiling that "tile:4x4", "tile:4x2:conv1", "bands:16:conv1:pool2" and the like mean.

    Raises:
        ConfigError: the name is not of this form.
    """
    kind, _, rest = name.partition(":")
    size, *ends = rest.split(":")
    h, _, w = size.partition("x") if kind == "tile" else (size, "", "1")
    if kind not in NAMED or not (h.isdecimal() and w.isdecimal()) or len(ends) > 2:
        raise ConfigError(
            f"{name!r} names no tiling",
            code="OOC-113",
            fix="tile:4x4, tile:4x4:conv1:pool2, bands:16:conv1:pool2 or bands_again:16",
        )
    first, last = (*(end or None for end in ends), None, None)[:2]
    return Tiling((int(h), int(w)), first, last, *NAMED[kind])
