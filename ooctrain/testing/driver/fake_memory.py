"""The bytes behind the fake driver: physical memory, where it is mapped, and pinned host memory.

This module knows the memory that exists; `fake_driver.py` knows the calls that CUDA allows. An
access returns the bytes at an address, or raises `Violation` where the work may not reach them.
Work is checked when it runs, not when it is queued, since a mapping may be removed in between;
after a wrong access every call fails, as on a GPU. Read next: `fake_pages.py`, `fake_driver.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.testing.driver.fake_gate import Gate, Violation
from ooctrain.testing.driver.fake_pages import PageTable, Physical
from ooctrain.testing.driver.fake_streams import Range

FRESH_BYTE = 0xFF  # NaN in every float type


class FakeMemory:
    """All memory of a fake GPU and of its host.

    Args:
        total_bytes: physical memory of the device.
        gate: learns of a wrong access, and then refuses every call.
    """

    def __init__(self, total_bytes: int, gate: Gate):
        self.total_bytes, self.used_bytes = total_bytes, 0
        self.pages = PageTable()
        self.physical: dict[int, Physical] = {}  # by handle
        self.host: dict[int, np.ndarray] = {}  # {address: pinned bytes}
        self._gate, self._next_handle = gate, 0x1000

    def make(self, size_bytes: int) -> Physical | None:
        """Fresh physical memory with one reference; None: there is not enough."""
        if self.used_bytes + size_bytes > self.total_bytes:
            return None
        self.used_bytes += size_bytes
        self._next_handle += 1
        data = np.full(size_bytes, FRESH_BYTE, np.uint8)
        made = self.physical[self._next_handle] = Physical(self._next_handle, 1, data)
        return made

    def referenced(self, handle: int) -> Physical | None:
        """The memory of a handle that somebody still holds."""
        found = self.physical.get(handle)
        return found if found is not None and found.references else None

    def collect(self, physical: Physical) -> None:
        """Frees memory that is neither referenced nor mapped."""
        if not physical.references and not physical.mappings:
            self.used_bytes -= physical.data.size
            del self.physical[physical.handle]

    def pin(self, size_bytes: int) -> int:
        """Address of fresh pinned host memory."""
        data = np.full(size_bytes, FRESH_BYTE, np.uint8)
        self.host[data.ctypes.data] = data
        return data.ctypes.data

    def reach(self, address: int, size_bytes: int, what: str) -> None:
        """Raises Violation unless all of a range is accessible; from then on nothing works."""
        hole = self.pages.hole(address, size_bytes)
        if hole is not None:
            self._gate.sticky = abi.ILLEGAL_ADDRESS
            raise Violation(f"{what} uses {hole:#x}, which is not mapped or has no access")

    def pieces(self, address: int, size_bytes: int, what: str) -> Iterator[np.ndarray]:
        """The bytes of a range, mapping by mapping."""
        self.reach(address, size_bytes, what)
        for base, physical in self.pages.mapped(address, size_bytes):
            yield physical.data[max(0, address - base) : address + size_bytes - base]

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes."""
        return np.concatenate(list(self.pieces(address, size_bytes, "read")))

    def write(self, address: int, data: np.ndarray) -> None:
        """Puts uint8 data on the device."""
        place = 0
        for piece in self.pieces(address, data.size, "write"):
            piece[:] = data[place : place + piece.size]
            place += piece.size

    def pinned(self, host: int, size_bytes: int) -> np.ndarray:
        """Host bytes that a copy may touch."""
        for address, data in self.host.items():
            if address <= host and host + size_bytes <= address + data.size:
                return bytes_at(host, size_bytes)
        # CUDA would copy through a hidden buffer and block the host.
        raise Violation(f"host memory {show(host, size_bytes)} is not pinned")

    def expect_one_address(self, uses: Sequence[Range], name: str) -> None:
        """Raises Violation if one piece of work reaches the same memory by two addresses."""
        seen: dict[int, int] = {}  # {handle: address of its mapping}
        for address, size in uses:
            for base, physical in self.pages.mapped(address, size):
                other = seen.setdefault(physical.handle, base)
                if other != base:
                    raise Violation(
                        f"{name} uses handle {physical.handle} at {other:#x} and at {base:#x}",
                        fix="one piece of work may use one mapping of a handle only",
                    )


def show(address: int, size_bytes: int) -> str:
    """A range for people."""
    return f"[{address:#x}, +{size_bytes})"
