"""Best fit: each block goes into the smallest free hole that takes it; adjacent holes are merged.

Blocks lie in one linear arena. Holes are indexed twice, by size for choosing one and by place for
merging it with its neighbours; the free end of the arena (the wilderness) is a hole that is used
last. So the highest address ever used, the reserved peak, does not depend on the size of the arena,
and a schedule fits exactly the budgets from that number on. The cost of the fragments between the
blocks is paper 000's figure 3. Sources: best fit with wilderness preservation as in Lea's malloc;
512 B rounding as in PyTorch's caching allocator. Read next: `virtual.py`, which needs no contiguous
hole.

How others round, and where we differ: their arenas grow in segments from the driver, ours is one
piece from the start, without borders that block the merging of holes.

- PyTorch (CUDACachingAllocator): multiples of 512 B. Up to 1 MiB from segments of 2 MiB, up to 10
  MiB from segments of 20 MiB, above that a segment of its own in multiples of 2 MiB. A hole is
  split if 512 B remain (small ones) or more than 1 MiB (large ones); never merged across segments.
- TensorFlow, XLA, JAX (BFC): multiples of 256 B, holes in bins by powers of two; a hole is split if
  it is twice the request, or 128 MiB larger; regions grow by doubling.
- nnabla (the paper's own baseline): best fit by (bytes, address), up to 1 MiB in a separate pool.
- Here: multiples of 512 B, one arena; a hole is always split, and always merged.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Books, Reached, Stats
from ooctrain.devices.base import Memory
from ooctrain.units import Granule

ROUND_BYTES = 512


class BestFit:
    """Best fit over the whole arena, whole variables.

    Args:
        memory: the arena; it is used as one linear piece.
    """

    name = "best-fit"
    granule = Granule(ROUND_BYTES, ranges=False)

    def __init__(self, memory: Memory):
        self.budget_bytes = memory.size_bytes // ROUND_BYTES * ROUND_BYTES
        self._base = memory.linear()
        self._books = Books(self.name, self.budget_bytes)
        self._by_size: list[tuple[int, int]] = []  # (size, offset) of each hole
        self._size_at: dict[int, int] = {}  # hole's offset: its size
        self._end_at: dict[int, int] = {}  # hole's end: its offset
        self._top = 0  # the wilderness begins here

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """The smallest hole that takes it, else the wilderness. Cost: O(log holes) and a list
        insert.

        Raises:
            OutOfDeviceMemory: neither takes it.
        """
        size = self.granule.granted(self._books.checked_size(nbytes))
        place = bisect_left(self._by_size, (size, -1))
        if place < len(self._by_size):
            hole, offset = self._by_size[place]
            self._drop_hole(offset, hole)
            if hole > size:
                self._add_hole(offset + size, hole - size)
            growth = 0
        elif self._top + size <= self.budget_bytes:
            offset, growth = self._top, size
            self._top += size
        else:
            raise self._books.refuse(nbytes, size, *self._free_bytes(), tag, self.snapshot())
        self._books.move(nbytes, size, growth)
        return self._books.open(self._base + offset, nbytes, size, tag)

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        """Makes a hole of a block, molten with the holes beside it. `after` is not needed here."""
        self._books.retire(block)
        lo = block.address - self._base
        hi = lo + block.granted_bytes
        if lo in self._end_at:
            before = self._end_at[lo]
            self._drop_hole(before, self._size_at[before])
            lo = before
        if hi in self._size_at:
            behind = self._size_at[hi]
            self._drop_hole(hi, behind)
            hi += behind
        shrink = 0
        if hi == self._top:
            shrink, self._top = self._top - lo, lo
        else:
            self._add_hole(lo, hi - lo)
        self._books.move(-block.requested_bytes, -block.granted_bytes, -shrink)

    def stats(self) -> Stats:
        """The books; reserved is all below the wilderness."""
        return self._books.stats(self._free_bytes()[1])

    def check(self) -> None:
        """Blocks and holes tile the arena up to the wilderness; no two holes touch."""
        pieces = [
            (b.address - self._base, b.granted_bytes, True) for b in self._books.live.values()
        ]
        pieces = sorted(pieces + [(offset, size, False) for size, offset in self._by_size])
        end, was_hole = 0, False
        for offset, size, live in pieces:
            assert offset == end, f"gap or overlap at {end}: next piece at {offset}"
            assert size > 0
            assert size % ROUND_BYTES == 0
            assert live or not was_hole, f"two holes touch at {offset}"
            end, was_hole = offset + size, not live
        assert end == self._top <= self.budget_bytes
        assert not was_hole, "a hole touches the wilderness"
        assert self._by_size == sorted((s, o) for o, s in self._size_at.items())
        assert self._end_at == {o + s: o for s, o in self._by_size}
        self._books.check(cached_bytes=sum(size for size, _ in self._by_size))
        assert self._books.reserved == self._top

    def snapshot(self) -> dict[str, Any]:
        """Live blocks and holes, as plain data."""
        holes = sorted((offset, size) for size, offset in self._by_size)
        return ArenaSnapshot(
            {
                **self._books.layout(base=self._base),
                "holes": [list(hole) for hole in holes],
                "top": self._top,
            }
        )

    def close(self) -> list[Block]:
        return self._books.close()

    def _free_bytes(self) -> tuple[int, int]:
        """(all that is free, the largest piece of it)."""
        end = self.budget_bytes - self._top
        largest = self._by_size[-1][0] if self._by_size else 0
        return end + sum(size for size, _ in self._by_size), max(end, largest)

    def _add_hole(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._size_at[offset] = size
        self._end_at[offset + size] = offset

    def _drop_hole(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset]
        del self._end_at[offset + size]
