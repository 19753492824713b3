"""Free physical chunks, kept as runs so that a large range is mapped by one call.

In: chunk numbers given back. Out: as few runs as will do. The one idea: the best run is the
smallest that takes the whole request; where none does, the largest runs go first. Any free chunk
serves any request, so runs are a matter of speed only, never of success. Read next: `virtual.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort

Run = tuple[int, int]  # (first chunk, number of chunks)


class ChunkRuns:
    """Free chunks as sorted, disjoint, untouching runs [lo, hi)."""

    def __init__(self, chunks: int):
        self._los = [0] if chunks else []
        self._his = [chunks] if chunks else []
        self.total = chunks

    def take(self, count: int) -> list[Run]:
        """Takes `count` chunks (no more than `total`) in few runs. Cost: O(runs) for each run."""
        taken: list[Run] = []
        while count:
            place = self._best(count)
            lo = self._los[place]
            part = min(count, self._his[place] - lo)
            taken.append((lo, part))
            if lo + part == self._his[place]:
                del self._los[place], self._his[place]
            else:
                self._los[place] = lo + part
            self.total -= part
            count -= part
        return taken

    def give(self, lo: int, count: int) -> None:
        """Puts chunks back, molten with the runs beside them."""
        hi = lo + count
        self.total += count
        place = bisect_left(self._los, lo)
        if place < len(self._los) and self._los[place] == hi:
            hi = self._his[place]
            del self._los[place], self._his[place]
        if place and self._his[place - 1] == lo:
            self._his[place - 1] = hi
        else:
            insort(self._los, lo)
            self._his.insert(place, hi)

    def runs(self) -> list[Run]:
        """All free runs, ascending."""
        return [(lo, hi - lo) for lo, hi in zip(self._los, self._his, strict=True)]

    def _best(self, count: int) -> int:
        """Place of the smallest run with `count` chunks, else of the largest run."""
        sizes = [hi - lo for lo, hi in zip(self._los, self._his, strict=True)]
        enough = [(size, place) for place, size in enumerate(sizes) if size >= count]
        return min(enough)[1] if enough else sizes.index(max(sizes))
