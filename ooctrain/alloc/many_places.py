"""`static.place` for tens of thousands of blocks: the same offsets, compiled.

Each block, in the given order, gets the lowest offset that is free during its spans of time. Time
is cut into cells, and each cell lists the placed blocks that live in it, so a block is compared
only with those of its own cells. The few that live through many cells are kept in one list that
every block checks. Cost: for each block its neighbours in time; where most blocks live through most
of the time, the square of their number. Read next: `static.py`, which defines the order, and does
without a compiler for fewer blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.sched.search.jit import compiled, inner
from ooctrain.units import MAX_BYTES

#: Spans for each cell, about; and cells from which on a span is a long one.
IN_A_CELL, LONG = 64, 16


def places_of_many(
    sizes: Sequence[int], spans: Sequence[Sequence[tuple[int, int]]], below: int = MAX_BYTES
) -> list[int] | None:
    """The offset of each block, placed in this order; None: one would end at `below` or above.

    Args:
        sizes: one for each block.
        spans: [begin, end) of each, at least one.
        below: where another order ends, so that no better one is given up.
    """
    flat = np.array([span for own in spans for span in own], np.int64)
    first = np.cumsum([0, *(len(own) for own in spans)]).astype(np.int64)
    cells = max(1, len(flat) // IN_A_CELL)
    width = max(1, -(-int(flat[:, 1].max()) // cells))
    offsets = np.zeros(len(sizes), np.int64)
    done = _fill(np.array(sizes, np.int64), flat, first, (width, below), offsets)
    return offsets.tolist() if done else None


@inner
def _lowest(starts, stops, found, size):
    """The lowest offset with room between what is there; what lies below it is dropped.

    Whatever meets a block at `reached` meets it at each offset up to its own end, so the search
    goes on there, and needs nothing sorted.
    """
    reached, moved = np.int64(0), True
    while moved:
        moved, left = False, 0
        for place in range(found):
            start, stop = starts[place], stops[place]
            if stop > reached:
                if start < reached + size:
                    reached, moved = stop, True
                else:
                    starts[left], stops[left] = start, stop
                    left += 1
        found = left
    return reached


@compiled
def _fill(sizes, flat, first, limits, offsets):
    width, below = limits
    cells = flat[:, 1].max() // width + 1
    heads = np.full(cells, -1, np.int64)
    following = np.empty(len(flat) * LONG, np.int64)
    listed = np.empty(len(flat) * LONG, np.int64)
    long_ones = np.empty(len(flat), np.int64)
    owner = np.empty(len(flat), np.int64)
    starts = np.empty(len(flat), np.int64)
    stops = np.empty(len(flat), np.int64)
    met = np.full(len(sizes), -1, np.int64)
    nodes = longs = 0
    for block in range(len(sizes)):
        found = 0
        for own in range(first[block], first[block + 1]):
            begin, end = flat[own, 0], flat[own, 1]
            owner[own] = block
            for place in range(longs):
                other = long_ones[place]
                if flat[other, 0] < end and flat[other, 1] > begin and met[owner[other]] != block:
                    met[owner[other]] = block
                    starts[found] = offsets[owner[other]]
                    stops[found] = starts[found] + sizes[owner[other]]
                    found += 1
            for cell in range(begin // width, end // width + 1):
                node = heads[cell]
                while node >= 0:
                    other = listed[node]
                    if (
                        flat[other, 0] < end
                        and flat[other, 1] > begin
                        and met[owner[other]] != block
                    ):
                        met[owner[other]] = block
                        starts[found] = offsets[owner[other]]
                        stops[found] = starts[found] + sizes[owner[other]]
                        found += 1
                    node = following[node]
        reached = offsets[block] = _lowest(starts, stops, found, sizes[block])
        if reached + sizes[block] >= below:
            return False
        for own in range(first[block], first[block + 1]):
            low, high = flat[own, 0] // width, flat[own, 1] // width
            if high - low >= LONG:
                long_ones[longs] = own
                longs += 1
                continue
            for cell in range(low, high + 1):
                listed[nodes], following[nodes], heads[cell] = own, heads[cell], nodes
                nodes += 1
    return True
