"""How fast a GPU's link copies pinned memory: out, in, and both at once.

A copy's own events time it, on the GPU's clock. Some copies are queued back to back, so the host's
work between them does not count, and the result is in bytes per microsecond. Read next:
`machine/doctor.py`, which prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ooctrain.devices.driver_calls import GpuDriver

COPY_BYTES = 64 << 20
COPIES = 4


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes per microsecond; 1000 are 1 GB/s.

    Args:
        out, into: rates of copies to and from the host, one at a time.
        out_beside, into_beside: while the other direction copies, too.
    """

    out: float
    into: float
    out_beside: float
    into_beside: float


def measure_link(
    driver: GpuDriver, size_bytes: int = COPY_BYTES, copies: int = COPIES,
    beside: Callable[[], object] = lambda: None,
) -> LinkRates:  # fmt: skip
    """Copies back and forth; leaves nothing behind. Cost: about 30 ms, most of it for pinning.

    Args:
        driver: opened, and current in this thread.
        size_bytes: size of a copy.
        copies: timed together, after one that is not.
        beside: called before each of the three measurements; it may queue other work.
    """
    with ExitStack() as held:
        ways = [_Way(driver, out, size_bytes, copies, held) for out in (True, False)]
        alone = [_rates([way], beside)[0] for way in ways]
        return LinkRates(*alone, *_rates(ways, beside))


class _Way:
    """Copies in one direction, on a stream of their own, between two events."""

    def __init__(self, driver: GpuDriver, out: bool, size_bytes: int, copies: int, held: ExitStack):
        self.driver, self.moved_bytes, self._out = driver, copies * size_bytes, out
        self._host = driver.host_alloc(size_bytes)
        held.callback(driver.host_free, self._host)
        self._device = driver.allocate(size_bytes)
        held.callback(driver.free, self._device)
        self._size_bytes, self._copies = size_bytes, copies
        self._stream = driver.create_stream()
        held.callback(driver.destroy_stream, self._stream)
        self._begin, self._end = (driver.create_event(timing=True) for _ in range(2))
        for event in (self._begin, self._end):
            held.callback(driver.destroy_event, event)

    def queue(self) -> None:
        """Queues one copy to get going, and the timed ones."""
        self._copy()
        self.driver.record_event(self._begin, self._stream)
        for _ in range(self._copies):
            self._copy()
        self.driver.record_event(self._end, self._stream)

    def bytes_per_us(self) -> float:
        """The rate of the timed copies, once they are done."""
        self.driver.synchronize_stream(self._stream)
        return self.moved_bytes / self.driver.elapsed_us(self._begin, self._end)

    def _copy(self) -> None:
        if self._out:
            self.driver.copy_out(self._host, self._device, self._size_bytes, self._stream)
        else:
            self.driver.copy_in(self._device, self._host, self._size_bytes, self._stream)


def _rates(ways: Sequence[_Way], beside: Callable[[], object]) -> list[float]:
    """Rates of ways that copy at the same time."""
    beside()
    for way in ways:
        way.queue()
    return [way.bytes_per_us() for way in ways]
