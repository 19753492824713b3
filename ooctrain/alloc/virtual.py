"""Virtual addressing: whole address ranges for variables, physical chunks for what is resident of
them.

In: sizes and ranges. Out: blocks at fixed addresses whose parts come and go. The one idea: a block
is contiguous only in address space; physically it is any free chunks, so memory never fragments: a
request fails only if the free chunks are too few. Freed chunks stay mapped ("parked") where they
were until somebody needs them; a range freed and claimed again, or a block of the same size, takes
them back without a system call. Changes of mappings are only collected here (`take_changes`) and
made by the claiming stream behind its waits. Sources: paper 000, section 3.3 (chunks, exact-size
cache); unlike the authors' code, a chunk is never mapped twice, and a parked mapping is broken only
after its last use. Read next: `chunks.py`, `../devices/host_vm.py`, which makes the mappings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ooctrain.alloc.base import Block, Books, Changes, Reached, Stats, describe
from ooctrain.alloc.chunks import ChunkRuns, Run
from ooctrain.devices.base import VirtualMemory
from ooctrain.devices.host_vm import PAGE_BYTES, max_mapped_chunks
from ooctrain.errors import ConfigError
from ooctrain.units import Granule, format_bytes

DEFAULT_CHUNK_BYTES = 64 << 10


@dataclass(slots=True, eq=False)
class _Segment:
    """Slots [lo, hi) of a home, mapped to physical chunks from `chunk` on; parked: free to be
    taken."""

    lo: int
    hi: int
    chunk: int
    parked: bool = False
    after: tuple[Reached, ...] = ()


@dataclass(slots=True, eq=False)
class _Home:
    """An address range of `slots` chunks and what is mapped into it, ascending."""

    address: int
    slots: int
    segments: list[_Segment] = field(default_factory=list)
    stale: list[_Stale] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Stale:
    """Slots whose chunks were taken away, still to be unmapped unless they are mapped anew
    before."""

    home: _Home
    spans: list[tuple[int, int]]


@dataclass(slots=True)
class _Changes:
    """What the next claim has to change, in order: wait, unmap, map."""

    after: list[Reached] = field(default_factory=list)
    stale: list[_Stale] = field(default_factory=list)
    maps: list[tuple[int, int, int]] = field(default_factory=list)  # (address, chunk, chunks)


class VirtualAddressing:
    """Chunks of one size, mapped by ranges into reserved addresses.

    Args:
        memory: the arena; the part of it beyond the last whole chunk stays unused.
        chunk: size of a chunk in bytes, a multiple of the page; None: `default_chunk_bytes`.

    Raises:
        ConfigError: no such chunk, or so many that the system cannot map them.
    """

    name = "va"

    @staticmethod
    def defaults(budget_bytes: int) -> Mapping[str, int]:
        """Parameters that follow from the budget, so that planning knows the granule."""
        return {"chunk": default_chunk_bytes(budget_bytes)}

    def __init__(self, memory: VirtualMemory, chunk: int | None = None):
        size = default_chunk_bytes(memory.size_bytes) if chunk is None else chunk
        check_chunk(size, memory.size_bytes)
        self.granule = Granule(size, ranges=True)
        self._chunk, self._memory = size, memory
        self._chunks = memory.size_bytes // size
        self.budget_bytes = self._chunks * size
        self._books = Books(self.name, self.budget_bytes)
        self._bare = ChunkRuns(self._chunks)
        self._homes: dict[int, _Home] = {}  # by block id
        self._idle: dict[int, list[_Home]] = {}  # by slots: homes of freed blocks
        self._parked: dict[_Segment, _Home] = {}  # oldest first
        self._parked_chunks = 0
        self._changes = _Changes()
        self._lock = threading.Lock()  # guards `stale`, which the claiming streams work off

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A whole block. Cost: O(segments); system calls only where nothing parked fits.

        Raises:
            ConfigError: not a size.
            OutOfDeviceMemory: fewer free chunks than it needs; the state is as before.
        """
        self._expect_room(self._slots(self._books.checked_size(nbytes)), nbytes, tag)
        block = self.reserve(nbytes, tag)
        self.map_range(block, 0, nbytes)
        return block

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        """Parks what the block holds, and keeps its address range for the next of its size.

        Raises:
            InvalidFree: not a live block of this allocator.
        """
        self._books.expect_live(block)
        home = self._homes[block.id]
        self._park(block, home, 0, home.slots, after)
        self._books.retire(block)
        del self._homes[block.id]
        self._idle.setdefault(home.slots, []).append(home)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """An address range with nothing in it. Raises ConfigError: not a size."""
        slots = self._slots(self._books.checked_size(nbytes))
        home = self._idle_home(slots)
        if home is None:
            home = _Home(self._memory.reserve(slots * self._chunk), slots)
            self._books.counts["reservations"] += 1
        block = self._books.open(home.address, nbytes, 0, tag)
        self._homes[block.id] = home
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Claims bytes [lo, hi): parked chunks that lie there, else bare ones, else the oldest
        parked.

        Raises:
            OutOfDeviceMemory: fewer free chunks than it needs; the state is as before.
            InvalidFree: the block is not live here.
            ConfigError: bounds that are none, or a part is held already.
        """
        home, first, last = self._range(block, lo, hi)
        here = list(_within(home, first, last))
        if not all(segment.parked for segment in here):
            raise ConfigError(f"bytes of [{lo}, {hi}) of {block.tag!r} are held already")
        found = sum(min(s.hi, last) - max(s.lo, first) for s in here)
        self._expect_room(last - first - found, hi - lo, block.tag, spare=found)
        for segment in self._cut(home, first, last):
            self._revive(segment)
        runs = self._take(last - first - found)
        self._books.counts["reuses"] += not runs
        _fill(home, first, last, runs, self._note_map)
        self._move(block, _requested(block, lo, hi), last - first)

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Reached] = ()) -> None:
        """Parks bytes [lo, hi). Raises InvalidFree, ConfigError (bounds, or a part is not held)."""
        home, first, last = self._range(block, lo, hi)
        held = sum(
            min(s.hi, last) - max(s.lo, first) for s in _within(home, first, last) if not s.parked
        )
        if held != last - first:
            raise ConfigError(f"bytes of [{lo}, {hi}) of {block.tag!r} are not held")
        self._park(block, home, first, last, after)

    def take_changes(self) -> Changes | None:
        """What the claims since the last call need: first unmap, then map; None if nothing."""
        changes, self._changes = self._changes, _Changes()
        return (lambda: self._perform(changes)) if changes.maps else None

    def stats(self) -> Stats:
        """The books; reserved is what is granted, since every free chunk serves every request."""
        return self._books.stats()

    def check(self) -> None:
        """Each chunk is bare or mapped exactly once; segments are in order; the sums agree."""
        seen = self._bare.runs()
        homes = [*self._homes.values(), *(home for idle in self._idle.values() for home in idle)]
        live_chunks = 0
        for home in homes:
            end = 0
            for s in home.segments:
                assert end <= s.lo < s.hi <= home.slots, "segments out of order"
                assert s.parked == (s in self._parked), "parked segments disagree"
                end = s.hi
                live_chunks += 0 if s.parked else s.hi - s.lo
                seen.append((s.chunk, s.hi - s.lo))
        assert all(s.parked for idle in self._idle.values() for home in idle for s in home.segments)
        flat = sorted(c for first, count in seen for c in range(first, first + count))
        assert flat == list(range(self._chunks)), "a chunk is lost or mapped twice"
        assert self._parked_chunks == sum(s.hi - s.lo for s in self._parked)
        assert self.stats().granted_bytes == live_chunks * self._chunk <= self.budget_bytes
        held = sum(b.granted_bytes for b in self._books.live.values())
        assert held == live_chunks * self._chunk

    def snapshot(self) -> dict[str, Any]:
        """Live blocks with their chunks, as plain data."""
        return {
            "allocator": self.name,
            "budget": self.budget_bytes,
            "chunk": self._chunk,
            "blocks": describe(self._books.live.values()),
            "segments": {
                key: [[s.lo, s.hi, s.chunk] for s in self._homes[key].segments if not s.parked]
                for key in sorted(self._homes)
            },
            "parked": sorted([s.chunk, s.hi - s.lo] for s in self._parked),
            "bare": [list(run) for run in self._bare.runs()],
        }

    def close(self) -> list[Block]:
        """Gives the address ranges back; returns the blocks that were still live."""
        for home in [*self._homes.values(), *(h for idle in self._idle.values() for h in idle)]:
            self._memory.release(home.address)
        self._homes.clear()
        self._idle.clear()
        self._parked.clear()
        return self._books.close()

    def _slots(self, nbytes: int) -> int:
        return -(-nbytes // self._chunk)

    def _range(self, block: Block, lo: int, hi: int) -> tuple[_Home, int, int]:
        """(home, first slot, behind the last slot) of a byte range, checked."""
        self._books.expect_live(block)
        if not 0 <= lo < hi <= block.requested_bytes or lo % self._chunk:
            raise ConfigError(f"[{lo}, {hi}) is no range of {block.tag!r} in chunks")
        if hi % self._chunk and hi != block.requested_bytes:
            raise ConfigError(f"[{lo}, {hi}) of {block.tag!r} ends within a chunk")
        return self._homes[block.id], lo // self._chunk, self._slots(hi)

    def _expect_room(self, chunks: int, nbytes: int, tag: str, spare: int = 0) -> None:
        """Raises OutOfDeviceMemory unless `chunks` are free besides `spare` parked ones."""
        free = self._bare.total + self._parked_chunks - spare
        if chunks > free:
            size = self._chunk
            raise self._books.refuse(nbytes, chunks * size, free * size, free * size, tag)

    def _idle_home(self, slots: int) -> _Home | None:
        """The idle address range of this size with the most chunks still mapped, latest first."""
        idle = self._idle.get(slots)
        if not idle:
            return None
        mapped = [sum(s.hi - s.lo for s in home.segments) for home in idle]
        best = max(range(len(idle)), key=lambda i: (mapped[i], i))
        return idle.pop(best)

    def _park(
        self, block: Block, home: _Home, first: int, last: int, after: Sequence[Reached]
    ) -> None:
        count = requested = 0
        for segment in self._cut(home, first, last):
            if not segment.parked:
                segment.parked, segment.after = True, tuple(after)
                self._parked[segment] = home
                count += segment.hi - segment.lo
                requested += _requested(block, segment.lo * self._chunk, segment.hi * self._chunk)
        self._parked_chunks += count
        self._move(block, -requested, -count)

    def _revive(self, segment: _Segment) -> None:
        segment.parked, segment.after = False, ()
        del self._parked[segment]
        self._parked_chunks -= segment.hi - segment.lo

    def _move(self, block: Block, requested: int, chunks: int) -> None:
        granted = chunks * self._chunk
        block.granted_bytes += granted
        self._books.move(requested, granted, granted)

    def _cut(self, home: _Home, first: int, last: int) -> list[_Segment]:
        """The segments within [first, last), after cutting those that cross its borders."""
        for border in (first, last):
            for place, segment in enumerate(home.segments):
                if segment.lo < border < segment.hi:
                    shift = border - segment.lo
                    right = _Segment(
                        border, segment.hi, segment.chunk + shift, segment.parked, segment.after
                    )
                    segment.hi = border
                    home.segments.insert(place + 1, right)
                    if segment.parked:
                        self._parked[right] = home
                    break
        return list(_within(home, first, last))

    def _take(self, count: int) -> list[Run]:
        """`count` free chunks: bare ones, then those parked longest, whose mappings turn stale."""
        bare = min(count, self._bare.total)
        runs = self._bare.take(bare)
        count -= bare
        while count:
            segment, home = next(iter(self._parked.items()))
            start = max(segment.lo, segment.hi - count)
            for part in self._cut(home, start, segment.hi):
                runs.append((part.chunk, part.hi - part.lo))
                count -= part.hi - part.lo
                self._unhouse(part, home)
        return runs

    def _unhouse(self, segment: _Segment, home: _Home) -> None:
        """Takes a parked segment's chunks away; their mapping has to go before they are used."""
        self._changes.after += segment.after
        self._revive(segment)
        home.segments.remove(segment)
        stale = _Stale(home, [(segment.lo, segment.hi)])
        with self._lock:
            home.stale.append(stale)
        self._changes.stale.append(stale)
        self._books.counts["unmaps"] += 1

    def _note_map(self, home: _Home, segment: _Segment) -> None:
        """Notes a mapping to be made. It replaces whatever is stale there, even if that comes
        late."""
        address = home.address + segment.lo * self._chunk
        self._changes.maps.append((address, segment.chunk, segment.hi - segment.lo))
        self._books.counts["maps"] += 1
        with self._lock:
            for stale in home.stale:
                stale.spans = _without(stale.spans, segment.lo, segment.hi)

    def _perform(self, changes: _Changes) -> None:
        """Called by the claiming stream's worker."""
        begin_ns = time.perf_counter_ns()
        for event in changes.after:
            event.wait()
        waited_ns = time.perf_counter_ns() - begin_ns
        size = self._chunk
        with self._lock:
            self._books.counts["waited_ns"] += waited_ns
            for stale in changes.stale:
                stale.home.stale.remove(stale)
                for lo, hi in stale.spans:
                    self._memory.unmap(stale.home.address + lo * size, (hi - lo) * size)
        for address, chunk, count in changes.maps:
            self._memory.map(address, chunk * size, count * size)


