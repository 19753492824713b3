"""Series d: kernels in the emulator. From one line for 32 threads to a tile of a convolution.

The answer is a `kernel`. The library's emulator runs it on the CPU, with the threads in ascending
and in descending order, and refuses what a GPU leaves undefined: a race, a stray index, a barrier
that not all threads reach. Then the result is compared, word by word; its numbers are small and
whole, so the order of a sum does not matter. The two numbers are how much the kernel uses memory;
the targets follow from the sizes: each word moved once, no thread waiting for another. Read next:
tutorial 18, `../../testing/emulator.py`.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from math import prod
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ooctrain.course.puzzles.attempt import Attempt, Puzzle, Score, Wrong, attempted
from ooctrain.report.charts import Piece, strips_svg

# The tasks.

MAPPED, GUARDED, GUARDS_THREADS = 32, 50, 64
COPIED = 1000
SIDE = 64
SUMMED, SUM_THREADS = 1024, 128
#: Of the convolution: image, channels, filters, window, and the tile of pixels, filters, terms.
IMAGE, CHANNELS, FILTERS, WINDOW = 8, 4, 16, 3
PIXELS_OF_TILE, TERMS_OF_TILE = 16, 12
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class KernelTask:
    """What a kernel is to compute.

    Args:
        blocks, threads: how it is launched.
        inputs: makes {name: array}.
        result: computed from the inputs.
        measured: (name, of counts and kernel, target, bound), twice.
    """

    blocks: tuple[int, int]
    threads: int
    inputs: Callable[[], dict[str, np.ndarray]]
    result: Callable[..., np.ndarray]
    measured: tuple[tuple[str, Callable[[Counts, Any], float], float, float | None], ...]


def whole_numbers(*shape: int) -> np.ndarray:
    """Small whole numbers as float32: their sums are exact in any order."""
    rng = np.random.default_rng(prod(shape))
    return rng.integers(-4, 5, shape).astype(np.float32)


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x (H + 2, W + 2, C), padded; w (K, 3, 3, C): (H, W, K)."""
    fields = np.lib.stride_tricks.sliding_window_view(x, (WINDOW, WINDOW), (0, 1))
    return np.einsum("hwcrs,krsc->hwk", fields, w)


def _padded_image() -> np.ndarray:
    inside = whole_numbers(IMAGE, IMAGE, CHANNELS)
    return np.pad(inside, ((1, 1), (1, 1), (0, 0)))


