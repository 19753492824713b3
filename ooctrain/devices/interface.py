"""What a device offers the executor: memory, streams, copies, launches.

The Protocols that `cpu/device.py` and `cuda/device.py` fulfil. The executor walks one list in one
way for every device, so a device holds only the differences: where the bytes are, how a piece of
work is queued behind others, how a kernel is started and how bytes are moved. A stream counts its
finished pieces, and a wait is one count for each stream. A piece of work is a callable: the cpu
device calls it when its turn has come, and the call does the work; a GPU device calls it at once,
and the call queues the work. In both cases the device functions that it calls are carried out in
the order of its stream. Read next: `cpu/device.py` with `thread_streams.py`, `cuda/device.py` with
`cuda/streams.py`, then `execution/executor.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np

from ooctrain.devices.thread_streams import StreamEvent, Waits, WorkSpan
from ooctrain.errors import ConfigError
from ooctrain.step.op import Spec

Link = Literal["shared", "duplex"]
FRESH_POISON = 0xFF  # NaN in every float type, -1 in the integers
FREED_POISON = 0x7F  # 3.4e38 in float32: what max() and ReLU would swallow as NaN shows itself


@dataclass(frozen=True, slots=True)
class Debug:
    """How to run for finding bugs; results must be the same bits in every mode.

    Args:
        poison: byte that fresh and freed memory is filled with (`FRESH_POISON`, `FREED_POISON`);
            None: memory is left as it is.
        synchronous: wait for each instruction before the next is issued.
        delay_us: longest random delay before each piece of work; 0: none.
        delay_seed: seed of the delays.
        check_ledger: compare the ledger with the allocator's granted bytes at each instruction.
        before: called with the `execution.program.Program` and the position in its steps, once all
            earlier steps are done, and before this one is issued; in the thread of the caller. What
            it raises undoes the training step.
    """

    poison: int | None = None
    synchronous: bool = False
    delay_us: float = 0.0
    delay_seed: int = 0
    check_ledger: bool = False
    before: Callable[[Any, int], None] | None = None

    def __post_init__(self) -> None:
        if self.poison is not None and not 0 <= self.poison <= 255:
            raise ConfigError(
                f"poison {self.poison!r} is not a byte", code="OOC-100", fix="poison=0xFF"
            )
        if self.delay_us < 0:
            raise ConfigError(
                f"a delay of {self.delay_us} us is negative",
                code="OOC-100",
                fix="delay_us=0, or more",
            )


def jitter_of(debug: Debug) -> Callable[[int], None] | None:
    """Random delays, drawn for each stream from a generator of its own, so that runs repeat."""
    if not debug.delay_us:
        return None
    draw = [random.Random(f"{debug.delay_seed}:{stream}") for stream in range(3)]
    return lambda stream: time.sleep(draw[stream].random() * debug.delay_us / 1e6)


class Memory(Protocol):
    """The device's physical memory: `size_bytes` of it, addressed by offsets from 0."""

    size_bytes: int
    ranges: bool

    def linear(self) -> int:
        """Address at which all of it appears as one piece."""


class DeviceMemory(Memory, Protocol):
    """Memory that is held of a machine."""

    def used_bytes(self) -> int:
        """Bytes of the machine's memory that it holds."""


class VirtualMemory(Memory, Protocol):
    """Memory whose pieces can be mapped into reserved address ranges (`ranges` is True).

    Bounds are multiples of `granularity_bytes`; `max_mappings` mappings apart from each other can
    be carried.
    """

    granularity_bytes: int
    max_mappings: int

    def reserve(self, size_bytes: int) -> int:
        """Address of a fresh range that nothing is mapped into."""

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Makes physical [offset, offset + size_bytes) appear at `address`, instead of what is
        there.

        It may appear at other addresses too; the caller then lets only one of them be used.
        """

    def unmap(self, address: int, size_bytes: int) -> None:
        """Takes a mapping away; the address stays reserved."""

    def release(self, address: int) -> None:
        """Gives a reservation back."""


class StreamSet(Protocol):
    """The device's streams: 0 computes, 1 copies out, the last copies in (1 too on a shared
    link)."""

    count: int

    def submit(self, stream: int, waits: Waits, work: Callable[[], object], tag: int = -1) -> int:
        """Queues a piece of work behind `waits`; returns its number in its stream.

        `work` calls the device, whose copies, launches and fills then belong to this piece.
        """

    def event(self, waits: Waits) -> StreamEvent:
        """The event that these counts are reached."""

    def advance(self, at_most: int) -> None:
        """Lets compute work go on until at most `at_most` pieces are queued."""

    def synchronize(self) -> None:
        """Waits for all work. Raises what the first failing piece raised."""

    def restart(self) -> Sequence[WorkSpan]:
        """Counts from 0 again, all work being done; hands out what was measured."""

    def abandon(self, reason: BaseException) -> None:
        """Skips the work that has not begun, and waits for what has."""


class RecordedStep(Protocol):
    """A step that a device has recorded, to be done again as a whole."""

    @property
    def scalars(self) -> Sequence[Mapping[str, float | int]]:
        """Step scalars that were recorded."""

    def begin(self, scalars: Sequence[Mapping[str, float | int]]) -> None:
        """Queues the first part, with other step scalars in place of the recorded ones."""

    def go_on(self) -> None:
        """Queues the rest."""

    def elapsed_us(self) -> float:
        """How long it took, once it is done."""

    def close(self) -> None:
        """Gives back what it holds."""


class StepRecorder(Protocol):
    """Records what is queued on a device's streams."""

    def record(self, queue: Callable[[], None]) -> RecordedStep:
        """What a function submits to the streams; nothing of it is done."""

    def cut(self) -> None:
        """What is submitted from now on belongs to the next part."""


