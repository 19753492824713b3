"""Simulated annealing over what to drop and what to hold, compiled.

From `Tables` and a first choice the search returns the best choice met. A move flips a value, a
pair, or a run of neighbours between keep, drop and drop again, or says of a value that it stays
while others can leave. Where memory is still short Belady's rule offloads, so every choice has a
makespan, and the makespan alone decides. The random numbers are our own (splitmix64): the same seed
gives the same plan everywhere. Source: ours; Kirkpatrick, Gelatt and Vecchi (1983) for annealing.
Read next: `sched/planners/combined.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.evict import Shortage, evict_within
from ooctrain.sched.search.expand import DROP_UNREAD, expand
from ooctrain.sched.search.jit import compiled
from ooctrain.sched.search.play import SearchLimits, play
from ooctrain.sched.search.tables import INPUT

#: Rows of the array that holds a choice, one number for each variable: KEEP, DROP or DROP_UNREAD;
#: whether it is held as a source; whether it stays while others can leave.
FATE, HELD, STAYS = 0, 1, 2
#: The cost of a choice that is not a schedule: beyond every makespan, and less the closer it is.
IMPOSSIBLE = 1e30


class Annealing(NamedTuple):
    """Where a search stands.

    Args:
        choice: int8, rows `FATE`, `HELD`, `STAYS`.
        cost: of the choice, in ns.
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
        values: those that can be dropped or held, in order of production.
        saved: for each variable, whether it is dropped or kept (True), or held or not.
        large: those that can stay.
    """

    values: np.ndarray
    saved: np.ndarray
    large: np.ndarray


@compiled
def evaluate(t, choice, limits):
    """Makespan of a choice in ns, or a cost beyond `IMPOSSIBLE`."""
    step = expand(t, choice[FATE], choice[HELD])
    if not step.ok:
        return 4 * IMPOSSIBLE
    budget_bytes, host_bytes = limits.budget_bytes, limits.host_bytes
    room = np.full(step.runs.size + 1 if host_bytes >= 0 else 0, host_bytes, np.int64)
    short = Shortage(budget_bytes, limits.chunk_bytes, limits.grain_bytes, room, t.origin == INPUT)
    evicted, lack = evict_within(step, t.granted, choice[STAYS], short)
    if lack > 0:
        return IMPOSSIBLE * (1 + lack / (lack + budget_bytes + 1))
    makespan = play(t, step, evicted, limits)
    return float(makespan) if makespan >= 0 else 2 * IMPOSSIBLE


@compiled
def draw(state, below):
    """(next state, a number in [0, below)): splitmix64."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, np.int64((z >> np.uint64(11)) % np.uint64(below))


@compiled
def move(state, choice, field):
    """Changes one value, two, or a run of neighbours, in place; returns the state."""
    state, kind = draw(state, 12)
    if kind < 4 and field.large.size:
        state, place = draw(state, field.large.size)
        choice[STAYS, field.large[place]] ^= 1
        return state
    if kind < 6:
        return _move_neighbours(state, choice, field)
    for _ in range(2 if kind < 8 else 1):
        state, place = draw(state, field.values.size)
        state, turned = draw(state, 2)
        var = field.values[place]
        if field.saved[var]:
            choice[FATE, var] = (choice[FATE, var] + 1 + turned) % (DROP_UNREAD + 1)
        else:
            choice[HELD, var] ^= 1
    return state


@compiled
def _move_neighbours(state, choice, field):
    """Two to seven neighbours are kept, dropped, or dropped again, all the same."""
    values = field.values
    state, first = draw(state, values.size)
    state, more = draw(state, 6)
    state, fate = draw(state, 3)
    for place in range(first, min(values.size, first + 2 + more)):
        if field.saved[values[place]]:
            choice[FATE, values[place]] = fate
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
        state, die = draw(state, 1 << 30)
        worse = (found - cost) / max(cost, 1.0)
        if worse <= 0 or die < (1 << 30) * np.exp(-worse / max(temperature, 1e-12)):
            choice, cost = other, found
            if cost < best_cost:
                best, best_cost = choice, cost
    return Annealing(choice, cost, best, best_cost, np.int64(state))  # type: ignore[arg-type]


def annealing_from(t, choice: np.ndarray, limits: SearchLimits, seed: int) -> Annealing:
    """A search that has not begun.

    Args:
        t: Tables.
        choice: where it begins.
        seed: of its random numbers.
    """
    cost = evaluate(t, choice, limits)
    return Annealing(choice, cost, choice, cost, seed)
