"""What changes while exact packing searches: a board, and a trail of what each value was before.

All that has to be put back when the search goes back lies in one array, of which the others are
parts. So a change is a place and the value before, and to go back is one loop over the trail.
Source: the trail of Warren's Prolog machine (1983). Read next: `exact_search.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.alloc.sections import Sections

#: Dues that a trail has room for, for each block.
_SPARE = 64


class Board(NamedTuple):
    """What changes. The arrays after `values` are parts of it, in this order.

    Args:
        values: all that is put back when the search goes back.
        due: the least offset that each block left can still have; never below its low.
        offset: of each block; -1: not placed.
        low: the least offset that what is placed allows each block.
        beside: how many blocks left live beside each.
        total: of each section: bytes of its blocks left.
        crossing: for each section how many blocks left go on into the next.
        trail, reached: (place in `values`, value before) of each change; [how many there are, how
            many there may be before what is not needed is no longer written].
        items: the blocks; those of a frame stand together.
        stale: the sections whose bound has to be looked at.
        falling: (due, size) of the blocks of one section, as scratch.
    """

    values: np.ndarray
    offset: np.ndarray
    low: np.ndarray
    beside: np.ndarray
    total: np.ndarray
    crossing: np.ndarray
    due: np.ndarray
    trail: np.ndarray
    reached: np.ndarray
    items: np.ndarray
    stale: np.ndarray
    falling: np.ndarray


def new_board(sections: Sections) -> Board:
    """All blocks left."""
    blocks, count = len(sections.size), len(sections.held_start) - 1
    values = np.zeros(4 * blocks + 2 * count, np.int64)
    offset, low, beside, total, crossing, due = np.split(
        values, np.cumsum([blocks, blocks, blocks, count, count])
    )
    offset[:] = -1
    beside[:] = np.diff(sections.near_start)
    for block in range(blocks):
        own = sections.own[sections.own_start[block] : sections.own_start[block + 1]]
        total[own] += sections.size[block]
        crossing[sections.first[block] : sections.last[block]] += 1
    spread = int((sections.last - sections.first).sum())
    changes = 3 * len(sections.near) + len(sections.own) + spread + 2 * blocks
    enough = changes + _SPARE * blocks
    return Board(
        values, offset, low, beside, total, crossing, due,
        np.empty((changes + enough, 2), np.int64), np.array([0, enough]), np.arange(blocks),
        np.ones(count, np.bool_), np.empty((blocks, 2), np.int64),
    )  # fmt: skip
