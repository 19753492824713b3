"""Simulated annealing over what to drop or to hold, compiled.

From `Tables` and a first choice the search returns the best choice met. A move flips a value, a
pair, or a run of neighbours between keep, drop and drop again, or does so after one use of a value
only, or lets a value stay while others can leave. Where memory is still short Belady's rule
offloads (`evict_within`), so every choice has a makespan, and the makespan alone decides. The
random numbers are our own (splitmix64): the same seed gives the same plan everywhere. Source: ours;
Kirkpatrick, Gelatt and Vecchi (1983) for annealing; Belady (1966), whose rule is optimal in bytes
for offloading alone. Read next: `sched/planners/combined.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.expand import DROP, DROP_UNREAD, HELD, KEEP, expand
from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.search.play import SearchLimits, by_run, play, pop, push
from ooctrain.sched.search.tables import INPUT

#: Rows of the array that holds a choice, one number for each slot of a variable: KEEP, DROP or
#: DROP_UNREAD (in the last slot HELD or not); whether it stays while others can leave.
FATE, STAYS = 0, 1
#: The cost of a choice that is not a schedule: beyond every makespan, and less the closer it is.
IMPOSSIBLE = 1e30


class Annealing(NamedTuple):
    """Where a search stands.

    Args:
        choice: int8, rows `FATE`, `STAYS`.
        cost: cost of the choice, in ns.
        best, best_cost: the best met so far.
        random: state of the random numbers.
    """

    choice: np.ndarray
    cost: float
    best: np.ndarray
    best_cost: float
    random: int


class Cooling(NamedTuple):
    """Evaluations `first` to `stop`, `stop` not included, of a search of `total`.

    Args:
        heat: the first temperature, as a share of the makespan; it falls to 0 at `total`.
    """

    first: int
    stop: int
    total: int
    heat: float


class Field(NamedTuple):
    """What a move may change.

    Args:
        first, end: for values in order of production, the slots that change together: the one after
            the last use in the forward pass, and those after it; in the last slot alone a value is
            held or not.
        slots: those that change alone, too; empty: none does.
        may_drop: for each slot, whether a value may be dropped in it.
        large_first, large_end: slots of values that can stay.
        linked: places of values of which the second is computed from the first, one or two calls
            later; a row for each pair.
    """

    first: np.ndarray
    end: np.ndarray
    slots: np.ndarray
    may_drop: np.ndarray
    large_first: np.ndarray
    large_end: np.ndarray
    linked: np.ndarray


@compiled
def evaluate(t, choice, limits):
    """Makespan of a choice in ns, or a cost beyond `IMPOSSIBLE`."""
    return evaluate_step(t, expand(t, choice[FATE]), choice[STAYS], limits)


@inner
def evaluate_step(t, step, stays, limits):
    """Makespan of a step in ns, or a cost beyond `IMPOSSIBLE`.

    Args:
        stays: for each slot, whether what can leave in it stays while others can.
    """
    if not step.ok:
        return 4 * IMPOSSIBLE
    budget_bytes, host_bytes = limits.budget_bytes, limits.host_bytes
    room = np.full(step.runs.size + 1 if host_bytes >= 0 else 0, host_bytes, np.int64)
    short = Shortage(budget_bytes, limits.chunk_bytes, limits.grain_bytes, room, t.origin == INPUT)
    evicted, lack = evict_within(step, t.granted, stays, short)
    if lack > 0:
        return IMPOSSIBLE * (1 + lack / (lack + budget_bytes + 1))
    makespan = play(t, step, evicted, limits)
    return float(makespan) if makespan >= 0 else 2 * IMPOSSIBLE


@inner
def draw(state, below):
    """(next state, a number in [0, below)): splitmix64."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, np.int64((z >> np.uint64(11)) % np.uint64(below))


@inner
def is_taken(state, worse, temperature):
    """(next state, whether a move is taken): always if it is no worse, and else the more seldom the
    worse it is and the lower the temperature, in the same unit. Source: Metropolis et al. (1953).
    """
    state, die = draw(state, 1 << 30)
    return state, worse <= 0 or die < (1 << 30) * np.exp(-worse / max(temperature, 1e-12))


