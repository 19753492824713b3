"""Planted bugs of tiling: each is what a competent developer might have written.

`BUGS` is {name: a function that plants the bug with pytest's monkeypatch}. All of them leave tiled
traces that are whole, have the right shapes on networks in the style of VGG, and need less memory;
only the values at some border show the bug. Read next: `test_tile_bugs.py`; `band_bugs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from ooctrain.layers.regions import Insert
from ooctrain.rewrite.tile import tiling, weave, writer
from ooctrain.rewrite.tile.halo import extents, split_evenly
from ooctrain.step.rows import Read, Span, Window

Plant = Callable[[pytest.MonkeyPatch], None]
ReadRule = Callable[[Span, Window, int], Read]


def _with_rule(rule: ReadRule) -> Plant:
    """Plants another rule for what one layer reads."""

    def chain_reads(outputs: Span, windows: Sequence[Window], extent: int) -> tuple[Read, ...]:
        reads: list[Read] = []
        sizes = extents(windows, extent)[:-1]
        for window, size in zip(reversed(windows), reversed(sizes), strict=True):
            reads.append(rule(outputs, window, size))
            outputs = reads[-1].inside
        return tuple(reversed(reads))

    return lambda patch: patch.setattr(weave, "chain_reads", chain_reads)


def _clipped(first: int, stop: int, lowest: int, highest: int) -> Read:
    inside = Span(max(first, lowest), min(stop, highest))
    return Read(inside, inside.lo - first, stop - inside.hi)


def _off_by_one_stop(outputs: Span, window: Window, extent: int) -> Read:
    """Takes the extent for the last index: the last row becomes padding."""
    first = outputs.lo * window.stride - window.pad_lo
    stop = (outputs.hi - 1) * window.stride - window.pad_lo + window.reach
    return _clipped(first, stop, 0, extent - 1 if stop > extent else extent)


def _off_by_one_start(outputs: Span, window: Window, extent: int) -> Read:
    """Counts rows from 1 where a tile touches the top: row 0 becomes padding."""
    first = outputs.lo * window.stride - window.pad_lo
    stop = (outputs.hi - 1) * window.stride - window.pad_lo + window.reach
    return _clipped(first, stop, 1 if first < 0 < stop - 1 else 0, extent)


def _table_4(outputs: Span, window: Window, extent: int) -> Read:
    """Paper 003's table 4 as printed: T + 2 f for stride 1, T * p for pools, no halo for these."""
    first = outputs.lo * window.stride - window.pad_lo
    halo = window.reach - 1 if window.stride == 1 else 0
    return _clipped(first, first + outputs.extent * window.stride + halo, 0, extent)


def _dilation_forgotten(outputs: Span, window: Window, extent: int) -> Read:
    """A halo of kernel - 1 rows, whatever the dilation."""
    first = outputs.lo * window.stride - window.pad_lo
    stop = (outputs.hi - 1) * window.stride - window.pad_lo + window.kernel
    return _clipped(first, stop, 0, extent)


def _interior_padding(outputs: Span, window: Window, extent: int) -> Read:
    """Each tile is an image of its own: no halo, and the layer's padding on all sides."""
    inside = Span(outputs.lo * window.stride, min(outputs.hi * window.stride, extent))
    return Read(inside, window.pad_lo, window.pad_hi)


def _padding_at_grid_border(patch: pytest.MonkeyPatch) -> None:
    """Pads the tiles at the border of the grid; halos may reach the border from further inside."""
    plain = weave.make_tiles

    def make_tiles(trace, segment, rows, columns):
        tiles = plain(trace, segment, rows, columns)
        ends = [max(tile.target[axis].hi for tile in tiles) for axis in (0, 1)]
        return [replace(tile, reads=_unpadded(tile, ends)) for tile in tiles]

    patch.setattr(tiling, "make_tiles", make_tiles)


def _unpadded(tile, ends):
    def keep(read: Read, span: Span, end: int) -> Read:
        lo, hi = read.pad_lo if span.lo == 0 else 0, read.pad_hi if span.hi == end else 0
        return Read(read.inside, lo, hi)

    return tuple(
        (keep(rows, tile.target[0], ends[0]), keep(columns, tile.target[1], ends[1]))
        for rows, columns in tile.reads
    )


def _counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Tiles of equal size, the last one moved back to end at the border: some rows are in two."""

    def tile_spans(windows: Sequence[Window], extent: int, parts: int) -> tuple[Span, ...]:
        rows = extents(windows, extent)[-1]
        size = math.ceil(rows / min(parts, rows))
        starts = range(0, rows, size)
        return tuple(Span(min(lo, rows - size), min(lo, rows - size) + size) for lo in starts)

    patch.setattr(tiling, "tile_spans", tile_spans)


def _halo_overwritten(patch: pytest.MonkeyPatch) -> None:
    """dX is inserted, not added: what two tiles share is that of the later one."""
    plain = weave.insertion

    def insertion(op, whole, part, region, phase):
        return plain(Insert, whole, part, region, phase)

    patch.setattr(weave, "insertion", insertion)


def _bias_of_the_last_tile(patch: pytest.MonkeyPatch) -> None:
    """db is not added up over the tiles."""
    plain = writer.add_up

    def add_up(gradient, part, steps, totals):
        if len(part.spec.shape) == 1:
            totals[gradient] = part
        else:
            plain(gradient, part, steps, totals)

    patch.setattr(weave, "add_up", add_up)


def _sides_swapped(patch: pytest.MonkeyPatch) -> None:
    """Padding in PyTorch's order (left, right, top, bottom)."""
    plain = weave.TilePlace

    def place(padding, start, full):
        top, bottom, left, right = padding
        swapped = (left, right, top, bottom)
        same_size = top + bottom == left + right
        return plain(swapped if same_size else padding, start, full)

    patch.setattr(weave, "TilePlace", place)


def _dropout_of_the_corner(patch: pytest.MonkeyPatch) -> None:
    """Each tile draws the mask of the upper left corner."""
    from ooctrain.layers.dropout import Dropout

    patch.setattr(Dropout, "on_tile", lambda op, at: op)


def _remainder_dropped(patch: pytest.MonkeyPatch) -> None:
    """Tiles of extent // parts rows; what is left over at the end is never computed."""

    def tile_spans(windows: Sequence[Window], extent: int, parts: int) -> tuple[Span, ...]:
        rows = extents(windows, extent)[-1]
        size = rows // min(parts, rows)
        return split_evenly(size * min(parts, rows), parts)

    patch.setattr(tiling, "tile_spans", tile_spans)


BUGS: dict[str, Plant] = {
    "off-by-one halo: last row": _with_rule(_off_by_one_stop),
    "off-by-one halo: first row": _with_rule(_off_by_one_start),
    "halo of table 4": _with_rule(_table_4),
    "dilation forgotten": _with_rule(_dilation_forgotten),
    "interior padding": _with_rule(_interior_padding),
    "padding at the border of the grid": _padding_at_grid_border,
    "counted twice": _counted_twice,
    "halo overwritten": _halo_overwritten,
    "bias of the last tile": _bias_of_the_last_tile,
    "sides swapped": _sides_swapped,
    "dropout of the corner": _dropout_of_the_corner,
    "remainder dropped": _remainder_dropped,
}
