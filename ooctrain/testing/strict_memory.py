"""Memory that checks every access: virtual memory in plain Python, for testing allocators.

In: the calls of `devices.base.VirtualMemory`. Out: errors, where a real machine would end the
process or go on with wrong data. The one idea: a page table is a dict; reading an address that is
not mapped, mapping one physical page twice or breaking a reservation raises at once. Read next:
`../alloc/virtual.py`, whose tests stand on it.
"""

from __future__ import annotations

from ooctrain.errors import DriverError

_FIRST_ADDRESS = 1 << 30


class StrictMemory:
    """An arena of `size_bytes`, paged, with contents.

    Args:
        size_bytes: of the arena.
        page_bytes: unit of mapping.
        allow_aliases: whether a physical page may be mapped at two addresses at a time.
    """

    ranges = True

    def __init__(self, size_bytes: int, page_bytes: int = 4096, allow_aliases: bool = False):
        self.size_bytes, self.page_bytes = size_bytes, page_bytes
        self.reservations: dict[int, int] = {}
        self.page_at: dict[int, int] = {}  # {page number of an address: physical page}
        self.contents: dict[int, object] = {}  # {physical page: what was written last}
        self.map_calls = self.unmap_calls = 0
        self._aliases = allow_aliases
        self._next = _FIRST_ADDRESS

    def linear(self) -> int:
        """Address of the whole arena as one piece."""
        address = self.reserve(self.size_bytes)
        self.map(address, 0, self.size_bytes)
        return address

    def reserve(self, size_bytes: int) -> int:
        """A fresh range; ranges never touch."""
        address, self._next = self._next, self._next + size_bytes + self.page_bytes
        self.reservations[address] = size_bytes
        return address

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Raises DriverError: outside of reservation or arena, or a page is mapped elsewhere."""
        self._inside(address, size_bytes)
        if offset < 0 or offset + size_bytes > self.size_bytes or offset % self.page_bytes:
            raise DriverError(f"offset {offset} lies outside the arena", call="map")
        self.map_calls += 1
        used = {page: where for where, page in self.page_at.items()}
        for shift in range(0, size_bytes, self.page_bytes):
            where = (address + shift) // self.page_bytes
            page = (offset + shift) // self.page_bytes
            if not self._aliases and used.get(page, where) != where:
                raise DriverError(f"physical page {page} is mapped twice", call="map")
            self.page_at[where] = page

    def unmap(self, address: int, size_bytes: int) -> None:
        """Raises DriverError: outside of a reservation, or not mapped."""
        self._inside(address, size_bytes)
        self.unmap_calls += 1
        for shift in range(0, size_bytes, self.page_bytes):
            if self.page_at.pop((address + shift) // self.page_bytes, None) is None:
                raise DriverError(f"{address + shift:#x} is not mapped", call="unmap")

    def release(self, address: int) -> None:
        """Gives a reservation back with what is mapped in it."""
        size_bytes = self.reservations.pop(address, None)
        if size_bytes is None:
            raise DriverError(f"{address:#x} is not a reservation", call="release")
        for shift in range(0, size_bytes, self.page_bytes):
            self.page_at.pop((address + shift) // self.page_bytes, None)

    def write(self, address: int, size_bytes: int, what: object) -> None:
        """Writes a mark to each page of a range. Raises DriverError: a page is not mapped."""
        for page in self._pages(address, size_bytes):
            self.contents[page] = what

    def read(self, address: int, size_bytes: int) -> list[object]:
        """The marks of a range's pages. Raises DriverError: a page is not mapped."""
        return [self.contents.get(page) for page in self._pages(address, size_bytes)]

    def _pages(self, address: int, size_bytes: int) -> list[int]:
        numbers = range(address // self.page_bytes, -(-(address + size_bytes) // self.page_bytes))
        missing = [number for number in numbers if number not in self.page_at]
        if missing:
            raise DriverError(f"{missing[0] * self.page_bytes:#x} is not mapped", call="access")
        return [self.page_at[number] for number in numbers]

    def _inside(self, address: int, size_bytes: int) -> None:
        if size_bytes <= 0 or address % self.page_bytes or size_bytes % self.page_bytes:
            raise DriverError(f"[{address:#x}, +{size_bytes}) is not in whole pages", call="map")
        for base, size in self.reservations.items():
            if base <= address and address + size_bytes <= base + size:
                return
        raise DriverError(f"[{address:#x}, +{size_bytes}) is not reserved", call="map")
