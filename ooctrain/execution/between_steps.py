"""Persistent values where a step leaves them: on the device, on the host, or split over both.

A list says where each persistent value lies before its first instruction and after its last one,
byte range by byte range (`start.py`). Between steps a value is assembled from these ranges, and a
new one is written back to them, so that callers need not know what was swapped out. Inputs take the
same path, but the host does not wait for them. Read next: `executor.py`, `placement.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ooctrain.devices.base import Device
from ooctrain.engine.eager import own_pages
from ooctrain.execution.placement import Placement
from ooctrain.execution.program import Program
from ooctrain.execution.result import to_bytes
from ooctrain.execution.start import start_ranges
from ooctrain.step.op import physical_shape

#: A value is read in pieces, so that it is there once, and a piece of it twice.
PIECE_BYTES = 4 << 20


class BetweenSteps:
    """Reads and writes values while no step is under way.

    Args:
        program: its start says where every value lies.
        placement: says at which address.
    """

    def __init__(self, program: Program, device: Device, placement: Placement):
        self.trace, self.device, self.placement = program.trace, device, placement
        self._start_device, self._start_host = start_ranges(program)

    def on_device(self) -> Iterator[int]:
        """The variables that are on the device, whole or in part, before a step."""
        return filter(self._is_on_device, self.trace.initial)

    def read(self, variable: int) -> np.ndarray:
        """A copy of the true value of a persistent variable, physical layout, in own pages."""
        described = self.trace.variables[variable]
        data = own_pages(described.value_bytes)
        for lo, hi, offset in _in_pieces(self._start_host.get(variable, ())):
            data[lo:hi] = self.device.host(offset, hi - lo)
        for lo, hi, address in _in_pieces(self._places_on_device(variable)):
            data[lo:hi] = self.device.read(address, hi - lo)
        return data.view(described.dtype).reshape(physical_shape(described.shape))

    def put(self, variable: int, data: np.ndarray) -> None:
        """Writes the bytes of a variable to wherever they belong."""
        address = self.placement.address(variable) if self._is_on_device(variable) else 0
        self._write(variable, data, address, self.device.write)

    def feed(self, variable: int, value: Any, places: Mapping[int, int]) -> None:
        """Writes an input; the host does not wait until it is there.

        Args:
            places: {variable: its address}, of those that are on the device.
        """
        data = to_bytes(value, self.trace.variables[variable])
        self._write(variable, data, places.get(variable, 0), self.device.feed)

    def forget(self, variable: int) -> None:
        """Gives back what the device can of a variable's memory; its value is lost."""
        for lo, hi, address in self._places_on_device(variable):
            self.device.discard(address, hi - lo)

    def _places_on_device(self, variable: int) -> list[tuple[int, int, int]]:
        """(lo, hi, address of lo) of its ranges there."""
        described = self.trace.variables[variable]
        if described.pinned:
            ranges = [(0, described.value_bytes)]
        else:
            ranges = self._start_device.get(variable, [])
        begin = self.placement.address(variable) if ranges else 0
        return [(lo, hi, begin + lo) for lo, hi in ranges if lo < hi]

    def _is_on_device(self, variable: int) -> bool:
        return self.trace.variables[variable].pinned or variable in self._start_device

    def _write(
        self, variable: int, data: np.ndarray, address: int,
        write: Callable[[int, np.ndarray], None],
    ) -> None:  # fmt: skip
        if self.trace.variables[variable].pinned:
            write(address, data)
        for lo, hi, offset in self._start_host.get(variable, ()):
            self.device.write_host(offset, data[lo:hi])
        for lo, hi in self._start_device.get(variable, ()):
            write(address + lo, data[lo:hi])


def _in_pieces(ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """(lo, hi, where lo is) of ranges, cut."""
    for lo, hi, place in ranges:
        for begin in range(lo, hi, PIECE_BYTES):
            yield begin, min(hi, begin + PIECE_BYTES), place + begin - lo
