"""Counts what a kernel asks of memory: sectors, bank conflicts, accesses of the busiest thread.

The emulator says whether a kernel is right. Here the same Python function runs a second time, each
thread of a block as a thread of Python, over arrays that record which thread reads and writes which
word. The 32 threads of a warp access memory together: those that reach the same line of the kernel
for the same time. Global memory is moved in sectors of 32 bytes; shared memory lies in 32 banks,
and a warp that wants two words of one bank waits. Sources: NVIDIA, CUDA Best Practices Guide,
"Coalesced access to global memory" and "Shared memory and memory banks". Read next:
`kernel_puzzles.py`, `../../testing/emulator.py`.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from ooctrain.course.puzzles.attempt import Wrong

WARP, BANKS, SECTOR_WORDS = 32, 32, 8
#: (line, array, "load" or "store", how often this thread was there before)
Site = tuple[int, str, str, int]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a launch asked of memory.

    Args:
        sectors: of 32 bytes, to and from global memory.
        conflicts: turns that warps waited for banks of shared memory.
        loads: words read from global memory.
        busiest: accesses of the thread that has most, to either memory.
        accesses: of the first warp: (what, words by lane), in order.
    """

    sectors: int
    conflicts: int
    loads: int
    busiest: int
    accesses: tuple[tuple[str, tuple[int, ...]], ...]


def count(function: Callable, blocks: tuple[int, int], threads: int, arrays: dict) -> Counts:
    """Runs a kernel's function and counts.

    Args:
        function: of a kernel that the emulator finds right.
        blocks: in x and y.
        threads: of a block.
        arrays: {parameter: flat array}; they are written.
    """
    sectors = conflicts = loads = busiest = 0
    first: list[tuple[str, tuple[int, ...]]] = []
    for y in range(blocks[1]):
        for x in range(blocks[0]):
            logs = _Block(function, threads, arrays).run(x, y)
            busiest = max([busiest, *map(len, logs)])
            for groups in _warps(logs):
                for (_, name, kind, _), words in groups.items():
                    if name in arrays:
                        sectors += len({word // SECTOR_WORDS for word in words})
                        loads += len(words) * (kind == "load")
                    else:
                        banks = Counter(word % BANKS for word in set(words))
                        conflicts += max(banks.values()) - 1
                if not first:
                    first = [(f"{kind} {n}", tuple(w)) for (_, n, kind, _), w in groups.items()]
    return Counts(sectors, conflicts, loads, busiest, tuple(first))


def _warps(logs: list[list[tuple[Site, int]]]) -> Iterator[dict[Site, list[int]]]:
    for start in range(0, len(logs), WARP):
        groups: dict[Site, list[int]] = defaultdict(list)
        for log in logs[start : start + WARP]:
            for site, word in log:
                groups[site].append(word)
        yield groups


class _Block:
    """One block: threads of Python that share arrays and a barrier."""

    def __init__(self, function: Callable, threads: int, arrays: dict[str, np.ndarray]):
        self._own = threading.local()
        self._barrier = threading.Barrier(threads)
        self._threads = threads
        self._shared: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._logs: list[list[tuple[Site, int]]] = [[] for _ in range(threads)]
        self._arrays = [_Noted(self, name, array) for name, array in arrays.items()]
        known = {**function.__globals__, "cuda": _Cuda(self)}
        self._function = FunctionType(
            function.__code__, known, None, function.__defaults__, function.__closure__
        )
        self.failures: list[BaseException] = []

    def run(self, x: int, y: int) -> list[list[tuple[Site, int]]]:
        """Runs all threads of a block; their accesses."""
        workers = [
            threading.Thread(target=self._thread, args=(i, x, y), daemon=True)
            for i in range(self._threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for failure in self.failures:
            raise failure
        return self._logs

    def _thread(self, number: int, x: int, y: int) -> None:
        self._own.index, self._own.block = SimpleNamespace(x=number), SimpleNamespace(x=x, y=y)
        self._own.made, self._own.seen = 0, Counter()
        try:
            self._function(*self._arrays)
        except threading.BrokenBarrierError:
            return
        except Exception as failure:  # a student's kernel: the first failure is raised by `run`
            self.failures.append(failure)
            self._barrier.abort()

    def note(self, name: str, kind: str, word: int) -> None:
        """Notes an access, with the line of the kernel that makes it."""
        line = sys._getframe(2).f_lineno
        seen = self._own.seen
        key = (line, name, kind)
        self._logs[self._own.index.x].append(((*key, seen[key]), int(word)))
        seen[key] += 1

    def shared(self, words: int) -> Any:
        """The shared array that this thread makes now; all threads make the same ones."""
        number, self._own.made = self._own.made, self._own.made + 1
        with self._lock:
            if number not in self._shared:
                array = np.full(words, np.nan, np.float32)
                self._shared[number] = _Noted(self, f"shared {number}", array)
        return self._shared[number]

    def wait(self) -> None:
        """The barrier of a block."""
        self._barrier.wait(timeout=60)

    @property
    def own(self) -> threading.local:
        """What the calling thread is."""
        return self._own


class _Noted:
    """An array that notes who reads and writes which word."""

    def __init__(self, block: _Block, name: str, array: np.ndarray):
        self._block, self._name, self._array = block, name, array

    def __getitem__(self, word: int) -> Any:
        self._block.note(self._name, "load", self._inside("reads", word))
        return self._array[int(word)]

    def __setitem__(self, word: int, value: Any) -> None:
        self._block.note(self._name, "store", self._inside("writes", word))
        self._array[int(word)] = value

    def _inside(self, verb: str, word: int) -> int:
        if 0 <= word < len(self._array):
            return word
        own, words = self._block.own, len(self._array)
        raise Wrong(
            f"thread {own.index.x} of block ({own.block.x}, {own.block.y}) {verb} "
            f"{self._name}[{word}], and {self._name} has {words} words"
        )


class _Cuda:
    """The part of Numba's `cuda` that kernels of the puzzles use."""

    def __init__(self, block: _Block):
        self._block = block
        self.shared = SimpleNamespace(array=lambda words, dtype: block.shared(int(words)))

    @property
    def threadIdx(self) -> Any:
        return self._block.own.index

    @property
    def blockIdx(self) -> Any:
        return self._block.own.block

    def syncthreads(self) -> None:
        self._block.wait()
