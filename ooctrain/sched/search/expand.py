"""From a choice of dropped values to runs, lives or gaps, in one compiled walk.

A choice gives a fate for the time after each call that touches a variable (a slot of the `Tables`):
`KEEP`, `DROP` or `DROP_UNREAD`. After the last such call a value dies unless it is `HELD` as a
source. Or `Wishes` say call by call what is to be there. The walk makes an `ExpandedStep` of it:
the runs, the bytes resident during each if nothing moves, and every gap between two uses. A value
is alive while it has an open life; a read of a value without one runs its producer first. It is the
compiled twin of `sched/planning/rematerialise.py`, of the lives in `sched/planning/decisions.py`
and of `sched/planning/residency.py`, to which tests hold it. Read next: `anneal.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from ooctrain.sched.search.jit import compiled, inner
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


class Lives(NamedTuple):
    """What is alive when.

    Args:
        var: variable of each life.
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


@inner
def _walked(t, fate, wishes):
    """The step of fates, or, where there are any, of wishes."""
    calls, variables = t.duration_ns.size, t.granted.size
    runs, made, gaps = no_runs(LONGEST * calls), no_lives(t), no_gaps(t)
    now = Now(np.full(variables, -1, np.int64), t.slot_at[:variables] - 1)
    columns = no_columns(variables, wishes)
    revived = Revived(np.empty(variables, np.int64), np.zeros(variables, np.bool_))
    walk = StepWalk(t, fate, wishes, now, runs, made, gaps, revived, columns)
    stack = np.empty(t.ins.size + variables + 1, np.int64)
    by_wishes = wishes.values.size > 0
    count = found_gaps = revivals = living = 0
    lives, start = begin_lives(t, now, made)
    ok = True
    for call in range(calls):
        # The call itself is the bottom of the stack, as ~call; above it values to be revived.
        depth = 1
        stack[0] = ~call
        while depth and ok:
            wanted = stack[depth - 1]
            again = wanted >= 0
            if again and now.life[wanted] >= 0:
                depth -= 1
                continue
            running = t.producer[wanted] if again else ~wanted
            if running < 0 or count == runs.call.size or (again and not t.pure[running]):
                ok = False
                break
            missing = push_missing(walk, running, stack, depth)
            ok = missing >= 0
            if missing:
                depth += missing
                continue
            depth -= 1
            runs.call[count] = running
            found_gaps = note_reads(walk, running, count, found_gaps)
            note_claims(walk, running, count, again)
            for place in range(t.outs_at[running], t.outs_at[running + 1]):
                out = t.outs[place]
                if again and now.life[out] >= 0:
                    continue
                begin_life(walk, out, count, lives)
                lives += 1
                if by_wishes:
                    living = note_column(out, columns, living)
                elif again:
                    revivals = note_revived(out, revived, revivals)
            end_taken_over(walk, running)
            if by_wishes:
                note_touched(walk, call, running)
            count += 1
        if not ok:
            break
        end_by_fate(walk, call)
        revivals = end_revived(walk, call, revivals)
        living = end_unwanted(walk, call, living)
    still_open = np.zeros(lives, np.bool_)
    for var in range(variables):
        if now.life[var] >= 0 and t.last_use[var] == calls:
            still_open[now.life[var]] = True
    all_lives = Lives(
        made.var[:lives], made.first + made.takes_over, made.last, still_open, made.taken_over
    )
    dead, deaths, resident = _residency(t, runs.call[:count], runs.scratch, all_lives)
    return ExpandedStep(
        ok, runs.call[:count], runs.claim[:count], runs.end[:count], dead[:count], deaths[:count],
        resident, start, gaps.var[:found_gaps], gaps.life[:found_gaps], gaps.slot[:found_gaps],
        gaps.after[:found_gaps], gaps.before[:found_gaps], made.first[:lives],
    )  # fmt: skip


@inner
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


# The parts of the walk: what a run reads, claims and writes, and what dies then. Each is a few
# lines over arrays that the walk has made once. How many entries of an array count is a number that
# a part takes and returns. Numba puts the parts into the walk where they are called (`inline`): a
# call of compiled code counts each array in and out, and with calls the walk took six times as
# long.


class Wishes(NamedTuple):
    """What is to be there, on the device or on the host, as each call begins.

    What has no column is there until nothing reads it any more, or its storage is taken over.

    Args:
        values: the variable of each column.
        wanted: whether a column stays as call k begins, if it is there; a row more than calls.
        there: whether it is there; written by the walk, as are the others below.
        touched: whether a run before call k + 1, and not before call k, reads or writes it.
        time_ns: duration of these runs.
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
        fate: one for each slot; empty where wishes say what there is to be.
        wishes: those of each call; empty where fates say it.
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
def push_missing(walk, running, stack, depth):
    """How many inputs of a call are missing, now on the stack; -1: there is no room for them."""
    t, now, missing = walk.t, walk.now, 0
    for place in range(t.ins_at[running], t.ins_at[running + 1]):
        source = t.ins[place]
        if now.life[source] < 0 and missing >= 0:
            if depth + missing >= stack.size:
                missing = -1
            else:
                stack[depth + missing] = source
                missing += 1
    return missing


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
