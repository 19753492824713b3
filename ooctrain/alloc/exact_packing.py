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
left crosses a border of two sections, both sides are searched apart, and one failure ends both. (6)
Twins are placed in one order only.

Blocks that live all the time lie at the bottom: whatever packing there is, they can be taken out of
it and put there, and it is no higher. Small blocks are left out at first, and fill the gaps between
the large ones afterwards, by first fit. If the best is then more than 1 % above the bound, a last
stage for the large ones tries 0.9 % alone (an aim). Only then are all searched together. What one
attempt has found impossible holds for all later ones with the same capacity: the same blocks left
at the same lows are not searched again. The search is bounded by the blocks that it tries, not by
time, so the result is the same on every machine.

The parts, from the caller down: `exact_places` (which blocks are searched when), `Descent` (which
capacities), `Orders` (in which order blocks are tried), `Sections` (when blocks live), `Board`
(what changes meanwhile), `search` (one capacity, compiled).

Source: M. Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine
learning", ASPLOS 2023: (1), (2), (5), and (3) with the least low and the sum only. Departures: the
rest of (3), (4), (6), drawn orders, the memory of what failed, blocks at the bottom, small ones
apart, the aim; blocks may live in several spans; the capacity is minimised. Read next: `static.py`,
which packs by it; `stalloc.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import add
from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.spans import lowest_gap

#: (part, percentage of the work, whether it aims). A block is small below this part of the bound;
#: 0: none is. Two descents, then an aim if they ended above it, then a descent of all blocks.
_STAGES = ((512, 45, False), (700, 45, False), (512, 8, True), (0, 2, False))
#: A packing so far above the bound, in thousandths, is aimed at if none is within 1 %. The tenth in
#: between is room for small blocks.
_AIM, _WANTED = 9, 10


@dataclass(frozen=True, slots=True)
class ExactPlaces:
    """What the search found.

    Args:
        offsets: one for each block; None: no packing below the wanted capacity.
        extent_bytes: what they take.
        proved: whether no packing takes less.
        nodes: number visited.
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
        sizes: one for each block, positive.
        spans: [begin, end) for each block, one or more.
        enough_bytes: no packing takes less, so that the search ends there.
        most_bytes: what is known already; only less is searched for.
        nodes: most to be visited in all; among fewer blocks a visit counts for less.
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
    return max(map(add, offsets, sizes), default=0)


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
    number = 0
    while True:
        number += 1
        rank = ranks(fixed.pop() if fixed else orders.mixture())
        board, limit = new_board(sections), SHORTEST * blocks * luby(number)
        status, tried = search(sections, board, rank, failed, (capacity, min(limit, nodes - used)))
        used += tried
        if status != CUT_SHORT:
            return status, tuple(board.offset.tolist()), used
        if used >= nodes:
            return CUT_SHORT, (), used


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


# Shrinking a packing step by step: one capacity after another between a bound and the best one
# known. A search for one capacity is lucky or not: seen on training steps, 1.2 % above the bound
# was met within 1,617 blocks tried, 1.5 % only after 12,075. So each capacity is tried for a short
# while, first those far down, then those nearer to the best. What is found lowers the best; what is
# proved to hold no packing raises the bound. If no capacity is met, all are tried for three times
# as long. Most attempts take the order that served last, with some keys moved: without that
# ResNet-50 at 40 % stayed 0.91 % above the bound, with it 0.20 %. A descent divides its work among
# many capacities, and what it finds impossible holds for one of them only. So there is an aim as
# well: one capacity, tried in many short attempts. Sources: Luby's restarts; large neighbourhood
# search (Shaw, 1998), here of the order instead of the places; ours otherwise.


#: Where between the bound and the best the capacities lie, in percent.
SHARES = (0, 30, 60, 80, 92, 97)
#: Blocks that are tried for one capacity at first, for each block there is.
_EFFORT = 60
#: How many attempts keep near the order that served last.
_NEAR = 0.6
#: The longest attempt at an aim, in units of the shortest; those that were seen to serve took six.
_LONGEST_AIM = 16
#: Keys that are kept of what could not be packed; 8 bytes each.
MOST_KEYS = 1 << 21


class Descent:
    """The best packing so far of some blocks, and what is known to be impossible.

    Args:
        sections: the blocks over time, at least one.
        low: no packing takes less; nor less than the largest block.
        high: a packing of so much is known.

    Attributes:
        offsets: those of the best packing found here; None: none below `high` yet.
        tried: how many blocks were tried.
    """

    def __init__(self, sections: Sections, low: int, high: int):
        self.low, self.high = max(low, int(sections.size.max())), high
        self.offsets: tuple[int, ...] | None = None
        self.tried = 0
        self._sections, self._orders = sections, Orders(sections)
        self._served: np.ndarray | None = None  # keys of the order that found the best packing

    def run(self, nodes: int) -> None:
        """Lowers the best until it is the bound, or `nodes` blocks were tried."""
        effort = _EFFORT * len(self._sections.size)
        while self.low < self.high and self.tried < nodes:
            for share in SHARES:
                # Above one that holds none the next is a share further up: bytes are too many.
                capacity = self.low + (self.high - self.low) * share // 100
                left = min(effort, nodes - self.tried)
                over = left <= 0 or self.low >= self.high
                if over or self._ask(capacity, left, self._attempts()):
                    break
            else:
                effort *= 3

    def aim(self, capacity: int, nodes: int) -> None:
        """Asks for one capacity in lasting orders, until it is met or `nodes` blocks were tried."""
        if self.low <= capacity < self.high:
            self._ask(capacity, nodes, self._short_attempts())

    def _ask(self, capacity: int, nodes: int, attempts: Iterator[tuple[int, np.ndarray]]) -> bool:
        """Asks for a packing; whether one was found. That there is none moves the bound."""
        failed = np.full(min(nodes, MOST_KEYS), -1)
        while True:
            length, keys = next(attempts)  # they have no end
            board = new_board(self._sections)
            limits = capacity, min(length, nodes)
            status, tried = search(self._sections, board, ranks(keys), failed, limits)
            self.tried += tried
            nodes -= tried
            if status == FOUND:
                self._take(board.offset, keys)
                return True
            if status == NONE:
                self.low = capacity + 1
                return False
            if nodes <= 0:
                return False

    def _take(self, offsets: np.ndarray, keys: np.ndarray) -> None:
        self.offsets, self._served = tuple(offsets.tolist()), keys
        self.high = int((offsets + self._sections.size).max())

    def _short_attempts(self) -> Iterator[tuple[int, np.ndarray]]:
        unit = SHORTEST * len(self._sections.size)
        for number in count(1):
            yield unit * min(luby(number), _LONGEST_AIM), self._orders.lasting()

    def _attempts(self) -> Iterator[tuple[int, np.ndarray]]:
        """(how many blocks to try, keys of the order), without end."""
        unit = SHORTEST * len(self._sections.size)
        left = self._orders.fixed() if self._served is None else []
        for number in count(1):
            if left:
                keys = left.pop()
            elif self._served is not None and self._orders.coin(_NEAR):
                keys = self._orders.near(self._served)
            else:
                keys = self._orders.mixture()
            yield unit * luby(number), keys


# The order decides how soon a packing is found: with one within a thousand blocks tried, with
# another not within a million. No measure is the best for all: wide blocks first in one problem,
# those of the fullest section in another. So orders are mixtures of measures with drawn powers,
# most of them tried for a short while only, in the lengths of Luby's sequence. In lasting orders
# size hardly counts: only such ones have met 0.9 % above the bound for ResNet-50 at 20 %, each time
# with a power of the size below 0.1. The seed is fixed, so every machine draws the same ones.
# Source: Luby, Sinclair and Zuckerman, "Optimal speedup of Las Vegas algorithms" (1993); the
# mixtures are ours.


#: Blocks that the shortest attempt may try, for each block there is.
SHORTEST = 4


def luby(number: int) -> int:
    """Luby's sequence 1 1 2 1 1 2 4 1 1 2 ...: twice the length, half as often.

    Whatever chance attempts of each length have, no other sequence is much better.
    """
    while (number + 1) & number:
        number -= (1 << (number.bit_length() - 1)) - 1
    return (number + 1) // 2


class Orders:
    """Orders of the blocks of a problem, as a key for each block, the largest first.

    Args:
        sections: the blocks over time.
    """

    def __init__(self, sections: Sections):
        self._sections = sections
        self._measured = _measures(sections)
        self._drawn = np.random.default_rng(0)

    def fixed(self) -> list[np.ndarray]:
        """By several measures in turn, the best one last."""
        width, _, area, fullest = self._measured
        return [
            _steps([area]), _steps([width, area, fullest]), _steps([fullest, area, width]),
            _steps([fullest, width, area]),
        ]  # fmt: skip

    def mixture(self) -> np.ndarray:
        """The measures multiplied, each to a drawn power; in half of the draws, with noise."""
        powers = self._drawn.uniform(0, [1, 1, 0, 8])
        noise = self._drawn.normal(0, 0.3, self._count) * self._drawn.integers(0, 2)
        return self._logarithms @ powers + noise

    def lasting(self) -> np.ndarray:
        """A mixture without noise in which the power of the size is near zero: what lives long, and
        what lives when most bytes do, comes first, and size decides among those.
        """
        powers = self._drawn.uniform(0, [1, 1, 0, 8])
        powers[1] **= 3
        return self._logarithms @ powers

    def near(self, keys: np.ndarray) -> np.ndarray:
        """An order near to one that has served: all keys, or a tenth of them, moved by chance, and
        in half of the draws the measures weighed another way.
        """
        spread = max(float(keys.std()), 1e-9)
        moved = self._drawn.random(self._count) < self._drawn.choice([0.1, 1.0])
        by = self._drawn.normal(0, self._drawn.choice([0.02, 0.1, 0.3]), self._count)
        near = (keys - keys.mean()) / spread + by * moved
        if self._drawn.random() < 0.5:
            near = near + self._logarithms @ self._drawn.normal(0, 0.3, 4)
        return near

    def coin(self, share: float) -> bool:
        """True in this share of the draws."""
        return bool(self._drawn.random() < share)

    @property
    def _count(self) -> int:
        return len(self._sections.size)

    @property
    def _logarithms(self) -> np.ndarray:
        return np.log(np.array(self._measured, float).T)


def ranks(keys: np.ndarray) -> np.ndarray:
    """The place of each block, the largest key first; equals, and so twins, by their numbers."""
    return _places([keys])


def _measures(sections: Sections) -> tuple[np.ndarray, ...]:
    """Of each block: width in sections, size, area, and the bytes of its fullest section."""
    width = np.diff(sections.own_start)
    bytes_of = new_board(sections).total
    parts = np.split(sections.own, sections.own_start[1:-1])
    fullest = np.array([bytes_of[own].max() for own in parts])
    return width, sections.size, sections.size * width, fullest


def _places(measures: list[np.ndarray]) -> np.ndarray:
    order = np.lexsort([-measure for measure in reversed(measures)])
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def _steps(measures: list[np.ndarray]) -> np.ndarray:
    """Keys one step apart, in the order of several measures."""
    return -_places(measures).astype(float)


# Time as sections. Only the set of live blocks at each moment matters. So time is cut where a block
# begins after another has ended: a section stands for the moment before its first end, when most of
# its blocks live, and two blocks are in each other's way if they share a section. Blocks of one
# size that live in the same sections are twins: any packing is one of the other, too. Twins are
# ours.


Spans = Sequence[Sequence[tuple[int, int]]]
#: Blocks whose neighbours are looked for at a time.
_ROWS = 256


class Sections(NamedTuple):
    """The blocks over time. Lists of lists are flat: those of i lie in [start[i], start[i + 1]).

    Args:
        size: size of each block, in bytes.
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


# A board with an undo log. All that has to be put back when the search goes back lies in one array,
# of which the others are parts. So a change is a place and the value before, and to go back is one
# loop over the log. Source: the trail of Warren's Prolog machine (1983).


#: Dues that the undo log has space for, for each block.
_SPARE = 64


class Board(NamedTuple):
    """What changes. The arrays after `values` are parts of it, in this order.

    Args:
        values: all that is put back when the search goes back.
        due: the least offset that each block left can still have; never below its low.
        offset: offset of each block; -1: not placed.
        low: the least offset that what is placed allows each block.
        neighbours: number of blocks left that live at the same time as each.
        total: for each section the bytes of its blocks left.
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
    neighbours: np.ndarray
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
    offset, low, neighbours, total, crossing, due = np.split(
        values, np.cumsum([blocks, blocks, blocks, count, count])
    )
    offset[:] = -1
    neighbours[:] = np.diff(sections.near_start)
    for block in range(blocks):
        own = sections.own[sections.own_start[block] : sections.own_start[block + 1]]
        total[own] += sections.size[block]
        crossing[sections.first[block] : sections.last[block]] += 1
    spread = int((sections.last - sections.first).sum())
    changes = 3 * len(sections.near) + len(sections.own) + spread + 2 * blocks
    enough = changes + _SPARE * blocks
    return Board(
        values, offset, low, neighbours, total, crossing, due,
        np.empty((changes + enough, 2), np.int64), np.array([0, enough]), np.arange(blocks),
        np.ones(count, np.bool_), np.empty((blocks, 2), np.int64),
    )  # fmt: skip


# The search, compiled: offsets for all blocks below a capacity, or none. Frames on a stack stand
# for the recursion: each places one block after another of its part of time and opens a frame for
# what is left. Where a part falls into pieces, the first is searched at once and the others wait in
# a list; a piece without a packing sends the search straight back to the frame that made the
# pieces. Nothing calls itself, so that Numba can keep what it compiled on disk. What is cut off,
# and why, stands with each function.


#: What a search ends with.
NONE, FOUND, CUT_SHORT = 0, 1, 2
_NEVER = np.int64(1) << 61

# Fields of a frame. Its blocks are items [LOW_ITEM, HIGH_ITEM), its part of time is sections
# [BEGIN, END). It places nothing before (SINCE, SINCE_RANK), and has tried up to (TRIED,
# TRIED_RANK). At TRAIL its part of the undo log begins; WAITING is the first of the pieces that
# come after it, and PIECES their number. A failure goes back to the frame CAUSE. KEY identifies
# what is left.
LOW_ITEM, HIGH_ITEM, BEGIN, END, SINCE, SINCE_RANK, TRIED, TRIED_RANK, TRAIL = range(9)
WAITING, PIECES, CAUSE, KEY, FIELDS = range(9, 14)
#: Two primes below 2**31: what is left of a search is identified by a sum modulo both.
_PRIMES = (2147483647, 2147483629)


@compiled
def search(sections, board, rank, failed, limits):
    """(how it ended, blocks tried): a depth-first search for offsets below a capacity.

    Args:
        rank: place of each block in the fixed order.
        failed: keys of what could not be packed within this capacity, whatever the order; more are
            added.
        limits: the capacity, and how many blocks may be tried.
    """
    capacity, nodes = limits
    blocks, count = len(sections.size), len(board.total)
    room = 2 * (blocks + count + 1)  # each frame places a block, or begins with a piece
    frames, pieces = np.empty((room, FIELDS), np.int64), np.empty((room, 6), np.int64)
    cuts = np.empty(room, np.int64)
    now, tried = 0, 0
    _open(frames[0], 0, blocks, 0, count)
    _remember(frames[0], board, -1, -1, 0)
    frames[0, KEY] = -1
    while True:
        frame = frames[now]
        block = _next(sections, board, rank, frame)
        if block < 0:
            failed[frame[KEY] % len(failed)] = frame[KEY]
            now = frame[CAUSE]
            if now < 0:
                return NONE, tried
            _undo(board, frames[now, TRAIL])
            continue
        if tried >= nodes:
            return CUT_SHORT, tried
        tried += 1
        frame[TRIED], frame[TRIED_RANK] = board.low[block], rank[block]
        _place(sections, board, block, capacity)
        if not _may_fit(sections, board, rank, frame, capacity):
            _undo(board, frame[TRAIL])
            continue
        first = _sorted_out(board, frame[LOW_ITEM], frame[HIGH_ITEM])
        borders = _borders(sections, board, block, frame, cuts)
        waiting, made = frame[WAITING], frame[PIECES]
        if borders == 1 and first < frame[HIGH_ITEM]:
            _open(frames[now + 1], first, frame[HIGH_ITEM], frame[BEGIN], frame[END])
            cause = now
        else:
            made, waiting = _pieces(sections, board, frame, (first, now), (cuts, borders, pieces))
            if waiting < 0:
                return FOUND, tried
            piece = pieces[waiting]
            _open(frames[now + 1], piece[0], piece[1], piece[2], piece[3])
            cause, waiting = piece[4], piece[5]
        after = frames[now + 1]
        after[SINCE], after[SINCE_RANK] = frames[cause, TRIED], frames[cause, TRIED_RANK]
        _remember(after, board, cause, waiting, made)
        after[KEY] = _key(sections, board, rank, after)
        if failed[after[KEY] % len(failed)] == after[KEY]:
            now = cause
            _undo(board, frames[now, TRAIL])
        else:
            now += 1


@inner
def _open(frame, low_item, high_item, begin, end):
    """A frame that has tried nothing."""
    frame[LOW_ITEM], frame[HIGH_ITEM], frame[BEGIN], frame[END] = low_item, high_item, begin, end
    frame[SINCE], frame[SINCE_RANK], frame[TRIED], frame[TRIED_RANK] = 0, 0, -1, -1


@inner
def _remember(frame, board, cause, waiting, made):
    """Where the search goes back to, and what it finds there."""
    frame[TRAIL], frame[CAUSE] = board.reached[0], cause
    frame[WAITING], frame[PIECES] = waiting, made


@inner
def _key(sections, board, rank, frame):
    """A number for what is left of a part: its blocks, their lows, and which were passed over.

    Two states differ by chance in it, except for one in 2**61. Twins count alike.
    """
    one = two = 0
    for at in range(frame[LOW_ITEM], frame[HIGH_ITEM]):
        block = board.items[at]
        low = 2 * board.low[block]
        if _is_before(board, rank, block, frame[SINCE], frame[SINCE_RANK]):
            low += 1
        one += sections.mark[block, 0] * (low % _PRIMES[0]) % _PRIMES[0]
        two += sections.mark[block, 1] * (low % _PRIMES[1]) % _PRIMES[1]
    return (one % _PRIMES[0] << 31) + two % _PRIMES[1]


@inner
def _set(board, place, value):
    reached = board.reached[0]
    board.trail[reached, 0], board.trail[reached, 1] = place, board.values[place]
    board.values[place] = value
    board.reached[0] = reached + 1


@inner
def _undo(board, reached):
    """Puts back what was changed since the trail was so long."""
    for at in range(board.reached[0] - 1, reached - 1, -1):
        board.values[board.trail[at, 0]] = board.trail[at, 1]
    board.reached[0] = reached


@inner
def _next(sections, board, rank, frame):
    """The block to try: the lowest, of equals the first in rank, after what was tried; -1: none.

    No block is placed where another would fit below it (dominance), nor before what was placed last
    (canonical), nor before its twin.
    """
    least_top = _NEVER
    for at in range(frame[LOW_ITEM], frame[HIGH_ITEM]):
        block = board.items[at]
        least_top = min(least_top, board.low[block] + sections.size[block])
    found, best, best_rank = -1, least_top, 0
    for at in range(frame[LOW_ITEM], frame[HIGH_ITEM]):
        block = board.items[at]
        low, own = board.low[block], rank[block]
        if low > best or (low == best and (found < 0 or own > best_rank)):
            continue
        if _is_before(board, rank, block, frame[SINCE], frame[SINCE_RANK]):
            continue
        if low < frame[TRIED] or (low == frame[TRIED] and own <= frame[TRIED_RANK]):
            continue
        twin = sections.twin[block]
        if twin >= 0 and board.offset[twin] < 0:
            continue
        found, best, best_rank = block, low, own
    return found


@inner
def _place(sections, board, block, capacity):
    """Places a block at its low, and with it those that are then alone with what is placed."""
    blocks = len(sections.size)
    top = board.low[block] + sections.size[block]
    _settle(sections, board, block)
    for at in range(sections.near_start[block], sections.near_start[block + 1]):
        other = sections.near[at]
        if board.offset[other] >= 0:
            continue
        _set(board, 2 * blocks + other, board.neighbours[other] - 1)
        if board.low[other] < top:
            _set(board, blocks + other, top)
            if board.due[other] < top:
                _set(board, len(board.values) - blocks + other, top)
            _mark(sections, board, other)
    for at in range(sections.near_start[block], sections.near_start[block + 1]):
        other = sections.near[at]
        alone = board.offset[other] < 0 and board.neighbours[other] == 0
        if alone and board.low[other] + sections.size[other] <= capacity:
            _settle(sections, board, other)


@inner
def _settle(sections, board, block):
    """Takes a block out of what is left."""
    blocks, count = len(sections.size), len(board.total)
    _set(board, block, board.low[block])
    for at in range(sections.own_start[block], sections.own_start[block + 1]):
        section = sections.own[at]
        _set(board, 3 * blocks + section, board.total[section] - sections.size[block])
        board.stale[section] = True
    for section in range(sections.first[block], sections.last[block]):
        _set(board, 3 * blocks + count + section, board.crossing[section] - 1)


@inner
def _mark(sections, board, block):
    """The bounds of a block's sections have to be looked at again."""
    for at in range(sections.own_start[block], sections.own_start[block + 1]):
        board.stale[sections.own[at]] = True


@inner
def _may_fit(sections, board, rank, frame, capacity):
    """Whether each block left can have an offset, and each section holds its blocks.

    What one section says of a block is looked at in its other sections, until nothing new is said.
    """
    possible = _find_due(sections, board, rank, frame)
    again = True
    while again:
        again = False
        for section in range(frame[BEGIN], frame[END]):
            if board.stale[section]:
                board.stale[section] = False
                if possible and board.total[section]:
                    possible = _falls_in_place(sections, board, section, capacity)
                    again = True
    return possible


@inner
def _find_due(sections, board, rank, frame):
    """Raises the dues of blocks that were passed over; whether all can still be placed.

    A block at or above what was placed last may come next, at its low. One that was passed over
    has to be raised by another block left, which must lie below its top.
    """
    for at in range(frame[LOW_ITEM], frame[HIGH_ITEM]):
        block = board.items[at]
        if board.offset[block] >= 0:
            continue
        if _is_before(board, rank, block, frame[TRIED], frame[TRIED_RANK]):
            due = _raised(sections, board, block)
            if due == _NEVER:
                return False
            _not_before(sections, board, block, due)
    return True


@inner
def _not_before(sections, board, block, due):
    """A block lies at `due` or above. While the trail is full that is forgotten."""
    if due > board.due[block] and board.reached[0] < board.reached[1]:
        _set(board, len(board.values) - len(sections.size) + block, due)
        _mark(sections, board, block)


@inner
def _is_before(board, rank, block, low, since_rank):
    own = board.low[block]
    return own < low or (own == low and rank[block] < since_rank)


@inner
def _raised(sections, board, block):
    """The least top of the blocks left that can raise one that was passed over."""
    top, due = board.low[block] + sections.size[block], _NEVER
    for at in range(sections.near_start[block], sections.near_start[block + 1]):
        other = sections.near[at]
        if board.offset[other] < 0 and board.due[other] < top:
            due = min(due, board.due[other] + sections.size[other])
    return due


@inner
def _falls_in_place(sections, board, section, capacity):
    """Whether the blocks left of a section fit, each at or above its due.

    One upon the other in the order of their dues they reach least high: what one machine needs for
    jobs with release dates. If only one of them can be the lowest, all others know so.
    """
    first, second, last, count, lowest = _NEVER, _NEVER, np.int64(0), 0, -1
    for at in range(sections.held_start[section], sections.held_start[section + 1]):
        block = sections.held[at]
        if board.offset[block] < 0:
            due = board.due[block]
            board.falling[count, 0], board.falling[count, 1] = due, sections.size[block]
            count += 1
            last = max(last, due)
            if due < first:
                first, second, lowest = due, first, block
            elif due < second:
                second = due
    total = board.total[section]
    if last + total <= capacity:
        return True
    if first + total > capacity or _height(board.falling, count) > capacity:
        return False
    if second + total > capacity:
        _is_lowest(sections, board, lowest, capacity - total)
    return True


@inner
def _height(falling, count):
    """How high blocks reach that fall in the order of their dues."""
    for at in range(1, count):
        due, size, place = falling[at, 0], falling[at, 1], at
        while place and falling[place - 1, 0] > due:
            falling[place, 0], falling[place, 1] = falling[place - 1, 0], falling[place - 1, 1]
            place -= 1
        falling[place, 0], falling[place, 1] = due, size
    top = np.int64(0)
    for at in range(count):
        top = max(top, falling[at, 0]) + falling[at, 1]
    return top


@inner
def _is_lowest(sections, board, block, latest):
    """A block lies at `latest` or below: what does not fit under it lies above it."""
    top = board.due[block] + sections.size[block]
    for at in range(sections.near_start[block], sections.near_start[block + 1]):
        other = sections.near[at]
        if board.offset[other] < 0 and board.due[other] + sections.size[other] > latest:
            _not_before(sections, board, other, top)


@inner
def _sorted_out(board, low_item, high_item):
    """Puts the placed blocks of a frame before those left; where these begin."""
    first = low_item
    for at in range(low_item, high_item):
        block = board.items[at]
        if board.offset[block] >= 0:
            board.items[at], board.items[first] = board.items[first], block
            first += 1
    return first


@inner
def _borders(sections, board, block, frame, cuts):
    """Where the pieces end into which a part falls; how many they are."""
    found = 0
    for section in range(sections.first[block], sections.last[block]):
        if not board.crossing[section]:
            cuts[found] = section + 1
            found += 1
    cuts[found] = frame[END]
    return found + 1


@inner
def _pieces(sections, board, frame, place, room):
    """Puts pieces with blocks before those that wait, the smallest first; (how many, the first).

    Args:
        place: places of the first block left among the items, and of the frame on the stack.
        room: where the part is cut, into how many, and the list of pieces.
    """
    (first, now), (cuts, count, pieces) = place, room
    start = made = frame[PIECES]
    begin = frame[BEGIN]
    for at in range(count):
        behind = first
        for item in range(first, frame[HIGH_ITEM]):
            block = board.items[item]
            if sections.last[block] < cuts[at]:
                board.items[item], board.items[behind] = board.items[behind], block
                behind += 1
        if behind > first:
            row = made
            while row > start and pieces[row - 1, 1] - pieces[row - 1, 0] < behind - first:
                pieces[row] = pieces[row - 1]
                row -= 1
            piece = pieces[row]
            piece[0], piece[1], piece[2], piece[3], piece[4] = first, behind, begin, cuts[at], now
            made += 1
        first, begin = behind, cuts[at]
    waiting = frame[WAITING]
    for row in range(start, made):
        pieces[row, 5] = waiting
        waiting = row
    return made, waiting
