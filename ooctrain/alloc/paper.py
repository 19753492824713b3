"""Memory without bytes: addresses for allocators that are only asked what they would do.

In: a size. Out: addresses. The one idea: where blocks lie depends on the order of requests alone,
so fragmentation is known before anything runs, on any machine and at any size: a V100's 16 GiB on
a laptop. Read next: `replay.py`, which makes an allocator's requests over it.
"""

from __future__ import annotations

_FIRST_ADDRESS = 1 << 20
_GAP_BYTES = 1 << 20


class PaperMemory:
    """Addresses without bytes behind them, linear and virtual.

    Args:
        size_bytes: of the arena it stands for.
        granularity_bytes: bounds of mappings are multiples of it.
        max_mappings: how many mappings apart from each other it carries; paper bears any number.
    """

    ranges = True

    def __init__(
        self, size_bytes: int, granularity_bytes: int = 4096, max_mappings: int = 1 << 30
    ):  # fmt: skip
        self.size_bytes = size_bytes
        self.granularity_bytes, self.max_mappings = granularity_bytes, max_mappings
        self._next = _FIRST_ADDRESS

    def linear(self) -> int:
        """Address of the whole."""
        return self.reserve(self.size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """A fresh range; ranges never touch."""
        address = self._next
        self._next += size_bytes + _GAP_BYTES
        return address

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Nothing to be done."""

    def unmap(self, address: int, size_bytes: int) -> None:
        """Nothing to be done."""

    def release(self, address: int) -> None:
        """Nothing to be done."""
