"""Launches of our own: kernels as cubins, arguments packed by `struct`, started by the driver.

In: operations on arrays that are addresses. Out: their kernels, queued on one stream. The one idea:
in a training step the same calls come again with the same arrays, and what a launch is made of
(function, grid, packed arguments) follows from those and from the few scalars that an operation
reads. So a call's launches are worked out once, by the same driver functions that start kernels on
Numba's launcher, and kept; from then on a call costs a look and a ctypes call for each launch, and
is worked out anew only where a scalar has changed. Numba only compiles, and where cubins are kept
not even that. Source: cuda.h, cuLaunchKernel. Read next: `device.py`,
`layers/kernels/cuda/runtime/cubins.py`, `layers/kernels/cuda/runtime/packing.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.devices.driver_calls import GpuDriver
from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cuda.runtime.cubins import CubinStore
from ooctrain.layers.kernels.cuda.runtime.launcher import Blocks
from ooctrain.layers.kernels.cuda.runtime.packing import pack_arguments
from ooctrain.layers.kernels.cuda.runtime.runner import count_up
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import Op, Scalars

_KEPT = 1 << 16
#: cuda.h's CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END.
_BUFFER, _SIZE, _END = 1, 2, 0


class LaunchDriver(GpuDriver, Protocol):
    """A GPU's driver that loads code and launches it."""

    def function(self, image: bytes, entry: str) -> int:
        """A kernel of an image, which is loaded when it is first asked for."""

    def launch(
        self, function: int, grid: tuple[int, int, int], threads: int, stream: int, packed: Any
    ) -> None:
        """Queues a kernel; `packed` is `cuLaunchKernel`'s `extra`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch with everything in its place; `held` keeps what `packed` points to."""

    function: int
    grid: tuple[int, int, int]
    threads: int
    packed: Any
    held: Any


class LaunchRecorder:
    """A `Launcher` that works launches out, and starts none.

    Args:
        driver: loads the kernels.
        store: where their code is found, or made.
    """

    def __init__(self, driver: LaunchDriver, store: CubinStore):
        self._driver, self._store, self._capability = driver, store, driver.capability()
        self._functions: dict[Kernel, int] = {}
        self.launches: list[Launch] = []

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        """Works one launch out."""
        function = self._functions.get(kernel)
        if function is None:
            code = self._store.get(kernel, self._capability)
            function = self._functions[kernel] = self._driver.function(code.image, code.entry)
        x, y, z, *_ = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)
        self.launches.append(
            Launch(function, (x, y, z), kernel.threads, *_extra(pack_arguments(kernel, args)))
        )

    def part(self, workspace: DeviceArray, offset_bytes: int, count: int, dtype: str) -> Any:
        """A piece of a workspace."""
        part = DeviceArray(workspace.address + offset_bytes, (count,), dtype)
        if offset_bytes < 0 or offset_bytes + part.nbytes > workspace.nbytes:
            raise ConfigError(
                "a kernel wants more workspace than its call asked for",
                numbers=f"{offset_bytes + part.nbytes} of {workspace.nbytes} bytes",
                fix="a workspace_bytes of the operation's kernel that counts all that it takes",
            )
        return part


@dataclass(frozen=True, slots=True)
class _Known:
    """The launches of a call, the scalars that it has read, and what keeps its arrays' ids."""

    launches: tuple[Launch, ...]
    read: Mapping[str, float | int]
    held: tuple[Any, ...]

    def serves(self, scalars: Scalars) -> bool:
        return all(scalars[name] == value for name, value in self.read.items())


class _Watched(Mapping[str, Any]):
    """Step scalars that note which of them are read."""

    def __init__(self, scalars: Scalars):
        self._scalars = scalars
        self.read: dict[str, float | int] = {}

    def __getitem__(self, name: str) -> float | int:
        value = self.read[name] = self._scalars[name]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._scalars)

    def __len__(self) -> int:
        return len(self._scalars)


class DriverKernels:
    """Runs operations on a GPU (`device.Kernels`) by launches that are worked out once.

    Args:
        driver: opened, and current in this thread.
        stream: that everything is queued on.
        store: of cubins; default: the one in the cache folder.
    """

    def __init__(self, driver: LaunchDriver, stream: int, store: CubinStore | None = None):
        self._driver, self._stream = driver, stream
        self._recorder = LaunchRecorder(driver, store or CubinStore())
        self._known: dict[tuple[int, ...], _Known] = {}

    def array(self, address: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """The device array at an address."""
        return DeviceArray(address, shape, dtype)

    def count(self, array: DeviceArray) -> None:
        """Queues `count_up` on 32 elements of uint32."""
        self._recorder.launches = []
        self._recorder.launch(count_up, 1, array)
        self._start(self._recorder.launches)

    def launch(
        self, op: Op, ins: Sequence[Any], outs: Sequence[Any], workspace: Any, scalars: Scalars
    ) -> None:
        """Queues one operation. Cost: about 5 us for each launch, once it is known."""
        key = (id(op), id(workspace), *map(id, ins), *map(id, outs))
        known = self._known.get(key)
        if known is None or not known.serves(scalars):
            known = self._work_out(key, op, ins, outs, workspace, scalars)
        self._start(known.launches)

    def _start(self, launches: Sequence[Launch]) -> None:
        start, stream = self._driver.launch, self._stream
        for launch in launches:
            start(launch.function, launch.grid, launch.threads, stream, launch.packed)

    def _work_out(
        self, key: tuple[int, ...], op: Op, ins: Sequence[Any], outs: Sequence[Any],
        workspace: Any, scalars: Scalars,
    ) -> _Known:  # fmt: skip
        watched, recorder = _Watched(scalars), self._recorder
        recorder.launches = []
        CUDA.run(op, recorder, ins, outs, workspace, watched)
        known = _Known(tuple(recorder.launches), watched.read, (op, workspace, *ins, *outs))
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[key] = known
        return known


def _extra(packed: bytes) -> tuple[Any, Any]:
    """`cuLaunchKernel`'s `extra` for packed arguments, and what it points to."""
    buffer = ctypes.create_string_buffer(packed, max(1, len(packed)))
    size = ctypes.c_size_t(len(packed))
    places = (_BUFFER, ctypes.addressof(buffer), _SIZE, ctypes.addressof(size), _END)
    return (ctypes.c_void_p * len(places))(*places), (buffer, size)
