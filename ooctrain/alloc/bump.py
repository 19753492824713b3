"""Bump: the next block lies behind the highest one. This is the simplest allocator.

Its whole state is a single number, the end of the highest live block; claiming adds to it, and
holes below it are reused only after everything above them is gone. So it is as fast as an allocator
can be, and a baseline that shows the value of searching for holes: a training step keeps its
parameters from beginning to end, so everything that it frees below its latest block stays lost
until backward has passed it.

Its limitation: it cannot fill a hole, so it needs about the sum of a step's claims, not their
largest total at one time. And where updates are not in place (`--rewrites` without
`share_storage`), parameters climb from step to step, and every arena is soon too small. Read next:
`buddy.py`, `best_fit.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Books, Event, Stats
from ooctrain.alloc.best_fit import ROUND_BYTES
from ooctrain.devices.interface import Memory
from ooctrain.units import Granule


class Bump:
    """One pointer over the whole arena, whole variables.

    Args:
        memory: the arena; it is used as one linear piece.
    """

    name = "bump"
    granule = Granule(ROUND_BYTES, ranges=False)

    def __init__(self, memory: Memory):
        self.budget_bytes = memory.size_bytes // ROUND_BYTES * ROUND_BYTES
        self._base = memory.linear()
        self._books = Books(self.name, self.budget_bytes)
        self._ends: list[int] = []  # of all blocks up to the highest live one, ascending
        self._live: set[int] = set()  # ends of the live ones

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """The bytes behind the highest block. Cost: O(1).

        Raises:
            OutOfDeviceMemory: too little lies behind it, whatever lies free below.
        """
        size = self.granule.granted(self._books.checked_size(nbytes))
        top = self._top()
        if top + size > self.budget_bytes:
            free, end = self.budget_bytes - self._books.granted, self.budget_bytes - top
            raise self._books.refuse(nbytes, size, free, end, tag, self.snapshot())
        self._ends.append(top + size)
        self._live.add(top + size)
        self._books.move(nbytes, size, size)
        return self._books.open(self._base + top, nbytes, size, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Takes a block back; the pointer falls to the highest block that is still live.

        `after` is not needed here. Cost: O(1), amortised.
        """
        self._books.retire(block)
        top = self._top()
        self._live.remove(block.address - self._base + block.granted_bytes)
        while self._ends and self._ends[-1] not in self._live:
            self._ends.pop()
        self._books.move(-block.requested_bytes, -block.granted_bytes, self._top() - top)

    def stats(self) -> Stats:
        """The books; reserved is all below the pointer."""
        return self._books.stats(self.budget_bytes - self._top())

    def check(self) -> None:
        """Blocks lie one behind the other up to the pointer; the highest is live."""
        live = self._books.live.values()
        places = [(b.address - self._base, b.address - self._base + b.granted_bytes) for b in live]
        assert {end for _, end in places} == self._live
        pieces = set(pairwise([0, *self._ends]))
        assert set(places) <= pieces, "not where it was put"
        assert self._ends == sorted(set(self._ends))
        assert not self._ends or self._ends[-1] in self._live
        self._books.check(cached_bytes=self._top() - sum(end - lo for lo, end in places))

    def snapshot(self) -> dict[str, Any]:
        """Live blocks and where the pointer stands."""
        return ArenaSnapshot(
            {
                **self._books.layout(base=self._base),
                "top": self._top(),
            }
        )

    def close(self) -> list[Block]:
        return self._books.close()

    def _top(self) -> int:
        return self._ends[-1] if self._ends else 0