def _sectors(words: int) -> int:
    return -(-words // SECTOR_WORDS)


@lru_cache(maxsize=1)
def tasks() -> dict[str, KernelTask]:
    """The tasks of the series."""
    moved = 2 * SIDE * SIDE
    halvings = SUM_THREADS.bit_length() - 1
    each = SUMMED // SUM_THREADS
    terms = WINDOW * WINDOW * CHANNELS
    tiles = IMAGE * IMAGE // PIXELS_OF_TILE
    loads = tiles * (PIXELS_OF_TILE + FILTERS) * terms
    least = (IMAGE + 2) ** 2 * CHANNELS + FILTERS * terms
    tile_words = (PIXELS_OF_TILE + FILTERS) * TERMS_OF_TILE
    mapped, guarded, copied = 2 * _sectors(MAPPED), 3 * _sectors(GUARDED), 2 * _sectors(COPIED)
    return {
        "d1": KernelTask(
            (1, 1), MAPPED, lambda: {"x": whole_numbers(MAPPED)}, lambda x: x + 10,
            (("sectors", lambda c, k: c.sectors, mapped, mapped),
             ("busiest thread", lambda c, k: c.busiest, 2, 2)),
        ),
        "d2": KernelTask(
            (1, 1), GUARDS_THREADS,
            lambda: {"a": whole_numbers(GUARDED), "b": whole_numbers(GUARDED)[::-1]},
            lambda a, b: a + b,
            (("sectors", lambda c, k: c.sectors, guarded, guarded),
             ("busiest thread", lambda c, k: c.busiest, 3, 3)),
        ),
        "d3": KernelTask(
            (-(-COPIED // 128), 1), 128, lambda: {"x": whole_numbers(COPIED)}, lambda x: x,
            (("sectors", lambda c, k: c.sectors, copied, copied),
             ("busiest thread", lambda c, k: c.busiest, 2, 2)),
        ),
        "d4": KernelTask(
            (SIDE // 32, SIDE // 32), 256, lambda: {"x": whole_numbers(SIDE, SIDE)},
            lambda x: x.T,
            (("sectors", lambda c, k: c.sectors, _sectors(moved), _sectors(moved)),
             ("bank conflicts", lambda c, k: c.conflicts, 0, 0)),
        ),
        "d5": KernelTask(
            (1, 1), SUM_THREADS, lambda: {"x": whole_numbers(SUMMED)},
            lambda x: x.sum(keepdims=True),
            (("busiest thread", lambda c, k: c.busiest, each + 3 * halvings + 3, each + halvings),
             ("bank conflicts", lambda c, k: c.conflicts, 0, 0)),
        ),
        "d6": KernelTask(
            (tiles, 1), PIXELS_OF_TILE * FILTERS,
            lambda: {"x": _padded_image(), "w": whole_numbers(FILTERS, WINDOW, WINDOW, CHANNELS)},
            convolved,
            (("loads", lambda c, k: c.loads, loads, least),
             ("shared words", lambda c, k: shared_words(k), tile_words, None)),
        ),
    }  # fmt: skip


def shared_words(kernel: Any) -> int:
    """Words of shared memory of a block."""
    return sum(words for _, words, _ in _emulator().emulate(kernel).module.shared)


def judge(name: str, title: str, kernel: Any) -> Attempt:
    """Emulates a kernel, compares its result, and counts."""
    task = tasks()[name]
    inputs = task.inputs()
    wrong, _ = attempted(lambda: _check(task, kernel, inputs))
    counts = None
    stray = "out of bounds" in wrong  # the count knows which thread, and which word
    if hasattr(kernel, "function") and (
        stray or not wrong.startswith(("[", "it raises", "blocks"))
    ):
        out = np.zeros(task.result(*inputs.values()).size, np.float32)
        arrays = {key: np.ascontiguousarray(value).reshape(-1) for key, value in inputs.items()}
        failed, counts = attempted(
            lambda: count(kernel.function, task.blocks, task.threads, {**arrays, "y": out})
        )
        wrong = failed or wrong
    first, second = (
        Score(what, None if counts is None else of(counts, kernel), target, bound)
        for what, of, target, bound in task.measured
    )
    return Attempt(title, (first, second), wrong, "", accesses_picture(title, counts))


def _check(task: KernelTask, kernel: Any, inputs: dict[str, np.ndarray]) -> None:
    if not hasattr(kernel, "function"):
        raise Wrong(f"the answer is a function below @kernel(...), and it is {kernel!r:.40}")
    if kernel.threads != task.threads:
        raise Wrong(
            f"the blocks have {task.threads} threads, and the kernel is for {kernel.threads}"
        )
    right = np.ascontiguousarray(task.result(*inputs.values()))
    for order in (1, -1):
        y = np.full(right.shape, np.nan, np.float32)
        arrays = [np.ascontiguousarray(value) for value in inputs.values()]
        try:
            _emulator().EmulatedLauncher(order).launch(kernel, task.blocks, *arrays, y)
        except _emulator().EmulationError as error:
            way = "ascending" if order == 1 else "descending"
            raise Wrong(f"{error}\n  threads ran in {way} order".replace("\n", "\n  ")) from None
        off = ~(y == right)
        if off.any():
            place = tuple(int(i) for i in np.argwhere(off)[0])
            found = "never written" if np.isnan(y[place]) else f"{y[place]:g}"
            raise Wrong(
                f"y{list(place)} is {found}, and should be {right[place]:g} "
                f"({int(off.sum())} of {off.size} are wrong)"
            )


def _emulator() -> ModuleType:
    # Not at the top: Numba, which it loads, is for this series only.
    from ooctrain.testing import emulator

    return emulator


def accesses_picture(title: str, counts: Counts | None) -> str:
    """What the first warp requests, access by access, and what memory moves for it."""
    shown: Sequence[tuple[str, tuple[int, ...]]] = counts.accesses[:_SHOWN] if counts else ()
    rows = [(what, [*_pieces(words, "shared" in what)]) for what, words in shown]
    extent = max((max(words) for _, words in shown), default=0) + 1
    return strips_svg(
        f"{title}: what the first warp requests", rows or [("no access", [])],
        extent=-(-extent // SECTOR_WORDS) * SECTOR_WORDS, axis="word",
        legend=("sectors of 8 words, requested", "and those between", "shared memory",
                "moved, and not requested"),
    )  # fmt: skip


def _pieces(words: tuple[int, ...], shared: bool) -> Iterator[Piece]:
    """Runs of words that an access requests, and below them the sectors that it moves; a word by
    itself would be too narrow to be seen. Shared memory has no sectors.
    """
    within = (lambda word: 0) if shared else (lambda word: word // SECTOR_WORDS)
    for sector, inside in groupby(sorted(set(words)), within):
        first, wanted = sector * SECTOR_WORDS, [*inside]
        if not shared and len(wanted) < SECTOR_WORDS:
            yield Piece(first, first + SECTOR_WORDS, f"sector {sector}", 3)
        for run in _runs(wanted):
            text = f"word {run[0]}" if len(run) == 1 else f"words {run[0]} to {run[-1]}"
            yield Piece(run[0], run[-1] + 1, text, 2 if shared else sector % 2)


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Ascending numbers, in pieces without a gap."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        yield [number for _, number in run]


# Counts of memory: sectors, bank conflicts, accesses of the busiest thread. The kernel's function
# runs a second time, each thread of a block as a thread of Python, over arrays that record which
# thread reads and writes which word. The 32 threads of a warp access memory together: those that
# reach the same line of the kernel for the same time. Global memory is moved in sectors of 32
# bytes; shared memory lies in 32 banks, and a warp that wants two words of one bank waits. Sources:
# NVIDIA, CUDA Best Practices Guide, "Coalesced access to global memory" and "Shared memory and
# memory banks".

WARP, BANKS, SECTOR_WORDS = 32, 32, 8
#: (line, array, "load" or "store", how often this thread was there before)
Site = tuple[int, str, str, int]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a launch asked of memory.

    Args:
        sectors: sectors of 32 bytes, to and from global memory.
        conflicts: turns that warps waited for banks of shared memory.
        loads: words read from global memory.
        busiest: accesses of the thread that has most, to either memory.
        accesses: accesses of the first warp: (what, words by lane), in order.
    """

    sectors: int
    conflicts: int
    loads: int
    busiest: int
    accesses: tuple[tuple[str, tuple[int, ...]], ...]


def count(function: Callable, blocks: tuple[int, int], threads: int, arrays: dict) -> Counts:
    """Runs a kernel's function and counts.

    Args:
        function: the function of a kernel that the emulator finds right.
        blocks: in x and y.
        threads: threads of a block.
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
    """An array that notes which thread reads and writes which word."""

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


TITLES = {
    "d1": "A map", "d2": "A guard", "d3": "A copy", "d4": "A transpose in tiles",
    "d5": "A sum without a race", "d6": "A tile of a convolution",
}  # fmt: skip
PUZZLES = tuple(Puzzle(name, title, partial(judge, name)) for name, title in TITLES.items())
