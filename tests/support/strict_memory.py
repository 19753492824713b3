"""Memory that checks every access: the allocators' memory over the strict fake driver.

The fake driver already knows what is mapped where. Here only marks are added, which tests write to
a range and read back, page by page, by any address. An error is raised where a real machine would
end the process or go on with wrong data. The calls are those of `devices.interface.VirtualMemory`.
Read next: `testing/fake_driver.py`, `devices/cuda/driver_memory.py`.
"""

from __future__ import annotations

from doubles.refusing_driver import RefusingDriver

from ooctrain.devices.cuda.driver_memory import DriverMemory


class StrictMemory:
    """An arena of `size_bytes`, paged, with marks for contents.

    Args:
        size_bytes: of the arena.
        page_bytes: unit of mapping.
    """

    ranges = True

    def __init__(self, size_bytes: int, page_bytes: int = 4096):
        self.driver = RefusingDriver(size_bytes, page_bytes)
        self._memory = DriverMemory(self.driver, size_bytes)
        self.size_bytes, self.granularity_bytes = size_bytes, page_bytes
        self.max_mappings = self._memory.max_mappings
        self.map_calls = self.unmap_calls = self.mapped_bytes = 0
        self._marks: dict[int, object] = {}  # {handle: what was written last}

    @property
    def reservations(self) -> dict[int, int]:
        """{address: bytes} of what is reserved."""
        return self.driver.reservations

    @property
    def page_at(self) -> dict[int, int]:
        """{address: handle} of each mapping."""
        places = self.driver.mappings()
        return {address: self.driver.handles_at(address, size)[0] for address, size, _ in places}

    def linear(self) -> int:
        """Address of the whole arena as one piece."""
        return self._memory.linear()

    def reserve(self, size_bytes: int) -> int:
        """A fresh range; ranges never touch."""
        return self._memory.reserve(size_bytes)

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Raises DriverError: outside of a reservation or of the arena."""
        self.map_calls += 1
        self.mapped_bytes += size_bytes
        self._memory.map(address, offset, size_bytes)

    def unmap(self, address: int, size_bytes: int) -> None:
        """Raises DriverError: outside of a reservation."""
        self.unmap_calls += 1
        self._memory.unmap(address, size_bytes)

    def release(self, address: int) -> None:
        """Gives a reservation back with what is mapped in it."""
        self._memory.release(address)

    def close(self) -> None:
        """Gives everything back."""
        self._memory.close()

    def write(self, address: int, size_bytes: int, what: object) -> None:
        """Writes a mark to each page of a range. Raises Violation: a page is not mapped."""
        for handle in self.driver.handles_at(address, size_bytes):
            self._marks[handle] = what

    def read(self, address: int, size_bytes: int) -> list[object]:
        """The marks of a range's pages. Raises Violation: a page is not mapped."""
        handles = self.driver.handles_at(address, size_bytes)
        return [self._marks.get(handle) for handle in handles]
