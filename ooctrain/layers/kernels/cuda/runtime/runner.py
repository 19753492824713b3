"""What the cuda device needs from Numba: arrays over raw addresses, launches, a kernel to try both.

Memory is the engine's own, so a Numba device array only describes an address; Numba gets this
description through the CUDA array interface. Its "stream" is None: any other value makes the host
wait for that stream each time, while the device's own events already keep the order. All launches
go to one stream. Source: Numba, CUDA array interface, version 3. Read next: `launcher.py`,
`devices/cuda/device.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.runtime import shim
from ooctrain.layers.kernels.cuda.runtime.launcher import NumbaLauncher
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, cuda, kernel, uint32
from ooctrain.layers.kernels.cuda.table import CUDA


class _Described:
    """Device memory, as the CUDA array interface describes it."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": np.dtype(dtype).str, "data": (address, False),
            "strides": None, "version": 3, "stream": None,
        }  # fmt: skip


@kernel("void(u4[::1])", threads=32)
def count_up(out):
    """0, 1, 2 ...: the smallest kernel, for a trial (`devices/cuda/trial.py`)."""
    out[cuda.threadIdx.x] = uint32(cuda.threadIdx.x)


class NumbaKernels:
    """Runs operations on a GPU (`devices.cuda.Kernels`).

    Args:
        stream: the driver's stream that everything is queued on.
    """

    def __init__(self, stream: int):
        self._launcher = NumbaLauncher(stream)

    def array(self, address: int, shape: tuple[int, ...], dtype: str) -> Any:
        """The device array at an address, with its `flat_view`, as kernels want it.

        Cost: some 50 us, so that whoever asks keeps it.
        """
        array = cuda.as_cuda_array(_Described(address, shape, dtype), sync=False)
        if len(shape) != 1:
            flat = _Described(address, (math.prod(shape),), dtype)
            array.flat_view = cuda.as_cuda_array(flat, sync=False)
        return array

    def launch(
        self, op: Any, ins: Sequence[Any], outs: Sequence[Any], workspace: Any,
        scalars: Mapping[str, float | int],
    ) -> None:  # fmt: skip
        """Queues one operation; its kernels are compiled when they are launched first."""
        CUDA.run(op, self._launcher, ins, outs, workspace, scalars)

    def count(self, array: Any) -> None:
        """Queues `count_up` on 32 elements of uint32."""
        self._launcher.launch(count_up, 1, array)


def compiled_text(capability: Capability) -> str:
    """PTX of that kernel, made without a driver."""
    return shim.compile_ptx(count_up, capability)
