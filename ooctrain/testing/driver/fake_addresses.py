"""Where the fake driver puts reservations: at addresses never used before, or as close as it can.

A real driver promises nothing about addresses, so there are two opposite placements. Code that
relies on neighbouring reservations, or on addresses that are never reused, fails under one of them.
Read next: `fake_driver.py`.
"""

from __future__ import annotations

from typing import Literal

Placement = Literal["fresh", "adjacent"]
FIRST_ADDRESS = 1 << 44  # beyond 32 bits: a truncated address is a wrong one


class Addresses:
    """Reservations of address ranges.

    Args:
        placement: "fresh": addresses are never given out again and hints never honoured;
            "adjacent": the lowest free address, and the hint where it is free.
        gap_bytes: between fresh ranges, so that an overrun meets nothing.
        limit_bytes: how much can be reserved.
    """

    def __init__(self, placement: Placement, gap_bytes: int, limit_bytes: int):
        self.ranges: dict[int, int] = {}  # {address: bytes}
        self._placement, self._gap_bytes, self._limit_bytes = placement, gap_bytes, limit_bytes
        self._next = FIRST_ADDRESS

    def take(self, size_bytes: int, hint: int) -> int | None:
        """The address of a new range; None: there is no room."""
        if sum(self.ranges.values()) + size_bytes > self._limit_bytes:
            return None
        address = self._place(size_bytes, hint)
        self.ranges[address] = size_bytes
        return address

    def within(self, address: int, size_bytes: int) -> bool:
        """Whether one reservation contains all of a range."""
        ranges = self.ranges.items()
        return any(a <= address and address + size_bytes <= a + n for a, n in ranges)

    def _place(self, size_bytes: int, hint: int) -> int:
        if self._placement == "fresh":
            address = self._next
            self._next += size_bytes + self._gap_bytes
            return address
        taken = sorted(self.ranges.items())
        if hint and all(hint + size_bytes <= a or a + n <= hint for a, n in taken):
            return hint
        address = FIRST_ADDRESS
        for other, size in taken:
            if address + size_bytes <= other:
                break
            address = max(address, other + size)
        return address
