"""One walk over a step that keeps values from call to call, and copies nothing, compiled.

A `Keeping` says of each value, as each call begins, whether it is wanted there if it is there by
then. A call that lacks a source has it computed again first, depth first, as in
`sched/planning/rematerialise.py`; a value that is not wanted dies when it has been read for this
call. So every list without copies in which values come back just before they are read is a keeping,
however often a value comes back and however long it then stays. The walk of a call looks at nothing
but what is there as it begins and what is wanted as it ends: after a change the walk begins at the
first call concerned and ends where all is as before. Source: ours; the rows of Checkmate's S (Jain
et al., MLSys 2020), read as wishes. Read next: `kept_moves.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.search.kept_tables import KeptTables


class Keeping(NamedTuple):
    """What is kept, and what comes of it; rows belong to calls of the trace.

    Args:
        wanted: whether a column is kept as call k begins, if it is there; a row more than calls.
        there: whether it is there.
        held: bytes of those that are.
        touched: whether a run before call k + 1, and not before call k, reads or writes it.
        time_ns: of these runs.
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
    """How many runs a call takes, itself the last; -1: it lacks what cannot be had. They are
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
        lacking = 0
        for at in range(t.ins_at[running], t.ins_at[running + 1]):
            source = t.ins[at]
            if column[source] < 0:
                if tables.until[source] < call:
                    return -1
            elif not there[column[source]]:
                if depth + lacking == stack.size:
                    return -1
                stack[depth + lacking] = source
                lacking += 1
        depth += lacking
        if lacking:
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
        touched: of this call, all 0; it is written.

    Returns:
        (time in ns, bytes at the peak, how many runs), the time -1 if it lacks what cannot be had.
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
        The call before which the walk ended, or -1: the step does not fit, or lacks something.
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
