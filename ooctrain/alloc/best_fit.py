"""Best fit: each block goes into the smallest free hole that takes it; adjacent holes are merged.

Blocks lie in one linear arena. Holes are indexed twice, by size for choosing one and by place for
merging it with its neighbours; the free end of the arena (the wilderness) is a hole that is used
last. So the highest address ever used, the reserved peak, does not depend on the size of the arena,
and a schedule fits exactly the budgets from that number on. The cost of the fragments between the
blocks is paper 000's figure 3. Sources: best fit with wilderness preservation as in Lea's malloc;
512 B rounding as in PyTorch's caching allocator. Read next: `best_fit_caching.py`, whose segments
are never joined, and `virtual.py`, which needs no contiguous hole.

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

from collections.abc import Sequence
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Books, Event, Stats
from ooctrain.alloc.holes import Holes
from ooctrain.devices.interface import Memory
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
        self._holes = Holes()
        self._top = 0  # the wilderness begins here

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """The smallest hole that takes it, else the wilderness. Cost: O(log holes) and a list
        insert.

        Raises:
            OutOfDeviceMemory: neither takes it.
        """
        size = self.granule.granted(self._books.checked_size(nbytes))
        hole = self._holes.smallest(size)
        if hole:
            offset, growth = hole[1], 0
            self._holes.cut(offset, size)
        elif self._top + size <= self.budget_bytes:
            offset, growth = self._top, size
            self._top += size
        else:
            raise self._books.refuse(nbytes, size, *self._free_bytes(), tag, self.snapshot())
        self._books.move(nbytes, size, growth)
        return self._books.open(self._base + offset, nbytes, size, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Makes a hole of a block, joined with the holes next to it. `after` is not needed here."""
        self._books.retire(block)
        lo = block.address - self._base
        lo, hi = self._holes.joined(lo, lo + block.granted_bytes)
        shrink = 0
        if hi == self._top:
            shrink, self._top = self._top - lo, lo
        else:
            self._holes.add(lo, hi - lo)
        self._books.move(-block.requested_bytes, -block.granted_bytes, -shrink)

    def stats(self) -> Stats:
        """The books; reserved is all below the wilderness."""
        return self._books.stats(self._free_bytes()[1])

    def check(self) -> None:
        """Blocks and holes tile the arena up to the wilderness; no two holes touch."""
        pieces = [
            (b.address - self._base, b.granted_bytes, True) for b in self._books.live.values()
        ]
        pieces = sorted(pieces + [(offset, size, False) for size, offset in self._holes.by_size])
        end, was_hole = 0, False
        for offset, size, live in pieces:
            assert offset == end, f"gap or overlap at {end}: next piece at {offset}"
            assert size > 0
            assert size % ROUND_BYTES == 0
            assert live or not was_hole, f"two holes touch at {offset}"
            end, was_hole = offset + size, not live
        assert end == self._top <= self.budget_bytes
        assert not was_hole, "a hole touches the wilderness"
        self._holes.check()
        self._books.check(cached_bytes=self._holes.total_bytes)
        assert self._books.reserved == self._top

    def snapshot(self) -> dict[str, Any]:
        """Live blocks and holes, as plain data."""
        return ArenaSnapshot(
            {
                **self._books.layout(base=self._base),
                "holes": self._holes.listed(),
                "top": self._top,
            }
        )

    def close(self) -> list[Block]:
        return self._books.close()

    def _free_bytes(self) -> tuple[int, int]:
        """(all that is free, the largest piece of it)."""
        end = self.budget_bytes - self._top
        return end + self._holes.total_bytes, max(end, self._holes.largest_bytes)
