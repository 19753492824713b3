"""Which physical chunks are free, as runs of neighbours.

A request gets the smallest run that has room for it, or else the fewest runs that together have.
Free runs are kept sorted and joined, so there are few of them and a scan is quick. The free runs
depend on the held chunks alone, not on their history, so a training step that begins in the same
state as the last one gets the same chunks. Read next: `mappings.py`, then `alloc/virtual.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

Run = tuple[int, int]  # (first chunk, how many)


class FreeRuns:
    """Runs of free chunks, among chunks of which each is free or held.

    Args:
        chunks: how many there are; all are free at first.

    Attributes:
        count: how many are free.
        held: for each chunk whether it is held.
    """

    def __init__(self, chunks: int):
        self.count = chunks
        self.held = np.zeros(chunks, bool)
        self._los, self._his = ([0], [chunks]) if chunks else ([], [])

    def find(self, count: int) -> int | None:
        """First chunk of the smallest free run with `count` or more; None: no run has. O(runs)."""
        fitting = [
            (hi - lo, lo) for lo, hi in zip(self._los, self._his, strict=True) if hi - lo >= count
        ]
        return min(fitting)[1] if fitting else None

    def holes(self, count: int) -> list[Run]:
        """`count` free chunks in few runs: the largest ones, then the smallest that has the rest.

        Returns:
            The runs, ascending.

        Raises:
            ValueError: fewer are free.
        """
        runs, chosen = sorted(self.runs(), key=_size), []
        while count:
            if not runs:
                raise ValueError(f"{count} free chunks are missing")
            place = min(bisect_left(runs, count, key=_size), len(runs) - 1)
            first, size = runs.pop(place)
            chosen.append((first, min(size, count)))
            count -= min(size, count)
        return sorted(chosen)

    def is_free(self, run: Run) -> bool:
        """Whether all chunks of a run are. O(log runs)."""
        place = bisect_right(self._los, run[0]) - 1
        return place >= 0 and run[0] + run[1] <= self._his[place]

    def take(self, runs: Iterable[Run]) -> None:
        """Holds free runs, each of which lies within one free run. O(free runs)."""
        for lo, count in runs:
            place, hi = bisect_right(self._los, lo) - 1, lo + count
            before, behind = (self._los[place], lo), (hi, self._his[place])
            left = [piece for piece in (before, behind) if piece[0] < piece[1]]
            self._los[place : place + 1] = [first for first, _ in left]
            self._his[place : place + 1] = [last for _, last in left]
            self.held[lo:hi] = True
            self.count -= count

    def give(self, runs: Iterable[Run]) -> None:
        """Frees held runs and joins them with free neighbours. O(free runs)."""
        for lo, count in runs:
            hi = lo + count
            self.held[lo:hi] = False
            self.count += count
            place = bisect_left(self._los, lo)
            if place < len(self._los) and self._los[place] == hi:
                hi = self._his[place]
                del self._los[place], self._his[place]
            if place and self._his[place - 1] == lo:
                self._his[place - 1] = hi
            else:
                self._los.insert(place, lo)
                self._his.insert(place, hi)

    def runs(self) -> list[Run]:
        """All free runs, ascending."""
        return [(lo, hi - lo) for lo, hi in zip(self._los, self._his, strict=True)]


def chunks_of(runs: Iterable[Run]) -> np.ndarray:
    """The chunk numbers of runs, in their order."""
    parts = [np.arange(first, first + count) for first, count in runs]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def runs_of(chunks: np.ndarray | Sequence[int]) -> list[Run]:
    """Runs of consecutive numbers, in order: [5, 6, 2, 3, 4] -> [(5, 2), (2, 3)]."""
    numbers = np.asarray(chunks)
    return [(int(numbers[lo]), hi - lo) for lo, hi in stretches(numbers)]


def stretches(*columns: np.ndarray) -> list[tuple[int, int]]:
    """[lo, hi) of positions within which all of these equally long columns count up by one."""
    breaks = {0, columns[0].size}
    for column in columns:
        breaks.update((np.flatnonzero(column[1:] - column[:-1] != 1) + 1).tolist())
    return list(pairwise(sorted(breaks)))


def _size(run: Run) -> int:
    return run[1]
