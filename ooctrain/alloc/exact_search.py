"""The search of exact packing, compiled: places for all blocks below a capacity, or none.

A board holds what changes while blocks are placed, and a trail of what each value was before, so
that going back is one loop. Frames on a stack stand for the recursion: each places one block after
another of its part of time and opens a frame for what is left. Where a part falls into pieces,
the first is searched at once and the others wait in a list; a piece without a packing sends the
search straight back to the frame that made the pieces. Nothing calls itself, so that Numba can keep
what it compiled on disk. What is cut off, and why, stands with each function; the ideas are told in
`exact_places.py`, which asks. Source: M. Moffitt, "MiniMalloc", ASPLOS 2023; what is ours is said
there, too. Read next: `packing_board.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.sched.search.jit import compiled, inner

#: What a search ends with.
NONE, FOUND, CUT_SHORT = 0, 1, 2
_NEVER = np.int64(1) << 61

# Fields of a frame. Its blocks are items [LOW_ITEM, HIGH_ITEM), its part of time is sections
# [BEGIN, END). It places nothing before (SINCE, SINCE_RANK), and has tried up to (TRIED,
# TRIED_RANK). At TRAIL the trail began; WAITING is the first of the pieces that come after it, and
# PIECES how many there are in all. A failure goes back to the frame CAUSE. KEY tells what is left.
LOW_ITEM, HIGH_ITEM, BEGIN, END, SINCE, SINCE_RANK, TRIED, TRIED_RANK, TRAIL = range(9)
WAITING, PIECES, CAUSE, KEY, FIELDS = range(9, 14)
#: Two primes below 2**31: what is left of a search is told by a sum modulo both.
_PRIMES = (2147483647, 2147483629)


@compiled
def search(sections, board, rank, failed, limits):
    """(how it ended, blocks tried): a depth-first search for offsets below a capacity.

    Args:
        rank: of each block in the fixed order.
        failed: keys of what could not be packed within this capacity, whatever the order; more are
            added.
        limits: the capacity, and how many blocks may be tried.
    """
    capacity, nodes = limits
    blocks, count = len(sections.size), len(board.total)
    frames = np.empty((2 * blocks + count + 2, FIELDS), np.int64)
    pieces = np.empty((2 * blocks + 2 * count + 2, 6), np.int64)
    cuts = np.empty(count + 2, np.int64)
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
            room = cuts, borders, pieces
            made, waiting = _pieces(sections, board, frame, (first, now), room)
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
        _set(board, 2 * blocks + other, board.beside[other] - 1)
        if board.low[other] < top:
            _set(board, blocks + other, top)
            if board.due[other] < top:
                _set(board, len(board.values) - blocks + other, top)
            _mark(sections, board, other)
    for at in range(sections.near_start[block], sections.near_start[block + 1]):
        other = sections.near[at]
        alone = board.offset[other] < 0 and board.beside[other] == 0
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
        place: of the first block left among the items, and of the frame on the stack.
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