def default_chunk_bytes(budget_bytes: int) -> int:
    """64 KiB, doubled until the system can map all chunks of the budget apart from each other."""
    chunk, most = DEFAULT_CHUNK_BYTES, max_mapped_chunks()
    while budget_bytes // chunk > most:
        chunk *= 2
    return chunk


def check_chunk(chunk: int, budget_bytes: int) -> None:
    """Raises ConfigError unless chunks of this size can serve the budget."""
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk <= 0 or chunk % PAGE_BYTES:
        raise ConfigError(
            f"chunk {chunk!r} is not a positive multiple of the page", code="OOC-107",
            numbers=f"page {PAGE_BYTES} bytes", fix="for example va:chunk=1MiB",
        )  # fmt: skip
    if chunk > budget_bytes:
        raise ConfigError(
            f"chunk {format_bytes(chunk)} is larger than the budget {format_bytes(budget_bytes)}",
            code="OOC-107", fix="a smaller chunk, or a larger --budget",
        )  # fmt: skip
    if budget_bytes // chunk > max_mapped_chunks():
        raise ConfigError(
            f"{budget_bytes // chunk} chunks are more mappings than the system allows",
            code="OOC-107", numbers=f"at most {max_mapped_chunks()} (half of vm.max_map_count)",
            fix=f"va:chunk={default_chunk_bytes(budget_bytes)}",
        )  # fmt: skip


