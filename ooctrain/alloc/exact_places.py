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

The fixed order decides how soon a packing is found: with one order within a thousand blocks, with
another not within a million. So many are tried, most of them for a short while only: first by width
in time, area and the fullest section, then mixtures of these drawn with a fixed seed. What one
attempt has found impossible all later ones know: the same blocks left at the same lows are not
searched again. The search is bounded by the blocks that it tries, not by time, so the result is the
same on every machine.

Source: M. Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine
learning", ASPLOS 2023: (1), (2), (5), and (3) with the least low and the sum only. Departures: the
rest of (3), (4), (6), drawn orders and the memory of what failed; blocks may live in several spans;
the capacity is minimised by bisection. Read next: `sections.py`, `exact_search.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from ooctrain.alloc.exact_search import CUT_SHORT, FOUND, NONE, search
from ooctrain.alloc.packing_board import new_board
from ooctrain.alloc.sections import Sections, Spans, sections_of

#: Blocks that the shortest attempt may try, for each block there is.
_SHORTEST = 4
#: Keys that are kept of what could not be packed; 8 bytes each.
MOST_KEYS = 1 << 21


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


def _placed(
    sections: Sections, capacity: int, nodes: int
) -> tuple[int, tuple[int, ...], int]:  # fmt: skip
    """(how it ended, offsets, blocks tried) of one attempt after another."""
    blocks = len(sections.size)
    if not blocks:
        return FOUND, (), 0
    if int(sections.size.max()) > capacity:
        return NONE, (), 0
    used, failed = 0, np.full(min(nodes, MOST_KEYS), -1)
    for limit, rank in _attempts(sections, _SHORTEST * blocks):
        board = new_board(sections)
        status, tried = search(sections, board, rank, failed, (capacity, min(limit, nodes - used)))
        used += tried
        if status != CUT_SHORT:
            return status, tuple(board.offset.tolist()), used
        if used >= nodes:
            return CUT_SHORT, (), used
    raise AssertionError("attempts have no end")


def _attempts(sections: Sections, unit: int) -> Iterator[tuple[int, np.ndarray]]:
    """(how many blocks to try, rank of each block), without end."""
    orders, drawn = _orders(sections), np.random.default_rng(0)
    for number in count(1):
        rank = orders.pop() if orders else _ranks([_mixture(sections, drawn)])
        yield unit * _luby(number), rank


def _luby(number: int) -> int:
    """Luby's sequence 1 1 2 1 1 2 4 1 1 2 ...: twice the length, half as often.

    Whatever chance attempts of each length have, no other sequence is much better (Luby, Sinclair
    and Zuckerman, 1993).
    """
    while (number + 1) & number:
        number -= (1 << (number.bit_length() - 1)) - 1
    return (number + 1) // 2


def _orders(sections: Sections) -> list[np.ndarray]:
    """The fixed orders, the best one last: by several measures in turn, largest first."""
    width, _, area, fullest = _measures(sections)
    return [
        _ranks([area]), _ranks([width, area, fullest]), _ranks([fullest, area, width]),
        _ranks([fullest, width, area]),
    ]  # fmt: skip


def _measures(sections: Sections) -> tuple[np.ndarray, ...]:
    """Of each block: width in sections, size, area, and the bytes of its fullest section."""
    width = np.diff(sections.own_start)
    bytes_of = new_board(sections).total
    fullest = np.array([bytes_of[own].max() for own in _parts(sections.own, sections.own_start)])
    return width, sections.size, sections.size * width, fullest


def _mixture(sections: Sections, drawn: np.random.Generator) -> np.ndarray:
    """The measures multiplied, each to a drawn power; in half of the draws, with noise."""
    powers = drawn.uniform(0, [1, 1, 0, 8])
    noise = drawn.normal(0, 0.3, len(sections.size)) * drawn.integers(0, 2)
    return np.log(np.array(_measures(sections), float).T) @ powers + noise


def _ranks(keys: Sequence[np.ndarray]) -> np.ndarray:
    """The place of each block, the largest first; equals, and so twins, by their numbers."""
    order = np.lexsort([-key for key in reversed(keys)])
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _parts(flat: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
    return np.split(flat, start[1:-1])