@compiled
def move(state, choice, field):
    """Changes one value, two, or a run of neighbours, in place; returns the state."""
    state, kind = draw(state, 12)
    alone = field.slots.size > 0
    if kind < 4 and field.large_first.size:
        state, place = draw(state, field.large_first.size)
        first, end = field.large_first[place], field.large_end[place]
        if kind == 0 and alone:
            state, more = draw(state, end - first)
            first, end = first + more, first + more + 1
        stays = choice[STAYS, first] ^ 1
        choice[STAYS, first:end] = stays
        return state
    if kind < 4 and field.linked.shape[0]:
        return _shift(state, choice, field)
    if kind < 6:
        return _move_neighbours(state, choice, field)
    if kind < 8 and alone:
        state, place = draw(state, field.slots.size)
        state, turned = draw(state, 2)
        slot = field.slots[place]
        if field.may_drop[slot]:
            choice[FATE, slot] = (choice[FATE, slot] + 1 + turned) % (DROP_UNREAD + 1)
        else:
            choice[FATE, slot] ^= HELD
        return state
    for _ in range(2 if kind < (10 if alone else 8) else 1):
        state, place = draw(state, field.first.size)
        state, turned = draw(state, 2)
        now = choice[FATE, field.first[place]]
        _give(choice, field, place, (now + 1 + turned) % (DROP_UNREAD + 1))
    return state


@inner
def _give(choice, field, place, fate):
    """Gives a value a fate: after its last use in the forward pass, and, if it is dropped
    repeatedly, after each later one.
    """
    first = field.first[place]
    if not field.may_drop[first]:
        choice[FATE, first] ^= HELD
        return
    choice[FATE, first] = fate
    for slot in range(first + 1, field.end[place]):
        if field.may_drop[slot]:
            choice[FATE, slot] = DROP_UNREAD if fate == DROP_UNREAD else KEEP


@inner
def _shift(state, choice, field):
    """Of two values, one computed from the other, the one that is kept is dropped, and the other is
    kept: what a chain is computed from moves along it. Where both are kept, or both dropped, one of
    them changes.
    """
    state, row = draw(state, field.linked.shape[0])
    state, drawn = draw(state, 4)
    source, out = field.linked[row, 0], field.linked[row, 1]
    of_source, of_out = _is_kept(choice, field, source), _is_kept(choice, field, out)
    dropped = DROP if drawn < 2 else DROP_UNREAD
    if of_source != of_out or drawn % 2:
        _keep(choice, field, source, not of_source, dropped)
    if of_source != of_out or not drawn % 2:
        _keep(choice, field, out, not of_out, dropped)
    return state


@inner
def _is_kept(choice, field, place):
    """Whether a value is there after the forward pass, for those that are computed from it."""
    first = field.first[place]
    return choice[FATE, first] == (KEEP if field.may_drop[first] else HELD)


@inner
def _keep(choice, field, place, keeps, dropped):
    """Sees that a value is kept, or else dropped, as `dropped` says."""
    if field.may_drop[field.first[place]]:
        _give(choice, field, place, KEEP if keeps else dropped)
    elif keeps != _is_kept(choice, field, place):
        _give(choice, field, place, KEEP)  # held, or no longer


@inner
def _move_neighbours(state, choice, field):
    """Two to seven neighbours are kept, dropped, or dropped again, all the same."""
    values = field.first.size
    state, start = draw(state, values)
    state, more = draw(state, 6)
    state, fate = draw(state, 3)
    for place in range(start, min(values, start + 2 + more)):
        if field.may_drop[field.first[place]]:
            _give(choice, field, place, fate)
    return state


@compiled
def anneal(t, walk, field, limits, cooling):
    """Some evaluations of a search.

    Args:
        walk: Annealing so far; not changed.
        cooling: which of the search's evaluations they are.

    Returns:
        Annealing.
    """
    choice, cost, best, best_cost = walk.choice, walk.cost, walk.best, walk.best_cost
    state = np.uint64(walk.random)
    for turn in range(cooling.first, cooling.stop):
        other = choice.copy()
        state = move(state, other, field)
        found = evaluate(t, other, limits)
        temperature = cooling.heat * (1 - turn / cooling.total)
        state, taken = is_taken(state, (found - cost) / max(cost, 1.0), temperature)
        if taken:
            choice, cost = other, found
            if cost < best_cost:
                best, best_cost = choice, cost
    return Annealing(choice, cost, best, best_cost, np.int64(state))  # type: ignore[arg-type]


def annealing_from(t, choice: np.ndarray, limits: SearchLimits, seed: int) -> Annealing:
    """A search that has not begun.

    Args:
        t: Tables.
        choice: where it begins.
    """
    cost = evaluate(t, choice, limits)
    return Annealing(choice, cost, choice, cost, seed)


# Which bytes spend which gaps on the host: Belady's rule in chunks. In a walk over an
# `ExpandedStep`, where memory is short, the value that is needed last leaves, only as many bytes as
# are missing, rounded up to chunks. For each gap the bytes [0, evicted) are away.


class Shortage(NamedTuple):
    """Limits of `evict_within`.

    Args:
        chunk_bytes: evictions are multiples of it; 0: whole variables.
        grain_bytes: what is less than a chunk is a multiple of it.
        room: bytes left on the host, from the start of run s - 1 to that of run s; empty: enough.
        free: for each variable, whether it is on the host anyway.
    """

    budget_bytes: int
    chunk_bytes: int
    grain_bytes: int
    room: np.ndarray
    free: np.ndarray


