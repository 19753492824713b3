"""Moves of the search: a value gets a fate for all of its gaps, or single gaps are turned.

A *fate* is the same for all the times that a value comes back after the forward pass: it is kept,
dropped once, or dropped again whenever the next call does not read it. A *gap* lies between two
runs that touch a value: where the value is there, it dies after the first of them, and where it is
not, it stays for the second. Moves over fates cross a large space in few steps; moves over gaps
find what is left. A third kind says of a large value that it stays on the device while others can
leave. Each move is written down, so that one which is not taken is taken back. Source: ours. Read
next: `anneal.py`, which decides what is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.search.kept import copy, is_wanted, want

#: Fates. UNREAD: dropped whenever the next call does not read it.
KEEP, DROP, UNREAD = 0, 1, 2
#: Columns that a move changes at most; how many neighbours get one fate at most, of which two are
#: the least.
MOST, NEIGHBOURS = 8, 6
#: Of eight moves of gaps three turn one gap, three turn two, and the others three.
ONE, TWO, THREE = 3, 6, 3
#: How often a partner is drawn at most.
TRIES = 3


class Field(NamedTuple):
    """What moves may change, and what they look up.

    Args:
        first, end: for each column the first and the last call at whose begin it is of use.
        middle: its last use in the forward pass.
        stop: where a fate ends: at its last use, or, if that is `middle`, at `end`.
        reads: for each column and call, whether the call reads it.
        places: columns that get fates.
        linked: pairs of those, of which the second is computed from the first, one or two calls
            later.
        turned: columns of which gaps are turned.
        near, near_at: of those that are computed from column c, or from which it is, by a call or
            by two: `near[near_at[c] : near_at[c + 1]]`.
        large_first, large_end: slots of values that can stay.
    """

    first: np.ndarray
    end: np.ndarray
    middle: np.ndarray
    stop: np.ndarray
    reads: np.ndarray
    places: np.ndarray
    linked: np.ndarray
    turned: np.ndarray
    near: np.ndarray
    near_at: np.ndarray
    large_first: np.ndarray
    large_end: np.ndarray


class Mix(NamedTuple):
    """How often each kind of move is made, as shares of their sum: a value stays or no longer; of
    two linked values the other is kept; neighbours, two values, or one get a fate; gaps are turned.
    """

    stays: int
    shifts: int
    neighbours: int
    pairs: int
    singles: int
    gaps: int


class MoveChange(NamedTuple):
    """What a move has changed.

    Args:
        columns, before: columns, in order, and what they were.
        numbers: how many columns; the first slot whose `stays` is the opposite now, and the one
            after the last.
    """

    columns: np.ndarray
    before: np.ndarray
    numbers: np.ndarray


def unchanged(rows: int) -> MoveChange:
    """Room for what moves change."""
    return MoveChange(
        np.zeros(MOST, np.int64), np.zeros((MOST, rows), np.int32), np.zeros(3, np.int64)
    )  # fmt: skip


@inner
def draw(state, below):
    """(next state, a number in [0, below)): splitmix64, so that a seed gives the same plan
    everywhere.
    """
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, np.int64((z >> np.uint64(11)) % np.uint64(below))


@compiled
def move(state, field, mix, kept, seen, change):
    """Makes a move of a kind that is drawn.

    Returns:
        (state, whether anything has changed).
    """
    change.numbers[:] = 0
    stays = mix.stays if field.large_first.size else 0
    shifts = mix.shifts if field.linked.shape[0] and not stays else 0
    places = field.places.size > 0
    neighbours, pairs = (mix.neighbours, mix.pairs) if places else (0, 0)
    singles = mix.singles if places else 0
    gaps = mix.gaps if field.turned.size else 0
    total = stays + shifts + neighbours + pairs + singles + gaps
    if total == 0:
        return state, False
    state, kind = draw(state, total)
    if kind < stays:
        state, place = draw(state, field.large_first.size)
        first, end = field.large_first[place], field.large_end[place]
        change.numbers[1], change.numbers[2] = first, end
        _turn_stays(kept, first, end)
        return state, True
    kind -= stays
    if kind < shifts:
        state = _shift(state, field, kept, change)
    elif kind < shifts + neighbours:
        state = _move_neighbours(state, field, kept, change)
    elif kind < shifts + neighbours + pairs + singles:
        for _ in range(2 if kind < shifts + neighbours + pairs else 1):
            state, place = draw(state, field.places.size)
            state, more = draw(state, 2)
            own = field.places[place]
            _give(field, kept, change, own, (_fate(field, kept, own) + 1 + more) % 3)
    else:
        state = _turn_gaps(state, field, kept, seen, change)
    return state, change.numbers[0] > 0


@compiled
def undo(kept, change):
    """Takes back the last move."""
    for which in range(change.numbers[0] - 1, -1, -1):
        copy(change.before[which], kept.until[change.columns[which]])
    _turn_stays(kept, change.numbers[1], change.numbers[2])


@inner
def _turn_stays(kept, first, end):
    for slot in range(first, end):
        kept.stays[slot] ^= 1


@inner
def _note(kept, change, own):
    """Writes down what a column is before it changes."""
    count = change.numbers[0]
    change.columns[count] = own
    copy(kept.until[own], change.before[count])
    change.numbers[0] = count + 1


# Fates.


@inner
def _fate(field, kept, own):
    """The fate that a column looks like just after the forward pass."""
    first = field.middle[own] + 1
    if is_wanted(kept, own, first):
        return KEEP
    return DROP if first < field.stop[own] and is_wanted(kept, own, first + 1) else UNREAD


@inner
def _give(field, kept, change, own, fate):
    """Gives a value a fate."""
    _note(kept, change, own)
    _set_fate(field, kept, own, fate)


@compiled
def give_all(field, kept, columns, fate):
    """Gives columns a fate."""
    for own in columns:
        _set_fate(field, kept, own, fate)


@inner
def _set_fate(field, kept, own, fate):
    """A value is kept from its last use in the forward pass on, or dropped."""
    first, last = field.middle[own] + 1, field.stop[own]
    want(kept, own, first, last, fate != UNREAD)
    if fate == DROP and not field.reads[own, first]:
        want(kept, own, first, first, False)
    if fate == UNREAD:
        for call in range(first, last + 1):
            if field.reads[own, call]:
                want(kept, own, call, call, True)


@inner
def _shift(state, field, kept, change):
    """Of two values, one computed from the other, the one that is kept is dropped, and the other is
    kept: what a chain is computed from moves along it. Where both are kept, or both dropped, one of
    them changes.
    """
    state, row = draw(state, field.linked.shape[0])
    state, drawn = draw(state, 4)
    source, out = field.linked[row, 0], field.linked[row, 1]
    of_source = _fate(field, kept, source) == KEEP
    of_out = _fate(field, kept, out) == KEEP
    dropped = DROP if drawn < 2 else UNREAD
    if of_source != of_out or drawn % 2:
        _give(field, kept, change, source, dropped if of_source else KEEP)
    if of_source != of_out or not drawn % 2:
        _give(field, kept, change, out, dropped if of_out else KEEP)
    return state


@inner
def _move_neighbours(state, field, kept, change):
    """Two to seven neighbours that are read after the forward pass get the same fate."""
    count = field.places.size
    state, start = draw(state, count)
    state, more = draw(state, NEIGHBOURS)
    state, fate = draw(state, 3)
    for place in range(start, min(count, start + 2 + more)):
        own = field.places[place]
        if field.reads[own, field.stop[own]]:
            _give(field, kept, change, own, fate)
    return state


# Gaps.


@inner
def turn_gap(field, kept, seen, own, at):
    """Turns the gap of a column at a call.

    Returns:
        Whether there is one: not if nothing reads the column again.
    """
    there, touched = seen.there[own], seen.touched[own]
    calls, is_there = seen.runs.size, there[at]
    first = last = at
    while first > field.first[own] and not touched[first - 1] and there[first - 1] == is_there:
        first -= 1
    while last < min(field.end[own], calls) and not touched[last]:
        last += 1
    if last == calls or not touched[last]:
        return False
    want(kept, own, first, last, not is_there)
    return True


@inner
def _first_gap(state, field, seen):
    """(state, a column, a call as which begins it is of use): any, or, every other time, a column
    that is computed again for the call.
    """
    calls, columns = seen.runs.size, field.turned.size
    state, which = draw(state, columns)
    own = field.turned[which]
    state, any_one = draw(state, 2)
    state, more = draw(state, max(1, field.end[own] - field.first[own] + 1))
    at = field.first[own] + more
    if any_one:
        return state, own, at
    state, call = draw(state, calls)
    for _ in range(calls):
        if seen.runs[call] > 1:
            break
        call = (call + 1) % calls
    for other in range(which, which + columns):
        again = field.turned[other % columns]
        if (
            seen.touched[again, call]
            and not seen.there[again, call]
            and field.first[again] <= call <= field.end[again]
        ):  # fmt: skip
            return state, again, call
    return state, own, at


@inner
def _partner(state, field, seen, own, at):
    """(state, another column): every other time one near the first; rather one of which the
    opposite is true: it is there, or is not.
    """
    near_at, near = field.near_at[own], field.near_at[own + 1] - field.near_at[own]
    other = own
    for _ in range(TRIES):
        state, how = draw(state, 2)
        state, drawn = draw(state, near if how and near else field.turned.size)
        other = field.near[near_at + drawn] if how and near else field.turned[drawn]
        if seen.there[other, at] != seen.there[own, at]:
            break
    return state, other


@inner
def _turn_gaps(state, field, kept, seen, change):
    """Turns up to three gaps at one call."""
    state, own, at = _first_gap(state, field, seen)
    state, kind = draw(state, 8)
    other = own
    for number in range(1 if kind < ONE else 2 if kind < TWO else THREE):
        if number:
            state, other = _partner(state, field, seen, own, at)
        fresh = field.first[other] <= at <= field.end[other]
        for column in change.columns[: change.numbers[0]]:
            fresh = fresh and column != other
        if not fresh:
            continue
        _note(kept, change, other)
        if not turn_gap(field, kept, seen, other, at):
            change.numbers[0] -= 1
            if not number:
                break
    return state
