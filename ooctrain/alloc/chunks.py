"""Room for blocks in one piece: which indices of a range are free, as runs.

In: pieces that are occupied and vacated, some of them several times over. Out: the smallest run of
free indices that has room for a request. The one idea: best fit over sorted, disjoint runs; there
are few of them, so that a scan is quick. An index may be busy for more than one reason (a block
sits on its address, its chunk is in use elsewhere), so busy reasons are counted. Read next:
`virtual.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

Run = tuple[int, int]  # (first, count)


class Room:
    """Indices 0 to count - 1, each free or busy for one or more reasons.

    Args:
        count: how many; all are free at first.
    """

    def __init__(self, count: int):
        self._busy = np.zeros(count, np.uint8)
        self._los, self._his = [0], [count]

    def find(self, count: int) -> int | None:
        """First index of the smallest free run with `count` or more; None: no run has. O(runs)."""
        best = best_run(self.runs(), count)
        return None if best is None or best[1] < count else best[0]

    def occupy(self, lo: int, count: int) -> None:
        """One more reason to be busy for [lo, lo + count)."""
        part = self._busy[lo : lo + count]
        for first, size in _zeros(part):
            self._remove(lo + first, size)
        part += 1

    def vacate(self, lo: int, count: int) -> None:
        """One reason less."""
        part = self._busy[lo : lo + count]
        part -= 1
        for first, size in _zeros(part):
            self._insert(lo + first, size)

    def runs(self) -> list[Run]:
        """All free runs, ascending."""
        return [(lo, hi - lo) for lo, hi in zip(self._los, self._his, strict=True)]

    def _remove(self, lo: int, count: int) -> None:
        place = bisect_right(self._los, lo) - 1
        start, stop, hi = self._los[place], self._his[place], lo + count
        left, right = [(start, lo)] * (start < lo), [(hi, stop)] * (hi < stop)
        self._los[place : place + 1] = [a for a, _ in left + right]
        self._his[place : place + 1] = [b for _, b in left + right]

    def _insert(self, lo: int, count: int) -> None:
        hi = lo + count
        place = bisect_left(self._los, lo)
        if place < len(self._los) and self._los[place] == hi:
            hi = self._his[place]
            del self._los[place], self._his[place]
        if place and self._his[place - 1] == lo:
            self._his[place - 1] = hi
        else:
            self._los.insert(place, lo)
            self._his.insert(place, hi)


def best_run(runs: Iterable[Run], count: int) -> Run | None:
    """The smallest run that has `count`, the first of equals; else the largest; None of none."""
    return min(
        runs, key=lambda r: (r[1] < count, r[1] if r[1] >= count else -r[1], r[0]), default=None
    )


def join_runs(runs: Iterable[Run]) -> list[Run]:
    """Runs ascending, those that touch made one."""
    joined: list[Run] = []
    for first, count in sorted(runs):
        if joined and sum(joined[-1]) == first:
            joined[-1] = (joined[-1][0], joined[-1][1] + count)
        else:
            joined.append((first, count))
    return joined


def _zeros(part: np.ndarray) -> list[Run]:
    """Runs of zeros."""
    if not part.any():
        return [(0, part.size)]
    if part.all():
        return []
    borders = np.flatnonzero(np.diff(np.concatenate(([False], part == 0, [False]))))
    return [(int(a), int(b - a)) for a, b in borders.reshape(-1, 2)]
