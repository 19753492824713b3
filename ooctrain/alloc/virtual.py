"""Virtual addressing: blocks are contiguous in address space, and physically any free chunks.

In: sizes and ranges. Out: blocks at fixed addresses whose parts come and go. The one idea: memory
never fragments, since a request fails only if the free chunks are too few; and remapping is dear,
so a chunk stays mapped ("parked") where it was until somebody elsewhere needs it. All chunks begin
mapped in one range, the plain. A block goes where the plain has room for it in one piece; that
needs no system call. Where it has none, though the holes are enough together, the block gets an
address range of its own and chunks from the holes: that is where best fit would fail. Each chunk is
mapped once at any time. Changes of mappings are only collected here (`take_changes`) and made by
the claiming stream behind its waits. Sources: paper 000, section 4 (virtual addressing, chunks);
the plain is ours, after GMLake's stitching. Read next: `chunks.py`, `../devices/host_vm.py`, which
makes the mappings.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ooctrain.alloc.base import Block, Books, Changes, Reached, Stats, describe
from ooctrain.alloc.chunks import Room, Run, best_run, join_runs
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

    def within(self, first: int, last: int) -> list[_Segment]:
        """The segments that touch slots [first, last)."""
        place = bisect_right(self.segments, first, key=_lo)
        if place and self.segments[place - 1].hi > first:
            place -= 1
        end = place
        while end < len(self.segments) and self.segments[end].lo < last:
            end += 1
        return self.segments[place:end]

    def put(self, segment: _Segment) -> None:
        """Adds a segment where no other is."""
        self.segments.insert(bisect_right(self.segments, segment.lo, key=_lo), segment)

    def drop(self, segment: _Segment) -> None:
        """Takes a segment out."""
        del self.segments[bisect_right(self.segments, segment.lo, key=_lo) - 1]


@dataclass(frozen=True, slots=True)
class _Seat:
    """Where a block is: slots [first, first + slots) of a home."""

    home: _Home
    first: int
    slots: int


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
        ConfigError: the chunk is not whole pages.
    """

    name = "va"

    @staticmethod
    def defaults(budget_bytes: int) -> Mapping[str, int]:
        """Parameters that follow from the budget, so that planning knows the granule."""
        return {"chunk": default_chunk_bytes(budget_bytes)}

    def __init__(self, memory: VirtualMemory, chunk: int | None = None):
        size = default_chunk_bytes(memory.size_bytes) if chunk is None else chunk
        if isinstance(size, bool) or not isinstance(size, int) or size <= 0 or size % PAGE_BYTES:
            raise ConfigError(
                f"chunk {size!r} is not a positive multiple of the page", code="OOC-107",
                numbers=f"page {PAGE_BYTES} bytes", fix="for example va:chunk=1MiB",
            )  # fmt: skip
        self.granule = Granule(size, ranges=True)
        self._chunk, self._memory = size, memory
        self._chunks = memory.size_bytes // size
        self.budget_bytes = self._chunks * size
        self._books = Books(self.name, self.budget_bytes)
        self._plain = _Home(memory.reserve(self.budget_bytes), self._chunks)
        # An index is busy if a block sits on that slot of the plain, and if that chunk is held.
        self._room = Room(self._chunks)
        if self._chunks:
            memory.map(self._plain.address, 0, self.budget_bytes)
            self._plain.put(_Segment(0, self._chunks, 0, parked=True))
        self._seats: dict[int, _Seat] = {}  # by block id
        self._idle: dict[int, list[_Home]] = {}  # by slots: ranges of their own, of freed blocks
        self._parked = dict.fromkeys(self._plain.segments, self._plain)  # oldest first
        self._parked_chunks = self._chunks
        self._changes = _Changes()
        self._lock = threading.Lock()  # guards `stale`, which the claiming streams work off

    def check_limits(self) -> None:
        """Raises ConfigError if the arena has no whole chunk, or more than the system can map."""
        if not self._chunks:
            raise ConfigError(
                f"a chunk of {format_bytes(self._chunk)} is larger than the budget",
                code="OOC-107", numbers=f"budget {format_bytes(self._memory.size_bytes)}",
                fix="a smaller chunk, or a larger --budget",
            )  # fmt: skip
        if self._chunks > max_mapped_chunks():
            raise ConfigError(
                f"{self._chunks} chunks are more mappings than the system allows",
                code="OOC-107", numbers=f"at most {max_mapped_chunks()} (half of vm.max_map_count)",
                fix=f"va:chunk={default_chunk_bytes(self._memory.size_bytes)}",
            )  # fmt: skip

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A whole block. Cost: O(log segments); system calls only where no one piece is free.

        Raises:
            ConfigError: not a size.
            OutOfDeviceMemory: fewer free chunks than it needs; the state is as before.
        """
        self._expect_room(self._slots(self._books.checked_size(nbytes)), nbytes, tag)
        block = self.reserve(nbytes, tag)
        self.map_range(block, 0, nbytes)
        return block

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        """Parks what the block holds, and keeps its address range for others.

        Raises:
            InvalidFree: not a live block of this allocator.
        """
        self._books.expect_live(block)
        seat = self._seats[block.id]
        self._park(block, seat, seat.first, seat.first + seat.slots, after)
        self._books.retire(block)
        del self._seats[block.id]
        if seat.home is self._plain:
            self._room.vacate(seat.first, seat.slots)
        else:
            self._idle.setdefault(seat.slots, []).append(seat.home)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """An address range with nothing in it. Raises ConfigError: not a size."""
        slots = self._slots(self._books.checked_size(nbytes))
        seat = self._find_seat(slots)
        address = seat.home.address + seat.first * self._chunk
        block = self._books.open(address, nbytes, 0, tag)
        self._seats[block.id] = seat
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Claims bytes [lo, hi): the chunks parked there, and others for the slots without.

        Raises:
            OutOfDeviceMemory: fewer free chunks than it needs; the state is as before.
            InvalidFree: the block is not live here.
            ConfigError: bounds that are none, or a part is held already.
        """
        seat, first, last = self._range(block, lo, hi)
        here = seat.home.within(first, last)
        if not all(segment.parked for segment in here):
            raise ConfigError(f"bytes of [{lo}, {hi}) of {block.tag!r} are held already")
        found = sum(min(s.hi, last) - max(s.lo, first) for s in here)
        self._expect_room(last - first - found, hi - lo, block.tag, spare=found)
        for segment in self._cut(seat.home, first, last):
            self._revive(segment)
        self._books.counts["reuses"] += found == last - first
        if found < last - first:
            self._fill(seat.home, first, last)
        _join(seat.home, seat.home.within(first, last))
        self._move(block, _requested(block, lo, hi), last - first)

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Reached] = ()) -> None:
        """Parks bytes [lo, hi). Raises InvalidFree, ConfigError (bounds, or a part is not held)."""
        seat, first, last = self._range(block, lo, hi)
        held = sum(
            min(s.hi, last) - max(s.lo, first)
            for s in seat.home.within(first, last)
            if not s.parked
        )
        if held != last - first:
            raise ConfigError(f"bytes of [{lo}, {hi}) of {block.tag!r} are not held")
        self._park(block, seat, first, last, after)

    def take_changes(self) -> Changes | None:
        """What the claims since the last call need: first unmap, then map; None if nothing."""
        if not self._changes.maps:
            return None
        changes, self._changes = self._changes, _Changes()
        return lambda: self._perform(changes)

    def stats(self) -> Stats:
        """The books; reserved is what is granted, since every free chunk serves every request."""
        return self._books.stats()

    def check(self) -> None:
        """Each chunk is mapped exactly once; segments and seats are in order; the sums agree."""
        homes = {id(seat.home): seat.home for seat in self._seats.values()}
        homes |= {id(home): home for idle in self._idle.values() for home in idle}
        segments = []
        for home in {**homes, id(self._plain): self._plain}.values():
            ends = [0, *(s.hi for s in home.segments)]
            assert all(a <= s.lo < s.hi for a, s in zip(ends, home.segments, strict=False))
            assert ends[-1] <= home.slots
            segments += home.segments
        flat = sorted(c for s in segments for c in range(s.chunk, s.chunk + s.hi - s.lo))
        assert flat == list(range(self._chunks)), "a chunk is lost or mapped twice"
        assert {s for s in segments if s.parked} == set(self._parked)
        assert self._parked_chunks == sum(s.hi - s.lo for s in self._parked)
        assert all(s.parked for idle in self._idle.values() for home in idle for s in home.segments)
        busy = [(s.first, s.slots) for s in self._seats.values() if s.home is self._plain]
        assert len(join_runs(busy)) <= len(busy), "two blocks on one slot of the plain"
        busy += [(s.chunk, s.hi - s.lo) for s in segments if not s.parked]
        indices = {c for lo, count in busy for c in range(lo, lo + count)}
        indices |= {c for lo, count in self._room.runs() for c in range(lo, lo + count)}
        assert indices == set(range(self._chunks)), "room is lost"
        assert len(indices) == self._chunks
        granted = (self._chunks - self._parked_chunks) * self._chunk
        assert self.stats().granted_bytes == granted
        assert granted == sum(b.granted_bytes for b in self._books.live.values())

    def snapshot(self) -> dict[str, Any]:
        """Live blocks with their chunks, as plain data."""
        return {
            "allocator": self.name,
            "budget": self.budget_bytes,
            "chunk": self._chunk,
            "blocks": describe(self._books.live.values()),
            "chunks": {key: self._chunks_of(self._seats[key]) for key in sorted(self._seats)},
            "free": sum(s.hi - s.lo for s in self._parked),
            "own_ranges": sum(seat.home is not self._plain for seat in self._seats.values()),
        }

    def close(self) -> list[Block]:
        """Gives the address ranges back; returns the blocks that were still live."""
        if not self._books.closed:
            homes = [seat.home for seat in self._seats.values() if seat.home is not self._plain]
            for home in [self._plain, *homes, *(h for idle in self._idle.values() for h in idle)]:
                self._memory.release(home.address)
        self._seats.clear()
        self._idle.clear()
        self._parked.clear()
        return self._books.close()

    # Places.

    def _slots(self, nbytes: int) -> int:
        return -(-nbytes // self._chunk)

    def _find_seat(self, slots: int) -> _Seat:
        """On the plain if it has room in one piece, else a range of its own, used before or new."""
        first = self._room.find(slots)
        if first is not None:
            self._room.occupy(first, slots)
            return _Seat(self._plain, first, slots)
        idle = self._idle.get(slots)
        if idle:
            return _Seat(idle.pop(), 0, slots)
        home = _Home(self._memory.reserve(slots * self._chunk), slots)
        self._books.counts["reservations"] += 1  # not before: reserving may be refused
        return _Seat(home, 0, slots)

    def _range(self, block: Block, lo: int, hi: int) -> tuple[_Seat, int, int]:
        """(seat, first slot, behind the last slot) of a byte range, checked."""
        self._books.expect_live(block)
        if not 0 <= lo < hi <= block.requested_bytes or lo % self._chunk:
            raise ConfigError(f"[{lo}, {hi}) is no range of {block.tag!r} in chunks")
        if hi % self._chunk and hi != block.requested_bytes:
            raise ConfigError(f"[{lo}, {hi}) of {block.tag!r} ends within a chunk")
        seat = self._seats[block.id]
        return seat, seat.first + lo // self._chunk, seat.first + self._slots(hi)

    def _chunks_of(self, seat: _Seat) -> list[list[int]]:
        """[slot within the block, slot behind, chunk] of what a block holds."""
        found = seat.home.within(seat.first, seat.first + seat.slots)
        return [[s.lo - seat.first, s.hi - seat.first, s.chunk] for s in found if not s.parked]

    # Chunks: parked or not.

    def _expect_room(self, chunks: int, nbytes: int, tag: str, spare: int = 0) -> None:
        """Raises OutOfDeviceMemory unless `chunks` are free besides `spare` parked ones."""
        free = self._parked_chunks - spare
        if chunks > free:
            size = self._chunk
            raise self._books.refuse(nbytes, chunks * size, free * size, free * size, tag)

    def _park(
        self, block: Block, seat: _Seat, first: int, last: int, after: Sequence[Reached]
    ) -> None:
        count = requested = 0
        for segment in self._cut(seat.home, first, last):
            if not segment.parked:
                segment.parked, segment.after = True, tuple(after)
                self._parked[segment] = seat.home
                self._room.vacate(segment.chunk, segment.hi - segment.lo)
                count += segment.hi - segment.lo
                lo, hi = segment.lo - seat.first, segment.hi - seat.first
                requested += _requested(block, lo * self._chunk, hi * self._chunk)
        self._parked_chunks += count
        self._move(block, -requested, -count)

    def _revive(self, segment: _Segment) -> None:
        segment.parked, segment.after = False, ()
        del self._parked[segment]
        self._parked_chunks -= segment.hi - segment.lo
        self._room.occupy(segment.chunk, segment.hi - segment.lo)

    def _move(self, block: Block, requested: int, chunks: int) -> None:
        granted = chunks * self._chunk
        block.granted_bytes += granted
        self._books.move(requested, granted, granted)

    def _cut(self, home: _Home, first: int, last: int) -> list[_Segment]:
        """The segments within [first, last), after cutting those that cross its borders."""
        for border in (first, last):
            for segment in home.within(border, border + 1):
                if segment.lo < border:
                    chunk = segment.chunk + border - segment.lo
                    right = _Segment(border, segment.hi, chunk, segment.parked, segment.after)
                    segment.hi = border
                    home.put(right)
                    if segment.parked:
                        self._parked[right] = home
        return home.within(first, last)

    def _take(self, count: int) -> list[Run]:
        """`count` free chunks in few runs, those off the plain first."""
        taken: list[Run] = []
        for on_plain in (False, True):
            while count:
                parked = [
                    s for s, home in self._parked.items() if (home is self._plain) == on_plain
                ]
                best = best_run(join_runs((s.chunk, s.hi - s.lo) for s in parked), count)
                if best is None:
                    break
                size = min(best[1], count)
                self._unhouse(best[0], size)
                taken.append((best[0], size))
                count -= size
        return taken

    # Mappings.

    def _unhouse(self, chunk: int, count: int) -> list[Run]:
        """Takes chunks away from where they are parked; returns those that were parked at all.

        Their old mappings have to go before they are used.
        """
        found: list[Run] = []
        for segment, home in list(self._parked.items()):
            shift = segment.lo - segment.chunk
            first = max(segment.chunk, chunk)
            last = min(segment.chunk + segment.hi - segment.lo, chunk + count)
            if first < last:
                (part,) = self._cut(home, first + shift, last + shift)
                found.append((first, last - first))
                self._changes.after += part.after
                self._revive(part)
                home.drop(part)
                self._note_stale(home, part.lo, part.hi)
        return found

    def _note_stale(self, home: _Home, lo: int, hi: int) -> None:
        """Notes a mapping that has to go."""
        stale = _Stale(home, [(lo, hi)])
        with self._lock:
            home.stale.append(stale)
        self._changes.stale.append(stale)
        self._books.counts["unmaps"] += 1

    def _fill(self, home: _Home, first: int, last: int) -> None:
        """Puts free chunks into the empty slots of [first, last)."""
        if home is self._plain:
            # Chunk n belongs on slot n: otherwise the plain would be shuffled ever more finely.
            for lo, hi in _gaps(home, first, last):
                for chunk, count in join_runs(self._unhouse(lo, hi - lo)):
                    self._settle(home, chunk, chunk, count)
        gaps = _gaps(home, first, last)
        runs = self._take(sum(hi - lo for lo, hi in gaps))[::-1]
        for slot, end in gaps:
            while slot < end:
                chunk, count = runs.pop()
                part = min(count, end - slot)
                if part < count:
                    runs.append((chunk + part, count - part))
                self._settle(home, slot, chunk, part)
                slot += part

    def _settle(self, home: _Home, slot: int, chunk: int, count: int) -> None:
        """Notes a mapping to be made. It replaces what is stale there, even if that comes late."""
        home.put(_Segment(slot, slot + count, chunk))
        self._changes.maps.append((home.address + slot * self._chunk, chunk, count))
        self._books.counts["maps"] += 1
        with self._lock:
            for stale in home.stale:
                stale.spans = _without(stale.spans, slot, slot + count)

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


def _requested(block: Block, lo: int, hi: int) -> int:
    return max(0, min(hi, block.requested_bytes) - lo)


def _without(spans: list[tuple[int, int]], lo: int, hi: int) -> list[tuple[int, int]]:
    """Ranges less [lo, hi)."""
    left = [(a, min(b, lo)) for a, b in spans if a < lo]
    right = [(max(a, hi), b) for a, b in spans if b > hi]
    return left + right


def _gaps(home: _Home, first: int, last: int) -> list[tuple[int, int]]:
    """The slots of [first, last) that nothing is mapped into."""
    gaps = []
    for segment in [*home.within(first, last), _Segment(last, last, 0)]:
        if first < segment.lo:
            gaps.append((first, segment.lo))
        first = segment.hi
    return gaps


def _join(home: _Home, segments: list[_Segment]) -> None:
    """Makes one of neighbours that are in a row physically too; all of them are held."""
    for left, right in reversed(list(pairwise(segments))):
        if left.hi == right.lo and left.chunk + left.hi - left.lo == right.chunk:
            home.drop(right)
            left.hi = right.hi


def _lo(segment: _Segment) -> int:
    return segment.lo
