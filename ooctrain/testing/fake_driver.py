"""A GPU's driver in plain Python that enforces every rule of virtual memory management.

It implements the calls of `VmmDriver` with CUDA's answers, and raises `Violation` where CUDA would
go on with wrong data, crash later, or is undefined. A real driver tolerates a mistake in testing
and fails in production, so the fake tolerates none: work is done as late as allowed
(`fake_driver.py`), fresh memory is NaN, no work may use two mappings of the same memory, and a
mapping may be removed only when the host has seen its last use complete. Any call can be made to
fail (`fail`). Sources: cuda.h's comments; CUDA guide, virtual memory management. Read next:
`fake_driver.py`, `fake_driver.py`, `fake_driver.py`, `fake_driver.py`; then
`devices/cuda/driver_memory.py`, which runs the allocators over it.
"""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import failure
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DriverError, OoctrainError

# Streams that do their work as late as allowed: queued work runs when the host must wait.
#
# A missing wait shows only if the work is not done when its result is needed, so no work is done
# early. A callable chooses the order among those that CUDA allows; in tests Hypothesis draws it, and
# shrinks it. The numbers of destroyed streams and events are reused at once, as in CUDA, so code that
# keeps a handle instead of an object is exposed. Source: CUDA's streams and events.


Choose = Callable[[Sequence[int]], int]
Range = tuple[int, int]  # (address, bytes)


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
    """Handles: those given back are the next to be given out."""

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

    def put(
        self, stream: int, name: str, run: Callable[[], object], uses: Sequence[Range] = (),
        ready: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Queues a piece of work."""
        self.streams[stream].append(Work(name, run, tuple(uses), ready))

    def record(self, event: FakeEvent, stream: int) -> None:
        """Queues the event's next record."""
        event.records += 1
        number = event.records

        def reach() -> None:
            event.reached, event.at = max(event.reached, number), self.pieces_done

        self.put(stream, "record", reach)

    def wait(self, stream: int, event: FakeEvent) -> None:
        """Queues a wait for the latest record so far; a later record does not delay it."""
        number = event.records
        self.put(stream, "wait", lambda: None, ready=lambda: event.reached >= number)

    def step(self, stream: int | None = None) -> bool:
        """Runs one piece, of `stream` or of a chosen one; False if none can go on."""
        queues = {**self._retired, **self.streams}
        able = [s for s in sorted(queues) if queues[s] and queues[s][0].ready()]
        if stream is not None:
            able = [s for s in able if s == stream]
        if not able:
            return False
        queue = queues[self.choose(able)]
        work = queue.popleft()
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


# A page table in plain Python: which physical memory is mapped where, and who may access it.
#
# Mappings are few and never overlap, so a sorted list of their first addresses answers by bisection
# which memory lies at an address and where a range has a hole. Memory may be mapped at several
# addresses (CUDA guide, virtual aliasing support); a piece of work may use only one of them.


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
            raise ValueError(f"[{address:#x}, +{size_bytes}) does not end with a mapping")
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


# Where the fake driver puts reservations: at addresses never used before, or as close as it can.
#
# A real driver promises nothing about addresses, so there are two opposite placements. Code that
# relies on neighbouring reservations, or on addresses that are never reused, fails under one of them.


Placement = Literal["fresh", "adjacent"]
FIRST_ADDRESS = 1 << 44  # beyond 32 bits: a truncated address is a wrong one


class Addresses:
    """Reservations of address ranges.

    Args:
        placement: "fresh": addresses are never given out again and hints never honoured;
            "adjacent": the lowest free address, and the hint where it is free.
        gap_bytes: between fresh ranges, so that an overrun meets nothing.
        limit_bytes: how much can be reserved.
    """

    def __init__(self, placement: Placement, gap_bytes: int, limit_bytes: int):
        self.ranges: dict[int, int] = {}  # {address: bytes}
        self._placement, self._gap_bytes, self._limit_bytes = placement, gap_bytes, limit_bytes
        self._next = FIRST_ADDRESS

    def take(self, size_bytes: int, hint: int) -> int | None:
        """The address of a new range; None: there is no room."""
        if sum(self.ranges.values()) + size_bytes > self._limit_bytes:
            return None
        address = self._place(size_bytes, hint)
        self.ranges[address] = size_bytes
        return address

    def within(self, address: int, size_bytes: int) -> bool:
        """Whether one reservation contains all of a range."""
        ranges = self.ranges.items()
        return any(a <= address and address + size_bytes <= a + n for a, n in ranges)

    def _place(self, size_bytes: int, hint: int) -> int:
        if self._placement == "fresh":
            address = self._next
            self._next += size_bytes + self._gap_bytes
            return address
        taken = sorted(self.ranges.items())
        if hint and all(hint + size_bytes <= a or a + n <= hint for a, n in taken):
            return hint
        address = FIRST_ADDRESS
        for other, size in taken:
            if address + size_bytes <= other:
                break
            address = max(address, other + size)
        return address


# The checks before every call of the fake driver: sticky errors, contexts, ordered failures.
#
# A driver refuses calls for reasons that no argument shows: an earlier kernel has crashed, the thread
# has no context, the process is a fork, memory is short. The gate answers with the error that CUDA
# would give before it looks at the arguments. Any call can be made to fail, and a test can sweep the
# failure over all calls.


#: The calls that obtain something: where a driver refuses in practice.
ACQUIRING = frozenset({
    "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc_v2",
    "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate",
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


class Gate:
    """Lets calls pass, counts them, and refuses them for reasons that lie outside of them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.sticky = abi.SUCCESS
        self._fault: _Fault | None = None
        self._process, self._current = os.getpid(), {threading.get_ident()}

    def make_current(self) -> None:
        """The calling thread has a context from now on."""
        self._current.add(threading.get_ident())

    def order_failure(self, after: int, status: int, calls: Collection[str]) -> None:
        """The call after the next `after` of these calls fails, once."""
        self._fault = _Fault(after, status, calls)

    def clear_fault(self) -> bool:
        """Takes the order back; whether it was still to come."""
        fault, self._fault = self._fault, None
        return fault is not None

    def enter(self, call: str) -> None:
        """Raises DriverError if the call is refused whatever its arguments are."""
        self.calls[call] += 1
        if self.sticky:
            raise failure(call, self.sticky, detail="an earlier error; or the driver is closed")
        if os.getpid() != self._process:
            raise failure(call, abi.NOT_INITIALIZED, detail="this process is a fork")
        if call not in _CONTEXT_FREE and threading.get_ident() not in self._current:
            raise failure(call, abi.INVALID_CONTEXT, detail="make_current() was not called here")
        if self._fault is not None and call in self._fault.calls:
            self._fault.after -= 1
            if self._fault.after < 0:
                status, self._fault = self._fault.status, None
                if status in abi.LOST:
                    self.sticky = status
                raise failure(call, status, detail="injected")


# The bytes behind the fake driver: physical memory, where it is mapped, and pinned host memory.
#
# This module knows the memory that exists; `fake_driver.py` knows the calls that CUDA allows. An
# access returns the bytes at an address, or raises `Violation` where the work may not reach them.
# Work is checked when it runs, not when it is queued, since a mapping may be removed in between;
# after a wrong access every call fails, as on a GPU.


FRESH_BYTE = 0xFF  # NaN in every float type


class FakeMemory:
    """All memory of a fake GPU and of its host.

    Args:
        total_bytes: physical memory of the device.
        gate: learns of a wrong access, and then refuses every call.
    """

    def __init__(self, total_bytes: int, gate: Gate):
        self.total_bytes, self.used_bytes = total_bytes, 0
        self.pages = PageTable()
        self.physical: dict[int, Physical] = {}  # by handle
        self.host: dict[int, np.ndarray] = {}  # {address: pinned bytes}
        self._gate, self._next_handle = gate, 0x1000

    def make(self, size_bytes: int) -> Physical | None:
        """Fresh physical memory with one reference; None: there is not enough."""
        if self.used_bytes + size_bytes > self.total_bytes:
            return None
        self.used_bytes += size_bytes
        self._next_handle += 1
        data = np.full(size_bytes, FRESH_BYTE, np.uint8)
        made = self.physical[self._next_handle] = Physical(self._next_handle, 1, data)
        return made

    def referenced(self, handle: int) -> Physical | None:
        """The memory of a handle that somebody still holds."""
        found = self.physical.get(handle)
        return found if found is not None and found.references else None

    def collect(self, physical: Physical) -> None:
        """Frees memory that is neither referenced nor mapped."""
        if not physical.references and not physical.mappings:
            self.used_bytes -= physical.data.size
            del self.physical[physical.handle]

    def pin(self, size_bytes: int) -> int:
        """Address of fresh pinned host memory."""
        data = np.full(size_bytes, FRESH_BYTE, np.uint8)
        self.host[data.ctypes.data] = data
        return data.ctypes.data

    def reach(self, address: int, size_bytes: int, what: str) -> None:
        """Raises Violation unless all of a range is accessible; from then on nothing works."""
        hole = self.pages.hole(address, size_bytes)
        if hole is not None:
            self._gate.sticky = abi.ILLEGAL_ADDRESS
            raise Violation(f"{what} uses {hole:#x}, which is not mapped or has no access")

    def pieces(self, address: int, size_bytes: int, what: str) -> Iterator[np.ndarray]:
        """The bytes of a range, mapping by mapping."""
        self.reach(address, size_bytes, what)
        for base, physical in self.pages.mapped(address, size_bytes):
            yield physical.data[max(0, address - base) : address + size_bytes - base]

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes."""
        return np.concatenate(list(self.pieces(address, size_bytes, "read")))

    def write(self, address: int, data: np.ndarray) -> None:
        """Puts uint8 data on the device."""
        place = 0
        for piece in self.pieces(address, data.size, "write"):
            piece[:] = data[place : place + piece.size]
            place += piece.size

    def pinned(self, host: int, size_bytes: int) -> np.ndarray:
        """Host bytes that a copy may touch."""
        for address, data in self.host.items():
            if address <= host and host + size_bytes <= address + data.size:
                return bytes_at(host, size_bytes)
        # CUDA would copy through a hidden buffer and block the host.
        raise Violation(f"host memory {show(host, size_bytes)} is not pinned")

    def expect_one_address(self, uses: Sequence[Range], name: str) -> None:
        """Raises Violation if one piece of work reaches the same memory by two addresses."""
        seen: dict[int, int] = {}  # {handle: address of its mapping}
        for address, size in uses:
            for base, physical in self.pages.mapped(address, size):
                other = seen.setdefault(physical.handle, base)
                if other != base:
                    raise Violation(
                        f"{name} uses handle {physical.handle} at {other:#x} and at {base:#x}",
                        fix="one piece of work may use one mapping of a handle only",
                    )


def show(address: int, size_bytes: int) -> str:
    """A range for people."""
    return f"[{address:#x}, +{size_bytes})"


# The fake driver's calls on streams and events, each refused as CUDA refuses it.
#
# `fake_driver.py` does queued work as late as allowed; whether a call may be made at all is decided
# here: the gate first, then the handle, then what CUDA asks of it (an event that was never recorded
# has no time). What is queued also says which memory nobody may take away yet. Source: cuda.h's
# comments.


class StreamCalls:
    """The calls of `VmmDriver` on streams and events.

    Args:
        queues: the streams.
        gate: what every call passes first.
    """

    def __init__(self, queues: LazyStreams, gate: Gate):
        self._queues, self._gate = queues, gate

    def create_stream(self) -> int:
        self._gate.enter("cuStreamCreate")
        return self._queues.create_stream()

    def destroy_stream(self, stream: int) -> None:
        self._gate.enter("cuStreamDestroy_v2")
        self.stream(stream)
        self._queues.destroy_stream(stream)

    def stream_done(self, stream: int) -> bool:
        self._gate.enter("cuStreamQuery")
        return not self.stream(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._gate.enter("cuStreamSynchronize")
        queue = self.stream(stream)
        self._queues.run_until(lambda: not queue)

    def create_event(self, timing: bool = False) -> int:
        self._gate.enter("cuEventCreate")
        return self._queues.create_event(timing)

    def destroy_event(self, event: int) -> None:
        self._gate.enter("cuEventDestroy_v2")
        self.event(event)
        self._queues.destroy_event(event)

    def record_event(self, event: int, stream: int) -> None:
        self._gate.enter("cuEventRecord")
        self.stream(stream)
        self._queues.record(self.event(event), stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._gate.enter("cuStreamWaitEvent")
        self.stream(stream)
        self._queues.wait(stream, self.event(event))

    def event_done(self, event: int) -> bool:
        self._gate.enter("cuEventQuery")
        found = self.event(event)
        return found.reached >= found.records

    def synchronize_event(self, event: int) -> None:
        self._gate.enter("cuEventSynchronize")
        found, number = self.event(event), self.event(event).records
        self._queues.run_until(lambda: found.reached >= number)

    def elapsed_us(self, start: int, end: int) -> float:
        """Pieces of work run between the two events."""
        call = "cuEventElapsedTime_v2"
        self._gate.enter(call)
        first, last = self.event(start), self.event(end)
        for event in (first, last):
            if not (event.timing and event.records):
                raise failure(call, abi.INVALID_HANDLE, detail="no timing, or never recorded")
            if event.reached < event.records:
                raise failure(call, abi.NOT_READY)
        return float(last.at - first.at)

    # Rules.

    def stream(self, stream: int) -> deque[Work]:
        """The work that is queued in a stream."""
        if stream not in self._queues.streams:
            raise failure("stream", abi.INVALID_HANDLE, detail=f"{stream} is not a stream")
        return self._queues.streams[stream]

    def event(self, event: int) -> FakeEvent:
        """What is known of an event."""
        if event not in self._queues.events:
            raise failure("event", abi.INVALID_HANDLE, detail=f"{event} is not an event")
        return self._queues.events[event]

    def expect_unused(self, address: int, size_bytes: int, what: str) -> None:
        """Raises Violation if queued work is still to use a range."""
        for work in self._queues.pending():
            if any(a < address + size_bytes and address < a + n for a, n in work.uses):
                raise Violation(
                    f"{what} of {show(address, size_bytes)} while {work.name} is still to use it",
                    fix="wait on the host for the last use",
                )


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
