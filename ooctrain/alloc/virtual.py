"""Virtual addressing: blocks that are contiguous in address space, over any free physical chunks.

Memory never fragments, since a request fails only if there are too few free chunks. Mapping is
expensive, so nothing is mapped twice. A block gets, in order of preference: (1) a place in the
identity mapping, where chunk n is always seen at slot n, if enough neighbours are free; (2) a
mapping that an earlier block left, if the chunks seen there are all free; (3) a new mapping of free
chunks, made at that moment. Only (3) calls the system. The result of a request depends on the
chunks held and on the mappings made before, so a training step, which repeats the requests of the
last one, soon maps nothing any more, but for ranges that come back to a block of which a part has
stayed. Sources: paper 000, section 4 (virtual addressing, chunks); GMLake's stitching; the identity
mapping is ours. Read next: `mappings.py` (free chunks, page tables, aliases).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Books, Event, Stats
from ooctrain.alloc.mappings import (
    ChunkMapping,
    FreeRuns,
    MappingCache,
    Run,
    checked_chunk_bytes,
    chunks_of,
    mappable_chunk_bytes,
    runs_of,
    stretches,
)
from ooctrain.devices.cpu.host_vm import max_mapped_chunks
from ooctrain.devices.interface import VirtualMemory
from ooctrain.errors import ConfigError
from ooctrain.units import Granule, format_bytes

DEFAULT_CHUNK_BYTES = 64 << 10


class VirtualAddressing:
    """Chunks of one size, mapped into reserved addresses.

    Args:
        memory: the arena; the part of it beyond the last whole chunk stays unused.
        chunk: size of a chunk in bytes, a multiple of the memory's granularity; None:
            `default_chunk_bytes`.

    Raises:
        ConfigError: no such chunk.
        DriverError: the memory cannot be mapped; nothing is kept.
    """

    name = "va"

    @staticmethod
    def defaults(budget_bytes: int) -> Mapping[str, int]:
        """Parameters that follow from the budget, so that planning knows the granule."""
        return {"chunk": default_chunk_bytes(budget_bytes)}

    @staticmethod
    def check_limits(memory: VirtualMemory, chunk: int) -> None:
        """Raises ConfigError if the arena has no whole chunk, or more than can be mapped apart."""
        size = checked_chunk_bytes(memory, chunk, "va:chunk=1MiB")
        chunks, most = memory.size_bytes // size, memory.max_mappings
        if not chunks:
            raise ConfigError(
                f"a chunk of {format_bytes(size)} is larger than the budget",
                code="OOC-107",
                numbers=f"budget {format_bytes(memory.size_bytes)}",
                fix="a smaller chunk, or a larger --budget",
            )
        if chunks > most:
            raise ConfigError(
                f"{chunks} chunks are more mappings than the system allows",
                code="OOC-107",
                numbers=f"at most {most} (half of vm.max_map_count)",
                fix=f"va:chunk={default_chunk_bytes(memory.size_bytes, most)}",
            )

    def __init__(self, memory: VirtualMemory, chunk: int | None = None):
        size = default_chunk_bytes(memory.size_bytes) if chunk is None else chunk
        size = checked_chunk_bytes(memory, size, "va:chunk=1MiB")
        self.granule = Granule(size, ranges=True)
        self._chunk, self._memory = size, memory
        self._chunks = memory.size_bytes // size
        self.budget_bytes = self._chunks * size
        self._books = Books(self.name, self.budget_bytes)
        self._free = FreeRuns(self._chunks)
        self._holdings: dict[int, WholeBlock | PartedBlock] = {}  # by block id
        self._cache = MappingCache(memory, size, self._books.counts)
        self._identity = self._cache.make(self._chunks, self._free.runs()) if self._chunks else None
        if self._identity is not None:
            self._identity.live = True  # forever: never let go, never found for a block

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A whole block. Cost: O(free runs); system calls only if it needs a new mapping.

        Raises:
            OutOfDeviceMemory: fewer free chunks than it needs; the state is as before.
            DriverError: the system refused to map; the state is as before.
        """
        size = self._books.checked_size(nbytes)
        slots = self._slots(size)
        self._expect_room(slots, size, tag)
        address, holding = self._find_place(slots)
        self._free.take(holding.runs)
        block = self._books.open(address, size, 0, tag)
        self._holdings[block.id] = holding
        self._move(block, size, slots)
        return block

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Frees the block's chunks; what is mapped stays mapped. No system call."""
        self._books.retire(block)
        holding = self._holdings.pop(block.id)
        runs = holding.runs
        self._free.give(runs)
        if isinstance(holding, PartedBlock):
            requested = self._requested(block, holding.held)
        else:
            requested = block.requested_bytes
        self._move(block, -requested, -sum(count for _, count in runs))
        if holding.mapping is not None:
            if runs:
                holding.mapping.used(0, holding.mapping.slots, after)
            self._cache.leave(holding.mapping)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """A block with an address and nothing in it, to be held in parts.

        Raises:
            DriverError: no address range is available; the state is as before.
        """
        size = self._books.checked_size(nbytes)
        slots = self._slots(size)
        found = self._cache.find_begun(slots, tag, self._free)
        mapping = found or self._cache.make(slots, (), tag)
        mapping.live = True
        block = self._books.open(mapping.address, size, 0, tag)
        self._holdings[block.id] = PartedBlock(mapping, *np.zeros((2, slots), bool))
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Claims bytes [lo, hi): the chunks that the block had there where they are free, others
        for the rest.

        Which others follows from what is free, not from what is mapped, so that a step that is
        repeated finds them mapped (`MappingCache.find_begun`). To map others over those there waits
        for the last use of these slots.

        Raises:
            OutOfDeviceMemory: fewer free chunks than it needs; the state is as before.
            InvalidFree: the block is not live here.
            ConfigError: invalid bounds, or a part is held already.
            DriverError: the system refused to map; the state is as before.
        """
        holding, slots = self._part(block, lo, hi)
        if holding.held[slots].any():
            raise ConfigError(
                f"bytes of [{lo}, {hi}) of {block.tag!r} are held already",
                fix="map each range once",
            )
        self._expect_room(slots.size, hi - lo, block.tag)
        own = holding.keeps(slots, self._free)
        kept = runs_of(holding.mapping.table[slots[own]])
        self._free.take(kept)
        self._put_others(holding, slots[~own], kept)
        holding.held[slots] = holding.had[slots] = True
        self._move(block, min(hi, block.requested_bytes) - lo, slots.size)

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Event] = ()) -> None:
        """Frees the chunks of bytes [lo, hi); what is mapped stays mapped.

        Raises:
            InvalidFree: the block is not live here.
            ConfigError: invalid bounds, or a part is not held.
        """
        holding, slots = self._part(block, lo, hi)
        if not holding.held[slots].all():
            raise ConfigError(
                f"bytes of [{lo}, {hi}) of {block.tag!r} are not held",
                fix="unmap what map_range() has mapped, once",
            )
        self._free.give(runs_of(holding.mapping.table[slots]))
        holding.held[slots] = False
        holding.mapping.used(int(slots[0]), int(slots[-1]) + 1, after)
        self._move(block, lo - min(hi, block.requested_bytes), -slots.size)

    def stats(self) -> Stats:
        """The books; reserved is what is granted, since every free chunk serves every request."""
        return self._books.stats()

    def check(self) -> None:
        """Each held chunk has one holder, which sees it in its mapping; the books are the sums."""
        self._books.check(0)
        self._cache.check()
        held = [c for holding in self._holdings.values() for c in chunks_of(holding.runs).tolist()]
        assert len(set(held)) == len(held), "a chunk has two holders"
        assert set(held) == set(np.flatnonzero(self._free.held).tolist()), "a chunk is lost"
        free = np.sort(chunks_of(self._free.runs()))
        assert (free == np.flatnonzero(~self._free.held)).all(), "free runs are not what is free"
        assert self._free.count == self._chunks - len(held), "the free chunks are miscounted"
        assert self._books.granted == len(held) * self._chunk, "A is not the chunks held"
        mappings = [h.mapping for h in self._holdings.values() if h.mapping is not None]
        assert len({id(mapping) for mapping in mappings}) == len(mappings), (
            "two blocks, one mapping"
        )
        for mapping in mappings:
            assert mapping.live, "a block uses a mapping that is thought idle"
        for holding in self._holdings.values():
            if isinstance(holding, WholeBlock) and holding.mapping is not None:
                same = list(holding.runs) == holding.mapping.runs
                assert same, "a block sees other chunks than it holds"

    def snapshot(self) -> dict[str, Any]:
        """Live blocks with their chunks, as plain data."""
        return ArenaSnapshot(
            {
                **self._books.layout(chunk=self._chunk),
                "chunks": {key: self._holdings[key].places() for key in sorted(self._holdings)},
                "free": self._free.count,
                "own_ranges": sum(
                    holding.mapping is not None for holding in self._holdings.values()
                ),
            }
        )

    def close(self) -> list[Block]:
        self._cache.close()
        self._holdings.clear()
        self._identity = None
        return self._books.close()

    # Small parts.

    def _slots(self, nbytes: int) -> int:
        return -(-nbytes // self._chunk)

    def _find_place(self, slots: int) -> tuple[int, WholeBlock]:
        """Where a whole block lies, and what it holds; enough chunks are free."""
        first = self._free.find(slots)
        if first is not None and self._identity is not None:
            self._books.counts["reuses"] += 1
            return self._identity.address + first * self._chunk, WholeBlock(((first, slots),), None)
        mapping = self._cache.find(slots, self._free)
        if mapping is None:
            mapping = self._cache.make(slots, self._free.holes(slots))
        else:
            self._books.counts["reuses"] += 1
        mapping.live = True
        return mapping.address, WholeBlock(tuple(mapping.runs), mapping)

    def _put_others(self, holding: PartedBlock, slots: np.ndarray, kept: Sequence[Run]) -> None:
        """Takes free chunks for slots, and maps them where others, or none, are mapped; if refused,
        gives back what was kept.
        """
        mapping, chosen = holding.mapping, self._free.holes(slots.size)
        chunks = chunks_of(chosen)
        other = mapping.table[slots] != chunks
        if other.any():
            try:
                self._cache.put(mapping, slots[other], chunks[other])
            except BaseException:
                self._free.give(kept)
                raise
        else:
            self._books.counts["reuses"] += 1
        self._free.take(chosen)
        if not holding.had.any():
            mapping.first = chosen

    def _part(self, block: Block, lo: int, hi: int) -> tuple[PartedBlock, np.ndarray]:
        """What a block holds, and the slots of a byte range, checked."""
        self._books.expect_live(block)
        holding = self._holdings[block.id]
        if not isinstance(holding, PartedBlock):
            raise ConfigError(
                f"{block.tag!r} is whole until freed: parts are for `reserve`",
                fix="reserve() and map_range() for a block that comes in parts",
            )
        if not 0 <= lo < hi <= block.requested_bytes or lo % self._chunk:
            raise ConfigError(
                f"[{lo}, {hi}) is not a range of {block.tag!r} in chunks",
                fix="a range within the block that begins at a multiple of the chunk",
            )
        if hi % self._chunk and hi != block.requested_bytes:
            raise ConfigError(
                f"[{lo}, {hi}) of {block.tag!r} ends within a chunk",
                fix="a range that ends at a multiple of the chunk, or at the block's end",
            )
        return holding, np.arange(lo // self._chunk, self._slots(hi))

    def _requested(self, block: Block, held: np.ndarray) -> int:
        """How many bytes of a block the slots it holds have."""
        whole = int(held.sum()) * self._chunk
        return whole - (held.size * self._chunk - block.requested_bytes if held[-1] else 0)

    def _expect_room(self, chunks: int, nbytes: int, tag: str) -> None:
        free, size = self._free.count, self._chunk
        if chunks > free:
            raise self._books.refuse(
                nbytes, chunks * size, free * size, free * size, tag, self.snapshot()
            )

    def _move(self, block: Block, requested: int, chunks: int) -> None:
        granted = chunks * self._chunk
        block.granted_bytes += granted
        self._books.move(requested, granted, granted)


def default_chunk_bytes(budget_bytes: int, max_mappings: int | None = None) -> int:
    """64 KiB, doubled until all chunks of the budget can be mapped apart from each other.

    Args:
        max_mappings: how many that may be; None: on this machine.
    """
    most = max_mappings or max_mapped_chunks()
    return mappable_chunk_bytes(DEFAULT_CHUNK_BYTES, budget_bytes, most)


# What a block holds: chunks, with the mapping in which it sees them. A block of `allocate` is whole
# until it is freed. One of `reserve` holds some of its slots, and records which it ever held: these
# keep their chunks where they can.


@dataclass(frozen=True, slots=True)
class WholeBlock:
    """A block of `allocate`: what it holds, and its mapping (None: the identity)."""

    runs: tuple[Run, ...]
    mapping: ChunkMapping | None

    def places(self) -> list[list[int]]:
        """[slot within the block, slot behind, chunk] of what it holds."""
        chunks = chunks_of(self.runs)
        return _places(np.arange(chunks.size), chunks)


@dataclass(frozen=True, slots=True)
class PartedBlock:
    """A block of `reserve`: its mapping, which of its slots it holds, and which it ever held."""

    mapping: ChunkMapping
    held: np.ndarray
    had: np.ndarray

    @property
    def runs(self) -> list[Run]:
        """The chunks it holds."""
        return runs_of(self.mapping.table[self.held])

    def places(self) -> list[list[int]]:
        """[slot within the block, slot behind, chunk] of what it holds."""
        slots = np.flatnonzero(self.held)
        return _places(slots, self.mapping.table[slots])

    def keeps(self, slots: np.ndarray, free: FreeRuns) -> np.ndarray:
        """For each slot whether its chunk is the block's own from before, and free.

        A chunk that has moved within the block is mapped at its old slot, too: it counts once.
        """
        there = self.mapping.table[slots]
        own = self.had[slots] & (there >= 0) & ~free.held[there]
        once = np.zeros(slots.size, bool)
        once[np.unique(there, return_index=True)[1]] = True
        return own & once


def _places(slots: np.ndarray, chunks: np.ndarray) -> list[list[int]]:
    return [
        [int(slots[lo]), int(slots[lo]) + hi - lo, int(chunks[lo])]
        for lo, hi in stretches(slots, chunks)
    ]
