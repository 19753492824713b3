"""A step as a table of what is kept from call to call, whose runs follow from one compiled walk.

A `Keeping` says of each value, as each call begins, whether it is wanted there if it is there by
then. A call with a missing source has it computed again first, depth first, as in
`sched/planning/rematerialise.py`; a value that is not wanted dies when it has been read for this
call. So every list without copies in which values come back just before they are read is a keeping,
however often a value comes back and however long it then stays. Searches look up `KeptTables`, made
once for a question, and change a keeping by moves (`turn_gaps`). Source: ours; the rows of
Checkmate's S (Jain et al., MLSys 2020), read as wishes. Read next: `keep_or_recompute.py`,
`keep_offload_or_recompute.py`, the two searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ooctrain.sched.planning.question import Question
from ooctrain.sched.search.anneal import draw
from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.search.tables import COMPUTED, INPUT, Tables, tables_of
from ooctrain.step.trace import Call, Trace

# The walk. A call's part looks at nothing but what is there as it begins and what is wanted as it
# ends: after a change the walk begins at the first call concerned and ends where all is as before.


class Keeping(NamedTuple):
    """What is kept, and what comes of it; rows belong to calls of the trace.

    Args:
        wanted: whether a column is kept as call k begins, if it is there; a row more than calls.
        there: whether it is there.
        held: bytes of those that are.
        touched: whether a run before call k + 1, and not before call k, reads or writes it.
        time_ns: duration of these runs.
    """

    wanted: np.ndarray
    there: np.ndarray
    held: np.ndarray
    touched: np.ndarray
    time_ns: np.ndarray


class WalkPlace(NamedTuple):
    """Where a walk is, and what it works with.

    Args:
        there: columns that are there, in the order of runs alone.
        room: columns that take room.
        left: how many runs for the same call are still to read a column.
        stack: values that are to come back.
        runs: for the call.
        held: one number: bytes of the columns that take room.
    """

    there: np.ndarray
    room: np.ndarray
    left: np.ndarray
    stack: np.ndarray
    runs: np.ndarray
    held: np.ndarray


def beginning(tables: KeptTables) -> WalkPlace:
    """The beginning of a step: no column is there."""
    t = tables.step
    columns, calls = tables.size.size, t.duration_ns.size
    return WalkPlace(
        np.zeros(columns, np.int8), np.zeros(columns, np.int8), np.zeros(columns, np.int64),
        np.empty(t.ins.size + columns + 1, np.int64), np.empty(calls + 1, np.int64),
        np.zeros(1, np.int64),
    )  # fmt: skip


@inner
def runs_for(tables, call, place):
    """How many runs a call takes, itself the last; -1: a source cannot be computed. They are
    written into the place, with what is there after them.
    """
    t, column, there, stack = tables.step, tables.column, place.there, place.stack
    count, depth = 0, 1
    stack[0] = ~call
    while depth:
        value = stack[depth - 1]
        if value >= 0 and there[column[value]]:
            depth -= 1
            continue
        running = ~value if value < 0 else t.producer[value]
        if count == place.runs.size or (value >= 0 and not t.pure[running]):
            return -1
        missing = 0
        for at in range(t.ins_at[running], t.ins_at[running + 1]):
            source = t.ins[at]
            if column[source] < 0:
                if tables.until[source] < call:
                    return -1
            elif not there[column[source]]:
                if depth + missing == stack.size:
                    return -1
                stack[depth + missing] = source
                missing += 1
        depth += missing
        if missing:
            continue
        depth -= 1
        place.runs[count] = running
        count += 1
        for at in range(t.outs_at[running], t.outs_at[running + 1]):
            if column[t.outs[at]] >= 0:
                there[column[t.outs[at]]] = 1
        for at in range(t.outs_at[running], t.outs_at[running + 1]):
            source = t.reused[t.outs[at]]
            if source >= 0 and column[source] >= 0:
                there[column[source]] = 0
    return count


@compiled
def walk_call(tables, call, wanted, touched, place):
    """The runs for one call.

    Args:
        wanted: what is kept as the next call begins.
        touched: row of this call, all 0; it is written.

    Returns:
        (time in ns, bytes at the peak, how many runs), the time -1 if a source cannot be computed.
    """
    t, column, size = tables.step, tables.column, tables.size
    room, left, held = place.room, place.left, place.held[0]
    count = runs_for(tables, call, place)
    if count < 0:
        return -1, 0, 0
    time = peak = 0
    for run in place.runs[:count]:
        time += t.duration_ns[run]
        for at in range(t.ins_at[run], t.ins_at[run + 1]):
            if column[t.ins[at]] >= 0:
                left[column[t.ins[at]]] += 1
    for run in place.runs[:count]:
        claim = tables.claim[run]
        for at in range(t.outs_at[run], t.outs_at[run + 1]):
            out = t.outs[at]
            if column[out] >= 0 and t.reused[out] < 0:
                claim += size[column[out]]
        peak = max(peak, tables.base[call] + held + claim)
        for at in range(t.outs_at[run], t.outs_at[run + 1]):
            source = t.reused[t.outs[at]]
            if source >= 0 and column[source] >= 0 and room[column[source]]:
                room[column[source]] = 0
                held -= size[column[source]]
            own = column[t.outs[at]]
            if own >= 0:
                touched[own] = 1
                if not room[own] and (wanted[own] or left[own]):
                    room[own] = 1
                    held += size[own]
        for at in range(t.ins_at[run], t.ins_at[run + 1]):
            own = column[t.ins[at]]
            if own >= 0:
                touched[own] = 1
                left[own] -= 1
                if left[own] == 0 and room[own] and not wanted[own]:
                    room[own] = 0
                    held -= size[own]
    for own in range(size.size):
        if room[own] and not wanted[own]:
            room[own] = 0
            held -= size[own]
        place.there[own] = room[own]
    place.held[0] = held
    return time, peak, count


@compiled
def walk(tables, span, known, found, place):
    """Walks from one call on until all is as in `known`, but to `last` at least.

    Args:
        span: (the call, `last`).
        known: Keeping, of which `wanted` is new, the rest is not.
        found: Keeping, whose rows behind `first` are written.

    Returns:
        The call before which the walk ended, or -1: the step does not fit, or a source cannot be
        computed.
    """
    t, (first, last) = tables.step, span
    place.there[:] = known.there[first]
    place.room[:] = known.there[first]
    place.left[:] = 0
    place.held[0] = known.held[first]
    for call in range(first, t.duration_ns.size):
        found.touched[call, :] = 0
        time, peak, _ = walk_call(tables, call, known.wanted[call + 1], found.touched[call], place)
        if time < 0 or peak > tables.budget_bytes:
            return -1
        found.time_ns[call] = time
        found.there[call + 1, :] = place.room
        found.held[call + 1] = place.held[0]
        if call + 1 >= last and place.held[0] == known.held[call + 1]:
            same = True
            for own in range(place.room.size):
                same = same and place.room[own] == known.there[call + 1, own]
            if same:
                return call + 1
    return t.duration_ns.size


# Moves turn gaps: where a value is there between two runs that touch it, it dies after the first of
# them, and where it is not, it stays for the second. A move turns the gap of one value, or of two
# or three that have a gap at the same call, among them some that are computed from the first one,
# or from which it is. The search decides whether a move is taken; one that is not is undone.


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


# What a walk looks up. A value that may be computed again has a column. Any other has none, since
# it stays as long as it is of use: it counts among the bytes that are there as a call begins, or
# that the call claims. For each column stand the calls from which, and up to which, it is of use,
# and its neighbours: the columns that are computed from it, or from which it is.


class KeptTables(NamedTuple):
    """What a walk looks up.

    Args:
        values: those that may be computed again, a column for each, and are not too small to
            matter.
        column: column of each variable; -1: it has none, and stays as long as it is of use.
        until: the last call for which a variable without a column can be read.
        size: bytes of each column.
        claim: bytes of each call: workspace, inputs, and outputs without a column.
        base: bytes of variables without a column as each call begins.
        first, end: for each column, the first and the last call at whose begin it is of use.
        near, near_at: columns that are computed from column c, or from which it is, by a call or by
            two: `near[near_at[c] : near_at[c + 1]]`.
    """

    step: Tables
    budget_bytes: int
    values: np.ndarray
    column: np.ndarray
    until: np.ndarray
    size: np.ndarray
    claim: np.ndarray
    base: np.ndarray
    first: np.ndarray
    end: np.ndarray
    near: np.ndarray
    near_at: np.ndarray


def _may_run(call: Call) -> bool:
    """Whether a call runs again here."""
    return call.pure and call.phase in ("forward", "loss")


def kept_tables(question: Question, small: float) -> KeptTables:
    """The tables of a question.

    Args:
        question: the host budget is not looked at.
        small: values of at most this share of the budget have no column; below 0: all have one.
    """
    trace = question.trace
    t = tables_of(trace, question.machine, question.granule)
    until, calls = _until(trace, t), len(trace.calls)
    values = [
        v for v, made in enumerate(trace.producer)
        if made is not None and _may_run(trace.calls[made]) and t.last_use[v] < calls
        and t.granted[v] > small * question.budget_bytes
    ]  # fmt: skip
    values.sort(key=lambda v: (trace.producer[v] or 0, v))
    column = np.full(len(trace.variables), -1, np.int64)
    column[values] = np.arange(len(values))
    for var, taker in trace.taker.items():
        if column[var] < 0:
            until[var] = min(until[var], taker)
    near = _near(trace, values)
    claim, base = _others(trace, t, column, until)
    return KeptTables(
        t, question.budget_bytes, _ints(values), column, _ints(until), t.granted[values],
        claim, base, t.producer[values] + 1, _ints([until[v] for v in values]),
        _ints([column[v] for row in near for v in row]),
        _ints([0, *accumulate(len(row) for row in near)]),
    )  # fmt: skip


def _until(trace: Trace, t: Tables) -> list[int]:
    """The last call for which each variable may be of use."""
    until = t.last_use.tolist()
    for call in reversed(trace.calls):
        if _may_run(call):
            last = max((until[out] for out in call.outs), default=-1)
            for var in call.ins:
                until[var] = max(until[var], last)
    return [len(trace.calls) if t.origin[v] == INPUT else last for v, last in enumerate(until)]


def _others(
    trace: Trace, t: Tables, column: np.ndarray, until: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """What each call claims, and what is there as it begins, of variables without a column."""
    claim, base = t.workspace.copy(), np.zeros_like(t.workspace)
    for var in np.flatnonzero(column < 0).tolist():
        size_bytes, made = t.granted[var], trace.producer[var]
        if t.origin[var] == INPUT:
            claim[list(trace.readers[var])] += size_bytes
            continue
        if t.reused[var] < 0 and made is not None:
            claim[made] += size_bytes
        if t.last_use[var] >= 0:
            first = 0 if t.origin[var] != COMPUTED or made is None else made + 1
            base[first : until[var] + 1] += size_bytes
    return claim, base


def _near(trace: Trace, values: Sequence[int]) -> list[list[int]]:
    """Of each value those that are computed from it, or from which it is, by a call or by two."""
    near: dict[int, set[int]] = {v: set() for v in values}
    for var in values:
        outs = {out for call in trace.readers[var] for out in trace.calls[call].outs}
        outs |= {o for v in outs for call in trace.readers[v] for o in trace.calls[call].outs}
        for out in outs.intersection(values):
            near[var].add(out)
            near[out].add(var)
    return [sorted(near[v].difference([v])) for v in values]


def _ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int64)
