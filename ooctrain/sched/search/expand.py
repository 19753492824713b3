"""From what is kept to runs, lives and gaps, in one compiled walk.

Of each value that may be computed again a row of `until` says up to which call it stays when a run
makes it (`kept.py`). The walk makes an `ExpandedStep` of that: the runs, the bytes resident during
each if nothing moves, and every gap between two uses. A value is alive while it has an open life; a
read of a value without one runs its producer first, after the producers of its own missing inputs,
depth first. It is the compiled twin of `sched/planning/rematerialise.py`, of the lives in
`sched/planning/decisions.py` and of `sched/planning/residency.py`, to which tests hold it. Read
next: `evict.py`, which bytes of the gaps leave.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.search.tables import COMPUTED, INPUT, PERSISTENT, Tables

#: Decorator: put into compiled code where it is called.
inlined = numba.njit(inline="always")

#: A search may not make a step longer than this many times its calls.
LONGEST = 6
NEVER = 1 << 62


class ExpandedStep(NamedTuple):
    """A step with its recomputations, by position in the runs.

    Args:
        ok: whether every value that is read could be computed.
        runs: calls.
        of: the call of the trace for which a run happens: itself, or the next that reads what comes
            of it.
        claim, end: bytes that a run claims, and those that its End releases.
        dead, deaths: lives that end with it and whose storage is not taken over: their bytes, and
            how many have any.
        resident: bytes on the device during it if nothing moves.
        start: bytes on the device before the first.
        gap_var, gap_life, gap_slot, gap_after, gap_before: gaps between uses, by their ends, then
            their beginnings, then by variable.
        life_var: for each life its variable.
        life_first, life_last: the run that writes it, the last that reads it; -1: there before the
            step.
        taken_over: whether an output takes its storage.
    """

    ok: bool
    runs: np.ndarray
    of: np.ndarray
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
    life_var: np.ndarray
    life_first: np.ndarray
    life_last: np.ndarray
    taken_over: np.ndarray


@compiled
def expand(t, until):
    """The step of what is kept.

    Args:
        t: Tables.
        until: see `Kept`.

    Cost: O(runs + uses), some 0.1 ms for 1000 calls.
    """
    calls, variables = t.duration_ns.size, t.granted.size
    runs, made, gaps = _no_runs(LONGEST * calls), _no_lives(t), _no_gaps(t)
    now = Now(
        np.full(variables, -1, np.int64), np.full(variables, NEVER, np.int64),
        t.slot_at[:variables] - 1,
    )  # fmt: skip
    walk = StepWalk(t, until, now, runs, made, gaps)
    stack = np.empty(t.ins.size + variables + 1, np.int64)
    count = found_gaps = 0
    lives, start = _begin_lives(t, now, made)
    ok = True
    for call in range(calls):
        # The call itself is the bottom of the stack, as ~call; above it values to be revived.
        depth = 1
        stack[0] = ~call
        while depth and ok:
            wanted = stack[depth - 1]
            again = wanted >= 0
            if again and now.life[wanted] >= 0 and now.until[wanted] > call:
                depth -= 1
                continue
            running = t.producer[wanted] if again else ~wanted
            if running < 0 or count == runs.call.size or (again and not t.pure[running]):
                ok = False
                break
            missing = _push_missing(walk, running, call, stack, depth)
            ok = missing >= 0
            if missing:
                depth += missing
                continue
            depth -= 1
            runs.call[count], runs.of[count] = running, call
            found_gaps = _note_reads(walk, running, count, found_gaps)
            runs.claim[count] = runs.end[count] = t.workspace[running]
            for place in range(t.outs_at[running], t.outs_at[running + 1]):
                out = t.outs[place]
                alone = 0 if t.reused[out] >= 0 else t.granted[out]
                runs.claim[count] += alone
                if again and now.life[out] >= 0 and now.until[out] > call:
                    runs.end[count] += t.granted[out]
                    runs.scratch[count] += alone
                    continue
                _begin_life(walk, out, call, count, lives)
                lives += 1
            _end_taken_over(walk, running)
            count += 1
        if not ok:
            break
        _next_slots(walk, call)
    still_open = np.zeros(lives, np.bool_)
    for var in range(variables):
        if now.life[var] >= 0 and t.last_use[var] == calls:
            still_open[now.life[var]] = True
    dead, deaths, resident = _residency(t, runs, made, still_open, count)
    return ExpandedStep(
        ok, runs.call[:count], runs.of[:count], runs.claim[:count], runs.end[:count], dead[:count],
        deaths[:count], resident, start, gaps.var[:found_gaps], gaps.life[:found_gaps],
        gaps.slot[:found_gaps], gaps.after[:found_gaps], gaps.before[:found_gaps],
        made.var[:lives], made.first[:lives], made.last[:lives], made.taken_over[:lives],
    )  # fmt: skip


@inner
def _residency(t, runs, made, still_open, count):
    """(bytes that die with each run, in how many lives, bytes on the device during it).

    The compiled twin of `sched/planning/residency.py`.
    """
    dead = np.zeros(count + 1, np.int64)
    deaths = np.zeros(count + 1, np.int64)
    change = np.zeros(count + 2, np.int64)
    for own in range(still_open.size):
        size = t.granted[made.var[own]]
        first = max(made.first[own] + made.takes_over[own], 0)
        last = count - 1 if still_open[own] else made.last[own]
        if last >= first:
            change[first] += size
            change[last + 1] -= size
        if not still_open[own] and not made.taken_over[own] and last >= 0:
            dead[last] += size
            deaths[last] += size > 0
    resident = np.empty(count, np.int64)
    kept = 0
    for place in range(count):
        kept += change[place]
        resident[place] = kept + runs.scratch[place] + t.workspace[runs.call[place]]
    return dead, deaths, resident


# The parts of the walk: what a run reads and makes, and what dies then. Each is a few lines over
# arrays that the walk has made once. How many entries of an array count is a number that a part
# takes and returns. Numba puts the parts into the walk where they are called (`inline`): a call of
# compiled code counts each array in and out, and with calls the walk took six times as long.


class Now(NamedTuple):
    """Of each variable its open life, or -1; the first call for which that is not there any more;
    and the slot in which the variable is; before any call has touched it, the one before its first.
    """

    life: np.ndarray
    until: np.ndarray
    slot: np.ndarray


class Runs(NamedTuple):
    """Of each run its call, the call for which it is, what it claims, what its End releases, and
    outputs that are scratch, in bytes.
    """

    call: np.ndarray
    of: np.ndarray
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


class StepWalk(NamedTuple):
    """A walk over a step: what it is given, and what it has come to."""

    t: Tables
    until: np.ndarray
    now: Now
    runs: Runs
    made: MadeLives
    gaps: Gaps


@inlined
def _no_runs(most):
    """Room for `most` runs."""
    return Runs(
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64),
        np.empty(most, np.int64), np.zeros(most, np.int64),
    )  # fmt: skip


@inlined
def _no_lives(t):
    """Room for all lives of a step."""
    most = t.granted.size + (t.outs.size + 1) * LONGEST
    return MadeLives(
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64),
        np.zeros(most, np.bool_), np.zeros(most, np.bool_),
    )  # fmt: skip


@inlined
def _no_gaps(t):
    """Room for all gaps of a step."""
    most = (t.ins.size + 1) * LONGEST
    return Gaps(
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64),
        np.empty(most, np.int64), np.empty(most, np.int64),
    )  # fmt: skip


@inlined
def _begin_lives(t, now, made):
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
def _push_missing(walk, running, call, stack, depth):
    """How many inputs of a run are missing, now on the stack; -1: there is no room for them."""
    t, now, missing = walk.t, walk.now, 0
    for place in range(t.ins_at[running], t.ins_at[running + 1]):
        source = t.ins[place]
        if (now.life[source] < 0 or now.until[source] <= call) and missing >= 0:
            if depth + missing >= stack.size:
                missing = -1
            else:
                stack[depth + missing] = source
                missing += 1
    return missing


@inlined
def _note_reads(walk, running, count, found):
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
def _begin_life(walk, out, call, count, lives):
    """A life begins, and lasts as long as its value is kept."""
    t, now, made = walk.t, walk.now, walk.made
    made.var[lives], made.first[lives], made.last[lives] = out, count, count
    made.takes_over[lives] = t.reused[out] >= 0
    now.life[out] = lives
    if t.column[out] >= 0:
        now.until[out] = walk.until[t.column[out], call + 1]


@inlined
def _end_taken_over(walk, running):
    """The lives end whose storage an output has taken."""
    t, now, made = walk.t, walk.now, walk.made
    for place in range(t.outs_at[running], t.outs_at[running + 1]):
        source = t.reused[t.outs[place]]
        if source >= 0:
            made.taken_over[now.life[source]] = True
            now.life[source] = -1


@inlined
def _next_slots(walk, call):
    """What a call of the trace touches is in its next slot from then on."""
    t, slot = walk.t, walk.now.slot
    for place in range(t.ins_at[call], t.ins_at[call + 1]):
        slot[t.ins[place]] += 1
    for place in range(t.outs_at[call], t.outs_at[call + 1]):
        slot[t.outs[place]] += 1
