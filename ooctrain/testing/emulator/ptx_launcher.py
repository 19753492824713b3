"""Kernels of the library started in the PTX interpreter: the compiler's text instead of the source.

A `Kernel` is launched on NumPy arrays and changes them, or ends in a `PtxFault`. Numba gives a
kernel one parameter for each number and seven for each array (owner, parent, number of elements,
bytes of one element, address, length, stride), and the text says where each lies. The address is
the array's own, in this process. Read next: `ptx_machine.py`, `check_cuda.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.runtime.launcher import Blocks, part_of, prepare_arguments
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel
from ooctrain.testing.emulator.emulator import flat
from ooctrain.testing.emulator.ptx import read_ptx
from ooctrain.testing.emulator.ptx_lanes import PtxLaunch
from ooctrain.testing.emulator.ptx_machine import Ready, prepare, run_blocks
from ooctrain.testing.emulator.ptx_memory import GlobalMemory
from ooctrain.testing.emulator.ptx_text import entries

Edit = Callable[[Kernel, str], str]
HOPPER: Capability = (9, 0)


class PtxLauncher:
    """`Launcher` on NumPy arrays, by the PTX of a compute capability; each launch runs at once.

    Args:
        capability: that kernels are compiled for.
        edit: changes a kernel's text before it runs, to see what notices.
        last_blocks: how many blocks to run, counted from the end; None: all.
        watched: look for races in global memory too.
    """

    def __init__(
        self, capability: Capability = HOPPER, edit: Edit | None = None,
        last_blocks: int | None = None, watched: bool = True,
    ):  # fmt: skip
        self._capability, self._edit = capability, edit
        self._last_blocks, self._watched = last_blocks, watched

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        text = read_ptx(kernel, self._capability).text
        text = self._edit(kernel, text) if self._edit else text
        given = prepare_arguments(kernel, args, flat)
        (entry,) = entries(text)
        ready = self.ready(text, entry)
        arrays = [value for value in given if isinstance(value, np.ndarray)]
        x, y, z = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
        launch = PtxLaunch(
            (x, y, z), (kernel.threads, 1, 1), 0, pack(ready.program.parameters, given),
            GlobalMemory.of_arrays(arrays, self._watched),
        )  # fmt: skip
        run_blocks(ready, launch, self.chosen(launch.blocks))

    def ready(self, text: str, entry: str) -> Ready:
        """A program as it is to be run."""
        return prepare(text, entry)

    def chosen(self, blocks: int) -> range:
        """Which blocks of a launch are run."""
        first = 0 if self._last_blocks is None else max(0, blocks - self._last_blocks)
        return range(first, blocks)

    def part(self, workspace: Any, offset_bytes: int, count: int, dtype: str) -> Any:
        return part_of(workspace, offset_bytes, count, dtype)


def pack(parameters: dict[str, tuple[int, int]], values: list[Any]) -> bytes:
    """The block of parameters for arrays and numbers, each where the text wants it."""
    packed = bytearray(max((offset + size for offset, size in parameters.values()), default=0))
    numbers = [number for value in values for number in _flattened(value)]
    for (offset, size), number in zip(parameters.values(), numbers, strict=True):
        assert number.nbytes == size, (offset, size, number)
        packed[offset : offset + size] = number.tobytes()
    return bytes(packed)


def _flattened(value: Any) -> Iterator[Any]:
    """The parameters that one argument becomes."""
    if isinstance(value, tuple):
        for each in value:
            yield from _flattened(each)
    elif isinstance(value, np.ndarray):
        length, size = value.size, value.itemsize
        yield from np.array([0, 0, length, size, value.ctypes.data, length, size], np.int64)
    else:
        yield value
