"""This machine's memory behind the driver object: CUDA's memory management by memfd, mmap.

It implements the calls of `VmmDriver`; any code of this process can use the addresses. A file in
memory is the physical memory, a handle is a part of it, and a mapping is mmap of that part into an
inaccessible reservation. The rules are CUDA's, checked here because Linux would silently map over
existing mappings; two are wider: a part of a handle may be mapped (`parts`), and access comes with
the mapping. Streams have nothing to wait for: work is done where it is queued (the cpu device has
streams of its own, `devices/thread_streams.py`). Costs, per 2 MiB: map 70 us, unmap 60 us. Sources:
paper 000, section 3.3; CUDA guide, virtual memory management. Read next: `devices/cpu/host_vm.py`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from bisect import bisect_right, insort
from dataclasses import dataclass

import numpy as np

from ooctrain.devices.cpu.host_vm import (
    PAGE_BYTES,
    HostCalls,
    check_memory,
    file_bytes,
    whole_pages,
)
from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import failure
from ooctrain.errors import DriverError


@dataclass(slots=True, eq=False)
class _Part:
    """A handle: bytes of the file, whether it is referenced, how many of its pages are mapped."""

    offset: int
    size_bytes: int
    held: bool = True
    mapped_pages: int = 0


class HostDriver:
    """This process's memory as a device of `total_bytes` (`VmmDriver`).

    Args:
        total_bytes: all of it is allocated at once, whole pages.
        calls: the system's; a test gives others.

    Raises:
        VmmUnavailable: this system has no memfd.
        ConfigError: more than this machine, or this process's control group, has free.
        DriverError: the system refused memory.
    """

    name = "host"
    parts = maps = True

    def __init__(self, total_bytes: int, calls: HostCalls | None = None):
        self._calls = calls or HostCalls()
        self.total_bytes = whole_pages(total_bytes)
        # Linux would go on allocating until it has to kill a process.
        check_memory(self.total_bytes, "the host driver wants")
        file = self._calls.make_file(self.total_bytes)
        self._file: int | None = file
        try:
            self._calls.allocate(file, self.total_bytes)
        except DriverError:
            os.close(file)
            raise
        self._process = os.getpid()
        self._handles: dict[int, _Part] = {}
        self._bases: list[int] = []
        self._pages: dict[int, np.ndarray] = {}  # reservation: handle mapped in each page, 0: none
        self._host: dict[int, np.ndarray] = {}
        self._streams: set[int] = set()
        self._events: dict[int, int | None] = {}  # time of the latest record, ns
        self._numbers = itertools.count(1)

    # Device.

    def make_current(self) -> None:
        self._open("make_current")

    def granularity(self) -> int:
        return PAGE_BYTES

    def memory_info(self) -> tuple[int, int]:
        used = sum(part.size_bytes for part in self._handles.values())
        return self.total_bytes - used, self.total_bytes

    def used_bytes(self) -> int:
        """Bytes of the machine's memory that the file holds, as the kernel counts them."""
        return 0 if self._file is None else file_bytes(self._file)

    def held(self) -> dict[str, int]:
        """What has not been given back: all zero when everything was."""
        return {
            "handles": len(self._handles), "reservations": len(self._pages),
            "mappings": sum(int(np.count_nonzero(p)) for p in self._pages.values()),
            "streams": len(self._streams), "events": len(self._events), "host": len(self._host),
        }  # fmt: skip

    def close(self) -> None:
        for base in list(self._bases):
            self._calls.give_back(base, self._pages.pop(base).size * PAGE_BYTES)
        self._bases.clear()
        self._handles.clear()
        self._host.clear()
        if self._file is not None:
            os.close(self._file)
        self._file = None

    # Virtual memory.

    def reserve(self, size_bytes: int, hint: int = 0) -> int:
        self._open("reserve")
        _whole("reserve", size_bytes)
        address = self._calls.reserve(size_bytes, hint)
        insort(self._bases, address)
        self._pages[address] = np.zeros(size_bytes // PAGE_BYTES, np.int64)
        return address

    def address_free(self, address: int, size_bytes: int) -> None:
        pages = self._pages.get(address)
        if pages is None or pages.size * PAGE_BYTES != size_bytes:
            raise _wrong("address_free", f"{address:#x} is not what reserve returned")
        if pages.any():
            raise _wrong("address_free", f"something is mapped in {address:#x}")
        self._calls.give_back(address, size_bytes)
        self._bases.remove(address)
        del self._pages[address]

    def create(self, size_bytes: int) -> int:
        self._open("create")
        _whole("create", size_bytes)
        offset = 0
        for part in sorted(self._handles.values(), key=lambda p: p.offset):
            if offset + size_bytes <= part.offset:
                break
            offset = part.offset + part.size_bytes
        if offset + size_bytes > self.total_bytes:
            raise failure("create", abi.OUT_OF_MEMORY, detail=f"of {self.total_bytes} bytes")
        handle = next(self._numbers)
        self._handles[handle] = _Part(offset, size_bytes)
        return handle

    def release(self, handle: int) -> None:
        self._part("release", handle).held = False
        self._collect(handle)

    def map(self, address: int, size_bytes: int, handle: int, offset: int = 0) -> None:
        self._open("map")
        part = self._part("map", handle)
        _whole("map", size_bytes, offset)
        if offset + size_bytes > part.size_bytes:
            raise _wrong("map", f"{size_bytes} bytes from {offset} are not within the handle")
        pages = self._within("map", address, size_bytes)
        if pages.any():
            raise _wrong("map", f"{address:#x} is mapped already")
        assert self._file is not None
        try:
            self._calls.place(address, size_bytes, self._file, part.offset + offset)
        except DriverError:
            self._calls.cover(address, size_bytes)
            raise
        pages[:] = handle
        part.mapped_pages += pages.size

    def set_access(self, address: int, size_bytes: int) -> None:
        if not self._within("set_access", address, size_bytes).all():
            raise _wrong("set_access", f"a part of {address:#x} is not mapped")

    def unmap(self, address: int, size_bytes: int) -> None:
        pages = self._within("unmap", address, size_bytes)
        if not pages.all():
            raise _wrong("unmap", f"a part of {address:#x} is not mapped")
        self._calls.cover(address, size_bytes)
        handles, counts = np.unique(pages, return_counts=True)
        pages[:] = 0
        for handle, count in zip(handles.tolist(), counts.tolist(), strict=True):
            self._handles[handle].mapped_pages -= count
            self._collect(handle)

    # Host memory: ordinary memory, since a copy within one machine needs no pinning.

    def host_alloc(self, size_bytes: int) -> int:
        if size_bytes <= 0:
            raise _wrong("host_alloc", f"{size_bytes} bytes")
        data = np.empty(size_bytes, np.uint8)
        self._host[data.ctypes.data] = data
        return data.ctypes.data

    def host_free(self, address: int) -> None:
        if self._host.pop(address, None) is None:
            raise _wrong("host_free", f"{address:#x} is not of host_alloc")

    # Streams and events: everything is done when it has been queued.

    def create_stream(self) -> int:
        stream = next(self._numbers)
        self._streams.add(stream)
        return stream

    def destroy_stream(self, stream: int) -> None:
        self._expect_stream(stream)
        self._streams.remove(stream)

    def stream_done(self, stream: int) -> bool:
        self._expect_stream(stream)
        return True

    def synchronize_stream(self, stream: int) -> None:
        self._expect_stream(stream)

    def create_event(self, timing: bool = False) -> int:
        event = next(self._numbers)
        self._events[event] = None
        return event

    def destroy_event(self, event: int) -> None:
        self._time(event)
        del self._events[event]

    def record_event(self, event: int, stream: int) -> None:
        self._expect_stream(stream)
        self._time(event)
        self._events[event] = time.perf_counter_ns()

    def wait_event(self, stream: int, event: int) -> None:
        self._expect_stream(stream)
        self._time(event)

    def event_done(self, event: int) -> bool:
        self._time(event)
        return True

    def synchronize_event(self, event: int) -> None:
        self._time(event)

    def elapsed_us(self, start: int, end: int) -> float:
        first, last = self._time(start), self._time(end)
        if first is None or last is None:
            raise failure("elapsed_us", abi.INVALID_HANDLE, detail="never recorded")
        return (last - first) / 1e3

    # Copies.

    def copy_in(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        self._reach("copy_in", address, host, size_bytes, stream)
        ctypes.memmove(address, host, size_bytes)

    def copy_out(self, host: int, address: int, size_bytes: int, stream: int) -> None:
        self._reach("copy_out", address, host, size_bytes, stream)
        ctypes.memmove(host, address, size_bytes)

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        self._reach("fill", address, 0, size_bytes, stream)
        ctypes.memset(address, byte, size_bytes)

    # Rules.

    def _open(self, call: str) -> None:
        if self._file is None:
            raise failure(call, abi.DEINITIALIZED, detail="the driver is closed")
        if os.getpid() != self._process:
            raise failure(call, abi.NOT_INITIALIZED, detail="this process is a fork")

    def _part(self, call: str, handle: int) -> _Part:
        part = self._handles.get(handle)
        if part is None or not part.held:
            raise _wrong(call, f"handle {handle} was released")
        return part

    def _within(self, call: str, address: int, size_bytes: int) -> np.ndarray:
        """The pages of a range, which must lie in one reservation: MAP_FIXED destroys what is
        there."""
        place = bisect_right(self._bases, address) - 1
        base = self._bases[place] if place >= 0 else 0
        _whole(call, size_bytes, address - base)
        end = address - base + size_bytes
        if place < 0 or end > self._pages[base].size * PAGE_BYTES:
            raise _wrong(call, f"[{address:#x}, +{size_bytes}) is not reserved")
        return self._pages[base][(address - base) // PAGE_BYTES : end // PAGE_BYTES]

    def _reach(self, call: str, address: int, host: int, size_bytes: int, stream: int) -> None:
        """Raises DriverError where the process would be killed for touching an address."""
        self._expect_stream(stream)
        first = address // PAGE_BYTES * PAGE_BYTES
        whole = whole_pages(address + size_bytes - first)
        if not self._within(call, first, whole).all():
            raise failure(call, abi.ILLEGAL_ADDRESS, detail=f"{address:#x} is not mapped")
        ranges = self._host.items()
        if host and not any(a <= host and host + size_bytes <= a + d.size for a, d in ranges):
            raise _wrong(call, f"{host:#x} is not of host_alloc")

    def _expect_stream(self, stream: int) -> None:
        if stream not in self._streams:
            raise failure("stream", abi.INVALID_HANDLE, detail=f"{stream} is not a stream")

    def _time(self, event: int) -> int | None:
        if event not in self._events:
            raise failure("event", abi.INVALID_HANDLE, detail=f"{event} is not an event")
        return self._events[event]

    def _collect(self, handle: int) -> None:
        """Frees what is neither referenced nor mapped."""
        part = self._handles[handle]
        if not part.held and not part.mapped_pages:
            del self._handles[handle]


def _whole(call: str, size_bytes: int, offset: int = 0) -> None:
    if size_bytes <= 0 or size_bytes % PAGE_BYTES or offset % PAGE_BYTES:
        raise _wrong(call, f"{size_bytes} bytes from {offset} are not whole pages")


def _wrong(call: str, detail: str) -> DriverError:
    return failure(call, abi.INVALID_VALUE, detail=detail)
