"""A GPU's host slab on a disk: pinned pieces between the file and the device.

A GPU copies from and to pinned memory alone, and a file is read and written by the host. So a copy
out goes to pinned pieces, and from there to the file once the GPU has filled them; a copy in is
read into pieces, which the GPU empties when its turn comes. The host queues a copy out and goes on;
it waits for the GPU only where all pieces are in use, or where a copy in wants bytes that are still
on their way to the file. Pieces are settled in the order in which they were queued, by the one
thread that walks the list. So the file sees every read and write in list order, and the list's own
rules make that right. A piece that the disk refuses stays on its way: the old bytes there are not
read before. Source: docs/schedule.md, "Streams"; CUDA guide, pinned memory. Read next: `device.py`,
`../host_file.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ooctrain.devices.cpu.copy_engine import CopyEngine
from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.host_file import PIECE_BYTES, HostFile

#: Pinned pieces; each is read or written in several calls at once.
PIECES = 8
PINNED_BYTES = 8 * PIECE_BYTES


@dataclass(frozen=True, slots=True)
class _Piece:
    """Pinned memory, and the event behind the GPU's last copy from or to it."""

    address: int
    event: int


@dataclass(frozen=True, slots=True)
class _Moving:
    """A piece that the GPU fills or empties: bytes [lo, hi) of the slab; a copy in has none, for
    what it holds has been read."""

    piece: _Piece
    lo: int = 0
    hi: int = 0


class SpilledSlab:
    """The slab of a GPU, in a file.

    Args:
        driver: opened, and current in this thread.
        file: closed with this.
        pinned: address of `PIECES` pieces of pinned memory.
        piece_bytes: size of a piece, whole blocks.
    """

    def __init__(self, driver: GpuDriver, file: HostFile, pinned: int, piece_bytes: int):
        self.file, self._driver, self._piece_bytes = file, driver, piece_bytes
        self._engine = CopyEngine(file.copy)
        self._moving: deque[_Moving] = deque()
        self._pieces = [
            _Piece(pinned + number * piece_bytes, driver.create_event()) for number in range(PIECES)
        ]
        self._idle = list(self._pieces)

    def copy_out(self, address: int, offset: int, size_bytes: int, stream: int) -> None:
        """Queues a copy of device bytes; what the GPU has filled goes to the file later."""
        for lo, hi in self._parts(size_bytes):
            piece = self._piece()
            self._driver.copy_out(piece.address, address + lo, hi - lo, stream)
            self._driver.record_event(piece.event, stream)
            self._moving.append(_Moving(piece, offset + lo, offset + hi))

    def copy_in(self, address: int, offset: int, size_bytes: int, stream: int) -> None:
        """Reads the file, and queues the copies to the device."""
        self._settle(offset, offset + size_bytes)
        for lo, hi in self._parts(size_bytes):
            piece = self._piece()
            self._copy(piece.address, self.file.address + offset + lo, hi - lo)
            self._driver.copy_in(address + lo, piece.address, hi - lo, stream)
            self._driver.record_event(piece.event, stream)
            self._moving.append(_Moving(piece))

    def get(self, offset: int, size_bytes: int) -> np.ndarray:
        """A copy of bytes of the slab."""
        size_bytes = max(0, min(size_bytes, self.file.size_bytes - offset))
        self._settle(offset, offset + size_bytes)
        return self.file.get(offset, size_bytes)

    def put(self, offset: int, data: np.ndarray) -> None:
        """Writes uint8 data to the slab."""
        self._settle(offset, offset + data.size)
        self.file.put(offset, data)

    def close(self) -> None:
        """Gives events and the file back; what was on its way is lost."""
        self._moving.clear()
        for piece in self._pieces:
            give_back(self._driver.destroy_event, piece.event)
        self.file.close()

    def _parts(self, size_bytes: int) -> Iterator[tuple[int, int]]:
        for lo in range(0, size_bytes, self._piece_bytes):
            yield lo, min(size_bytes, lo + self._piece_bytes)

    def _piece(self) -> _Piece:
        """One that is not in use, if need be once the GPU is done with the oldest."""
        if not self._idle:
            self._settle_oldest()
        return self._idle.pop()

    def _settle(self, lo: int, hi: int) -> None:
        """Brings to the file what is on its way to these bytes, and all that was queued before."""
        while any(max(lo, moving.lo) < min(hi, moving.hi) for moving in self._moving):
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        moving = self._moving[0]
        self._driver.synchronize_event(moving.piece.event)
        if moving.lo < moving.hi:
            size_bytes = moving.hi - moving.lo
            self._copy(self.file.address + moving.lo, moving.piece.address, size_bytes)
        # Not before: what the disk has refused is still on its way; another attempt fails again.
        self._idle.append(self._moving.popleft().piece)

    def _copy(self, target: int, source: int, size_bytes: int) -> None:
        self._engine.copy(target, source, size_bytes, self.file.bytes_per_us)
