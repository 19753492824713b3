"""The arena of the cpu device: virtual memory from memfd and mmap, or a plain buffer without it.

A budget in bytes becomes an `Arena` whose bytes can be mapped, chunk by chunk, into reserved
address ranges, as in a GPU driver's virtual memory management. A memfd is the physical memory (its
blocks are what the budget pays for), an inaccessible reservation is the address range, and mapping
is mmap(MAP_SHARED | MAP_FIXED) of one onto the other. An unmapped page is covered by an
inaccessible mapping and never returned by munmap, since any later mmap of the process could land in
the hole. The same calls serve behind the driver object (`testing/host_driver.py`), which
checks CUDA's rules as well; the arena keeps no tables, so it adds no cost to the calls. Source:
paper 000, section 3.3 (virtual addressing), with CUDA's calls replaced by Linux's. Read next:
`host_calls.py`, `alloc/virtual.py`.
"""

from __future__ import annotations

import bisect
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ooctrain.devices.cpu.host_calls import (
    PAGE_BYTES,
    HostCalls,
    file_bytes,
    why_no_virtual_memory,
)
from ooctrain.errors import ConfigError, DriverError
from ooctrain.step.allowance import MemoryRoom, memory_rooms
from ooctrain.units import format_bytes

__all__ = [
    "PAGE_BYTES", "Arena", "VirtualArena", "available_memory_bytes", "check_memory",
    "max_mapped_chunks", "open_arena", "tightest_room", "whole_pages", "why_no_virtual_memory",
]  # fmt: skip
#: What limits memory where no limit of the process is tighter.
MACHINE = "the machine"
_DEFAULT_MAX_MAPS = 65530
_SPARE_MAPS = 4096  # for Python, NumPy, compiled kernels and threads


class Arena:
    """Memory of a fixed size that is mapped once, as a whole: no virtual addressing.

    Args:
        size_bytes: what may be used; whole pages of the machine are taken for it.
    """

    ranges = False

    def __init__(self, size_bytes: int):
        self.size_bytes = size_bytes
        self._buffer: mmap.mmap | None = mmap.mmap(-1, whole_pages(size_bytes))
        self._address = np.frombuffer(self._buffer, np.uint8).ctypes.data

    def linear(self) -> int:
        """Address of the whole arena as one piece."""
        return self._address

    def allocate(self) -> None:
        """Nothing: a plain buffer takes memory when it is written to."""

    def discard(self, address: int, size_bytes: int) -> None:
        """Nothing: a plain buffer keeps its memory."""

    def discard_all(self) -> None:
        """Nothing, likewise."""

    def used_bytes(self) -> int:
        """Bytes of the machine's memory that the arena may hold."""
        return 0 if self._buffer is None else len(self._buffer)

    def close(self) -> None:
        """Gives the memory back; arrays over it must not be used any more."""
        self._buffer = None


class VirtualArena:
    """A memfd of a fixed size, and reservations of address ranges to map its bytes into.

    Every byte is allocated before it is used: a memfd never says that memory is short, a process
    that writes to it is killed instead. Offsets and sizes are multiples of `PAGE_BYTES`.

    Args:
        size_bytes: size of the memfd, whole pages.
        at_once: False: bytes are allocated when they are first written to, until `allocate`.

    Raises:
        DriverError: a system call failed; it names the call and the errno.
    """

    ranges = True
    granularity_bytes = PAGE_BYTES

    def __init__(self, size_bytes: int, *, at_once: bool = True):
        self._calls = HostCalls()
        self.max_mappings = max_mapped_chunks()
        self.size_bytes, self._paged_bytes = size_bytes, whole_pages(size_bytes)
        self._bases: list[int] = []
        self._sizes: dict[int, int] = {}
        self._linear: int | None = None
        self.map_calls = self.unmap_calls = 0
        self._file: int | None = self._calls.make_file(self._paged_bytes)
        self._allocated = False
        if at_once:
            try:
                self.allocate()
            except DriverError:
                self.close()
                raise

    def allocate(self) -> None:
        """Allocates every byte that is not yet.

        Raises:
            DriverError: the system refused; what was allocated still is.
        """
        if self._file is not None and not self._allocated:
            self._calls.allocate(self._file, self._paged_bytes)
            self._allocated = True

    def linear(self) -> int:
        """Address of the whole arena as one piece, mapped on first use."""
        if self._linear is None:
            address = self.reserve(self._paged_bytes)
            try:
                self.map(address, 0, self._paged_bytes)
            except DriverError:
                self.release(address)
                raise
            self._linear = address
        return self._linear

    def reserve(self, size_bytes: int) -> int:
        """Address of a fresh inaccessible range. Costs address space and one system call, no
        memory."""
        address = self._calls.reserve(size_bytes)
        bisect.insort(self._bases, address)
        self._sizes[address] = size_bytes
        return address

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Makes [offset, offset + size_bytes) of the arena appear at `address`, inside a
        reservation.

        Cost: one system call and the page table entries, about 2 us per 64 KiB.
        """
        self._inside(address, size_bytes)
        if not 0 <= offset <= self._paged_bytes - size_bytes:
            raise DriverError(
                f"offset {offset} lies outside the arena",
                call="mmap",
                fix="an offset below the arena's size",
            )
        if self._file is None:
            raise DriverError("the arena is closed", call="mmap", fix="map before close()")
        self._calls.place(address, size_bytes, self._file, offset, enter=self._allocated)
        self.map_calls += 1

    def unmap(self, address: int, size_bytes: int) -> None:
        """Makes a part of a reservation inaccessible again; it stays reserved."""
        self._inside(address, size_bytes)
        self._calls.cover(address, size_bytes)
        self.unmap_calls += 1

    def release(self, address: int) -> None:
        """Gives a whole reservation back to the system, mapped or not."""
        size_bytes = self._sizes.get(address)
        if size_bytes is None:
            raise DriverError(
                f"address {address:#x} is not a reservation",
                call="munmap",
                fix="an address that reserve() has given, once",
            )
        self._calls.give_back(address, size_bytes)
        del self._sizes[address]
        self._bases.remove(address)

    def discard(self, address: int, size_bytes: int) -> None:
        """Gives back the memory of the whole pages in a range, wherever it is seen."""
        self._inside(address, size_bytes)
        self._calls.drop(address, size_bytes)

    def discard_all(self) -> None:
        """Gives back the memory of every byte; no piece of work may be under way."""
        if self._file is not None:
            self._calls.empty(self._file, self._paged_bytes)
            self._allocated = False

    def used_bytes(self) -> int:
        """Bytes of the machine's memory that the memfd holds, as the kernel counts them."""
        return 0 if self._file is None else file_bytes(self._file)

    def close(self) -> None:
        """Releases every reservation and the memory; arrays over it must not be used any more."""
        for address in list(self._bases):
            self.release(address)
        if self._file is not None:
            os.close(self._file)
        self._file = self._linear = None

    def _inside(self, address: int, size_bytes: int) -> None:
        # MAP_FIXED destroys whatever lies there, so it must lie in a live reservation of ours.
        index = bisect.bisect_right(self._bases, address) - 1
        base = self._bases[index] if index >= 0 else 0
        if index < 0 or size_bytes <= 0 or address + size_bytes > base + self._sizes[base]:
            raise DriverError(
                f"[{address:#x}, +{size_bytes}) does not lie within one reservation",
                call="mmap",
                fix="a range within what one reserve() has given",
            )


