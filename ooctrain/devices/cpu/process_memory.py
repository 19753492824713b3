"""What the operating system counts of a process's memory, from inside and from outside.

Linux's proportional set size (Pss) counts each page that a process sees once, and a page that n
processes share as a part of n. The resident set does not measure it: it counts a page of the arena
once for each address at which it is mapped (docs/allocators.md). Pss in turn does not see pages
that are mapped nowhere, and the arena takes all of its pages at the start, so those of the memfd
are counted by the file. Page cache is not part of it: the system takes that back when it needs it,
but pages of libraries and of mapped files that the process sees count as held. Source: proc(5),
"smaps_rollup"; the kernel's admin guide to control groups. Read next: `host_vm.py`;
`execution/fit.py`, which promises how much this will be.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024
_BLOCK_BYTES = 512  # what st_blocks counts in
#: Arrays of this many bytes have pages of their own.
LARGE_BYTES, M_MMAP_THRESHOLD = 1 << 18, -3
#: Looking takes at most this share of a core, and looks are at least so far apart.
WATCH_SHARE, WATCH_S = 0.03, 0.1


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process in bytes, by what it is.

    Args:
        anonymous: heap, stacks and private buffers.
        files: pages of libraries and mapped files, its part of those that others see too.
        files_alone: the same as if no other process saw them: what it may become when these end.
        shared: pages of shared memory that are mapped.
        memfd: pages of files in memory, whether mapped or not; such a page may be in `shared`.
    """

    anonymous: int
    files: int
    files_alone: int
    shared: int
    memfd: int

    @property
    def counted_bytes(self) -> int:
        """What counts: everything once, and no page of the arena twice or not at all."""
        return self.anonymous + self.files + max(self.shared, self.memfd)

    @property
    def most_bytes(self) -> int:
        """The same, if the process were the only one that uses its libraries."""
        return self.anonymous + self.files_alone + max(self.shared, self.memfd)


def held(process: int | str = "self", root: Path = Path("/")) -> ProcessMemory | None:
    """What a process holds now; None where no system says (no Linux), or it has ended."""
    try:
        text = (root / "proc" / str(process) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    found = {k: int(v) * _KIB for k, v in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    if "Pss_Anon" not in found:  # Linux before 5.9 does not distinguish kinds
        return None if "Pss" not in found else ProcessMemory(found["Pss"], 0, 0, 0, 0)
    memfd = _memfd_bytes(root / "proc" / str(process) / "fd")
    alone = max(found["Pss_File"], _files_alone(root / "proc" / str(process) / "status"))
    return ProcessMemory(found["Pss_Anon"], found["Pss_File"], alone, found["Pss_Shmem"], memfd)


def group_bytes(root: Path = Path("/")) -> int | None:
    """What the control group of this process is charged; None where the group has others in it, or
    it is unknown."""
    for line in _lines(root / "proc/self/cgroup"):
        _, kinds, path = line.split(":", 2)
        base = root / "sys/fs/cgroup" / ("memory" if kinds == "memory" else "")
        if kinds not in ("", "memory") or path == "/":
            continue
        group = base / path.lstrip("/")
        members = [int(each) for each in _lines(group / "cgroup.procs") if each.isdigit()]
        for name in ("memory.current", "memory.usage_in_bytes"):
            usage = _lines(group / name)
            if members == [os.getpid()] and usage:
                return int(usage[0])
    return None


def give_back_unused() -> None:
    """Collects unreachable objects, and gives back what the C library keeps of freed memory."""
    gc.collect()
    _c_library("malloc_trim", 0)


def give_back_at_once() -> None:
    """From now on each large array has pages of its own, which its end gives back.

    glibc puts ever larger ones into the heap, up to 32 MiB, as soon as the first of a size has been
    freed; there they leave gaps. Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    _c_library("mallopt", M_MMAP_THRESHOLD, LARGE_BYTES)


def _c_library(function: str, *arguments: int) -> None:
    """Calls a function that not every C library has."""
    found = getattr(ctypes.CDLL(None), function, None) if os.name == "posix" else None
    if found is not None:
        found(*arguments)


class MemoryWatch:
    """Looks at a process until it is closed: the most that it held.

    Args:
        process: its id; "self": this one.

    Attributes:
        most_bytes: most of what counts, at any look; 0: unknown.
        group_most_bytes: most of the control group, where this process is alone in it; else None.
    """

    def __init__(self, process: int | str = "self"):
        self._process = process
        self.most_bytes, self.group_most_bytes = 0, None if process != "self" else group_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ooctrain-watch", daemon=True)
        self.look()
        self._thread.start()

    def look(self) -> None:
        """Looks once more, now."""
        if (found := held(self._process)) is not None:
            self.most_bytes = max(self.most_bytes, found.counted_bytes)
        if self.group_most_bytes is not None:
            self.group_most_bytes = max(self.group_most_bytes, group_bytes() or 0)

    def close(self) -> None:
        """Looks a last time."""
        if not self._done.is_set():
            self._done.set()
            self._thread.join()
            self.look()

    def __enter__(self) -> MemoryWatch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _watch(self) -> None:
        pause = WATCH_S
        while not self._done.wait(pause):
            started = time.thread_time()
            self.look()
            pause = max(WATCH_S, (time.thread_time() - started) / WATCH_SHARE)


def _memfd_bytes(folder: Path) -> int:
    """Of all files in memory that a process has open, each once."""
    sizes: dict[int, int] = {}
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.readlink(entry).startswith("/memfd:"):
                    file = os.stat(entry)
                    sizes[file.st_ino] = file.st_blocks * _BLOCK_BYTES
    return sum(sizes.values())


def _files_alone(path: Path) -> int:
    for line in _lines(path):
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * _KIB
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
