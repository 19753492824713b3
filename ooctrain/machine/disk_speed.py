"""How fast a disk serves as the host: written to, read from, and both at once.

The slab's own file is timed (`devices/host_file.py`), with copies as large as a step's and as
small as a block, so what is measured is what a step meets: pieces, several on their way, past the
page cache. The planner is given the speed of reading while writing. Where the two together take
nearly as long as one after the other, the disk is one link that both share; where they take hardly
longer than the slower of them, each direction has its own. Read next: `calibrate.py`;
`step/machine.py`, `Disk`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from ooctrain.devices.host_file import HostFile
from ooctrain.devices.spill import BLOCK_BYTES, Spill, aligned_bytes
from ooctrain.step.machine import Disk

COPY_BYTES = 16 << 20
COPIES = 8
SMALL_COPIES = 32
#: What is written in all: once to lay the file out, then alone, then while reading.
WRITTEN_BYTES = 3 * COPIES * COPY_BYTES + SMALL_COPIES * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class DiskTimes:
    """Microseconds for the same number of bytes in each way.

    Args:
        out, into: by themselves.
        out_beside, into_beside: while the other goes on.
    """

    out: float
    into: float
    out_beside: float
    into_beside: float


def measure_disk(folder: str) -> Disk:
    """Writes `WRITTEN_BYTES` to a file in the folder, which is gone afterwards.

    Raises:
        ConfigError: the folder is not writable or has too little space.
        TransferError: the disk fails.
    """
    slab = HostFile(Spill(folder), 2 * COPIES * COPY_BYTES)
    try:
        out, into = _Way(slab, writes=True, first=0), _Way(slab, writes=False, first=COPIES)
        for way in (out, _Way(slab, writes=True, first=COPIES)):
            way.all()
        alone = out.all(), into.all()
        found = link_of(DiskTimes(*alone, *_beside(out.all, into.all)), folder)
        small_us = [way.small() for way in (out, into) for _ in range(SMALL_COPIES)]
    finally:
        slab.close()
    rate = (found.out_bytes_per_us + found.in_bytes_per_us) / 2
    latency_us = max(0.0, median(small_us) - BLOCK_BYTES / rate)
    return Disk(found.out_bytes_per_us, found.in_bytes_per_us, found.link, latency_us, folder)


def link_of(times: DiskTimes, folder: str = "") -> Disk:
    """The link that foretells what both directions take together, and its rates."""
    size_bytes = COPIES * COPY_BYTES
    together_us = max(times.out_beside, times.into_beside)
    in_turns_us, at_once_us = times.out + times.into, max(times.out, times.into)
    if together_us < (in_turns_us + at_once_us) / 2:
        out_us, into_us = times.out_beside, times.into_beside
        return Disk(size_bytes / out_us, size_bytes / into_us, "duplex", folder=folder)
    return Disk(size_bytes / times.out, size_bytes / times.into, "shared", folder=folder)


class _Way:
    """Copies in one direction, to places of its own."""

    def __init__(self, slab: HostFile, *, writes: bool, first: int):
        self._slab, self._writes, self._first = slab, writes, first
        self._memory = aligned_bytes(COPY_BYTES)

    def all(self) -> float:
        """Makes all copies; returns how long they took together, in us."""
        started = time.perf_counter()
        for number in range(self._first, self._first + COPIES):
            self._copy(number * COPY_BYTES, COPY_BYTES)
        return (time.perf_counter() - started) * 1e6

    def small(self) -> float:
        """How long a copy of one block takes, in us."""
        started = time.perf_counter()
        self._copy(self._first * COPY_BYTES, BLOCK_BYTES)
        return (time.perf_counter() - started) * 1e6

    def _copy(self, offset: int, size_bytes: int) -> None:
        disk, memory = self._slab.address + offset, self._memory.ctypes.data
        target, source = (disk, memory) if self._writes else (memory, disk)
        self._slab.copy(target, source, size_bytes)


def _beside(one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """Both at the same time."""
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(other)
        return one(), asked.result()
