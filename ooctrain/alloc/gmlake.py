"""Stitching, as GMLake does it: memory is kept in primitive blocks, which are split and stitched.

A primitive block is a set of chunks that came from the driver in one call. Chunks are split off it,
and never joined again: where several primitive blocks are free but none is large enough, they are
stitched, that is, mapped side by side into one address range, which is kept. A kept range is free
while all chunks seen in it are. A request tries in turn:

1. a range of exactly its size, primitive or stitched, that is free: no call of the driver;
2. the smallest primitive block that has more: it is split;
3. several primitive blocks, the largest first, the last one split: they are stitched;
4. all of them, stitched with a new primitive block of just what is missing.

Beside `va`: both see one chunk in several ranges, keep ranges, and refuse nothing while enough is
free. But `va` asks first for neighbours in its identity mapping, where no range needs to be made,
and takes those of fewest runs; here the history decides, and ever smaller pieces are stitched.
Departures from the paper: a primitive block has a range of its own only once a request uses it
whole, so a split calls no driver; requests below a chunk take one (GMLake leaves those below 2 MiB
to the framework). Source: Guo et al., "GMLake", ASPLOS 2024: its states S1 to S4 and StitchFree, as
the paper describes them, not as its code has them. Read next: `virtual.py`, `stalloc.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Event, Stats
from ooctrain.alloc.chunk_arena import ChunkArena
from ooctrain.alloc.mappings import ChunkMapping, FreeRuns, check_chunk_count, runs_of
from ooctrain.alloc.virtual import default_chunk_bytes
from ooctrain.devices.interface import VirtualMemory
from ooctrain.units import Granule

#: The chunks of a primitive block.
Primitive = list[int]


class Gmlake:
    """Primitive blocks, split and stitched; whole variables.

    Args:
        memory: the arena; the part of it beyond the last whole chunk stays unused.
        chunk: bytes of a chunk, a multiple of the memory's granularity; None: as `va`.

    Raises:
        ConfigError: no such chunk.
    """

    name = "gmlake"
    needs_virtual_memory = True

    @staticmethod
    def defaults(budget_bytes: int) -> Mapping[str, int]:
        """Parameters that follow from the budget, so that planning knows the granule."""
        return {"chunk": default_chunk_bytes(budget_bytes)}

    @staticmethod
    def check_limits(memory: VirtualMemory, chunk: int) -> None:
        """Raises ConfigError if the arena has no whole chunk, or more than can be mapped apart."""
        check_chunk_count(memory, chunk, Gmlake.name)

    def __init__(self, memory: VirtualMemory, chunk: int | None = None):
        size = default_chunk_bytes(memory.size_bytes) if chunk is None else chunk
        self._arena = ChunkArena(self.name, memory, size)
        self.granule, self.budget_bytes = Granule(size, ranges=False), self._arena.budget_bytes
        self._free = FreeRuns(self._arena.chunks)
        self._primitives: list[Primitive] = []  # all that were made, live or not
        self._made = 0  # chunks from this one on are still the driver's

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block in a kept range of its size, or in one that is stitched now.

        Raises:
            OutOfDeviceMemory: fewer chunks than it needs are free; the state is as before.
            DriverError: the system refused to map; the state is as before.

        Cost: O(primitive blocks log of them); system calls only where a range is made.
        """
        arena, before = self._arena, self._made
        count = arena.chunks_for(nbytes, tag, self.snapshot)
        mapping = arena.mappings.find(count, self._free)
        if mapping is None:
            mapping = self._stitched(count)
        else:
            arena.books.counts["reuses"] += 1
        self._free.take(mapping.runs)
        obtained = (self._made - before) * arena.chunk_bytes
        return arena.open(mapping, nbytes, tag, obtained=obtained)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Frees the chunks of a block; its range stays mapped, its memory is not given back."""
        mapping = self._arena.retire(block, after)
        self._free.give(mapping.runs)
        self._arena.mappings.leave(mapping)
        self._arena.books.move(-block.requested_bytes, -block.granted_bytes, 0)

    def stats(self) -> Stats:
        """The books; reserved is all that the driver gave, cached what of it is free."""
        return self._arena.books.stats()

    def check(self) -> None:
        """Primitive blocks are what the driver gave; each is in one live block, whole, or free."""
        arena, books = self._arena, self._arena.books
        made = self._made * arena.chunk_bytes
        assert books.reserved == made, "V is not what the driver gave"
        books.check(cached_bytes=made - books.granted)
        arena.mappings.check()
        everything = sorted(chunk for primitive in self._primitives for chunk in primitive)
        assert everything == list(range(self._made)), "a chunk is in two primitive blocks, or none"
        for primitive in self._primitives:
            assert len(set(self._free.held[primitive].tolist())) == 1, "a part of one is live"
        held = [chunk for mapping in arena.live.values() for chunk in mapping.table.tolist()]
        assert len(set(held)) == len(held), "a chunk has two holders"
        assert sorted(held) == self._free.held.nonzero()[0].tolist(), "a chunk is lost"

    def snapshot(self) -> dict[str, Any]:
        """Live blocks with their chunks, as plain data."""
        return ArenaSnapshot(
            {
                **self._arena.layout(),
                "free": self._free.count,
                "made": self._made,
                "primitives": len(self._primitives),
            }
        )

    def close(self) -> list[Block]:
        self._primitives.clear()
        return self._arena.close()

    def _stitched(self, count: int) -> ChunkMapping:
        """Cases 2 to 4: a new range over free chunks, of which there are enough."""
        idle = [p for p in self._primitives if not self._free.held[p[0]]]
        whole, split = _chosen(idle, count)
        chunks = [chunk for primitive in whole for chunk in primitive]
        missing = count - len(chunks)
        taken = split[:missing]
        fresh = list(range(self._made, self._made + missing - len(taken)))
        mapping = self._arena.mappings.make(count, runs_of([*chunks, *taken, *fresh]))
        if taken:
            self._primitives.append(split[missing:])
            del split[missing:]
        if fresh:
            self._primitives.append(fresh)
            self._made += len(fresh)
        return mapping


def _chosen(idle: Sequence[Primitive], count: int) -> tuple[list[Primitive], Primitive]:
    """Free primitive blocks that a request takes whole, and one of which it takes a part; where
    both together have too few chunks, the rest is new.
    """
    enough = [primitive for primitive in idle if len(primitive) >= count]
    if enough:
        best = min(enough, key=lambda primitive: (len(primitive), primitive[0]))
        return ([best], []) if len(best) == count else ([], best)
    whole: list[Primitive] = []
    for primitive in sorted(idle, key=lambda primitive: (-len(primitive), primitive[0])):
        if len(primitive) > count:
            return whole, primitive
        whole.append(primitive)
        count -= len(primitive)
        if not count:
            break
    return whole, []
