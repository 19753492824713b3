"""Which rows a resized image reads: of the nearest pixel, or between two rows.

The numbers of rows before and after and the mode tell which rows a row reads, and which rows read a
row. Row o lies at o H / OH among the rows from which it is made, for any H and OH. So the rows read
neither begin nor end at multiples of a stride, but their borders never decrease with o, and
frontiers need no more. A band knows its place in the whole image, so it has the whole image's
weights. Source: ours; docs/tiling.md. Read next: `frontier.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from ooctrain.rewrite.tile.halo import Read, Span

#: First row of what is read, rows of the whole of it; first row of the result, rows of the whole.
Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Which rows of one input a row reads; as `row_rules.RowsRead`.

    Args:
        mode: "nearest" or "bilinear".
        corners: whether the centres of the corner pixels coincide.
        place: of what is at hand, in whole images before and after; the gradient's the same way
            round.
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
