"""How fast this machine copies and maps memory, timed by itself.

The results are bytes per microsecond and microseconds per byte. Both are timed as they happen in a
training step: copies by the copy engines' kernel, mapping by the arena's own calls while another
thread copies. Read next: `calibrate.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np

from ooctrain.devices.cpu.host_vm import VirtualArena, why_no_virtual_memory
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.mapping_speed import measure_mapping

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
    with _beside_copies():
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
def _beside_copies() -> Iterator[None]:
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
