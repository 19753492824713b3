"""Best fit with caching: segments from the driver, split and joined within a segment only.

Frameworks ask the driver for memory in segments, since asking is slow, and keep what is freed. A
block is cut from the smallest free piece of all segments that takes it; free neighbours of one
segment become one piece, pieces of two segments never do. So memory is lost at each border, and in
segments of which a single small block is left: this is the baseline that fragments in figure 3 of
paper 000. Small and large requests have segments of their own, lest small blocks hold large
segments. Where the budget is used up, segments that are wholly free go back to the driver.

How the requests are rounded is a parameter. "nnabla" is the paper's own framework, "pytorch" the
one that most readers know (`RULES`). Departures: segments go back only where that serves the
request, so that a refusal changes nothing; and where the budget has no room for the segment that
the rules want, one of just the request's size is made, or a small request takes a large piece. Both
frameworks give up there. Sources: nnabla's `caching_allocator_with_buckets.cpp` and PyTorch's
`CUDACachingAllocator.cpp`, read, not copied. Read next: `best_fit.py`, one arena without borders;
`va_nnabla.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Books, Event, Stats
from ooctrain.alloc.best_fit import ROUND_BYTES
from ooctrain.alloc.holes import Holes
from ooctrain.alloc.mappings import (
    ChunkMapping,
    FreeRuns,
    MappingCache,
    checked_chunk_bytes,
    mappable_chunk_bytes,
)
from ooctrain.devices.cpu.host_vm import PAGE_BYTES, max_mapped_chunks
from ooctrain.devices.interface import VirtualMemory
from ooctrain.errors import ConfigError
from ooctrain.units import KIB, MIB, Granule


@dataclass(frozen=True, slots=True)
class Rules:
    """How requests are rounded; all in bytes.

    Args:
        small: requests up to this come from small segments.
        small_segment: what the driver is asked for then.
        medium: larger requests below this come from segments of `medium_segment`.
        large_step: segments of still larger ones are multiples of this.
        large_piece: a block of a large segment takes multiples of this.
    """

    small: int
    small_segment: int
    medium: int
    medium_segment: int
    large_step: int
    large_piece: int

    def segment_bytes(self, size: int) -> int:
        """What the driver is asked for to serve a request."""
        if size <= self.small:
            return self.small_segment
        if size < self.medium:
            return self.medium_segment
        return -(-size // self.large_step) * self.large_step

    def piece_bytes(self, size: int, hole: int) -> int:
        """What a request takes of a hole: all of it where too little would be left to be kept."""
        small = size <= self.small
        unit, least_rest = (1, ROUND_BYTES) if small else (self.large_piece, self.small + 1)
        piece = -(-size // unit) * unit
        return piece if hole - piece >= least_rest else hole

    def scaled(self, small: int) -> Rules:
        """The same with another bound of small requests, all else in proportion."""
        return Rules(*(getattr(self, f.name) * small // self.small for f in fields(self)))


RULES: Mapping[str, Rules] = MappingProxyType(
    {
        "nnabla": Rules(MIB, MIB, 0, 0, 128 * KIB, 128 * KIB),
        "pytorch": Rules(MIB, 2 * MIB, 10 * MIB, 20 * MIB, 2 * MIB, ROUND_BYTES),
    }
)


@dataclass(slots=True, eq=False)
class DriverSegment:
    """Memory that the driver gave in one piece.

    Args:
        mapping: mapping of its chunks, into addresses that no other segment touches.
        size_bytes: its size.
        small: whether it serves small requests.
        holes: what of it is free, by offset.
    """

    mapping: ChunkMapping
    size_bytes: int
    small: bool
    holes: Holes = field(default_factory=Holes)

    @property
    def unused(self) -> bool:
        """Whether all of it is free."""
        return self.holes.largest_bytes == self.size_bytes


class CachingBestFit:
    """Best fit in segments from the driver, whole variables.

    Args:
        memory: the arena; a segment is a mapping of its pages, so that no place in it matters.
        rules: "nnabla" or "pytorch".
        small: bytes up to which a request is small; None: as the rules say (1 MiB).
        chunk: bytes of what is mapped, a multiple of the memory's granularity; None: one page.

    Attributes:
        chunk_bytes: the same, as the memory is made of it.

    Raises:
        ConfigError: no such rules, or a size that does not go.
    """

    name = "best-fit-caching"
    granule = Granule(ROUND_BYTES, ranges=False)
    needs_virtual_memory = True

    @staticmethod
    def defaults(budget_bytes: int) -> Mapping[str, int]:
        """A page, doubled until all chunks of the budget can be mapped apart from each other."""
        return {"chunk": mappable_chunk_bytes(PAGE_BYTES, budget_bytes, max_mapped_chunks())}

    def __init__(
        self, memory: VirtualMemory, rules: str = "nnabla", small: int | None = None,
        chunk: int | None = None,
    ):  # fmt: skip
        self._rules = _chosen(rules, small)
        size = memory.granularity_bytes if chunk is None else chunk
        self.chunk_bytes = checked_chunk_bytes(memory, size, f"{self.name}:chunk=64KiB")
        chunks = memory.size_bytes // self.chunk_bytes
        self.budget_bytes = chunks * self.chunk_bytes
        self._books = Books(self.name, self.budget_bytes)
        self._free = FreeRuns(chunks)
        self._cache = MappingCache(memory, self.chunk_bytes, self._books.counts)
        self._segments: list[DriverSegment] = []  # in the order of their making
        # By block: where it lies, its offset there and its bytes.
        self._pieces: dict[int, tuple[DriverSegment, int, int]] = {}

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block of the smallest piece that takes it, else of a new segment.

        Raises:
            OutOfDeviceMemory: neither serves; the state is as before.
            DriverError: the system refused to map; the state is as before.

        Cost: O(segments log pieces); system calls only for a new segment.
        """
        size = self.granule.granted(self._books.checked_size(nbytes))
        found = self._find(size)
        if found is None:
            free, largest = self.budget_bytes - self._books.granted, self._largest()
            raise self._books.refuse(nbytes, size, free, largest, tag, self.snapshot())
        segment, offset, hole = found
        piece = self._rules.piece_bytes(size, hole)
        segment.holes.cut(offset, piece)
        self._books.move(nbytes, size, 0)
        block = self._books.open(segment.mapping.address + offset, nbytes, size, tag)
        self._pieces[block.id] = segment, offset, piece
        return block

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Makes a free piece of a block, joined with its neighbours in its segment, and keeps it.

        Only a segment that goes back to the driver waits for its last uses.
        """
        self._books.retire(block)
        segment, offset, piece = self._pieces.pop(block.id)
        segment.mapping.used(offset, offset + piece, after)
        lo, hi = segment.holes.joined(offset, offset + piece)
        segment.holes.add(lo, hi - lo)
        self._books.move(-block.requested_bytes, -block.granted_bytes, 0)

    def stats(self) -> Stats:
        """The books; reserved is all that the driver gave, cached what of it no block holds."""
        return self._books.stats(self._largest())

    def check(self) -> None:
        """Blocks and free pieces fill each segment, and the segments are the mapped chunks."""
        for segment in self._segments:
            segment.holes.check()
            held = [(at, size, True) for one, at, size in self._pieces.values() if one is segment]
            free = [(at, size, False) for size, at in segment.holes.by_size]
            end, was_free = 0, False
            for offset, size, live in sorted(held + free):
                assert offset == end, f"gap or overlap at {end} of a segment"
                assert live or not was_free, f"two free pieces touch at {offset} of a segment"
                end, was_free = offset + size, not live
            assert end == segment.size_bytes == segment.mapping.slots * self.chunk_bytes
        reserved = sum(segment.size_bytes for segment in self._segments)
        assert self._books.reserved == reserved, "V is not the sum of the segments"
        self._books.check(cached_bytes=reserved - self._books.granted)
        self._cache.check()
        mapped = [chunk for mapping in self._cache for chunk in mapping.table.tolist()]
        assert sorted(mapped) == [c for c, held in enumerate(self._free.held) if held], "chunks"

    def snapshot(self) -> dict[str, Any]:
        """Live blocks, segments and free pieces, as plain data."""
        segments = [[s.mapping.address, s.size_bytes, s.small] for s in self._segments]
        holes = [
            [s.mapping.address + at, size] for s in self._segments for at, size in s.holes.listed()
        ]
        top = self.budget_bytes - self._room()
        return ArenaSnapshot(
            {**self._books.layout(), "segments": segments, "holes": sorted(holes), "top": top}
        )

    def close(self) -> list[Block]:
        self._cache.close()
        self._segments.clear()
        self._pieces.clear()
        return self._books.close()

    def _find(self, size: int) -> tuple[DriverSegment, int, int] | None:
        """(segment, offset, bytes) of the free piece to use; None: nothing serves."""
        small = size <= self._rules.small
        found = self._smallest(size, small)
        if found:
            return found
        wished = self._whole_chunks(self._rules.segment_bytes(size))
        if wished <= self._room():
            return self._new_segment(wished, small)
        if small and (found := self._smallest(size, small=False)):
            return found
        just = self._whole_chunks(size)
        return self._new_segment(just, small) if just <= self._room() else None

    def _smallest(self, size: int, small: bool) -> tuple[DriverSegment, int, int] | None:
        """The smallest free piece that takes a request; of equals, of the oldest segment."""
        found = [
            (hole, number)
            for number, segment in enumerate(self._segments)
            if segment.small == small and (hole := segment.holes.smallest(size))
        ]
        if not found:
            return None
        (piece, offset), number = min(found, key=lambda pair: (pair[0][0], pair[1]))
        return self._segments[number], offset, piece

    def _new_segment(self, size: int, small: bool) -> tuple[DriverSegment, int, int]:
        """Asks the driver; where its memory is used up, unused segments go back to it."""
        count = size // self.chunk_bytes
        given_up = [s for s in self._segments if s.unused] if count > self._free.count else []
        free = self._free
        for segment in given_up:
            free.give(segment.mapping.runs)
        runs = free.holes(count)
        try:
            mapping = self._cache.make(count, runs)
        except BaseException:
            for segment in given_up:
                free.take(segment.mapping.runs)
            raise
        free.take(runs)
        mapping.live = True
        for segment in given_up:
            self._cache.drop(segment.mapping)
            self._segments.remove(segment)
            self._books.move(0, 0, -segment.size_bytes)
        made = DriverSegment(mapping, size, small)
        made.holes.add(0, size)
        self._segments.append(made)
        self._books.move(0, 0, size)
        return made, 0, size

    def _room(self) -> int:
        """What the driver has once all unused segments are back."""
        used = sum(segment.size_bytes for segment in self._segments if not segment.unused)
        return self.budget_bytes - used

    def _largest(self) -> int:
        """The largest request that would be served."""
        small = [s.holes.largest_bytes for s in self._segments if s.small]
        large = [s.holes.largest_bytes for s in self._segments if not s.small]
        in_small = min(self._rules.small, max(small, default=0))
        return max(in_small, self._room(), *large, 0) // ROUND_BYTES * ROUND_BYTES

    def _whole_chunks(self, size: int) -> int:
        return -(-size // self.chunk_bytes) * self.chunk_bytes


def _chosen(rules: str, small: int | None) -> Rules:
    """Rules by name, scaled. Raises ConfigError."""
    if rules not in RULES:
        raise ConfigError(
            f"best-fit-caching has no rules {rules!r}", code="OOC-106",
            fix=f"rules is {' or '.join(map(repr, RULES))}",
        )  # fmt: skip
    if small is None:
        return RULES[rules]
    least = 8 * ROUND_BYTES
    if isinstance(small, bool) or not isinstance(small, int) or small <= 0 or small % least:
        raise ConfigError(
            f"small {small!r} is not a positive multiple of {least} bytes", code="OOC-106",
            fix="for example best-fit-caching:small=1MiB",
        )  # fmt: skip
    return RULES[rules].scaled(small)
