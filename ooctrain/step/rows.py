"""Rows: what an operation reads of its inputs' rows, and how it is cut to some of them.

A kernel over windows computes any band of rows as it computes them all, if it is given the rows
that these read, and as much padding above and below as lies outside the image. So a band, or a
tile, needs two facts of an operation, which stand with it (`op.py`): a relation, for each input,
between a row and the rows that it reads (`RowsRead`, `ScaledRows`), and the same operation on a
part (`RowRule.cut`). Forward a row reads the window that lies over it. The gradient of a windowed
operation is the other way round: it gathers all outputs whose windows lie over it. An operation
that sums over rows (a weight gradient) runs over those of the gradient that it sums. Everything is
one-dimensional: rows and columns are independent. Source: paper 003, sections 2.3 and 4.1, whose
table 3 has such maps for forward operations; those of gradients are ours, docs/tiling.md. Read
next: `layers/pooling.py`, whose rules are short; then `rewrite/tile/halo.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Window:
    """Which input rows (or columns) an output row reads, for ops that can be tiled in H and W.

    Output index o reads inputs [o * stride - pad_lo, o * stride - pad_lo + (kernel - 1) * dilation
    + 1). Pointwise ops have kernel 1, stride 1, no padding.
    """

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad_lo: int = 0
    pad_hi: int = 0

    @property
    def reach(self) -> int:
        """Rows from the first to the last one that a single output reads."""
        return (self.kernel - 1) * self.dilation + 1


#: Rows and columns of an operation that works pixel by pixel.
PIXEL = (Window(), Window())


@dataclass(frozen=True, slots=True)
class Span:
    """Rows (or columns) lo, lo + 1, ..., hi - 1."""

    lo: int
    hi: int

    @property
    def extent(self) -> int:
        """How many there are; never negative."""
        return max(self.hi - self.lo, 0)

    def __str__(self) -> str:
        return f"{self.lo}:{self.hi}"


@dataclass(frozen=True, slots=True)
class Read:
    """What one layer of a tile reads along one axis.

    Args:
        inside: the rows that exist.
        pad_lo, pad_hi: how many rows before and after them lie outside the tensor.
    """

    inside: Span
    pad_lo: int
    pad_hi: int


def read_span(outputs: Span, window: Window, extent: int) -> Read:
    """The rows that outputs [lo, hi) read: [lo*s - p, (hi-1)*s - p + reach), clipped to [0,
    extent).
    """
    first = outputs.lo * window.stride - window.pad_lo
    stop = (outputs.hi - 1) * window.stride - window.pad_lo + window.reach
    inside = Span(max(first, 0), min(stop, extent))
    return Read(inside, inside.lo - first, stop - inside.hi)


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Which rows of one input a row reads.

    Args:
        window: row o lies over rows [o s - p, o s - p + reach).
        gathers: the other way round: row r reads all rows o whose windows lie over r.
    """

    window: Window = field(default_factory=Window)
    gathers: bool = False

    @property
    def overlap(self) -> int:
        """Rows that two neighbouring bands read."""
        return max(self.window.reach - self.window.stride, 0)

    def read(self, rows: Span, extent: int) -> Read:
        """What `rows` read of an input of `extent` rows, and how many rows the window stands out
        above and below it.
        """
        return (
            self._gathered(rows, extent) if self.gathers else read_span(rows, self.window, extent)
        )

    def first(self, row: int, extent: int) -> int:
        """The first row that `row` and all later ones read."""
        return self.read(Span(row, row + 1), extent).inside.lo

    def stop(self, row: int, extent: int) -> int:
        """One past the last row that all rows before `row` read; 0 where there are none."""
        return self.read(Span(row - 1, row), extent).inside.hi if row > 0 else 0

    def _gathered(self, rows: Span, outputs: int) -> Read:
        """Of `outputs` rows those whose windows lie over `rows`.

        A row between two windows (kernel < stride) belongs to the window before it, whose gradient
        is then read for nothing: padding must not be negative.
        """
        w = self.window
        touching = -((w.reach - 1 - w.pad_lo - rows.lo) // w.stride)
        lo = max(0, min(touching, (rows.lo + w.pad_lo) // w.stride))
        hi = min(outputs, (rows.hi - 1 + w.pad_lo) // w.stride + 1)
        above = rows.lo - (lo * w.stride - w.pad_lo)
        below = (hi - 1) * w.stride - w.pad_lo + w.reach - rows.hi
        return Read(Span(lo, hi), above, max(below, 0))


# A resized image: its rows are those of the nearest pixel, or between two rows. Row o lies at o H /
# OH among the rows from which it is made, for any H and OH. So the rows read neither begin nor end
# at multiples of a stride, but their borders never decrease with o, and frontiers need no more. A
# band knows its place in the whole image, so it has the whole image's weights. Source: ours.


#: First row of what is read, rows of the whole of it; first row of the result, rows of the whole.
Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Which rows of one input a row reads; as `RowsRead`.

    Args:
        mode: "nearest" or "bilinear".
        corners: whether the centres of the corner pixels coincide.
        place: place of what is at hand, in whole images before and after; the gradient's the same
            way round.
        gathers: a row of the gradient reads all rows that were made of it.
    """

    mode: str
    corners: bool
    place: Place
    gathers: bool = False

    @property
    def overlap(self) -> int:
        """Rows that two neighbouring bands read."""
        return 2 if self.mode == "bilinear" else 0

    def read(self, rows: Span, extent: int) -> Read:
        """What `rows` read of an input of `extent` rows."""
        before, _, after, outputs = self.place
        if self.gathers:
            # The first row behind which it begins to be read, the first that begins below it.
            lo = bisect_right(range(outputs), before + rows.lo, key=self._stop_of)
            hi = bisect_left(range(outputs), before + rows.hi, key=self._first_of)
            origin = after
        else:
            lo, hi = self._first_of(after + rows.lo), self._stop_of(after + rows.hi - 1)
            origin = before
        start = min(max(lo - origin, 0), extent)
        return Read(Span(start, min(max(hi - origin, start), extent)), 0, 0)

    def first(self, row: int, extent: int) -> int:
        """The first row that `row` and all later ones read."""
        return self.read(Span(row, row + 1), extent).inside.lo

    def stop(self, row: int, extent: int) -> int:
        """One past the last row that all rows before `row` read; 0 where there are none."""
        return self.read(Span(row - 1, row), extent).inside.hi if row > 0 else 0

    def computable(self, rows: int, extent: int) -> int:
        """How many rows can be computed from the first `rows` of `extent` rows of the whole."""
        outputs = self.place[3]
        if rows >= extent:
            return outputs
        return bisect_right(range(outputs), rows, key=self._stop_of)

    def _first_of(self, row: int) -> int:
        """The first row that a row of the whole result reads.

        Where it lies exactly on a row, kernels may round to just above that: the row before is
        read too, by next to nothing.
        """
        lower, exact = self._position(row)
        return lower if self.mode == "nearest" else max(lower - exact, 0)

    def _stop_of(self, row: int) -> int:
        lower, _ = self._position(row)
        return lower + 1 if self.mode == "nearest" else min(lower + 2, self.place[1])

    def _position(self, row: int) -> tuple[int, bool]:
        """The row at or above which it lies, and whether exactly there."""
        _, size, _, outputs = self.place
        if self.mode == "nearest":
            count, by = row * size, outputs
        elif self.corners:
            count, by = row * (size - 1), max(outputs - 1, 1)
        else:
            count, by = max((2 * row + 1) * size - outputs, 0), 2 * outputs
        return min(count // by, size - 1), count % by == 0


#: Rows of windows, or of an image in another size.
AnyRead = RowsRead | ScaledRows


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a band of rows of one image lies.

    Args:
        image: its number.
        rows: over which the operation runs.
        above, below: rows of padding that its first input needs.
        full: (N, C, H, W) of its whole output.
    """

    image: int
    rows: Span
    above: int
    below: int
    full: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowRule:
    """How an operation is cut into bands of rows.

    Args:
        reads: for each input which of its rows a row reads; None: all of it, as of a weight.
        cut: the operation of a band.
        reduces: its outputs have no rows: each is a sum over all rows that the operation runs over,
            which are those of the last input that it reads.
        of_image: inputs, (N, C) or (N, C, 1, 1), of which a band reads what belongs to its image.
        adds_images: whether a sum over rows is also one over images.
    """

    reads: tuple[AnyRead | None, ...]
    cut: Callable[[RowPlace], Any]
    reduces: bool = False
    of_image: tuple[int, ...] = ()
    adds_images: bool = True


#: A row reads the same row.
SAME = RowsRead()


@dataclass(frozen=True, slots=True)
class TilePlace:
    """Where a tile lies in the image that an operation reads.

    Args:
        padding: rows and columns outside the image (top, bottom, left, right).
        start: first row and column that the tile reads.
        full: (N, C, H, W) of the whole image.
    """

    padding: tuple[int, int, int, int]
    start: tuple[int, int]
    full: tuple[int, int, int, int]
