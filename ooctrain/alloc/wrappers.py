"""Wrappers: one more promise around any allocator.

A wrapper does what its inner allocator does, and also limits it, counts it, logs it, poisons, fails
on purpose, serves threads, or checks it. Each wrapper is one concern, so wrappers nest in any
order: `Limited(Logged(BestFit(memory)), 1 << 20)`; the base allocators stay free of all this.

On the command line your own combination is a function in a file: `--allocator mine.py:make`, where
`make(memory)` returns the outermost wrapper. Source: RMM's adaptors, which compose like this. Read
next: `alloc/log.py` (`Recorder`, here `Logged`).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from ooctrain.alloc.base import Allocator, Block, Event, Stats, Wrapper, size_of
from ooctrain.alloc.log import Recorder as Logged
from ooctrain.errors import ConfigError, OutOfDeviceMemory, PlanMismatch
from ooctrain.units import format_bytes

__all__ = ["Checked", "Counted", "FailAt", "Limited", "Logged", "Poisoned", "ThreadSafe", "Wrapper"]
FRESH, FREED = 0xFF, 0x7F
REQUESTS = ("allocate", "free", "reserve", "map_range", "unmap_range")


class Limited(Wrapper):
    """Grants at most `limit_bytes` at a time, however large the arena is.

    Holes that the inner allocator leaves are its arena's, not the limit's: they count as held up
    up to the limit only.

    Args:
        inner: the allocator that serves the requests.
        limit_bytes: for all that is granted or pending.

    Raises:
        ConfigError: a limit below 1.
    """

    def __init__(self, inner: Allocator, limit_bytes: int):
        super().__init__(inner)
        if limit_bytes < 1:
            raise ConfigError(
                f"a limit of {limit_bytes!r} bytes allows nothing",
                code="OOC-102",
                fix="a limit of 1 byte or more",
            )
        size = inner.granule.size_bytes
        self.budget_bytes = min(inner.budget_bytes, limit_bytes // size * size)

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """Raises OutOfDeviceMemory beyond the limit."""
        self._expect_room(nbytes, tag)
        return self.inner.allocate(nbytes, tag)

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Raises OutOfDeviceMemory beyond the limit."""
        self._expect_room(hi - lo, block.tag)
        super().map_range(block, lo, hi)

    def stats(self) -> Stats:
        """The inner allocator's, up to the limit."""
        stats, limit = self.inner.stats(), self.budget_bytes
        held = stats.granted_bytes + stats.pending_bytes
        free = min(stats.free_bytes, limit - held)
        cached = min(stats.cached_bytes, limit - held)
        return replace(
            stats, cached_bytes=cached, reserved_bytes=held + cached,
            peak_cached_bytes=min(stats.peak_cached_bytes, limit),
            peak_reserved_bytes=min(stats.peak_reserved_bytes, limit),
            free_bytes=free, largest_bytes=min(stats.largest_bytes, free),
        )  # fmt: skip

    def _expect_room(self, nbytes: int, tag: str) -> None:
        stats = self.inner.stats()
        size, held = size_of(nbytes), stats.granted_bytes + stats.pending_bytes
        # What is not a size at all is for the inner allocator to refuse.
        if size and held + self.granule.granted(size) > self.budget_bytes:
            raise self._beyond(nbytes, tag)

    def _beyond(self, nbytes: int, tag: str) -> OutOfDeviceMemory:
        stats = self.inner.stats()
        return OutOfDeviceMemory(
            f"{format_bytes(nbytes)} more are over the limit of {format_bytes(self.budget_bytes)}",
            where=f"{tag or 'a block'}, allocator {self.name}",
            numbers=f"granted {stats.granted_bytes} B, reserved {stats.reserved_bytes} B, limit "
            f"{self.budget_bytes} B",
            fix="a larger limit, or free something first",
        )


class Counted(Wrapper):
    """Counts requests and measures the time that the inner allocator takes.

    Attributes:
        calls: {method: how often it was called}.
        spent_ns: {method: time within it}.
        bytes_by_tag: {tag: bytes granted on request in all: of blocks of `allocate`, and of ranges
            mapped into blocks of `reserve`}.
    """

    def __init__(self, inner: Allocator):
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.spent_ns: Counter[str] = Counter()
        self.bytes_by_tag: Counter[str] = Counter()

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """Counted, also if it is refused."""
        block = super().allocate(nbytes, tag)
        self.bytes_by_tag[tag] += nbytes
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Counted, also if it is refused."""
        super().map_range(block, lo, hi)
        self.bytes_by_tag[block.tag] += hi - lo

    @contextmanager
    def _around(self, method: str) -> Iterator[None]:
        begin_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            if method in REQUESTS:
                self.calls[method] += 1
                self.spent_ns[method] += time.perf_counter_ns() - begin_ns


class Fillable(Protocol):
    """Memory that can be filled: a device (`devices.interface.Device`), or a test's own."""

    def fill(self, address: int, size_bytes: int, value: int) -> None:
        """Sets every byte."""


class Poisoned(Wrapper):
    """Fills what is given out with NaN and what is given back with a large number.

    Reading before the first write, or after the free, gives a result that shows it: 0xFF is NaN in
    every float type; 0x7F is 3.4e38 in float32, for what max() and ReLU would swallow as NaN. It
    fills at once, not on a stream: for use without streams; `Debug(poison=...)` is the same for
    training.

    Args:
        inner: the allocator that serves the requests.
        memory: the memory of its addresses.
    """

    def __init__(self, inner: Allocator, memory: Fillable):
        super().__init__(inner)
        self._memory = memory
        self._whole: dict[int, Block] = {}

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """Filled with `FRESH`."""
        block = self.inner.allocate(nbytes, tag)
        self._memory.fill(block.address, block.requested_bytes, FRESH)
        self._whole[block.id] = block
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Filled with `FRESH`."""
        super().map_range(block, lo, hi)
        self._memory.fill(block.address + lo, hi - lo, FRESH)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Filled with `FREED` behind its last uses; blocks of parts are not."""
        if self._whole.get(block.id) is block:
            for event in after:
                event.wait()
            self._memory.fill(block.address, block.requested_bytes, FREED)
        self.inner.free(block, after)
        self._whole.pop(block.id, None)


