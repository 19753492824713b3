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
from ooctrain.alloc.base import Block, Books, Reached, Stats
from ooctrain.alloc.virtual_pages.chunk_size import check_chunk_count, checked_chunk_bytes
from ooctrain.alloc.virtual_pages.mappings import ChunkMapping, MappingCache, chunks_by_block
from ooctrain.devices.base import VirtualMemory
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

    def __init__(self, memory: VirtualMemory, chunk: int | None = None):
        size = paper_chunk_bytes(memory.size_bytes) if chunk is None else chunk
        size = checked_chunk_bytes(memory, size, "va-paper:chunk=2MiB")
        self.granule = Granule(size, ranges=False)
        self._chunk, self._memory = size, memory
        self._chunks = memory.size_bytes // size
        self.budget_bytes = self._chunks * size
        self._books = Books(self.name, self.budget_bytes)
        self._cache = MappingCache(memory, size, self._books.counts)
        self._free = deque(range(self._chunks))  # the longest unused first
        self._blocks: dict[int, ChunkMapping] = {}  # by block id
        self._waiting: deque[ChunkMapping] = deque()  # freed, the first freed first

    def check_limits(self) -> None:
        """Raises ConfigError if the arena has no whole chunk, or more than can be mapped apart."""
        check_chunk_count(self._memory, self._chunk, self.name)

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block in a fresh range. Cost: a system call for each chunk, and one for the range.

        Raises:
            OutOfDeviceMemory: fewer chunks than it needs are free or waiting; as before.
            DriverError: the system refused to map; no block is made.
        """
        size = self._books.checked_size(nbytes)
        count = -(-size // self._chunk)
        held = self._books.granted // self._chunk
        if count > self._chunks - held:
            free = (self._chunks - held) * self._chunk
            granted = count * self._chunk
            raise self._books.refuse(size, granted, free, free, tag, self.snapshot())
        while len(self._free) < count:
            self._release(self._waiting.popleft())
        chunks = [self._free[place] for place in range(count)]
        mapping = self._cache.make(count, [(chunk, 1) for chunk in chunks])
        for _ in chunks:
            self._free.popleft()
        mapping.live = True
        granted = count * self._chunk
        block = self._books.open(mapping.address, size, granted, tag)
        self._blocks[block.id] = mapping
        self._books.move(size, granted, granted)
        return block

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        """Puts the block's range on the waiting list; where nothing is to wait for, releases it."""
        self._books.retire(block)
        mapping = self._blocks.pop(block.id)
        mapping.used(0, mapping.slots, after)
        granted = block.granted_bytes
        self._books.move(-block.requested_bytes, -granted, 0, pending=granted)
        if after:
            self._waiting.append(mapping)
        else:
            self._release(mapping)

    def stats(self) -> Stats:
        """The books; pending is what waits."""
        can_have = self.budget_bytes - self._books.granted
        return self._books.stats(can_have)

    def check(self) -> None:
        """Each chunk is free, or mapped once: in a block's range or in one that waits."""
        self._books.check(0)
        self._cache.check()
        mapped = [c for mapping in self._cache for c in mapping.table.tolist()]
        assert sorted([*self._free, *mapped]) == list(range(self._chunks)), "a chunk is lost"
        waiting = sum(mapping.slots for mapping in self._waiting)
        assert self._books.pending == waiting * self._chunk, "W is not the waiting list"

    def snapshot(self) -> dict[str, Any]:
        """Live blocks with their chunks, as plain data."""
        return ArenaSnapshot(
            {
                **self._books.layout(chunk=self._chunk),
                "chunks": chunks_by_block(self._blocks),
                "free": self._chunks - self._books.granted // self._chunk,
            }
        )

    def close(self) -> list[Block]:
        self._cache.close()
        self._blocks.clear()
        self._waiting.clear()
        return self._books.close()

    def _release(self, mapping: ChunkMapping) -> None:
        """Waits for the last use of a range, unmaps it and keeps its chunks."""
        self._cache.drop(mapping)
        self._free.extend(mapping.table.tolist())
        granted = mapping.slots * self._chunk
        self._books.move(0, 0, -granted, pending=-granted)


def paper_chunk_bytes(budget_bytes: int) -> int:
    """The paper's 40 MiB, halved while the budget has fewer than 64 of them; not below 2 MiB.

    The paper's budget of 16 GiB has 409.
    """
    chunk = PAPER_CHUNK_BYTES
    while budget_bytes // chunk < _FEWEST_CHUNKS and chunk // 2 >= LEAST_CHUNK_BYTES:
        chunk //= 2
    return chunk
