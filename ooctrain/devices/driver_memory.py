"""A device's memory over any driver: what allocators stand on, made of equal physical pieces.

In: a `VmmDriver` and a size. Out: `devices.base.VirtualMemory`: offsets into the memory that can be
mapped into reserved addresses, so that `alloc/virtual.py` runs unchanged over a GPU and over the
strict fake. The one idea: offsets are numbers of handles, and a page table here knows where each
handle is. A GPU neither replaces a mapping, as Linux does, nor may it map a handle twice; so what
is in the way, at the address or of the handle, is unmapped first. By the contract of `map` nobody
uses that any more. A `map` that fails leaves nothing half mapped. Source: paper 000, section 4.
Read next: `../alloc/virtual.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ooctrain.devices.driver import VmmDriver
from ooctrain.errors import ConfigError, DriverError
from ooctrain.units import format_bytes


class DriverMemory:
    """Physical memory of a driver, all of it created at once, and reservations to map it into.

    Args:
        driver: opened, and current in this thread.
        size_bytes: the budget; what is less than a piece of it stays unused.
        piece_bytes: size of a handle, a multiple of the driver's granularity; None: that. The
            allocator's chunk must be a multiple of it. Fewer, larger pieces map faster.

    Raises:
        ConfigError: no such piece, or a budget without a whole piece.
        DriverError: the device has not so much memory; nothing is kept of it.
    """

    ranges = True

    def __init__(self, driver: VmmDriver, size_bytes: int, piece_bytes: int | None = None):
        granularity = driver.granularity()
        self.piece_bytes = granularity if piece_bytes is None else piece_bytes
        if self.piece_bytes <= 0 or self.piece_bytes % granularity:
            raise ConfigError(
                f"pieces of {piece_bytes!r} bytes are no multiple of the granularity",
                code="OOC-107", numbers=f"granularity {format_bytes(granularity)}",
            )  # fmt: skip
        if size_bytes < self.piece_bytes:
            raise ConfigError(
                f"a memory of {size_bytes} bytes has no whole piece", code="OOC-102",
                numbers=f"pieces of {format_bytes(self.piece_bytes)}",
            )  # fmt: skip
        self.size_bytes = size_bytes // self.piece_bytes * self.piece_bytes
        self._driver = driver
        self._reservations: dict[int, int] = {}
        self._linear: int | None = None
        self._piece_at: dict[int, int] = {}  # address: number of the piece mapped there
        self._address_of: dict[int, int] = {}  # number of a piece: where it is mapped
        self._handles: list[int] = []
        try:
            for _ in range(self.size_bytes // self.piece_bytes):
                self._handles.append(driver.create(self.piece_bytes))
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
        """Address of a fresh range that nothing is mapped into."""
        address = self._driver.reserve(size_bytes)
        self._reservations[address] = size_bytes
        return address

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Makes [offset, offset + size_bytes) of the memory appear at `address`, and nowhere else.

        Raises:
            DriverError: nothing of it is mapped now.
        """
        pieces = self._pieces(offset, size_bytes)
        places = self._places(address, size_bytes)
        self._unmap(place for place in places if place in self._piece_at)
        self._unmap(self._address_of[piece] for piece in pieces if piece in self._address_of)
        try:
            for place, piece in zip(places, pieces, strict=True):
                self._driver.map(place, self.piece_bytes, self._handles[piece])
                self._piece_at[place], self._address_of[piece] = piece, place
            # One call for all: setting access costs as much for one mapping as for many.
            self._driver.set_access(address, size_bytes)
        except DriverError:
            self._unmap(place for place in places if place in self._piece_at)
            raise

    def unmap(self, address: int, size_bytes: int) -> None:
        """Takes away what is mapped in a range; what is not mapped there is left alone."""
        self._unmap(p for p in self._places(address, size_bytes) if p in self._piece_at)

    def release(self, address: int) -> None:
        """Gives a reservation back, with what is mapped in it."""
        size_bytes = self._reservations.get(address)
        if size_bytes is None:
            raise DriverError(f"{address:#x} is not a reservation", call="cuMemAddressFree")
        self._unmap(place for place in self._piece_at if 0 <= place - address < size_bytes)
        self._driver.address_free(address, size_bytes)
        del self._reservations[address]

    def used_bytes(self) -> int:
        """Bytes of the device that are held."""
        return len(self._handles) * self.piece_bytes

    def close(self) -> None:
        """Gives everything back. All use must be over."""
        for address in list(self._reservations):
            self.release(address)
        while self._handles:
            self._driver.release(self._handles.pop())
        self._linear = None

    def _pieces(self, offset: int, size_bytes: int) -> range:
        self._whole(offset, size_bytes, "offset")
        if not 0 <= offset <= self.size_bytes - size_bytes:
            raise DriverError(f"offset {offset} lies outside the memory", call="cuMemMap")
        return range(offset // self.piece_bytes, (offset + size_bytes) // self.piece_bytes)

    def _places(self, address: int, size_bytes: int) -> range:
        self._whole(0, size_bytes, "address")
        return range(address, address + size_bytes, self.piece_bytes)

    def _whole(self, offset: int, size_bytes: int, what: str) -> None:
        if size_bytes <= 0 or offset % self.piece_bytes or size_bytes % self.piece_bytes:
            raise DriverError(
                f"{size_bytes} bytes from {what} {offset} are not whole pieces", call="cuMemMap",
                numbers=f"pieces of {self.piece_bytes} bytes",
            )  # fmt: skip

    def _unmap(self, places: Iterable[int]) -> None:
        # One call for each: drivers were seen to fail where one unmap spans several mappings.
        for place in list(places):
            self._driver.unmap(place, self.piece_bytes)
            del self._address_of[self._piece_at.pop(place)]