class FailAt(Wrapper):
    """Refuses the n-th claim, once, as if memory were short: the caller must survive it.

    Args:
        inner: the allocator that serves the requests.
        claim: number of the claim that fails, from 0; claims are allocate, reserve and map_range.

    Attributes:
        claims: number made so far.
    """

    def __init__(self, inner: Allocator, claim: int):
        super().__init__(inner)
        self.claim, self.claims = claim, 0

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """Raises OutOfDeviceMemory if it is its turn."""
        self._count(tag)
        return self.inner.allocate(nbytes, tag)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """Raises OutOfDeviceMemory if it is its turn."""
        self._count(tag)
        return super().reserve(nbytes, tag)

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Raises OutOfDeviceMemory if it is its turn."""
        self._count(block.tag)
        super().map_range(block, lo, hi)

    def _count(self, tag: str) -> None:
        self.claims += 1
        if self.claims == self.claim + 1:
            raise OutOfDeviceMemory(
                f"claim {self.claim} fails on purpose",
                where=f"{tag or 'a block'}, FailAt",
                fix="this is FailAt, a test of what happens then",
            )


# Checked. An allocator, often a user's own, that gives one address to two blocks trains to wrong
# numbers without any error. A sorted list of the live blocks is enough to detect it. The replay
# before the first step goes through this wrapper, so no training begins on such an allocator.


#: Kernels use vector instructions on whole cache lines.
ALIGN_BYTES = 64


class Checked(Wrapper):
    """Names blocks that overlap, are not aligned, or hold less than was asked for.

    Attributes:
        highest_end: behind the last byte of all blocks that were handed out whole.
    """

    def __init__(self, inner: Allocator):
        super().__init__(inner)
        self._places: list[tuple[int, int]] = []  # (address, end) of the live blocks
        self._tags: dict[int, str] = {}  # by address
        self.highest_end = 0

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """Raises PlanMismatch: the block cannot be used."""
        return self._look_at(self.inner.allocate(nbytes, tag), nbytes, tag, held=True)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """Raises PlanMismatch: the range cannot be used."""
        return self._look_at(super().reserve(nbytes, tag), nbytes, tag, held=False)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Gives it back."""
        self.inner.free(block, after)
        place = bisect_left(self._places, (block.address, 0))
        del self._places[place], self._tags[block.address]

    def _look_at(self, block: Block, nbytes: int, tag: str, held: bool) -> Block:
        if not isinstance(block, Block):
            raise self._wrong(tag, f"it is {block!r}")
        granted = self.granule.granted(nbytes)
        lo, hi = block.address, block.address + nbytes
        if lo <= 0 or lo % ALIGN_BYTES:
            raise self._wrong(tag, f"its address {lo} is not a positive multiple of {ALIGN_BYTES}")
        if block.requested_bytes != nbytes or (held and block.granted_bytes != granted):
            raise self._wrong(
                tag, f"{nbytes} B were asked for, {granted} B with rounding; it says "
                f"{block.requested_bytes} B and {block.granted_bytes} B",
            )  # fmt: skip
        place = bisect_left(self._places, (lo, 0))
        for start, end in self._places[max(0, place - 1) : place + 1]:
            if start < hi and lo < end:
                raise self._wrong(tag, f"it lies on {self._tags[start]!r}, which is live")
        self._places.insert(place, (lo, hi))
        if held:
            self.highest_end = max(self.highest_end, lo + granted)
        self._tags[lo] = tag
        return block

    def _wrong(self, tag: str, why: str) -> PlanMismatch:
        return PlanMismatch(
            f"allocator {self.name} hands out a block that cannot be used: {why}",
            code="OOC-132", where=tag or "a block",
            fix="oc.testing.check_allocator finds the shortest list of requests that shows it",
        )  # fmt: skip


# ThreadSafe. Python may run a finalizer anywhere, also while its own thread is inside the
# allocator; neither waiting for the lock nor entering a second time is correct then. Source: cupy
# issue 317 and its like (a free from the garbage collector while the lock is held).


class ThreadSafe(Wrapper):
    """Serves several threads, and frees that come from finalizers.

    One thread at a time is inside. A finalizer may run anywhere, also while its own thread is
    inside the allocator: such a free is put off, not lost, and made at the beginning of the next
    call (which, if that free was invalid, raises its InvalidFree and does nothing).
    """

    def __init__(self, inner: Allocator):
        super().__init__(inner)
        self._lock = threading.RLock()
        self._inside = 0
        self._deferred: deque[tuple[Block, Sequence[Event]]] = deque()

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Put off if this very thread is inside already."""
        with self._lock:
            if self._inside:
                self._deferred.append((block, after))
                return
        with self._around("free"):
            self.inner.free(block, after)

    @contextmanager
    def _around(self, method: str) -> Iterator[None]:
        """Behind the lock."""
        with self._lock:
            self._inside += 1
            try:
                while self._deferred and self._inside == 1:
                    self.inner.free(*self._deferred.popleft())
                yield
            finally:
                self._inside -= 1
