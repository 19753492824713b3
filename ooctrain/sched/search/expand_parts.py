"""The parts of the walk of `expand.py`: what a run reads, claims and writes, and what dies then.

Each part is a few lines over arrays that the walk has made once: runs, lives, gaps, what has been
computed again, and columns. How many entries of an array count is a number that a part is given and
gives back. Numba puts the parts into the walk where they are called (`inline`): a call of compiled
code counts each array that it is handed in and out, and with calls the walk took six times as long.
Read next: `expand.py`, `tables.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from ooctrain.sched.search.tables import COMPUTED, INPUT, PERSISTENT, Tables

#: Decorator: put into compiled code where it is called.
inlined = numba.njit(inline="always")

#: What is dropped is computed again for its next reader; then it stays, or it dies again as soon as
#: the next call does not read it.
KEEP, DROP, DROP_UNREAD = 0, 1, 2
#: After the last call that touches it: a value stays for those that run again.
HELD = 1
#: A search may not make a step longer than this many times its calls.
LONGEST = 6


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


class Now(NamedTuple):
    """Of each variable its open life, or -1, and the slot in which it is; before any call has
    touched it, the one before its first.
    """

    life: np.ndarray
    slot: np.ndarray


class Runs(NamedTuple):
    """Of each run its call, what it claims, what its End releases, and outputs that are scratch,
    in bytes.
    """

    call: np.ndarray
    claim: np.ndarray
    end: np.ndarray
    scratch: np.ndarray


class MadeLives(NamedTuple):
    """Of each life its variable, its first run and the last so far; whether it began in another's
    storage, and whether another has taken its own.
    """

    var: np.ndarray
    first: np.ndarray
    last: np.ndarray
    takes_over: np.ndarray
    taken_over: np.ndarray


class Gaps(NamedTuple):
    """See `ExpandedStep`."""

    var: np.ndarray
    life: np.ndarray
    slot: np.ndarray
    after: np.ndarray
    before: np.ndarray


class Revived(NamedTuple):
    """Values that have been computed again and are there: as a list, and of each variable whether
    it is among them.
    """

    values: np.ndarray
    is_revived: np.ndarray


class KeptColumns(NamedTuple):
    """The column of each variable, or -1; those that are there, or were before this call, as a
    list; and of each whether it is among them.
    """

    of: np.ndarray
    living: np.ndarray
    is_living: np.ndarray


class StepWalk(NamedTuple):
    """A walk over a step.

    Args:
        t: Tables.
        fate: of each slot; empty where wishes say what there is to be.
        wishes: of each call; empty where fates say it.
        now, runs, made, gaps, revived, columns: what it has come to.
    """

    t: Tables
    fate: np.ndarray
    wishes: Wishes
    now: Now
    runs: Runs
    made: MadeLives
    gaps: Gaps
    revived: Revived
    columns: KeptColumns


@inlined
def no_runs(most):
    """Room for `most` runs."""
    return Runs(
        np.empty(most, np.int64), np.zeros(most, np.int64), np.zeros(most, np.int64),
        np.zeros(most, np.int64),
    )  # fmt: skip


@inlined
def no_lives(t):
    """Room for all lives of a step."""
    most = t.granted.size + (t.outs.size + 1) * LONGEST
    return MadeLives(
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64),
        np.zeros(most, np.bool_), np.zeros(most, np.bool_),
    )  # fmt: skip


@inlined
def no_gaps(t):
    """Room for all gaps of a step."""
    most = (t.ins.size + 1) * LONGEST
    return Gaps(
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64),
        np.empty(most, np.int64), np.empty(most, np.int64),
    )  # fmt: skip


@inlined
def no_columns(variables, wishes):
    """No column is there; what is written of the wishes is nothing yet."""
    count = wishes.values.size
    of = np.full(variables, -1, np.int64)
    for own in range(count):
        of[wishes.values[own]] = own
    wishes.touched[:, :] = 0
    wishes.there[:, :] = 0
    wishes.time_ns[:] = 0
    return KeptColumns(of, np.empty(count, np.int64), np.zeros(count, np.bool_))


@inlined
def begin_lives(t, now, made):
    """(lives that are there before the step, bytes on the device then)."""
    lives = start = 0
    for var in range(t.granted.size):
        if t.origin[var] != COMPUTED and t.last_use[var] >= 0:
            now.life[var] = lives
            made.var[lives], made.first[lives], made.last[lives] = var, -1, -1
            lives += 1
            if t.origin[var] == PERSISTENT:
                start += t.granted[var]
    return lives, start


@inlined
def push_lacking(walk, running, stack, depth):
    """How many values a call lacks, now upon the stack; -1: there is no room for them."""
    t, now, lacking = walk.t, walk.now, 0
    for place in range(t.ins_at[running], t.ins_at[running + 1]):
        source = t.ins[place]
        if now.life[source] < 0 and lacking >= 0:
            if depth + lacking >= stack.size:
                lacking = -1
            else:
                stack[depth + lacking] = source
                lacking += 1
    return lacking


@inlined
def note_reads(walk, running, count, found):
    """A run reads: what has waited for it had a gap. Returns how many gaps there are by now; they
    stay in order of their ends, of their beginnings, and of variables.
    """
    t, now, made, gaps = walk.t, walk.now, walk.made, walk.gaps
    for place in range(t.ins_at[running], t.ins_at[running + 1]):
        source = t.ins[place]
        own = now.life[source]
        last = made.last[own]
        waits = count - last > 1 or (last < 0 and t.origin[source] == INPUT)
        if waits and t.movable[source] and not (last < 0 and t.origin[source] == PERSISTENT):
            at = found
            while at and gaps.before[at - 1] == count and (
                gaps.after[at - 1] > last
                or (gaps.after[at - 1] == last and gaps.var[at - 1] > source)
            ):  # fmt: skip
                gaps.var[at], gaps.life[at] = gaps.var[at - 1], gaps.life[at - 1]
                gaps.slot[at] = gaps.slot[at - 1]
                gaps.after[at], gaps.before[at] = gaps.after[at - 1], gaps.before[at - 1]
                at -= 1
            gaps.var[at], gaps.life[at] = source, own
            gaps.slot[at] = max(now.slot[source], t.slot_at[source])
            gaps.after[at], gaps.before[at] = last, count
            found += 1
        made.last[own] = count
    return found


@inlined
def note_claims(walk, running, count, again):
    """What a run claims, and what its End releases: outputs that are there are scratch."""
    t, now, runs = walk.t, walk.now, walk.runs
    runs.claim[count] = runs.end[count] = t.workspace[running]
    for place in range(t.outs_at[running], t.outs_at[running + 1]):
        out = t.outs[place]
        if t.reused[out] < 0:
            runs.claim[count] += t.granted[out]
        if again and now.life[out] >= 0:
            runs.end[count] += t.granted[out]
            runs.scratch[count] += 0 if t.reused[out] >= 0 else t.granted[out]


@inlined
def begin_life(walk, out, count, lives):
    """A life begins."""
    made = walk.made
    made.var[lives], made.first[lives], made.last[lives] = out, count, count
    made.takes_over[lives] = walk.t.reused[out] >= 0
    walk.now.life[out] = lives


@inlined
def end_taken_over(walk, running):
    """The lives end whose storage an output has taken."""
    t, now, made = walk.t, walk.now, walk.made
    for place in range(t.outs_at[running], t.outs_at[running + 1]):
        source = t.reused[t.outs[place]]
        if source >= 0:
            made.taken_over[now.life[source]] = True
            now.life[source] = -1


@inlined
def note_revived(out, revived, revivals):
    """Notes a value that has been computed again; returns how many there are."""
    if not revived.is_revived[out]:
        revived.is_revived[out] = True
        revived.values[revivals] = out
        revivals += 1
    return revivals


@inlined
def note_column(out, columns, living):
    """Notes a column that is there; returns how many there are."""
    own = columns.of[out]
    if own >= 0 and not columns.is_living[own]:
        columns.is_living[own] = True
        columns.living[living] = own
        living += 1
    return living


@inlined
def note_touched(walk, call, running):
    """Notes what a run touches for a call, and its time."""
    t, column, wishes = walk.t, walk.columns.of, walk.wishes
    wishes.time_ns[call] += t.duration_ns[running]
    for place in range(t.ins_at[running], t.ins_at[running + 1]):
        if column[t.ins[place]] >= 0:
            wishes.touched[call, column[t.ins[place]]] = 1
    for place in range(t.outs_at[running], t.outs_at[running + 1]):
        if column[t.outs[place]] >= 0:
            wishes.touched[call, column[t.outs[place]]] = 1


@inlined
def end_by_fate(walk, call):
    """What a call touches goes into its next slot, and dies there if that is its fate."""
    t, fate, now, is_revived = walk.t, walk.fate, walk.now, walk.revived.is_revived
    for side in range(2):
        rows, row_at = (t.ins, t.ins_at) if side == 0 else (t.outs, t.outs_at)
        for place in range(row_at[call], row_at[call + 1]):
            var = rows[place]
            now.slot[var] += 1
            if t.last_use[var] == t.duration_ns.size or not fate.size:
                continue
            if t.last_use[var] > call:
                dies = fate[now.slot[var]] != KEEP
            else:
                dies = fate[now.slot[var]] != HELD or is_revived[var]
            if dies:
                now.life[var] = -1


@inlined
def end_revived(walk, call, revivals):
    """What has been computed again dies after its last use, or as soon as the next call does not
    read it. Returns how many values are left.
    """
    t, fate, now, revived = walk.t, walk.fate, walk.now, walk.revived
    left, calls = 0, t.duration_ns.size
    for place in range(revivals):
        var = revived.values[place]
        spent = t.last_use[var] <= call
        if not spent and fate[now.slot[var]] == DROP_UNREAD and call + 1 < calls:
            read = False
            for entry in range(t.ins_at[call + 1], t.ins_at[call + 2]):
                read = read or t.ins[entry] == var
            spent = spent or not read
        if spent and t.last_use[var] < calls:
            now.life[var] = -1
        if now.life[var] < 0:
            revived.is_revived[var] = False
        else:
            revived.values[left] = var
            left += 1
    return left


@inlined
def end_unwanted(walk, call, living):
    """Columns that are not wanted as the next call begins die. Only those that are there can go;
    most of them stay where they are. Returns how many are left.
    """
    now, columns, wishes = walk.now, walk.columns, walk.wishes
    left = 0
    for place in range(living):
        own = columns.living[place]
        var = wishes.values[own]
        if now.life[var] >= 0 and not wishes.wanted[call + 1, own]:
            now.life[var] = -1
        if now.life[var] >= 0:
            wishes.there[call + 1, own] = 1
            columns.living[left] = own
            left += 1
        else:
            columns.is_living[own] = False
    return left
