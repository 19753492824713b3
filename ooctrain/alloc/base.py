"""What an allocator is: it decides where in the arena each block lies, and keeps the books.

Sizes arrive in list order and become `Block`s with addresses. On a list every claim waits for all
releases listed before it, so an allocator needs no knowledge of streams or time: any free address
is safe, and a granted block can be used as soon as these waits are over. The one exception is a
*mapping* (virtual addressing), which may be undone only after its last user. So a free names the
events of the last uses (`after`), and the allocator waits for them before it unmaps. Blocks are
identified by increasing ids, never by address, since addresses are reused. In the books every byte
taken from the arena is granted, pending or cached, so fragmentation is a difference of two numbers,
and a wrong sum is detected. Sources: paper 000, section 4 and equations 1 and 2; the statistics of
PyTorch's and RMM's allocators; GMLake's ratio of peaks. Read next: `best_fit.py`, then
`virtual.py`.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ooctrain.alloc.arena_map import arena_text
from ooctrain.errors import ConfigError, InvalidFree, OutOfDeviceMemory
from ooctrain.units import MAX_BYTES, Granule, format_bytes

_TOP_HOLDERS = 5


class Event(Protocol):
    """The point at which the last use of something is over."""

    def wait(self) -> None:
        """Blocks until then."""


def is_over(event: Event) -> bool:
    """Whether an event is known to be reached, by its `done()`; without one it never is."""
    done = getattr(event, "done", None)
    return done is not None and done()


@dataclass(slots=True, eq=False)
class Block:
    """A live piece of the arena, or of an address range.

    Args:
        id: increasing, never used again.
        address: where its first byte is.
        requested_bytes: what was asked for.
        granted_bytes: what it holds of the budget now (with ranges: its mapped chunks).
        tag: name of its content, for messages.
    """

    id: int
    address: int
    requested_bytes: int
    granted_bytes: int
    tag: str


@dataclass(frozen=True, slots=True)
class Stats:
    """The books. V = A + W + C at all times: reserved = granted + pending + cached.

    Args:
        requested_bytes: R, what the live blocks asked for (with ranges: what is mapped of it).
        granted_bytes: A, what they hold.
        pending_bytes: W, freed, but not available yet, as its last uses may not be over. 0
            where free memory can be claimed at once: a list allows it (`docs/schedule.md`).
        cached_bytes: C, free, but in holes between blocks: what external fragmentation costs.
            Always 0 where any free chunk serves any request.
        reserved_bytes: V, what of the budget is in use or held up.
        peak_requested_bytes, peak_granted_bytes, peak_pending_bytes, peak_cached_bytes,
            peak_reserved_bytes: their largest values, kept at every event, not sampled.
        free_bytes: part of the budget that is neither granted nor pending.
        largest_bytes: the largest request that would be served now.
        allocations, frees: blocks given out and taken back.
        creates: physical pieces asked of the driver.
        reservations: address ranges made.
        maps, unmaps, set_access: changes of mappings asked of the driver.
        reuses: claims that needed no change of a mapping, though mappings exist.
        failures: requests refused.
        host_waits, waited_ns: how often, and how long, the breaking of mappings waited for last
            uses.
        mapped_bytes: seen through all address ranges, the same memory through several of them
            counted each time.
    """

    requested_bytes: int = 0
    granted_bytes: int = 0
    pending_bytes: int = 0
    cached_bytes: int = 0
    reserved_bytes: int = 0
    peak_requested_bytes: int = 0
    peak_granted_bytes: int = 0
    peak_pending_bytes: int = 0
    peak_cached_bytes: int = 0
    peak_reserved_bytes: int = 0
    free_bytes: int = 0
    largest_bytes: int = 0
    allocations: int = 0
    frees: int = 0
    creates: int = 0
    reservations: int = 0
    maps: int = 0
    unmaps: int = 0
    set_access: int = 0
    reuses: int = 0
    failures: int = 0
    host_waits: int = 0
    waited_ns: int = 0
    mapped_bytes: int = 0

    @property
    def internal_bytes(self) -> int:
        """Internal fragmentation: granted beyond what was asked for (paper 000, equation 2)."""
        return self.granted_bytes - self.requested_bytes

    @property
    def external_bytes(self) -> int:
        """External fragmentation: what is free beyond the largest request that would be served."""
        return self.free_bytes - self.largest_bytes

    @property
    def external_ratio(self) -> float:
        """The share of the free memory that no single request can have; 0 where nothing is free."""
        return self.external_bytes / self.free_bytes if self.free_bytes else 0.0

    @property
    def overhead(self) -> float:
        """What rounding and holes cost at most: peak reserved over peak requested, less one."""
        peak = self.peak_requested_bytes
        return self.peak_reserved_bytes / peak - 1 if peak else 0.0


@runtime_checkable
class Allocator(Protocol):
    """Whole blocks in an arena of `budget_bytes`."""

    name: str
    granule: Granule
    budget_bytes: int

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block of at least `nbytes`.

        Raises:
            ConfigError: `nbytes` is not a positive whole number below 2**62.
            OutOfDeviceMemory: no room; the state is as before.
        """

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Takes a block back.

        Args:
            block: from `allocate`, not freed yet.
            after: events of its last uses. Only the breaking of mappings waits for them.

        Raises:
            InvalidFree: freed already, of another allocator, or the allocator is closed.
        """

    def stats(self) -> Stats:
        """The books as they stand."""

    def check(self) -> None:
        """Walks every invariant. Raises AssertionError. Time O(blocks)."""

    def snapshot(self) -> dict[str, Any]:
        """The layout as plain data, in a fixed order."""

    def close(self) -> list[Block]:
        """Gives everything back; returns the blocks that were still live, by id."""


@runtime_checkable
class RangedAllocator(Allocator, Protocol):
    """An allocator whose blocks can be held in parts (`granule.ranges` is True).

    Bounds of ranges are multiples of the granule, or the block's end. Parts come and go of blocks
    made by `reserve`; a block of `allocate` is whole until it is freed.
    """

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """A block that holds an address range and nothing of the budget yet."""

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Claims bytes [lo, hi) of a block.

        Raises:
            OutOfDeviceMemory: not enough free chunks; the state is as before.
            InvalidFree: the block is not live here.
            ConfigError: a bound is not a multiple of the granule, a part is held already, or the
                block is one of `allocate`.
        """

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Event] = ()) -> None:
        """Gives bytes [lo, hi) back; the block and its address stay."""


