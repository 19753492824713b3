"""Memory without bytes: addresses for allocators whose decisions are predicted, not used.

The addresses of blocks depend on the order of requests alone, so fragmentation is known before
anything runs, on any machine and at any size: a V100's 16 GiB on a laptop. Read next: `replay.py`,
which makes an allocator's requests over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooctrain.alloc.base import Block, Books, Event, Stats, describe
from ooctrain.units import MAX_BYTES, Granule

_FIRST_ADDRESS = 1 << 20
_GAP_BYTES = 1 << 20


class DryMemory:
    """Addresses without bytes behind them, linear and virtual.

    Args:
        size_bytes: size of the arena it stands for.
        granularity_bytes: bounds of mappings are multiples of it.
        max_mappings: how many mappings apart from each other it carries.

    Attributes:
        linear_address: address of the whole; None: not known yet.
    """

    ranges = True

    def __init__(self, size_bytes: int, granularity_bytes: int = 4096, max_mappings: int = 1 << 30):
        self.size_bytes = size_bytes
        self.granularity_bytes, self.max_mappings = granularity_bytes, max_mappings
        self._next = _FIRST_ADDRESS
        self.linear_address: int | None = None

    def linear(self) -> int:
        """Address of the whole."""
        if self.linear_address is None:
            self.linear_address = self.reserve(self.size_bytes)
        return self.linear_address

    def reserve(self, size_bytes: int) -> int:
        """A fresh range; ranges never touch."""
        address = self._next
        self._next += size_bytes + _GAP_BYTES
        return address

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Nothing to be done."""

    def unmap(self, address: int, size_bytes: int) -> None:
        """Nothing to be done."""

    def release(self, address: int) -> None:
        """Nothing to be done."""


class DryAllocator:
    """An allocator that grants all that is asked for, each block at an address of its own: for
    recording what a schedule asks for, whichever allocator will serve it.

    Args:
        granule: how it rounds, and whether it has ranges.
        name: name of the allocator that it stands for.
    """

    budget_bytes = MAX_BYTES

    def __init__(self, granule: Granule, name: str = "dry run"):
        self.granule, self.name = granule, name
        self._memory = DryMemory(MAX_BYTES)
        self._books = Books(name, MAX_BYTES)

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block. Raises ConfigError: not a size."""
        block = self.reserve(nbytes, tag)
        self._hold(block, self.granule.granted(nbytes))
        return block

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        self._books.retire(block)
        self._hold(block, -block.granted_bytes)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """A block with nothing in it."""
        address = self._memory.reserve(self._books.checked_size(nbytes))
        return self._books.open(address, nbytes, 0, tag)

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Counts a range as held."""
        self._books.expect_live(block)
        self._hold(block, self.granule.granted(hi - lo))

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Event] = ()) -> None:
        """Counts a range as given back."""
        self._books.expect_live(block)
        self._hold(block, -self.granule.granted(hi - lo))

    def stats(self) -> Stats:
        return self._books.stats()

    def check(self) -> None:
        """What is granted is the sum over the blocks."""
        assert self._books.granted == sum(b.granted_bytes for b in self._books.live.values())

    def snapshot(self) -> dict[str, Any]:
        """Who is live."""
        return {"allocator": self.name, "blocks": describe(self._books.live.values())}

    def close(self) -> list[Block]:
        return self._books.close()

    def _hold(self, block: Block, size_bytes: int) -> None:
        block.granted_bytes += size_bytes
        self._books.move(size_bytes, size_bytes, size_bytes)
