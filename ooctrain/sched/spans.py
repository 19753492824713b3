"""Byte ranges with a value: the small sorted map behind residency, host copies and host slots.

The map says which ranges [lo, hi) of a variable are covered, with which value, and where the gaps
are. It is a sorted list of disjoint (lo, hi, value) in which neighbours with equal values are
merged. A variable that moves as a whole is therefore one entry, and a variable in chunks has as
many entries as it has runs of equal chunks. The file also has `held_during`, the sum over stretches
of time, and first fit: `FirstGaps` for host slots, `lowest_gap` for allocators. Read next:
`ledger.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Generic, TypeVar

Value = TypeVar("Value")
_LO = itemgetter(0)
#: Behind every offset.
ENDLESS = 1 << 80


class Spans(Generic[Value]):
    """Disjoint ranges, each with a value. Cost of every method: O(entries of this variable)."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[tuple[int, int, Value]] = []

    def over(self, lo: int, hi: int) -> list[tuple[int, int, Value]]:
        """The entries within [lo, hi), clipped to it, ascending."""
        items = self.items
        if len(items) == 1 and items[0][0] == lo and items[0][1] == hi:
            return items[:]
        found = []
        for position in range(self._first(lo), len(items)):
            start, stop, value = items[position]
            if start >= hi:
                break
            found.append((max(start, lo), min(stop, hi), value))
        return found

    def gaps(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of [lo, hi) that no entry covers, ascending."""
        items, gaps = self.items, list[tuple[int, int]]()
        if len(items) == 1 and items[0][0] <= lo <= hi <= items[0][1]:
            return gaps
        for start, stop, _ in self.over(lo, hi):
            if lo < start:
                gaps.append((lo, start))
            lo = stop
        if lo < hi:
            gaps.append((lo, hi))
        return gaps

    def drop(self, lo: int, hi: int) -> None:
        """Uncovers [lo, hi)."""
        items = self.items
        if lo >= hi or not items:
            return
        start = stop = self._first(lo)
        rest = []
        while stop < len(items) and items[stop][0] < hi:
            a, b, value = items[stop]
            if a < lo:
                rest.append((a, lo, value))
            if b > hi:
                rest.append((hi, b, value))
            stop += 1
        items[start:stop] = rest

    def put(self, lo: int, hi: int, value: Value) -> None:
        """Covers [lo, hi) with `value`, whatever was there before."""
        if lo >= hi:
            return
        self.drop(lo, hi)
        items = self.items
        start = stop = self._first(lo)
        if start > 0 and items[start - 1][1] == lo and items[start - 1][2] == value:
            start -= 1
            lo = items[start][0]
        if stop < len(items) and items[stop][0] == hi and items[stop][2] == value:
            hi = items[stop][1]
            stop += 1
        items[start:stop] = [(lo, hi, value)]

    def ranges(self) -> list[tuple[int, int]]:
        """What is covered, values aside, with touching ranges joined."""
        joined: list[tuple[int, int]] = []
        for lo, hi, _ in self.items:
            if joined and joined[-1][1] == lo:
                joined[-1] = (joined[-1][0], hi)
            else:
                joined.append((lo, hi))
        return joined

    def _first(self, lo: int) -> int:
        """Position of the first entry that ends after `lo`."""
        position = bisect_right(self.items, lo, key=_LO)
        if position and self.items[position - 1][1] > lo:
            return position - 1
        return position


def held_during(stretches: Iterable[tuple[int, int, int]], count: int) -> list[int]:
    """For each of `count` calls the bytes of all stretches (first call, last call, bytes) that
    include it.
    """
    change = [0] * (count + 1)
    for first, last, size_bytes in stretches:
        change[first] += size_bytes
        change[last + 1] -= size_bytes
    return list(accumulate(change[:count]))


def lowest_gap(taken: Sequence[tuple[int, int]], size_bytes: int, align_bytes: int = 1) -> int:
    """The lowest aligned offset with room for `size_bytes` between what is taken.

    Args:
        taken: (offset, end), by offset; they may overlap.
    """
    offset = 0
    for start, end in taken:
        if start - offset >= size_bytes:
            break
        offset = max(offset, -(-end // align_bytes) * align_bytes)
    return offset


class FirstGaps:
    """First fit from offset 0 up to no end: what is taken lies as low as it can.

    Sizes that are multiples of a number keep all offsets multiples of it.
    """

    __slots__ = ("_ends", "_sizes", "_starts")

    def __init__(self) -> None:
        self._starts, self._ends, self._sizes = [0], [ENDLESS], [ENDLESS]

    def __len__(self) -> int:
        """How many gaps there are, the last without an end."""
        return len(self._starts)

    def take(self, size_bytes: int) -> int:
        """The lowest offset with room, which is taken; 0 for no bytes. Cost: O(gaps below it)."""
        if not size_bytes:
            return 0
        place = next(at for at, room in enumerate(self._sizes) if room >= size_bytes)
        offset = self._starts[place]
        if self._sizes[place] == size_bytes:
            self._remove(place)
        else:
            self._starts[place] += size_bytes
            self._sizes[place] -= size_bytes
        return offset

    def give(self, start: int, end: int) -> None:
        """[start, end) is free again, joined with what is free next to it."""
        if start == end:
            return
        place = bisect_left(self._starts, start)
        if self._starts[place] == end:
            end = self._ends[place]
            self._remove(place)
        if place and self._ends[place - 1] == start:
            place -= 1
            start = self._starts[place]
            self._remove(place)
        self._starts.insert(place, start)
        self._ends.insert(place, end)
        self._sizes.insert(place, end - start)

    def _remove(self, place: int) -> None:
        del self._starts[place], self._ends[place], self._sizes[place]