class BoundCall(Protocol):
    """An operation that is bound to its shapes."""

    def __call__(self, addresses: tuple[int, ...], scalars: Mapping[str, float | int], /) -> None:
        """Runs it, or queues it on a GPU; called by the compute stream's work.

        Args:
            addresses: of inputs, outputs and workspace. Which of them are equal is the same in
                every call.
        """


class Device(Protocol):
    """A device that the executor can run a schedule on."""

    name: str
    link: Link
    debug: Debug
    host_bytes: int

    @property
    def host_align_bytes(self) -> int:
        """What slots of the host slab had better begin at multiples of."""

    @property
    def memory(self) -> DeviceMemory:
        """The arena."""

    @property
    def graphs(self) -> StepRecorder | None:
        """Records whole steps; None: the device cannot, or it is off."""

    @property
    def streams(self) -> StreamSet:
        """Compute, copy out, copy in."""

    def attach(self) -> None:
        """From now on the calling thread works with the device, and no other one."""

    def allocate(self) -> None:
        """Takes all of its memory that it has not, if it was opened to take it later: so first
        values can move in one by one while the memory that they leave is given back."""

    def view(self, address: int, shape: tuple[int, ...], dtype: str) -> Any:
        """The array at a device address, as kernels want it."""

    def bind(
        self, op: Any, ins: Sequence[Spec], outs: Sequence[Spec], workspace_bytes: int
    ) -> BoundCall:
        """An operation on arrays of these logical shapes, to be run in every step."""

    def copy_out(self, address: int, host_offset: int, size_bytes: int) -> None:
        """Copies device bytes to the host slab; called by the copy-out stream's work."""

    def copy_in(self, address: int, host_offset: int, size_bytes: int) -> None:
        """Copies host slab bytes to the device; called by the copy-in stream's work."""

    def fill(self, address: int, size_bytes: int, byte: int) -> None:
        """Fills device memory with a byte; called by any stream's work."""

    def capture(self, address: int, size_bytes: int) -> np.ndarray:
        """Device bytes as the work before has left them, uint8; called by any stream's work.

        They are there once the streams have been synchronized, until the next step.
        """

    def look(self, address: int, size_bytes: int) -> np.ndarray:
        """Device bytes as the work before has left them, at once; called by any stream's work."""

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes as a uint8 array; called between steps."""

    def write(self, address: int, data: np.ndarray) -> None:
        """Writes uint8 data to the device; called between steps."""

    def feed(self, address: int, data: np.ndarray) -> None:
        """Writes an input to the device, before the work that is submitted from now on; called
        before a step, while nothing that uses these bytes is queued. The host need not wait."""

    def host_buffer(self, size_bytes: int) -> HostBuffer:
        """Host memory for a batch, which `feed` takes from there without delay: one of two in turn,
        all of one size, whose last batch has arrived. Another thread may fill it."""

    def discard(self, address: int, size_bytes: int) -> None:
        """The bytes will not be read again; their memory may be given back before the device is
        closed. Called between steps."""

    def discard_all(self) -> None:
        """The same of all memory: only the host slab will be read until the device is closed."""

    def host(self, offset: int, size_bytes: int) -> np.ndarray:
        """Bytes of the host slab, to look at between steps."""

    def write_host(self, offset: int, data: np.ndarray) -> None:
        """Writes uint8 data to the host slab; called between steps."""

    def fill_host(self, offset: int, size_bytes: int, byte: int) -> None:
        """Fills host slab bytes that a copy before in this piece of work has read."""

    def close(self) -> None:
        """Gives everything back."""


# Host memory in which a batch lies as the device wants it, before its step begins; pinned where the
# device is a GPU. Another thread may fill it while a step runs. The device may close just before
# that thread writes, so a thread that fills a buffer holds it open, and a closed one is not filled.


class HostBuffer:
    """Memory of a batch.

    Args:
        data: uint8.
        give_back: called once, when it is closed.
    """

    def __init__(self, data: np.ndarray, give_back: Callable[[], object] = lambda: None):
        self._data, self._give_back, self._lock = data, give_back, Lock()
        self.open = True

    def fill(self, write: Callable[[np.ndarray], None]) -> bool:
        """Lets `write` put its bytes in; False: it is closed, and nothing has happened."""
        with self._lock:
            if self.open:
                write(self._data)
            return self.open

    def holds(self, data: np.ndarray) -> bool:
        """Whether bytes lie in it."""
        first = self._data.ctypes.data
        return self.open and first <= data.ctypes.data < first + self._data.size

    def close(self) -> None:
        """Gives the memory back, once no thread writes any more."""
        with self._lock:
            if self.open:
                self.open = False
                self._give_back()
