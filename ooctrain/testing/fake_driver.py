"""A GPU's driver in plain Python that enforces every rule of virtual memory management.

It implements the calls of `VmmDriver` with CUDA's answers, and raises `Violation` where CUDA would
go on with wrong data, crash later, or is undefined. A real driver tolerates a mistake in testing
and fails in production, so the fake tolerates none. Queued work runs only when the host must wait
for it, in any order that CUDA allows. Fresh memory is NaN. Addresses are never given out again, the
numbers of streams and events at once. Work is checked when it runs, since a mapping may be removed
in between: no work may use two mappings of the same memory, and a mapping may be removed only when
the host has seen its last use complete. After a wrong access every call fails, as on a GPU.
Sources: cuda.h's comments; CUDA guide, virtual memory management (virtual aliasing support),
streams and events. Read next: `devices/driver_calls.py` for the calls;
`devices/cuda/driver_memory.py`, which runs the allocators over it; `fake_gpu.py`.
"""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import failure
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DriverError, OoctrainError

FIRST_ADDRESS = 1 << 44  # beyond 32 bits: a truncated address is a wrong one
FRESH_BYTE = 0xFF  # NaN in every float type
#: Calls that need no current context.
_CONTEXT_FREE = frozenset({
    "cuCtxSetCurrent", "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree",
    "cuMemCreate", "cuMemRelease",
})  # fmt: skip
_SYMBOLS = {"copy_in": "cuMemcpyHtoDAsync_v2", "copy_out": "cuMemcpyDtoHAsync_v2"}

Choose = Callable[[Sequence[int]], int]
Range = tuple[int, int]  # (address, bytes)


class Violation(OoctrainError, AssertionError):
    """Something that a GPU would not report, or only when it is too late."""

    default_code = DriverError.default_code


