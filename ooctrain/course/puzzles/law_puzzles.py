"""Series f: laws. Given a few correct and many broken examples, the student writes the law.

A law is a function that raises AssertionError if its argument breaks it. To be worth something as a
test it must let every correct example pass, and kill every planted bug. The two numbers are the
bugs that are still alive and the false alarms. The library holds its own laws to the same standard
(`testing/`, and the zoo of the test suite). Read next: `../../testing/allocator_laws.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ooctrain.course.puzzles.attempt import Attempt, Puzzle, Score, reason_of
from ooctrain.course.puzzles.tape_puzzles import batch_norm
from ooctrain.course.puzzles.tile_puzzles import true_frontier
from ooctrain.report.charts import Piece, strips_svg
from ooctrain.step.rows import Window

ARENA = 64


@dataclass(frozen=True, slots=True)
class Zoo:
    """What a law is tried on.

    Args:
        right: {name: arguments}: which the law lets pass.
        bugs: {what is wrong: arguments}: which it kills.
    """

    right: Mapping[str, tuple]
    bugs: Mapping[str, tuple]


class ToyArena:
    """A small allocator: holes by address, the lowest or the smallest that takes a block.

    Args:
        bug: what is broken; "" for nothing.
        best: best fit; else first fit.
    """

    def __init__(self, bug: str = "", *, best: bool = False):
        self.size, self._bug, self._best = ARENA, bug, best
        self._holes, self._blocks = [(0, ARENA)], dict[int, int]()

    def allocate(self, size: int) -> int | None:
        """The offset of a new block; None where no hole takes it."""
        fitting = [hole for hole in self._holes if self._takes(hole, size)]
        if not fitting:
            return None
        hole = min(fitting, key=lambda hole: hole[1]) if self._best else fitting[0]
        self._holes.remove(hole)
        offset, rest = hole[0], hole[1] - size
        if rest > 0 and self._bug != "the rest of a hole is lost":
            self._holes = sorted([*self._holes, (offset + size, rest)])
        self._blocks[offset] = size
        return offset

    def free(self, offset: int) -> None:
        """Gives a block back."""
        size = self._blocks.pop(offset)
        if self._bug == "what a full arena gives back is lost" and not self._holes:
            return
        if self._bug == "the size of another block is given back" and self._blocks:
            size = min(size, *self._blocks.values())
        for hole in list(self._holes):
            if self._touch(hole, offset, size):
                self._holes.remove(hole)
                offset, size = min(offset, hole[0]), size + hole[1]
        self._holes = sorted([*self._holes, (offset, size)])

    def _takes(self, hole: tuple[int, int], size: int) -> bool:
        if self._bug == "a block may be one byte too large for its hole":
            return hole[1] + 1 >= size
        if self._bug == "a hole of just the size is refused":
            return hole[1] > size
        return hole[1] >= size

    def _touch(self, hole: tuple[int, int], offset: int, size: int) -> bool:
        after = hole[0] == offset + size and self._bug != "a hole behind does not melt"
        before = sum(hole) == offset and self._bug != "a hole before does not melt"
        return after or before


ARENAS = Zoo(
    {"first fit": (ToyArena,), "best fit": (partial(ToyArena, best=True),)},
    {
        bug: (partial(ToyArena, bug),)
        for bug in (
            "the rest of a hole is lost", "a block may be one byte too large for its hole",
            "a hole of just the size is refused", "a hole behind does not melt",
            "a hole before does not melt", "the size of another block is given back",
            "what a full arena gives back is lost",
        )
    },
)  # fmt: skip


def frontier(there: int, kernel: int, stride: int, padding: int, rows: int) -> int:
    """Rows of the output that can be computed from the first `there` input rows: puzzle c1."""
    return true_frontier(Window(kernel, stride, 1, padding, padding), there, rows)


def _broken(change: Callable[..., int]) -> tuple[Callable[..., int]]:
    def wrong(there: int, kernel: int, stride: int, padding: int, rows: int) -> int:
        return change(frontier(there, kernel, stride, padding, rows), there, kernel, stride,
                      padding, rows)  # fmt: skip

    return (wrong,)


FRONTIERS = Zoo(
    {"by definition": (frontier,)},
    {
        "one row too many, but for all rows": _broken(
            lambda n, there, k, s, p, rows: n + (n > 0 and there < rows and k > 1)
        ),
        "one row too few at stride 2": _broken(lambda n, there, k, s, p, rows: n - (s == 2 < n)),
        "no padding": _broken(
            lambda n, there, k, s, p, rows: n if there == rows else max(0, (there - k) // s + 1)
        ),
        "the last row is forgotten": _broken(
            lambda n, there, k, s, p, rows: n - (there == rows and p > 0)
        ),
        "the last rows come early": _broken(
            lambda n, there, k, s, p, rows: (
                frontier(rows, k, s, p, rows) if there == rows - 1 and k > 3 else n
            )
        ),
    },
)


def norm(x: np.ndarray) -> np.ndarray:
    """Batch norm of (N, C) without gamma and beta."""
    return batch_norm(x, np.ones(x.shape[1]), np.zeros(x.shape[1]))


def norm_backward(x: np.ndarray, dy: np.ndarray, bug: str = "") -> np.ndarray:
    """dx of `norm`."""
    deviation = np.sqrt(x.var(0) + 1e-5)
    y = (x - x.mean(0)) / deviation
    mean, slope = dy.mean(0), (dy * y).mean(0)
    if bug == "the mean is taken for a constant":
        mean = np.zeros_like(mean)
    if bug == "the variance is taken for a constant":
        slope = np.zeros_like(slope)
    if bug == "statistics of all channels together":
        slope = np.full_like(slope, slope.mean())
    if bug == "divided by n - 1":
        slope = slope * len(x) / (len(x) - 1)
    if bug == "divided by the variance":
        deviation = deviation**2
    return (dy - mean - y * slope) / deviation


NORMS = Zoo(
    {"batch norm": (norm, norm_backward)},
    {
        bug: (norm, partial(norm_backward, bug=bug))
        for bug in (
            "the mean is taken for a constant", "the variance is taken for a constant",
            "statistics of all channels together", "divided by n - 1", "divided by the variance",
        )
    },
)  # fmt: skip


def judge(zoo: Zoo, title: str, law: Callable[..., Any]) -> Attempt:
    """Tries a law on all that is right and on all bugs."""
    alarms = {name: why for name, args in zoo.right.items() if (why := _refused(law, args))}
    broken = next((why for why in alarms.values() if not why.startswith("AssertionError")), "")
    alive = [] if broken else [bug for bug, args in zoo.bugs.items() if not _refused(law, args)]
    wrong = ""
    if alarms:
        name, why = next(iter(alarms.items()))
        wrong = broken or f"a false alarm: {name} is right, and your law says\n    {why}"
    elif alive:
        more = f", and {len(alive) - 1} more" if len(alive) > 1 else ""
        wrong = f"a bug is alive: {alive[0]!r}{more}"
    numbers = (
        Score("bugs alive", None if broken else len(alive), 0, 0),
        Score("false alarms", None if broken else len(alarms), 0, 0),
    )
    rows = [(name[:14], [Piece(0, 1, name, int(name in alarms))]) for name in zoo.right]
    rows += [
        (f"bug {number}", [Piece(0, 1, bug, int(bool(broken) or bug in alive))])
        for number, bug in enumerate(zoo.bugs, 1)
    ]
    legend = ("as it should be", "not yet")
    picture = strips_svg(title, rows, extent=1, legend=legend, number=lambda _: "")
    return Attempt(title, numbers, wrong, "", picture)


def _refused(law: Callable[..., Any], arguments: tuple) -> str:
    """What a law says against something; "" for nothing."""
    try:
        law(*arguments)
    except AssertionError as error:
        return f"AssertionError: {error}"
    except Exception as error:  # a student's code: whatever fails is shown to the student
        return reason_of(error)
    return ""


PUZZLES = (
    Puzzle("f1", "A law of allocators", partial(judge, ARENAS)),
    Puzzle("f2", "A law of tiles", partial(judge, FRONTIERS)),
    Puzzle("f3", "A law of gradients", partial(judge, NORMS)),
)
