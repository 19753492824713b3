"""Buddies: every place is a power of two long and lies at a multiple of its length.

Each block lies at the bottom of a place of the next power of two. A place of length 2^k has one
buddy, the other half of the place of length 2^(k+1) that holds both; its offset differs in the one
bit k. So a place is split and joined by flipping a bit, without a search for neighbours. The price
is paper 000's equation 1 at its worst: up to half of each place is wasted by rounding, where chunks
waste less than one chunk. Places below the highest one are taken first, so layouts, and with them
the reserved peak, do not depend on the size of the arena.

Granted bytes are whole 512 B, as planners count; the rest of a place counts as cached: free, but
not available. Its limitation: it cannot use the rest of a place, or join free neighbours that are
not buddies. Source: Knowlton, "A fast storage allocator" (1965); Knuth, "The Art of Computer
Programming" 1, section 2.5. Read next: `best_fit.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Books, Event, Stats
from ooctrain.alloc.best_fit import ROUND_BYTES
from ooctrain.devices.interface import Memory
from ooctrain.units import Granule


class Buddy:
    """Powers of two, whole variables.

    Args:
        memory: the arena; it is used as one linear piece. It need not be a power of two: a place
            may stick out behind its end, as long as what is asked for does not.
    """

    name = "buddy"
    granule = Granule(ROUND_BYTES, ranges=False)

    def __init__(self, memory: Memory):
        self.budget_bytes = memory.size_bytes // ROUND_BYTES * ROUND_BYTES
        self._base = memory.linear()
        self._books = Books(self.name, self.budget_bytes)
        self._free: dict[int, list[int]] = {}  # {length: offsets of free places below the top}
        self._lengths: dict[int, int] = {}  # {offset of a block: length of its place}
        self._top = 0  # behind this nothing is taken

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """The lowest free place of the smallest length that takes it, else one at the top.

        Cost: O(log budget) and list inserts.

        Raises:
            OutOfDeviceMemory: no place that takes it lies within the arena.
        """
        size = self.granule.granted(self._books.checked_size(nbytes))
        length = _place_bytes(size)
        reserved = self._reserved()
        found = self._find(length, size)
        if found is None:
            free = self.budget_bytes - self._books.granted
            snapshot = {**self.snapshot(), "top": -(-self._top // length) * length}
            raise self._books.refuse(nbytes, size, free, self._largest(), tag, snapshot)
        offset, whole = found
        if whole:
            self._split(offset, whole, length)
        else:
            self._grow(offset, length)
        self._lengths[offset] = length
        self._books.move(nbytes, size, self._reserved() - reserved)
        return self._books.open(self._base + offset, nbytes, size, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Takes a place back and joins it with its buddy, as often as that is free too.

        `after` is not needed here. Cost: O(log budget) and list inserts.
        """
        self._books.retire(block)
        reserved = self._reserved()
        offset = block.address - self._base
        length = self._lengths.pop(offset)
        while self._remove(offset ^ length, length):
            offset, length = offset & ~length, 2 * length
        self._add(offset, length)
        self._shrink()
        change = self._reserved() - reserved
        self._books.move(-block.requested_bytes, -block.granted_bytes, change)

    def stats(self) -> Stats:
        """The books; reserved is all below the highest place."""
        return self._books.stats(self._largest())

    def check(self) -> None:
        """Places tile the arena up to the top, each at a multiple of its length; buddies of free
        places are not free."""
        free = [(offset, length) for length, found in self._free.items() for offset in found]
        places = sorted([*free, *self._lengths.items()])
        assert all(lo + length == after for (lo, length), (after, _) in pairwise(places)), "gap"
        assert sum(places[-1] if places else (0, 0)) == self._top
        assert not places or places[0][0] == 0
        assert all(length == _place_bytes(length) for _, length in places)
        assert all(offset % length == 0 for offset, length in places)
        assert not {(offset ^ length, length) for offset, length in free} & set(free), "not joined"
        assert all(found == sorted(found) for found in self._free.values())
        live = {b.address - self._base: b.granted_bytes for b in self._books.live.values()}
        assert live.keys() == self._lengths.keys()
        assert all(size <= self._lengths[offset] < 2 * size for offset, size in live.items())
        assert all(offset + size <= self.budget_bytes for offset, size in live.items())
        self._books.check(cached_bytes=self._reserved() - sum(live.values()))

    def snapshot(self) -> dict[str, Any]:
        """Live blocks, the lengths of their places, and free places."""
        return ArenaSnapshot(
            {
                **self._books.layout(base=self._base),
                "places": [list(place) for place in sorted(self._lengths.items())],
                "holes": sorted([o, length] for length, found in self._free.items() for o in found),
                "top": self._top,
            }
        )

    def close(self) -> list[Block]:
        return self._books.close()

    def _find(self, length: int, size: int) -> tuple[int, int] | None:
        """(offset, length of the free place there or 0 for the top); None: nowhere."""
        whole = min((n for n, found in self._free.items() if found and n >= length), default=0)
        if whole:  # above a free place lies a block, so it ends within the arena
            return self._free[whole][0], whole
        offset = -(-self._top // length) * length
        return (offset, 0) if offset + size <= self.budget_bytes else None

    def _split(self, offset: int, whole: int, length: int) -> None:
        """Takes a free place apart until its lowest part has this length."""
        self._remove(offset, whole)
        while whole > length:
            whole //= 2
            self._add(offset + whole, whole)

    def _grow(self, offset: int, length: int) -> None:
        """Moves the top behind a new place; what it skips becomes free places."""
        while self._top < offset:
            skipped = self._top & -self._top
            self._add(self._top, skipped)
            self._top += skipped
        self._top = offset + length

    def _shrink(self) -> None:
        """Lets the top fall over the free places right below it."""
        falling = True
        while falling:
            falling = False
            for length, found in self._free.items():
                if found and found[-1] + length == self._top:
                    self._top = found.pop()
                    falling = True

    def _add(self, offset: int, length: int) -> None:
        insort(self._free.setdefault(length, []), offset)

    def _remove(self, offset: int, length: int) -> bool:
        """Takes a place off the free ones, if it is one of them."""
        found = self._free.get(length, [])
        place = bisect_left(found, offset)
        if place == len(found) or found[place] != offset:
            return False
        del found[place]
        return True

    def _reserved(self) -> int:
        """All up to the end of the highest place that lies in the arena."""
        return min(self._top, self.budget_bytes)

    def _largest(self) -> int:
        """The largest request that would be served."""
        length, largest = _place_bytes(self.budget_bytes), 0
        while length >= ROUND_BYTES and not largest:
            bottoms = [found[0] for n, found in self._free.items() if found and n >= length]
            room = self.budget_bytes - min([*bottoms, -(-self._top // length) * length])
            largest = min(length, room) if room > length // 2 else 0
            length //= 2
        return largest


def _place_bytes(size_bytes: int) -> int:
    """The smallest power of two that holds `size_bytes` bytes."""
    return 1 << (size_bytes - 1).bit_length()
