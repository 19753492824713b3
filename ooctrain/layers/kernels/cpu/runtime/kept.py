"""Calls of kernels that are kept: packed once, then repeated wherever their arrays lie.

The function that starts an operation's kernels computes from shapes how they are cut, and passes
arrays and numbers on. In the next step all of that is the same, but the arrays may lie elsewhere.
So the function is called once with a `KernelRecorder` in place of the pool. For each kernel this
packs the arguments as the kernel's entry reads them, and notes for each array in which array of the
operation it lies, and how far within. A repetition then fills in addresses, and starts the kernel.
Source: stream capture of CUDA; `devices/cuda/launches.py` does the same. Read next:
`devices/cpu/launches.py`, `call.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cpu.runtime.entry import (
    ARRAY_HEAD,
    BLOCK_WORDS,
    ENTRY,
    FUNCTION,
    KEPT_ARRAY_WORDS,
    KEPT_CHUNK,
    KEPT_ITEMS,
    array_places,
    recipe_of,
)


class EveryTimeError(Exception):
    """The function cannot be kept: it looks at values, or computes some itself."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of a kernel on arrays of an operation.

    Args:
        words: see `entry.py`.
        at: their address.
        held: other arrays that are among the arguments.
    """

    words: np.ndarray
    at: int
    held: tuple[np.ndarray, ...]

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-int(self.words[KEPT_ITEMS]) // int(self.words[KEPT_CHUNK]))


@dataclass(frozen=True, slots=True)
class GivenCall:
    """What a pool is given: see `ThreadPool.run`."""

    function: Callable
    items: int
    chunk: int
    args: tuple[Any, ...]


class KernelRecorder:
    """A pool that keeps the calls of kernels, and runs none.

    Args:
        threads: of the pool that will repeat them.
        pack: `ThreadPool.pack`.
        arrays: those of the operation.

    Attributes:
        given: the calls so far.
        kept: the same, packed.
    """

    def __init__(
        self, threads: int, pack: Callable[..., int], arrays: Sequence[np.ndarray]
    ):  # fmt: skip
        self.threads, self._pack = threads, pack
        self.given, self.kept = list[GivenCall](), list[KernelCall]()
        self._places = [(array.ctypes.data, array.nbytes) for array in arrays]

    def run(self, function: Callable, items: int, chunk: int, *args: Any) -> None:
        """Keeps a call. Raises EveryTimeError: compiled code cannot repeat it."""
        recipe, block = recipe_of(function), np.empty(BLOCK_WORDS, np.int64)
        size = -1 if recipe is None else self._pack(recipe, block, args)
        if recipe is None or size < 0:
            raise EveryTimeError
        packed, moves, held = block[:size].tolist(), list[int](), list[np.ndarray]()
        for which, place in array_places(function):
            _, _, elements, item_bytes, address = packed[place : place + ARRAY_HEAD]
            found = self._within(address, elements * item_bytes)
            if found is None:
                held.append(args[which])
            else:
                moves += place + ARRAY_HEAD - 1, *found
        count = len(moves) // KEPT_ARRAY_WORDS
        head = int(recipe[ENTRY]), int(recipe[FUNCTION]), items, chunk, count
        words = np.array([*head, *moves, *packed], np.int64)
        self.given.append(GivenCall(function, items, chunk, args))
        self.kept.append(KernelCall(words, words.ctypes.data, tuple(held)))

    def every_time(self) -> None:
        """As `ThreadPool.every_time`. Raises EveryTimeError."""
        raise EveryTimeError

    def _within(self, address: int, size_bytes: int) -> tuple[int, int] | None:
        """In which array of the operation these bytes lie, and how far within; None: in none."""
        for number, (start, extent) in enumerate(self._places):
            if size_bytes and start <= address and address + size_bytes <= start + extent:
                return number, address - start
        return None
