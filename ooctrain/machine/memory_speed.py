"""How fast this machine copies memory or maps it, timed by itself.

The results are bytes per microsecond and microseconds per byte. Both are timed as they happen in a
training step: copies by the copy engines' kernel, mapping by the arena's own calls while another
thread copies. Read next: `calibrate.py`, which makes them part of a machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from ooctrain.devices.cpu.host_vm import VirtualArena, why_no_virtual_memory
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.driver_memory import DriverMemory
from ooctrain.devices.driver_calls import VmmDriver

COPY_BYTES = 64 << 20
COPIES = 8
#: What a step maps in one piece: of the size that `combined` moves in parts (measured, ResNet-18).
MAP_PIECE_BYTES = 2 << 20


def copy_bytes_per_us() -> float:
    """How fast one copy engine copies when no link slows it down."""
    copy = _copy()
    copy()
    times = []
    for _ in range(COPIES):
        started = time.perf_counter()
        copy()
        times.append((time.perf_counter() - started) * 1e6)
    return COPY_BYTES / median(times)


def gpu_map_us_per_byte() -> float:
    """How long a GPU's driver takes to map a byte instead of another; 0 where it maps none."""
    driver = cuda_open.open_cuda_driver()
    try:
        return measure_mapping(driver).us_per_byte if driver.maps else 0.0
    finally:
        driver.close()


def map_us_per_byte() -> float:
    """How long it takes to map pages over others; 0 where memory cannot be mapped.

    The first turn is not counted: it maps where nothing is mapped yet. Pieces are mapped in the
    reverse order of the arena, so that the system cannot join neighbours. Another thread copies
    meanwhile, as in a step: its processor must drop the old addresses from its translation cache
    (TLB) too, which takes twice the time (measured).
    """
    if why_no_virtual_memory():
        return 0.0
    arena, times = VirtualArena(COPY_BYTES), []
    address, last = arena.reserve(COPY_BYTES), COPY_BYTES - MAP_PIECE_BYTES
    with _during_copies():
        for turn in range(COPIES):
            started = time.perf_counter()
            for at in range(0, COPY_BYTES, MAP_PIECE_BYTES):
                arena.map(
                    address + (at + turn * MAP_PIECE_BYTES) % COPY_BYTES, last - at, MAP_PIECE_BYTES
                )
            times.append((time.perf_counter() - started) * 1e6)
    arena.close()
    return median(times[1:]) / COPY_BYTES


@contextmanager
def _during_copies() -> Iterator[None]:
    """A thread that copies all the while."""
    copy, stopped = _copy(), threading.Event()

    def work() -> None:
        while not stopped.is_set():
            copy()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _copy() -> Callable[[], object]:
    """A function that makes one copy of `COPY_BYTES` by the copy engines' kernel."""
    # Not at the top, since it loads Numba, and `--help` is to answer at once.
    from ooctrain.layers.kernels.cpu.runtime.copy import stream_copy

    # Written once, so that the pages are there before anything is timed.
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    return lambda: stream_copy(target, source)


# A GPU's driver: microseconds to map a piece of its memory and to unmap it, in the first turn and
# in a later one. All pieces are mapped by one call of `DriverMemory`, as an allocator maps a block,
# so that setting access counts once. The driver works while the host waits: this is time of the
# thread that issues a step. See `../devices/cuda/driver_memory.py`.

PIECES = 256
TURNS = 2


@dataclass(frozen=True, slots=True)
class MappingTimes:
    """Microseconds a piece.

    Args:
        piece_bytes: what the driver maps at least.
        map_us, unmap_us: in each turn, the first one first.
    """

    piece_bytes: int
    map_us: tuple[float, ...]
    unmap_us: tuple[float, ...]

    @property
    def us_per_byte(self) -> float:
        """Of what is mapped anew instead of something else, in the last turn."""
        return (self.map_us[-1] + self.unmap_us[-1]) / self.piece_bytes


def measure_mapping(driver: VmmDriver, pieces: int = PIECES) -> MappingTimes:
    """Maps and unmaps this many pieces; leaves nothing behind. Cost: some 40 ms on an H200.

    Args:
        driver: opened, and current in this thread.
    """
    size_bytes = pieces * driver.granularity()
    memory, map_us, unmap_us = DriverMemory(driver, size_bytes), list[float](), list[float]()
    try:
        address = memory.reserve(size_bytes)
        for _ in range(TURNS):
            began = time.perf_counter()
            memory.map(address, 0, size_bytes)
            mapped = time.perf_counter()
            memory.unmap(address, size_bytes)
            map_us.append((mapped - began) * 1e6 / pieces)
            unmap_us.append((time.perf_counter() - mapped) * 1e6 / pieces)
    finally:
        memory.close()
    return MappingTimes(driver.granularity(), tuple(map_us), tuple(unmap_us))
