"""Runs CUDA kernels on the CPU, as a GPU would that tolerates no fault.

A `Kernel` runs on NumPy arrays, or an `EmulationError` names kernel, block, thread and word. The
threads of a block are generators that run from barrier to barrier, in ascending or descending
order. Shared memory is full of NaN at first, and its accesses are logged. Conflicting accesses that
a GPU does not order are an error here, even where the emulator's own order would give the right
result. Blocks run one after the other. Time is not modelled. Read next: `emulator_source.py`,
`emulator_memory.py`; `tests/zoo/kernel_bugs.py` for the bugs that it catches.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ooctrain.errors import OoctrainError
from ooctrain.layers.kernels.cpu.runtime.jit import cache_folder
from ooctrain.layers.kernels.cuda.conv import tensor_core, tile_product
from ooctrain.layers.kernels.cuda.runtime import intrinsics
from ooctrain.layers.kernels.cuda.runtime.launcher import Blocks, part_of, prepare_arguments
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel
from ooctrain.testing.emulator import emulator_memory, emulator_source, emulator_warp
from ooctrain.testing.emulator.emulator_memory import SEVERAL, Fault, SharedArray
from ooctrain.testing.emulator.emulator_warp import SLOTS, WARP

END = -1
#: Numba compiles these into every kernel, and its disk cache does not see that they have changed.
_SOURCES = (emulator_memory, emulator_warp, intrinsics, tensor_core, tile_product)


class EmulationError(OoctrainError, AssertionError):
    """A kernel did what a GPU leaves undefined: a race, a stray index, a barrier not for all."""


@dataclass(frozen=True, slots=True)
class Emulated:
    """A kernel ready to run on the CPU."""

    kernel: Kernel
    module: emulator_source.EmulatedKernel
    entry: Any

    def run(self, blocks: Blocks, args: list[Any], order: int = 1) -> None:
        """Runs all blocks.

        Args:
            blocks: a number, or up to three.
            args: flat arrays and numbers as the signature asks.
            order: 1 runs blocks and threads ascending, -1 descending.
        """
        grid = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
        try:
            if self.module.waits:
                _Launch(self, grid, args, order).run()
            else:
                self.entry(order, *grid, self.kernel.threads, *args)
        except (IndexError, ValueError) as error:
            raise EmulationError(f"{self.kernel.name}: {error}") from error


@cache
def emulate(kernel: Kernel) -> Emulated:
    """The CPU form of a kernel; compiled once, kept on disk."""
    module = emulator_source.translate(kernel)
    loaded = _load(kernel, module.text)
    return Emulated(kernel, module, loaded.start if module.waits else loaded.run)


class EmulatedLauncher:
    """`Launcher` on NumPy arrays; each launch runs at once.

    Args:
        order: 1 runs blocks and threads ascending, -1 descending.
    """

    def __init__(self, order: int = 1):
        self._order = order

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        emulate(kernel).run(blocks, prepare_arguments(kernel, args, flat), self._order)

    def part(self, workspace: Any, offset_bytes: int, count: int, dtype: str) -> Any:
        return part_of(workspace, offset_bytes, count, dtype)


class _Launch:
    """One launch of a kernel whose threads wait for each other."""

    def __init__(self, emulated: Emulated, grid: tuple, args: list[Any], order: int):
        kernel = emulated.kernel
        self._emulated, self._grid, self._args = emulated, grid, args
        warps = -(-kernel.threads // WARP)
        self._threads = range(kernel.threads)[::order]
        self._warps = range(warps)[::order]
        self._blocks = range(grid[0] * grid[1] * grid[2])[::order]
        self._clock = np.zeros(1 + warps, np.int64)
        self._table = np.zeros((2, kernel.threads, SLOTS))
        self._shared = [
            SharedArray(words, dtype, kernel.threads) for _, words, dtype in emulated.module.shared
        ]

    def run(self) -> None:
        for block in self._blocks:
            x, y = self._grid[:2]
            place = (block % x, block // x % y, block // (x * y))
            try:
                self._run_block(place)
            except Fault as fault:
                raise self._explain(fault, place) from None

    def _run_block(self, place: tuple[int, int, int]) -> None:
        for shared in self._shared:
            shared.poison()
        waiting: dict[int, list[Iterator[int]]] = {warp: [] for warp in self._warps}
        memory = [array for shared in self._shared for array in shared.arrays]
        rest = (*self._grid, len(self._threads), self._table, self._clock, *memory, *self._args)
        for thread in self._threads:
            waiting[thread // WARP].append(self._emulated.entry(thread, *place, *rest))
        while True:
            sites = {self._advance(warp, lanes) for warp, lanes in waiting.items()}
            self._clock[0] += 1
            if len(sites) > 1:
                raise self._error("a barrier is not reached by all threads of the block", place)
            if sites == {END}:
                return

    def _advance(self, warp: int, lanes: list[Iterator[int]]) -> int:
        """Runs a warp to its next barrier of the block, or to its end."""
        while True:
            sites = {next(lane, END) for lane in lanes}
            if len(sites) > 1:
                raise self._error(f"the lanes of warp {warp} wait at different places", None)
            (site,) = sites
            if site == END or site % emulator_source.KINDS == emulator_source.BARRIER:
                return site
            if site % emulator_source.KINDS == emulator_source.WARP_BARRIER:
                self._clock[1 + warp] += 1

    def _error(self, what: str, place: tuple | None, numbers: str = "") -> EmulationError:
        where = f"block {place}" if place else ""
        return EmulationError(f"{self._emulated.kernel.name}: {what}", where=where, numbers=numbers)

    def _explain(self, fault: Fault, place: tuple) -> EmulationError:
        what, number, word, thread, other = fault.args
        name, words, _ = self._emulated.module.shared[number]
        numbers = f"{name}[{word}] of {words} words, thread {thread}"
        if other > SEVERAL:
            numbers += f" and thread {other}"
        return self._error(what, place, numbers)


def flat(array: np.ndarray) -> np.ndarray:
    """An array in one dimension, as a kernel gets it."""
    if not array.flags.c_contiguous:
        raise EmulationError("an array is not C-contiguous", numbers=str(array.shape))
    flat = array.reshape(-1)
    # Kernels are compiled for writeable arrays; nothing may be written into a read-only one.
    return flat if flat.flags.writeable else flat.copy()


def _load(kernel: Kernel, text: str) -> ModuleType:
    """The module of `text`, written where Numba's disk cache finds it again."""
    folder = cache_folder() / "emulated"
    sources = [Path(str(module.__file__)).read_bytes() for module in _SOURCES]
    digest = hashlib.sha1(b"\0".join([text.encode(), *sources]), usedforsecurity=False)
    path = folder / f"{kernel.name.replace('.', '_')}_{digest.hexdigest()[:16]}.py"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(f".{id(text)}.part")
        whole.write_text(text, encoding="utf-8")
        whole.replace(path)
    spec = importlib.util.spec_from_file_location(f"ooctrain_emulated_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Numba's cache names the functions by their module, and looks for it among those loaded.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
