"""Moves of the searches over what is kept from call to call, compiled.

A move turns gaps: where a value is there between two runs that touch it, it dies after the first of
them, and where it is not, it stays for the second. It turns the gap of one value, or of two or
three that have a gap at the same call, among them some that are computed from the first one, or
from which it is. Whether a move is taken is for a search to say, and one that is not is undone.
Source: ours. Read next: `keep_or_recompute.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.anneal import draw
from ooctrain.sched.search.jit import inner

#: Of eight moves three turn one gap, three turn two, and the others three.
ONE, TWO = 3, 6
#: How often a partner is drawn at most.
TRIES = 3
#: Gaps that a move turns at most.
MOST = 3


class Turned(NamedTuple):
    """What a move has changed: the columns, what was wanted of them, and, in `span`, the first and
    the last call concerned.
    """

    columns: np.ndarray
    before: np.ndarray
    span: np.ndarray


@inner
def nothing_turned(keeping):
    """Room for what moves of a keeping change."""
    rows = keeping.wanted.shape[0]
    return Turned(np.empty(MOST, np.int64), np.empty((MOST, rows), np.int8), np.empty(2, np.int64))


@inner
def turn_gap(tables, keeping, own, at):
    """Turns the gap of a column at a call.

    Returns:
        (the first, the last call as which begins it is wanted or no longer); (0, -1): there is no
        gap, as nothing reads the column again.
    """
    there, touched = keeping.there, keeping.touched
    calls, kept = touched.shape[0], there[at, own]
    first = last = at
    while (
        first > tables.first[own]
        and not touched[first - 1, own]
        and there[first - 1, own] == kept
    ):  # fmt: skip
        first -= 1
    while last < min(tables.end[own], calls) and not touched[last, own]:
        last += 1
    if not kept and (last == calls or not touched[last, own]):
        return 0, -1
    keeping.wanted[first : last + 1, own] = not kept
    return first, last


@inner
def first_gap(state, tables, keeping):
    """(state, a column, a call as which begins it is of use): any, or, every other time, a column
    that is computed again for the call.
    """
    durations, columns = tables.step.duration_ns, tables.size.size
    state, own = draw(state, columns)
    state, any_one = draw(state, 2)
    state, more = draw(state, max(1, tables.end[own] - tables.first[own] + 1))
    at = tables.first[own] + more
    if any_one:
        return state, own, at
    state, call = draw(state, durations.size)
    for _ in range(durations.size):
        if keeping.time_ns[call] > durations[call]:
            break
        call = (call + 1) % durations.size
    for other in range(own, own + columns):
        again = other % columns
        if (
            keeping.touched[call, again]
            and not keeping.there[call, again]
            and tables.first[again] <= call <= tables.end[again]
        ):  # fmt: skip
            return state, again, call
    return state, own, at


@inner
def partner(state, tables, keeping, own, at):
    """(state, another column): every other time one near the first; rather one of which the
    opposite is true: it is there, or is not.
    """
    near_at, near = tables.near_at[own], tables.near_at[own + 1] - tables.near_at[own]
    other = own
    for _ in range(TRIES):
        state, how = draw(state, 2)
        state, drawn = draw(state, near if how and near else tables.size.size)
        other = tables.near[near_at + drawn] if how and near else drawn
        if keeping.there[at, other] != keeping.there[at, own]:
            break
    return state, other


@inner
def turn_gaps(state, tables, keeping, turned):
    """Turns up to three gaps at one call; returns the state and how many columns have changed."""
    state, own, at = first_gap(state, tables, keeping)
    state, kind = draw(state, 8)
    turned.span[0], turned.span[1] = keeping.wanted.shape[0], -1
    count, other = 0, own
    for number in range(1 if kind < ONE else 2 if kind < TWO else MOST):
        if number:
            state, other = partner(state, tables, keeping, own, at)
        fresh = tables.first[other] <= at <= tables.end[other]
        for column in turned.columns[:count]:
            fresh = fresh and column != other
        if not fresh:
            continue
        turned.columns[count] = other
        turned.before[count, :] = keeping.wanted[:, other]
        first, last = turn_gap(tables, keeping, other, at)
        if last >= first:
            turned.span[0] = min(turned.span[0], first)
            turned.span[1] = max(turned.span[1], last)
            count += 1
        elif not number:
            break
    return state, count


@inner
def undo(keeping, turned, count):
    """Turns back the gaps of a move that has changed `count` columns."""
    for which in range(count):
        keeping.wanted[:, turned.columns[which]] = turned.before[which]
