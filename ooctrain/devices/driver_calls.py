"""The driver's functions as plain calls: the one object behind which every driver call stands.

Sizes, addresses and handles are plain ints; a failed call raises `DriverError`. All code that
manages memory or queues work sees only these Protocols, so a strict pure Python fake
(`testing/fake_driver.py`) can replace the GPU and enforce rules whose violation a GPU does
not report. The safe order is: map, one set_access over all of it, use; before unmap wait on the
*host* for the last use, since mapping is not a stream operation. Source: paper 000, section 3.3;
cuda.h. Read next: `cuda/driver.py` (CUDA), `testing/host_driver.py` (Linux),
`testing/fake_driver.py` (tests).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ooctrain.errors import DriverError


class VmmDriver(Protocol):
    """Memory, streams and events of one device. Streams, events and handles are ints; none is 0.

    Every method raises `DriverError`; a call that failed has changed nothing. `parts` says whether
    a part of a handle can be mapped and unmapped: by Linux yes, by CUDA the whole handle only.
    """

    name: str
    parts: bool

    @property
    def maps(self) -> bool:
        """Whether virtual memory management is there at all; `devices/probe.py` tries it."""

    def make_current(self) -> None:
        """Lets the calling thread use the device; each thread calls it once."""

    def granularity(self) -> int:
        """Bytes that physical sizes, mapped addresses and reservations are multiples of."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""

    def reserve(self, size_bytes: int, hint: int = 0) -> int:
        """A fresh address range. The hint may be ignored: compare, and free what is unwanted."""

    def address_free(self, address: int, size_bytes: int) -> None:
        """Gives a whole reservation back; nothing may be mapped in it."""

    def create(self, size_bytes: int) -> int:
        """Physical memory; its handle is one reference to it."""

    def release(self, handle: int) -> None:
        """Drops a reference; memory is freed when it has none and is not mapped."""

    def map(self, address: int, size_bytes: int, handle: int, offset: int = 0) -> None:
        """Puts a handle into reserved, unmapped addresses. No access yet.

        A handle may be mapped at several addresses: what is written through one is seen through
        another once the writing work is done (CUDA guide, virtual aliasing support).
        """

    def set_access(self, address: int, size_bytes: int) -> None:
        """Makes whole mappings, one or many in a row, readable and writable."""

    def unmap(self, address: int, size_bytes: int) -> None:
        """Takes whole mappings away; the addresses stay reserved. All use must be over."""

    def host_alloc(self, size_bytes: int) -> int:
        """Address of fresh pinned host memory. Slow: call it once, for all."""

    def host_free(self, address: int) -> None:
        """Gives pinned memory back."""

    def create_stream(self) -> int:
        """A stream that does not wait for the default stream."""

    def destroy_stream(self, stream: int) -> None:
        """Gives a stream back; its queued work is still done."""

    def stream_done(self, stream: int) -> bool:
        """Whether all its work is done, without waiting."""

    def synchronize_stream(self, stream: int) -> None:
        """Blocks until all its work is done."""

    def create_event(self, timing: bool = False) -> int:
        """An event; until it is recorded it counts as reached."""

    def destroy_event(self, event: int) -> None:
        """Gives an event back."""

    def record_event(self, event: int, stream: int) -> None:
        """The event is now what has been queued on the stream so far."""

    def wait_event(self, stream: int, event: int) -> None:
        """Work queued on the stream from now on waits for the event as it is recorded now."""

    def event_done(self, event: int) -> bool:
        """Whether the event's latest record is reached, without waiting."""

    def synchronize_event(self, event: int) -> None:
        """Blocks until the event's latest record is reached."""

    def elapsed_us(self, start: int, end: int) -> float:
        """Time between two reached events with timing."""

    def copy_in(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        """Queues a copy from pinned host memory."""

    def copy_out(self, host: int, address: int, size_bytes: int, stream: int) -> None:
        """Queues a copy to pinned host memory."""

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        """Queues a fill with one byte value."""

    def close(self) -> None:
        """Lets go of the device. What was not given back before is lost."""


class GpuDriver(VmmDriver, Protocol):
    """A GPU's driver: besides, memory that is not mapped piece by piece, and what the GPU is.

    `version` counts as cuDriverGetVersion does: 13020 is CUDA 13.2.
    """

    version: int

    def capability(self) -> tuple[int, int]:
        """Compute capability, (major, minor)."""

    def allocate(self, size_bytes: int) -> int:
        """Address of fresh device memory in one piece, without virtual memory management."""

    def free(self, address: int) -> None:
        """Gives such memory back. All use must be over."""


class GraphDriver(GpuDriver, Protocol):
    """A GPU's driver that records what is queued, and queues all of it again by one call."""

    def begin_capture(self, stream: int) -> None:
        """From now on what is queued on the stream is recorded and not done; so it is on streams
        that wait for an event of it. The host must not wait for any of them."""

    def end_capture(self, stream: int) -> int:
        """Ends that; the graph of what was recorded, ready to be launched. All streams must have
        been waited for."""

    def launch_graph(self, graph: int, stream: int) -> None:
        """Queues all work of a graph, behind what is queued on the stream."""

    def destroy_graph(self, graph: int) -> None:
        """Gives a graph back."""


def give_back(call: Callable[..., object], *arguments: Any) -> None:
    """Calls what gives something back. A device that is lost has nothing left to be given, and says
    so in every call (`DriverError.lost`)."""
    try:
        call(*arguments)
    except DriverError as error:
        if not error.lost:
            raise
