"""What an allocator under test stands on: memory with work that uses it, over any driver or none.

A `Ground` has a size and a page. It offers memory for the allocator, fills and checks queued on
streams, refusals on demand, and a list of what has not been given back. The client of the laws
speaks to this one interface, so the same requests run over the strict fake, which does its work as
late as allowed and in any order, over this machine's memory, over a GPU, and over a plain arena. A
check is a copy to the host, compared when it is done. Code that obtains several things in turn has
to give back those it has when the next is refused; so a run can be repeated with each call refused
once (`FaultyDriver`), as SQLite's tests do with memory. Read next: `fake_driver.py`,
`allocator_client.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ooctrain.alloc.base import Event
from ooctrain.devices.cpu.host_vm import Arena
from ooctrain.devices.cuda.driver import failure, open_cuda_driver
from ooctrain.devices.cuda.driver_abi import OUT_OF_MEMORY
from ooctrain.devices.cuda.driver_memory import DriverMemory
from ooctrain.devices.driver_calls import VmmDriver
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DriverError
from ooctrain.testing.allocator_laws import hold
from ooctrain.testing.fake_driver import FakeDriver
from ooctrain.testing.host_driver import HostDriver

#: What a driver refuses in practice; what gives something back is not refused.
OBTAINING = ("reserve", "create", "map", "set_access")


class FaultyDriver:
    """Everything goes to the driver inside; the ordered call fails before it gets there.

    Args:
        inner: the driver.
    """

    def __init__(self, inner: VmmDriver):
        self._inner = inner
        self._before: int | None = None  # obtaining calls that still pass

    def refuse(self, after: int) -> None:
        """The obtaining call after the next `after` is refused, once."""
        self._before = after

    def take_back(self) -> bool:
        """Takes the order back; whether it was still to come."""
        waiting, self._before = self._before is not None, None
        return waiting

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)
        if name not in OBTAINING or self._before is None:
            return function

        def counted(*arguments: Any) -> Any:
            if self._before == 0:
                self._before = None
                raise failure(name, OUT_OF_MEMORY, detail="injected")
            if self._before is not None:
                self._before -= 1
            return function(*arguments)

        return counted


STREAMS = 3
_SLAB_BYTES, _WHOLE_BYTES, _BIT_BYTES = 1 << 18, 1 << 16, 64
_FEW_MAPPINGS = 8  # so that allocators that keep mappings have to let some go


class Ground(Protocol):
    """Memory, and work on it."""

    memory: Any

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        """Queues a write."""

    def expect(self, address: int, size_bytes: int, byte: int, stream: int, what: str) -> None:
        """Queues a check that all bytes are this one; `what` is for the complaint."""

    def event(self, stream: int) -> Event:
        """The point after what has been queued on a stream so far."""

    def wait(self, stream: int, event: Any) -> None:
        """What is queued on the stream from now on waits for the event."""

    def work(self, pieces: int) -> None:
        """Does some of the queued work."""

    def finish(self) -> str:
        """Does all work; what a check found wrong first, or an empty text."""

    def refuse(self, after: int) -> None:
        """Lets the driver refuse something once."""

    def take_back(self) -> bool:
        """No refusal any more; whether it was still to come."""

    def held(self) -> dict[str, int]:
        """What of the driver is held."""

    def aliases(self) -> int:
        """How many mappings there are beyond the first of each piece of memory."""

    def close(self) -> dict[str, int]:
        """Gives the memory back; returns what of the driver is still held then."""


@dataclass(frozen=True, slots=True)
class _Event:
    driver: VmmDriver
    number: int

    def wait(self) -> None:
        self.driver.synchronize_event(self.number)


@dataclass(frozen=True, slots=True)
class _Check:
    """Bytes on their way to the host slab."""

    offset: int
    size_bytes: int
    byte: int
    what: str


class DriverGround:
    """Memory of a driver, any of them.

    Args:
        driver: opened; `close` closes it.
        size_bytes: size of the memory.
        page_bytes: unit of mapping.
        refuse_at: which obtaining call of the driver is refused, once; None: none.
    """

    def __init__(
        self, driver: VmmDriver, size_bytes: int, page_bytes: int, refuse_at: int | None = None
    ):
        self._faults = FaultyDriver(driver)
        self._driver = driver
        if refuse_at is not None:
            self._faults.refuse(refuse_at)
        faulty = cast(VmmDriver, self._faults)
        try:
            self.memory = DriverMemory(faulty, size_bytes, page_bytes, _FEW_MAPPINGS)
        except DriverError:
            left = {key: count for key, count in self.held().items() if count}
            hold("P11", not left, f"memory that was refused keeps {left}")
            self.memory = DriverMemory(faulty, size_bytes, page_bytes, _FEW_MAPPINGS)
        self._queues = [driver.create_stream() for _ in range(STREAMS)]
        self._slab, self._used = driver.host_alloc(_SLAB_BYTES), 0
        self._events: list[int] = []
        self._checks: list[_Check] = []
        self._problem = ""

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        self._driver.fill(address, byte, size_bytes, self._queues[stream])

    def expect(self, address: int, size_bytes: int, byte: int, stream: int, what: str) -> None:
        if size_bytes <= _WHOLE_BYTES:
            self._expect_all(address, size_bytes, byte, stream, what)
            return
        # Of large ranges a bit of each page: each may lie in other memory.
        page = self.memory.granularity_bytes
        for offset in (*range(0, size_bytes - _BIT_BYTES, page), size_bytes - _BIT_BYTES):
            self._expect_all(address + offset, _BIT_BYTES, byte, stream, what)

    def _expect_all(self, address: int, size_bytes: int, byte: int, stream: int, what: str) -> None:
        if self._used + size_bytes > _SLAB_BYTES:
            self.finish()
        check = _Check(self._used, size_bytes, byte, what)
        self._used += size_bytes
        host = self._slab + check.offset
        self._driver.copy_out(host, address, size_bytes, self._queues[stream])
        self._checks.append(check)

    def event(self, stream: int) -> _Event:
        event = _Event(self._driver, self._driver.create_event())
        self._events.append(event.number)
        self._driver.record_event(event.number, self._queues[stream])
        return event

    def wait(self, stream: int, event: _Event) -> None:
        self._driver.wait_event(self._queues[stream], event.number)

    def work(self, pieces: int) -> None:
        if isinstance(self._driver, FakeDriver):  # the others work by themselves
            for _ in range(pieces):
                self._driver.step()

    def finish(self) -> str:
        for queue in self._queues:
            self._driver.synchronize_stream(queue)
        for check in self._checks:
            data = bytes_at(self._slab + check.offset, check.size_bytes)
            wrong = data[data != check.byte]
            if wrong.size and not self._problem:
                self._problem = f"{check.what}: {check.byte} was written, {wrong[0]} is read"
        self._checks.clear()
        self._used = 0
        return self._problem

    def refuse(self, after: int) -> None:
        self._faults.refuse(after)

    def take_back(self) -> bool:
        return self._faults.take_back()

    def held(self) -> dict[str, int]:
        if not isinstance(self._driver, FakeDriver | HostDriver):
            return {}
        held = self._driver.held()
        return {key: held[key] for key in ("handles", "reservations", "mappings")}

    def aliases(self) -> int:
        if not isinstance(self._driver, FakeDriver):
            return 0
        handles = [
            handle
            for address, size, _ in self._driver.mappings()
            for handle in self._driver.handles_at(address, size)
        ]
        return len(handles) - len(set(handles))

    def close(self) -> dict[str, int]:
        self.memory.close()
        self._driver.host_free(self._slab)
        # A GPU's context outlives this driver object, and keeps what is not destroyed.
        for event in self._events:
            self._driver.destroy_event(event)
        for queue in self._queues:
            self._driver.destroy_stream(queue)
        left = self._driver.held() if isinstance(self._driver, FakeDriver | HostDriver) else {}
        self._driver.close()
        return left


class PlainGround:
    """Memory that is mapped once: work is done where it is queued.

    Args:
        size_bytes: size of the memory.
    """

    def __init__(self, size_bytes: int):
        self.memory = Arena(size_bytes)
        self._problem = ""

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        self._inside(address, size_bytes)[:] = byte

    def expect(self, address: int, size_bytes: int, byte: int, stream: int, what: str) -> None:
        data = self._inside(address, size_bytes)
        if (data != byte).any() and not self._problem:
            self._problem = f"{what}: {byte} was written, {data[data != byte][0]} is read"

    def event(self, stream: int) -> _Done:
        return _Done()

    def wait(self, stream: int, event: _Done) -> None:
        event.wait()

    def work(self, pieces: int) -> None:
        """Nothing is queued."""

    def finish(self) -> str:
        return self._problem

    def refuse(self, after: int) -> None:
        """There is no driver."""

    def take_back(self) -> bool:
        return False

    def held(self) -> dict[str, int]:
        return {}

    def aliases(self) -> int:
        return 0

    def close(self) -> dict[str, int]:
        self.memory.close()
        return {}

    def _inside(self, address: int, size_bytes: int) -> Any:
        base = self.memory.linear()
        if not base <= address <= base + self.memory.size_bytes - size_bytes:
            raise AssertionError(f"[{address:#x}, +{size_bytes}) lies outside of the arena")
        return bytes_at(address, size_bytes)


class _Done:
    """Work that is over."""

    def wait(self) -> None:
        """It is."""


def make_ground(
    kind: str, size_bytes: int, page_bytes: int, order: Sequence[int] = (),
    refuse_at: int | None = None,
) -> Ground:  # fmt: skip
    """A fresh ground.

    Args:
        kind: "strict", "memfd", "plain", or "cuda" where there is a GPU.
        size_bytes: size of the memory.
        page_bytes: unit of mapping; memfd and CUDA take whole pages of theirs.
        order: in which the strict driver works: which of the streams that can go on goes on.
        refuse_at: which obtaining call of the driver is refused, once; None: none.
    """
    if kind == "plain":
        return PlainGround(size_bytes)
    if kind in ("memfd", "cuda"):
        driver = HostDriver(size_bytes) if kind == "memfd" else open_cuda_driver()
        page = driver.granularity()
        total = -(-size_bytes // page) * page
        return DriverGround(driver, total, max(page, page_bytes // page * page), refuse_at)
    turns = iter(order)
    fake = FakeDriver(size_bytes, page_bytes, choose=lambda able: able[next(turns, 0) % len(able)])
    return DriverGround(fake, size_bytes, page_bytes, refuse_at)