def whole_pages(size_bytes: int) -> int:
    """Bytes rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def open_arena(
    size_bytes: int, probe: Callable[[], str] = why_no_virtual_memory, *, at_once: bool = True
) -> Arena | VirtualArena:
    """An arena of `size_bytes`; a plain one where virtual memory is not available.

    Args:
        size_bytes: the budget.
        probe: says why there is no virtual memory; empty text where there is.
        at_once: False: `allocate` will be called.

    Raises:
        ConfigError: not positive, or more at once than this machine has free.
        DriverError: the system refused.
    """
    if size_bytes <= 0:
        raise ConfigError(
            f"an arena cannot have {size_bytes} bytes", code="OOC-102",
            fix="`ooctrain plan MODEL` prints the smallest budget that fits",
        )  # fmt: skip
    if at_once:  # else values move in, and leave as much behind
        check_memory(size_bytes, "the arena wants")
    return Arena(size_bytes) if probe() else VirtualArena(size_bytes, at_once=at_once)


def check_memory(size_bytes: int, what: str, available_bytes: int | None = None) -> None:
    """Raises ConfigError if this machine or a limit of this process leaves less memory.

    Args:
        what: wants the memory, with its verb: "the arena wants".
    """
    if available_bytes is None:
        room = tightest_room()
    else:
        room = MemoryRoom(available_bytes, available_bytes, MACHINE)
    if room is not None and size_bytes > room.free_bytes:
        limited = room.source != MACHINE
        source = f" of {format_bytes(room.limit_bytes)} by {room.source}" if limited else ""
        raise ConfigError(
            f"{what} more memory than "
            + ("a limit leaves to this process" if limited else "this machine has free"),
            code="OOC-108",
            numbers=f"wanted {format_bytes(size_bytes)}, free {format_bytes(room.free_bytes)}"
            + source,
            fix="a smaller --budget (100% is all that a step can use, and less will do), "
            "--host-budget or --memory",
        )


def available_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process may still take: what is free, and no more than each of its limits
    leaves (`step/allowance.py`); None where nothing of that can be read.
    """
    tightest = tightest_room(root)
    return None if tightest is None else tightest.free_bytes


def tightest_room(root: Path = Path("/")) -> MemoryRoom | None:
    """What limits this process's memory most: the machine, a control group or a resource limit."""
    free = _meminfo_available(root)
    machine = [] if free is None else [MemoryRoom(free, free, MACHINE)]
    return min([*machine, *memory_rooms(root)], key=lambda room: room.free_bytes, default=None)


def max_mapped_chunks(root: Path = Path("/")) -> int:
    """How many chunks may be mapped apart from each other: half of vm.max_map_count, less a
    reserve.

    Between two mapped chunks there may be an inaccessible gap, which counts as a mapping too.
    """
    text = _read(root / "proc/sys/vm/max_map_count")
    limit = int(text) if text and text.strip().isdigit() else _DEFAULT_MAX_MAPS
    return max(1, (limit - _SPARE_MAPS) // 2)


def _meminfo_available(root: Path) -> int | None:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return None
