"""Virtual addressing as the authors of paper 000 programmed it, not as they printed it.

The paper releases a freed block's addresses and maps its chunks anew (`va-paper`). The code keeps a
freed range as it is mapped, and tries four things in turn:

1. nothing is kept mapped: loose chunks, then new ones, are mapped into a new range;
2. a kept range has exactly the size: it is used again, without a call of the driver;
3. a smaller one is kept: the largest of them grows, by loose chunks, then by those of the smallest
   kept range that has enough, or of the largest ones in turn, then by new ones;
4. only larger ones are kept: the smallest of them gives its chunks, and the rest becomes loose.

A range that loses its chunks waits on a list, to be unbound lazily. Departures: the code grows in
place if the driver gives it the addresses behind a range, which is left to chance; here a grown
range always has new addresses. It unbinds once an event says that the last use is over; here a
range is unbound when `waiting` others have come behind it, after its own last use. What its source
gets wrong (uncounted caches, a refusal that loses chunks) is not repeated. Source: nnabla's
`virtual_caching_allocator.cpp`, read, not copied. Read next: `va_paper.py`, `virtual.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Event, Stats
from ooctrain.alloc.chunk_arena import ChunkArena
from ooctrain.alloc.mappings import ChunkMapping, check_chunk_count
from ooctrain.alloc.va_paper import paper_chunk_bytes
from ooctrain.devices.interface import VirtualMemory
from ooctrain.errors import ConfigError
from ooctrain.units import Granule

#: Ranges that may wait to be unbound.
MOST_WAITING = 16


@dataclass(slots=True)
class Sources:
    """Where the chunks of a new range come from.

    Attributes:
        chunks: their numbers, in the order of the slots.
        ranges: kept ranges that give all or part of theirs.
        left: chunks of these ranges that become loose.
        loose, fresh: how many come from the loose ones, and how many are new.
    """

    chunks: list[int] = field(default_factory=list)
    ranges: list[ChunkMapping] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    loose: int = 0
    fresh: int = 0


class NnablaVirtualAddressing:
    """Mapped ranges are kept, used again at their size, and grown.

    Args:
        memory: the arena; the part of it beyond the last whole chunk stays unused.
        chunk: bytes of a chunk, a multiple of the memory's granularity; None: as `va-paper`.
        waiting: how many ranges wait at most to be unbound.

    Raises:
        ConfigError: no such chunk, or a negative `waiting`.
    """

    name = "va-nnabla"
    needs_virtual_memory = True

    @staticmethod
    def defaults(budget_bytes: int) -> Mapping[str, int]:
        """Parameters that follow from the budget, so that planning knows the granule."""
        return {"chunk": paper_chunk_bytes(budget_bytes)}

    @staticmethod
    def check_limits(memory: VirtualMemory, chunk: int) -> None:
        """Raises ConfigError if the arena has no whole chunk, or more than can be mapped apart."""
        check_chunk_count(memory, chunk, NnablaVirtualAddressing.name)

    def __init__(
        self, memory: VirtualMemory, chunk: int | None = None, waiting: int = MOST_WAITING
    ):
        size = paper_chunk_bytes(memory.size_bytes) if chunk is None else chunk
        self._arena = ChunkArena(self.name, memory, size)
        if isinstance(waiting, bool) or not isinstance(waiting, int) or waiting < 0:
            raise ConfigError(
                f"waiting {waiting!r} is not a number of ranges", code="OOC-106",
                fix=f"a whole number from 0 on; {MOST_WAITING} without it",
            )  # fmt: skip
        self.granule, self.budget_bytes = Granule(size, ranges=False), self._arena.budget_bytes
        self._most_waiting = waiting
        self._kept: list[tuple[int, int, ChunkMapping]] = []  # (slots, turn, range), ascending
        self._loose: deque[int] = deque()  # chunks in no range
        self._fresh = 0  # chunks from this one on were never used
        self._waiting: deque[ChunkMapping] = deque()  # without chunks of their own
        self._turn = 0

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block in a kept range of its size, or in one made of what is free.

        Raises:
            OutOfDeviceMemory: fewer chunks than it needs are free; the state is as before.
            DriverError: the system refused to map; the state is as before.
        """
        count = self._arena.chunks_for(nbytes, tag, self.snapshot)
        return self._arena.open(self._exact(count) or self._made(count), nbytes, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Keeps the block's range as it is mapped."""
        mapping = self._arena.retire(block, after)
        self._turn += 1
        place = bisect_left(self._kept, (mapping.slots, self._turn))
        self._kept.insert(place, (mapping.slots, self._turn, mapping))
        granted = block.granted_bytes
        self._arena.books.move(-block.requested_bytes, -granted, -granted)

    def stats(self) -> Stats:
        """The books; every free chunk serves every request, so nothing counts as cached."""
        return self._arena.books.stats()

    def check(self) -> None:
        """Each chunk is loose, new, or in one range that a block uses or that is kept."""
        arena = self._arena
        arena.books.check(0)
        arena.mappings.check()
        ranges = [*arena.live.values(), *(mapping for _, _, mapping in self._kept)]
        mapped = [chunk for mapping in ranges for chunk in mapping.table.tolist()]
        everything = [*mapped, *self._loose, *range(self._fresh, arena.chunks)]
        assert sorted(everything) == list(range(arena.chunks)), "a chunk is lost, or there twice"
        assert set(ranges) | set(self._waiting) == set(arena.mappings), "a range is lost"
        assert len(self._waiting) <= self._most_waiting, "too many ranges wait"
        held = sum(mapping.slots for mapping in arena.live.values()) * arena.chunk_bytes
        assert held == arena.books.granted, "a block's range is not of its size"

    def snapshot(self) -> dict[str, Any]:
        """Live blocks with their chunks, and the ranges kept, as plain data."""
        return ArenaSnapshot(
            {
                **self._arena.layout(),
                "kept": [slots for slots, _, _ in self._kept],
                "free": self._arena.free_chunks,
            }
        )

    def close(self) -> list[Block]:
        self._kept.clear()
        self._waiting.clear()
        return self._arena.close()

    def _exact(self, count: int) -> ChunkMapping | None:
        """Case 2: the kept range of this size that was freed first."""
        place = bisect_left(self._kept, (count,))
        if place == len(self._kept) or self._kept[place][0] != count:
            return None
        self._arena.books.counts["reuses"] += 1
        return self._kept.pop(place)[2]

    def _made(self, count: int) -> ChunkMapping:
        """Cases 1, 3 and 4: a new range, of chunks from elsewhere."""
        sources = self._sources(count)
        mapping = self._arena.mappings.make(count, [(chunk, 1) for chunk in sources.chunks])
        mapping.live = True  # the cache of mappings drops none of its own accord
        for _ in range(sources.loose):
            self._loose.popleft()
        self._fresh += sources.fresh
        self._loose.extend(sources.left)
        self._kept = [entry for entry in self._kept if entry[2] not in sources.ranges]
        self._waiting.extend(sources.ranges)
        while len(self._waiting) > self._most_waiting:
            self._arena.mappings.drop(self._waiting.popleft())
        return mapping

    def _sources(self, count: int) -> Sources:
        """Where a range of `count` chunks gets them; changes nothing."""
        kept = list(self._kept)
        place = bisect_left(kept, (count,))
        if kept and not place:
            return _given(Sources(), count, [kept[0][2]])
        sources = Sources()
        if kept:
            _given(sources, count, [kept.pop(place - 1)[2]])
        sources.loose = min(count - len(sources.chunks), len(self._loose))
        sources.chunks += [self._loose[i] for i in range(sources.loose)]
        missing = count - len(sources.chunks)
        place = bisect_left(kept, (missing,))
        if missing and place < len(kept):
            _given(sources, count, [kept[place][2]])
        elif missing:
            _given(sources, count, [mapping for _, _, mapping in reversed(kept)])
        sources.fresh = count - len(sources.chunks)
        sources.chunks += range(self._fresh, self._fresh + sources.fresh)
        return sources


def _given(sources: Sources, count: int, ranges: Sequence[ChunkMapping]) -> Sources:
    """Adds chunks of ranges until there are `count`; what is left over of the last is loose."""
    for mapping in ranges:
        missing = count - len(sources.chunks)
        if not missing:
            break
        table = mapping.table.tolist()
        sources.chunks += table[:missing]
        sources.left += table[missing:]
        sources.ranges.append(mapping)
    return sources
