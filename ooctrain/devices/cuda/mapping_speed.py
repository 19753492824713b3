"""How long a driver takes to map a piece of its memory, and to unmap it: many pieces, on the clock.

An opened driver gives microseconds a piece, of the first turn and of a later one. All pieces are
mapped by one call of `DriverMemory`, as an allocator maps a block, so that setting access counts
once. The driver works while the host waits: this is time of the thread that issues a step. Read
next: `driver_memory.py`; `machine/calibrate.py`, which makes it part of a machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ooctrain.devices.cuda.driver_memory import DriverMemory
from ooctrain.devices.driver_calls import VmmDriver

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
