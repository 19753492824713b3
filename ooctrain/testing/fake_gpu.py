"""A GPU for a machine that has none: the cuda device over the strict fake driver.

All code opens its GPU through `devices/cuda/open.py`, so this is the one place where the fake is
put in, and all code gets it while the context lasts. Kernels are the real device code, run by
the emulator. They are launched with arrays that are only addresses, are queued on the fake's
streams, and run when a stream reaches them. As on a GPU, the contents of an array cannot be read
when a kernel is queued. When it runs, the bytes behind its arrays are gathered from the fake's
pages (which checks that each is mapped), the kernel runs on them, and they are written back. Arrays
over the same bytes share them. Read next: `fake_driver.py`, `emulator.py`,
`devices/cuda/device.py`; tutorial 19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import LINE_BYTES, Scalars
from ooctrain.testing.emulator import EmulatedLauncher
from ooctrain.testing.fake_driver import Choose, FakeDriver

PAGE_BYTES = 4096
FAKE_BYTES = 256 << 20


class FakeKernels:
    """Kernels on the bytes of a fake driver (`devices.cuda.Kernels`), but for `launch`.

    Args:
        driver, stream: where kernels are queued.
    """

    def __init__(self, driver: FakeDriver, stream: int):
        self.driver, self.stream = driver, stream

    def array(self, address: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """The array at an address."""
        return DeviceArray(address, tuple(shape), dtype)


class EmulatedKernels(FakeKernels):
    """Runs each operation's GPU kernels in the emulator.

    Args:
        driver, stream: where they are queued.
        inner: the launcher that runs them on NumPy arrays.
    """

    def __init__(self, driver: FakeDriver, stream: int, inner: Launcher):
        super().__init__(driver, stream)
        self._launcher = FakeLauncher(driver, stream, inner)

    def launch(
        self, op: Any, ins: Sequence[DeviceArray], outs: Sequence[DeviceArray],
        workspace: DeviceArray, scalars: Scalars,
    ) -> None:  # fmt: skip
        """Queues one operation's kernels."""
        CUDA.run(op, self._launcher, ins, outs, workspace, scalars)


def emulated_kernels(driver: FakeDriver, stream: int) -> EmulatedKernels:
    """`EmulatedKernels` whose threads run in ascending order."""
    return EmulatedKernels(driver, stream, EmulatedLauncher())


@contextmanager
def fake_gpu(
    make_kernels: Callable[[Any, int], FakeKernels] = emulated_kernels, choose: Choose = min
) -> Iterator[None]:
    """All code that opens a GPU gets the fake: 256 MiB, in pages of 4 KiB.

    Args:
        make_kernels: (driver, stream) -> what runs the kernels.
        choose: which of the streams that can go on does so.
    """
    with mock.patch.multiple(
        cuda_open, open_cuda_driver=lambda: FakeDriver(FAKE_BYTES, PAGE_BYTES, choose),
        make_kernels=make_kernels, require_compiler=lambda gpu: None,
    ):  # fmt: skip
        yield


class FakeLauncher:
    """A `Launcher` on a stream of the fake.

    Args:
        driver, stream: where kernels are queued.
        inner: the launcher that runs them on NumPy arrays.
    """

    def __init__(self, driver: FakeDriver, stream: int, inner: Launcher):
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
