"""Exact static packing: every block an offset such that all lie below a capacity, or proof of none.

The search places one block at a time, always on top of what it overlaps: at its *low*, the least
offset that the blocks placed so far allow. Every packing can be brought into this form by letting
blocks fall, so nothing is lost. Six ideas keep the search small. (1) A packing is built bottom up:
blocks are placed in the order of their offsets, of equals in a fixed order, so that each packing is
met once (canonical solutions). (2) A block is not placed where another would fit below it: no
offset is tried from the least top that any block left could have (dominance). (3) Time is cut into
sections within which the same blocks live; what is left of a section, each block at or above its
low, must fall into place below the capacity; if only one of them can be the lowest, its other
sections know. (4) A block that was passed over can only lie on another that is still to come, so
its low is in truth that block's top; if none can come, the search turns back. (5) Where no block
left crosses a border of two sections, both sides are searched apart, and one failure ends both.
(6) Twins are placed in one order only.

Blocks that live all the time lie at the bottom: whatever packing there is, they can be taken out of
it and put there, and it is no higher. Small blocks are left out at first, and fill the gaps between
the large ones afterwards, by first fit. If the best is then more than 1 % above the bound, a last
stage for the large ones asks for 0.9 % alone (an aim). Only then are all searched together. What
one attempt has found impossible all later ones for the same capacity know: the same blocks left at
the same lows are not searched again. The search is bounded by the blocks that it tries, not by
time, so the result is the same on every machine.

Source: M. Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine
learning", ASPLOS 2023: (1), (2), (5), and (3) with the least low and the sum only. Departures: the
rest of (3), (4), (6), drawn orders, the memory of what failed, blocks at the bottom, small ones
apart, the aim; blocks may live in several spans; the capacity is minimised. Read next:
`packing_descent.py` (how), `packing_orders.py`, `sections.py`, `exact_search.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from ooctrain.alloc.exact_search import CUT_SHORT, FOUND, NONE, search
from ooctrain.alloc.packing_board import new_board
from ooctrain.alloc.packing_descent import MOST_KEYS, Descent
from ooctrain.alloc.packing_orders import SHORTEST, Orders, luby, ranks
from ooctrain.alloc.sections import Sections, Spans, sections_of
from ooctrain.sched.spans import lowest_gap

#: (part, percentage of the work, whether it aims). A block is small below such a part of the bound;
#: 0: none is. Two descents, then an aim if they ended above it, then a descent of all blocks.
_STAGES = ((512, 45, False), (700, 45, False), (512, 8, True), (0, 2, False))
#: A packing so far above the bound, in thousandths, is aimed at if none is within 1 %. The tenth in
#: between is room for small blocks.
_AIM, _WANTED = 9, 10


@dataclass(frozen=True, slots=True)
class ExactPlaces:
    """What the search found.

    Args:
        offsets: of each block; None: none below the capacity that was asked for.
        extent_bytes: what they take.
        proved: whether no packing takes less.
        nodes: how many were visited.
    """

    offsets: tuple[int, ...] | None
    extent_bytes: int
    proved: bool
    nodes: int


def exact_places(
    sizes: Sequence[int], spans: Spans, enough_bytes: int, most_bytes: int, nodes: int
) -> ExactPlaces:
    """The smallest packing that is found.

    Args:
        sizes: of each block, positive.
        spans: [begin, end) of each, one or more.
        enough_bytes: no packing takes less, so that the search ends there.
        most_bytes: what is known already; only less is searched for.
        nodes: how many may be visited in all; among fewer blocks a visit counts for less.
    """
    everything = sections_of(sizes, spans)
    steady, rest = _steady_and_rest(everything)
    floor = sum(sizes[block] for block in steady)
    stacked = dict(zip(steady, np.cumsum([0, *(sizes[i] for i in steady)]).tolist(), strict=False))
    if not rest:
        return ExactPlaces(tuple(stacked[i] for i in range(len(sizes))), floor, True, 0)
    low, high, visited = enough_bytes - floor, most_bytes - floor, 0
    aim, wanted = (enough_bytes * (1000 + over) // 1000 - floor for over in (_AIM, _WANTED))
    best: dict[int, int] | None = None
    for part, percent, aims in _STAGES:
        members = [i for i in rest if not part or sizes[i] > enough_bytes // part]
        left = nodes * percent // 100 if part else nodes - visited
        needless = (part and len(members) == len(rest)) or (aims and high <= wanted)
        if low >= high or not members or needless:
            continue
        # Each begins at what was known, not at what the one before has found: chance decides much.
        descent = Descent(_of(members, sizes, spans), low, most_bytes - floor)
        share = max(1, left * len(sizes) // len(members))
        if aims:
            descent.aim(aim, share)
        else:
            descent.run(share)
        visited += -(-descent.tried * len(members) // len(sizes))
        low = descent.low
        if descent.offsets is not None:
            found = dict(zip(members, descent.offsets, strict=True))
            _fill(found, rest, sizes, everything)
            extent = max(offset + sizes[i] for i, offset in found.items())
            if extent < high:
                best, high = found, extent
    if best is None:
        return ExactPlaces(None, most_bytes, low >= high, visited)
    offsets = stacked | {i: floor + offset for i, offset in best.items()}
    return ExactPlaces(
        tuple(offsets[i] for i in range(len(sizes))), floor + high, low >= high, visited
    )


def places_within(
    sizes: Sequence[int], spans: Spans, capacity_bytes: int, nodes: int
) -> ExactPlaces:
    """A packing of at most `capacity_bytes`.

    Returns:
        Without offsets: no placement exists (`proved`), or none was found in `nodes` nodes.
    """
    status, offsets, used = _placed(sections_of(sizes, spans), capacity_bytes, nodes)
    if status != FOUND:
        return ExactPlaces(None, capacity_bytes, status == NONE, used)
    return ExactPlaces(offsets, _extent(offsets, sizes), False, used)


def _extent(offsets: Sequence[int], sizes: Sequence[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)


def _placed(
    sections: Sections, capacity: int, nodes: int
) -> tuple[int, tuple[int, ...], int]:  # fmt: skip
    """(how it ended, offsets, blocks tried) of one attempt after another."""
    blocks = len(sections.size)
    if not blocks:
        return FOUND, (), 0
    if int(sections.size.max()) > capacity:
        return NONE, (), 0
    used, failed, orders = 0, np.full(min(nodes, MOST_KEYS), -1), Orders(sections)
    fixed = orders.fixed()
    for number in count(1):
        rank = ranks(fixed.pop() if fixed else orders.mixture())
        board, limit = new_board(sections), SHORTEST * blocks * luby(number)
        status, tried = search(sections, board, rank, failed, (capacity, min(limit, nodes - used)))
        used += tried
        if status != CUT_SHORT:
            return status, tuple(board.offset.tolist()), used
        if used >= nodes:
            return CUT_SHORT, (), used
    raise AssertionError("attempts have no end")


def _steady_and_rest(sections: Sections) -> tuple[list[int], list[int]]:
    """Blocks that live in every section, and the others."""
    steady = np.diff(sections.own_start) == len(sections.held_start) - 1
    return np.flatnonzero(steady).tolist(), np.flatnonzero(~steady).tolist()


def _of(members: Sequence[int], sizes: Sequence[int], spans: Spans) -> Sections:
    return sections_of([sizes[i] for i in members], [spans[i] for i in members])


def _fill(
    placed: dict[int, int], members: Sequence[int], sizes: Sequence[int], sections: Sections
) -> None:
    """Places what is left of the members at the lowest gaps, the largest first."""
    for block in sorted((i for i in members if i not in placed), key=lambda i: (-sizes[i], i)):
        near = sections.near[sections.near_start[block] : sections.near_start[block + 1]].tolist()
        taken = sorted((placed[i], placed[i] + sizes[i]) for i in near if i in placed)
        placed[block] = lowest_gap(taken, sizes[block])
