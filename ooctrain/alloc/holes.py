"""The holes of one linear piece of memory: found by size, joined by place.

A hole is a free stretch between two blocks. To choose one, an allocator asks for the smallest that
takes a request, so holes are sorted by size. When a block is freed, the holes on both sides of it
become one with it, so they are also kept by where they begin and where they end. Neighbours are
always joined: two holes never touch. Source: the boundary tags of Knuth (The Art of Computer
Programming 1, section 2.5), kept in dictionaries outside the memory. Read next: `best_fit.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Holes:
    """Free stretches, apart from each other.

    Attributes:
        by_size: (size in bytes, offset) of each, ascending.
    """

    def __init__(self) -> None:
        self.by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}  # a hole's offset: its size
        self._start_of: dict[int, int] = {}  # a hole's end: its offset

    @property
    def total_bytes(self) -> int:
        """What all of them hold. O(holes)."""
        return sum(size for size, _ in self.by_size)

    @property
    def largest_bytes(self) -> int:
        """Size of the largest; 0: no hole."""
        return self.by_size[-1][0] if self.by_size else 0

    def smallest(self, size_bytes: int) -> tuple[int, int] | None:
        """(size, offset) of the smallest that has so much, the lowest of equals. O(log holes)."""
        place = bisect_left(self.by_size, (size_bytes, -1))
        return self.by_size[place] if place < len(self.by_size) else None

    def add(self, offset: int, size_bytes: int) -> None:
        """A hole that touches no other. O(holes), by a list insert."""
        insort(self.by_size, (size_bytes, offset))
        self._size_at[offset] = size_bytes
        self._start_of[offset + size_bytes] = offset

    def drop(self, offset: int) -> int:
        """Takes the hole at an offset away; returns its size."""
        size = self._size_at.pop(offset)
        del self.by_size[bisect_left(self.by_size, (size, offset))]
        del self._start_of[offset + size]
        return size

    def cut(self, offset: int, size_bytes: int) -> None:
        """Takes the first bytes of the hole at an offset; the rest stays a hole."""
        hole = self.drop(offset)
        if hole > size_bytes:
            self.add(offset + size_bytes, hole - size_bytes)

    def joined(self, lo: int, hi: int) -> tuple[int, int]:
        """[lo, hi) with the holes on both sides of it, which are holes no longer."""
        if lo in self._start_of:
            lo = self._start_of[lo]
            self.drop(lo)
        if hi in self._size_at:
            hi += self.drop(hi)
        return lo, hi

    def listed(self) -> list[list[int]]:
        """[offset, size] of each, by offset, as plain data."""
        return [list(hole) for hole in sorted(self._size_at.items())]

    def check(self) -> None:
        """The three indices hold the same holes. Raises AssertionError."""
        assert self.by_size == sorted((size, offset) for offset, size in self._size_at.items())
        assert self._start_of == {offset + size: offset for size, offset in self.by_size}