class Hosting(NamedTuple):
    """What the gaps of a variable have on the host so far: bytes, until which slot; the same when
    each gap was opened; and what has been evicted of each gap.
    """

    evicted: np.ndarray
    bytes: np.ndarray
    until: np.ndarray
    bytes_before: np.ndarray
    until_before: np.ndarray


@compiled
def evict(step, granted, stays, budget_bytes, chunk_bytes):
    """`evict_within`, with host memory for all."""
    no_room, no_variables = np.empty(0, np.int64), np.empty(0, np.bool_)
    limits = Shortage(budget_bytes, chunk_bytes, 1, no_room, no_variables)
    return evict_within(step, granted, stays, limits)


@inner
def evict_within(step, granted, stays, limits):
    """Bytes that each gap spends on the host.

    Args:
        step: ExpandedStep.
        granted: bytes of each variable.
        stays: for each slot, whether what leaves in it leaves only when all others have left.
        limits: Shortage; its room is taken.

    Returns:
        (evicted bytes of each gap, 0), or, where nothing helps, (..., the largest lack).

    Cost: O(runs + gaps log gaps); where host memory is short O(runs) for each eviction besides.
    """
    budget_bytes, chunk_bytes = limits.budget_bytes, limits.chunk_bytes
    runs, gaps = step.runs.size, step.gap_var.size
    short_host = limits.room.size > 0
    no_host = short_host and limits.room.max() == 0
    variables = granted.size if short_host else 0
    evicted = np.zeros(gaps, np.int64)
    hosting = Hosting(
        evicted, np.zeros(variables, np.int64), np.zeros(variables, np.int64),
        np.zeros(gaps, np.int64), np.zeros(gaps, np.int64),
    )  # fmt: skip
    returns = np.zeros(runs + 1, np.int64)
    opening = by_run(step.gap_after, runs)
    heap = np.empty(gaps, np.int64)  # open gaps are numbered by their ends: the last one is on top
    opened = next_to_open = 0
    away = lack = 0
    while next_to_open < gaps and step.gap_after[opening[next_to_open]] < 0:
        gap = opening[next_to_open]  # inputs are on the host until they are read
        next_to_open += 1
        evicted[gap] = granted[step.gap_var[gap]]
        away += evicted[gap]
        returns[step.gap_before[gap]] += evicted[gap]
    for place in range(runs):
        away -= returns[place]
        while next_to_open < gaps and step.gap_after[opening[next_to_open]] < place:
            gap = opening[next_to_open]
            next_to_open += 1
            if no_host and not limits.free[step.gap_var[gap]]:
                continue
            if short_host:
                var = step.gap_var[gap]
                hosting.bytes_before[gap] = hosting.bytes[var]
                hosting.until_before[gap] = hosting.until[var]
            push(heap, opened, gap - gaps if stays[step.gap_slot[gap]] else gap)
            opened += 1
        short = step.resident[place] - away - budget_bytes
        while short > 0 and opened:
            gap = heap[0] % gaps
            left = granted[step.gap_var[gap]] - evicted[gap]
            if left == 0 or step.gap_before[gap] <= place:
                pop(heap, opened)
                opened -= 1
                continue
            size = min(left, -(-short // chunk_bytes) * chunk_bytes) if chunk_bytes else left
            if short_host:
                size = _hosted(step, gap, size, limits, hosting)
                if size == 0:
                    pop(heap, opened)
                    opened -= 1
            evicted[gap] += size
            returns[step.gap_before[gap]] += size
            away += size
            short -= size
        lack = max(lack, short)
    return evicted, lack


@inner
def _hosted(step, gap, wanted, limits, hosting):
    """How many more bytes of a gap the host has room for, `wanted` at most; takes it. The
    twin of `sched/planning/host_gaps.py`.
    """
    var, room, taken = step.gap_var[gap], limits.room, hosting.evicted[gap]
    first, last = step.gap_after[gap] + 1, step.gap_before[gap]
    if limits.free[var]:
        return wanted
    size = wanted
    for slot in range(first, last + 1):
        size = min(size, room[slot])
        if size == 0:
            return 0
    if size < wanted:
        size = size - size % limits.grain_bytes if limits.chunk_bytes and size > 0 else 0
    hosted, until = hosting.bytes_before[gap], hosting.until_before[gap]
    shared = min(size, max(0, hosted - taken))
    if shared:
        for slot in range(until + 1, first):
            if room[slot] < shared:
                return 0
        for slot in range(until + 1, first):
            room[slot] -= shared
    for slot in range(first, last + 1):
        room[slot] -= size
    if size:
        hosting.bytes[var] = max(hosted, taken + size)
        hosting.until[var] = last if taken + size >= hosted else until
    return size
