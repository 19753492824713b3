"""The rewrite itself: from a grid and two names to a tiled trace.

In: a trace, a grid, names of layers. Out: the tiled trace. The one idea: rows and columns are cut
independently: the segment's output is split into spans of rows and spans of columns, and each pair
of spans is a tile. Read next: `halo.py`, `rules.py`, `segment.py`, `weave.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from ooctrain.errors import ConfigError
from ooctrain.rewrite.tile.halo import tile_spans
from ooctrain.rewrite.tile.segment import find_segment
from ooctrain.rewrite.tile.steps import make_tiles
from ooctrain.rewrite.tile.weave import weave
from ooctrain.step.trace import Trace


def tile_trace(trace: Trace, grid: tuple[int, int], first: str | None, last: str | None) -> Trace:
    """See `ooctrain.rewrite.tile.tile`."""
    if not _is_grid(grid):
        raise ConfigError(f"a grid is two numbers of tiles, not {grid!r}", code="OOC-113")
    segment = find_segment(trace, first, last)
    height, width = trace.variables[segment.source].shape[2:]
    windows = [stage.windows for stage in segment.stages]
    rows = tile_spans([w[0] for w in windows], height, grid[0])
    columns = tile_spans([w[1] for w in windows], width, grid[1])
    return weave(trace, segment, make_tiles(trace, segment, rows, columns))


def _is_grid(grid: object) -> bool:
    """Whether it is two whole numbers of 1 or more."""
    return (
        isinstance(grid, Sequence) and len(grid) == 2
        and all(isinstance(n, Integral) and int(n) >= 1 for n in grid)
    )  # fmt: skip


def parse_name(name: str) -> tuple[tuple[int, int], str | None, str | None]:
    """Grid, first and last of "tile:4x4", "tile:4x2:conv1" or "tile:4x2:conv1:pool2".

    Raises:
        ConfigError: the name is not of this form.
    """
    kind, _, rest = name.partition(":")
    size, *ends = rest.split(":")
    h, _, w = size.partition("x")
    if kind != "tile" or not (h.isdecimal() and w.isdecimal()) or len(ends) > 2:
        raise ConfigError(
            f"{name!r} names no tiling", code="OOC-113", fix="tile:4x4 or tile:4x4:conv1:pool2"
        )
    first, last = (*(end or None for end in ends), None, None)[:2]
    return (int(h), int(w)), first, last
