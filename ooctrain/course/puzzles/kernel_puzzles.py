"""Series d: kernels in the emulator. A copy, a transpose, a sum, a tile of a convolution.

The answer is a `kernel`. The library's emulator runs it on the CPU, with the threads in ascending
and in descending order, and refuses what a GPU leaves undefined: a race, a stray index, a barrier
that not all threads reach. Then the result is compared, word by word; its numbers are small and
whole, so the order of a sum does not matter. The two numbers are what the kernel asks of memory;
the targets follow from the sizes: each word moved once, no thread waiting for another. Read next:
tutorial 18, `kernel_counts.py`, `../../testing/emulator.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from ooctrain.course.puzzles.attempt import Attempt, Puzzle, Score, Wrong, attempted
from ooctrain.course.puzzles.kernel_counts import SECTOR_WORDS, Counts, count
from ooctrain.report.charts import Piece, strips_svg

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
        result: of the inputs.
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
    copied = 2 * _sectors(COPIED)
    return {
        "d1": KernelTask(
            (-(-COPIED // 128), 1), 128, lambda: {"x": whole_numbers(COPIED)}, lambda x: x,
            (("sectors", lambda c, k: c.sectors, copied, copied),
             ("busiest thread", lambda c, k: c.busiest, 2, 2)),
        ),
        "d2": KernelTask(
            (SIDE // 32, SIDE // 32), 256, lambda: {"x": whole_numbers(SIDE, SIDE)},
            lambda x: x.T,
            (("sectors", lambda c, k: c.sectors, _sectors(moved), _sectors(moved)),
             ("bank conflicts", lambda c, k: c.conflicts, 0, 0)),
        ),
        "d3": KernelTask(
            (1, 1), SUM_THREADS, lambda: {"x": whole_numbers(SUMMED)},
            lambda x: x.sum(keepdims=True),
            (("busiest thread", lambda c, k: c.busiest, each + 3 * halvings + 3, each + halvings),
             ("bank conflicts", lambda c, k: c.conflicts, 0, 0)),
        ),
        "d4": KernelTask(
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
    """The words that the first warp asks for, access by access."""
    shown: Sequence[tuple[str, tuple[int, ...]]] = counts.accesses[:_SHOWN] if counts else ()
    rows = [
        (
            what[:14],
            [Piece(word, word + 1, f"word {word}", lane % 5) for lane, word in enumerate(w)],
        )
        for what, w in shown
    ]
    extent = max((max(words) for _, words in shown), default=0) + 1
    return strips_svg(
        f"{title}: what the first warp asks for", rows or [("no access", [])],
        extent=extent, axis="word", legend=("sectors of 32 bytes", "and those between"),
    )  # fmt: skip


TITLES = {
    "d1": "A copy", "d2": "A transpose in tiles", "d3": "A sum without a race",
    "d4": "A tile of a convolution",
}  # fmt: skip
PUZZLES = tuple(Puzzle(name, title, partial(judge, name)) for name, title in TITLES.items())
