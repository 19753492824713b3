"""Linux's calls for memory: the few that virtual addressing on the host needs, by ctypes.

Python's own `mmap` module cannot place a mapping at an address, so the C functions are bound with
their argument types. Addresses and sizes are plain ints; a failed call raises `DriverError` with
the call, its errno and the meaning of that errno here. Every call that may destroy foreign memory
(MAP_FIXED) stands in this file alone. Sources: mmap(2), memfd_create(2), madvise(2). Read next:
`testing/host_driver.py`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Mapping

from ooctrain.errors import DriverError, VmmUnavailable

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
        VmmUnavailable: this system lacks one of the calls.
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

        Never munmap: anybody's next mmap would land in the hole, and the next MAP_FIXED destroy it.
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
