"""Frontiers: how far down each tensor can be computed from the first rows of the image.

A tensor's frontier a has one row number for each cut of the image; it follows from the rows that
each layer reads. Band t of a tensor is rows [a(t), a(t + 1)): those that can be computed with the
image up to cut t + 1 and could not before. From layer to layer a border recedes by the rows that a
window reaches down. So each row belongs to one band, and a band reads only its own rows and a few
above them, which exist already. In backward, bands go from the last to the first, and the same
borders guarantee that all gradients that a row gathers exist. Source: ours; docs/tiling.md has the
proofs. Read next: `bands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.rewrite.tile.halo import split_evenly
from ooctrain.step.rows import AnyRead, RowsRead, ScaledRows

#: for each cut, 0 and the last row included, the number of rows that are there by then
Frontier = tuple[int, ...]


def even_cuts(extent: int, bands: int) -> Frontier:
    """Cuts of an image of `extent` rows into bands that differ by one row at most; fewer bands
    where there are fewer rows.
    """
    return (0, *(span.hi for span in split_evenly(extent, bands)))


def computable(rows: int, read: AnyRead, extent: int, outputs: int) -> int:
    """How many of `outputs` rows can be computed from the first `rows` of `extent` input rows.

    The largest o whose windows all end there, (o - 1) s - p + reach <= rows, and of which the next
    window begins no later, o s - p <= rows: with kernel < stride, rows between two windows must not
    come after both, or their gradient would need a negative padding. 0 where all windows so far lie
    in the padding, as no operation runs on zero rows. Where an operation gathers (upsampling), all
    rows before o whose windows a later input row may still reach are out: o = rows s - p.
    """
    if rows >= extent:
        return outputs
    if isinstance(read, ScaledRows):
        return read.computable(rows, extent)
    window = read.window
    if read.gathers:
        return max(0, min(rows * window.stride - window.pad_lo, outputs))
    ended = (rows + window.pad_lo - window.reach) // window.stride + 1
    begun = (rows + window.pad_lo) // window.stride
    found = min(ended, begun, outputs)
    reaches_image = (found - 1) * window.stride - window.pad_lo + window.reach > 0
    return found if found > 0 and reaches_image else 0


def frontier_after(before: Sequence[tuple[AnyRead, Frontier]], outputs: int) -> Frontier:
    """Frontier of the output of an operation, from those of the inputs whose rows it reads: at a
    join the input that is farthest behind decides.

    Args:
        before: how it reads each of them, and that input's frontier, which ends with its extent.
        outputs: number of rows of the output.
    """
    inner = [
        min(computable(a[t], read, a[-1], outputs) for read, a in before)
        for t in range(1, len(before[0][1]) - 1)
    ]
    return (0, *inner, outputs)


def frontier_before(read: AnyRead, after: Frontier, extent: int) -> Frontier:
    """The lowest frontier of a whole tensor of `extent` rows with which its gradient finds all that
    it gathers, where `after` is that of what is computed from it.
    """
    inner = [min(read.stop(rows, extent), extent) for rows in after[1:-1]]
    if isinstance(read, RowsRead) and not read.gathers:
        window = read.window
        begun = [rows and rows * window.stride - window.pad_lo for rows in after[1:-1]]
        inner = [min(max(found, at), extent) for found, at in zip(inner, begun, strict=True)]
    return (0, *inner, extent)


def rounded(frontier: Frontier, together: int, upwards: bool) -> Frontier:
    """A frontier at a multiple of some rows: the last one before, or the first one behind."""
    extent = frontier[-1]
    inner = [-(-a // together) if upwards else a // together for a in frontier[1:-1]]
    return (0, *(min(a * together, extent) for a in inner), extent)