# The base of all wrappers, which add one more promise to an allocator (`wrappers.py`).


class Wrapper:
    """An allocator around an allocator that passes every call on; a subclass says what happens
    around a call, or overrides it.

    It always has the methods for ranges; whether they work is given by the inner allocator's
    `granule.ranges`, which planners check in any case.

    Args:
        inner: the allocator that does it.
    """

    def __init__(self, inner: Allocator):
        self.inner = inner
        self.name, self.budget_bytes = inner.name, inner.budget_bytes
        self.granule: Granule = inner.granule

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        with self._around("allocate"):
            return self.inner.allocate(nbytes, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        with self._around("free"):
            self.inner.free(block, after)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """An address range of the inner allocator. Raises ConfigError: it has none."""
        with self._around("reserve"):
            return self._ranged().reserve(nbytes, tag)

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Claims a range of the inner allocator. Raises ConfigError: it has none."""
        with self._around("map_range"):
            self._ranged().map_range(block, lo, hi)

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Event] = ()) -> None:
        """Gives a range back. Raises ConfigError: the inner allocator has none."""
        with self._around("unmap_range"):
            self._ranged().unmap_range(block, lo, hi, after)

    def stats(self) -> Stats:
        with self._around("stats"):
            return self.inner.stats()

    def check(self) -> None:
        with self._around("check"):
            self.inner.check()

    def snapshot(self) -> dict[str, Any]:
        with self._around("snapshot"):
            return self.inner.snapshot()

    def close(self) -> list[Block]:
        with self._around("close"):
            return self.inner.close()

    def _around(self, method: str) -> AbstractContextManager[None]:
        """What happens before and after each call; here nothing."""
        return nullcontext()

    def _ranged(self) -> RangedAllocator:
        if not self.granule.ranges or not isinstance(self.inner, RangedAllocator):
            raise ConfigError(
                f"allocator {self.name} has no ranges",
                code="OOC-108",
                fix="va, which has; or a planner that moves whole tensors",
            )
        return self.inner


def innermost(allocator: Allocator) -> Any:
    """The allocator itself or, under wrappers, the one inside."""
    inner: Any = allocator
    while hasattr(inner, "inner"):
        inner = inner.inner
    return inner


# The books


class Books:
    """Live blocks and statistics of one allocator: what every allocator does alike.

    Args:
        name: name of the allocator, for messages.
        budget_bytes: size of its arena.
    """

    def __init__(self, name: str, budget_bytes: int):
        self.name, self.budget_bytes = name, budget_bytes
        self.live: dict[int, Block] = {}
        self.requested = self.granted = self.pending = self.reserved = 0
        self.peaks = [0, 0, 0, 0, 0]  # of requested, granted, pending, cached, reserved
        self.counts: Counter[str] = Counter()
        self.closed = False
        self._ids = itertools.count(1)

    def open(self, address: int, requested_bytes: int, granted_bytes: int, tag: str) -> Block:
        """A new live block, counted."""
        block = Block(next(self._ids), address, requested_bytes, granted_bytes, tag)
        self.live[block.id] = block
        self.counts["allocations"] += 1
        return block

    def retire(self, block: Block) -> None:
        """Takes a block off the list of live ones.

        Raises:
            InvalidFree: freed already, foreign, or the allocator is closed.
        """
        self.expect_live(block)
        del self.live[block.id]
        self.counts["frees"] += 1

    def expect_live(self, block: Block) -> None:
        """Raises InvalidFree unless the block is live and ours."""
        if self.closed:
            raise InvalidFree(
                f"{self.name} is closed", where=getattr(block, "tag", ""), fix="ask before close()"
            )
        if not isinstance(block, Block) or self.live.get(block.id) is not block:
            raise InvalidFree(
                f"block {getattr(block, 'id', block)!r} is not live in this {self.name} allocator",
                where=getattr(block, "tag", ""),
                fix="it was freed before, or another allocator made it",
            )

    def checked_size(self, nbytes: int) -> int:
        """A request as a positive int. Raises ConfigError or InvalidFree (after close)."""
        if self.closed:
            raise InvalidFree(f"{self.name} is closed", fix="ask before close()")
        size = size_of(nbytes)
        if not size:
            raise ConfigError(
                f"{self.name} cannot allocate {nbytes!r} bytes",
                code="OOC-102",
                fix="sizes are positive whole numbers of bytes below 2**62",
            )
        return size

    def move(self, requested: int, granted: int, reserved: int, pending: int = 0) -> None:
        """Adds to the current values and raises the peaks."""
        self.requested += requested
        self.granted += granted
        self.pending += pending
        self.reserved += reserved
        cached = self.reserved - self.granted - self.pending
        now = (self.requested, self.granted, self.pending, cached, self.reserved)
        for place, value in enumerate(now):
            if value > self.peaks[place]:
                self.peaks[place] = value

    def stats(self, largest_bytes: int | None = None) -> Stats:
        """The statistics so far.

        Args:
            largest_bytes: most that one request can have now; None: all that is free.
        """
        free = self.budget_bytes - self.granted - self.pending
        requested, granted, pending, cached, reserved = self.peaks
        return Stats(
            requested_bytes=self.requested,
            granted_bytes=self.granted,
            pending_bytes=self.pending,
            cached_bytes=self.reserved - self.granted - self.pending,
            reserved_bytes=self.reserved,
            peak_requested_bytes=requested,
            peak_granted_bytes=granted,
            peak_pending_bytes=pending,
            peak_cached_bytes=cached,
            peak_reserved_bytes=reserved,
            free_bytes=free,
            largest_bytes=free if largest_bytes is None else largest_bytes,
            **self.counts,
        )

    def check(self, cached_bytes: int) -> None:
        """The sums agree with the live blocks, and V = A + W + C.

        Args:
            cached_bytes: as the allocator finds it by walking its holes.
        """
        assert self.granted == sum(b.granted_bytes for b in self.live.values()), "A is not the sum"
        assert self.reserved == self.granted + self.pending + cached_bytes, "V is not A + W + C"
        assert min(self.requested, self.pending, cached_bytes) >= 0, "less than nothing"
        assert self.reserved <= self.budget_bytes, "V is more than the budget"
        now = (self.requested, self.granted, self.pending, cached_bytes, self.reserved)
        assert all(a <= b for a, b in zip(now, self.peaks, strict=True)), "a peak is too low"

    def refuse(
        self, nbytes: int, granted: int, free: int, largest: int, tag: str,
        snapshot: Mapping[str, Any] | None = None,
    ) -> OutOfDeviceMemory:  # fmt: skip
        """Counts a refusal and returns the error that says why.

        Args:
            nbytes, granted: as asked for, and rounded.
            free, largest: what is free in all, and the largest request that would be served.
            snapshot: the allocator's, for the map of the arena.
        """
        self.counts["failures"] += 1
        full = free < granted
        why = "the arena is full" if full else "the free memory lies in pieces (fragmentation)"
        # Behind the highest block there is always one piece; without places, all is one piece.
        top = snapshot["top"] if snapshot and "top" in snapshot else self.granted + self.pending
        enough = max(top + granted, self.budget_bytes + 1)
        fix = f"{format_bytes(largest)} would fit now; this fits a --budget of {enough} B"
        return OutOfDeviceMemory(
            f"cannot allocate {format_bytes(nbytes)}: {why}",
            where=f"{tag or 'a block'}, allocator {self.name}",
            numbers=f"asked {granted} B granted, free {free} B, largest hole {largest} B, budget "
            f"{self.budget_bytes} B, lost to rounding {self.granted - self.requested} B"
            + ("" if snapshot else f"; largest holders: {self._holders() or 'none'}"),
            fix=fix if full else f"{fix}, or use --allocator va, which does not fragment",
            granted_bytes=granted, free_bytes=free, largest_bytes=largest,
            budget_bytes=self.budget_bytes, enough_bytes=enough,
            arena=arena_text(snapshot) if snapshot else "",
        )  # fmt: skip

    def _holders(self) -> str:
        """The live blocks that hold most, for messages."""
        largest = sorted(self.live.values(), key=lambda b: (-b.granted_bytes, b.id))
        return ", ".join(
            f"{b.tag or b.id} {format_bytes(b.granted_bytes)}" for b in largest[:_TOP_HOLDERS]
        )

    def layout(self, **place: int) -> dict[str, Any]:
        """What every snapshot begins with; `place` is where the arena lies, or its chunk's size."""
        blocks = describe(self.live.values())
        return {"allocator": self.name, "budget": self.budget_bytes, **place, "blocks": blocks}

    def close(self) -> list[Block]:
        """Marks the allocator closed; returns the blocks still live."""
        leaked = [self.live[key] for key in sorted(self.live)]
        self.live.clear()
        self.closed = True
        return leaked


def size_of(nbytes: object) -> int:
    """A request as an int; 0 for what is not a size: not whole, not positive, 2**62 or more."""
    try:
        size = operator.index(nbytes)  # type: ignore[arg-type]
    except TypeError:
        return 0
    return size if not isinstance(nbytes, bool) and 0 < size < MAX_BYTES else 0


def describe(blocks: Iterable[Block]) -> list[Mapping[str, Any]]:
    """Blocks as plain data, by id."""
    return [
        {"id": b.id, "address": b.address, "requested": b.requested_bytes,
         "granted": b.granted_bytes, "tag": b.tag}
        for b in sorted(blocks, key=lambda b: b.id)
    ]  # fmt: skip
