"""A device's memory over any driver: the base of the allocators, made of equal physical pieces.

A `VmmDriver` and a size give a `devices.interface.VirtualMemory`: offsets into the memory that can
be mapped into reserved addresses. An allocator therefore runs unchanged over a GPU, over this
machine's own memory and over the strict fake. Offsets are numbers of pieces, and a table for each
reservation says which piece is mapped where. A piece may appear at several addresses. `map` first
unmaps what is mapped at its addresses, since a GPU, unlike Linux, refuses to map over a mapping;
its caller guarantees that the old mapping is no longer in use. A `map` that fails leaves nothing
half mapped. Source: paper 000, section 4. Read next: `testing/host_driver.py`; `alloc/virtual.py`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator

import numpy as np

from ooctrain.devices.driver_calls import GpuDriver, VmmDriver, give_back
from ooctrain.errors import ConfigError, DriverError
from ooctrain.units import format_bytes

_EMPTY = -1


class DriverMemory:
    """Physical memory of a driver, all of it created at once, and reservations to map it into.

    Args:
        driver: opened, and current in this thread.
        size_bytes: the budget; what is less than a piece of it stays unused.
        piece_bytes: size of a piece, a multiple of the driver's granularity; None: that. The
            allocator's chunk must be a multiple of it. Where the driver maps whole handles only,
            each piece is a handle, and fewer, larger pieces map faster.
        max_mappings: how many mappings apart from each other the system can carry.

    Raises:
        ConfigError: no such piece, or a budget without a whole piece.
        DriverError: the device has too little memory; nothing of it is kept.
    """

    ranges = True

    def __init__(
        self, driver: VmmDriver, size_bytes: int, piece_bytes: int | None = None,
        max_mappings: int = 1 << 30,
    ):  # fmt: skip
        granularity = driver.granularity()
        self.granularity_bytes = granularity if piece_bytes is None else piece_bytes
        if self.granularity_bytes <= 0 or self.granularity_bytes % granularity:
            raise ConfigError(
                f"pieces of {piece_bytes!r} bytes are not a multiple of the granularity",
                code="OOC-107", numbers=f"granularity {format_bytes(granularity)}",
                fix="pieces of a multiple of the granularity",
            )  # fmt: skip
        if size_bytes < self.granularity_bytes:
            raise ConfigError(
                f"a memory of {size_bytes} bytes has no whole piece", code="OOC-102",
                numbers=f"pieces of {format_bytes(self.granularity_bytes)}",
                fix="a larger budget",
            )  # fmt: skip
        self.size_bytes = size_bytes // self.granularity_bytes * self.granularity_bytes
        self.max_mappings = max_mappings
        self._driver = driver
        self._bases: list[int] = []  # addresses of the reservations, ascending
        self._tables: dict[int, np.ndarray] = {}  # by address: the piece in each slot
        self._linear: int | None = None
        self._handles: list[int] = []
        self._handle_bytes = self.size_bytes if driver.parts else self.granularity_bytes
        try:
            for _ in range(self.size_bytes // self._handle_bytes):
                self._handles.append(driver.create(self._handle_bytes))
        except DriverError:
            self.close()
            raise

    def linear(self) -> int:
        """Address of the whole memory as one piece, mapped on first use."""
        if self._linear is None:
            address = self.reserve(self.size_bytes)
            try:
                self.map(address, 0, self.size_bytes)
            except DriverError:
                self.release(address)
                raise
            self._linear = address
        return self._linear

    def reserve(self, size_bytes: int) -> int:
        """Address of a fresh range of whole pieces that nothing is mapped into."""
        slots, rest = divmod(size_bytes, self.granularity_bytes)
        if rest or slots <= 0:
            raise DriverError(
                f"{size_bytes} bytes to reserve are not whole pieces", call="reserve",
                numbers=f"pieces of {self.granularity_bytes} bytes",
                fix="a multiple of the pieces",
            )  # fmt: skip
        address = self._driver.reserve(size_bytes)
        insort(self._bases, address)
        self._tables[address] = np.full(slots, _EMPTY, np.int32)
        return address

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Makes [offset, offset + size_bytes) of the memory appear at `address`.

        Raises:
            DriverError: nothing of it is mapped now.
        """
        base, first, last = self._slots(address, size_bytes)
        piece = self._piece(offset, size_bytes)
        self._unmap(base, first, last)
        table, size = self._tables[base], self._handle_bytes
        step = last - first if self._driver.parts else 1
        try:
            for slot in range(first, last, step):
                place, at = base + slot * self.granularity_bytes, piece + slot - first
                handle, inside = divmod(at * self.granularity_bytes, size)
                length = step * self.granularity_bytes
                self._driver.map(place, length, self._handles[handle], inside)
                table[slot : slot + step] = range(at, at + step)
            # One call for all: setting access costs as much for one mapping as for many.
            self._driver.set_access(address, size_bytes)
        except DriverError:
            self._unmap(base, first, last)
            raise

    def unmap(self, address: int, size_bytes: int) -> None:
        """Takes away what is mapped in a range; what is not mapped there is left alone."""
        self._unmap(*self._slots(address, size_bytes))

    def release(self, address: int) -> None:
        """Gives a reservation back, with what is mapped in it."""
        if address not in self._tables:
            raise DriverError(
                f"{address:#x} is not a reservation",
                call="address_free",
                fix="an address that reserve() has given, once",
            )
        slots = self._tables[address].size
        self._unmap(address, 0, slots)
        give_back(self._driver.address_free, address, slots * self.granularity_bytes)
        self._bases.remove(address)
        del self._tables[address]

    def used_bytes(self) -> int:
        return len(self._handles) * self._handle_bytes

    def close(self) -> None:
        """Gives everything back. All use must be over."""
        for address in list(self._bases):
            self.release(address)
        while self._handles:
            give_back(self._driver.release, self._handles.pop())
        self._linear = None

    def _piece(self, offset: int, size_bytes: int) -> int:
        """Number of the piece at an offset."""
        if offset % self.granularity_bytes or not 0 <= offset <= self.size_bytes - size_bytes:
            raise DriverError(
                f"{size_bytes} bytes from offset {offset} are not whole pieces of the memory",
                call="map", numbers=f"pieces of {self.granularity_bytes} bytes",
                fix="offset and size in multiples of the pieces, within the memory",
            )  # fmt: skip
        return offset // self.granularity_bytes

    def _slots(self, address: int, size_bytes: int) -> tuple[int, int, int]:
        """(reservation, first slot, behind the last slot) of a range of addresses."""
        place = bisect_right(self._bases, address) - 1
        base = self._bases[place] if place >= 0 else 0
        first, shift = divmod(address - base, self.granularity_bytes)
        count, rest = divmod(size_bytes, self.granularity_bytes)
        inside = place >= 0 and count > 0 and first + count <= self._tables[base].size
        if shift or rest or not inside:
            raise DriverError(
                f"[{address:#x}, +{size_bytes}) is not a range of pieces in one reservation",
                call="map", numbers=f"pieces of {self.granularity_bytes} bytes",
                fix="a range within what one reserve() has given",
            )  # fmt: skip
        return base, first, first + count

    def _unmap(self, base: int, first: int, last: int) -> None:
        table, size = self._tables[base], self.granularity_bytes
        # One call for each mapping: drivers were seen to fail where one spans several mappings.
        for lo, hi in list(_full_runs(table, first, last)):
            step = hi - lo if self._driver.parts else 1
            for slot in range(lo, hi, step):
                give_back(self._driver.unmap, base + slot * size, step * size)
                table[slot : slot + step] = _EMPTY


class PlainMemory:
    """Memory of a GPU in one piece, as the driver's ordinary allocation gives it: for allocators
    that map nothing, also where virtual memory management is refused.

    Raises:
        DriverError: the device has too little memory in one piece.
    """

    ranges = False

    def __init__(self, driver: GpuDriver, size_bytes: int):
        self.size_bytes = size_bytes
        self._driver = driver
        self._address: int | None = driver.allocate(size_bytes)

    def linear(self) -> int:
        if self._address is None:
            raise DriverError(
                "this memory has been given back", call="linear", fix="use it before close()"
            )
        return self._address

    def used_bytes(self) -> int:
        return 0 if self._address is None else self.size_bytes

    def close(self) -> None:
        """Gives it back. All use must be over."""
        address, self._address = self._address, None
        if address is not None:
            give_back(self._driver.free, address)


def _full_runs(table: np.ndarray, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Runs of slots within [first, last) that something is mapped into."""
    full = np.concatenate(([False], table[first:last] != _EMPTY, [False]))
    borders = np.flatnonzero(full[1:] != full[:-1])
    for lo, hi in borders.reshape(-1, 2).tolist():
        yield first + lo, first + hi
