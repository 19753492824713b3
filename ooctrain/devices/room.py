"""Host memory in which a batch lies as the device wants it, before its step begins.

A `Room` is memory of the host, pinned where the device is a GPU, which another thread may fill
while a step runs. The device may close just before that thread writes, so a thread that fills a
room holds it open, and a closed room is not filled any more. Read next: `cuda/feed.py`,
`execution/ahead.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np


class Room:
    """Memory of a batch.

    Args:
        data: uint8.
        give_back: called once, when it is closed.
    """

    def __init__(self, data: np.ndarray, give_back: Callable[[], object] = lambda: None):
        self._data, self._give_back, self._lock = data, give_back, Lock()
        self.open = True

    def fill(self, write: Callable[[np.ndarray], None]) -> bool:
        """Lets `write` put its bytes in; False: the room is closed, and nothing has happened."""
        with self._lock:
            if self.open:
                write(self._data)
            return self.open

    def holds(self, data: np.ndarray) -> bool:
        """Whether bytes lie in it."""
        first = self._data.ctypes.data
        return self.open and first <= data.ctypes.data < first + self._data.size

    def close(self) -> None:
        """Gives the memory back, once nobody writes any more."""
        with self._lock:
            if self.open:
                self.open = False
                self._give_back()
