"""Our allocators for Numba's own device arrays: an external memory management plug-in.

It implements Numba's plug-in interface (version 1) with the memory of an ooctrain allocator, within
a budget. Numba gives no streams when it allocates, so a `DeferredFree` stands between it and the
allocator. Training, which passes raw addresses to kernels, does not need this file.

    NUMBA_CUDA_MEMORY_MANAGER=ooctrain.alloc.numba_plugin python my_script.py

with OOCTRAIN_NUMBA_ALLOCATOR (default "va:chunk=2MiB") and OOCTRAIN_NUMBA_BUDGET ("4GiB"; default:
three quarters of the free memory); or in Python `cuda.set_memory_manager(memory_manager("best-fit",
"4GiB"))`. Bypassed, by Numba's design: host arrays passed to kernels (numba-cuda takes their copies
from elsewhere), modules, the context. Source: numba-cuda, "External Memory Management (EMM) Plugin
interface"; RMM's plug-in. Read next: `wrappers.py` (`ThreadSafe`), for the same care with
finalizers.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from ooctrain.alloc.base import Allocator, Block
from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.cuda.driver import open_cuda_driver
from ooctrain.devices.cuda.driver_memory import DriverMemory
from ooctrain.devices.driver_calls import VmmDriver
from ooctrain.devices.probe import probe
from ooctrain.errors import DriverError, InvalidFree, OutOfDeviceMemory
from ooctrain.units import parse_bytes

DEFAULT_ALLOCATOR = "va:chunk=2MiB"
_QUARTERS_OF_FREE = 3  # how much of the free memory is taken without a budget
INTERFACE_VERSION = 1


def __getattr__(name: str) -> Any:
    # Numba looks for this name in the module; made on first use, since it needs Numba.
    if name == "_numba_memory_manager":
        return _from_environment()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _from_environment() -> type:
    allocator = os.environ.get("OOCTRAIN_NUMBA_ALLOCATOR", DEFAULT_ALLOCATOR)
    return memory_manager(allocator, os.environ.get("OOCTRAIN_NUMBA_BUDGET"))


class Store:
    """The driver, the budget and the blocks of one device, opened when they are first needed.

    Args:
        allocator: its name, with parameters.
        budget: bytes or a text such as "4GiB"; None: three quarters of what is free then.
        open_driver: opens a device by its number.
        ordinal: which device.
    """

    def __init__(
        self, allocator: str, budget: int | str | None,
        open_driver: Callable[[int], VmmDriver], ordinal: int,
    ):  # fmt: skip
        self._allocator, self._budget = allocator, budget
        self._open_driver, self._ordinal = open_driver, ordinal
        self._memory: DriverMemory | None = None
        self._blocks: DeferredFree | None = None
        self.budget_bytes = 0

    def open(self) -> DeferredFree:
        """What gives out addresses, made on first use.

        Raises:
            VmmUnavailable, ConfigError, DriverError: no memory is available, and why.
        """
        if self._blocks is None:
            driver = self._open_driver(self._ordinal)
            probe(driver)
            size = self._size(driver)
            choice = choose_allocator(self._allocator, size, probe=lambda: "")
            piece = choice.granule.size_bytes if choice.granule.ranges else None
            self._memory = DriverMemory(driver, size, piece)
            allocator = choice.make(self._memory)
            self.budget_bytes = allocator.budget_bytes
            self._blocks = DeferredFree(driver, allocator)
        return self._blocks

    def close(self) -> None:
        """Gives everything back; addresses given out are dead."""
        if self._blocks is not None:
            self._blocks.close()
        if self._memory is not None:
            self._memory.close()
        self._blocks = self._memory = None

    def give_back(self, address: int, blocks: DeferredFree) -> None:
        """Takes an address back, unless `close` came first: a finalizer may come late."""
        if blocks is self._blocks:
            blocks.give_back(address)

    def _size(self, driver: VmmDriver) -> int:
        if self._budget is not None:
            return parse_bytes(self._budget, what="OOCTRAIN_NUMBA_BUDGET")
        free_bytes, _ = driver.memory_info()
        return free_bytes // 4 * _QUARTERS_OF_FREE


def memory_manager(
    allocator: str = DEFAULT_ALLOCATOR,
    budget: int | str | None = None,
    open_driver: Callable[[int], VmmDriver] = open_cuda_driver,
) -> type:
    """The plug-in class, for `numba.cuda.set_memory_manager`.

    Args:
        allocator: name of one of `oc.allocators()`, with parameters.
        budget: bytes or a text such as "4GiB"; None: three quarters of what is free.
        open_driver: opens a device by its number.
    """
    # Not at the top: only this function needs Numba, and its CUDA target takes 0.3 s.
    from ooctrain.layers.kernels.cuda.runtime.shim import load_target

    cuda: Any = load_target()

    class OoctrainMemoryManager(cuda.HostOnlyCUDAMemoryManager):
        """Device memory from an ooctrain allocator; host memory as Numba does it."""

        interface_version = INTERFACE_VERSION

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            # Numba makes one with context None, only to ask for the interface's version.
            device = getattr(self.context, "device", None)
            self._store = Store(allocator, budget, open_driver, getattr(device, "id", 0))

        def initialize(self) -> None:
            """Called for each context, perhaps again and again."""
            self._store.open()

        def memalloc(self, size: int) -> Any:
            """Device memory, given back when its pointer is gone."""
            blocks, store = self._store.open(), self._store
            address = blocks.allocate(size, "numba array")

            def finalizer() -> None:
                store.give_back(address, blocks)

            context = weakref.proxy(self.context)
            pointer = ctypes.c_void_p(address)
            return cuda.MemoryPointer(context, pointer, size, finalizer=finalizer)

        def get_memory_info(self) -> Any:
            """What is left of the budget, and the budget."""
            free = self._store.open().free_bytes()
            return cuda.MemoryInfo(free=free, total=self._store.budget_bytes)

        def get_ipc_handle(self, memory: Any) -> Any:
            """Raises DriverError: CUDA has no such handles for memory that is mapped in chunks."""
            raise DriverError(
                "memory of an ooctrain allocator cannot be shared between processes",
                call="cuIpcGetMemHandle",
                fix="use Numba's own memory manager for such arrays",
            )

        def reset(self) -> None:
            """Frees everything; it may come before `initialize`."""
            super().reset()
            self._store.close()

        @contextmanager
        def defer_cleanup(self) -> Iterator[None]:
            """Within it nothing is freed, here or by Numba."""
            with super().defer_cleanup(), self._store.open().paused():
                yield

    return OoctrainMemoryManager


# Addresses in, addresses out, for callers that know neither lists nor streams. On a list a claim
# waits for all releases before it; here there is no such guarantee. So a block that is given back
# is kept until the work queued so far is over. An event on the default stream, which waits for
# blocking streams (Numba's own are; non-blocking ones are not covered), marks that point. Each
# claim queries the event, and waits for it only if memory is short. Giving back only appends to a
# queue, because it may happen at any point, in a finalizer too. Source: PyTorch's caching
# allocator, whose events these are.


DEFAULT_STREAM = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """Blocks given back before an event."""

    event: int
    blocks: Sequence[Block]


class DeferredFree:
    """Addresses over one allocator, freed once the work queued before is over.

    Args:
        driver: for events; current in every thread that requests memory.
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
