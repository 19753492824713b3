"""The cuda device: a GPU's memory, streams, copies and kernels, as the executor requests them.

From an opened driver, a budget and the planned host extent comes a `Device` whose arena is exactly
the budget and whose host slab is one piece of pinned memory of exactly the planned size. The
executor's loop is the same as for the cpu device. A piece of work is a callable, and here calling
it only queues its copies, fills and kernels on its CUDA stream, between the waits and the event
that `CudaStreams` puts around them. So the host runs ahead, and the GPU orders everything. The
parts that need Numba are passed in as `Kernels`, so the whole device also runs over the strict fake
driver. Source: paper 000, section 3.3; see docs/architecture.md, "Two devices, one loop".
Read next: `streams.py`, `staging.py`, `open.py` (how all of it is found and opened).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver_memory import DriverMemory, PlainMemory
from ooctrain.devices.cuda.feed import Feed
from ooctrain.devices.cuda.spilled import PIECES, PINNED_BYTES, SpilledSlab
from ooctrain.devices.cuda.staging import Staging
from ooctrain.devices.cuda.step_graph import GraphMaker
from ooctrain.devices.cuda.streams import CudaStreams
from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.host_file import HostFile
from ooctrain.devices.interface import BoundCall, Debug, HostBuffer, Link, jitter_of
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.devices.thread_streams import COMPUTE, OUT
from ooctrain.errors import ConfigError, DriverError, OutOfDeviceMemory
from ooctrain.step.op import Spec, physical_shape
from ooctrain.units import format_bytes

_ARRAYS_KEPT = 1 << 16
#: Of one operation.
_PLACES_KEPT = 1 << 4


class Kernels(Protocol):
    """What runs operations on one stream of a device."""

    def array(self, address: int, shape: tuple[int, ...], dtype: str) -> Any:
        """The array at a device address, as this runs operations on it."""

    def launch(
        self, op: Any, ins: Sequence[Any], outs: Sequence[Any], workspace: Any,
        scalars: Mapping[str, float | int],
    ) -> None:  # fmt: skip
        """Queues one operation."""


MakeKernels = Callable[[GpuDriver, int], Kernels]


class CudaDevice:
    """A GPU.

    Args:
        driver: opened, and current in this thread; closed with the device.
        make_kernels: (driver, stream) to what runs operations on that stream.
        budget_bytes: size of the arena.
        host: the host slab: its size, exactly the extent that the schedule's host slots need, or a
            file, which is closed with the device.
        piece_bytes: chunk of memory that an allocator maps; None: all in one piece.
        link: "duplex": the directions have a stream each; "shared": one for both.
        debug: poison, synchronous mode, delays.

    Raises:
        OutOfDeviceMemory: the GPU has less free memory than the budget.
        ConfigError: the host does not give as much pinned memory.
        DriverError: the driver refused otherwise. In each case nothing is kept.
    """

    name = "cuda"

    def __init__(
        self, driver: GpuDriver, make_kernels: MakeKernels, budget_bytes: int,
        host: int | HostFile = 0,
        *, piece_bytes: int | None = None, link: Link = "duplex", debug: Debug | None = None,
    ):  # fmt: skip
        self.link: Link = link
        self.debug = debug or Debug()
        self.host_bytes = host if isinstance(host, int) else host.size_bytes
        self.host_align_bytes = 1 if isinstance(host, int) else host.block_bytes
        self._spilled: SpilledSlab | None = None
        self._driver = driver
        self._arrays: dict[tuple[int, tuple[int, ...], str], Any] = {}
        self._held = ExitStack()
        self._to_give_back(driver.close)
        try:
            copy_streams = 2 if link == "duplex" else 1
            self.streams = CudaStreams(driver, copy_streams, jitter_of(self.debug))
            self._to_give_back(self.streams.close)
            self.memory = _device_memory(driver, budget_bytes, piece_bytes)
            self._to_give_back(self.memory.close)
            pinned_bytes = host if isinstance(host, int) else PIECES * PINNED_BYTES
            self._slab_address = _pinned_slab(driver, pinned_bytes) if pinned_bytes else 0
            if pinned_bytes:
                self._to_give_back(lambda: driver.host_free(self._slab_address))
            if not isinstance(host, int):
                self._spilled = SpilledSlab(driver, host, self._slab_address, PINNED_BYTES)
                self._to_give_back(self._spilled.close)
            self._staging = Staging(driver)
            self._to_give_back(self._staging.close)
            self._feed = Feed(driver, self.streams)
            self._to_give_back(lambda: self._feed.close())
            self._kernels = make_kernels(driver, self.streams.handles[COMPUTE])
            # A file is not part of a graph.
            recorded = None if self._spilled else self._kernels
            self.graphs = _graph_maker(driver, self.streams, self._staging, recorded)
        except BaseException:
            self._held.close()
            raise

    def attach(self) -> None:
        """Makes the GPU current in the calling thread."""
        self._driver.make_current()

    def allocate(self) -> None:
        """Nothing: a GPU's memory is not the host's, which values leave."""

    def view(self, address: int, shape: tuple[int, ...], dtype: str) -> Any:
        """The array at a device address, made once. It does not keep the mapping alive."""
        key = (address, shape, dtype)
        array = self._arrays.get(key)
        if array is None:
            if len(self._arrays) >= _ARRAYS_KEPT:
                self._arrays.clear()
            array = self._arrays[key] = self._kernels.array(address, shape, dtype)
        return array

    def bind(
        self, op: Any, ins: Sequence[Spec], outs: Sequence[Spec], workspace_bytes: int
    ) -> BoundCall:
        """An operation that is queued on the compute stream; its arrays are made once for each
        place where they lie."""
        shapes = [(physical_shape(spec.shape), spec.dtype) for spec in (*ins, *outs)]
        shapes.append(((workspace_bytes,), "uint8"))
        known: dict[tuple[int, ...], Sequence[Any]] = {}
        split = len(ins)

        def launch(addresses: tuple[int, ...], scalars: Mapping[str, float | int], /) -> None:
            arrays = known.get(addresses)
            if arrays is None:
                if len(known) >= _PLACES_KEPT:
                    known.clear()
                places = zip(addresses, shapes, strict=True)
                arrays = known[addresses] = [self.view(at, *shape) for at, shape in places]
            self._kernels.launch(op, arrays[:split], arrays[split:-1], arrays[-1], scalars)

        return launch

    def copy_out(self, address: int, host_offset: int, size_bytes: int) -> None:
        """Queues a copy of device bytes to the host slab."""
        stream = self.streams.handles[OUT]
        if self._spilled is not None:
            self._spilled.copy_out(address, host_offset, size_bytes, stream)
            return
        self._driver.copy_out(self._slab_address + host_offset, address, size_bytes, stream)

    def copy_in(self, address: int, host_offset: int, size_bytes: int) -> None:
        """Queues a copy of host slab bytes to the device."""
        stream = self.streams.handles[-1]
        if self._spilled is not None:
            self._spilled.copy_in(address, host_offset, size_bytes, stream)
            return
        self._driver.copy_in(address, self._slab_address + host_offset, size_bytes, stream)

    def fill(self, address: int, size_bytes: int, byte: int) -> None:
        """Queues a fill of device memory with a byte."""
        self._driver.fill(address, byte, size_bytes, self.streams.current)

    def capture(self, address: int, size_bytes: int) -> np.ndarray:
        """Queues a copy of device bytes; they are there once the streams are synchronized."""
        streams = self.streams
        return self._staging.capture(address, size_bytes, streams.current, streams.era)

    def look(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes; the host waits for the work of this stream."""
        return self._staging.read(address, size_bytes, self.streams.current)

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes, after all work that has been queued."""
        self.streams.synchronize()
        return self._staging.read(address, size_bytes, self.streams.handles[COMPUTE])

    def write(self, address: int, data: np.ndarray) -> None:
        """Writes uint8 data to the device, after all work that has been queued."""
        self.streams.synchronize()
        self._staging.write(address, data, self.streams.handles[COMPUTE])

    def feed(self, address: int, data: np.ndarray) -> None:
        """Queues the copy of uint8 data to the device, before all that is submitted from now on."""
        self._feed.write(address, data)

    def host_buffer(self, size_bytes: int) -> HostBuffer:
        """Pinned memory for a batch."""
        return self._feed.host_buffer(size_bytes)

    def host(self, offset: int, size_bytes: int) -> np.ndarray:
        if self._spilled is not None:
            return self._spilled.get(offset, size_bytes)
        size_bytes = min(size_bytes, self.host_bytes - offset)
        if size_bytes <= 0:
            return np.empty(0, np.uint8)
        return bytes_at(self._slab_address + offset, size_bytes)

    def write_host(self, offset: int, data: np.ndarray) -> None:
        """Writes uint8 data to the host slab."""
        if self._spilled is not None:
            self._spilled.put(offset, data)
        else:
            self.host(offset, data.size)[:] = data

    def discard(self, address: int, size_bytes: int) -> None:
        """Nothing: a GPU's memory is not the host's, which values are brought to."""

    def discard_all(self) -> None:
        """Nothing, likewise."""

    def fill_host(self, offset: int, size_bytes: int, byte: int) -> None:
        """Fills bytes of the host slab, once the copies of this piece of work have read them."""
        if self._spilled is None:  # a file has been read when the copy was queued
            self._driver.synchronize_stream(self.streams.current)
        self.write_host(offset, np.full(size_bytes, byte, np.uint8))

    def close(self) -> None:
        """Gives everything back. All work must be done, or the device have failed."""
        self._arrays.clear()
        self._held.close()

    def _to_give_back(self, call: Callable[[], None]) -> None:
        """Has something given back when the device closes; what was obtained last goes first."""
        self._held.callback(give_back, call)


def _device_memory(
    driver: GpuDriver, budget_bytes: int, piece_bytes: int | None
) -> DriverMemory | PlainMemory:
    """The arena. Raises OutOfDeviceMemory: the device has less free."""
    if budget_bytes <= 0:
        raise ConfigError(
            f"an arena cannot have {budget_bytes} bytes", code="OOC-102",
            fix="`ooctrain plan MODEL` prints the smallest budget that fits",
        )  # fmt: skip
    free, total = driver.memory_info()
    if budget_bytes > free:
        raise _too_little(driver.name, budget_bytes, free, total)
    try:
        if piece_bytes is None:
            return PlainMemory(driver, budget_bytes)
        return DriverMemory(driver, budget_bytes, piece_bytes)
    except DriverError as error:
        if error.status != abi.OUT_OF_MEMORY:
            raise
        raise _too_little(driver.name, budget_bytes, free, total) from error


def _graph_maker(
    driver: Any, streams: CudaStreams, staging: Staging, kernels: Any
) -> GraphMaker | None:
    """What records whole steps, if that is wanted (`open.make_kernels`)."""
    wanted = getattr(kernels, "graphs", False)
    return GraphMaker(driver, streams, staging, kernels) if wanted else None


def _too_little(name: str, budget_bytes: int, free: int, total: int) -> OutOfDeviceMemory:
    return OutOfDeviceMemory(
        f"the GPU has less free memory than the budget of {format_bytes(budget_bytes)}",
        where=name,
        numbers=f"free {format_bytes(free)} of {format_bytes(total)}: the rest is in use by other "
        "processes and by CUDA itself",
        fix="a smaller --budget; `nvidia-smi` shows what else uses the GPU",
        granted_bytes=budget_bytes, free_bytes=free, largest_bytes=free, budget_bytes=budget_bytes,
    )  # fmt: skip


def _pinned_slab(driver: GpuDriver, size_bytes: int) -> int:
    """Address of the host slab. Raises ConfigError: the host cannot pin this much."""
    try:
        return driver.host_alloc(size_bytes)
    except DriverError as error:
        if error.status != abi.OUT_OF_MEMORY:
            raise
        raise ConfigError(
            f"this machine does not give {format_bytes(size_bytes)} of pinned memory",
            code="OOC-108", where="the host slab, for what is swapped out", numbers=error.what,
            fix="a smaller --host-budget or --batch, a larger --budget; `ulimit -l`",
        ) from error  # fmt: skip
