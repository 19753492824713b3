"""How a function of the host starts a kernel: one Protocol, fulfilled by a GPU or by the emulator.

A `Kernel`, the number of blocks, arrays of any number of dimensions and plain numbers are queued on
the launcher's stream. Kernels see one-dimensional arrays and numbers of exactly their signature's
types, since a launch costs Python about 4 us for each array and an index of the wrong width costs
registers. The launcher flattens and casts, so that the functions that call it read like formulas.
Read next: `layers/kernels/cuda/elementwise.py`; `ooctrain/testing/emulator.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cuda.runtime import shim
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel, cuda, kernel, uint32
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.kernels.signature import U4s

Blocks = int | tuple[int, ...]


class Launcher(Protocol):
    """What driver functions need of a device."""

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        """Queues `kernel` on `blocks` blocks of `kernel.threads` threads.

        Args:
            kernel: what runs.
            blocks: a number, or up to three, along x (below 2^31), y and z (below 2^16).
            args: C-contiguous arrays of any shape, numbers and tuples of them, as the signature
                asks.
        """
        ...

    def part(self, workspace: Any, offset_bytes: int, count: int, dtype: str) -> Any:
        """`count` elements of a uint8 array, as a one-dimensional array of `dtype`."""
        ...


class NumbaLauncher:
    """Launches on a real GPU, by Numba, on one stream.

    Args:
        stream: a stream of Numba's, or the driver's handle of one.
    """

    def __init__(self, stream: Any):
        self._stream = shim.cuda.external_stream(stream) if isinstance(stream, int) else stream

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        ready = prepare_arguments(kernel, args, _flat_on_device)
        shim.compiled(kernel)[blocks, kernel.threads, self._stream](*ready)

    def part(self, workspace: Any, offset_bytes: int, count: int, dtype: str) -> Any:
        return part_of(workspace, offset_bytes, count, dtype)


def blocks_for(count: int, per_block: int) -> int:
    """How many blocks of `per_block` cover `count`."""
    return -(-count // per_block)


def part_of(workspace: Any, offset_bytes: int, count: int, dtype: str) -> Any:
    """`Launcher.part` for arrays that can be sliced and viewed as NumPy's can."""
    size_bytes = count * np.dtype(dtype).itemsize
    if offset_bytes + size_bytes > workspace.size:
        raise ConfigError(
            "a kernel wants more workspace than its call requested",
            numbers=f"{offset_bytes + size_bytes} of {workspace.size} bytes",
        )
    return workspace[offset_bytes : offset_bytes + size_bytes].view(np.dtype(dtype))


def prepare_arguments(
    kernel: Kernel, args: tuple[Any, ...], flatten: Callable[[Any], Any]
) -> list[Any]:
    """Arguments as the signature wants them: flat arrays, numbers of its types."""
    wanted = shim.argument_types(kernel.signature)
    if len(wanted) != len(args):
        raise ConfigError(f"{kernel.name} takes {len(wanted)} arguments, got {len(args)}")
    return [
        flatten(value) if isinstance(kind, types.Array) else _as_number(kind, value)
        for kind, value in zip(wanted, args, strict=True)
    ]


def _as_number(kind: Any, value: Any) -> Any:
    """A number of the wanted type, or a tuple of them."""
    if isinstance(kind, types.BaseTuple):
        kinds: Any = kind
        return tuple(_as_number(k, v) for k, v in zip(kinds, value, strict=True))
    return as_dtype(kind).type(value)


def _flat_on_device(array: Any) -> Any:
    if array.ndim == 1:
        return array
    flat = getattr(array, "flat_view", None)  # made with the array (`launcher.py`), to save 15 us
    return array.ravel() if flat is None else flat


# Launches by Numba, over raw addresses. Memory is the engine's own, so a Numba device array only
# describes an address; Numba gets this description through the CUDA array interface. Its "stream"
# is None: any other value makes the host wait for that stream each time, while the device's own
# events already keep the order. Source: Numba, CUDA array interface, version 3.


class _Described:
    """Device memory, as the CUDA array interface describes it."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": np.dtype(dtype).str, "data": (address, False),
            "strides": None, "version": 3, "stream": None,
        }  # fmt: skip


@kernel(threads=32)
def count_up(out: U4s):
    """0, 1, 2 ...: the smallest kernel, for a trial (`devices/cuda/open.py`)."""
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
