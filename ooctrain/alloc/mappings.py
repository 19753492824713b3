"""Address ranges over physical chunks, kept mapped so that they can be used again.

Physical memory falls into chunks of one size, of which each is free or held (`FreeRuns`). A
`ChunkMapping` has a number of slots, in which its chunks are mapped. A chunk may be seen at several
addresses at a time (aliases), as long as at most one live block uses it. So a new mapping takes
nothing from another and needs no waiting, and every mapping is kept (`MappingCache`): when the same
chunks are free again, it serves again without a system call. Linux allows aliases of a memfd
without condition. CUDA (Programming Guide, virtual memory management, "Virtual Aliasing Support")
requires that an operation which wrote through one address has completed before one that uses
another address begins; this holds here, since every claim waits for all releases listed before it.
The number of mappings is bounded: beyond the bound, the least recently used idle mapping is
dropped, after its last use. Sources: paper 000, section 4; GMLake's stitched blocks. Read next:
`alloc/virtual.py`.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ooctrain.alloc.base import Event, is_over
from ooctrain.devices.interface import VirtualMemory
from ooctrain.errors import ConfigError
from ooctrain.units import format_bytes

_NOTHING = -1  # in a page table: no chunk is mapped at this slot
#: How often all chunks may be mapped. A page table entry is 8 bytes for each page of 4 KiB, so this
#: bounds the page tables at 3 % of the budget.
MOST_ALIASES = 16


@dataclass(slots=True, eq=False)
class ChunkMapping:
    """An address range.

    Attributes:
        address: where it begins.
        table: for each slot the chunk that is mapped there, or -1.
        tag: tag of the blocks in parts that it is for; None: it is for whole blocks.
        runs: the chunks of `table` in runs as they were mapped, in the order of the slots.
        first: the chunks that the first range of its last block got; None: it had none yet.
        live: whether a block uses it.
        uses: {(first slot, behind the last): events after which these slots were not used any
            more}.
    """

    address: int
    table: np.ndarray
    tag: str | None = None
    runs: list[Run] = field(default_factory=list)
    first: list[Run] | None = None
    live: bool = False
    uses: dict[tuple[int, int], tuple[Event, ...]] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """How many chunks it has room for."""
        return self.table.size

    def mapped(self) -> int:
        """How many chunks are mapped."""
        return sum(count for _, count in self.runs)

    def used(self, lo: int, hi: int, after: Sequence[Event]) -> None:
        """Slots [lo, hi) are not used any more after these events, nor before those of earlier
        uses; only what is over is forgotten.
        """
        earlier = [event for event in self.uses.pop((lo, hi), ()) if not is_over(event)]
        if earlier or after:
            self.uses[lo, hi] = (*earlier, *after)


@dataclass(slots=True)
class _Equals:
    """Mappings with the same number of slots, of whole blocks or of one block in parts.

    Args:
        made: in the order of their making.
        blocked_by: for each a chunk of it that was held at the last look; -1: not known of
            one. While it is held there is no need to look at the others.
    """

    made: list[ChunkMapping] = field(default_factory=list)
    blocked_by: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, mapping: ChunkMapping) -> None:
        """One more."""
        self.made.append(mapping)
        if len(self.made) > self.blocked_by.size:
            self.blocked_by = np.concatenate(
                [self.blocked_by, np.full(self.blocked_by.size + 8, _NOTHING)]
            )
        self.blocked_by[len(self.made) - 1] = _NOTHING

    def remove(self, mapping: ChunkMapping) -> None:
        """One less."""
        place, last = self.made.index(mapping), len(self.made)
        del self.made[place]
        self.blocked_by[place : last - 1] = self.blocked_by[place + 1 : last]

    def forget(self, mapping: ChunkMapping) -> None:
        """It has other chunks now."""
        self.blocked_by[self.made.index(mapping)] = _NOTHING

    def hopeful(self, free: FreeRuns) -> list[int]:
        """Places of those that lack nothing that is known, ascending."""
        blocked_by = self.blocked_by[: len(self.made)]
        return np.flatnonzero((blocked_by == _NOTHING) | ~free.held[blocked_by]).tolist()


class MappingCache:
    """All mappings over a memory.

    Args:
        memory: memory whose bytes are mapped.
        chunk_bytes: bytes of a chunk.
        counts: counts for the books: maps, unmaps, reservations, host_waits, waited_ns.
    """

    def __init__(self, memory: VirtualMemory, chunk_bytes: int, counts: Counter[str]):
        self._memory, self._chunk, self._counts = memory, chunk_bytes, counts
        #: by (number of slots, tag of the block that comes in parts; None: blocks are whole)
        self._equals: dict[tuple[int, str | None], _Equals] = {}
        #: all that no block uses, and perhaps some that one does; that used longest ago first
        self._idle: OrderedDict[ChunkMapping, None] = OrderedDict()
        self._most_mappings = memory.max_mappings
        self._most_chunks = MOST_ALIASES * (memory.size_bytes // chunk_bytes)
        self.mappings = self.mapped_chunks = 0

    def __iter__(self) -> Iterator[ChunkMapping]:
        return (mapping for equals in self._equals.values() for mapping in equals.made)

    def find(self, slots: int, free: FreeRuns) -> ChunkMapping | None:
        """The oldest unused mapping of `slots` slots, all mapped, whose chunks are all free.

        The first made one, since then a step that begins as the last one finds what that one made.

        Args:
            slots: its exact number.
            free: which chunks are free.

        Cost: O(mappings of this size), in one operation on an array; those that lack another chunk
        than at the last look are looked at one by one.
        """
        equals = self._equals.get((slots, None))
        if equals is None:
            return None
        for place in equals.hopeful(free):
            mapping = equals.made[place]
            unused = all(map(free.is_free, mapping.runs))  # a block holds all that it sees
            if unused and mapping.mapped() == slots:
                return mapping
            equals.blocked_by[place] = _held_chunk(mapping, free)
        return None

    def find_begun(self, slots: int, tag: str, free: FreeRuns) -> ChunkMapping | None:
        """The unused mapping whose block of this tag began with the chunks that a range of as many
        slots would get now; else one in which nothing has begun.

        A mapping in parts is not left as it was found, since a range that comes back gets other
        chunks. But which chunks the first range gets follows from what is free alone (`holes`), so
        in a step that begins as the last one each block finds the mapping that it had there.
        """
        equals, begun = self._equals.get((slots, tag)), None
        for mapping in equals.made if equals else ():
            if mapping.live:
                continue
            if mapping.first is None:
                begun = begun or mapping
                continue
            count = sum(size for _, size in mapping.first)
            if count <= free.count and free.holes(count) == mapping.first:
                return mapping
        return begun

    def make(self, slots: int, runs: Sequence[Run], tag: str | None = None) -> ChunkMapping:
        """A new mapping with these chunks mapped, for which no stream has to wait.

        Args:
            tag: tag of the block that it is for, if that comes in parts; None: it is whole.

        Raises:
            DriverError: refused; everything is as before.
        """
        address = self._memory.reserve(slots * self._chunk)
        mapping = ChunkMapping(address, np.full(slots, _NOTHING, np.int64), tag=tag)
        slot = 0
        try:
            for first, count in runs:
                self._map(mapping, slot, first, count)
                slot += count
        except BaseException:
            self._memory.release(address)
            raise
        mapping.runs = list(runs)
        self._counts["reservations"] += 1
        self._counts["maps"] += len(runs)
        self._equals.setdefault((slots, tag), _Equals()).add(mapping)
        self._idle[mapping] = None
        self._idle.move_to_end(mapping, last=False)  # it has not been used at all
        self._count(mapping, +1)
        self._bound(mapping)
        return mapping

    def put(self, mapping: ChunkMapping, slots: np.ndarray, chunks: np.ndarray) -> None:
        """Maps chunks at slots where others, or none, were mapped; waits for the last use of these.

        Args:
            mapping: mapping of these slots.
            slots, chunks: each slot with its chunk; slots ascending.

        Raises:
            DriverError: refused; slots that lost their chunk are empty, nothing else has changed.
        """
        self.wait([e for (lo, hi), events in mapping.uses.items()
                   if ((lo <= slots) & (slots < hi)).any() for e in events])  # fmt: skip
        self._count(mapping, -1)
        try:
            for lo, hi in stretches(slots, chunks):
                mapping.table[slots[lo:hi]] = (
                    _NOTHING  # what a refused call leaves there is unknown
                )
                self._map(mapping, int(slots[lo]), int(chunks[lo]), hi - lo)
                self._counts["maps"] += 1
        except BaseException:
            self._clear(mapping, slots[mapping.table[slots] == chunks])
            raise
        finally:
            mapping.runs = runs_of(mapping.table[mapping.table != _NOTHING])
            self._equals[mapping.slots, mapping.tag].forget(mapping)
            self._count(mapping, +1)
        self._bound(mapping)

    def leave(self, mapping: ChunkMapping) -> None:
        """No block uses it any more."""
        mapping.live = False
        self._idle[mapping] = None
        self._idle.move_to_end(mapping)

    def drop(self, mapping: ChunkMapping) -> None:
        """Unmaps it after its last use, and gives its address range back."""
        self.wait([event for events in mapping.uses.values() for event in events])
        self._release(mapping)
        self._counts["unmaps"] += len(mapping.runs)

    def wait(self, events: Sequence[Event]) -> None:
        """Waits for last uses before a mapping is broken; counted and timed."""
        if events:
            begin_ns = time.perf_counter_ns()
            for event in events:
                event.wait()
            self._counts["host_waits"] += 1
            self._counts["waited_ns"] += time.perf_counter_ns() - begin_ns

    def close(self) -> None:
        """Gives all address ranges back."""
        for mapping in list(self):
            self._release(mapping)

    def check(self) -> None:
        """The counts are the sums, and tables and runs say the same. Raises AssertionError."""
        for mapping in self:
            mapped = mapping.table[mapping.table != _NOTHING]
            assert np.array_equal(chunks_of(mapping.runs), mapped), "runs are not the table"
        assert self.mappings == sum(len(mapping.runs) for mapping in self), "mappings"
        assert self.mapped_chunks == sum(mapping.mapped() for mapping in self), "mapped chunks"

    def _map(self, mapping: ChunkMapping, slot: int, chunk: int, count: int) -> None:
        size = self._chunk
        self._memory.map(mapping.address + slot * size, chunk * size, count * size)
        mapping.table[slot : slot + count] = np.arange(chunk, chunk + count)

    def _clear(self, mapping: ChunkMapping, slots: np.ndarray) -> None:
        """Takes the chunks at some slots off the map."""
        for first, count in runs_of(slots):
            self._memory.unmap(mapping.address + first * self._chunk, count * self._chunk)
            self._counts["unmaps"] += 1
        mapping.table[slots] = _NOTHING

    def _count(self, mapping: ChunkMapping, sign: int) -> None:
        self.mappings += sign * len(mapping.runs)
        self.mapped_chunks += sign * mapping.mapped()
        self._counts["mapped_bytes"] = self.mapped_chunks * self._chunk

    def _bound(self, kept: ChunkMapping) -> None:
        """Lets idle mappings go, the one used longest ago first, while too much is mapped."""
        while self.mappings >= self._most_mappings or self.mapped_chunks > self._most_chunks:
            idle = self._longest_idle(kept)
            if idle is None:
                return
            self.drop(idle)

    def _longest_idle(self, kept: ChunkMapping) -> ChunkMapping | None:
        """That which no block has used for longest; None: all are in use. Cost: O(1) each time that
        a block has come to use one.
        """
        found, used = None, []
        for mapping in self._idle:
            if mapping.live:
                used.append(mapping)
            elif mapping is not kept:
                found = mapping
                break
        for mapping in used:
            del self._idle[mapping]  # it comes back when its block leaves
        return found

    def _release(self, mapping: ChunkMapping) -> None:
        self._memory.release(mapping.address)
        self._equals[mapping.slots, mapping.tag].remove(mapping)
        self._idle.pop(mapping, None)
        self._count(mapping, -1)


def _held_chunk(mapping: ChunkMapping, free: FreeRuns) -> int:
    """A chunk of a mapping that is held; -1: none is."""
    for first, count in mapping.runs:
        held = free.held[first : first + count]
        if held.any():
            return first + int(held.argmax())
    return _NOTHING


# Free chunks, as runs of neighbours. A request gets the smallest run that it fits into, or else the
# fewest runs that together suffice. Free runs are kept sorted and joined, so there are few of them
# and a scan is quick. They depend on the held chunks alone, not on their history, so a training
# step that begins in the same state as the last one gets the same chunks.


Run = tuple[int, int]  # (first chunk, how many)


class FreeRuns:
    """Runs of free chunks, among chunks of which each is free or held.

    Args:
        chunks: how many there are; all are free at first.

    Attributes:
        count: how many are free.
        held: for each chunk whether it is held.
    """

    def __init__(self, chunks: int):
        self.count = chunks
        self.held = np.zeros(chunks, bool)
        self._los, self._his = ([0], [chunks]) if chunks else ([], [])

    def find(self, count: int) -> int | None:
        """First chunk of the smallest free run with `count` or more; None: no run has. O(runs)."""
        fitting = [
            (hi - lo, lo) for lo, hi in zip(self._los, self._his, strict=True) if hi - lo >= count
        ]
        return min(fitting)[1] if fitting else None

    def holes(self, count: int) -> list[Run]:
        """`count` free chunks in few runs: the largest ones, then the smallest that has the rest.

        Returns:
            The runs, ascending.

        Raises:
            ValueError: fewer are free.
        """
        runs, chosen = sorted(self.runs(), key=_size), []
        while count:
            if not runs:
                raise ValueError(f"{count} free chunks are missing")
            place = min(bisect_left(runs, count, key=_size), len(runs) - 1)
            first, size = runs.pop(place)
            chosen.append((first, min(size, count)))
            count -= min(size, count)
        return sorted(chosen)

    def is_free(self, run: Run) -> bool:
        """Whether all chunks of a run are. O(log runs)."""
        place = bisect_right(self._los, run[0]) - 1
        return place >= 0 and run[0] + run[1] <= self._his[place]

    def take(self, runs: Iterable[Run]) -> None:
        """Holds free runs, each of which lies within one free run. O(free runs)."""
        for lo, count in runs:
            place, hi = bisect_right(self._los, lo) - 1, lo + count
            before, behind = (self._los[place], lo), (hi, self._his[place])
            left = [piece for piece in (before, behind) if piece[0] < piece[1]]
            self._los[place : place + 1] = [first for first, _ in left]
            self._his[place : place + 1] = [last for _, last in left]
            self.held[lo:hi] = True
            self.count -= count

    def give(self, runs: Iterable[Run]) -> None:
        """Frees held runs and joins them with free neighbours. O(free runs)."""
        for lo, count in runs:
            hi = lo + count
            self.held[lo:hi] = False
            self.count += count
            place = bisect_left(self._los, lo)
            if place < len(self._los) and self._los[place] == hi:
                hi = self._his[place]
                del self._los[place], self._his[place]
            if place and self._his[place - 1] == lo:
                self._his[place - 1] = hi
            else:
                self._los.insert(place, lo)
                self._his.insert(place, hi)

    def runs(self) -> list[Run]:
        """All free runs, ascending."""
        return [(lo, hi - lo) for lo, hi in zip(self._los, self._his, strict=True)]


def chunks_of(runs: Iterable[Run]) -> np.ndarray:
    """The chunk numbers of runs, in their order."""
    parts = [np.arange(first, first + count) for first, count in runs]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def runs_of(chunks: np.ndarray | Sequence[int]) -> list[Run]:
    """Runs of consecutive numbers, in order: [5, 6, 2, 3, 4] -> [(5, 2), (2, 3)]."""
    numbers = np.asarray(chunks)
    return [(int(numbers[lo]), hi - lo) for lo, hi in stretches(numbers)]


def stretches(*columns: np.ndarray) -> list[tuple[int, int]]:
    """[lo, hi) of positions within which all of these equally long columns count up by one."""
    breaks = {0, columns[0].size}
    for column in columns:
        breaks.update((np.flatnonzero(column[1:] - column[:-1] != 1) + 1).tolist())
    return list(pairwise(sorted(breaks)))


def _size(run: Run) -> int:
    return run[1]


# The size of a chunk: the requested one, or the smallest that can be mapped. A chunk is made of
# whole pages. All chunks of the budget must be mappable apart from each other, and Linux bounds the
# mappings of a process, so a large budget needs larger chunks.


def checked_chunk_bytes(memory: VirtualMemory, chunk: int, example: str) -> int:
    """A chunk's size, if the memory can map such chunks.

    Args:
        example: a correct size, for the message.

    Raises:
        ConfigError: not a positive multiple of the memory's granularity.
    """
    page = memory.granularity_bytes
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk <= 0 or chunk % page:
        raise ConfigError(
            f"chunk {chunk!r} is not a positive multiple of the page", code="OOC-107",
            numbers=f"page {page} bytes", fix=f"for example {example}",
        )  # fmt: skip
    return chunk


def check_chunk_count(memory: VirtualMemory, chunk_bytes: int, allocator: str) -> None:
    """Raises ConfigError if the memory has no whole chunk, or more than can be mapped apart."""
    chunk_bytes = checked_chunk_bytes(memory, chunk_bytes, f"{allocator}:chunk=2MiB")
    chunks, most = memory.size_bytes // chunk_bytes, memory.max_mappings
    if not 0 < chunks <= most:
        raise ConfigError(
            f"chunks of {format_bytes(chunk_bytes)} do not suit the budget", code="OOC-107",
            numbers=f"{chunks} of them in {format_bytes(memory.size_bytes)}, of 1 to {most}",
            fix=f"{allocator}:chunk=BYTES",
        )  # fmt: skip


def mappable_chunk_bytes(least_bytes: int, budget_bytes: int, max_mappings: int) -> int:
    """The least size, doubled until all chunks of the budget can be mapped apart."""
    chunk = least_bytes
    while budget_bytes // chunk > max_mappings:
        chunk *= 2
    return chunk
