"""Exact static packing: every block an offset such that all lie below a capacity, or proof of none.

The search places one block at a time, always on top of what it overlaps: at its *low*, the least
offset that the blocks placed so far allow. Every packing can be brought into this form by letting
blocks fall, so nothing is lost. Four ideas keep the search small. (1) A packing is built bottom up:
blocks are placed in the order of their offsets, of equals in a fixed order, so that each packing is
met once (canonical solutions). (2) A block is not placed where another would fit below it: no
offset is tried from the least top that any block left could have (dominance). (3) Time is cut into
sections within which the same blocks live; what is left in a section must fit above its floor, and
no floor lies below the offset that was placed last (monotonic floor). (4) Where no block left
crosses a border of two sections, both sides are searched apart, and one failure ends both.

The fixed order decides how soon a packing is found, so several are tried in turn, each with a
bounded number of nodes that doubles. The search is bounded by nodes, not by time, so the result is
the same on every machine. Source: M. Moffitt, "MiniMalloc: a lightweight memory allocator for
hardware-accelerated machine learning", ASPLOS 2023. Departures: blocks may live in several spans;
the capacity is minimised by bisection. Read next: `static.py`, which asks; `many_places.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled, compiled_anew

Spans = Sequence[Sequence[tuple[int, int]]]
#: What a search ends with.
NONE, FOUND, CUT_SHORT = 0, 1, 2


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


class Sections(NamedTuple):
    """The blocks over time. Lists of lists are flat: those of i lie in [start[i], start[i + 1]).

    Args:
        size: of each block.
        first, last: the first and the last section of each block.
        own, own_start: the sections of each block.
        held, held_start: the blocks of each section.
        near, near_start: the blocks that share a section with each block.
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


class PackingSearch(NamedTuple):
    """What changes while the search goes on.

    Args:
        offset: of each block; -1: not placed.
        low: the least offset that what is placed allows each block.
        floor, total: of each section: nothing more goes below; bytes of the blocks left.
        crossing: for each section how many blocks left go on into the next.
        found: the offsets placed last, of each block.
        left: nodes that may still be visited.
        capacity: all blocks have to lie below it.
    """

    offset: np.ndarray
    low: np.ndarray
    floor: np.ndarray
    total: np.ndarray
    crossing: np.ndarray
    found: np.ndarray
    left: np.ndarray
    capacity: int


