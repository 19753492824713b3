"""Time as sections: what exact packing has to know about when blocks live.

Of a moment only the set of its blocks matters. So time is cut where a block begins after another
has ended: a section stands for the moment before its first end, when most of its blocks live, and
two blocks are in each other's way if they share a section. Blocks of one size that live in the same
sections are twins: any packing is one of the other, too. Source: M. Moffitt, "MiniMalloc", ASPLOS
2023 (sections); twins are ours. Read next: `exact_search.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Spans = Sequence[Sequence[tuple[int, int]]]
#: Blocks whose neighbours are looked for at a time.
_ROWS = 256


class Sections(NamedTuple):
    """The blocks over time. Lists of lists are flat: those of i lie in [start[i], start[i + 1]).

    Args:
        size: of each block.
        first, last: the first and the last section of each block.
        own, own_start: the sections of each block.
        held, held_start: the blocks of each section.
        near, near_start: the blocks that share a section with each block.
        twin: the block before each that has its size and its sections; -1: none.
        mark: two drawn numbers for each block, the same for twins.
    """

    size: np.ndarray
    first: np.ndarray
    last: np.ndarray
    own: np.ndarray
    own_start: np.ndarray
    held: np.ndarray
    held_start: np.ndarray
    near: np.ndarray
    near_start: np.ndarray
    twin: np.ndarray
    mark: np.ndarray


def sections_of(sizes: Sequence[int], spans: Spans) -> Sections:
    """Time as sections: a new one begins where a block does after another has ended.

    A section stands for the moment before its first end, when most of its blocks live.
    """
    times = sorted({time for own in spans for span in own for time in span})
    at = {time: place for place, time in enumerate(times)}
    begins, ends = np.zeros(len(times), bool), np.zeros(len(times), bool)
    for own in spans:
        for begin, end in own:
            begins[at[begin]] = ends[at[end]] = True
    number = np.zeros(len(times), np.int64)  # of the section that each moment belongs to
    section, closed = 0, False
    for place in range(len(times)):
        closed |= bool(ends[place])
        if closed and begins[place]:
            section, closed = section + 1, False
        number[place] = section
    count = int(number.max(initial=-1)) + 1
    own_lists = [
        sorted({int(s) for b, e in own for s in range(number[at[b]], number[at[e] - 1] + 1)})
        for own in spans
    ]
    held: list[list[int]] = [[] for _ in range(count)]
    for block, mine in enumerate(own_lists):
        for one in mine:
            held[one].append(block)
    return Sections(
        np.array(sizes, np.int64),
        np.array([mine[0] for mine in own_lists], np.int64),
        np.array([mine[-1] for mine in own_lists], np.int64),
        *_flat(own_lists), *_flat(held), *_near(own_lists, count), *_twins(sizes, own_lists),
    )  # fmt: skip


def _twins(
    sizes: Sequence[int], own_lists: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    marks = np.random.default_rng(0).integers(1, 1 << 31, (len(sizes), 2))
    last: dict[tuple[int, ...], int] = {}
    twins = np.full(len(sizes), -1, np.int64)
    for block, (size, own) in enumerate(zip(sizes, own_lists, strict=True)):
        before = twins[block] = last.get((size, *own), -1)
        if before >= 0:
            marks[block] = marks[before]
        last[size, *own] = block
    return twins, marks


def _near(own_lists: Sequence[Sequence[int]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The blocks that share a section with each block, some rows of all pairs at a time."""
    lives = np.zeros((len(own_lists), count), np.float32)
    for block, mine in enumerate(own_lists):
        lives[block, mine] = 1
    found, numbers = [np.zeros(0, np.int64)], [0]
    for first in range(0, len(own_lists), _ROWS):
        shared = lives[first : first + _ROWS] @ lives.T > 0
        places = np.arange(len(shared))
        shared[places, first + places] = False
        found.append(np.nonzero(shared)[1])
        numbers += shared.sum(1).tolist()
    return np.concatenate(found), np.cumsum(numbers).astype(np.int64)


def _flat(lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return np.array([value for one in lists for value in one], np.int64), start
