"""From a choice of dropped values to runs, lives and gaps, in one compiled walk.

A choice gives a fate for the time after each call that touches a variable (a slot of the
`Tables`): `KEEP`, `DROP` or `DROP_UNREAD`. After the last such call a value dies unless it is
`HELD` as a source. Or `Wishes` say call by call what there is to be. The walk makes an
`ExpandedStep` of it: the runs, the bytes resident during each if nothing moves, and every gap
between two uses. A value is alive while it has an open life; a read of a value without one runs its
producer first. It is the compiled twin of `sched/planning/rematerialise.py`, of the lives in
`sched/planning/decisions.py` and of `sched/planning/residency.py`, to which tests hold it.
Read next: `evict.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled
from ooctrain.sched.search.tables import COMPUTED, INPUT, PERSISTENT

#: What is dropped is computed again for its next reader; then it stays, or it dies again as soon as
#: the next call does not read it.
KEEP, DROP, DROP_UNREAD = 0, 1, 2
#: After the last call that touches it: a value stays for those that run again.
HELD = 1
#: A search may not make a step longer than this many times its calls.
LONGEST = 6


class ExpandedStep(NamedTuple):
    """A step with its recomputations, by position in the runs.

    Args:
        ok: whether every value that is read could be computed.
        runs: calls.
        claim, end: bytes that a run claims, and those that its End releases.
        dead, deaths: lives that end with it and whose storage is not taken over: their bytes, and
            how many have any.
        resident: bytes on the device during it if nothing moves.
        start: bytes on the device before the first.
        gap_var, gap_life, gap_slot, gap_after, gap_before: gaps between uses, by their ends, then
            their beginnings, then by variable.
        life_first: for each life, the run that writes it; -1: there before the step.
    """

    ok: bool
    runs: np.ndarray
    claim: np.ndarray
    end: np.ndarray
    dead: np.ndarray
    deaths: np.ndarray
    resident: np.ndarray
    start: int
    gap_var: np.ndarray
    gap_life: np.ndarray
    gap_slot: np.ndarray
    gap_after: np.ndarray
    gap_before: np.ndarray
    life_first: np.ndarray


class Wishes(NamedTuple):
    """What there is to be, on the device or on the host, as each call begins.

    What has no column is there until nothing reads it any more, or its storage is taken over.

    Args:
        values: the variable of each column.
        wanted: whether a column stays as call k begins, if it is there; a row more than calls.
        there: whether it is there; written by the walk, as are the others below.
        touched: whether a run before call k + 1, and not before call k, reads or writes it.
        time_ns: of these runs.
    """

    values: np.ndarray
    wanted: np.ndarray
    there: np.ndarray
    touched: np.ndarray
    time_ns: np.ndarray


class Lives(NamedTuple):
    """What is alive when.

    Args:
        var: of each life its variable.
        first_alone, last: the first run during which it has its storage alone, the last one.
        still_open: whether the next step needs it.
        taken_over: whether an output takes its storage.
    """

    var: np.ndarray
    first_alone: np.ndarray
    last: np.ndarray
    still_open: np.ndarray
    taken_over: np.ndarray


@compiled
def expand(t, fate):
    """The step of a choice.

    Args:
        t: Tables.
        fate: int8 for each slot: KEEP, DROP or DROP_UNREAD; in the last one of a variable HELD or
            not.

    Cost: O(runs + uses), some 0.1 ms for 1000 calls.
    """
    none, nothing = np.empty(0, np.int64), np.empty((0, 0), np.int8)
    return _walked(t, fate, Wishes(none, nothing, nothing, nothing, none))


@compiled
def expand_wishes(t, wishes):
    """The step of wishes, of which `there`, `touched` and `time_ns` are written.

    Args:
        t: Tables.
        wishes: Wishes.

    Cost: O(runs + uses + calls x columns).
    """
    return _walked(t, np.empty(0, np.int8), wishes)


# One long function on purpose, like `play`: Numba counts every array that is handed to an inner
# function in and out at each call, and split by idea this walk took six times as long.
@compiled
def _walked(t, fate, wishes):
    """The step of fates, or, where there are any, of wishes."""
    calls, variables = t.duration_ns.size, t.granted.size
    most_runs = LONGEST * calls
    most_lives = variables + (t.outs.size + 1) * LONGEST
    most_gaps = (t.ins.size + 1) * LONGEST
    runs = np.empty(most_runs, np.int64)
    claim = np.zeros(most_runs, np.int64)
    end = np.zeros(most_runs, np.int64)
    scratch = np.zeros(most_runs, np.int64)
    life = np.full(variables, -1, np.int64)  # the open life of each variable
    slot = t.slot_at[:variables] - 1  # the slot in which each variable is, once it has been touched
    life_var = np.empty(most_lives, np.int64)
    life_first = np.empty(most_lives, np.int64)
    life_last = np.empty(most_lives, np.int64)
    takes_over = np.zeros(most_lives, np.bool_)
    taken_over = np.zeros(most_lives, np.bool_)
    gap_var = np.empty(most_gaps, np.int64)
    gap_life = np.empty(most_gaps, np.int64)
    gap_slot = np.empty(most_gaps, np.int64)
    gap_after = np.empty(most_gaps, np.int64)
    gap_before = np.empty(most_gaps, np.int64)
    revived = np.empty(variables, np.int64)
    is_revived = np.zeros(variables, np.bool_)
    stack = np.empty(t.ins.size + variables + 1, np.int64)
    count = lives = gaps = revivals = 0
    columns, there, touched = wishes.values.size, wishes.there, wishes.touched
    column = np.full(variables, -1, np.int64)
    for own in range(columns):
        column[wishes.values[own]] = own
    touched[:, :] = 0
    there[:, :] = 0
    living = np.empty(columns, np.int64)  # columns that are there, or were before this call
    is_living = np.zeros(columns, np.bool_)
    alive = 0
    wishes.time_ns[:] = 0
    ok = True
    start = 0

    for var in range(variables):
        if t.origin[var] != COMPUTED and t.last_use[var] >= 0:
            life[var] = lives
            life_var[lives], life_first[lives], life_last[lives] = var, -1, -1
            lives += 1
            if t.origin[var] == PERSISTENT:
                start += t.granted[var]

    for call in range(calls):
        # The call itself is the bottom of the stack, as ~call; above it values to be revived.
        depth = 1
        stack[0] = ~call
        while depth and ok:
            wanted = stack[depth - 1]
            if wanted >= 0 and life[wanted] >= 0:
                depth -= 1
                continue
            running = ~wanted if wanted < 0 else t.producer[wanted]
            if running < 0 or count == most_runs:
                ok = False
                break
            if wanted >= 0 and not t.pure[running]:
                ok = False
                break
            lacking = 0
            for place in range(t.ins_at[running], t.ins_at[running + 1]):
                source = t.ins[place]
                if life[source] < 0:
                    if depth + lacking >= stack.size:
                        ok = False
                        break
                    stack[depth + lacking] = source
                    lacking += 1
            if lacking:
                depth += lacking
                continue
            depth -= 1
            runs[count] = running
            for place in range(t.ins_at[running], t.ins_at[running + 1]):
                source = t.ins[place]
                own = life[source]
                last = life_last[own]
                waits = count - last > 1 or (last < 0 and t.origin[source] == INPUT)
                if (
                    waits
                    and t.movable[source]
                    and not (last < 0 and t.origin[source] == PERSISTENT)
                ):
                    at = gaps
                    while at and gap_before[at - 1] == count and (
                        gap_after[at - 1] > last
                        or (gap_after[at - 1] == last and gap_var[at - 1] > source)
                    ):  # fmt: skip
                        gap_var[at], gap_life[at] = gap_var[at - 1], gap_life[at - 1]
                        gap_slot[at] = gap_slot[at - 1]
                        gap_after[at], gap_before[at] = gap_after[at - 1], gap_before[at - 1]
                        at -= 1
                    gap_var[at], gap_life[at] = source, own
                    gap_slot[at] = max(slot[source], t.slot_at[source])
                    gap_after[at], gap_before[at] = last, count
                    gaps += 1
                life_last[own] = count
            claim[count] = end[count] = t.workspace[running]
            for place in range(t.outs_at[running], t.outs_at[running + 1]):
                out = t.outs[place]
                is_there = wanted >= 0 and life[out] >= 0
                source = t.reused[out]
                if source < 0:
                    claim[count] += t.granted[out]
                else:
                    taken_over[life[source]] = True
                if is_there:
                    end[count] += t.granted[out]
                    scratch[count] += 0 if source >= 0 else t.granted[out]
                else:
                    life_var[lives], life_first[lives], life_last[lives] = out, count, count
                    takes_over[lives] = source >= 0
                    if wanted >= 0 and not is_revived[out] and not columns:
                        is_revived[out] = True
                        revived[revivals] = out
                        revivals += 1
                    life[out] = lives
                    lives += 1
                    if columns and column[out] >= 0 and not is_living[column[out]]:
                        is_living[column[out]] = True
                        living[alive] = column[out]
                        alive += 1
            for place in range(t.outs_at[running], t.outs_at[running + 1]):
                source = t.reused[t.outs[place]]
                if source >= 0:
                    life[source] = -1
            if columns:
                wishes.time_ns[call] += t.duration_ns[running]
                for place in range(t.ins_at[running], t.ins_at[running + 1]):
                    if column[t.ins[place]] >= 0:
                        touched[call, column[t.ins[place]]] = 1
                for place in range(t.outs_at[running], t.outs_at[running + 1]):
                    if column[t.outs[place]] >= 0:
                        touched[call, column[t.outs[place]]] = 1
            count += 1
        if not ok:
            break
        # What dies after a call of the trace.
        for side in range(2):
            rows, row_at = (t.ins, t.ins_at) if side == 0 else (t.outs, t.outs_at)
            for place in range(row_at[call], row_at[call + 1]):
                var = rows[place]
                slot[var] += 1
                if t.last_use[var] == calls or columns:
                    continue
                if t.last_use[var] > call:
                    dies = fate[slot[var]] != KEEP
                else:
                    dies = fate[slot[var]] != HELD or is_revived[var]
                if dies:
                    life[var] = -1
        left = 0
        for place in range(revivals):
            var = revived[place]
            spent = t.last_use[var] <= call
            if not spent and fate[slot[var]] == DROP_UNREAD and call + 1 < calls:
                read = False
                for entry in range(t.ins_at[call + 1], t.ins_at[call + 2]):
                    read = read or t.ins[entry] == var
                spent = spent or not read
            if spent and t.last_use[var] < calls:
                life[var] = -1
            if life[var] < 0:
                is_revived[var] = False
            else:
                revived[left] = var
                left += 1
        revivals = left
        # Of the columns only those that are there can go; most of them stay where they are.
        left = 0
        for place in range(alive):
            own = living[place]
            var = wishes.values[own]
            if life[var] >= 0 and not wishes.wanted[call + 1, own]:
                life[var] = -1
            if life[var] >= 0:
                there[call + 1, own] = 1
                living[left] = own
                left += 1
            else:
                is_living[own] = False
        alive = left

    still_open = np.zeros(lives, np.bool_)
    for var in range(variables):
        if life[var] >= 0 and t.last_use[var] == calls:
            still_open[life[var]] = True
    all_lives = Lives(life_var[:lives], life_first + takes_over, life_last, still_open, taken_over)
    dead, deaths, resident = _residency(t, runs[:count], scratch, all_lives)
    return ExpandedStep(
        ok, runs[:count], claim[:count], end[:count], dead[:count], deaths[:count],
        resident, start,
        gap_var[:gaps], gap_life[:gaps], gap_slot[:gaps], gap_after[:gaps], gap_before[:gaps],
        life_first[:lives],
    )  # fmt: skip


@compiled
def _residency(t, runs, scratch, lives):
    """(bytes that die with each run, in how many lives, bytes on the device during it).

    The compiled twin of `sched/planning/residency.py`.
    """
    count = runs.size
    dead = np.zeros(count + 1, np.int64)
    deaths = np.zeros(count + 1, np.int64)
    change = np.zeros(count + 2, np.int64)
    for own in range(lives.var.size):
        size = t.granted[lives.var[own]]
        first = max(lives.first_alone[own], 0)
        last = count - 1 if lives.still_open[own] else lives.last[own]
        if last >= first:
            change[first] += size
            change[last + 1] -= size
        if not lives.still_open[own] and not lives.taken_over[own] and last >= 0:
            dead[last] += size
            deaths[last] += size > 0
    resident = np.empty(count, np.int64)
    kept = 0
    for place in range(count):
        kept += change[place]
        resident[place] = kept + scratch[place] + t.workspace[runs[place]]
    return dead, deaths, resident
