"""A page table in plain Python: which physical memory is mapped where, and who may access it.

Mappings are few and never overlap, so a sorted list of their first addresses answers by bisection
which memory lies at an address and where a range has a hole. Memory may be mapped at several
addresses (CUDA guide, virtual aliasing support); a piece of work may use only one of them.
Read next: `fake_driver.py`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True, eq=False)
class Physical:
    """Memory of one create: its references, its bytes, and how often it is mapped."""

    handle: int
    references: int
    data: np.ndarray
    mappings: int = 0


class PageTable:
    """Mappings by their first address; each maps the whole of one `Physical`."""

    def __init__(self) -> None:
        self.bases: list[int] = []  # ascending
        self.accessible: set[int] = set()
        self._at: dict[int, Physical] = {}

    def add(self, base: int, physical: Physical) -> None:
        """A new mapping, without access."""
        self._at[base] = physical
        physical.mappings += 1
        insort(self.bases, base)

    def remove(self, base: int) -> Physical:
        """Takes a mapping away; returns what was mapped."""
        physical = self._at.pop(base)
        physical.mappings -= 1
        self.bases.remove(base)
        self.accessible.discard(base)
        return physical

    def size_at(self, base: int) -> int:
        """Bytes of the mapping that begins at `base`."""
        return self._at[base].data.size

    def covering(self, address: int) -> tuple[int, Physical] | None:
        """(first address, memory) of the mapping at an address."""
        index = bisect_right(self.bases, address) - 1
        if index < 0 or address >= self.bases[index] + self.size_at(self.bases[index]):
            return None
        return self.bases[index], self._at[self.bases[index]]

    def overlaps(self, address: int, size_bytes: int) -> bool:
        """Whether anything is mapped in a range."""
        index = bisect_right(self.bases, address)
        behind = index < len(self.bases) and self.bases[index] < address + size_bytes
        return behind or self.covering(address) is not None

    def tiles(self, address: int, size_bytes: int) -> list[int]:
        """First addresses of the mappings that tile a range exactly.

        Raises:
            ValueError: none do.
        """
        bases, end = [], address
        while end < address + size_bytes:
            if end not in self._at:
                raise ValueError(f"no mapping begins at {end:#x}")
            bases.append(end)
            end += self.size_at(end)
        if not bases or end != address + size_bytes:
            raise ValueError(f"[{address:#x}, +{size_bytes}) does not end with a mapping")
        return bases

    def hole(self, address: int, size_bytes: int) -> int | None:
        """The first address of a range that is not mapped or has no access."""
        end = address
        while end < address + size_bytes:
            found = self.covering(end)
            if found is None or found[0] not in self.accessible:
                return end
            end = found[0] + found[1].data.size
        return None

    def mapped(self, address: int, size_bytes: int) -> Iterator[tuple[int, Physical]]:
        """(first address, memory) of each mapping of a range without holes."""
        end = address + size_bytes
        while address < end:
            found = self.covering(address)
            assert found is not None
            yield found
            address = found[0] + found[1].data.size
