"""A GPU's driver in plain Python that enforces every rule of virtual memory management.

In: the calls of `VmmDriver`. Out: what CUDA would answer, or `Violation` where CUDA would go on
with wrong data, crash later, or is undefined. The one idea: a real driver forgives in testing and
breaks in production, so the fake never forgives: work is done as late as it may
(`fake_streams.py`), fresh memory is NaN, nothing may be mapped twice, and mappings go only when the
host has seen the last use done. Any call can be made to fail (`fail`). Sources: cuda.h's comments;
CUDA guide, virtual memory management. Read next: `driver_memory.py`, which runs the allocators over
it.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ooctrain.devices import driver_abi as abi
from ooctrain.devices.driver import failure
from ooctrain.devices.fake_pages import PageTable, Physical
from ooctrain.devices.fake_streams import Choose, FakeEvent, LazyStreams, Range, Work
from ooctrain.devices.host_vm import bytes_at
from ooctrain.errors import DriverError, OoctrainError

Placement = Literal["fresh", "adjacent"]
FRESH_BYTE = 0xFF  # NaN in every float type
_FIRST_ADDRESS = 1 << 44  # beyond 32 bits: a truncated address is a wrong one
#: The calls that obtain something: where a driver refuses in practice.
ACQUIRING = frozenset({
    "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemHostAlloc",
    "cuStreamCreate", "cuEventCreate",
})  # fmt: skip
#: Calls that need no current context.
_CONTEXT_FREE = frozenset({
    "cuCtxSetCurrent", "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree",
    "cuMemCreate", "cuMemRelease",
})  # fmt: skip


class Violation(OoctrainError, AssertionError):
    """Something that a GPU would not report, or only when it is too late."""

    default_code = DriverError.default_code


@dataclass(slots=True, eq=False)
class _Fault:
    """The call that is going to fail: how many of its kind pass before it."""

    after: int
    status: int
    calls: Collection[str]


class FakeDriver:
    """Strict stand-in for a GPU's driver (`VmmDriver`).

    Args:
        total_bytes: physical memory of the device.
        granularity_bytes: of sizes and addresses.
        choose: order of queued work: picks one of the streams that can go on.
        placement: "fresh": addresses are never given out again and hints never honoured;
            "adjacent": the lowest free address, and the hint where it is free.
        address_bytes: how much can be reserved.
    """

    name = "fake"

    def __init__(
        self, total_bytes: int, granularity_bytes: int = 2 << 20, choose: Choose = min,
        placement: Placement = "fresh", address_bytes: int = 1 << 47,
    ):  # fmt: skip
        self.total_bytes, self.granularity_bytes = total_bytes, granularity_bytes
        self.address_bytes, self.placement = address_bytes, placement
        self.used_bytes = 0
        self.calls: Counter[str] = Counter()
        self.queues = LazyStreams(choose)
        self.reservations: dict[int, int] = {}
        self._next_address, self._next_handle = _FIRST_ADDRESS, 0x1000
        self._physical: dict[int, Physical] = {}  # by handle
        self._pages = PageTable()
        self._host: dict[int, np.ndarray] = {}
        self._fault: _Fault | None = None
        self._sticky = abi.SUCCESS
        self._process, self._current = os.getpid(), {threading.get_ident()}

    # What tests ask and order.

    def fail(
        self, after: int, status: int = abi.OUT_OF_MEMORY, calls: Collection[str] = ACQUIRING
    ) -> None:
        """Lets the call after the next `after` of these calls fail once, without effect."""
        self._fault = _Fault(after, status, calls)

    def clear_fault(self) -> bool:
        """Takes back what `fail` ordered; whether it was still to come."""
        fault, self._fault = self._fault, None
        return fault is not None

    def step(self, stream: int | None = None) -> bool:
        """Runs one piece of queued work; False if none can go on."""
        return self.queues.step(stream)

    def drain(self) -> None:
        """Runs all queued work."""
        self.queues.run_until(lambda: not self.queues.pending())

    def launch(
        self, stream: int, uses: Sequence[Range], work: Callable[[], object], name: str = "kernel"
    ) -> None:
        """Queues a kernel: `work`, run after a check that each (address, bytes) is accessible."""
        self._enter("cuLaunchKernel")
        self._stream(stream)

        def run() -> None:
            for address, size in uses:
                self._reach(address, size, name)
            work()

        self.queues.streams[stream].append(Work(name, run, tuple(uses)))

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes, of what has been done so far."""
        return np.concatenate(list(self._pieces(address, size_bytes, "read")))

    def mappings(self) -> list[tuple[int, int, bool]]:
        """(address, bytes, whether it has access) of each mapping, ascending."""
        pages = self._pages
        return [(a, pages.size_at(a), a in pages.accessible) for a in pages.bases]

    def held(self) -> dict[str, int]:
        """What has not been given back: all zero when everything was."""
        return {
            "handles": sum(p.references for p in self._physical.values()),
            "bytes": self.used_bytes,
            "reservations": len(self.reservations),
            "mappings": len(self._pages.bases),
            "streams": len(self.queues.streams),
            "events": len(self.queues.events),
            "host": len(self._host),
        }

    # Device.

    def make_current(self) -> None:
        self._enter("cuCtxSetCurrent")
        self._current.add(threading.get_ident())

    def granularity(self) -> int:
        self._enter("cuMemGetAllocationGranularity")
        return self.granularity_bytes

    def memory_info(self) -> tuple[int, int]:
        self._enter("cuMemGetInfo_v2")
        return self.total_bytes - self.used_bytes, self.total_bytes

    def close(self) -> None:
        if not self._sticky:
            self._sticky = abi.DEINITIALIZED

    # Virtual memory.

    def reserve(self, size_bytes: int, hint: int = 0) -> int:
        call = "cuMemAddressReserve"
        self._enter(call)
        self._whole(call, size_bytes, hint)
        if sum(self.reservations.values()) + size_bytes > self.address_bytes:
            raise failure(call, abi.OUT_OF_MEMORY, detail="the address space is full")
        address = self._place(size_bytes, hint)
        self.reservations[address] = size_bytes
        return address

    def address_free(self, address: int, size_bytes: int) -> None:
        call = "cuMemAddressFree"
        self._enter(call)
        if self.reservations.get(address) != size_bytes:
            raise self._wrong(call, f"{_show(address, size_bytes)} is not what reserve returned")
        if self._pages.overlaps(address, size_bytes):
            raise self._wrong(call, f"something is mapped in {_show(address, size_bytes)}")
        del self.reservations[address]

    def create(self, size_bytes: int) -> int:
        call = "cuMemCreate"
        self._enter(call)
        self._whole(call, size_bytes)
        if self.used_bytes + size_bytes > self.total_bytes:
            raise failure(call, abi.OUT_OF_MEMORY, detail=f"{self.used_bytes} bytes are in use")
        self.used_bytes += size_bytes
        self._next_handle += 1
        data = np.full(size_bytes, FRESH_BYTE, np.uint8)
        self._physical[self._next_handle] = Physical(self._next_handle, 1, data)
        return self._next_handle

    def release(self, handle: int) -> None:
        self._enter("cuMemRelease")
        physical = self._physical.get(handle)
        if physical is None or not physical.references:
            raise Violation(f"release of handle {handle}, which has no reference left")
        physical.references -= 1
        self._collect(physical)

    def retain(self, address: int) -> int:
        """The handle of the mapping at an address, with one reference more."""
        call = "cuMemRetainAllocationHandle"
        self._enter(call)
        physical = self._pages.covering(address)
        if physical is None:
            raise self._wrong(call, f"{address:#x} is not mapped")
        physical.references += 1
        return physical.handle

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        call = "cuMemMap"
        self._enter(call)
        self._whole(call, size_bytes, address)
        physical = self._physical.get(handle)
        if physical is None or not physical.references:
            raise self._wrong(call, f"handle {handle} was released")
        if physical.data.size != size_bytes:
            raise self._wrong(call, f"{size_bytes} bytes are not the whole handle")
        if not self._reserved(address, size_bytes):
            raise self._wrong(call, f"{_show(address, size_bytes)} is not reserved")
        if self._pages.overlaps(address, size_bytes):
            raise self._wrong(call, f"{_show(address, size_bytes)} is mapped already")
        if physical.address is not None:
            raise Violation(f"handle {handle} would be mapped twice, at {physical.address:#x} too")
        self._pages.add(address, physical)

    def set_access(self, address: int, size_bytes: int) -> None:
        self._enter("cuMemSetAccess")
        self._pages.accessible |= set(self._tiles("cuMemSetAccess", address, size_bytes))

    def unmap(self, address: int, size_bytes: int) -> None:
        self._enter("cuMemUnmap")
        bases = self._tiles("cuMemUnmap", address, size_bytes)
        self._expect_unused(address, size_bytes, "unmap")
        for base in bases:
            self._collect(self._pages.remove(base))

    # Pinned host memory.

    def host_alloc(self, size_bytes: int) -> int:
        call = "cuMemHostAlloc"
        self._enter(call)
        if size_bytes <= 0:
            raise self._wrong(call, f"{size_bytes} bytes")
        data = np.full(size_bytes, FRESH_BYTE, np.uint8)
        self._host[data.ctypes.data] = data
        return data.ctypes.data

    def host_free(self, address: int) -> None:
        self._enter("cuMemFreeHost")
        if address not in self._host:
            raise self._wrong("cuMemFreeHost", f"{address:#x} is not pinned memory")
        self._expect_unused(address, self._host[address].size, "host_free")
        del self._host[address]

    # Streams and events.

    def create_stream(self) -> int:
        self._enter("cuStreamCreate")
        return self.queues.create_stream()

    def destroy_stream(self, stream: int) -> None:
        self._enter("cuStreamDestroy_v2")
        self._stream(stream)
        self.queues.destroy_stream(stream)

    def stream_done(self, stream: int) -> bool:
        self._enter("cuStreamQuery")
        return not self._stream(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._enter("cuStreamSynchronize")
        queue = self._stream(stream)
        self.queues.run_until(lambda: not queue)

    def create_event(self, timing: bool = False) -> int:
        self._enter("cuEventCreate")
        return self.queues.create_event(timing)

    def destroy_event(self, event: int) -> None:
        self._enter("cuEventDestroy_v2")
        self._event(event)
        self.queues.destroy_event(event)

    def record_event(self, event: int, stream: int) -> None:
        self._enter("cuEventRecord")
        self._stream(stream)
        self.queues.record(self._event(event), stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._enter("cuStreamWaitEvent")
        self._stream(stream)
        self.queues.wait(stream, self._event(event))

    def event_done(self, event: int) -> bool:
        self._enter("cuEventQuery")
        found = self._event(event)
        return found.reached >= found.records

    def synchronize_event(self, event: int) -> None:
        self._enter("cuEventSynchronize")
        found, number = self._event(event), self._event(event).records
        self.queues.run_until(lambda: found.reached >= number)

    def elapsed_us(self, start: int, end: int) -> float:
        """Pieces of work run between the two events."""
        call = "cuEventElapsedTime_v2"
        self._enter(call)
        first, last = self._event(start), self._event(end)
        for event in (first, last):
            if not (event.timing and event.records):
                raise failure(call, abi.INVALID_HANDLE, detail="no timing, or never recorded")
            if event.reached < event.records:
                raise failure(call, abi.NOT_READY)
        return float(last.at - first.at)

    # Copies.

    def copy_in(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            source, place = self._pinned(host, size_bytes), 0
            for piece in self._pieces(address, size_bytes, "copy_in"):
                piece[:] = source[place : place + piece.size]
                place += piece.size

        self._copy("cuMemcpyHtoDAsync_v2", "copy_in", address, host, size_bytes, stream, run)

    def copy_out(self, host: int, address: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            self._pinned(host, size_bytes)[:] = self.read(address, size_bytes)

        self._copy("cuMemcpyDtoHAsync_v2", "copy_out", address, host, size_bytes, stream, run)

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            for piece in self._pieces(address, size_bytes, "fill"):
                piece[:] = byte

        self._copy("cuMemsetD8Async", "fill", address, 0, size_bytes, stream, run)

    def _copy(
        self, call: str, name: str, address: int, host: int, size_bytes: int, stream: int,
        run: Callable[[], None],
    ) -> None:  # fmt: skip
        self._enter(call)
        queue = self._stream(stream)
        # CUDA looks at the addresses when the copy is queued; the fake again when it runs.
        if size_bytes <= 0 or self._pages.hole(address, size_bytes) is not None:
            raise self._wrong(call, f"{_show(address, size_bytes)} is not accessible")
        uses: tuple[Range, ...] = ((address, size_bytes),)
        if host:
            self._pinned(host, size_bytes)
            uses += ((host, size_bytes),)
        queue.append(Work(name, run, uses))

    # Rules.

    def _enter(self, call: str) -> None:
        """What every call begins with: sticky errors, the context, an injected failure."""
        self.calls[call] += 1
        if self._sticky:
            raise failure(call, self._sticky, detail="an earlier error; or the driver is closed")
        if os.getpid() != self._process:
            raise failure(call, abi.NOT_INITIALIZED, detail="this process is a fork")
        if call not in _CONTEXT_FREE and threading.get_ident() not in self._current:
            raise failure(call, abi.INVALID_CONTEXT, detail="make_current() was not called here")
        if self._fault is not None and call in self._fault.calls:
            self._fault.after -= 1
            if self._fault.after < 0:
                status, self._fault = self._fault.status, None
                raise failure(call, status, detail="injected")

    def _wrong(self, call: str, detail: str) -> DriverError:
        return failure(call, abi.INVALID_VALUE, detail=detail)

    def _whole(self, call: str, size_bytes: int, address: int = 0) -> None:
        if size_bytes <= 0 or size_bytes % self.granularity_bytes:
            raise self._wrong(call, f"{size_bytes} bytes are not whole granules")
        if address % self.granularity_bytes:
            raise self._wrong(call, f"{address:#x} is not aligned")

    def _stream(self, stream: int) -> deque[Work]:
        if stream not in self.queues.streams:
            raise failure("stream", abi.INVALID_HANDLE, detail=f"{stream} is no stream")
        return self.queues.streams[stream]

    def _event(self, event: int) -> FakeEvent:
        if event not in self.queues.events:
            raise failure("event", abi.INVALID_HANDLE, detail=f"{event} is no event")
        return self.queues.events[event]

    # Addresses.

    def _place(self, size_bytes: int, hint: int) -> int:
        if self.placement == "fresh":
            address = self._next_address
            self._next_address += size_bytes + self.granularity_bytes
            return address
        taken = sorted(self.reservations.items())
        if hint and all(hint + size_bytes <= a or a + n <= hint for a, n in taken):
            return hint
        address = _FIRST_ADDRESS
        for other, size in taken:
            if address + size_bytes <= other:
                break
            address = max(address, other + size)
        return address

    def _reserved(self, address: int, size_bytes: int) -> bool:
        ranges = self.reservations.items()
        return any(a <= address and address + size_bytes <= a + n for a, n in ranges)

    def _tiles(self, call: str, address: int, size_bytes: int) -> list[int]:
        try:
            return self._pages.tiles(address, size_bytes)
        except ValueError as error:
            raise self._wrong(call, str(error)) from error

    def _reach(self, address: int, size_bytes: int, what: str) -> None:
        """Raises Violation unless all of a range is accessible; from then on nothing works."""
        hole = self._pages.hole(address, size_bytes)
        if hole is not None:
            self._sticky = abi.ILLEGAL_ADDRESS
            raise Violation(f"{what} uses {hole:#x}, which is not mapped or has no access")

    def _pieces(self, address: int, size_bytes: int, what: str) -> Iterator[np.ndarray]:
        self._reach(address, size_bytes, what)
        return self._pages.pieces(address, size_bytes)

    def _pinned(self, host: int, size_bytes: int) -> np.ndarray:
        for address, data in self._host.items():
            if address <= host and host + size_bytes <= address + data.size:
                return bytes_at(host, size_bytes)
        # CUDA would copy through a hidden buffer and block the host.
        raise Violation(f"host memory {_show(host, size_bytes)} is not pinned")

    def _expect_unused(self, address: int, size_bytes: int, what: str) -> None:
        for work in self.queues.pending():
            if any(a < address + size_bytes and address < a + n for a, n in work.uses):
                raise Violation(
                    f"{what} of {_show(address, size_bytes)} while {work.name} is still to use it",
                    fix="wait on the host for the last use",
                )

    def _collect(self, physical: Physical) -> None:
        """Frees memory that is neither referenced nor mapped."""
        if not physical.references and physical.address is None:
            self.used_bytes -= physical.data.size
            del self._physical[physical.handle]


def _show(address: int, size_bytes: int) -> str:
    return f"[{address:#x}, +{size_bytes})"
