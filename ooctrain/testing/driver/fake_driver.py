"""A GPU's driver in plain Python that enforces every rule of virtual memory management.

It implements the calls of `VmmDriver` with CUDA's answers, and raises `Violation` where CUDA would
go on with wrong data, crash later, or is undefined. A real driver tolerates a mistake in testing
and fails in production, so the fake tolerates none: work is done as late as allowed
(`fake_streams.py`), fresh memory is NaN, no work may use two mappings of the same memory, and a
mapping may be removed only when the host has seen its last use complete. Any call can be made to
fail (`fail`). Sources: cuda.h's comments; CUDA guide, virtual memory management. Read next:
`fake_gate.py`, `fake_memory.py`, `fake_addresses.py`, `fake_stream_calls.py`; then
`devices/cuda/driver_memory.py`, which runs the allocators over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import failure
from ooctrain.errors import DriverError
from ooctrain.testing.driver.fake_addresses import Addresses, Placement
from ooctrain.testing.driver.fake_gate import ACQUIRING, Gate, Violation
from ooctrain.testing.driver.fake_memory import FRESH_BYTE, FakeMemory, show
from ooctrain.testing.driver.fake_pages import Physical
from ooctrain.testing.driver.fake_stream_calls import StreamCalls
from ooctrain.testing.driver.fake_streams import Choose, LazyStreams, Range

__all__ = ["ACQUIRING", "FRESH_BYTE", "FakeDriver", "Violation"]
_SYMBOLS = {"copy_in": "cuMemcpyHtoDAsync_v2", "copy_out": "cuMemcpyDtoHAsync_v2"}


class FakeDriver:
    """Strict stand-in for a GPU's driver (`VmmDriver`).

    Args:
        total_bytes: physical memory of the device.
        granularity_bytes: of sizes and addresses.
        choose: order of queued work: picks one of the streams that can go on.
        placement: of reservations, "fresh" or "adjacent" (`Addresses`).
        address_bytes: how much can be reserved.
        maps: whether it has virtual memory management.
    """

    name = "fake"
    parts = False
    version = 13000

    def __init__(
        self, total_bytes: int, granularity_bytes: int = 2 << 20, choose: Choose = min,
        placement: Placement = "fresh", address_bytes: int = 1 << 47, maps: bool = True,
    ):  # fmt: skip
        self.total_bytes, self.granularity_bytes = total_bytes, granularity_bytes
        self.maps = maps
        self.queues = LazyStreams(choose)
        self._gate = Gate()
        self._calls = StreamCalls(self.queues, self._gate)
        self._addresses = Addresses(placement, granularity_bytes, address_bytes)
        self._memory = FakeMemory(total_bytes, self._gate)
        self._pages = self._memory.pages
        self._allocated: set[int] = set()

    # What tests ask and order.

    def fail(
        self, after: int, status: int = abi.OUT_OF_MEMORY, calls: Collection[str] = ACQUIRING
    ) -> None:
        """Lets the call after the next `after` of these calls fail once, without effect."""
        self._gate.order_failure(after, status, calls)

    def clear_fault(self) -> bool:
        """Takes back what `fail` ordered; whether it was still to come."""
        return self._gate.clear_fault()

    @property
    def calls(self) -> Counter[str]:
        """How often each call was made."""
        return self._gate.calls

    @property
    def used_bytes(self) -> int:
        """Physical memory that is referenced or mapped."""
        return self._memory.used_bytes

    @property
    def reservations(self) -> dict[int, int]:
        """{address: bytes} of what is reserved."""
        return self._addresses.ranges

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
        self._gate.enter("cuLaunchKernel")
        self._calls.stream(stream)

        def run() -> None:
            for address, size in uses:
                self._memory.reach(address, size, name)
            self._memory.expect_one_address(uses, name)
            work()

        self.queues.put(stream, name, run, uses)

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes, of what has been done so far."""
        return self._memory.read(address, size_bytes)

    def write(self, address: int, data: np.ndarray) -> None:
        """Writes uint8 data to the device at once: what a kernel does when it runs."""
        self._memory.write(address, data)

    def handles_at(self, address: int, size_bytes: int) -> list[int]:
        """What physical memory is behind an accessible range: its handles, in order."""
        self._memory.reach(address, size_bytes, "handles_at")
        return [physical.handle for _, physical in self._pages.mapped(address, size_bytes)]

    def mappings(self) -> list[tuple[int, int, bool]]:
        """(address, bytes, whether it has access) of each mapping, ascending."""
        pages = self._pages
        return [(a, pages.size_at(a), a in pages.accessible) for a in pages.bases]

    def held(self) -> dict[str, int]:
        """What has not been given back: all zero when everything was."""
        return {
            "handles": sum(p.references for p in self._memory.physical.values()),
            "bytes": self.used_bytes,
            "reservations": len(self.reservations),
            "mappings": len(self._pages.bases),
            "streams": len(self.queues.streams),
            "events": len(self.queues.events),
            "host": len(self._memory.host),
        }

    # Device.

    def make_current(self) -> None:
        self._gate.enter("cuCtxSetCurrent")
        self._gate.make_current()

    def granularity(self) -> int:
        self._gate.enter("cuMemGetAllocationGranularity")
        return self.granularity_bytes

    def capability(self) -> tuple[int, int]:
        return (9, 0)

    def memory_info(self) -> tuple[int, int]:
        self._gate.enter("cuMemGetInfo_v2")
        return self.total_bytes - self.used_bytes, self.total_bytes

    def close(self) -> None:
        if not self._gate.sticky:
            self._gate.sticky = abi.DEINITIALIZED

    # Virtual memory.

    def reserve(self, size_bytes: int, hint: int = 0) -> int:
        call = "cuMemAddressReserve"
        self._gate.enter(call)
        self._whole(call, size_bytes, hint)
        address = self._addresses.take(size_bytes, hint)
        if address is None:
            raise failure(call, abi.OUT_OF_MEMORY, detail="the address space is full")
        return address

    def address_free(self, address: int, size_bytes: int) -> None:
        call = "cuMemAddressFree"
        self._gate.enter(call)
        if self.reservations.get(address) != size_bytes:
            raise self._wrong(call, f"{show(address, size_bytes)} is not what reserve returned")
        if self._pages.overlaps(address, size_bytes):
            raise self._wrong(call, f"something is mapped in {show(address, size_bytes)}")
        del self.reservations[address]

    def create(self, size_bytes: int) -> int:
        call = "cuMemCreate"
        self._gate.enter(call)
        self._whole(call, size_bytes)
        return self._make(call, size_bytes).handle

    def release(self, handle: int) -> None:
        self._gate.enter("cuMemRelease")
        physical = self._memory.referenced(handle)
        if physical is None:
            raise Violation(f"release of handle {handle}, which has no reference left")
        physical.references -= 1
        self._memory.collect(physical)

    def map(self, address: int, size_bytes: int, handle: int, offset: int = 0) -> None:
        call = "cuMemMap"
        self._gate.enter(call)
        self._whole(call, size_bytes, address)
        physical = self._memory.referenced(handle)
        if physical is None:
            raise self._wrong(call, f"handle {handle} was released")
        if offset or physical.data.size != size_bytes:
            raise self._wrong(call, f"{show(offset, size_bytes)} is not the whole handle")
        if not self._addresses.within(address, size_bytes):
            raise self._wrong(call, f"{show(address, size_bytes)} is not reserved")
        if self._pages.overlaps(address, size_bytes):
            raise self._wrong(call, f"{show(address, size_bytes)} is mapped already")
        self._pages.add(address, physical)

    def set_access(self, address: int, size_bytes: int) -> None:
        self._gate.enter("cuMemSetAccess")
        self._pages.accessible |= set(self._tiles("cuMemSetAccess", address, size_bytes))

    def unmap(self, address: int, size_bytes: int) -> None:
        self._gate.enter("cuMemUnmap")
        bases = self._tiles("cuMemUnmap", address, size_bytes)
        if len(bases) > 1:  # cuda.h allows it, and drivers were seen to fail (ROCR-Runtime 285)
            raise Violation(f"one unmap over {len(bases)} mappings", fix="unmap one by one")
        self._calls.expect_unused(address, size_bytes, "unmap")
        self._memory.collect(self._pages.remove(bases[0]))

    # Memory in one piece: a mapping of its own.

    def allocate(self, size_bytes: int) -> int:
        self._gate.enter("cuMemAlloc_v2")
        whole = -(-size_bytes // self.granularity_bytes) * self.granularity_bytes
        self._whole("cuMemAlloc_v2", whole)
        physical = self._make("cuMemAlloc_v2", whole)
        physical.references = 0
        address = self._addresses.take(whole, 0)
        if address is None:
            self._memory.collect(physical)
            raise failure("cuMemAlloc_v2", abi.OUT_OF_MEMORY, detail="the address space is full")
        self._pages.add(address, physical)
        self._pages.accessible.add(address)
        self._allocated.add(address)
        return address

    def free(self, address: int) -> None:
        self._gate.enter("cuMemFree_v2")
        if address not in self._allocated:
            raise self._wrong("cuMemFree_v2", f"{address:#x} is not what allocate returned")
        self._calls.expect_unused(address, self.reservations[address], "free")
        del self.reservations[address]
        self._allocated.remove(address)
        self._memory.collect(self._pages.remove(address))

    # Pinned host memory.

    def host_alloc(self, size_bytes: int) -> int:
        call = "cuMemHostAlloc"
        self._gate.enter(call)
        if size_bytes <= 0:
            raise self._wrong(call, f"{size_bytes} bytes")
        return self._memory.pin(size_bytes)

    def host_free(self, address: int) -> None:
        self._gate.enter("cuMemFreeHost")
        if address not in self._memory.host:
            raise self._wrong("cuMemFreeHost", f"{address:#x} is not pinned memory")
        self._calls.expect_unused(address, self._memory.host[address].size, "host_free")
        del self._memory.host[address]

    # Streams and events.

    def create_stream(self) -> int:
        return self._calls.create_stream()

    def destroy_stream(self, stream: int) -> None:
        self._calls.destroy_stream(stream)

    def stream_done(self, stream: int) -> bool:
        return self._calls.stream_done(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._calls.synchronize_stream(stream)

    def create_event(self, timing: bool = False) -> int:
        return self._calls.create_event(timing)

    def destroy_event(self, event: int) -> None:
        self._calls.destroy_event(event)

    def record_event(self, event: int, stream: int) -> None:
        self._calls.record_event(event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._calls.wait_event(stream, event)

    def event_done(self, event: int) -> bool:
        return self._calls.event_done(event)

    def synchronize_event(self, event: int) -> None:
        self._calls.synchronize_event(event)

    def elapsed_us(self, start: int, end: int) -> float:
        return self._calls.elapsed_us(start, end)

    # Copies.

    def copy_in(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            self.write(address, self._memory.pinned(host, size_bytes))

        self._copy("copy_in", (address, size_bytes), host, stream, run)

    def copy_out(self, host: int, address: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            self._memory.pinned(host, size_bytes)[:] = self.read(address, size_bytes)

        self._copy("copy_out", (address, size_bytes), host, stream, run)

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            for piece in self._memory.pieces(address, size_bytes, "fill"):
                piece[:] = byte

        self._copy("fill", (address, size_bytes), 0, stream, run)

    def _copy(
        self, name: str, device: Range, host: int, stream: int, run: Callable[[], None]
    ) -> None:
        call, (address, size_bytes) = _SYMBOLS.get(name, "cuMemsetD8Async"), device
        self._gate.enter(call)
        self._calls.stream(stream)
        # CUDA looks at the addresses when the copy is queued; the fake again when it runs.
        if size_bytes <= 0 or self._pages.hole(address, size_bytes) is not None:
            raise self._wrong(call, f"{show(address, size_bytes)} is not accessible")
        uses: tuple[Range, ...] = (device,)
        if host:
            self._memory.pinned(host, size_bytes)
            uses += ((host, size_bytes),)
        self.queues.put(stream, name, run, uses)

    # Rules.

    def _wrong(self, call: str, detail: str) -> DriverError:
        return failure(call, abi.INVALID_VALUE, detail=detail)

    def _whole(self, call: str, size_bytes: int, address: int = 0) -> None:
        if size_bytes <= 0 or size_bytes % self.granularity_bytes:
            raise self._wrong(call, f"{size_bytes} bytes are not whole granules")
        if address % self.granularity_bytes:
            raise self._wrong(call, f"{address:#x} is not aligned")

    # What several calls have in common.

    def _tiles(self, call: str, address: int, size_bytes: int) -> list[int]:
        try:
            return self._pages.tiles(address, size_bytes)
        except ValueError as error:
            raise self._wrong(call, str(error)) from error

    def _make(self, call: str, size_bytes: int) -> Physical:
        made = self._memory.make(size_bytes)
        if made is None:
            detail = f"{self.used_bytes} bytes are in use"
            raise failure(call, abi.OUT_OF_MEMORY, detail=detail)
        return made
