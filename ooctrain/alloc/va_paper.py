"""Virtual addressing as paper 000 prints it: every request is mapped anew.

Blocks are contiguous in address space. Physical chunks of one size can be combined in any order, so
memory never fragments: a block of m_r bytes takes k = ceil(m_r / m_c) chunks (equation 1) and
wastes less than one (equation 2). On free the address range is released, and the chunks are kept
for the next request, which maps them again; until its last uses are over, a range is on a waiting
list. Mapping is expensive, which is why the paper's chunks are as large as 40 MiB, and why `va`
keeps its mappings. Source: paper 000, section 4, as printed. The waiting list is that of its code
(nnabla), but here each range waits for its own last use only; and that code keeps mapped ranges for
requests of their size, which this file does not (docs/errata.md). Read next: `virtual.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Event, Stats
from ooctrain.alloc.chunk_arena import ChunkArena
from ooctrain.alloc.mappings import ChunkMapping, check_chunk_count
from ooctrain.devices.interface import VirtualMemory
from ooctrain.units import MIB, Granule

#: The paper's choice, "which balances well between the cost of allocation and the amount of memory
#: fragmentation", and the least that its GPU could map.
PAPER_CHUNK_BYTES, LEAST_CHUNK_BYTES = 40 * MIB, 2 * MIB
_FEWEST_CHUNKS = 64


class PaperVirtualAddressing:
    """Chunks mapped into a fresh address range for each block.

    Args:
        memory: the arena; the part of it beyond the last whole chunk stays unused.
        chunk: m_c in bytes, a multiple of the memory's granularity; None: `paper_chunk_bytes`.

    Raises:
        ConfigError: no such chunk.
    """

    name = "va-paper"
    needs_virtual_memory = True

    @staticmethod
    def defaults(budget_bytes: int) -> Mapping[str, int]:
        """Parameters that follow from the budget, so that planning knows the granule."""
        return {"chunk": paper_chunk_bytes(budget_bytes)}

    @staticmethod
    def check_limits(memory: VirtualMemory, chunk: int) -> None:
        """Raises ConfigError if the arena has no whole chunk, or more than can be mapped apart."""
        check_chunk_count(memory, chunk, PaperVirtualAddressing.name)

    def __init__(self, memory: VirtualMemory, chunk: int | None = None):
        size = paper_chunk_bytes(memory.size_bytes) if chunk is None else chunk
        self._arena = ChunkArena(self.name, memory, size)
        self.granule, self.budget_bytes = Granule(size, ranges=False), self._arena.budget_bytes
        self._free = deque(range(self._arena.chunks))  # the longest unused first
        self._waiting: deque[ChunkMapping] = deque()  # freed, the first freed first

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block in a fresh range. Cost: a system call for each chunk, and one for the range.

        Raises:
            OutOfDeviceMemory: fewer chunks than it needs are free or waiting; as before.
            DriverError: the system refused to map; no block is made.
        """
        count = self._arena.chunks_for(nbytes, tag, self.snapshot)
        while len(self._free) < count:
            self._release(self._waiting.popleft())
        chunks = [self._free[place] for place in range(count)]
        mapping = self._arena.mappings.make(count, [(chunk, 1) for chunk in chunks])
        for _ in chunks:
            self._free.popleft()
        return self._arena.open(mapping, nbytes, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Puts the block's range on the waiting list; where nothing is to wait for, releases it."""
        mapping, granted = self._arena.retire(block, after), block.granted_bytes
        self._arena.books.move(-block.requested_bytes, -granted, 0, pending=granted)
        if after:
            self._waiting.append(mapping)
        else:
            self._release(mapping)

    def stats(self) -> Stats:
        """The books; pending is what waits."""
        books = self._arena.books
        return books.stats(self.budget_bytes - books.granted)

    def check(self) -> None:
        """Each chunk is free, or mapped once: in a block's range or in one that waits."""
        arena = self._arena
        arena.books.check(0)
        arena.mappings.check()
        mapped = [c for mapping in arena.mappings for c in mapping.table.tolist()]
        assert sorted([*self._free, *mapped]) == list(range(arena.chunks)), "a chunk is lost"
        waiting = sum(mapping.slots for mapping in self._waiting)
        assert arena.books.pending == waiting * arena.chunk_bytes, "W is not the waiting list"

    def snapshot(self) -> dict[str, Any]:
        """Live blocks with their chunks, as plain data."""
        return ArenaSnapshot({**self._arena.layout(), "free": self._arena.free_chunks})

    def close(self) -> list[Block]:
        self._waiting.clear()
        return self._arena.close()

    def _release(self, mapping: ChunkMapping) -> None:
        """Waits for the last use of a range, unmaps it and keeps its chunks."""
        self._arena.mappings.drop(mapping)
        self._free.extend(mapping.table.tolist())
        granted = mapping.slots * self._arena.chunk_bytes
        self._arena.books.move(0, 0, -granted, pending=-granted)


def paper_chunk_bytes(budget_bytes: int) -> int:
    """The paper's 40 MiB, halved while the budget has fewer than 64 of them; not below 2 MiB.

    The paper's budget of 16 GiB has 409.
    """
    chunk = PAPER_CHUNK_BYTES
    while budget_bytes // chunk < _FEWEST_CHUNKS and chunk // 2 >= LEAST_CHUNK_BYTES:
        chunk //= 2
    return chunk
