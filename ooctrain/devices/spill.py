"""A folder on a disk that serves as the host: what it can do, and why it cannot be used.

A `Spill` names the folder and, if wanted, a limit on the rate. `look_at` tries the folder out with
a file of one block before anything is planned, so a folder that is missing, read-only or in fact
memory (tmpfs) is refused while nothing is lost, and a file system that cannot pass the page cache
by (`O_DIRECT`) is known and named. `FileCalls` are the system's calls on that one file, in one
place, so that a test can put failing ones in their stead. The file never has a name (`O_TMPFILE`;
else it loses it at once), so a process that is killed leaves nothing on the disk. Sources: open(2),
statfs(2), posix_fallocate(3), posix_fadvise(2). Read next: `host_file.py`, which keeps the slab in
such a file; docs/spill.md.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.step.machine import Machine
from ooctrain.step.user_values import as_path
from ooctrain.units import format_bytes, rate_of

try:
    import fcntl
except ImportError:  # not on Windows, where nothing bypasses the page cache
    fcntl = None  # type: ignore[assignment]

#: What a file is read and written in, where the page cache is passed by.
BLOCK_BYTES = 4096
_ZEROS_BYTES = 1 << 20
#: statfs(2): what is memory under the name of a file system.
_MEMORY: Mapping[int, str] = {
    0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs",
}  # fmt: skip
_NAMES: Mapping[int, str] = {
    **_MEMORY, 0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x794C7630: "overlayfs",
    0x6969: "nfs", 0x2FC12FC1: "zfs", 0x65735546: "fuse", 0xF2F52010: "f2fs", 0xFF534D42: "cifs",
}  # fmt: skip
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_NO_BYPASS = (errno.EINVAL, errno.EOPNOTSUPP)
_NO_RESERVING = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
#: {errno: what it means of the folder, what mends it}
MEANINGS: Mapping[int, tuple[str, str]] = {
    errno.ENOENT: ("is not there", "mkdir -p the folder, or name another one"),
    errno.ENOTDIR: (
        "is not a folder",
        "name a folder; the file in it is made and removed by itself",
    ),
    errno.EACCES: ("may not be written to", "a folder that this user may write to"),
    errno.EPERM: ("may not be written to", "a folder that this user may write to"),
    errno.EROFS: ("is read-only", "a folder on a disk that is mounted for writing"),
    errno.ENOSPC: ("has no space left", "free some, another disk, a larger --budget or --memory"),
    errno.EDQUOT: (
        "is beyond this user's quota",
        "free some, another disk, a larger --budget or --memory",
    ),
    errno.EFBIG: ("allows no file of this size", "raise the limit of a file's size (ulimit -f)"),
    errno.EMFILE: ("cannot be used: too many open files", "raise their number (ulimit -n)"),
    errno.EIO: ("cannot be read or written: the disk fails", "another disk; `dmesg` says more"),
}


@dataclass(frozen=True, slots=True)
class Spill:
    """The disk as host.

    Args:
        folder: in which the file lies.
        bytes_per_us: each direction is at most this fast; None: as fast as the disk.
        place: what it could do when it was looked at; None: it has not been.

    Raises:
        ConfigError: no folder is named, or the rate is not one.
    """

    folder: str
    bytes_per_us: float | None = None
    place: SpillPlace | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.folder:
            raise ConfigError("--spill needs a folder", code="OOC-142", fix="--spill /tmp")
        if self.bytes_per_us is not None:
            object.__setattr__(self, "bytes_per_us", rate_of(self.bytes_per_us, "spill rate"))


def as_spill(given: Spill | str | os.PathLike[str] | None) -> Spill | None:
    """A folder as it is given to a trainer. Raises ConfigError: something else was given."""
    if given is None or isinstance(given, Spill):
        return given
    if isinstance(given, str | os.PathLike):
        return Spill(os.fspath(given) and str(as_path(given)))
    raise ConfigError(
        f"{type(given).__name__} is not a folder to spill to", code="OOC-142",
        fix='spill="/tmp", or Spill("/tmp", bytes_per_us=500)',
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpillPlace:
    """What a folder can do.

    Args:
        folder: as it was named.
        file_system: its name, or the number of its type.
        direct: whether files pass the page cache by (`O_DIRECT`).
        free_bytes: that this user may still take.
    """

    folder: str
    file_system: str
    direct: bool
    free_bytes: int

    @property
    def text(self) -> str:
        """In words."""
        how = "past the page cache" if self.direct else "through the page cache, emptied each time"
        return f"{self.folder}, {self.file_system}, {how}, {format_bytes(self.free_bytes)} free"


class FileCalls:
    """The system's calls on the file; each may raise OSError, and move less than was requested."""

    def file_system(self, folder: str) -> int:
        """The number of the file system's type (statfs); 0 where the system has no such call."""
        if not sys.platform.startswith("linux"):
            return 0
        found = (ctypes.c_ulong * 64)()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.statfs(os.fsencode(folder), ctypes.byref(found)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(found[0]) & 0xFFFFFFFF

    def free_bytes(self, folder: str) -> int:
        """Bytes that this user may still take."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def make(self, folder: str) -> int:
        """A file without a name, for reading and writing."""
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
        try:
            if hasattr(os, "O_TMPFILE"):
                return os.open(folder, flags | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
        file, path = tempfile.mkstemp(prefix="ooctrain-", dir=folder)
        os.unlink(path)
        return file

    def reserve(self, file: int, size_bytes: int) -> None:
        """Takes the space on the disk."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, size_bytes)
                return
        except OSError as error:
            if error.errno not in _NO_RESERVING:
                raise
        zeros = bytes(_ZEROS_BYTES)
        for offset in range(0, size_bytes, _ZEROS_BYTES):
            os.pwrite(file, zeros[: size_bytes - offset], offset)

    def bypass(self, file: int, wanted: bool) -> None:
        """Reads and writes past the page cache from now on, or through it."""
        flag = getattr(os, "O_DIRECT", 0)
        if wanted and (fcntl is None or not flag):
            raise OSError(errno.EINVAL, "no O_DIRECT")
        if fcntl is not None and flag:
            flags = fcntl.fcntl(file, fcntl.F_GETFL)
            fcntl.fcntl(file, fcntl.F_SETFL, flags | flag if wanted else flags & ~flag)

    def is_cached(self, file: int) -> bool:
        """Whether the page cache holds the first block (mincore); False where that is unknown."""
        mincore = getattr(ctypes.CDLL(None), "mincore", None) if os.name == "posix" else None
        if mincore is None:
            return False
        state = ctypes.c_ubyte()
        with mmap.mmap(file, BLOCK_BYTES) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            address = ctypes.c_void_p(ctypes.addressof(first))
            failed = mincore(address, ctypes.c_size_t(BLOCK_BYTES), ctypes.byref(state))
            del first, address  # else the mapping could not end
        return not failed and bool(state.value & 1)

    def write(self, file: int, data: Any, offset: int) -> int:
        """Writes bytes; returns how many. The GIL is released meanwhile, as in `read`."""
        return os.pwrite(file, data, offset)

    def read(self, file: int, into: Any, offset: int) -> int:
        """Reads bytes into memory; returns how many."""
        return os.preadv(file, [into], offset)

    def sync(self, file: int) -> None:
        """Waits until the disk has what went through the page cache, or has refused it."""
        getattr(os, "fdatasync", os.fsync)(file)

    def forget(self, file: int, offset: int, size_bytes: int) -> None:
        """Takes clean pages out of the page cache; of the range's edges too."""
        if hasattr(os, "posix_fadvise"):
            first = offset // BLOCK_BYTES * BLOCK_BYTES
            end = -(-(offset + size_bytes) // BLOCK_BYTES) * BLOCK_BYTES
            os.posix_fadvise(file, first, end - first, os.POSIX_FADV_DONTNEED)

    def expect_no_order(self, file: int) -> None:
        """Nothing is read ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self, file: int) -> None:
        """Gives the file and its space back; what it held is not wanted, so nothing fails."""
        with suppress(OSError):
            os.close(file)

    def shrink(self, file: int, size_bytes: int) -> None:
        """Gives back the space beyond these bytes."""
        os.ftruncate(file, size_bytes)


def look_at(folder: str, calls: FileCalls | None = None) -> SpillPlace:
    """Tries a folder out with a file of one block, which is gone afterwards.

    Raises:
        ConfigError: nothing can be spilled to it.
    """
    calls = calls or FileCalls()
    file, direct = open_file(folder, BLOCK_BYTES, calls)
    try:
        kind = calls.file_system(folder)
        name = _NAMES.get(kind, f"file system {kind:#x}" if kind else "file system unknown")
        return SpillPlace(folder, name, direct, calls.free_bytes(folder))
    except OSError as error:
        raise refusal(folder, error) from error
    finally:
        calls.close(file)


def spill_notices(spill: Spill, machine: Machine) -> tuple[str, ...]:
    """What to know of the disk that is the host; it is looked at if it has not been.

    Raises:
        ConfigError: nothing can be spilled to the folder.
    """
    place, disk = spill.place or look_at(spill.folder), machine.disk
    found = []
    if not place.direct:
        found.append(
            f"{place.file_system} does not pass the page cache by (O_DIRECT): each copy waits for "
            "the disk and empties its part of the cache"
        )
    if disk is None or os.path.realpath(disk.folder) != os.path.realpath(spill.folder):
        known = f"was measured in {disk.folder}" if disk else "is taken for one of 1 GB/s"
        command = f"ooctrain calibrate MODEL --spill {spill.folder}"
        found.append(f"the disk {known}; `{command}` measures it")
    return tuple(found)


def open_file(folder: str, size_bytes: int, calls: FileCalls) -> tuple[int, bool]:
    """A file of whole blocks whose space is taken, and whether it passes the page cache by.

    Raises:
        ConfigError: the folder is not writable or has too little space.
    """
    try:
        if not os.path.isdir(folder):
            raise OSError(errno.ENOTDIR if os.path.exists(folder) else errno.ENOENT, "")
        kind = calls.file_system(folder)
        if kind in _MEMORY:
            raise ConfigError(
                f"{folder} is memory: a {_MEMORY[kind]}", code="OOC-142",
                where="the folder to spill to", numbers="what is spilled there stays in RAM",
                fix="a folder on a disk; `df -T` lists them, and /var/tmp is usually on one",
            )  # fmt: skip
        file = calls.make(folder)
    except FileNotFoundError as error:  # the folder is there, as in /proc, and takes no files
        there = os.path.isdir(folder)
        raise refusal(folder, PermissionError(errno.EPERM, "") if there else error) from error
    except OSError as error:
        raise refusal(folder, error) from error
    try:
        calls.reserve(file, size_bytes)
        direct = _passes_cache_by(file, calls)
        if not direct:
            calls.expect_no_order(file)
    except OSError as error:
        calls.close(file)
        raise refusal(folder, error, size_bytes, calls) from error
    except BaseException:
        calls.close(file)
        raise
    return file, direct


def refusal(
    folder: str, error: OSError, size_bytes: int = 0, calls: FileCalls | None = None,
    more: str = "",
) -> ConfigError:  # fmt: skip
    """Why the folder cannot be written to, or has too little space (for this much more)."""
    known = MEANINGS.get(error.errno or 0)
    what, fix = known or (f"cannot be used: {os.strerror(error.errno or 0)}", "another folder")
    numbers = ""
    if size_bytes and calls is not None:
        numbers = f"wanted {format_bytes(size_bytes)}{more}"
        with suppress(OSError):  # the folder may have gone meanwhile
            numbers += f", free {format_bytes(calls.free_bytes(folder))}"
    return ConfigError(
        f"{folder} {what}", code="OOC-142", where="the folder to spill to", numbers=numbers, fix=fix
    )


def aligned_bytes(size_bytes: int) -> np.ndarray:
    """Memory that begins at a page, as reading and writing past the page cache wants it."""
    # Shared memory would be counted together with the arena (`cpu/process_memory.py`).
    private = (
        {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    )
    return np.frombuffer(mmap.mmap(-1, size_bytes, **private), np.uint8)


def _passes_cache_by(file: int, calls: FileCalls) -> bool:
    """Whether blocks can be written and read past the page cache: some file systems take the flag
    and refuse the first block, and others (ext4 with data=journal) take it and do as they did."""
    block = aligned_bytes(BLOCK_BYTES)
    try:
        calls.bypass(file, wanted=True)
        calls.write(file, block, 0)
        calls.read(file, block, 0)
        passes = not calls.is_cached(file)
    except OSError as error:
        if error.errno not in _NO_BYPASS:
            raise
        passes = False
    if not passes:
        calls.bypass(file, wanted=False)
    return passes
