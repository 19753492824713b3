"""A batch on its way to a GPU: two pinned blocks in turn, on a stream of their own.

In: values of inputs, and where they are to be. Out: copies that every stream of the device waits
for, and the host does not. The one idea: while one block is being copied the host fills the other,
so that filling and copying overlap, and what the step issues first is queued meanwhile. Source:
notes of the CUDA guide on pinned memory and streams. Read next: `staging.py` (values that come
back), `device.py`.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from ooctrain.devices.cuda.staging import PIECE_BYTES
from ooctrain.devices.cuda.streams import CudaStreams
from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.raw_bytes import bytes_at


class Feed:
    """Inputs of steps.

    Args:
        driver: opened, and current in this thread.
        streams: of the device; they wait for what travels.
        piece_bytes: how much goes at a time.
    """

    def __init__(self, driver: GpuDriver, streams: CudaStreams, piece_bytes: int = PIECE_BYTES):
        self._driver, self._streams, self._piece_bytes = driver, streams, piece_bytes
        self._held = ExitStack()
        self._stream = 0
        self._blocks: list[int] = []  # addresses of pinned memory
        self._events: list[int] = []  # behind the latest copy from each
        self._copied_in: list[int | None] = [None, None]  # the era of that copy
        self._turn = 0

    def write(self, address: int, data: np.ndarray) -> None:
        """Queues the copy of uint8 data to the device, before all that is submitted from now on.

        No work that uses these bytes may be queued.
        """
        self._open()
        for lo in range(0, data.size, self._piece_bytes):
            part = data[lo : lo + self._piece_bytes]
            place, self._turn = self._turn, 1 - self._turn
            self._wait_for(place)
            bytes_at(self._blocks[place], part.size)[:] = part
            self._driver.copy_in(address + lo, self._blocks[place], part.size, self._stream)
            self._driver.record_event(self._events[place], self._stream)
            self._copied_in[place] = self._streams.era
            if lo + part.size == data.size:
                self._let_wait(self._events[place])

    def close(self) -> None:
        """Gives everything back; what travels still arrives."""
        self._blocks, self._events = [], []
        self._held.close()

    def _wait_for(self, place: int) -> None:
        """A block's last copy is done; one of an earlier step is."""
        if self._copied_in[place] == self._streams.era:
            self._driver.synchronize_event(self._events[place])

    def _let_wait(self, event: int) -> None:
        """Work that is submitted from now on finds what has travelled."""
        for handle in self._streams.handles:
            self._driver.wait_event(handle, event)

    def _open(self) -> None:
        driver, held = self._driver, self._held
        if self._blocks:
            return
        self._stream = driver.create_stream()
        held.callback(give_back, driver.destroy_stream, self._stream)
        for _ in range(2):
            block, event = driver.host_alloc(self._piece_bytes), driver.create_event()
            held.callback(give_back, driver.host_free, block)
            held.callback(give_back, driver.destroy_event, event)
            self._blocks.append(block)
            self._events.append(event)
