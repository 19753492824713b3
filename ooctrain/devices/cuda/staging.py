"""Pinned memory by which values go to a GPU and come back, apart from the planned copies.

A GPU copies from ordinary memory only through a hidden buffer and while the host waits, so values
pass through pinned memory of our own. Parameters and inputs go piece by piece between steps, and
the host waits for each piece, in the order of the given stream. Wanted values of a running step
each go into a block that is kept, so the host need not wait, and every step after the first finds
its blocks ready. Source: cuda.h, cuMemcpyDtoHAsync; notes of the CUDA guide on pinned memory.
Read next: `device.py`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.raw_bytes import bytes_at

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _Block:
    """Pinned memory."""

    address: int
    size_bytes: int


class Staging:
    """Values on their way.

    Args:
        driver: opened, and current in this thread.
        piece_bytes: how much goes at a time.
    """

    def __init__(self, driver: GpuDriver, piece_bytes: int = PIECE_BYTES):
        self._driver, self._piece_bytes = driver, piece_bytes
        self._piece: _Block | None = None
        self._captured: list[_Block] = []
        self._used = 0  # blocks that hold values of this step
        self._era = 0
        self._kept: ExitStack | None = None  # keeps the blocks of values

    def keep(self, held: ExitStack | None) -> None:
        """Values from now on have blocks of their own, which stay until `held` is closed; None:
        they have those of the step again."""
        self._kept = held

    def write(self, address: int, data: np.ndarray, stream: int) -> None:
        """Writes uint8 data to the device, behind what is queued on the stream; waits for it."""
        for lo in range(0, data.size, self._piece_bytes):
            part = data[lo : lo + self._piece_bytes]
            piece = self._pinned()
            bytes_at(piece.address, part.size)[:] = part
            self._driver.copy_in(address + lo, piece.address, part.size, stream)
            self._driver.synchronize_stream(stream)

    def read(self, address: int, size_bytes: int, stream: int) -> np.ndarray:
        """A copy of device bytes, behind what is queued on the stream; waits for it."""
        data = np.empty(size_bytes, np.uint8)
        for lo in range(0, size_bytes, self._piece_bytes):
            part = data[lo : lo + self._piece_bytes]
            piece = self._pinned()
            self._driver.copy_out(piece.address, address + lo, part.size, stream)
            self._driver.synchronize_stream(stream)
            part[:] = bytes_at(piece.address, part.size)
        return data

    def capture(self, address: int, size_bytes: int, stream: int, era: int) -> np.ndarray:
        """Device bytes as a view, there once the stream is synchronized.

        Args:
            era: era of the streams: in a new one the blocks of the last are used again.
        """
        if self._kept is not None:
            block = self._allocate(size_bytes)
            self._kept.callback(give_back, self._driver.host_free, block.address)
        else:
            if era != self._era:
                self._era, self._used = era, 0
            block = self._block(size_bytes)
        self._driver.copy_out(block.address, address, size_bytes, stream)
        return bytes_at(block.address, size_bytes)

    def close(self) -> None:
        """Gives the pinned memory back; views of it must not be used any more."""
        blocks = [*self._captured, *([self._piece] if self._piece else [])]
        self._captured, self._piece = [], None
        for block in blocks:
            self._driver.host_free(block.address)

    def _pinned(self) -> _Block:
        if self._piece is None:
            self._piece = self._allocate(self._piece_bytes)
        return self._piece

    def _block(self, size_bytes: int) -> _Block:
        """The next block of this step, a larger one in its place if it is too small."""
        place, self._used = self._used, self._used + 1
        if place == len(self._captured):
            self._captured.append(self._allocate(size_bytes))
        elif self._captured[place].size_bytes < size_bytes:
            small, self._captured[place] = self._captured[place], self._allocate(size_bytes)
            self._driver.host_free(small.address)
        return self._captured[place]

    def _allocate(self, size_bytes: int) -> _Block:
        return _Block(self._driver.host_alloc(size_bytes), size_bytes)
