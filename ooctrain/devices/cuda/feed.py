"""A batch on its way to a GPU: alternating blocks of pinned memory, on a stream of its own.

Every stream of the device waits for the copies of the inputs; the host does not. While one block is
being copied the host fills the other, so filling and copying overlap, and the first work of the
step is queued meanwhile. Values that were put into a host buffer while the previous step ran
(`execution/ahead.py`) are copied from there, at once. Nothing of a batch is on the GPU before its
step begins: the budget is too small for two. Source: notes of the CUDA guide on pinned memory and
streams. Read next: `staging.py` (values that come back), `../interface.py`, `device.py`.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from ooctrain.devices.cuda.staging import PIECE_BYTES
from ooctrain.devices.cuda.streams import CudaStreams
from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.interface import HostBuffer
from ooctrain.devices.raw_bytes import bytes_at


class _Copies:
    """The copies from one piece of pinned memory.

    Args:
        event: behind the latest of them.

    Attributes:
        era: era of the streams, when that was queued; None: there has been none.
    """

    def __init__(self, event: int):
        self.event = event
        self.era: int | None = None


class Feed:
    """Inputs of steps.

    Args:
        driver: opened, and current in this thread.
        streams: streams of the device; they wait for what travels.
        piece_bytes: how much goes at a time, of what lies in ordinary memory.
    """

    def __init__(self, driver: GpuDriver, streams: CudaStreams, piece_bytes: int = PIECE_BYTES):
        self._driver, self._streams, self._piece_bytes = driver, streams, piece_bytes
        self._held = ExitStack()
        self._stream = 0
        self._pieces: list[tuple[int, _Copies]] = []  # addresses of pinned memory
        self._buffers: list[tuple[HostBuffer, _Copies]] = []
        self._turn = 0

    def host_buffer(self, size_bytes: int) -> HostBuffer:
        """One of two buffers in turn, all of one size; all copies from it are done."""
        self._open()
        if len(self._buffers) < 2:
            found, copies = self._pinned_buffer(size_bytes), self._copies()
        else:
            found, copies = self._buffers.pop(0)
            self._wait_for(copies)
        self._buffers.append((found, copies))
        return found

    def write(self, address: int, data: np.ndarray) -> None:
        """Queues the copy of uint8 data to the device, before all that is submitted from now on.

        No work that uses these bytes may be queued.
        """
        self._open()
        last = self._write_from_buffer(address, data) or self._write_by_pieces(address, data)
        if last is not None:
            self._let_wait(last.event)

    def close(self) -> None:
        """Gives everything back; what travels still arrives."""
        self._pieces, self._buffers = [], []
        self._held.close()

    def _write_from_buffer(self, address: int, data: np.ndarray) -> _Copies | None:
        """None: the data is in none of the buffers."""
        for buffer, copies in self._buffers:
            if data.size and buffer.holds(data):
                self._copy(address, data.ctypes.data, data.size, copies)
                return copies
        return None

    def _write_by_pieces(self, address: int, data: np.ndarray) -> _Copies | None:
        """None: there is no data."""
        copies = None
        for lo in range(0, data.size, self._piece_bytes):
            part = data[lo : lo + self._piece_bytes]
            (block, copies), self._turn = self._pieces[self._turn], 1 - self._turn
            self._wait_for(copies)
            bytes_at(block, part.size)[:] = part
            self._copy(address + lo, block, part.size, copies)
        return copies

    def _copy(self, address: int, source: int, size_bytes: int, copies: _Copies) -> None:
        self._driver.copy_in(address, source, size_bytes, self._stream)
        self._driver.record_event(copies.event, self._stream)
        copies.era = self._streams.era

    def _wait_for(self, copies: _Copies) -> None:
        """The last copy is done; one of an earlier step is."""
        if copies.era == self._streams.era:
            self._driver.synchronize_event(copies.event)

    def _let_wait(self, event: int) -> None:
        """Work that is submitted from now on finds what has travelled."""
        for handle in self._streams.handles:
            self._driver.wait_event(handle, event)

    def _open(self) -> None:
        driver, held = self._driver, self._held
        if self._pieces:
            return
        self._stream = driver.create_stream()
        held.callback(give_back, driver.destroy_stream, self._stream)
        for _ in range(2):
            block = driver.host_alloc(self._piece_bytes)
            held.callback(give_back, driver.host_free, block)
            self._pieces.append((block, self._copies()))

    def _copies(self) -> _Copies:
        event = self._driver.create_event()
        self._held.callback(give_back, self._driver.destroy_event, event)
        return _Copies(event)

    def _pinned_buffer(self, size_bytes: int) -> HostBuffer:
        block, free = self._driver.host_alloc(size_bytes), self._driver.host_free
        found = HostBuffer(bytes_at(block, size_bytes), lambda: give_back(free, block))
        self._held.callback(found.close)
        return found