def _within(home: _Home, first: int, last: int) -> Iterator[_Segment]:
    return (s for s in home.segments if s.hi > first and s.lo < last)


def _requested(block: Block, lo: int, hi: int) -> int:
    return max(0, min(hi, block.requested_bytes) - lo)


def _without(spans: list[tuple[int, int]], lo: int, hi: int) -> list[tuple[int, int]]:
    """Ranges less [lo, hi)."""
    left = [(a, min(b, lo)) for a, b in spans if a < lo]
    right = [(max(a, hi), b) for a, b in spans if b > hi]
    return left + right


def _fill(
    home: _Home, first: int, last: int, runs: list[Run], note: Callable[[_Home, _Segment], None]
) -> None:
    """Puts runs of chunks into the empty slots of [first, last), in order."""
    runs = runs[::-1]
    filled: list[_Segment] = []
    slot = first
    for segment in [*_within(home, first, last), _Segment(last, last, 0)]:
        while slot < segment.lo:
            chunk, count = runs.pop()
            part = min(count, segment.lo - slot)
            if part < count:
                runs.append((chunk + part, count - part))
            filled.append(_Segment(slot, slot + part, chunk))
            note(home, filled[-1])
            slot += part
        slot = segment.hi
    if filled:
        home.segments = sorted([*home.segments, *filled], key=lambda s: s.lo)
