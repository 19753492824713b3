"""Pass-through: a mapping of its own for each block, unmapped as soon as the block is freed.

Pools hide mistakes: a kernel that writes past its array hits a neighbour, and a late one reads the
bytes of another block. Here each block ends where its mapping ends, and an inaccessible slot
follows as a guard. The first mistake faults on the guard, and the second on a range that is no
longer mapped, at the very instruction. The allocator is slow by design: it serves memory checkers
and the search for such bugs. Sources: Electric Fence (Perens); compute-sanitizer sees single
allocations only (rmm issue 1899). Read next: `virtual.py`, which maps as little as it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Event, Stats
from ooctrain.alloc.chunk_arena import ChunkArena
from ooctrain.alloc.mappings import FreeRuns, mappable_chunk_bytes
from ooctrain.devices.cpu.host_vm import PAGE_BYTES, max_mapped_chunks
from ooctrain.devices.interface import VirtualMemory
from ooctrain.units import Granule

ALIGN_BYTES = 64  # what kernels may count on; so an overrun by less than this may go unseen


class Passthrough:
    """Whole pages for each block, mapped at its making and unmapped when it is freed.

    Args:
        memory: the arena; the part of it beyond the last whole chunk stays unused.
        chunk: bytes that sizes are rounded to, a multiple of the memory's granularity.

    Raises:
        ConfigError: no such chunk.
    """

    name = "passthrough"
    needs_virtual_memory = True

    @staticmethod
    def defaults(budget_bytes: int) -> Mapping[str, int]:
        """A page, doubled until all chunks of the budget can be mapped apart from each other."""
        return {"chunk": mappable_chunk_bytes(PAGE_BYTES, budget_bytes, max_mapped_chunks())}

    def __init__(self, memory: VirtualMemory, chunk: int | None = None):
        size = memory.granularity_bytes if chunk is None else chunk
        self._arena = ChunkArena(self.name, memory, size)
        self.granule, self.budget_bytes = Granule(size, ranges=False), self._arena.budget_bytes
        self._free = FreeRuns(self._arena.chunks)

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block at the end of a fresh mapping. Cost: two or more system calls.

        Raises:
            OutOfDeviceMemory: fewer free chunks than it needs; the state is as before.
            DriverError: the system refused; the state is as before.
        """
        count = self._arena.chunks_for(nbytes, tag, self.snapshot)
        runs = self._free.holes(count)
        mapping = self._arena.mappings.make(count + 1, runs)  # the last slot is the guard
        self._free.take(mapping.runs)
        unused = count * self._arena.chunk_bytes - int(nbytes)
        return self._arena.open(mapping, nbytes, tag, offset=unused // ALIGN_BYTES * ALIGN_BYTES)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Waits for the last uses and unmaps the block."""
        mapping = self._arena.retire(block, after)
        self._arena.mappings.drop(mapping)
        self._free.give(mapping.runs)
        self._arena.books.move(-block.requested_bytes, -block.granted_bytes, -block.granted_bytes)

    def stats(self) -> Stats:
        """The books; every free chunk serves every request."""
        return self._arena.books.stats()

    def check(self) -> None:
        """What is mapped is what is held, once."""
        arena = self._arena
        arena.books.check(0)
        arena.mappings.check()
        held = [chunk for mapping in arena.mappings for chunk in mapping.table[:-1].tolist()]
        assert sorted(held) == [c for c, busy in enumerate(self._free.held) if busy], "held chunks"
        assert len(held) * arena.chunk_bytes == arena.books.granted, "A is not the chunks held"
        assert all(mapping.table[-1] < 0 for mapping in arena.mappings), "a guard is mapped"

    def snapshot(self) -> dict[str, Any]:
        layout = self._arena.layout(with_chunks=False)
        return ArenaSnapshot({**layout, "free": self._free.count})

    def close(self) -> list[Block]:
        return self._arena.close()
