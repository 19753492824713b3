"""Files for the host slab that fail, move less than they were asked for, or watch what is done.

Each is the system's calls (`devices/spill.py`, `FileCalls`) with one thing changed. `Anywhere`
takes any folder for a disk, since a test's own folder may lie in memory. Read next:
`../unit/test_spill.py`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time

from ooctrain.devices.spill import FileCalls

EXT4 = 0xEF53


class Anywhere(FileCalls):
    """Watches that nothing is written or read beyond what was reserved."""

    def __init__(self):
        self.reserved, self.writes, self.files = 0, 0, []

    def file_system(self, folder):
        return EXT4

    def make(self, folder):
        self.files.append(super().make(folder))
        return self.files[-1]

    def reserve(self, file, size_bytes):
        super().reserve(file, size_bytes)
        self.reserved = size_bytes

    def write(self, file, data, offset):
        self.writes += 1
        assert offset + len(data) <= self.reserved, "a write past the slab's end"
        return super().write(file, data, offset)

    def read(self, file, into, offset):
        assert offset + len(into) <= self.reserved, "a read past the slab's end"
        return super().read(file, into, offset)


class Buffered(Anywhere):
    """A file system without O_DIRECT: `how` says whether it refuses the flag, or the first block,
    or "silently" nothing.

    A write goes to the page cache, and only `sync` says whether the disk took it.
    """

    def __init__(self, how="flag"):
        super().__init__()
        self.how, self.direct, self.synced = how, False, 0

    def bypass(self, file, wanted):
        if wanted and self.how == "flag":
            raise OSError(errno.EINVAL, "")
        self.direct = wanted

    def write(self, file, data, offset):
        if self.direct and self.how == "first block":
            raise OSError(errno.EINVAL, "")
        return super().write(file, data, offset)

    def sync(self, file):
        self.synced += 1
        super().sync(file)


class Slow(Buffered):
    """Of a copy's pieces the first is done last."""

    def write(self, file, data, offset):
        time.sleep(0.03 if offset == 0 else 0.001)
        return super().write(file, data, offset)


class Short(Anywhere):
    """Every call moves only a part, not always whole blocks, and some are interrupted."""

    def __init__(self):
        super().__init__()
        self.turn = 0

    def part(self, size):
        self.turn += 1
        if self.turn % 5 == 0:
            raise InterruptedError(errno.EINTR, "")
        return size if size <= 4096 else max(4096, size // 2 + 100)

    def write(self, file, data, offset):
        # The system itself takes whole blocks; it may say that it took fewer bytes.
        kept = self.part(len(data))
        super().write(file, data, offset)
        return kept

    def read(self, file, into, offset):
        kept = self.part(len(into))
        before = bytes(into[kept:])
        count = super().read(file, into, offset)
        into[kept:] = memoryview(before)
        return min(count, kept)


class Failing(Anywhere):
    """Fails from a write or read on: after `well` of them each call raises `number`."""

    def __init__(self, number, well=0, *, calls=("write",)):
        super().__init__()
        self.number, self.left, self.calls = number, well, calls
        self.lock = threading.Lock()

    def fail(self, call):
        with self.lock:
            if call in self.calls:
                self.left -= 1
                if self.left < 0:
                    raise OSError(self.number, os.strerror(self.number))

    def reserve(self, file, size_bytes):
        self.fail("reserve")
        super().reserve(file, size_bytes)

    def make(self, folder):
        self.fail("make")
        return super().make(folder)

    def write(self, file, data, offset):
        self.fail("write")
        return super().write(file, data, offset)

    def read(self, file, into, offset):
        self.fail("read")
        return super().read(file, into, offset)


class LateFailing(Buffered):
    """Writes go well, into the page cache; the disk has refused them, as `sync` learns."""

    def sync(self, file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def cached_pages(file):
    """Pages of a file that are in the page cache (mincore(2))."""
    size = os.fstat(file).st_size
    pages = -(-size // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    seen = (ctypes.c_ubyte * pages)()
    with mmap.mmap(file, size) as mapped:
        there = (ctypes.c_char * size).from_buffer(mapped)
        found = libc.mincore(
            ctypes.c_void_p(ctypes.addressof(there)), ctypes.c_size_t(size), ctypes.byref(seen)
        )
        del there
        assert found == 0, os.strerror(ctypes.get_errno())
    return sum(state & 1 for state in seen)