def exact_places(
    sizes: Sequence[int], spans: Spans, enough_bytes: int, most_bytes: int, nodes: int
) -> ExactPlaces:
    """The smallest packing that is found.

    Args:
        sizes: of each block, positive.
        spans: [begin, end) of each, one or more.
        enough_bytes: no packing takes less, so that the search ends there.
        most_bytes: what is known already; only less is searched for.
        nodes: how many may be visited in all.
    """
    sections = sections_of(sizes, spans)
    best: tuple[int, ...] | None = None
    low, high, left = enough_bytes, most_bytes, nodes  # below `low` there is none
    capacity, proved = enough_bytes, True
    while low < high and left > 0:
        # Each question may use a part of what is left, so that a hard one leaves some for others.
        status, offsets, used = _placed(sections, capacity, max(left // 4, 1))
        left -= used
        if status == FOUND:
            best, high = offsets, _extent(offsets, sizes)
        else:
            proved, low = proved and status == NONE, capacity + 1
        capacity = (low + high) // 2
    return ExactPlaces(best, high, proved and low >= high, nodes - left)


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
    near = [sorted({b for s in mine for b in held[s]} - {i}) for i, mine in enumerate(own_lists)]
    return Sections(
        np.array(sizes, np.int64),
        np.array([mine[0] for mine in own_lists], np.int64),
        np.array([mine[-1] for mine in own_lists], np.int64),
        *_flat(own_lists), *_flat(held), *_flat(near),
    )  # fmt: skip


def _flat(lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return np.array([value for one in lists for value in one], np.int64), start


def _orders(sections: Sections) -> list[np.ndarray]:
    """The fixed orders to try: by width in time, area and the fullest section, largest first."""
    size, width = sections.size, np.diff(sections.own_start)
    total = np.array(
        [sections.size[held].sum() for held in np.split(sections.held, sections.held_start[1:-1])]
    )
    fullest = np.array(
        [total[own].max() for own in np.split(sections.own, sections.own_start[1:-1])]
    )
    area = size * width
    keys = ((width, area, fullest), (fullest, area, width), (fullest, width, area))
    return [np.lexsort([-key for key in reversed(three)]).astype(np.int64) for three in keys]


def _placed(
    sections: Sections, capacity: int, nodes: int
) -> tuple[int, tuple[int, ...], int]:  # fmt: skip
    """(status, offsets, nodes visited) of the orders in turn, with limits that double."""
    count = len(sections.size)
    if not count:
        return FOUND, (), 0
    if int(sections.size.max()) > capacity:
        return NONE, (), 0
    orders, limit, used = _orders(sections), 4 * count, 0
    while True:
        for order in orders:
            search = _begun(sections, min(limit, nodes - used), capacity)
            allowed = int(search.left[0])
            status = _search(sections, search, order, (0, len(search.floor)), (0, 0))
            used += allowed - max(0, int(search.left[0]))
            if status != CUT_SHORT:
                return int(status), tuple(search.found.tolist()), used
            if used >= nodes:
                return CUT_SHORT, (), used
        limit *= 2


def _begun(sections: Sections, nodes: int, capacity: int) -> PackingSearch:
    count, number = len(sections.size), len(sections.held_start) - 1
    total = np.array(
        [sections.size[held].sum() for held in np.split(sections.held, sections.held_start[1:-1])],
        np.int64,
    )
    crossing = np.zeros(number, np.int64)
    for first, last in zip(sections.first, sections.last, strict=True):
        crossing[first:last] += 1
    zeros = np.zeros(count, np.int64)
    return PackingSearch(
        zeros - 1, zeros.copy(), np.zeros(number, np.int64), total, crossing, zeros - 1,
        np.array([nodes], np.int64), capacity,
    )  # fmt: skip


@compiled_anew
def _search(sections, search, order, part, since):
    """Places the blocks of `order` in sections [begin, end) of `part`, none before (offset, rank)
    `since`.
    """
    if search.left[0] <= 0:
        return 2
    search.left[0] -= 1
    tries, some_left = _tries(sections, search, order, since)
    if not some_left:
        return 1
    raised = np.empty((len(order), 2), np.int64)
    floors = np.empty((2 * (part[1] - part[0]), 2), np.int64)
    for at in range(len(tries)):
        rank, low = tries[at]
        block, status = order[rank], 0
        counts = _place(sections, search, block, part, (raised, floors))
        if _may_fit(search, low, part):
            borders = _borders(sections, search, block, part)
            if len(borders) == 2:
                status = _search(sections, search, order, part, (low, rank))
            else:
                status = 1
                for place in range(len(borders) - 1):
                    if status == 1:
                        apart = (borders[place], borders[place + 1])
                        own = _left_in(sections, search, order, apart)
                        status = _search(sections, search, own, apart, (0, 0))
            search.crossing[sections.first[block] : sections.last[block]] += 1
        _undo(sections, search, block, raised[: counts[0]], floors[: counts[1]])
        if status:
            return status
        if not counts[2]:
            # No block left lives beside it, so that another place for it would change nothing.
            return 0
    return 0


@compiled
def _tries(sections, search, order, since):
    """(rank, low) of each block that may come next, the lowest first; whether any is left."""
    least_top, some_left = np.int64(1) << 62, False
    for block in order:
        if search.offset[block] < 0:
            some_left = True
            least_top = min(least_top, search.low[block] + sections.size[block])
    tries = np.empty((len(order), 2), np.int64)
    count = 0
    for rank in range(len(order)):
        block = order[rank]
        low = search.low[block]
        later = low > since[0] or (low == since[0] and rank >= since[1])
        if search.offset[block] < 0 and low < least_top and later:
            place = count
            while place and tries[place - 1, 1] > low:
                tries[place] = tries[place - 1]
                place -= 1
            tries[place, 0], tries[place, 1] = rank, low
            count += 1
    return tries[:count], some_left


@compiled
def _place(sections, search, block, part, changes):
    """Places a block; (lows that were raised, floors that were, blocks left beside it).

    Args:
        changes: (lows, floors): what was changed and its value before, to be filled.
    """
    raised, floors = changes
    begin, end = part
    low = search.low[block]
    top = low + sections.size[block]
    search.offset[block] = search.found[block] = low
    lows = moved = beside = 0
    touched = np.zeros(end - begin, np.bool_)
    for at in range(sections.near_start[block], sections.near_start[block + 1]):
        other = sections.near[at]
        if search.offset[other] >= 0:
            continue
        beside += 1
        if search.low[other] < top:
            raised[lows, 0], raised[lows, 1] = other, search.low[other]
            lows += 1
            search.low[other] = top
            for own in range(sections.own_start[other], sections.own_start[other + 1]):
                touched[sections.own[own] - begin] = True
    for own in range(sections.own_start[block], sections.own_start[block + 1]):
        section = sections.own[own]
        floors[moved, 0], floors[moved, 1] = section, search.floor[section]
        moved += 1
        search.floor[section] = top
        search.total[section] -= sections.size[block]
    for section in range(begin, end):
        if touched[section - begin]:
            least = _least_low(sections, search, section)
            if search.total[section] and search.floor[section] < least:
                floors[moved, 0], floors[moved, 1] = section, search.floor[section]
                moved += 1
                search.floor[section] = least
    return lows, moved, beside


@compiled
def _least_low(sections, search, section):
    """The least offset that any block left of a section could have."""
    least = np.int64(1) << 62
    for at in range(sections.held_start[section], sections.held_start[section + 1]):
        other = sections.held[at]
        if search.offset[other] < 0:
            least = min(least, search.low[other])
    return least


@compiled
def _may_fit(search, low, part):
    """Whether what is left of each section fits above its floor."""
    for section in range(part[0], part[1]):
        if max(low, search.floor[section]) + search.total[section] > search.capacity:
            return False
    return True


@compiled
def _undo(sections, search, block, raised, floors):
    """Takes a block away again, and with it what it changed."""
    for at in range(len(floors) - 1, -1, -1):
        search.floor[floors[at, 0]] = floors[at, 1]
    for own in range(sections.own_start[block], sections.own_start[block + 1]):
        search.total[sections.own[own]] += sections.size[block]
    for at in range(len(raised)):
        search.low[raised[at, 0]] = raised[at, 1]
    search.offset[block] = -1


@compiled
def _borders(sections, search, block, part):
    """Takes a placed block out of the crossings: the borders of the parts that are now apart."""
    found = np.empty(sections.last[block] - sections.first[block] + 2, np.int64)
    found[0], count = part[0], 1
    for section in range(sections.first[block], sections.last[block]):
        search.crossing[section] -= 1
        if not search.crossing[section]:
            found[count] = section + 1
            count += 1
    found[count] = part[1]
    return found[: count + 1]


@compiled
def _left_in(sections, search, order, part):
    """The blocks of a part that are not placed, in the fixed order."""
    left = np.empty(len(order), np.int64)
    count = 0
    for block in order:
        inside = sections.first[block] < part[1] and sections.last[block] >= part[0]
        if inside and search.offset[block] < 0:
            left[count] = block
            count += 1
    return left[:count]
