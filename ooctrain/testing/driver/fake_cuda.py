"""The cuda device without a GPU: its kernels run on the strict fake driver's bytes.

Kernels are launched with arrays that are only addresses, are queued on the fake's streams, and run
when a stream reaches them. As on a GPU, the contents of an array cannot be read when a kernel is
queued. When it runs, the bytes behind its arrays are gathered from the fake's pages (which checks
that each is mapped), the kernel runs on them, and they are written back. Arrays over the same bytes
share them. There are two ways to run: the real device code in the emulator (`EmulatedKernels`), or
each operation's cpu kernel (`CpuKernels`), which is fast and tests the device alone. Read next:
`testing/emulator/emulator.py`, `fake_driver.py`, `devices/cuda/device.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.engine.eager import aligned_bytes
from ooctrain.layers.conv2d import CUDA_ALGORITHMS
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.rewrite.tile.on_rows import OnRows
from ooctrain.step.op import LINE_BYTES, Scalars, Spec
from ooctrain.testing.driver.fake_driver import FakeDriver


class FakeLauncher:
    """A `Launcher` on a stream of the fake.

    Args:
        driver, stream: where kernels are queued.
        inner: the launcher that runs them on NumPy arrays.
    """

    def __init__(self, driver: FakeDriver, stream: int, inner: Any):
        self._driver, self._stream, self._inner = driver, stream, inner

    def launch(self, kernel: Any, blocks: Any, *args: Any) -> None:
        """Queues a kernel."""

        def run(arrays: Sequence[np.ndarray]) -> None:
            given = iter(arrays)
            filled = [next(given) if isinstance(arg, DeviceArray) else arg for arg in args]
            self._inner.launch(kernel, blocks, *filled)

        queue(
            self._driver, self._stream, [a for a in args if isinstance(a, DeviceArray)], run,
            kernel.name,
        )  # fmt: skip

    def part(
        self, workspace: DeviceArray, offset_bytes: int, count: int, dtype: str
    ) -> DeviceArray:
        """A piece of a workspace. Raises ValueError: the workspace is smaller."""
        kind = np.dtype(dtype)
        if offset_bytes < 0 or offset_bytes + count * kind.itemsize > workspace.nbytes:
            raise ValueError(f"{count} of {dtype} from byte {offset_bytes} leave the workspace")
        return DeviceArray(workspace.address + offset_bytes, (count,), kind)


class _Fake:
    """Arrays of the fake, and a stream of it."""

    def __init__(self, driver: FakeDriver, stream: int):
        self._driver, self._stream = driver, stream

    def array(self, address: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """The array at an address."""
        return DeviceArray(address, tuple(shape), dtype)


class CpuKernels(_Fake):
    """Runs each operation's cpu kernel on the fake's bytes (`devices.cuda.Kernels`).

    Convolutions use an algorithm that the cpu device has, and where a call's workspace is too small
    for the cpu kernel, that gets another one.
    """

    def __init__(self, driver: FakeDriver, stream: int):
        super().__init__(driver, stream)
        self._pool = ThreadPool(1)

    def launch(
        self, op: Any, ins: Sequence[DeviceArray], outs: Sequence[DeviceArray],
        workspace: DeviceArray, scalars: Scalars,
    ) -> None:  # fmt: skip
        """Queues one operation."""
        first, last = len(ins), len(ins) + len(outs)
        op = _on_cpu(op)
        needed = CPU.workspace_bytes(op, list(map(_spec, ins)), list(map(_spec, outs)), 1)

        def run(arrays: Sequence[np.ndarray]) -> None:
            scratch = arrays[last] if needed <= workspace.nbytes else aligned_bytes(needed)
            CPU.run(op, self._pool, arrays[:first], arrays[first:last], scratch, scalars)

        queue(self._driver, self._stream, [*ins, *outs, workspace], run, op.name)


class EmulatedKernels(_Fake):
    """Runs each operation's GPU kernels in the emulator (`devices.cuda.Kernels`).

    Args:
        driver, stream: where they are queued.
        inner: the emulator's launcher.
    """

    def __init__(self, driver: FakeDriver, stream: int, inner: Any):
        super().__init__(driver, stream)
        self._launcher = FakeLauncher(driver, stream, inner)

    def launch(
        self, op: Any, ins: Sequence[DeviceArray], outs: Sequence[DeviceArray],
        workspace: DeviceArray, scalars: Scalars,
    ) -> None:  # fmt: skip
        """Queues one operation's kernels."""
        CUDA.run(op, self._launcher, ins, outs, workspace, scalars)


def _on_cpu(op: Any) -> Any:
    """The operation by an algorithm that the cpu device has."""
    if isinstance(op, OnRows):
        return replace(op, op=_on_cpu(op.op))
    if getattr(op, "algorithm", "") in CUDA_ALGORITHMS:
        return replace(op, algorithm="im2col")
    return op


def _spec(array: DeviceArray) -> Spec:
    """Shape and type of a device array, logical layout."""
    if array.ndim == 4:
        n, h, w, c = array.shape
        return Spec((n, c, h, w), array.dtype.name)
    return Spec(array.shape, array.dtype.name)


def queue(
    driver: FakeDriver, stream: int, arrays: Sequence[DeviceArray],
    run: Callable[[Sequence[np.ndarray]], None], name: str,
) -> None:  # fmt: skip
    """Queues `run` on the NumPy arrays that are behind device arrays when its turn comes."""
    ranges = _joined([(a.address, a.nbytes) for a in arrays if a.nbytes])

    def work() -> None:
        held = {address: _placed(driver.read(address, size), address) for address, size in ranges}
        run([_view(array, held) for array in arrays])
        for address, data in held.items():
            driver.write(address, data)

    driver.launch(stream, ranges, work, name)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(address, bytes), ascending, with ranges that share bytes made one."""
    found: list[tuple[int, int]] = []
    for address, size in sorted(ranges):
        if found and address < found[-1][0] + found[-1][1]:
            start, before = found.pop()
            found.append((start, max(before, address + size - start)))
        else:
            found.append((address, size))
    return found


def _placed(data: np.ndarray, address: int) -> np.ndarray:
    """The same bytes, aligned as they are on the device: no better, and no worse."""
    room = np.empty(data.size + LINE_BYTES, np.uint8)
    start = (address - room.ctypes.data) % LINE_BYTES
    room[start : start + data.size] = data
    return room[start : start + data.size]


def _view(array: DeviceArray, held: Mapping[int, np.ndarray]) -> np.ndarray:
    if not array.nbytes:
        return np.empty(array.shape, array.dtype)
    base = max(address for address in held if address <= array.address)
    offset = array.address - base
    return held[base][offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
