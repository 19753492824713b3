"""Simulated annealing over what a step without copies keeps from call to call, compiled.

A move turns gaps: where a value is there between two runs that touch it, it dies after the first of
them, and where it is not, it stays for the second. It turns the gap of one value, or of two or
three that have a gap at the same call, among them some that are computed from the first one, or
from which it is. What does not fit is refused; else the time of all runs decides. A move is
evaluated by walking the calls between its gaps (`kept_walk.py`), a tenth of the cost of an
evaluation in `anneal.py`. Source: ours; Kirkpatrick, Gelatt and Vecchi (1983) for annealing. Read
next: `kept.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.anneal import draw
from ooctrain.sched.search.jit import compiled
from ooctrain.sched.search.kept_walk import Keeping, walk

#: Of eight moves three turn one gap, three turn two, and the others three.
ONE, TWO = 3, 6
#: How often a partner is drawn at most.
TRIES = 3
#: Gaps that a move turns at most.
MOST = 3


class KeptAnnealing(NamedTuple):
    """Where a search stands.

    Args:
        keeping: the one from which the next move goes.
        best: `wanted` of the fastest met.
        best_ns: its time.
        random: state of the random numbers.
    """

    keeping: Keeping
    best: np.ndarray
    best_ns: int
    random: int


class Turned(NamedTuple):
    """What a move has changed: the columns, what was wanted of them, and, in `span`, the first and
    the last call concerned.
    """

    columns: np.ndarray
    before: np.ndarray
    span: np.ndarray


@compiled
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
    while last < min(tables.end[own], calls) and not (last < calls and touched[last, own]):
        last += 1
    if not kept and (last == calls or not touched[last, own]):
        return 0, -1
    keeping.wanted[first : last + 1, own] = not kept
    return first, last


@compiled
def where(state, tables, keeping):
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


@compiled
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


@compiled
def kept_move(state, tables, keeping, turned):
    """Turns up to three gaps at one call; returns the state and how many columns have changed."""
    state, own, at = where(state, tables, keeping)
    state, kind = draw(state, 8)
    turned.span[0], turned.span[1] = keeping.touched.shape[0] + 1, -1
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


@compiled
def anneal_kept(tables, start, cooling, place):
    """Some moves of a search.

    Args:
        start: KeptAnnealing so far; its keeping is changed.
        cooling: which of the search's moves they are.
        place: to work in.

    Returns:
        KeptAnnealing.
    """
    keeping, best, best_ns = start.keeping, start.best, start.best_ns
    found = Keeping(
        keeping.wanted, keeping.there.copy(), keeping.held.copy(), keeping.touched.copy(),
        keeping.time_ns.copy(),
    )  # fmt: skip
    rows = keeping.wanted.shape[0]
    turned = Turned(
        np.empty(MOST, np.int64), np.empty((MOST, rows), np.int8), np.empty(2, np.int64)
    )
    state, cost = np.uint64(start.random), keeping.time_ns.sum()
    for number in range(cooling.first, cooling.stop):
        state, count = kept_move(state, tables, keeping, turned)
        if not count:
            continue
        first = max(0, turned.span[0] - 1)
        stop = walk(tables, (first, turned.span[1]), keeping, found, place)
        more = 0
        for call in range(first, stop):
            more += found.time_ns[call] - keeping.time_ns[call]
        state, die = draw(state, 1 << 30)
        temperature = cooling.heat * (1 - number / cooling.total) ** 2 * max(cost, 1)
        if stop < 0 or (more > 0 and die >= (1 << 30) * np.exp(-more / max(temperature, 1e-9))):
            for which in range(count):
                keeping.wanted[:, turned.columns[which]] = turned.before[which]
            continue
        cost += more
        for call in range(first, stop):
            keeping.time_ns[call] = found.time_ns[call]
            keeping.touched[call, :] = found.touched[call]
            keeping.there[call + 1, :] = found.there[call + 1]
            keeping.held[call + 1] = found.held[call + 1]
        if cost < best_ns:
            best, best_ns = keeping.wanted.copy(), cost
    return KeptAnnealing(keeping, best, best_ns, np.int64(state))  # type: ignore[arg-type]