# Streams: a missing wait shows only if the work is not done when its result is needed, so no work
# is done early.


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A piece of work in a stream.

    Args:
        name: for messages.
        run: does it.
        uses: the device and host memory that it touches.
        ready: whether what it waits for has come.
    """

    name: str
    run: Callable[[], object]
    uses: tuple[Range, ...] = ()
    ready: Callable[[], bool] = lambda: True


@dataclass(slots=True, eq=False)
class FakeEvent:
    """An event: how often it was recorded, which record is reached, and after how many pieces."""

    timing: bool
    records: int = 0
    reached: int = 0
    at: int = 0


@dataclass(slots=True, eq=False)
class Numbers:
    """Handles: those given back are the next to be given out, which exposes code that keeps one."""

    first: int
    free: list[int] = field(default_factory=list)

    def take(self) -> int:
        """A number that is not in use."""
        if self.free:
            return self.free.pop()
        self.first += 1
        return self.first


class LazyStreams:
    """In-order queues, worked off one piece at a time.

    Args:
        choose: picks one of the streams that can go on; `min` finishes the oldest stream first.
    """

    def __init__(self, choose: Choose = min):
        self.choose = choose
        self.streams: dict[int, deque[Work]] = {}
        self.events: dict[int, FakeEvent] = {}
        self.pieces_done = 0
        self._retired: dict[int, deque[Work]] = {}  # destroyed with work left, by negative number
        self._retired_numbers = itertools.count(-1, -1)
        self._stream_numbers, self._event_numbers = Numbers(0x100), Numbers(0x10000)

    def create_stream(self) -> int:
        """A new, empty stream."""
        stream = self._stream_numbers.take()
        self.streams[stream] = deque()
        return stream

    def destroy_stream(self, stream: int) -> None:
        """Its number is free again; its work is not lost."""
        left = self.streams.pop(stream)
        if left:
            self._retired[next(self._retired_numbers)] = left
        self._stream_numbers.free.append(stream)

    def create_event(self, timing: bool) -> int:
        """A new event, never recorded."""
        event = self._event_numbers.take()
        self.events[event] = FakeEvent(timing)
        return event

    def destroy_event(self, event: int) -> None:
        """Its number is free again; records and waits in the queues still count."""
        del self.events[event]
        self._event_numbers.free.append(event)

    def record(self, event: FakeEvent, stream: int) -> None:
        """Queues the event's next record."""
        event.records += 1
        number = event.records

        def reach() -> None:
            event.reached, event.at = max(event.reached, number), self.pieces_done

        self.streams[stream].append(Work("record", reach))

    def wait(self, stream: int, event: FakeEvent) -> None:
        """Queues a wait for the latest record so far; a later record does not delay it."""
        number = event.records
        ready = lambda: event.reached >= number  # noqa: E731
        self.streams[stream].append(Work("wait", lambda: None, ready=ready))

    def step(self, stream: int | None = None) -> bool:
        """Runs one piece, of `stream` or of a chosen one; False if none can go on."""
        queues = {**self._retired, **self.streams}
        able = [s for s in sorted(queues) if queues[s] and queues[s][0].ready()]
        if stream is not None:
            able = [s for s in able if s == stream]
        if not able:
            return False
        work = queues[self.choose(able)].popleft()
        self.pieces_done += 1
        work.run()
        return True

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Works until a condition holds, and no piece further."""
        while not reached():
            # A wait is for a record queued before it, so that something can always go on.
            assert self.step(), "the streams wait for each other"

    def pending(self) -> list[Work]:
        """All work that has not run."""
        queues = [*self._retired.values(), *self.streams.values()]
        return [work for queue in queues for work in queue]


# Mappings.


@dataclass(slots=True, eq=False)
class Physical:
    """Memory of one create: its references, its bytes, and how often it is mapped."""

    handle: int
    references: int
    data: np.ndarray
    mappings: int = 0


class PageTable:
    """Mappings by their first address; each maps the whole of one `Physical`."""

    def __init__(self) -> None:
        self.bases: list[int] = []  # ascending
        self.accessible: set[int] = set()
        self._at: dict[int, Physical] = {}

    def add(self, base: int, physical: Physical) -> None:
        """A new mapping, without access."""
        self._at[base] = physical
        physical.mappings += 1
        insort(self.bases, base)

    def remove(self, base: int) -> Physical:
        """Takes a mapping away; returns what was mapped."""
        physical = self._at.pop(base)
        physical.mappings -= 1
        self.bases.remove(base)
        self.accessible.discard(base)
        return physical

    def size_at(self, base: int) -> int:
        """Bytes of the mapping that begins at `base`."""
        return self._at[base].data.size

    def covering(self, address: int) -> tuple[int, Physical] | None:
        """(first address, memory) of the mapping at an address."""
        index = bisect_right(self.bases, address) - 1
        if index < 0 or address >= self.bases[index] + self.size_at(self.bases[index]):
            return None
        return self.bases[index], self._at[self.bases[index]]

    def overlaps(self, address: int, size_bytes: int) -> bool:
        """Whether anything is mapped in a range."""
        index = bisect_right(self.bases, address)
        behind = index < len(self.bases) and self.bases[index] < address + size_bytes
        return behind or self.covering(address) is not None

    def tiles(self, address: int, size_bytes: int) -> list[int]:
        """First addresses of the mappings that tile a range exactly.

        Raises:
            ValueError: none do.
        """
        bases, end = [], address
        while end < address + size_bytes:
            if end not in self._at:
                raise ValueError(f"no mapping begins at {end:#x}")
            bases.append(end)
            end += self.size_at(end)
        if not bases or end != address + size_bytes:
            raise ValueError(f"{show(address, size_bytes)} does not end with a mapping")
        return bases

    def hole(self, address: int, size_bytes: int) -> int | None:
        """The first address of a range that is not mapped or has no access."""
        end = address
        while end < address + size_bytes:
            found = self.covering(end)
            if found is None or found[0] not in self.accessible:
                return end
            end = found[0] + found[1].data.size
        return None

    def mapped(self, address: int, size_bytes: int) -> Iterator[tuple[int, Physical]]:
        """(first address, memory) of each mapping of a range without holes."""
        end = address + size_bytes
        while address < end:
            found = self.covering(address)
            assert found is not None
            yield found
            address = found[0] + found[1].data.size


# The calls.


class FakeDriver:
    """Strict stand-in for a GPU's driver (`VmmDriver`).

    Args:
        total_bytes: physical memory of the device.
        granularity_bytes: granularity of sizes and addresses.
        choose: order of queued work: picks one of the streams that can go on.
        maps: whether it has virtual memory management.

    Attributes:
        queues: the streams, and the work in them.
        calls: how often each call was made.
        reservations: {address: bytes} of what is reserved.
        host: {address: bytes} of pinned host memory.
        used_bytes: physical memory that is referenced or mapped.
        lasting: the error that every call meets from now on.
    """

    name = "fake"
    parts = False
    version = 13000

    def __init__(
        self, total_bytes: int, granularity_bytes: int = 2 << 20, choose: Choose = min,
        maps: bool = True,
    ):  # fmt: skip
        self.total_bytes, self.granularity_bytes = total_bytes, granularity_bytes
        self.maps = maps
        self.queues = LazyStreams(choose)
        self.calls: Counter[str] = Counter()
        self.reservations: dict[int, int] = {}
        self.host: dict[int, np.ndarray] = {}
        self.used_bytes = 0
        self.lasting = abi.SUCCESS
        self._pages = PageTable()
        self._physical: dict[int, Physical] = {}  # by handle
        self._allocated: set[int] = set()
        self._next_address, self._handles = FIRST_ADDRESS, itertools.count(0x1001)
        self._process, self._current = os.getpid(), {threading.get_ident()}

    def enter(self, call: str) -> None:
        """Raises DriverError if a call is refused whatever its arguments are."""
        self.calls[call] += 1
        if self.lasting:
            raise failure(call, self.lasting, detail="an earlier error; or the driver is closed")
        if os.getpid() != self._process:
            raise failure(call, abi.NOT_INITIALIZED, detail="this process is a fork")
        if call not in _CONTEXT_FREE and threading.get_ident() not in self._current:
            raise failure(call, abi.INVALID_CONTEXT, detail="make_current() was not called here")

    # What tests see and do.

    def step(self, stream: int | None = None) -> bool:
        """Runs one piece of queued work; False if none can go on."""
        return self.queues.step(stream)

    def drain(self) -> None:
        """Runs all queued work."""
        self.queues.run_until(lambda: not self.queues.pending())

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes, of what has been done so far."""
        return np.concatenate(list(self._pieces(address, size_bytes, "read")))

    def write(self, address: int, data: np.ndarray) -> None:
        """Writes uint8 data to the device at once: what a kernel does when it runs."""
        place = 0
        for piece in self._pieces(address, data.size, "write"):
            piece[:] = data[place : place + piece.size]
            place += piece.size

    def handles_at(self, address: int, size_bytes: int) -> list[int]:
        """What physical memory is behind an accessible range: its handles, in order."""
        self._reach(address, size_bytes, "handles_at")
        return [physical.handle for _, physical in self._pages.mapped(address, size_bytes)]

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
            "host": len(self.host),
        }

    # Device.

    def make_current(self) -> None:
        self.enter("cuCtxSetCurrent")
        self._current.add(threading.get_ident())

    def granularity(self) -> int:
        self.enter("cuMemGetAllocationGranularity")
        return self.granularity_bytes

    def capability(self) -> tuple[int, int]:
        return (9, 0)

    def memory_info(self) -> tuple[int, int]:
        self.enter("cuMemGetInfo_v2")
        return self.total_bytes - self.used_bytes, self.total_bytes

    def close(self) -> None:
        if not self.lasting:
            self.lasting = abi.DEINITIALIZED

    # Virtual memory.

    def reserve(self, size_bytes: int, hint: int = 0) -> int:
        self.enter("cuMemAddressReserve")
        self._whole("cuMemAddressReserve", size_bytes, hint)
        return self._new_range(size_bytes)

    def address_free(self, address: int, size_bytes: int) -> None:
        call = "cuMemAddressFree"
        self.enter(call)
        if self.reservations.get(address) != size_bytes:
            raise _wrong(call, f"{show(address, size_bytes)} is not what reserve returned")
        if self._pages.overlaps(address, size_bytes):
            raise _wrong(call, f"something is mapped in {show(address, size_bytes)}")
        del self.reservations[address]

    def create(self, size_bytes: int) -> int:
        self.enter("cuMemCreate")
        self._whole("cuMemCreate", size_bytes)
        return self._make("cuMemCreate", size_bytes).handle

    def release(self, handle: int) -> None:
        self.enter("cuMemRelease")
        physical = self._referenced(handle)
        if physical is None:
            raise Violation(f"release of handle {handle}, which has no reference left")
        physical.references -= 1
        self._collect(physical)

    def map(self, address: int, size_bytes: int, handle: int, offset: int = 0) -> None:
        call = "cuMemMap"
        self.enter(call)
        self._whole(call, size_bytes, address)
        physical = self._referenced(handle)
        if physical is None:
            raise _wrong(call, f"handle {handle} was released")
        if offset or physical.data.size != size_bytes:
            raise _wrong(call, f"{show(offset, size_bytes)} is not the whole handle")
        ranges = self.reservations.items()
        if not any(a <= address and address + size_bytes <= a + n for a, n in ranges):
            raise _wrong(call, f"{show(address, size_bytes)} is not reserved")
        if self._pages.overlaps(address, size_bytes):
            raise _wrong(call, f"{show(address, size_bytes)} is mapped already")
        self._pages.add(address, physical)

    def set_access(self, address: int, size_bytes: int) -> None:
        self.enter("cuMemSetAccess")
        self._pages.accessible |= set(self._tiles("cuMemSetAccess", address, size_bytes))

    def unmap(self, address: int, size_bytes: int) -> None:
        self.enter("cuMemUnmap")
        bases = self._tiles("cuMemUnmap", address, size_bytes)
        if len(bases) > 1:  # cuda.h allows it, and drivers were seen to fail (ROCR-Runtime 285)
            raise Violation(f"one unmap over {len(bases)} mappings", fix="unmap one by one")
        if bases[0] in self._allocated:
            raise _wrong("cuMemUnmap", f"{show(address, size_bytes)} is of cuMemAlloc")
        self._expect_unused(address, size_bytes, "unmap")
        self._collect(self._pages.remove(bases[0]))

    # Memory in one piece: a mapping of its own.

    def allocate(self, size_bytes: int) -> int:
        self.enter("cuMemAlloc_v2")
        whole = -(-size_bytes // self.granularity_bytes) * self.granularity_bytes
        self._whole("cuMemAlloc_v2", whole)
        physical = self._make("cuMemAlloc_v2", whole)
        physical.references = 0
        address = self._new_range(whole)
        self._pages.add(address, physical)
        self._pages.accessible.add(address)
        self._allocated.add(address)
        return address

    def free(self, address: int) -> None:
        self.enter("cuMemFree_v2")
        if address not in self._allocated:
            raise _wrong("cuMemFree_v2", f"{address:#x} is not what allocate returned")
        self._expect_unused(address, self.reservations[address], "free")
        del self.reservations[address]
        self._allocated.remove(address)
        self._collect(self._pages.remove(address))

    # Pinned host memory.

    def host_alloc(self, size_bytes: int) -> int:
        self.enter("cuMemHostAlloc")
        if size_bytes <= 0:
            raise _wrong("cuMemHostAlloc", f"{size_bytes} bytes")
        data = np.full(size_bytes, FRESH_BYTE, np.uint8)
        self.host[data.ctypes.data] = data
        return data.ctypes.data

    def host_free(self, address: int) -> None:
        self.enter("cuMemFreeHost")
        if address not in self.host:
            raise _wrong("cuMemFreeHost", f"{address:#x} is not pinned memory")
        self._expect_unused(address, self.host[address].size, "host_free")
        del self.host[address]

    # Streams and events.

    def create_stream(self) -> int:
        self.enter("cuStreamCreate")
        return self.queues.create_stream()

    def destroy_stream(self, stream: int) -> None:
        self.enter("cuStreamDestroy_v2")
        self._stream(stream)
        self.queues.destroy_stream(stream)

    def stream_done(self, stream: int) -> bool:
        self.enter("cuStreamQuery")
        return not self._stream(stream)

    def synchronize_stream(self, stream: int) -> None:
        self.enter("cuStreamSynchronize")
        queue = self._stream(stream)
        self.queues.run_until(lambda: not queue)

    def create_event(self, timing: bool = False) -> int:
        self.enter("cuEventCreate")
        return self.queues.create_event(timing)

    def destroy_event(self, event: int) -> None:
        self.enter("cuEventDestroy_v2")
        self._event(event)
        self.queues.destroy_event(event)

    def record_event(self, event: int, stream: int) -> None:
        self.enter("cuEventRecord")
        self._stream(stream)
        self.queues.record(self._event(event), stream)

    def wait_event(self, stream: int, event: int) -> None:
        self.enter("cuStreamWaitEvent")
        self._stream(stream)
        self.queues.wait(stream, self._event(event))

    def event_done(self, event: int) -> bool:
        self.enter("cuEventQuery")
        found = self._event(event)
        return found.reached >= found.records

    def synchronize_event(self, event: int) -> None:
        self.enter("cuEventSynchronize")
        found, number = self._event(event), self._event(event).records
        self.queues.run_until(lambda: found.reached >= number)

    def elapsed_us(self, start: int, end: int) -> float:
        """Pieces of work run between the two events."""
        call = "cuEventElapsedTime_v2"
        self.enter(call)
        first, last = self._event(start), self._event(end)
        for event in (first, last):
            if not (event.timing and event.records):
                raise failure(call, abi.INVALID_HANDLE, detail="no timing, or never recorded")
            if event.reached < event.records:
                raise failure(call, abi.NOT_READY)
        return float(last.at - first.at)

    # Work.

    def launch(
        self, stream: int, uses: Sequence[Range], work: Callable[[], object], name: str = "kernel"
    ) -> None:
        """Queues a kernel: `work`, run after a check that each (address, bytes) is accessible."""
        self.enter("cuLaunchKernel")

        def run() -> None:
            for address, size in uses:
                self._reach(address, size, name)
            self._expect_one_address(uses, name)
            work()

        self._stream(stream).append(Work(name, run, tuple(uses)))

    def copy_in(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            self.write(address, self._pinned(host, size_bytes))

        self._copy("copy_in", (address, size_bytes), host, stream, run)

    def copy_out(self, host: int, address: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            self._pinned(host, size_bytes)[:] = self.read(address, size_bytes)

        self._copy("copy_out", (address, size_bytes), host, stream, run)

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            for piece in self._pieces(address, size_bytes, "fill"):
                piece[:] = byte

        self._copy("fill", (address, size_bytes), 0, stream, run)

    def _copy(
        self, name: str, device: Range, host: int, stream: int, run: Callable[[], None]
    ) -> None:
        call, (address, size_bytes) = _SYMBOLS.get(name, "cuMemsetD8Async"), device
        self.enter(call)
        queue = self._stream(stream)
        # CUDA looks at the addresses when the copy is queued; the fake again when it runs.
        if size_bytes <= 0 or self._pages.hole(address, size_bytes) is not None:
            raise _wrong(call, f"{show(address, size_bytes)} is not accessible")
        uses: tuple[Range, ...] = (device,)
        if host:
            self._pinned(host, size_bytes)
            uses += ((host, size_bytes),)
        queue.append(Work(name, run, uses))

    # Handles and addresses.

    def _new_range(self, size_bytes: int) -> int:
        """An address that was never given out before, with a gap so that an overrun meets
        nothing."""
        address = self._next_address
        self._next_address += size_bytes + self.granularity_bytes
        self.reservations[address] = size_bytes
        return address

    def _make(self, call: str, size_bytes: int) -> Physical:
        """Fresh physical memory with one reference."""
        if self.used_bytes + size_bytes > self.total_bytes:
            detail = f"{self.used_bytes} bytes are in use"
            raise failure(call, abi.OUT_OF_MEMORY, detail=detail)
        self.used_bytes += size_bytes
        made = Physical(next(self._handles), 1, np.full(size_bytes, FRESH_BYTE, np.uint8))
        self._physical[made.handle] = made
        return made

    def _referenced(self, handle: int) -> Physical | None:
        found = self._physical.get(handle)
        return found if found is not None and found.references else None

    def _collect(self, physical: Physical) -> None:
        """Frees memory that is neither referenced nor mapped."""
        if not physical.references and not physical.mappings:
            self.used_bytes -= physical.data.size
            del self._physical[physical.handle]

    def _stream(self, stream: int) -> deque[Work]:
        """The work that is queued in a stream."""
        if stream not in self.queues.streams:
            raise failure("stream", abi.INVALID_HANDLE, detail=f"{stream} is not a stream")
        return self.queues.streams[stream]

    def _event(self, event: int) -> FakeEvent:
        if event not in self.queues.events:
            raise failure("event", abi.INVALID_HANDLE, detail=f"{event} is not an event")
        return self.queues.events[event]

    # Rules.

    def _whole(self, call: str, size_bytes: int, address: int = 0) -> None:
        if size_bytes <= 0 or size_bytes % self.granularity_bytes:
            raise _wrong(call, f"{size_bytes} bytes are not whole granules")
        if address % self.granularity_bytes:
            raise _wrong(call, f"{address:#x} is not aligned")

    def _tiles(self, call: str, address: int, size_bytes: int) -> list[int]:
        try:
            return self._pages.tiles(address, size_bytes)
        except ValueError as error:
            raise _wrong(call, str(error)) from error

    def _reach(self, address: int, size_bytes: int, what: str) -> None:
        """Raises Violation unless all of a range is accessible; from then on nothing works."""
        hole = self._pages.hole(address, size_bytes)
        if hole is not None:
            self.lasting = abi.ILLEGAL_ADDRESS
            raise Violation(f"{what} uses {hole:#x}, which is not mapped or has no access")

    def _pieces(self, address: int, size_bytes: int, what: str) -> Iterator[np.ndarray]:
        """The bytes of a range, mapping by mapping."""
        self._reach(address, size_bytes, what)
        for base, physical in self._pages.mapped(address, size_bytes):
            yield physical.data[max(0, address - base) : address + size_bytes - base]

    def _pinned(self, host: int, size_bytes: int) -> np.ndarray:
        """Host bytes that a copy may touch."""
        for address, data in self.host.items():
            if address <= host and host + size_bytes <= address + data.size:
                return bytes_at(host, size_bytes)
        # CUDA would copy through a hidden buffer and block the host.
        raise Violation(f"host memory {show(host, size_bytes)} is not pinned")

    def _expect_unused(self, address: int, size_bytes: int, what: str) -> None:
        """Raises Violation if queued work is still to use a range."""
        for work in self.queues.pending():
            if any(a < address + size_bytes and address < a + n for a, n in work.uses):
                raise Violation(
                    f"{what} of {show(address, size_bytes)} while {work.name} is still to use it",
                    fix="wait on the host for the last use",
                )

    def _expect_one_address(self, uses: Sequence[Range], name: str) -> None:
        """Raises Violation if one piece of work reaches the same memory by two addresses."""
        seen: dict[int, int] = {}  # {handle: address of its mapping}
        for address, size in uses:
            for base, physical in self._pages.mapped(address, size):
                other = seen.setdefault(physical.handle, base)
                if other != base:
                    raise Violation(
                        f"{name} uses handle {physical.handle} at {other:#x} and at {base:#x}",
                        fix="one piece of work may use one mapping of a handle only",
                    )


def show(address: int, size_bytes: int) -> str:
    """A range for people."""
    return f"[{address:#x}, +{size_bytes})"


def _wrong(call: str, detail: str) -> DriverError:
    return failure(call, abi.INVALID_VALUE, detail=detail)
