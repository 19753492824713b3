"""From a choice of dropped values to runs, lives and gaps, in one compiled walk.

A choice gives a fate for the time after each call that touches a variable (a slot of the
`Tables`): `KEEP`, `DROP` or `DROP_UNREAD`. After the last such call a value dies unless it is
`HELD` as a source. Or `Wishes` say call by call what there is to be. The walk makes an
`ExpandedStep` of it: the runs, the bytes resident during each if nothing moves, and every gap
between two uses. A value is alive while it has an open life; a read of a value without one runs its
producer first. It is the compiled twin of `sched/planning/rematerialise.py`, of the lives in
`sched/planning/decisions.py` and of `sched/planning/residency.py`, to which tests hold it.
Read next: `expand_parts.py`, then `evict.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.expand_parts import (
    LONGEST,
    Now,
    Revived,
    StepWalk,
    Wishes,
    begin_life,
    begin_lives,
    end_by_fate,
    end_revived,
    end_taken_over,
    end_unwanted,
    no_columns,
    no_gaps,
    no_lives,
    no_runs,
    note_claims,
    note_column,
    note_reads,
    note_revived,
    note_touched,
    push_lacking,
)
from ooctrain.sched.search.jit import compiled, inner


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
            lacking = push_lacking(walk, running, stack, depth)
            ok = lacking >= 0
            if lacking:
                depth += lacking
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
