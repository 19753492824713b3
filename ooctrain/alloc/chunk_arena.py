"""An arena of equal chunks, which each live block sees in a mapping of its own.

Four allocators map whole variables: `passthrough`, `va-paper`, `va-nnabla` and `gmlake`. They
differ in which chunks a request gets, and in what becomes of an address range that is freed. What
they have in common is here. A request takes whole chunks, and is refused if fewer are free, however
they lie. A live block has an address range of its own, in which its chunks are mapped. When it is
freed, the range remembers the last uses of the block, and the allocator decides when it is broken.
Source: paper 000, section 4, equation 1. Read next: `va_paper.py`, the plainest of the four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ooctrain.alloc.arena_map import Snapshot
from ooctrain.alloc.base import Block, Books, Event
from ooctrain.alloc.mappings import ChunkMapping, MappingCache, checked_chunk_bytes
from ooctrain.devices.interface import VirtualMemory


class ChunkArena:
    """Chunks of one size, and the live blocks that see them.

    Args:
        allocator: its name, for messages.
        memory: the physical memory; the part of it beyond the last whole chunk stays unused.
        chunk: bytes of a chunk, a multiple of the memory's granularity.

    Attributes:
        chunk_bytes, chunks: how large a chunk is, and how many there are.
        budget_bytes: size of all chunks together.
        books: books of the allocator.
        mappings: all address ranges that are mapped.
        live: {id of a live block: its address range}.

    Raises:
        ConfigError: no such chunk.
    """

    def __init__(self, allocator: str, memory: VirtualMemory, chunk: int):
        self.chunk_bytes = checked_chunk_bytes(memory, chunk, f"{allocator}:chunk=2MiB")
        self.chunks = memory.size_bytes // chunk
        self.budget_bytes = self.chunks * chunk
        self.books = Books(allocator, self.budget_bytes)
        self.mappings = MappingCache(memory, chunk, self.books.counts)
        self.live: dict[int, ChunkMapping] = {}
        self._memory = memory

    @property
    def free_chunks(self) -> int:
        """How many no live block holds."""
        return self.chunks - self.books.granted // self.chunk_bytes

    def chunks_for(self, nbytes: int, tag: str, snapshot: Callable[[], Snapshot]) -> int:
        """How many chunks a request takes, if as many are free.

        Args:
            snapshot: the allocator's, for the map of the arena where it is refused.

        Raises:
            ConfigError: not a size.
            InvalidFree: the allocator is closed.
            OutOfDeviceMemory: fewer are free; the state is as before.
        """
        size = self.books.checked_size(nbytes)
        count, free = -(-size // self.chunk_bytes), self.free_chunks
        if count > free:
            asked, left = count * self.chunk_bytes, free * self.chunk_bytes
            raise self.books.refuse(size, asked, left, left, tag, snapshot())
        return count

    def open(
        self, mapping: ChunkMapping, nbytes: int, tag: str, *, obtained: int | None = None,
        offset: int = 0,
    ) -> Block:  # fmt: skip
        """A live block that sees the chunks of a mapping.

        Args:
            obtained: bytes of it that were not reserved before; None: all.
            offset: place of its first byte within the mapping.
        """
        size = int(nbytes)
        granted = -(-size // self.chunk_bytes) * self.chunk_bytes
        mapping.live = True
        block = self.books.open(mapping.address + offset, size, granted, tag)
        self.live[block.id] = mapping
        self.books.move(size, granted, granted if obtained is None else obtained)
        return block

    def retire(self, block: Block, after: Sequence[Event]) -> ChunkMapping:
        """Takes a block off the list of live ones; what it holds stays in the books.

        Args:
            after: events of its last uses: the mapping is broken only after these.

        Returns:
            Its address range.

        Raises:
            InvalidFree: freed already, foreign, or the allocator is closed.
        """
        self.books.retire(block)
        mapping = self.live.pop(block.id)
        mapping.used(0, mapping.slots, after)
        return mapping

    def layout(self, *, with_chunks: bool = True) -> dict[str, Any]:
        """Live blocks, and the chunks of each, as plain data."""
        found = self.books.layout(chunk=self.chunk_bytes)
        return {**found, "chunks": _chunks_by_block(self.live)} if with_chunks else found

    def close(self) -> list[Block]:
        """Gives all address ranges back; returns the blocks that were still live, by id."""
        self.mappings.close()
        self.live.clear()
        return self.books.close()


def _chunks_by_block(blocks: Mapping[int, ChunkMapping]) -> dict[int, list[list[int]]]:
    """{block: [slot within it, slot behind, chunk] of each of its slots}."""
    return {
        key: [[slot, slot + 1, chunk] for slot, chunk in enumerate(mapping.table.tolist())]
        for key, mapping in sorted(blocks.items())
    }
