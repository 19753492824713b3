"""The arena of the cpu device: virtual memory from memfd with mmap, or a plain buffer without it.

A budget in bytes becomes an `Arena` whose bytes can be mapped, chunk by chunk, into reserved
address ranges, as in a GPU driver's virtual memory management. A memfd is the physical memory (its
blocks are what the budget pays for), an inaccessible reservation is the address range, and mapping
is mmap(MAP_SHARED | MAP_FIXED) of one onto the other. An unmapped page is covered by an
inaccessible mapping and never returned by munmap, since any later mmap of the process could land in
the hole. The same calls serve behind the driver object (`testing/host_driver.py`), which checks
CUDA's rules as well; the arena keeps no tables, so it adds no cost to the calls. Source: paper 000,
section 3.3 (virtual addressing), with CUDA's calls replaced by Linux's. Read next:
`alloc/virtual.py`.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ooctrain.errors import ConfigError, DriverError, VmmUnavailable
from ooctrain.step.allowance import MemoryLimit, memory_limits
from ooctrain.units import format_bytes

__all__ = [
    "PAGE_BYTES", "Arena", "VirtualArena", "available_memory_bytes", "check_memory",
    "max_mapped_chunks", "open_arena", "tightest_limit", "whole_pages", "why_no_virtual_memory",
]  # fmt: skip


# Linux's calls for memory, by ctypes. Python's own `mmap` module cannot place a mapping at an
# address, so the C functions are bound with their argument types. Addresses and sizes are plain
# ints; a failed call raises `DriverError` with the call, its errno and the meaning of that errno
# here. Every call that may destroy foreign memory (MAP_FIXED) is in this section. Sources: mmap(2),
# memfd_create(2), madvise(2).

PAGE_BYTES = mmap.PAGESIZE
# Linux's numbers; Python's mmap module leaves some of them out on other systems and versions.
_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
_MAP_NORESERVE, _MAP_POPULATE = 0x4000, 0x8000
_RESERVED = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
_MADV_REMOVE, _MADV_DONTFORK = 9, 10
_BLOCK_BYTES = 512  # what st_blocks counts in
_FALLBACK = "use --allocator best-fit"
_FIXES: Mapping[int, str] = {
    errno.ENOMEM: "fewer, larger chunks (vm.max_map_count), or a smaller --budget",
    errno.ENOSPC: "a smaller --budget",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}
_SIGNATURES: Mapping[str, tuple[type, tuple[type, ...]]] = {
    "mmap": (
        ctypes.c_void_p,
        (ctypes.c_void_p, ctypes.c_size_t, *3 * (ctypes.c_int,), ctypes.c_int64),
    ),
    "munmap": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_size_t)),
    "madvise": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)),
}


class HostCalls:
    """Address ranges of this process, and a file in memory to map into them.

    Raises:
        VmmUnavailable: a call is missing on this system.
    """

    def __init__(self) -> None:
        reason = why_no_virtual_memory()
        if reason:
            raise VmmUnavailable(
                "virtual addressing is not available", call="memfd_create", numbers=reason,
                fix=_FALLBACK,
            )  # fmt: skip
        self._libc = ctypes.CDLL(None, use_errno=True)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._libc, name)
            function.restype, function.argtypes = result, arguments

    def make_file(self, size_bytes: int) -> int:
        """A file in memory; none of its bytes is allocated."""
        try:
            file = os.memfd_create("ooctrain", os.MFD_CLOEXEC)
        except OSError as error:
            raise VmmUnavailable(
                "this system refuses memfd_create", call="memfd_create", status=error.errno or 0,
                numbers=os.strerror(error.errno or 0), fix=_FALLBACK,
            ) from error  # fmt: skip
        try:
            os.ftruncate(file, size_bytes)
        except OSError as error:
            os.close(file)
            raise _failed("ftruncate", error.errno or 0) from error
        return file

    def allocate(self, file: int, size_bytes: int) -> None:
        """Allocates all bytes of a file in memory that are not yet: a memfd never says that memory
        is short, a process that writes to it is killed instead. The caller has compared the size
        with the free memory (`host_vm.check_memory`): to allocate more than that gets a process
        killed, too."""
        try:
            os.posix_fallocate(file, 0, size_bytes)
        except OSError as error:
            raise _failed("posix_fallocate", error.errno or 0) from error

    def reserve(self, size_bytes: int, hint: int = 0) -> int:
        """Address of a fresh inaccessible range. Costs address space and no memory."""
        address = self._mmap(hint or None, size_bytes, _PROT_NONE, _RESERVED)
        try:
            self._keep_from_children(address, size_bytes)
        except DriverError:
            self.give_back(address, size_bytes)
            raise
        return address

    def place(
        self, address: int, size_bytes: int, file: int, offset: int, *, enter: bool = True
    ) -> None:
        """Maps a part of the file over what is at `address`.

        Args:
            enter: its pages are entered at once, and so are allocated.
        """
        flags = _MAP_SHARED | _MAP_FIXED | (_MAP_POPULATE if enter else 0)
        self._mmap(address, size_bytes, _PROT_READ_WRITE, flags, (file, offset))
        self._keep_from_children(address, size_bytes)

    def cover(self, address: int, size_bytes: int) -> None:
        """Makes a range inaccessible; it stays reserved.

        Never munmap: the next mmap of the process would land in the hole, and the next MAP_FIXED
        destroy it.
        """
        self._mmap(address, size_bytes, _PROT_NONE, _RESERVED | _MAP_FIXED)
        self._keep_from_children(address, size_bytes)

    def drop(self, address: int, size_bytes: int) -> None:
        """Gives back the memory behind the whole pages in a range, which reads as zeros then; where
        the system cannot, nothing happens."""
        first = -(-address // PAGE_BYTES) * PAGE_BYTES
        pages = (address + size_bytes - first) // PAGE_BYTES
        if pages > 0:
            self._libc.madvise(first, pages * PAGE_BYTES, _MADV_REMOVE)

    def empty(self, file: int, size_bytes: int) -> None:
        """Gives back all memory of a file, wherever it is mapped; it reads as zeros then."""
        os.ftruncate(file, 0)
        os.ftruncate(file, size_bytes)

    def give_back(self, address: int, size_bytes: int) -> None:
        """Ends a reservation."""
        if self._libc.munmap(address, size_bytes):
            raise _failed("munmap", ctypes.get_errno())

    def _mmap(
        self, address: int | None, size_bytes: int, protection: int, flags: int,
        file_and_offset: tuple[int, int] = (-1, 0),
    ) -> int:  # fmt: skip
        result = self._libc.mmap(address, size_bytes, protection, flags, *file_and_offset)
        if result == ctypes.c_void_p(-1).value:
            raise _failed("mmap", ctypes.get_errno())
        return result

    def _keep_from_children(self, address: int, size_bytes: int) -> None:
        # A shared mapping is shared with a forked child too: it would write into our tensors.
        if self._libc.madvise(address, size_bytes, _MADV_DONTFORK):
            raise _failed("madvise", ctypes.get_errno())


def file_bytes(file: int) -> int:
    """Bytes of the machine's memory that a file holds, as the kernel counts them."""
    return os.fstat(file).st_blocks * _BLOCK_BYTES


