"""The cpu device: an accelerator made of CPU cores, with memory of its own, streams and a link.

This `Device` has an arena of exactly the budget, a host slab of the planned extent, and copies that
take as long as on the given link. Nothing is simulated: all data moves between two real memories,
at addresses that are really unmapped, on threads that really race; only the link's slowness is
imposed. See docs/architecture.md, "Two devices, one loop". Read next: `execution/executor.py`.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ooctrain.devices.cpu.copy_engine import CopyBytes, CopyEngine, CopyLink
from ooctrain.devices.cpu.host_vm import (
    Arena,
    VirtualArena,
    check_memory,
    open_arena,
)
from ooctrain.devices.cpu.launches import BoundOperation
from ooctrain.devices.host_file import HostFile
from ooctrain.devices.interface import BoundCall, Debug, HostBuffer, Link, jitter_of
from ooctrain.devices.raw_bytes import array_at, bytes_at
from ooctrain.devices.thread_streams import Streams
from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.step.op import Spec


class CpuDevice:
    """CPU cores as an accelerator.

    Args:
        budget_bytes: size of the arena; whole pages of the machine are taken for it.
        host: the host slab: its size, exactly the extent that the schedule's host slots need, or
            the slab itself, in a file; the device closes it, unless it cannot be opened.
        threads: workers of the compute stream, the walker counted among them.
        link: between arena and host slab.
        debug: poison, synchronous mode, delays.
        open_memory: opens the arena, given its size in bytes.
        leaving_bytes: host memory that values give back as they move into the arena.
        shuffle_seed: if given, kernels draw their chunks in random order.

    Raises:
        ConfigError: budget or host slab larger than free memory, or no thread.
        DriverError: the system refused memory.
    """

    name = "cpu"
    graphs = None

    def __init__(
        self, budget_bytes: int, host: int | HostFile = 0, threads: int = 1,
        link: CopyLink | None = None, debug: Debug | None = None, *,
        open_memory: Callable[[int], Arena | VirtualArena] = open_arena,
        leaving_bytes: int = 0, shuffle_seed: int | None = None,
    ):  # fmt: skip
        if threads < 1:
            raise ConfigError(
                f"{threads} threads are too few", code="OOC-100", fix="--threads 1 or more"
            )
        link = link or CopyLink()
        in_memory = host if isinstance(host, int) else 0
        wanted_bytes = max(0, budget_bytes + in_memory - leaving_bytes)
        check_memory(wanted_bytes, "the arena and the host slab want")
        self.link: Link = link.kind
        self.debug = debug or Debug()
        self._out_rate, self._in_rate = link.out_bytes_per_us, link.in_bytes_per_us
        self.memory: Arena | VirtualArena = open_memory(budget_bytes)
        self._slab = _MemorySlab(host, link.copy_bytes) if isinstance(host, int) else host
        self.host_bytes, self.host_align_bytes = self._slab.size_bytes, self._slab.block_bytes
        self._slab_address, move = self._slab.address, self._slab.copy
        self.streams = streams = Streams(2 if self.link == "duplex" else 1, jitter_of(self.debug))

        def engine() -> CopyEngine:
            return CopyEngine(move, link.latency_us, stopped=lambda: streams.failure is not None)

        self._out_engine = engine()
        self._in_engine = engine() if self.link == "duplex" else self._out_engine
        self._buffers: list[HostBuffer] = []
        self._pool = ThreadPool(threads, shuffle_seed=shuffle_seed)
        # Also where the device is not closed: none of these four refers to it.
        self._give_back = weakref.finalize(
            self, _give_back, os.getpid(), self.streams, self._pool, self.memory, self._slab
        )
        self._give_back.atexit = False

    def attach(self) -> None:
        """Lets the calling thread work the compute stream off."""
        self.streams.attach()

    def allocate(self) -> None:
        """Takes the rest of the arena's memory. Raises DriverError: the system refused."""
        self.memory.allocate()

    def view(self, address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """The array at a device address. It does not keep the mapping alive."""
        return array_at(address, shape, dtype)

    def bind(
        self, op: Any, ins: Sequence[Spec], outs: Sequence[Spec], workspace_bytes: int
    ) -> BoundCall:
        """An operation that is run on the pool, by the calling thread and its helpers."""
        return BoundOperation(self._pool, op, ins, outs, workspace_bytes)

    def copy_out(self, address: int, host_offset: int, size_bytes: int) -> None:
        """Copies device bytes to the host slab."""
        self._out_engine.copy(self._slab_address + host_offset, address, size_bytes, self._out_rate)

    def copy_in(self, address: int, host_offset: int, size_bytes: int) -> None:
        """Copies host slab bytes to the device."""
        self._in_engine.copy(address, self._slab_address + host_offset, size_bytes, self._in_rate)

    def fill(self, address: int, size_bytes: int, byte: int) -> None:
        """Fills device memory with a byte."""
        ctypes.memset(address, byte, size_bytes)

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes."""
        return bytes_at(address, size_bytes).copy()

    def capture(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes, taken there and then."""
        return self.read(address, size_bytes)

    def look(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy of device bytes, taken there and then."""
        return self.read(address, size_bytes)

    def write(self, address: int, data: np.ndarray) -> None:
        """Writes uint8 data to the device."""
        bytes_at(address, data.size)[:] = data

    def feed(self, address: int, data: np.ndarray) -> None:
        """Writes uint8 data to the device."""
        self.write(address, data)

    def host_buffer(self, size_bytes: int) -> HostBuffer:
        """Host memory for a batch: one of two in turn."""
        new = len(self._buffers) < 2
        buffer = HostBuffer(np.empty(size_bytes, np.uint8)) if new else self._buffers.pop(0)
        self._buffers.append(buffer)
        return buffer

    def discard(self, address: int, size_bytes: int) -> None:
        """Gives back the whole pages among these bytes."""
        self.memory.discard(address, size_bytes)

    def discard_all(self) -> None:
        """Gives back the arena's pages."""
        self.memory.discard_all()

    def host(self, offset: int, size_bytes: int) -> np.ndarray:
        """Bytes of the host slab: a view of memory, a copy of a file's."""
        return self._slab.get(offset, size_bytes)

    def write_host(self, offset: int, data: np.ndarray) -> None:
        """Writes uint8 data to the host slab."""
        self._slab.put(offset, data)

    def fill_host(self, offset: int, size_bytes: int, byte: int) -> None:
        """Fills bytes of the host slab."""
        self._slab.put(offset, np.full(size_bytes, byte, np.uint8))

    def close(self) -> None:
        """Ends the threads and gives the memory back."""
        for buffer in self._buffers:
            buffer.close()
        self._give_back()


class _MemorySlab:
    """The host slab in memory."""

    block_bytes = 1

    def __init__(self, size_bytes: int, copy_bytes: CopyBytes | None):
        self.size_bytes, self.copy = size_bytes, copy_bytes or _copy_kernel()
        self._bytes = np.empty(size_bytes, np.uint8)
        self.address = self._bytes.ctypes.data

    def get(self, offset: int, size_bytes: int) -> np.ndarray:
        return self._bytes[offset : offset + size_bytes]

    def put(self, offset: int, data: np.ndarray) -> None:
        self._bytes[offset : offset + data.size] = data

    def close(self) -> None:
        self._bytes = np.empty(0, np.uint8)


class _Held(Protocol):
    """What is given back when the device closes."""

    def close(self) -> None: ...


def _give_back(process: int, *held: _Held) -> None:
    """Closes all of these, but not in a fork: threads are not there, and addresses another's."""
    if os.getpid() == process:
        for what in held:
            what.close()


def _copy_kernel() -> CopyBytes:
    """The kernels' non-temporal copy."""
    # Not at the top, since it compiles the kernel or loads it from the disk.
    from ooctrain.layers.kernels.cpu.runtime.copy import stream_copy

    def copy_bytes(target: int, source: int, size_bytes: int) -> None:
        stream_copy(bytes_at(target, size_bytes), bytes_at(source, size_bytes))

    return copy_bytes
