"""Blocks for callers that know neither lists nor streams: addresses in, addresses out.

On a list a claim waits for all releases before it; here there is no such guarantee. So a block that
is given back is kept until the work queued so far is over. An event on the default stream, which
waits for blocking streams (Numba's own are; non-blocking ones are not covered), marks that point.
Each claim queries the event, and waits for it only if memory is short. Giving back only appends to
a queue, because it may happen at any point, in a finalizer too. Source: PyTorch's caching
allocator, whose events these are. Read next: `numba_plugin.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ooctrain.alloc.base import Allocator, Block
from ooctrain.devices.driver_calls import VmmDriver
from ooctrain.errors import InvalidFree, OutOfDeviceMemory

DEFAULT_STREAM = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """Blocks given back before an event."""

    event: int
    blocks: Sequence[Block]


class DeferredFree:
    """Addresses over one allocator, freed once the work queued before is over.

    Args:
        driver: for events; current in every thread that asks for memory.
        allocator: over that driver's memory.
    """

    def __init__(self, driver: VmmDriver, allocator: Allocator):
        self._driver, self._allocator = driver, allocator
        self._lock = threading.RLock()
        self._live: dict[int, Block] = {}  # by address
        self._returned: deque[int] = deque()  # addresses, as they come
        self._pending: deque[_Batch] = deque()
        self._paused = 0

    def allocate(self, nbytes: int, tag: str = "") -> int:
        """The address of at least `nbytes`. Waits for earlier work only if memory is short.

        Raises:
            ConfigError: not a size.
            OutOfDeviceMemory: no room, whatever is waited for.
        """
        with self._lock:
            self._recycle(wait=False)
            try:
                block = self._allocator.allocate(nbytes, tag)
            except OutOfDeviceMemory:
                if not self._recycle(wait=True):
                    raise
                block = self._allocator.allocate(nbytes, tag)
            self._live[block.address] = block
            return block.address

    def give_back(self, address: int) -> None:
        """Takes an address back, at the next claim. Never waits, locks or calls the driver."""
        self._returned.append(address)

    def free_bytes(self) -> int:
        """What can be had at most, once the work queued so far is over."""
        with self._lock:
            self._recycle(wait=False)
            waiting = sum(b.granted_bytes for batch in self._pending for b in batch.blocks)
            return self._allocator.stats().free_bytes + waiting

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it nothing is recycled."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def close(self) -> list[Block]:
        """Waits for everything and closes the allocator; returns the blocks still live."""
        with self._lock:
            self._paused = 0
            self._recycle(wait=True)
            self._live.clear()
            return self._allocator.close()

    def _recycle(self, *, wait: bool) -> int:
        """Frees what is not in use any more; returns how many blocks."""
        if self._paused:
            return 0
        self._mark_returned()
        freed = 0
        while self._pending and (wait or self._driver.event_done(self._pending[0].event)):
            batch = self._pending.popleft()
            self._driver.synchronize_event(batch.event)
            self._driver.destroy_event(batch.event)
            for block in batch.blocks:
                self._allocator.free(block)
            freed += len(batch.blocks)
        return freed

    def _mark_returned(self) -> None:
        """Notes which work has to be over before what was given back is used again.

        Raises:
            InvalidFree: an address that is not live; the others are noted all the same.
        """
        blocks, unknown = [], []
        while self._returned:
            address = self._returned.popleft()
            if address in self._live:
                blocks.append(self._live.pop(address))
            else:
                unknown.append(address)
        if blocks:
            event = self._driver.create_event()
            self._driver.record_event(event, DEFAULT_STREAM)
            self._pending.append(_Batch(event, blocks))
        if unknown:
            raise InvalidFree(
                f"{unknown[0]:#x} is given back twice, or is not of this heap",
                fix="let Numba's arrays free themselves",
            )