def why_no_virtual_memory() -> str:
    """Why memfd and mmap cannot be used here; empty where they can."""
    if not sys.platform.startswith("linux"):
        return f"memfd is a call of Linux, and this is {sys.platform}"
    if not hasattr(os, "memfd_create"):
        return "this Python has no os.memfd_create"
    return ""


def _failed(call: str, number: int) -> DriverError:
    return DriverError(
        f"{call} failed: {os.strerror(number)}", call=call, status=number,
        fix=_FIXES.get(number, "`ooctrain doctor` says what this system lacks"),
    )  # fmt: skip


# The arena.

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
        limit = tightest_limit()
    else:
        limit = MemoryLimit(available_bytes, available_bytes, MACHINE)
    if limit is not None and size_bytes > limit.free_bytes:
        limited = limit.source != MACHINE
        source = f" of {format_bytes(limit.limit_bytes)} by {limit.source}" if limited else ""
        raise ConfigError(
            f"{what} more memory than "
            + ("a limit leaves to this process" if limited else "this machine has free"),
            code="OOC-108",
            numbers=f"wanted {format_bytes(size_bytes)}, free {format_bytes(limit.free_bytes)}"
            + source,
            fix="a smaller --budget (100% is all that a step can use, and less will do), "
            "--host-budget or --memory",
        )


def available_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process may still take: what is free, and no more than each of its limits
    leaves (`step/allowance.py`); None where nothing of that can be read.
    """
    tightest = tightest_limit(root)
    return None if tightest is None else tightest.free_bytes


def tightest_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """What limits this process's memory most: the machine, a control group or a resource limit."""
    free = _meminfo_available(root)
    machine = [] if free is None else [MemoryLimit(free, free, MACHINE)]
    return min([*machine, *memory_limits(root)], key=lambda limit: limit.free_bytes, default=None)


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
